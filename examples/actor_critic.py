"""An actor and a critic balance a pole: one acts, the other predicts returns. Run: python examples/actor_critic.py

Two losses train two parts of one model on the same trials. The carts are those of reinforce.py. Konda, Tsitsiklis 2000.
"""

import numpy as np
from reinforce import pushed

import tracegrad as tg
from tracegrad import nn, optim

CARTS, STEPS, DISCOUNT = 16, 32, 0.98


class ActorCritic(tg.Module):
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 64), tg.tanh, nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), tg.tanh, nn.Linear(64, 1))


def actor_loss(m: ActorCritic, state: tg.Tensor, action: tg.Tensor, goal: tg.Tensor) -> tg.Tensor:
    logs = tg.log_softmax(m.actor(state))
    chosen = tg.take_along_axis(logs, tg.expand_dims(action, 1), 1)[:, 0]
    advantage = tg.stop_gradient(goal - m.critic(state)[:, 0])
    return -tg.mean(chosen * advantage) + 0.01 * tg.mean(tg.sum(tg.exp(logs) * logs, axis=-1))


def critic_loss(m: ActorCritic, state: tg.Tensor, goal: tg.Tensor) -> tg.Tensor:
    return tg.huber_loss(m.critic(state)[:, 0], goal)


def training(device: str = "auto") -> tg.CompiledTraining:
    n = CARTS * STEPS
    return tg.compile(
        model=ActorCritic(),
        losses={"actor": actor_loss, "critic": critic_loss},
        inputs={"state": (n, 4), "action": tg.i32[n], "goal": (n,)},
        optimizer={"actor": optim.adam(3e-3), "critic": optim.adam(1e-2)},
        params={"actor": "actor.*", "critic": "critic.*"},
        seed=0,
        device=device,
    )


def look(m: ActorCritic, state: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    return tg.categorical(m.actor(state)), m.critic(state)[:, 0]


def main(updates: int = 400, device: str = "auto") -> float:
    rng, lasted = np.random.default_rng(0), []
    state, age = rng.uniform(-0.05, 0.05, (CARTS, 4)).astype(np.float32), np.zeros(CARTS, int)
    with training(device) as train:
        see = train.attach(forward=look, inputs={"state": (CARTS, 4)})
        for k in range(updates):
            states, actions = np.zeros((STEPS, CARTS, 4), np.float32), np.zeros((STEPS, CARTS), np.int32)
            goes_on, values = np.zeros((2, STEPS, CARTS), np.float32)
            for t in range(STEPS):
                states[t] = state
                actions[t], _ = see.run(state=state).output
                state, age = pushed(state, actions[t]), age + 1
                ended = (np.abs(state[:, 0]) > 2.4) | (np.abs(state[:, 2]) > 0.21)
                values[t] = see.run(state=state).output[1]  # used if a trial is cut off here
                cut = ended | (age >= 200)
                lasted += age[cut].tolist()
                goes_on[t] = np.where(ended, 0, np.where(cut, -1, 1))
                state = np.where(cut[:, None], rng.uniform(-0.05, 0.05, (CARTS, 4)), state).astype(np.float32)
                age[cut] = 0
            goal, later = np.zeros((STEPS, CARTS), np.float32), values[-1]
            for t in reversed(range(STEPS)):
                later = np.where(goes_on[t] < 0, values[t], later) * (goes_on[t] != 0)
                goal[t] = later = 1 + DISCOUNT * later
            batch = {"state": states.reshape(-1, 4), "goal": goal.reshape(-1)}
            train.step("actor", action=actions.reshape(-1), **batch)
            train.step("critic", **batch)
            if k % 80 == 79:
                print(f"{k + 1:4} updates; the last trials stood for {np.mean(lasted[-30:]):.0f} of 200 steps")
    return float(np.mean(lasted[-30:]))


if __name__ == "__main__":
    main()
