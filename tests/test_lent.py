"""Large inputs of trainings in C are read where the copy of the caller's array lies (`runtime.lent`)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import optim
from tracegrad.runtime import copy_pool, cpu
from tracegrad.runtime.c_calls import BoundCalls
from tracegrad.runtime.copy_pool import CopyPool
from tracegrad.runtime.memory import readable_around

pytestmark = [pytest.mark.usefixtures("c_compiler"), pytest.mark.filterwarnings("ignore:the loss does not use")]

BATCH = 64


class Weights(tg.Module):
    """A matrix, filters and a table."""

    def __init__(self) -> None:
        self.w = self.param((600, 8), init=tg.init.normal(0.1))
        self.filters = self.param((4, 3, 3, 3), init=tg.init.normal(0.1))
        self.table = self.param((50, 4), init=tg.init.normal(0.1))


def product(m: Any, x: Any) -> Any:
    return ((x @ m.w) ** 2).mean()


def squares(m: Any, x: Any) -> Any:
    h = tg.relu(tg.conv2d(x.reshape((-1, 3, 20, 10)), m.filters, padding=1)).mean()
    return h + tg.softmax(x).std() + ((x @ m.w) ** 2).mean()


def turned(m: Any, x: Any) -> Any:
    return ((m.w.T @ x.T) ** 2).mean() + ((x[::-1, ::-1] @ m.w) ** 3).mean()


def images(m: Any, x: Any) -> Any:
    return tg.relu(tg.conv2d(x.reshape((BATCH, 3, 20, 10)), m.filters, padding=1)).mean()


def points(m: Any, x: Any) -> Any:
    return (tg.pad(x, ((1, 1), (1, 1))).sum(0).mean() * m.w).mean() + (tg.softmax(x) * m.w.mean(1)).sum()


def loop(m: Any, x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        return tg.tanh(h * 0.5 + row @ m.w), h.sum()

    h, sums = tg.scan(step, tg.zeros((8,)), x)
    return (h**2).mean() + sums.mean()


LOSSES: list[Callable[..., Any]] = [product, turned, images, points, loop]


def trained(loss: Callable[..., Any], x: Any, together: bool = False) -> tuple[list[float], Any, Any]:
    """Losses of three steps, the parameters after them, and the training."""
    train = tg.compile(
        model=Weights(), loss=loss, optimizer=optim.adamw(lr=1e-2), inputs={"x": x.shape[1:]}, device="cpu", seed=0
    )
    if together:
        losses = [float(y) for y in train.run_steps(3, x=x).losses]
    else:
        losses = [float(train.step(x=batch).loss) for batch in x]
    return losses, train.params(), train


def never(x: Any, dtype: str) -> bool:
    """In the place of `readable_around`."""
    return False


def memory(train: Any) -> Any:
    """Where the program keeps its input."""
    session: Any = train.worker.opened()._session
    loaded = [x for x in session._loaded.values() if x.calls is not None]
    return next(at for f, at in loaded[0].inputs if f.name == "x")


@pytest.mark.parametrize("together", [False, True], ids=["step", "run_steps"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_lent_inputs_give_the_same_bits(
    loss: Callable[..., Any], together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a copy in the program's memory, and without."""
    x = np.random.default_rng(0).standard_normal((3, BATCH, 600)).astype(np.float32)
    losses, params, train = trained(loss, x, together)
    assert not memory(train).any(), "the input was copied once more"
    monkeypatch.setattr(cpu, "readable_around", never)
    others, copied, other = trained(loss, x, together)
    assert memory(other).any()
    assert losses == others
    assert all(np.array_equal(params[name], copied[name]) for name in params)


def of_sizes(loss: Callable[..., Any], x: Any) -> tuple[list[float], Any]:
    """Losses of steps of several sizes, some with inputs too small to be lent, and the parameters after them."""
    given: dict[str, Any] = {"optimizer": optim.adamw(lr=1e-2), "inputs": {"x": (None, 600)}, "device": "cpu"}
    with tg.compile(model=Weights(), loss=loss, seed=0, **given) as train:
        losses = [float(train.step(x=x[:n]).loss) for n in (64, 60, 50, 40, 5, 64, 40, 33, 2, 50)]
        assert "of a program for sizes up to" in train.explain().title
        return losses, train.params()


@pytest.mark.parametrize("loss", [product, squares], ids=lambda f: f.__name__)
def test_lent_inputs_of_many_sizes_give_the_same_bits(
    loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).standard_normal((BATCH, 600)).astype(np.float32)
    losses, params = of_sizes(loss, x)
    monkeypatch.setattr(cpu, "readable_around", never)
    others, copied = of_sizes(loss, x)
    assert losses == others
    assert all(np.array_equal(params[name], copied[name]) for name in params)


def test_indices_and_masks() -> None:
    """Integers are lent; booleans lie in memory as 32 bits, and are converted."""
    rng = np.random.default_rng(0)
    i, mask = rng.integers(0, 50, (BATCH, 300)).astype(np.int32), rng.random((BATCH, 300)) < 0.5

    def loss(m: Any, i: Any, mask: Any) -> Any:
        return (tg.where(mask[..., None], tg.embedding(m.table, i), 0.0) ** 2).mean()

    types: dict[str, Any] = {"i": tg.i32[BATCH, 300], "mask": tg.bool_[BATCH, 300]}
    train = tg.compile(model=Weights(), loss=loss, optimizer=optim.sgd(lr=0.0), inputs=types, device="cpu", seed=0)
    table = np.asarray(train.params()["table"], np.float64)
    wanted = np.where(mask[..., None], table[i], 0.0)
    assert abs(float(train.step(i=i, mask=mask).loss) - (wanted**2).mean()) < 1e-6
    i = i[::-1]
    wanted = np.where(mask[..., None], table[i], 0.0)
    assert abs(float(train.step(i=i, mask=mask).loss) - (wanted**2).mean()) < 1e-6


def test_a_profile_reads_what_it_was_given() -> None:
    """Its runs compute on the given batch, and steps behind it on theirs."""
    x = np.random.default_rng(0).standard_normal((2, BATCH, 600)).astype(np.float32)
    losses, _, _ = trained(product, x)
    _, _, train = trained(product, x[:1])
    _ = train.profile(2, x=x[0] * 3)
    assert float(train.step(x=x[1]).loss) == losses[1]


def test_a_profile_writes_into_memory_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the pool keeps none, as for results that are too large for it."""
    monkeypatch.setattr(copy_pool, "POOL_BYTES", 0)
    empty, timed, alive = CopyPool.empty, BoundCalls.timed, list[bool]()
    made: list[weakref.ref[Any]] = []

    def noted(self: CopyPool, shape: Any, dtype: Any) -> Any:
        x = empty(self, shape, dtype)
        made.append(weakref.ref(x.base))
        return x

    def looked(self: BoundCalls) -> Any:
        alive.append(made[-1]() is not None)
        return timed(self)

    x = np.ones((BATCH, 600), np.float32)
    with tg.compile_forward(model=Weights(), forward=doubled, inputs={"x": x.shape}, device="cpu", seed=0) as f:
        _ = f.run(x=x).output
        monkeypatch.setattr(CopyPool, "empty", noted)
        monkeypatch.setattr(BoundCalls, "timed", looked)
        _ = f.profile(2, x=x)
    assert alive[:2] == [True, True]  # the others measure the machine


def test_close_frees_the_memory_that_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of copies of inputs and of results. Results that are held stay."""
    empty, made = CopyPool.empty, list[weakref.ref[Any]]()

    def noted(self: CopyPool, shape: Any, dtype: Any) -> Any:
        x = empty(self, shape, dtype)
        made.append(weakref.ref(x.base))
        return x

    monkeypatch.setattr(CopyPool, "empty", noted)
    x = np.ones((BATCH, 600), np.float32)
    f = tg.compile_forward(model=Weights(), forward=doubled, inputs={"x": x.shape}, device="cpu", seed=0)
    queued = [f.run(x=x) for _ in range(3)]
    held = queued[0].output
    assert all(np.array_equal(p.output, held) for p in queued)
    del queued
    assert len(made) >= 6
    f.close()
    gc.collect()
    assert [one() is held.base for one in made if one() is not None] == [True]
    assert np.array_equal(held, x * 2.0)


def test_close_of_a_training_frees_the_memory_of_copies() -> None:
    x = np.ones((BATCH, 600), np.float32)
    train = tg.compile(
        model=Weights(), loss=lambda m, x: tg.mean(x @ m.w), inputs={"x": x.shape}, optimizer=optim.sgd(0.1),
        device="cpu", seed=0,
    )  # fmt: skip
    _ = train.step(x=x).loss
    assert train.copies._kept  # pyright: ignore[reportPrivateUsage]
    train.close()
    assert not train.copies._kept  # pyright: ignore[reportPrivateUsage]


def outputs(m: Any, x: Any) -> dict[str, Any]:
    """Large results of all kinds: equal ones, an input, a parameter, of a loop, an index, read by other kernels."""

    def step(h: Any, row: Any) -> Any:
        h = h * 0.5 + row
        return h, h

    last, every = tg.scan(step, tg.zeros((600,)), x, reverse=True)
    y = tg.capture("y", x * 2.0)
    return {
        "same": y, "again": y, "turned": y.T, "flat": y.reshape((-1,)), "x": x, "w": m.w, "every": every, "last": last,
        "positive": y > 0.01, "whole": tg.floor(y).astype(tg.i32), "sum": y.sum(), "joined": tg.concat([x, every]),
    }  # fmt: skip


def nothing(*_: Any) -> dict[str, Any]:
    """In the place of `lent_fields`."""
    return {}


@pytest.mark.parametrize("rows", [BATCH, None], ids=["fixed", "open"])
def test_large_outputs_are_arrays_of_their_own(rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bits do not depend on where kernels wrote them or on the thread, and later runs leave them alone."""
    x = np.random.default_rng(0).standard_normal((BATCH, 600)).astype(np.float32)
    given = [s * x[: n if rows is None else rows] for s, n in ((1, 64), (2, 64), (1, 40), (3, 40), (2, 5), (3, 64)) * 3]
    forward: dict[str, Any] = {"forward": outputs, "inputs": {"x": (rows, 600)}, "device": "cpu", "seed": 0}

    def run() -> list[dict[str, Any]]:
        with tg.compile_forward(model=Weights(), **forward) as f:
            results: list[Any] = [f.run(x=x).result() for x in given]
            results += [p.result() for p in [f.run(x=x) for x in given]]  # queued
        return [r.output | {"y": r.captures["y"]} for r in results]

    found = run()
    assert any(x["same"].base is not None for x in found), "no result was computed in place"
    monkeypatch.setattr(cpu, "lent_fields", nothing)
    for a, b, x in zip(found, run(), given * 2, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in b)
        assert np.array_equal(a["x"], x)
        assert not any(np.shares_memory(a["same"], a[name]) for name in ("again", "flat", "turned", "y"))


class Steps(tg.Module):
    """Each run adds to every element."""

    def __init__(self) -> None:
        self.sum = self.state((BATCH, 600))


def test_a_large_state_that_is_a_result_stays_in_its_place() -> None:
    def forward(m: Any, x: Any) -> Any:
        m.sum.assign(m.sum + x)
        return m.sum

    x = np.ones((BATCH, 600), np.float32)
    with tg.compile_forward(
        model=Steps(), forward=forward, inputs={"x": x.shape}, device="cpu", seed=0, writes=True
    ) as f:
        results = [f.run(x=x).output for _ in range(4)]
    assert [set(y.ravel().tolist()) for y in results] == [{1.0}, {2.0}, {3.0}, {4.0}]


def doubled(m: Any, x: Any) -> Any:
    return x * 2.0


def test_a_part_of_a_larger_array_is_read_in_place_by_a_caller_who_waits() -> None:
    """If C can read around it, it is aligned, and its rows lie one after the other; else it is copied."""
    data = np.random.default_rng(0).standard_normal((400, 600)).astype(np.float32)
    odd = data.view(np.uint8).reshape(-1)[100_001:][: 4 * BATCH * 600].view(np.float32).reshape(BATCH, 600)
    assert [readable_around(x, "f32") for x in (data[100:164], odd)] == [True, False]
    parts = [data[100:164], data[:BATCH], data[-BATCH:], data[200:328:2], odd]
    with tg.compile_forward(model=Weights(), forward=doubled, inputs={"x": (BATCH, 600)}, device="cpu", seed=0) as f:
        assert np.array_equal(f.run(x=data[:BATCH]).output, data[:BATCH] * 2.0)
        home = memory(f.store)
        copied = False
        for x in parts * 10:  # a busy machine takes long for some runs, so that the worker gets the next
            home[...] = 0.0
            y = f.run(x=x).output
            with np.errstate(all="ignore"):
                assert np.array_equal(y, x * np.float32(2.0), equal_nan=True)
            assert x is not parts[0] or not home.view(np.uint32).any(), "copied"
            copied |= bool(home.view(np.uint32).any())
        assert copied, "every run was handed over"
