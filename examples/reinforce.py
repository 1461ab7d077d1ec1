"""REINFORCE: a policy learns to balance a pole on a cart from the returns of sixteen trials at a time.

Run: python examples/reinforce.py. NumPy simulates the carts. The device draws the actions. Williams 1992.
"""

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

CARTS, LONGEST, DISCOUNT = 16, 200, 0.99


class Policy(tg.Module):
    def __init__(self):
        self.l1, self.l2 = nn.Linear(4, 64), nn.Linear(64, 2)

    def __call__(self, state: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.tanh(self.l1(state)))


def act(m: Policy, state: tg.Tensor) -> tg.Tensor:
    return tg.categorical(m(state))


def loss(m: Policy, state: tg.Tensor, action: tg.Tensor, advantage: tg.Tensor) -> tg.Tensor:
    """Return the policy-gradient loss. advantage: 0 after the end of a trial."""
    chosen = tg.take_along_axis(tg.log_softmax(m(state)), tg.expand_dims(action, -1), -1)[..., 0]
    return -tg.sum(chosen * advantage) / CARTS


def pushed(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Return each cart 0.02 s later: position, speed, angle and angular speed (Barto, Sutton and Anderson 1983)."""
    _, speed, angle, turn = state.T
    force = np.where(action == 1, 10.0, -10.0)
    sin, cos = np.sin(angle), np.cos(angle)
    pull = (force + 0.05 * turn**2 * sin) / 1.1
    tilt = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    change = np.stack([speed, pull - 0.05 * tilt * cos / 1.1, turn, tilt], 1)
    return (state + 0.02 * change).astype(np.float32)


def returns(alive: np.ndarray) -> np.ndarray:
    """Return [time, cart]: the normalised, discounted number of remaining steps; 0 after the end of a trial."""
    left, total = np.zeros_like(alive), np.zeros(alive.shape[1:], np.float32)
    for t in reversed(range(len(alive))):
        left[t] = total = alive[t] * (1 + DISCOUNT * total)
    seen = left[alive > 0]
    return alive * (left - seen.mean()) / (seen.std() + 1e-6)


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs = {"state": (LONGEST, CARTS, 4), "action": tg.i32[LONGEST, CARTS], "advantage": (LONGEST, CARTS)}
    return tg.compile(model=Policy(), loss=loss, inputs=inputs, optimizer=optim.adam(lr=1e-2), seed=0, device=device)


def main(updates: int = 60, device: str = "auto") -> float:
    rng = np.random.default_rng(0)
    with training(device) as train:
        choose = train.attach(forward=act, inputs={"state": (CARTS, 4)})
        for k in range(updates):
            states, actions = np.zeros((LONGEST, CARTS, 4), np.float32), np.zeros((LONGEST, CARTS), np.int32)
            alive, up = np.zeros((LONGEST, CARTS), np.float32), np.ones(CARTS, bool)
            state = rng.uniform(-0.05, 0.05, (CARTS, 4)).astype(np.float32)
            for t in range(LONGEST):
                states[t], alive[t] = state, up
                actions[t] = choose.run(state=state).output
                state = np.where(up[:, None], pushed(state, actions[t]), state)
                up &= (np.abs(state[:, 0]) < 2.4) & (np.abs(state[:, 2]) < 0.21)
                if not up.any():
                    break
            train.step(state=states, action=actions, advantage=returns(alive))
            lasted = float(alive.sum(0).mean())
            if k % 10 == 0 or k == updates - 1:
                print(f"{k:3} the pole stood for {lasted:.0f} of {LONGEST} steps")
    return lasted


if __name__ == "__main__":
    main()
