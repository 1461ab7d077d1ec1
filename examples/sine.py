"""The smallest complete program: learn the sine, run the model, save it. Run: python examples/sine.py"""

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim

BATCH = 256


class MLP(tg.Module):
    def __init__(self, width: int = 64):
        self.l1 = nn.Linear(1, width)
        self.l2 = nn.Linear(width, width)
        self.l3 = nn.Linear(width, 1)


def predict(m: MLP, x: tg.Tensor) -> tg.Tensor:
    """Predict y. A forward is a plain function of the model and named inputs."""
    return m.l3(tg.relu(m.l2(tg.relu(m.l1(x)))))


def loss(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(predict(m, x) - y))


def main(steps: int = 1000, device: str = "auto") -> float:
    rng = np.random.default_rng(0)
    with tg.compile(
        model=MLP(),
        loss=loss,
        inputs={"x": (BATCH, 1), "y": (BATCH, 1)},
        optimizer=optim.adam(lr=lr.cosine_annealing(peak=5e-3, final=1e-4, steps=steps)),
        seed=0,
        device=device,
    ) as train:
        print(train)
        for step in range(steps):
            x = rng.uniform(-3, 3, (BATCH, 1)).astype(np.float32)
            r = train.step(x=x, y=np.sin(x))  # queued; returns at once
            if step % 100 == 0:
                print(step, r.loss)  # waits for this step only
        infer = train.attach(forward=predict, inputs={"x": (None, 1)})  # shares the parameters; None = any batch
        x = np.linspace(-3, 3, 7, dtype=np.float32)[:, None]
        y = infer.run(x=x).output
        print(np.column_stack([x, y, np.sin(x)]).round(3))
        train.save("sine.safetensors")
    return float(np.abs(y - np.sin(x)).max())


if __name__ == "__main__":
    main()
