"""Stop a training, resume it from a file, and change settings during training. Run: python examples/resume.py"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sine import BATCH, MLP, loss

import tracegrad as tg
from tracegrad import lr, optim


def compiled(device: str) -> Any:
    return tg.compile(
        model=MLP(),
        loss=loss,
        inputs={"x": (BATCH, 1), "y": (BATCH, 1)},
        optimizer=optim.adamw(lr=lr.cosine_annealing(peak=5e-3, final=1e-4, steps=400), weight_decay=1e-3),
        seed=1,
        device=device,
    )


def batch(step: int) -> dict[str, Any]:
    x = np.random.default_rng(step).uniform(-3, 3, (BATCH, 1)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


def main(device: str = "auto") -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half-way.safetensors"
        with compiled(device) as train:
            for step in range(200):
                train.step(batch(step))
            train.save(path)  # waits for the queued steps
            straight_on = [train.step(batch(step)).loss for step in range(200, 220)]
        with compiled(device) as train:
            train.load(path)
            resumed = [train.step(batch(step)).loss for step in range(200, 220)]
            print("the same to the last bit:", straight_on == resumed)
            train.set(weight_decay=0.0)  # no recompilation
            train.set_lr(lr.linear(peak=1e-3, final=1e-5, steps=100))  # begins at the next step
            for step in range(220, 320):
                r = train.step(batch(step))
            print(f"loss {r.loss:.6f} after step {r.step}")
    return straight_on == resumed


if __name__ == "__main__":
    main()
