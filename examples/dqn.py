"""A deep Q-network balances a pole, with a replay memory and a target network. Run: python examples/dqn.py

The arrays of the target network are states, which the step writes. The carts are those of reinforce.py.
Mnih et al. 2015.
"""

import numpy as np
from reinforce import pushed

import tracegrad as tg
from tracegrad import nn, optim

BATCH, CARTS, KEPT, LONGEST = 128, 8, 20_000, 200


class Agent(tg.Module):
    def __init__(self):
        self.q = nn.Sequential(nn.Linear(4, 64), tg.relu, nn.Linear(64, 64), tg.relu, nn.Linear(64, 2))
        self.target = nn.as_states(self.q)


def loss(
    m: Agent, state: tg.Tensor, action: tg.Tensor, reward: tg.Tensor, then: tg.Tensor, goes_on: tg.Tensor
) -> tg.Tensor:
    goal = reward + 0.98 * goes_on * tg.max(m.target(then), axis=-1)
    value = tg.take_along_axis(m.q(state), tg.expand_dims(action, 1), 1)[:, 0]
    for old, new in zip(tg.tree_leaves(m.target), tg.tree_leaves(m.q), strict=True):
        old.assign(0.995 * old + 0.005 * new)
    return tg.huber_loss(value, tg.stop_gradient(goal))


def training(device: str = "auto") -> tg.CompiledTraining:
    state, one = (BATCH, 4), (BATCH,)
    inputs = {"state": state, "action": tg.i32[BATCH], "reward": one, "then": state, "goes_on": one}
    return tg.compile(model=Agent(), loss=loss, inputs=inputs, optimizer=optim.adam(lr=5e-4), seed=0, device=device)


def main(steps: int = 6000, device: str = "auto") -> float:
    rng, seen, lasted = np.random.default_rng(0), 0, []
    state, age = rng.uniform(-0.05, 0.05, (CARTS, 4)).astype(np.float32), np.zeros(CARTS, int)
    memory = {"state": np.zeros((KEPT, 4), np.float32), "action": np.zeros(KEPT, np.int32),
              "reward": np.ones(KEPT, np.float32), "then": np.zeros((KEPT, 4), np.float32),
              "goes_on": np.zeros(KEPT, np.float32)}  # fmt: skip
    with training(device) as train:
        values = train.attach(forward=lambda m, state: m.q(state), inputs={"state": (CARTS, 4)})
        for k in range(steps):
            best = values.run(state=state).output.argmax(1)
            action = np.where(rng.random(CARTS) < max(0.05, 1 - k / 1500), rng.integers(0, 2, CARTS), best)
            then, age = pushed(state, action), age + 1
            fell = (np.abs(then[:, 0]) > 2.4) | (np.abs(then[:, 2]) > 0.21)
            at = (seen + np.arange(CARTS)) % KEPT
            memory["state"][at], memory["action"][at], memory["then"][at] = state, action, then
            memory["goes_on"][at], seen = ~fell, seen + CARTS
            ended = fell | (age >= LONGEST)
            lasted += age[ended].tolist()
            state = np.where(ended[:, None], rng.uniform(-0.05, 0.05, (CARTS, 4)), then).astype(np.float32)
            age[ended] = 0
            if seen >= 8 * BATCH:
                picked = rng.integers(0, min(seen, KEPT), BATCH)
                train.step({name: rows[picked] for name, rows in memory.items()})
            if k % 1000 == 999:
                print(f"{k + 1:5} steps; the last trials stood for {np.mean(lasted[-20:]):.0f} of {LONGEST}")
    return float(np.mean(lasted[-20:]))


if __name__ == "__main__":
    main()
