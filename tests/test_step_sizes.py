"""One program for many sizes of a training's batch: its steps are those of trainings compiled for each size."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.compiler import sized
from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.build import StepSource
from tracegrad.engine import programs, stepper
from tracegrad.engine.results import Failed
from tracegrad.engine.room_programs import Room, built, exact_alone
from tracegrad.metrics import accuracy
from tracegrad.runtime.base import DeviceInfo
from tracegrad.runtime.c_compiler import VARIABLE
from tracegrad.runtime.cpu import CpuSession

SIZES = (40, 1, 2, 3, 7, 16, 17, 33, 2)  # the first decides the capacity
LABELS = tg.i32[None]


class MLP(tg.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def __call__(self, x: Any) -> Any:
        return self.b(tg.relu(self.a(x)))


class CNN(tg.Module):
    def __init__(self) -> None:
        self.c, self.n, self.d = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.o = nn.Linear(96, 4)

    def __call__(self, x: Any) -> Any:
        h = tg.max_pool2d(tg.relu(self.n(self.c(x.reshape(-1, 1, 16, 16)), training=True)), 2)
        return self.o(tg.relu(self.d(h)).reshape(x.shape[0], -1))


class Attention(tg.Module):
    def __init__(self) -> None:
        self.e, self.t, self.o = nn.Embedding(4, 16), nn.TransformerBlock(16, 2, causal=True), nn.Linear(16, 4)

    def __call__(self, x: Any) -> Any:
        return self.o(self.t(self.e(x)))


class Counting(tg.Module):
    def __init__(self) -> None:
        self.a = nn.Linear(8, 4)
        self.mean, self.rows = self.state((4,)), self.state((), dtype=tg.i32)


class Recurrent(tg.Module):
    def __init__(self) -> None:
        self.g, self.o = nn.GRU(5, 8), nn.Linear(8, 4)


def classify(m: Any, x: Any, y: Any) -> Any:
    p = m(x)
    return tg.cross_entropy(p, y), {"accuracy": accuracy(p, y), "rows": tg.sum(tg.ones((x.shape[0],)))}


def dropped(m: Any, x: Any, y: Any) -> Any:
    p = m.b(tg.dropout(tg.relu(m.a(x)), 0.3, True))
    return tg.cross_entropy(p, y, label_smoothing=0.1) + tg.mean(tg.abs(tg.randn(x.shape) * x))


def language(m: Any, x: Any) -> Any:
    return tg.cross_entropy(m(x[:, :-1]).reshape(-1, 4), x[:, 1:].reshape(-1))


def counting(m: Any, x: Any, y: Any) -> Any:
    h = m.a(x)
    m.mean.assign(0.9 * m.mean + 0.1 * tg.mean(h, 0))
    m.rows.assign(m.rows + x.shape[0])
    return tg.mean(tg.square(h - m.mean)) + tg.cross_entropy(h, y)


def penalty(m: Any, x: Any) -> Any:
    slope = tg.grad(lambda z: tg.sum(m.b(tg.tanh(m.a(z)))))(x)
    return tg.mean(tg.square(tg.sum(slope, 1) - 1)) + tg.std(m.a(x)) + tg.sum(tg.max(m.a(x), 0))


def each(m: Any, x: Any) -> Any:
    return tg.mean(tg.vmap(lambda z: tg.sum(tg.square(m.b(tg.tanh(m.a(z))))))(x))


class Case(NamedTuple):
    model: Callable[[], Any]
    loss: Callable[..., Any]
    inputs: dict[str, Any]
    room: bool = False  # is a run computed in the shapes of a larger size?

    def sized(self, n: int | None) -> dict[str, Any]:
        """The inputs at a size."""

        def of(t: Any) -> Any:
            shape = tuple(n if d is None else d for d in (t if type(t) is tuple else t.shape))
            return shape if type(t) is tuple else tg.i32[shape]

        return {name: of(t) for name, t in self.inputs.items()}

    def data(self, n: int) -> dict[str, Any]:
        rng, found = np.random.default_rng(n), dict[str, Any]()
        for name, t in self.sized(n).items():
            floats = type(t) is tuple
            found[name] = rng.standard_normal(t, np.float32) if floats else rng.integers(0, 4, t.shape).astype(np.int32)
        return found


CASES = {
    "mlp": Case(MLP, classify, {"x": (None, 8), "y": LABELS}),
    "cnn": Case(CNN, classify, {"x": (None, 256), "y": LABELS}),
    "attention": Case(Attention, language, {"x": tg.i32[None, 7]}),
    "dropout": Case(MLP, dropped, {"x": (None, 8), "y": LABELS}),
    "ignore": Case(
        MLP, lambda m, x, y: tg.cross_entropy(m(x), y, ignore_index=1), {"x": (None, 8), "y": LABELS}
    ),
    "states": Case(Counting, counting, {"x": (None, 8), "y": LABELS}),
    "penalty": Case(MLP, penalty, {"x": (None, 8)}),
    "vmap": Case(MLP, each, {"x": (None, 8)}),
    "scan": Case(
        Recurrent, lambda m, x, y: tg.cross_entropy(m.o(m.g(x)[0][:, -1]), y), {"x": (None, 6, 5), "y": LABELS}
    ),
    "pairs": Case(
        MLP, lambda m, x: tg.cross_entropy(m(x) @ m(x).T, tg.arange(x.shape[0])), {"x": (None, 8)}, True
    ),
    "turned": Case(MLP, lambda m, x: tg.mean(tg.square(m(x) - m(x[::-1]))), {"x": (None, 8)}, True),
}  # fmt: skip
SHARED = pytest.mark.parametrize("device_name", ["numpy", "c", "webgpu"], indirect=True)  # XLA has rooms only
pytestmark = pytest.mark.filterwarnings("ignore:.*software adapter")
OPTIMIZER = {"accumulate": 2, "clip_grad_norm": 1.0}


def compiled(case: Case, n: int | None, device: str = "cpu", **more: Any) -> Any:
    given: dict[str, Any] = {"optimizer": optim.adamw(0.01, **OPTIMIZER), "keep_grads": True, "seed": 0, **more}
    return tg.compile(model=case.model(), loss=case.loss, inputs=case.sized(n), device=device, **given)


def on_numpy(make: Callable[..., Any], *given: Any) -> Any:
    """A training compiled for one size, by NumPy's kernels: compiling all sizes for a GPU takes a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "off")
        return make(*given)


@pytest.fixture(scope="module")
def own() -> Iterator[Callable[[str, int], Any]]:
    """Trainings that are compiled for one size: once for all devices."""
    with ExitStack() as kept:
        yield cache(lambda name, n: kept.enter_context(on_numpy(compiled, CASES[name], n)))


def share_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """No size gets a program of its own, on a GPU neither, which has more of them."""
    monkeypatch.setattr(stepper, "OWN_SIZES", 0)
    monkeypatch.setattr(stepper, "OWN_SIZES_ON_GPU", 0)


def close(found: Any, expected: Any, of: str) -> None:
    """Sums of at most 10 000 terms in another order differ by so many roundings of the largest sum of magnitudes."""
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=of)


@SHARED
@pytest.mark.parametrize("name", CASES)
def test_a_step_at_each_size_is_that_of_a_training_compiled_for_it(
    name: str, device_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Callable[[str, int], Any]
) -> None:
    share_from_the_first(monkeypatch)
    case, file = CASES[name], tmp_path / "at.safetensors"
    with compiled(case, None, device_name) as train:
        for n in SIZES:
            fixed = own(name, n)
            train.save(file)
            fixed.load(file)
            found, expected = (t.step(case.data(n)).result() for t in (train, fixed))
            close(found.loss, expected.loss, f"loss at {n}")
            for aux in expected.aux:
                close(found.aux[aux], expected.aux[aux], f"{aux} at {n}")
            for part in ("download_grads", "states", "download_params"):
                got, wanted = getattr(train, part)(), getattr(fixed, part)()
                # Adam divides small gradients by their size, so the parameters' own bound is the learning rate
                for key in wanted if part != "download_params" else ():
                    close(got[key], wanted[key], f"{part} {key} at {n}")
                assert all(np.abs(got[key] - wanted[key]).max(initial=0.0) <= 0.02 for key in wanted)
        title = train.explain().title
        assert f"of a program for sizes up to {8 if case.room else 41}, " in title


@pytest.mark.parametrize("at", [lambda n: n == 12, lambda n: math.gcd(n, 12) == 12], ids=["compared", "plain"])
def test_a_gradient_that_decides_by_the_size(at: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    share_from_the_first(monkeypatch)
    same = tg.custom_vjp(lambda x: x * 1.0)
    same.defvjp(lambda x: (x * 1.0, None), lambda kept, ct: (ct * (2.0 if at(ct.shape[0]) else 1.0),))
    case = Case(MLP, lambda m, x: tg.mean(tg.square(same(m(x)))), {"x": (None, 8)})
    with compiled(case, None, optimizer=optim.sgd(0.0)) as train:
        for n in (40, 11, 12, 13, 24):
            with compiled(case, n, optimizer=optim.sgd(0.0)) as own:
                assert train.step(case.data(n)).loss > 0 and own.step(case.data(n)).loss > 0
                got, wanted = train.download_grads(), own.download_grads()
                for name in wanted:
                    close(got[name], wanted[name], f"{name} at {n}")


@SHARED
def test_a_hundred_sizes_are_a_few_programs(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()
    monkeypatch.setattr(sized, "assemble", lambda *a: made.append(a) or assemble(*a))
    built = programs.SizedPrograms.built
    monkeypatch.setattr(programs.SizedPrograms, "built", lambda *a: made.append(a) or built(*a))
    monkeypatch.setattr(stepper, "OWN_SIZES_ON_GPU", stepper.OWN_SIZES)
    case, rng = CASES["mlp"], np.random.default_rng(0)
    with compiled(case, None, device_name, optimizer=optim.adamw(0.01)) as train:
        pending = [train.step(case.data(int(n))) for n in rng.integers(2, 500, 100)]
        assert all(p.loss > 0 for p in pending)
        assert len(made) <= stepper.OWN_SIZES + 2, len(made)
        assert train.explain().title.endswith("whose types are shown") and train.profile(1).table()
        train.set(weight_decay=0.5)
        train.freeze("a.*")
        before, failed = train.params(), train.step(case.data(30) | {"x": np.full((30, 8), np.nan, np.float32)})
        assert isinstance(failed.result(), tg.Failed)
        assert train.step(case.data(31)).step == 101
        after = train.params()
        assert all(np.array_equal(before[n], after[n]) == n.startswith("a.") for n in before)


@pytest.mark.usefixtures("c_compiler")
def test_a_new_size_binds_no_call_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, add = list[Any](), CpuSession._add
    monkeypatch.setattr(CpuSession, "_add", lambda *a: bound.append(a) or add(*a))
    with compiled(CASES["cnn"], None, "cpu") as train:
        for n in (40, 30, 20):  # the last has the program for many sizes
            assert train.step(CASES["cnn"].data(n)).loss > 0
        before = len(bound)
        for n in (10, 19, 33, 2):
            assert train.step(CASES["cnn"].data(n)).loss > 0
        assert len(bound) == before > 0


@SHARED
def test_with_two_open_sizes_those_of_one_share_a_program(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share_from_the_first(monkeypatch)
    made, counted = list[Any](), programs.SizedPrograms.built
    monkeypatch.setattr(programs.SizedPrograms, "built", lambda *a: made.append(a) or counted(*a))

    def at(b: Any, t: Any, device: str = "cpu") -> Any:
        given = {"model": Attention(), "loss": language, "inputs": {"x": tg.i32[b, t]}, "device": device}
        return tg.compile(**given, optimizer=optim.sgd(0.0), seed=0, keep_grads=True)

    sizes = [(9, 5), (4, 5), (7, 8), (12, 5), (2, 5), (1, 8), (3, 8)]
    with at("B", "T", device_name) as train:
        for b, t in sizes:
            x = np.random.default_rng(b * t).integers(0, 4, (b, t)).astype(np.int32)
            with on_numpy(at, b, t) as own:
                found, expected = train.step(x=x), own.step(x=x)
                close(found.loss, expected.loss, f"loss at {b}, {t}")
                got, wanted = train.download_grads(), own.download_grads()
                for name in wanted:
                    close(got[name], wanted[name], f"{name} at {b}, {t}")
        assert len(made) <= 1, made  # a batch of one row
        assert "of a program for sizes up to" in train.explain().title and train.step(x=x[:2]).loss > 0
        assert {room for room in train.store.stepper.sized._rooms._kept if not room[0]} == {(0, -5), (0, -8)}


def test_a_size_behind_another_axis_is_shared_and_one_of_two_axes_has_room() -> None:
    def scores(m: Any, x: Any) -> Any:
        return tg.mean(tg.softmax(x @ tg.swapaxes(x, 1, 2)) @ m(x))

    for loss, most in ((lambda m, x: tg.mean(m(x)), "17"), (scores, "B=23 and T=8")):
        given = {"model": MLP(), "loss": loss, "inputs": {"x": ("B", "T", 8)}, "device": "cpu"}
        with tg.compile(**given, optimizer=optim.sgd(0.1), seed=0) as train:
            for t in (3, 4, 5, 7, 6):
                assert np.isfinite(train.step(x=np.ones((4, t, 8), np.float32)).loss)
            assert f"of a program for sizes up to {most}, " in train.explain().title
            for b in (5, 6, 7):
                assert np.isfinite(train.step(x=np.ones((b, 6, 8), np.float32)).loss)
            assert "of a program for sizes up to" in train.explain().title


def test_programs_for_many_sizes_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    share_from_the_first(monkeypatch)
    given = {"model": MLP(), "loss": lambda m, x: tg.mean(m(x)), "inputs": {"x": ("B", "T", 8)}, "device": "cpu"}
    with tg.compile(**given, optimizer=optim.sgd(0.1), seed=0, max_cached_shapes=2) as train:
        for b, t in [(5, 2), (4, 3), (3, 4), (2, 2), (6, 2), (3, 3)]:
            assert np.isfinite(train.step(x=np.ones((b, t, 8), np.float32)).loss)
            assert 1 <= len(train.store.stepper.sized._rooms._kept) <= 4


def test_sizes_that_are_compiled_again_and_again_are_told() -> None:
    case = CASES["mlp"]

    def of_each_row(m: Any, x: Any, y: Any) -> Any:
        return sum([tg.mean(m(x)[k]) for k in range(x.shape[0])], tg.cross_entropy(m(x), y))

    with tg.compile(model=case.model(), loss=of_each_row, inputs=case.inputs, optimizer=optim.sgd(0.1), seed=0,
                    device="cpu", max_cached_shapes=2) as train:  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for n in (2, 3, 4) * 3:  # the last of these is the sixth that was dropped before
                train.step(case.data(n)).result()
        with pytest.warns(RuntimeWarning, match=r"among 3 sizes, .* pass a larger max_cached_shapes") as told:
            for n in (2, 3, 4):
                train.step(case.data(n)).result()
        assert [w.filename for w in told] == [__file__]
        assert "compiled for each size: " in train.explain().title


def test_sizes_of_the_first_batches_have_programs_of_their_own() -> None:
    case = CASES["mlp"]
    with compiled(case, None) as train, compiled(case, 9) as own:
        for n in (9, 4, 9):
            loss = train.step(case.data(n)).loss
            if n == 9:
                assert loss == own.step(case.data(n)).loss
            train.reset()
            own.reset()
        assert "of a program for sizes" not in train.explain().title


def test_a_size_of_a_shared_program_drops_none_with_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[Any] = []
    make = programs.SizedPrograms.built
    monkeypatch.setattr(programs.SizedPrograms, "built", lambda *a: alone.append(a[2]) or make(*a))
    with compiled(CASES["mlp"], None, max_cached_shapes=2) as train:
        for n in (9, 4, 8, 7, 6, 9, 4, 5, 9):  # the first two have programs of their own
            assert train.step(CASES["mlp"].data(n)).loss > 0
        own = [n for ((_, n),), p in train.store.stepper.sized.kept.items() if p.base is None]
    assert [n for ((_, n),) in alone] == [9, 4]
    assert sorted(own) == [4, 9]


def test_sizes_that_calls_had_before_are_not_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    share_from_the_first(monkeypatch)
    made, at = list[Any](), Room.at
    monkeypatch.setattr(Room, "at", lambda *a: made.append(a[-1]) or at(*a))
    with compiled(CASES["mlp"], None) as train:
        for n in [*range(40, 20, -1)] * 2:
            assert train.step(CASES["mlp"].data(n)).loss > 0
    assert len(made) == 20


@pytest.mark.usefixtures("webgpu")
def test_inputs_of_smaller_runs_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    share_from_the_first(monkeypatch)
    with compiled(CASES["mlp"], None, "webgpu") as train:
        for n in (40, 30, 20):  # below 40, unused rows lie between the inputs
            assert train.step(CASES["mlp"].data(n)).loss > 0
        session: Any = train.worker._session
        loaded = session._programs[train.store.stepper.latest.handle]
        assert len(loaded.stagings.made) == 1  # all sizes share the memory of batches
        memory = loaded.take_memory()
        assert [len(memory.writes(runs)) for runs in (1, 5)] == [2, 2]  # an array of floats, one of integers


@pytest.mark.parametrize(("software", "own"), [(True, stepper.OWN_SIZES), (False, stepper.OWN_SIZES_ON_GPU)])
def test_more_sizes_have_programs_of_their_own_on_a_gpu(software: bool, own: int) -> None:
    case, device = CASES["mlp"], DeviceInfo("webgpu", "some GPU", software, sizes="exact")
    source = StepSource(case.model(), case.loss, case.inputs, optim.sgd(0.1))
    kept = programs.SizedPrograms(source.free, 20, stepper.OWN_SIZES, stepper.OWN_SIZES_ON_GPU)
    sizes = [((name, n),) for n in range(2, 4 + stepper.OWN_SIZES_ON_GPU) for name in source.free.axes]
    shared = [kept.of(s, lambda: source, lambda: device)[0].base is not None for s in sizes]
    assert shared == [k >= own for k in range(len(sizes))]


def test_where_user_code_decides_by_a_size_it_gets_its_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    share_from_the_first(monkeypatch)

    def loss(m: Any, x: Any) -> Any:  # math reads an int without asking it
        return tg.mean(m(x)) * (2.0 if math.gcd(x.shape[0], 16) == 16 else 1.0)

    case = Case(MLP, loss, {"x": (None, 8)})
    with compiled(case, None, optimizer=optim.sgd(0.0)) as train:
        for n in (40, 20, 16, 30, 32):
            with compiled(case, n, optimizer=optim.sgd(0.0)) as own:
                close(train.step(case.data(n)).loss, own.step(case.data(n)).loss, str(n))


def test_a_source_says_why_it_has_no_program_for_many_sizes() -> None:
    case = CASES["pairs"]
    source = StepSource(case.model(), case.loss, case.inputs, optim.sgd(0.1))
    with pytest.raises(sized.UnsizedError, match="at a batch of"):
        sizes = source.free.all(16)
        built(source, sizes, [sizes], exact_alone(sizes, *source.free.axes), None, False)


def test_what_is_not_finite_is_named_in_a_program_for_many_sizes() -> None:
    def logs(m: Any, x: Any) -> Any:
        return tg.mean(tg.log(m(x) * 0 + x[..., :4]))

    for shape in ((None, 8), ("B", "T", 8)):
        train = tg.compile(model=MLP(), loss=logs, inputs={"x": shape}, optimizer=optim.sgd(0.1), seed=0, device="cpu")
        sizes = [(n, n + 2, 8)[:: 1 if len(shape) == 3 else 2] for n in (3, 4, 5, 6)]
        for given in sizes:
            assert train.step(x=np.ones(given, np.float32)).loss == 0
        failed = train.step(x=-np.ones(sizes[-1], np.float32)).result()
        assert isinstance(failed, Failed) and "value: log, f32[6," in str(failed.error), failed
        assert train.step(x=np.ones(sizes[1], np.float32)).loss == 0
