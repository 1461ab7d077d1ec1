"""Write the models of the browser bench as sites, data included: python bench/browser/export.py DIR [share].

Adam, inputs from the host at every step, as in the table of the original and of jax-js. `share` scales the batches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from models import Training, cnn, gpt, sine

ROWS = 512


class MLP(tg.Module):
    """784-512-512-10 with relu."""

    def __init__(self) -> None:
        self.l1, self.l2 = nn.Linear(784, 512), nn.Linear(512, 512)
        self.l3 = nn.Linear(512, 10)


def mlp_loss(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m.l3(tg.relu(m.l2(tg.relu(m.l1(x))))), y)


def adam() -> optim.Optimizer:
    return optim.adam(lr=1e-3)


def models(share: float) -> tuple[Training, ...]:
    """The trainings, with their batches scaled by `share` (models.mjs rounds alike)."""
    b = {n: max(1, int(size * share + 0.5)) for n, size in (("sine", 256), ("mlp", 128), ("cnn", 64), ("gpt", 32))}
    return (
        sine(b["sine"], optimizer=adam),
        Training("mlp", MLP, mlp_loss, {"x": (b["mlp"], 784), "y": tg.i32[b["mlp"]]}, adam),
        cnn(b["cnn"], optimizer=adam),
        gpt(b["gpt"], optimizer=adam),
    )


def rows(name: str) -> dict[str, Any]:
    """Return random data of the right shape: only the time of a step counts."""
    rng = np.random.default_rng(0)
    if name == "gpt":
        tokens = rng.integers(0, 65, (ROWS, 65)).astype(np.int32)
        return {"tokens": tokens[:, :-1], "following": tokens[:, 1:]}
    shape = {"sine": (ROWS, 1), "mlp": (ROWS, 784), "cnn": (ROWS, 1, 28, 28)}[name]
    x = rng.standard_normal(shape).astype(np.float32)
    return {"x": x, "y": np.sin(x) if name == "sine" else rng.integers(0, 10, ROWS).astype(np.int32)}


def export(folder: Path, share: float = 1.0) -> None:
    """One folder a model."""
    for training in models(share):
        with tg.compile(**training.arguments(), seed=0, device="cpu") as train:
            index = train.export(folder / training.name, data=rows(training.name), title=training.name)
        print(index.parent, f"{(index.parent / 'program.json').stat().st_size:,} bytes of program")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for one site a model")
    parser.add_argument("share", type=float, nargs="?", default=1.0, help="of the batches (default: %(default)s)")
    options = parser.parse_args()
    export(options.folder, options.share)
