"""States of optimizers that have another shape than the parameters: rows and columns of a matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim, safetensors
from tracegrad.ir.nodes import Tensor

EPS = 1e-6
ROWS = optim.PerParameter(lambda shape: shape[:1] if len(shape) == 2 else None, fill=0.5)
COLUMNS = optim.PerParameter(lambda shape: shape[1:] if len(shape) == 2 else None)


def factored() -> optim.Transform:
    """Divide matrices by the root of the product of their rows' and columns' sums of squares; leave vectors alone."""

    def update(g: Tensor, p: Tensor, state: Any, host: optim.Host) -> tuple[Tensor, Any]:
        arena = host.arena
        rows, columns = ROWS.layout(arena), COLUMNS.layout(arena)
        r, c, gradients = rows.views(state["rows"]), columns.views(state["columns"]), arena.views(g)
        for slot in rows.slots:
            squares = tg.square(gradients[slot.name])
            r[slot.name] = r[slot.name] + tg.sum(squares, 1)
            c[slot.name] = c[slot.name] + tg.sum(squares, 0)
            by = tg.sqrt(tg.outer(r[slot.name], c[slot.name]) + EPS)
            gradients[slot.name] = gradients[slot.name] / by
        return arena.pack(gradients), {"rows": rows.pack(r), "columns": columns.pack(c)}

    return optim.Transform({"rows": ROWS, "columns": COLUMNS}, update)


class Net(tg.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 2)

    def __call__(self, x: Any) -> Any:
        return self.b(tg.tanh(self.a(x)))


def loss(m: Any, x: Any, y: Any) -> Any:
    return tg.mean(tg.square(m(x) - y))


def compiled(optimizer: optim.Optimizer, device: str = "cpu", model: Any = None) -> tg.CompiledTraining:
    inputs = {"x": (4, 3), "y": (4, 2)}
    return tg.compile(
        model=model or Net(), loss=loss, inputs=inputs, optimizer=optimizer, seed=3, device=device, keep_grads=True
    )


def batch(k: int) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    return {"x": rng.standard_normal((4, 3), np.float32), "y": rng.standard_normal((4, 2), np.float32)}


def test_rows_and_columns_train_as_numpy_does(device_name: str) -> None:
    r = {"a.W": np.full(3, 0.5), "b.W": np.full(5, 0.5)}
    c = {"a.W": np.zeros(5), "b.W": np.zeros(2)}
    with compiled(optim.custom(factored(), lr=0.1), device_name) as train:
        sizes = {b.name: b.size for b in train.program.buffers if b.role == "state"}
        assert sizes["rows"] == 8 and sizes["columns"] == 7
        for k in range(4):
            before = train.download_params()
            train.step(batch(k)).result()
            gradients = train.download_grads()
            for name, p in train.download_params().items():
                g = gradients[name].astype(np.float64)
                if name in r:
                    r[name] += (g * g).sum(1)
                    c[name] += (g * g).sum(0)
                    g = g / np.sqrt(np.outer(r[name], c[name]) + EPS)
                np.testing.assert_allclose(p, before[name] - 0.1 * g, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {k}")


OPTIMIZERS = {
    "factored": lambda: optim.custom(factored(), lr=0.1),
    "options": lambda: optim.custom(factored(), lr=0.1, ema=0.9, accumulate=2, clip_grad_norm=1.0),
    "twice": lambda: optim.custom(optim.chain(factored(), factored()), lr=0.1),
    "adafactor": lambda: optim.adafactor(0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_such_states_are_saved_restored_and_reset(name: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.safetensors"
    with compiled(OPTIMIZERS[name]()) as train, compiled(OPTIMIZERS[name]()) as other:
        start = [train.step(batch(k)).loss for k in range(3)]
        train.save(path)
        rows = safetensors.read(path).tensors["opt/rows"]
        assert rows.shape == ((8,) if name != "adafactor" else rows.shape) and np.any(rows > 0)
        other.load(path)
        rest = [train.step(batch(k)).loss for k in range(3, 7)]
        assert [other.step(batch(k)).loss for k in range(3, 7)] == rest
        other.reset()
        assert [other.step(batch(k)).loss for k in range(3)] == start


def test_a_skipped_or_failed_step_changes_no_such_state() -> None:
    with compiled(OPTIMIZERS["factored"]()) as train:
        train.step(batch(0)).result()
        before = {n: x.copy() for n, x in train.download_params().items()}
        result = train.step({**batch(1), "y": np.full((4, 2), 1e25, np.float32)}).result()
        assert isinstance(result, tg.Failed)
        assert all(np.array_equal(before[n], x) for n, x in train.download_params().items())


@pytest.mark.parametrize("bias", [True, False], ids=["vectors only", "matrices only"])
def test_a_state_that_no_parameter_has_a_part_of(bias: bool) -> None:
    class Bias(tg.Module):
        def __init__(self) -> None:
            self.b = self.param((2,), init=tg.init.zeros())

        def __call__(self, x: Any) -> Any:
            return self.b + tg.sum(x, 1, keepdims=True)

    model = Bias() if bias else nn.Linear(3, 2, bias=False)
    for optimizer in (OPTIMIZERS["factored"](), optim.adafactor(0.1)):
        with compiled(optimizer, model=model) as train:
            losses = [train.step(batch(0)).loss for _ in range(20)]
            assert losses[-1] < losses[0]


def test_a_state_of_another_size_than_declared_is_refused() -> None:
    wrong = optim.Transform({"rows": ROWS}, lambda g, p, state, host: (g, {"rows": g}))
    with pytest.raises(tg.ShapeError, match=r"the state 'rows' as f32\[32\]; it must be f32\[8\]"):
        compiled(optim.custom(wrong))
