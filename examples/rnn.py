"""A gated recurrent network that learns to repeat its input of eight steps ago. Run: python examples/rnn.py

`tg.scan` runs one function along the sequence. The function is traced and compiled once, so a sequence of 128 steps
compiles as fast as one of 2. The gradient is a scan in the other direction.
"""

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim

LENGTH, BATCH, WIDTH, DELAY = 128, 32, 64, 8


class GRU(tg.Module):
    """A gated recurrent unit: two gates decide how much of the state is kept and renewed. Cho et al. 2014."""

    def __init__(self, width: int = WIDTH):
        narrow = tg.init.lecun()  # the default is for a relu, which does not follow here
        self.input = nn.Linear(1, 3 * width, init=narrow)
        self.gates = nn.Linear(width, 2 * width, bias=False, init=narrow)
        self.candidate = nn.Linear(width, width, bias=False, init=narrow)
        self.output = nn.Linear(width, 1, init=narrow)


def predict(m: GRU, x: tg.Tensor) -> tg.Tensor:
    """Return logits of the input bit DELAY steps before. `x` is f32[time, batch, 1]."""

    def step(h: tg.Tensor, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
        r, z, n = tg.split(x, 3, axis=-1)
        reset, update = tg.split(m.gates(h), 2, axis=-1)
        r, z = tg.sigmoid(reset + r), tg.sigmoid(update + z)
        h = z * h + (1 - z) * tg.tanh(n + m.candidate(r * h))
        return h, h

    # terms that do not depend on the state are computed for all times at once: one large matmul before, one after
    _, states = tg.scan(step, tg.zeros((x.shape[1], m.output.W.shape[0])), m.input(x))
    return m.output(states)


def loss(m: GRU, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.binary_cross_entropy_with_logits(predict(m, x)[DELAY:], y[DELAY:]))


def batch(rng: np.random.Generator, length: int = LENGTH, size: int = BATCH) -> dict[str, np.ndarray]:
    bits = rng.integers(0, 2, (length, size, 1)).astype(np.float32)
    return {"x": 2 * bits - 1, "y": np.roll(bits, DELAY, axis=0)}


def main(steps: int = 300, device: str = "auto") -> float:
    rng = np.random.default_rng(0)
    shape = (LENGTH, BATCH, 1)
    rate = lr.one_cycle(peak=1e-2, steps=steps)
    optimizer = optim.adam(lr=rate, clip_grad_norm=1.0)
    with tg.compile(
        model=GRU(), loss=loss, inputs={"x": shape, "y": shape}, optimizer=optimizer, seed=0, device=device
    ) as train:
        print(train)
        for step in range(steps):
            r = train.step(batch(rng))
            if step % 50 == 0:
                print(step, r.loss)  # starts at 0.693, the loss of guessing
        infer = train.attach(forward=predict, inputs={"x": (None, 4, 1)})  # any length, even one never trained on
        test = batch(rng, length=3 * LENGTH, size=4)
        right = (infer.run(x=test["x"]).output > 0) == (test["y"] > 0.5)
        print(f"bits repeated rightly, in sequences three times as long: {100 * right[DELAY:].mean():.1f} %")
    return float(right[DELAY:].mean())


if __name__ == "__main__":
    main()
