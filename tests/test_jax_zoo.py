"""Every model of bench/zoo.py with device="jax", beside the CPU: losses and parameters of its first steps."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

pytest.importorskip("jax", reason="JAX is not installed")

from zoo import CLOSE, ZOO, batches_of
from zoo_parts import inputs_of

import tracegrad as tg
from tracegrad import optim
from xla import quickly

NEAR = 1e-4  # losses. All parameters but the PINN's, which this rate makes diverge, are as near, too


@pytest.mark.slow  # XLA's CPU takes up to half a minute for one of them
@pytest.mark.parametrize("name", ZOO)
def test_jax_trains_each_model_as_the_cpu_does(name: str) -> None:
    """Three steps of SGD. Adam would move what rounding alone makes by the whole rate.

    Every third model as users compile it, which takes XLA twice as long.
    """
    batches, losses, found = batches_of(name)[:3], list[list[float]](), list[np.ndarray]()
    first: np.ndarray | None = None
    for device in ("cpu", "jax"):
        model, loss = ZOO[name].ours()
        made = optim.sgd(lr=1e-2)
        with (
            nullcontext() if list(ZOO).index(name) % 3 == 0 else quickly(),
            tg.compile(
                model=model, loss=loss, inputs=inputs_of(batches[0]), optimizer=made, seed=0, device=device
            ) as train,
        ):
            flat = lambda train=train: np.concatenate([x.ravel() for _, x in sorted(train.params().items())])
            first = flat() if first is None else first
            losses.append([train.step(b).loss for b in batches])
            found.append(flat())
    assert first is not None
    np.testing.assert_allclose(losses[1], losses[0], rtol=NEAR)
    moved = float(np.linalg.norm(found[0] - first))
    far = float(np.linalg.norm(found[1] - found[0]))
    assert moved > 0 and far <= CLOSE * moved, (far, moved)
