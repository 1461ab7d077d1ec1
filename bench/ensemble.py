"""Time of a training step of 64 small MLPs in one program, against one MLP. Run: python bench/ensemble.py [device]

"64" is `nn.stack`, whose members share the hyperparameters. "sweep" is `tg.sweep`, where each has a rate of its own.

Prints the median of many steps, run in one submission, with the loss read back at the end.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

BATCH, STEPS, REPEATS = 128, 200, 7


class MLP(tg.Module):
    """1-width-width-1."""

    def __init__(self, width: int) -> None:
        self.l1, self.l2, self.l3 = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, 1)


def one_loss(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(m.l3(tg.relu(m.l2(tg.relu(m.l1(x))))) - y))


def all_losses(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.sum(tg.vmap(one_loss, in_axes=(0, None, None))(m, x, y))


def timed(train: tg.CompiledTraining | tg.Sweep) -> float:
    x = np.random.default_rng(0).uniform(-3, 3, (BATCH, 1)).astype(np.float32)
    train.run_steps(STEPS, x=x, y=np.sin(x)).result()
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        train.run_steps(STEPS, x=x, y=np.sin(x)).result()
        times.append((time.perf_counter() - start) / STEPS * 1e3)
    return statistics.median(times)


def milliseconds(members: int, width: int, device: str) -> tuple[float, int]:
    """A step of `members` models, and its dispatches; 1 is a model without any stack."""
    model, loss = (MLP(width), one_loss) if members == 1 else (nn.stack(MLP(width), members), all_losses)
    inputs = {"x": (BATCH, 1), "y": (BATCH, 1)}
    with tg.compile(model=model, loss=loss, inputs=inputs, optimizer=optim.adam(), seed=0, device=device) as train:
        return timed(train), len(train.program.dispatches)


def swept(members: int, width: int, device: str) -> float:
    """Milliseconds of a step of `tg.sweep`."""
    inputs, rates = {"x": (BATCH, 1), "y": (BATCH, 1)}, np.geomspace(1e-4, 1e-2, members).tolist()
    with tg.sweep(
        model=MLP(width), loss=one_loss, inputs=inputs, optimizer=optim.adam(), seeds=range(members), lr=rates,
        device=device,
    ) as sweep:  # fmt: skip
        return timed(sweep)


def main(device: str = "auto") -> None:
    print(f"{'width':>5}  {'one':>9}  {'64':>9}  {'ratio':>6}  {'sweep':>9}  dispatches")
    for width in (16, 32, 64):
        one, few = milliseconds(1, width, device)
        many, all_ = milliseconds(64, width, device)
        each = swept(64, width, device)
        ratio = many / one
        print(f"{width:5}  {one:6.3f} ms  {many:6.3f} ms  {ratio:6.2f}  {each:6.3f} ms  {few} and {all_}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", nargs="?", default="auto", help="(default: %(default)s)")
    main(parser.parse_args().device)
