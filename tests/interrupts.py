"""Interrupt a training at many random moments, then compare it with one that was left alone. Run by test_interrupts.

The batch is always the same, so parameters depend on the number of steps alone: whatever an interrupt cut short was
done wholly, or not at all.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tracegrad as tg
from models import SineMLP, sine_loss
from tracegrad import optim

X = np.random.default_rng(0).uniform(-3, 3, (16, 1)).astype(np.float32)
BATCH = {"x": X, "y": np.sin(X)}


def compiled(device: str) -> tg.CompiledTraining:
    """A small training."""
    return tg.compile(
        model=SineMLP(8), loss=sine_loss, inputs={"x": (16, 1), "y": (16, 1)}, optimizer=optim.adam(1e-3), seed=0,
        device=device,
    )  # fmt: skip


def interrupted(action: Callable[[], object], seconds: float) -> bool:
    """Do it, and raise KeyboardInterrupt in it after so long; was it cut short?"""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            action()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def main(device: str, seconds: float, seed: int) -> None:
    """So many seconds of interrupts, then the comparison."""
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    rng = random.Random(seed)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp())
    path = folder / "train.safetensors"
    train = compiled(device)
    train.save(path)
    made: list[tg.Pending[tg.StepResult]] = []

    def steps() -> None:
        for _ in range(20):
            made.append(train.step(BATCH))

    actions: dict[str, Callable[[], object]] = {
        "step": steps,
        "wait": lambda: train.step(BATCH).loss,
        "several": lambda: train.run_steps(3, BATCH).losses,
        "fit": lambda: train.fit([BATCH] * 10, progress=False),
        "save": lambda: train.save(path),
        "load": lambda: train.load(path),
        "rate": lambda: train.set_lr(1e-3),
        "read": train.download_params,
        "replace": lambda: train.replace_model(train.model),
        "compile": lambda: compiled(device).close(),
    }
    # What is imported at its first use is imported before: an interrupt in an import can leave CPython's own lock held.
    for action in actions.values():
        action()
    train.step(BATCH).result()
    times = dict.fromkeys(actions, 1e-3)
    cut = dict.fromkeys(actions, 0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = rng.choices([*actions], [8, 8, 4, 4, 4, 4, 2, 4, 0.5, 0.5])[0]
        began = time.perf_counter()
        if interrupted(actions[name], rng.uniform(1e-6, 1.2) * times[name]):
            cut[name] += 1
        else:
            times[name] = time.perf_counter() - began  # moments are spread over all of the action
        if name == "save":  # whole, whatever happened
            assert tg.safetensors.read(path).metadata["tracegrad"]
    last = train.step(BATCH)
    count = last.result(30).step
    left = [p for p in made if not p.done()]
    assert not left, f"{len(left)} of {len(made)} pending results were never resolved"
    assert all(isinstance(p.result(), (tg.Completed, tg.Aborted)) for p in made)
    train.save(path)  # takes away what an interrupted one left
    assert [p.name for p in folder.iterdir()] == [path.name]
    train.set_lr(1e-3)
    with compiled(device) as alone:
        for _ in range(count):
            last = alone.step(BATCH)
        last.result()
        want = alone.download_params()
        for name, value in train.download_params().items():
            np.testing.assert_array_equal(value, want[name], err_msg=f"{name} after {count} steps")
    train.close()
    with contextlib.suppress(KeyboardInterrupt):
        print(f"{sum(cut.values())} interrupts, {count} steps: {cut}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
