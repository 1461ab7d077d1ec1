"""One program for every size of a batch: at each size it gives what the program compiled for that size gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from all_cases import ALL_CASES
from cases import Case
from models import build_forward
from tracegrad import nn
from tracegrad.compiler import places, sized
from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.build import Built, ForwardSource
from tracegrad.compiler.rooms import Rooms, build_rooms
from tracegrad.dtypes import InputType, bool_, f32, i32
from tracegrad.engine.inputs import blank
from tracegrad.engine.programs import SizedPrograms
from tracegrad.engine.run_program import numbers_of
from tracegrad.ir.evaluate import evaluate
from tracegrad.kernels.form import Extent, UnsizedError
from tracegrad.render.c_steps import GatheredStep
from tracegrad.runtime import wgpu_session
from tracegrad.runtime.base import Session
from tracegrad.runtime.c_compiler import compiler
from tracegrad.runtime.cpu import CpuSession
from tracegrad.runtime.wgpu_session import NativeSession

SIZES = (1, 5, 16, 17)
X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


class Weight(tg.Module):
    def __init__(self):
        self.w = self.param((4,), init=tg.init.ones())


def many(source: Callable[[int], ForwardSource], most: int, gpu: bool = False) -> Rooms:
    """The program for sizes up to `most`, or a few more."""
    return build_rooms(lambda n: source(n[0]), {"n": most}, "n", gpu)


def at_size(made: Rooms, n: int) -> Built | None:
    """The program at a size."""
    found = made.at([n])
    return found.built if found else None


def family(forward: Callable[..., Any], most: int = 16) -> Rooms:
    return many(lambda n: ForwardSource(Weight(), forward, {"x": (n, 4)}), most)


def batched(case: Case, gradient: bool) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A case over a batch of everything it takes, and the types of one element."""
    types = {f"x{k}": (f32, s) for k, s in enumerate(case.shapes)}
    types |= {f"i{k}": (i32, s) for k, (s, _) in enumerate(case.ints)}
    types |= {f"b{k}": (bool_, s) for k, s in enumerate(case.bools)}
    fn = case.fn
    if gradient:
        fn = tg.grad(lambda *xs: tg.sum(tg.square(case.fn(*xs))), argnums=tuple(range(len(case.shapes))))
    names = ", ".join(types)
    return eval(f"lambda m, {names}: vmap(fn)({names})", {"fn": fn, "vmap": tg.vmap}), types


def given(case: Case, n: int) -> dict[str, Any]:
    found = [case.arrays(seed=k, dtype="float32") for k in range(n)]
    return {name: np.stack([x[name] for x in found]) for name in found[0]}


def differences(case: Case, gradient: bool, sizes: tuple[int, ...], session: Session, own: Session) -> str:
    """How the program for many sizes differs from those for one; "" if it does not, or if there is none for many."""
    forward, types = batched(case, gradient)

    def at(n: int) -> dict[str, Any]:
        return {name: InputType(dtype, (n, *shape)) for name, (dtype, shape) in types.items()}

    try:
        made = many(lambda n: ForwardSource(Weight(), forward, at(n)), 16, session.info.gpu)
    except UnsizedError as e:
        return f"refused: {e}"
    base = session.load(made.built.program)
    for n in sizes:
        told = made.followed.at([n]) if made.followed else None
        assert told is None or told == made._replace(followed=None)._numbers((n,)), n  # pyright: ignore[reportPrivateUsage]
        now = at_size(made, n)
        if now is None:
            assert n == 1
            continue
        made_of = given(case, n)  # also what its oracle takes alone
        values = {
            f.name: made_of.get(f.name, x) for f, x in zip(now.program.inputs, blank(now.program.inputs).values())
        }
        handles = (
            session.load(now.program, base),
            own.load(build_forward(Weight(), forward, at(n)).program),
        )
        (found,) = session.run(handles[0], [{**values, **numbers_of(now)}]).outputs()
        (expected,) = own.run(handles[1], [{n: x for n, x in values.items() if n not in now.numbers}]).outputs()
        session.unload(handles[0])
        own.unload(handles[1])
        for name, x in expected.items():
            scale = max(1.0, np.abs(x, where=np.isfinite(x), out=np.zeros(x.shape)).max(initial=0.0))
            if not np.allclose(found[name], x, rtol=case.f32_tol, atol=case.f32_tol * scale, equal_nan=True):
                return f"{n}: {name} is {found[name]}, expected {x}"
    session.unload(base)
    return ""


TAKING = [c for c in ALL_CASES if c.shapes or c.ints or c.bools]


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
def test_every_case_gives_at_each_size_what_it_gives_when_compiled_for_it(gradient: bool) -> None:
    cases = [c for c in TAKING if c.shapes and c.grad][::4] if gradient else TAKING[::3]
    session, own = CpuSession(None), CpuSession(None)
    found = {c.name: differences(c, gradient, SIZES, session, own) for c in cases}
    wrong = {name: text for name, text in found.items() if text and not text.startswith("refused")}
    assert not wrong, wrong
    refused = [name for name, text in found.items() if text]
    assert len(refused) <= len(cases) // 8, refused


SOME = ["softmax_-1", "layer_norm", "conv2d_wide", "matmul_(3,4)_(4,5)", "max_-1"]


@pytest.mark.parametrize("name", SOME)
def test_cases_in_c(name: str) -> None:
    (case,) = [c for c in TAKING if c.name == name]
    assert differences(case, False, (1, 3, 17), CpuSession(compiler()), CpuSession(compiler())) == ""


BARRIERS = pytest.mark.parametrize("barriers", [False, True], ids=["serial", "barriers"])


@BARRIERS
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
def test_cases_on_a_gpu(gradient: bool, barriers: bool, device: NativeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    if barriers:  # also on a software adapter
        monkeypatch.setattr(wgpu_session, "as_run", lambda program, info: program)
    cases = [c for c in TAKING if c.name in SOME] + [
        c for c in TAKING[5 + 20 * barriers :: 40] if c.grad or not gradient
    ]
    found = {c.name: differences(c, gradient, (1, 3, 16, 17), device, device) for c in cases}
    assert not {name: text for name, text in found.items() if text and not text.startswith("refused")}
    assert [name for name in SOME if not found[name]] == SOME


def of_tokens(m: Any, x: Any, y: Any) -> Any:
    return x.reshape(-1, x.shape[-1]).T @ y.reshape(-1, y.shape[-1])


def of_weights(m: Any, x: Any, y: Any) -> Any:
    return tg.grad(lambda w: tg.sum(tg.conv2d(x, w, padding=1) * y))(tg.ones((17, 4, 3, 3)) * tg.sum(m.w))


OVER_THE_BATCH: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "vectors": (lambda m, x, y: x.T @ y, (64,), (48,)),
    "elements": (lambda m, x, y: x.T @ y, (37,), (45,)),
    "narrow": (lambda m, x, y: x.T @ y, (64,), (3,)),
    "eight_tokens": (of_tokens, (8, 64), (8, 48)),
    "seven_tokens": (of_tokens, (7, 64), (7, 48)),
    "along_k": (lambda m, x, y: tg.einsum("bdt,bet->de", x, y), (32, 16), (40, 16)),
    "several": (lambda m, x, y: tg.einsum("bhd,bhe->hde", x, y), (3, 32), (3, 20)),
    "convolution": (of_weights, (4, 7, 7), (17, 7, 7)),
    "columns": (lambda m, x, y: {"sum": x.sum(0), "var": tg.var(x, 0), "soft": tg.softmax(y, 0)}, (70,), (5,)),
    "all": (lambda m, x, y: {"of": x * tg.sum(y), "mean": tg.mean(y) + m.w, "far": tg.max(x)}, (5,), (3,)),
}


@BARRIERS
@pytest.mark.parametrize("name", OVER_THE_BATCH)
def test_kernels_of_a_gpu_sum_over_the_true_size(
    name: str, barriers: bool, device: NativeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a larger batch left behind the batch is NaN. The capacities make loops short and long."""
    if barriers:
        monkeypatch.setattr(wgpu_session, "as_run", lambda program, info: program)
    forward, *shapes = OVER_THE_BATCH[name]

    def source(n: int) -> ForwardSource:
        return ForwardSource(Weight(), forward, {k: (n, *s) for k, s in zip("xy", shapes)})

    for most in (16, 150):
        made = many(source, most, gpu=True)
        base = device.load(made.built.program)
        device.write("params", np.ones(4, np.float32))
        assert any("extent_n" in k.wgsl for k in made.built.program.kernels)
        for n in (2, 3, 5, 8, 16, most - 1, made.built.program.capacity):
            now, whole = at_size(made, n), at_size(made, made.built.program.capacity)
            assert now is not None and whole is not None
            lost = {k: np.full((made.built.program.capacity, *s), np.nan, np.float32) for k, s in zip("xy", shapes)}
            device.run(base, [{**lost, **numbers_of(whole)}]).outputs()
            handle, rng = device.load(now.program, base), np.random.default_rng(n)
            given = {k: rng.standard_normal((n, *s)).astype(np.float32) for k, s in zip("xy", shapes)}
            (found,) = device.run(handle, [{**given, **numbers_of(now)}]).outputs()
            device.unload(handle)
            graph = source(n).traced().graph
            double = {k: x.astype(np.float64) for k, x in given.items()}
            for key, x in zip(graph.outputs, evaluate(graph.roots, {**double, "w": np.ones(4)}, np), strict=True):
                scale = max(1.0, float(np.abs(x).max()))
                np.testing.assert_allclose(found[key], x, rtol=2e-5, atol=2e-5 * scale, err_msg=f"{key} at {n}")
        device.unload(base)


@pytest.mark.parametrize("most", [16, 150])
def test_kernels_share_launches_as_in_a_program_for_one_size(most: int) -> None:
    """One launch has a kernel for all sizes, and one whose workgroups follow the size: the text finds their begins."""
    forward, *shapes = OVER_THE_BATCH["columns"]

    def source(n: int) -> ForwardSource:
        return ForwardSource(Weight(), forward, {k: (n, *s) for k, s in zip("xy", shapes)})

    made = many(source, most, gpu=True)
    program = made.built.program
    assert len(program.dispatches) == len(source(program.capacity).traced().compiled().program.dispatches) == 4
    ((number, k),) = [(n, k) for n, k in enumerate(program.kernels) if len(k.reaches) > 1]
    assert [bool(r.per) for r in k.reaches] == [False, True] and k.capacity == program.capacity
    now = at_size(made, 3)
    assert now is not None and now.program.launched()[number].grid == (sum(r.at(3) for r in k.reaches), 1)
    assert k.numbers((0,) * k.slots, 3) == (*(0,) * k.slots, 0, 3) and "extent_n" in k.wgsl


def test_a_kernel_whose_rows_are_turned_keeps_its_tiling_in_a_launch() -> None:
    """A product of (1500, 8) and (8, N), whose rows become those of N, joins a sum over (N, 8)."""
    weights = np.ones((1500, 8), np.float32)

    def forward(m: Any, x: Any, y: Any) -> Any:
        return tg.sum(x**2, axis=1), tg.tensor(weights) @ y

    program = many(lambda n: ForwardSource(Weight(), forward, {"x": (n, 8), "y": (8, n)}), 100, gpu=True).built.program
    ((number, k),) = [(n, k) for n, k in enumerate(program.kernels) if len(k.reaches) > 1]
    (dispatch,) = [d for d in program.dispatches if d.kernel == number]
    assert math.prod(dispatch.grid) == sum(r.at(program.capacity) for r in k.reaches)


def test_kernels_that_need_too_much_memory_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "WORKGROUP_BYTES", 1000)
    with pytest.raises(UnsizedError, match="too much memory of a workgroup"):
        many(lambda n: ForwardSource(Weight(), lambda m, x: tg.sum(x, axis=0), {"x": (n, 4)}), 150, gpu=True)


def loops(m: Any, x: Any) -> Any:
    return tg.stack([row * m.w for row in x])


@pytest.mark.parametrize("forward, why", [
    (lambda m, x: tg.cumsum(x, axis=0), ""),
    (lambda m, x: tg.sort(x, axis=0), ""),
    (lambda m, x: x[::-1], "slice"),
    (lambda m, x: x[:2] * m.w, "other rows of the batch"),
    (lambda m, x: x[-1], "slice"),
    (lambda m, x: x * x[0] + x[1:2], "other rows of the batch"),
    (lambda m, x: tg.concat([x, x], axis=0), ""),
    (lambda m, x: tg.pad(x, ((1, 0), (0, 0))), ""),
    (lambda m, x: x @ x.T, ""),
    (loops, ""),
])  # fmt: skip
def test_what_one_program_cannot_say_is_refused(forward: Callable[..., Any], why: str) -> None:
    with pytest.raises(UnsizedError) as e:
        family(forward)
    assert why in str(e.value)


def test_an_extent_is_never_used_as_a_number() -> None:
    n = Extent.of(17, 3)
    assert (n, 2 * n, n * 2) == (Extent.of(17, 3), Extent.of(17, 6), Extent.of(17, 6)) and n != 51
    assert int(n) == 51 and n.at(5) == 15 and f"{n}" == str(n) == "(extent_n * 3)" and n > 50
    for use in (lambda: n + 1, lambda: 1 - n, lambda: n // 2, lambda: n % 2, lambda: -n, lambda: n * n):
        with pytest.raises(UnsizedError):
            use()


class Net(tg.Module):
    def __init__(self):
        self.conv, self.norm = nn.Conv2d(1, 96, 3, padding=1), nn.LayerNorm(1536)
        self.out = nn.Linear(1536, 5)  # of so many that its sums would be split


def classify(m: Any, x: Any) -> Any:
    h = m.norm(tg.relu(m.conv(x.reshape(x.shape[0], 1, 4, 4))).reshape(x.shape[0], -1))
    return {"p": tg.softmax(m.out(h)), "best": tg.argmax(h, axis=-1), "x": x}


SHARED = pytest.mark.parametrize("device_name", ["numpy", "c", "webgpu"], indirect=True)  # XLA has rooms only


@SHARED
@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_sizes_never_seen_cost_no_compilation(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(90, 16)).astype(np.float32)
    options: Any = {"model": Net(), "forward": classify, "seed": 0, "device": device_name}
    with (
        tg.compile_forward(**options, inputs={"x": (None, 16)}) as f,
        tg.compile_forward(**options, inputs={"x": (90, 16)}) as whole,
    ):
        expected = whole.run(x=x).output
        compiled = list[Any]()
        built = SizedPrograms.built
        monkeypatch.setattr(SizedPrograms, "built", lambda *a: compiled.append(a) or built(*a))
        monkeypatch.setattr(sized, "assemble", lambda *a: compiled.append(a) or assemble(*a))
        for n in (64, 17, 1, 2, 3, 5, 16, 63, 65, 66, 67, 68, 90, 64, 17):
            out = f.run(x=x[:n]).output
            np.testing.assert_array_equal(out["x"], x[:n])
            np.testing.assert_array_equal(out["best"], expected["best"][:n])
            np.testing.assert_allclose(out["p"], expected["p"][:n], rtol=1e-5, atol=1e-6)
        assert len(compiled) == 3  # for 64 alone, for all up to the prime behind it, and for 90
        assert "of a program for sizes up to" in f.explain().title
        assert f.graph_for(x=x[:7]).inputs[0].shape == (7, 16)
        assert "matmul" in str(f.profile(2, x=x[:7]))


DECIDING: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda m, x: x * m.w * 2.0 if x.shape[0] == 32 else x,
    "even": lambda m, x: x * m.w * 2.0 if x.shape[0] % 2 else x,
    "length": lambda m, x: x * m.w * 2.0 if len(x) in (8, 16) else x,
    "elements": lambda m, x: x * m.w * 2.0 if x.size == 64 else x,
    "numpy": lambda m, x: x * m.w * 2.0 if np.prod(x.shape) == 64 else x,
    "reshaped": lambda m, x: x * 2.0 if x.reshape(x.shape[0] * 2, 2).shape[0] == 64 else x,
    "dict": lambda m, x: {8: x}.get(x.shape[0], x * 2),
    "int": lambda m, x: x * m.w * 2.0 if int(x.shape[0]) > 24 else x,
    "more": lambda m, x: x * m.w * 2.0 if x.shape[0] > 24 else x,
    "gcd": lambda m, x: x * m.w * (2.0 if math.gcd(x.shape[0], 16) == 16 else 1.0),  # math asks no int
    "masks": lambda m, x: x * float(np.random.default_rng(x.shape[0]).random()),
    "hyper": lambda m, x: x * tg.hyper("scale", 1 / x.shape[0]),
    "some hyper": lambda m, x: x * tg.hyper("scale", 3.0 if x.shape[0] == 16 else 2.0),
}


@pytest.mark.parametrize("name", DECIDING)
def test_a_size_at_which_a_forward_decides_otherwise_has_its_own_program(name: str) -> None:
    given: dict[str, Any] = {"model": Weight(), "forward": DECIDING[name], "device": "cpu", "seed": 0}
    with tg.compile_forward(**given, inputs={"x": (None, 4)}) as f:
        for n in (40, 20, 16, 30, 32, 8, 9, 24, 7):
            with tg.compile_forward(**given, inputs={"x": (n, 4)}) as one:
                np.testing.assert_array_equal(f.run(x=X[:n]).output, one.run(x=X[:n]).output)


def test_the_form_of_results_can_follow_the_size() -> None:
    def either(m: Any, x: Any) -> Any:
        return {0: x * m.w} if x.shape[0] == 16 else (x * m.w,)

    with tg.compile_forward(model=Weight(), forward=either, inputs={"x": (None, 4)}, device="cpu", seed=0) as f:
        for n in (40, 20, 30, 16, 9):
            assert isinstance(f.run(x=X[:n]).output, dict if n == 16 else tuple)


def test_a_forward_that_mixes_rows_runs_in_a_program_with_room() -> None:
    def turned(m: Any, x: Any) -> Any:
        return x[::-1] * m.w

    with tg.compile_forward(model=Weight(), forward=turned, inputs={"x": (None, 4)}, device="cpu", seed=0) as f:
        for n in (4, 3, 9):
            np.testing.assert_array_equal(f.run(x=X[:n]).output, X[:n][::-1])
        assert "of a program for sizes up to 16, " in f.explain().title


def mixed(m: Any, x: Any) -> Any:
    rows, n = tg.sum(x, axis=1) / x.shape[0], tg.sum(tg.ones((x.shape[0],)))
    over = {"sum": tg.sum(x, axis=0), "std": tg.std(x, axis=0), "far": tg.max(x * m.w) - x.shape[0]}
    return {**over, "rows": rows, "n": n, "out": x - tg.mean(x, axis=0), "soft": tg.softmax(x, axis=0)}


@SHARED
@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_what_is_folded_over_the_batch_is_of_the_true_size(device_name: str) -> None:
    with tg.compile_forward(model=Weight(), forward=mixed, inputs={"x": (None, 4)}, device=device_name, seed=0) as f:
        f.run(x=np.full((50, 4), np.nan, np.float32)).result()
        for n in (40, 33, 1, 2, 3, 17, 7, 16, 40):
            x, out = X[:n], f.run(x=X[:n]).output
            expected = {"sum": x.sum(0), "rows": x.sum(1) / n, "std": x.std(0), "far": x.max() - n, "n": n}
            soft = np.exp(x) / np.exp(x).sum(0)
            for name, value in {**expected, "out": x - x.mean(0), "soft": soft}.items():
                np.testing.assert_allclose(out[name], value, rtol=1e-5, atol=1e-5, err_msg=f"{name} at {n}")
        assert "of a program for sizes up to" in f.explain().title


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_rows_beyond_the_batch_are_never_read(device_name: str) -> None:
    """What a larger batch left there is NaN."""
    with tg.compile_forward(model=Net(), forward=classify, inputs={"x": (None, 16)}, device=device_name, seed=0) as f:
        x = np.random.default_rng(2).normal(size=(40, 16)).astype(np.float32)
        first = f.run(x=x[:9]).output  # of a program of its own
        f.run(x=np.full((40, 16), np.nan, np.float32)).result()
        for n in (9, 8, 3):
            np.testing.assert_allclose(f.run(x=x[:n]).output["p"], first["p"][:n], rtol=1e-5, atol=1e-6)
        assert f.cached_shapes == [40, 9, 8, 3]


def test_a_result_and_small_inputs_of_a_small_run_are_moved_alone(device: NativeSession) -> None:
    made = family(lambda m, x: tg.sum(x * m.w, axis=1), most=20000)
    base = device.load(made.built.program)
    small, large = at_size(made, 2), at_size(made, 17000)
    assert small is not None and large is not None
    device.write("params", np.ones(4, np.float32))
    for built, n in ((large, 17000), (small, 2)):
        handle = device.load(built.program, base)
        loaded = device._loaded(handle)
        assert loaded.arrays is device._loaded(base).arrays
        x = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
        for k, out in enumerate(device.run(handle, [{"x": x}, {"x": 2 * x}]).outputs()):
            np.testing.assert_allclose(out["output"], (k + 1) * x.sum(1), rtol=1e-4, atol=1e-5)
        moved = sum(4 * f.size for f in (*built.program.inputs, *built.program.outputs))
        taken = loaded.outputs.bytes(1) + sum(w.size for w in loaded.memories[0].writes(1))
        assert moved <= taken <= moved + 2 * 256
    device.unload(base)
    with pytest.raises(tg.DeviceError, match="whose memory this one uses was unloaded"):
        device.run(handle, [{"x": x}])


def test_gradients_of_filters_gather_the_windows_of_a_run(c_session: CpuSession) -> None:
    """Images that a run does not have are NaN in memory."""

    def forward(m: Any, x: Any) -> Any:
        w = tg.sin(tg.cast(tg.arange(16 * 8 * 9), tg.f32)).reshape(16, 8, 3, 3)
        return tg.grad(lambda w: tg.sum(tg.square(tg.conv2d(x, w, padding=1, dilation=2))))(w)

    made = many(lambda n: ForwardSource(Weight(), forward, {"x": (n, 8, 9, 11)}), 40)
    steps = [s for k in made.built.program.kernels for s in k.texts["c"].steps if isinstance(s, GatheredStep)]
    assert any(isinstance(s.k, Extent) for s in steps)
    x = np.random.default_rng(0).normal(size=(made.room["n"], 8, 9, 11)).astype(np.float32)
    base = c_session.load(made.built.program)
    for n in (len(x), 2, 17, 39, 1):
        c_session.run(base, [{"x": np.full_like(x, np.nan), **numbers_of(made.built)}])
        now = at_size(made, n)
        assert now is not None
        handle = c_session.load(now.program, base)
        (found,) = c_session.run(handle, [{"x": x[:n], **numbers_of(now)}]).outputs()
        want = forward(None, tg.tensor(x[:n])).numpy()
        np.testing.assert_allclose(found["output"], want, rtol=0, atol=2e-6 * np.abs(want).max() + 1e-7)


def test_small_images_beyond_a_run_are_not_multiplied(c_session: CpuSession) -> None:
    """Vectors go on from one row of a small image to the next, in memory whose size is that of the capacity."""

    def forward(m: Any, x: Any) -> Any:
        return tg.conv2d(x, tg.sin(tg.cast(tg.arange(144), tg.f32)).reshape(8, 2, 3, 3), padding=1)

    made = many(lambda n: ForwardSource(Weight(), forward, {"x": (n, 2, 8, 8)}), 40)
    steps = [s for k in made.built.program.kernels for s in k.texts["c"].steps if isinstance(s, GatheredStep)]
    assert [len(s.b.columns) for s in steps] == [1]
    assert all(isinstance(s.out.sizes[0], Extent) for s in steps)
    x = np.random.default_rng(0).normal(size=(40, 2, 8, 8)).astype(np.float32)
    base = c_session.load(made.built.program)
    for n in (40, 3, 17):
        now = at_size(made, n)
        assert now is not None
        handle = c_session.load(now.program, base)
        (found,) = c_session.run(handle, [{"x": x[:n], **numbers_of(now)}]).outputs()
        np.testing.assert_allclose(found["output"], forward(None, tg.tensor(x[:n])).numpy(), rtol=1e-5, atol=1e-5)
