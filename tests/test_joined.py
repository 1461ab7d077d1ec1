"""Loops in one launch: what a GPU runs of a scan, on whatever adapter there is, against the reference and the loop."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from all_cases import ALL_CASES, Case
from fuzzing.runners import taken_for_a_gpu
from test_kernels import NOTHING, assert_same, graph_of, inputs_of, run
from tracegrad import optim, tuning
from tracegrad.compiler.joined import joined
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.engine import stepper
from tracegrad.errors import CompileError
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.render import wgsl, wgsl_loop

pytestmark = pytest.mark.filterwarnings("ignore:.*software adapter", "ignore:the loss does not use")
LOOPS = [case for case in ALL_CASES if case.name.startswith("scan")]


@pytest.fixture
def gpu(webgpu: None) -> Iterator[None]:
    """Sessions that take this machine's adapter for a GPU."""
    with taken_for_a_gpu():
        yield


@pytest.mark.parametrize("case", LOOPS, ids=lambda c: c.name)
def test_rows_of_the_table_match_the_reference(case: Case, device: Any) -> None:
    graph = graph_of(case)
    env = inputs_of(graph, case)
    with taken_for_a_gpu():
        assert_same(case, graph, env, run(device, make_program(graph, NOTHING, {}, {}), env))


B, T, H = 8, 6, 40  # a row is folded by several threads, and its points are no multiple of the threads


class Cell(tg.Module):
    """A weight, and a bias."""

    def __init__(self, width: int = H) -> None:
        self.w, self.b = self.param((width, width), init=tg.init.randn(0.2)), self.param((width,))


def plain(m: Cell, h: Any, x: Any) -> Any:
    return tg.tanh(h @ m.w + m.b + x)


def normed(m: Cell, h: Any, x: Any) -> Any:
    """Two folds of a row, the second of which needs the first, and stores for every point."""
    z = h @ m.w + x
    z = z - tg.mean(z, -1, keepdims=True)
    return z * tg.rsqrt(tg.mean(tg.square(z), -1, keepdims=True) + 0.1)


def attending(m: Cell, h: Any, x: Any) -> Any:
    """A softmax of each row, and a product whose rows are the columns of another."""
    return h + tg.softmax(h @ m.w.T) * x


def turned(m: Cell, h: Any, x: Any) -> Any:
    """Parts of a row, with guards: the row moves by one."""
    return tg.concat([h[:, 1:], h[:, :1]], 1) * 0.9 + tg.sin(x)


def gated(m: Cell, h: Any, x: Any) -> Any:
    """A choice, whose condition is stored as an integer."""
    return tg.where(h < x, h @ m.w, x * 0.5)


STEPS: dict[str, Callable[[Cell, Any, Any], Any]] = {f.__name__: f for f in (plain, normed, attending, turned, gated)}


def mixed(m: Cell, h: Any, x: Any) -> Any:
    """Rows that meet: the mean of the batch."""
    return tg.tanh(h @ m.w + x) - tg.mean(h, 0, keepdims=True)


def rolled(m: Cell, h: Any, x: Any) -> Any:
    """Rows that meet: each row takes the place of the next."""
    return tg.concat([h[1:], h[:1]], 0) * 0.9 + x @ m.w


def correlated(m: Cell, h: Any, x: Any) -> Any:
    """Rows that meet: a product of the batch with itself."""
    return tg.tanh((h @ h.T) @ x) @ m.w


MEETING = {f.__name__: f for f in (mixed, rolled, correlated)}


def training(step: Callable[[Cell, Any, Any], Any], device: str, length: int = T, reverse: bool = False) -> Any:
    def loss(m: Cell, x: Any) -> Any:
        last, all_of_them = tg.scan(lambda h, e: (step(m, h, e),) * 2, tg.zeros((B, H)), x, reverse=reverse)
        return tg.mean(tg.square(last - 0.3)) + tg.mean(tg.abs(all_of_them))

    return tg.compile(model=Cell(), loss=loss, inputs={"x": (length, B, H)}, optimizer=optim.sgd(0.1), seed=1,
                      device=device, keep_grads=True)  # fmt: skip


def gradients(train: Any, length: int = T) -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((length, B, H)).astype(np.float32)
    with train:
        found = {"loss": np.asarray(train.step(x=x).loss)}
        return found | {n: np.asarray(g) for n, g in train.download_grads().items()}


def assert_close(got: dict[str, Any], want: dict[str, Any]) -> None:
    """At most 50 roundings of the largest number apart: a gradient sums six iterations of 40 products, in any order."""
    for name, expected in want.items():
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=50 * 2**-24 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_trainings_run_their_loops_in_one_launch(name: str, reverse: bool, gpu: None) -> None:
    train = training(STEPS[name], "webgpu", reverse=reverse)
    assert train.program.loops and not joined(train.program).loops
    assert_close(gradients(train), gradients(training(STEPS[name], "cpu", reverse=reverse)))


@pytest.mark.parametrize("name", MEETING)
def test_rows_that_meet_are_one_block(name: str, gpu: None) -> None:
    train = training(MEETING[name], "webgpu")
    run = joined(train.program)
    assert train.program.loops and not run.loops
    assert (1, 1) in [run.dispatches[k].grid for k, d in enumerate(run.dispatches) if run.kernels[d.kernel].turns]
    assert_close(gradients(train), gradients(training(MEETING[name], "cpu")))


def test_large_rows_that_meet_stay_a_loop(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "BLOCK_WORK", 1)
    assert any(x.count == T for x in joined(training(mixed, "webgpu").program).loops)


def test_one_sequence_whose_elements_meet(gpu: None) -> None:
    """Indices that a comparison chooses, a system of equations and a running choice, without any batch."""

    def loss(m: Cell, x: Any) -> Any:
        def step(h: Any, e: Any) -> tuple[Any, Any]:
            first = h[tg.argmax(e * h)]
            h = tg.linalg.solve(m.w + 3 * tg.eye(5), tg.roll(h, 1, 0) + e) + 0.1 * first
            return h, tg.max(h)

        last, peaks = tg.scan(step, m.b, x)
        return tg.mean(tg.square(last)) + tg.sum(peaks)

    def compiled(device: str) -> Any:
        return tg.compile(model=Cell(5), loss=loss, inputs={"x": (T, 5)}, optimizer=optim.sgd(0.1), seed=1,
                          device=device, keep_grads=True)  # fmt: skip

    x = np.random.default_rng(0).standard_normal((T, 5)).astype(np.float32)
    found: list[dict[str, Any]] = []
    for device in ("webgpu", "cpu"):
        with compiled(device) as train:
            found.append({"loss": np.asarray(train.step(x=x).loss), **train.download_grads()})
    assert_close(found[0], found[1])


def nested(m: Cell, h: Any, x: Any) -> Any:
    """A loop inside of an iteration, between other kernels."""
    inner = tg.scan(lambda g, e: (tg.tanh(g @ m.w + e), None), h, tg.stack([x, h * 0.5, x * h]))[0]
    return tg.tanh(inner @ m.w.T + h)


def twice_nested(m: Cell, h: Any, x: Any) -> Any:
    """Two loops inside, with a kernel between them."""
    first = nested(m, h, x) @ (m.w * 0.3)  # larger weights enlarge roundings
    return tg.scan(lambda g, _: (tg.sin(g @ (m.w * 0.3) + first), None), x, length=2)[0]


def solved(m: Cell, h: Any, x: Any) -> Any:
    """A system of equations, whose elimination is a loop that looks at all rows."""
    return tg.linalg.solve(m.w[:B, :B] + 3 * tg.eye(B), h) + 0.1 * x


INSIDE = {f.__name__: f for f in (nested, twice_nested, solved)}


def test_weights_that_an_iteration_chooses(gpu: None) -> None:
    """Rows of at least 32 elements keep weights in registers, but not these: the input chooses them."""

    class Chosen(tg.Module):
        def __init__(self) -> None:
            self.w = self.param((3, H, H), init=tg.init.randn(0.2))

    def loss(m: Chosen, x: Any, k: Any) -> Any:
        def step(h: Any, e: Any) -> tuple[Any, None]:
            return tg.tanh(tg.sum(m.w[e[1]] * h, -1) + e[0]), None

        return tg.mean(tg.square(tg.scan(step, tg.zeros((H,)), (x, k))[0]))

    batch = {
        "x": np.random.default_rng(0).standard_normal((5, H), np.float32),
        "k": np.array([0, 1, 2, 1, 0], np.int32),
    }
    found: list[dict[str, Any]] = []
    for device in ("webgpu", "cpu"):
        with tg.compile(model=Chosen(), loss=loss, inputs={"x": (5, H), "k": tg.i32[5]}, optimizer=optim.sgd(0.1),
                        seed=0, device=device, keep_grads=True) as train:  # fmt: skip
            assert device == "cpu" or not joined(train.program).loops
            found.append({"loss": np.asarray(train.step(batch).loss), **train.download_grads()})
    assert_close(found[0], found[1])


def test_a_program_from_a_file_keeps_its_loops() -> None:
    """A file has the texts of kernels, and not what they compute."""
    with training(plain, "cpu") as train:
        filed = Program.from_json(train.program.to_json())
    assert filed.loops and joined(filed) is filed


def looped(step: Callable[[Any, Any, Any], Any]) -> Program:
    """The forward of a loop of 5 iterations over rows of a batch, for any device."""
    with tracing():
        x, w, h = (leaf("input", n, TensorType(f32, s)) for n, s in (("x", (5, B, H)), ("w", (H, H)), ("h", (B, H))))
        return make_program(Graph({"y": tg.scan(lambda h, e: (step(w, h, e), None), h, x)[0]}), NOTHING, {}, {})


def simple(w: Any, h: Any, x: Any) -> Any:
    return tg.tanh(h @ w + x)


def inside(w: Any, h: Any, x: Any) -> Any:
    """Two loops, one directly behind the other, at the end of the iteration."""
    h = tg.scan(lambda g, _: (tg.tanh(g @ w + x), None), h, None, 3)[0]
    return tg.scan(lambda g, _: (tg.sin(g @ w + x), None), h, None, 3)[0]


def test_a_launch_states_what_its_text_needs() -> None:
    """Workgroup memory mirrors what is handed on, but not if there are loops inside."""
    memory: list[int] = []
    for step in (simple, inside):
        run = joined(looped(step))
        ((d, k),) = [(d, k) for d in run.dispatches if (k := run.kernels[d.kernel]).turns]
        arrays = dict(re.findall(r"var<workgroup> (\w+): array<\w+, (\d+)>", k.wgsl))
        assert not run.loops and k.own and k.slots == len(d.offsets)
        assert ("wf" in arrays) == (step is simple)
        memory.append(k.workgroup_memory - 4 * int(arrays.get("wf", 0)))
    assert memory[0] == memory[1]  # that of a product's operands, which are of the same sizes


def test_loops_inside_of_one_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outer loop would take more turns than one launch may; 3 iterations of two kernels are 6."""
    monkeypatch.setattr(sys.modules[joined.__module__], "MOST_LOOP_TURNS", 6)
    program = looped(inside)
    run = joined(program)
    assert [x.count for x in program.loops] == [5, 3, 3] and [x.count for x in run.loops] == [5]
    moved = [d for d in run.dispatches if run.kernels[d.kernel].turns]
    assert len(moved) == 2 and all({move.depth for _, move in d.moves} == {0} for d in moved)
    assert all(move.depth == 0 for d in moved for t in run.kernels[d.kernel].turns for own in t.moves for move in own)


@pytest.mark.parametrize(("name", "reverse"), list(zip(INSIDE, (False, True, True))))
def test_loops_inside_of_loops_are_one_launch(name: str, reverse: bool, gpu: None) -> None:
    train = training(INSIDE[name], "webgpu", reverse=reverse)
    assert len(train.program.loops) >= 4 and not joined(train.program).loops
    assert_close(gradients(train), gradients(training(INSIDE[name], "cpu", reverse=reverse)))


def of_any_batch(m: Cell, x: Any, y: Any) -> Any:
    """Sums over the batch in each iteration, whose columns do not meet."""
    return tg.scan(lambda h, e: (h * m.b[:5] + tg.sin(e) - tg.mean(h, 0), None), x[0] * 0 + 0.5, x)[0]


def of_any_length(m: Cell, x: Any, y: Any) -> Any:
    """Loops whose length a call chooses, beside others of a fixed length."""
    w = m.w[:5, :5]
    h = tg.scan(lambda h, e: (tg.tanh(h @ w + e), None), tg.ones((6, 5)), x.transpose(1, 0, 2))[0]
    h = tg.scan(lambda h, e: (tg.cos(h @ w.T + e), None), h, y)[0]
    return tg.scan(lambda h, e: (tg.tanh(h @ w - e), h), h, x.transpose(1, 0, 2), reverse=True)[1]


@pytest.mark.parametrize("model", [of_any_batch, of_any_length], ids=lambda f: f.__name__)
def test_loops_of_open_sizes(model: Callable[..., Any], gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OWN_SIZES", "OWN_SIZES_ON_GPU"):
        monkeypatch.setattr(stepper, name, 0)  # all sizes share a program

    def compiled(device: str) -> Any:
        return tg.compile(model=Cell(), loss=lambda m, x, y: tg.mean(tg.square(model(m, x, y))) + tg.sum(m.b) ** 2,
                          inputs={"x": (6, "N", 5), "y": (4, 6, 5)}, optimizer=optim.sgd(0.01), seed=1,
                          device=device, keep_grads=True)  # fmt: skip

    rng = np.random.default_rng(0)
    with compiled("webgpu") as ours, compiled("cpu") as reference:
        for n in (5, 12, 3, 8, 2, 13):
            batch = {"x": rng.standard_normal((6, n, 5), np.float32), "y": rng.standard_normal((4, 6, 5), np.float32)}
            found = [{"loss": np.asarray(t.step(batch).loss), **t.download_grads()} for t in (ours, reference)]
            left = joined(ours.program).loops  # sums over the batch follow the size, which a launch cannot
            assert ours.program.capacity and len(left) == len(ours.program.loops) * (model is of_any_batch)
            assert_close(found[0], found[1])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_loops(length: int, gpu: None) -> None:
    want = gradients(training(plain, "cpu", length), length)
    assert_close(gradients(training(plain, "webgpu", length), length), want)


@pytest.mark.parametrize("kept", [0, 8, 192])
@pytest.mark.parametrize("width", [33, 40, 130])
def test_weights_in_registers_and_weights_that_are_read(
    width: int, kept: int, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights, some, or none; rows that take one or two rounds of the threads, and with edges."""
    monkeypatch.setattr(wgsl_loop, "KEPT_IN_REGISTERS", kept)
    x = np.random.default_rng(0).standard_normal((3, B, width)).astype(np.float32)

    def loss(m: Cell, x: Any) -> Any:
        return tg.mean(tg.square(tg.scan(lambda h, e: (plain(m, h, e), None), tg.zeros((B, width)), x)[0]))

    found: list[dict[str, Any]] = []
    for device in ("cpu", "webgpu"):
        with tg.compile(model=Cell(width), loss=loss, inputs={"x": x.shape}, optimizer=optim.sgd(0.1), seed=1,
                        device=device, keep_grads=True) as train:  # fmt: skip
            found.append({"loss": train.step(x=x).loss, **train.download_grads()})
    assert_close(found[1], found[0])


def test_each_kernel_of_a_loop_is_checked(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that takes the wrong iteration is found, and the error names the line."""
    monkeypatch.setattr(wgsl, "moved", lambda move: f"({move.step}) * ((t + 1) % {move.ring})")
    with pytest.raises(CompileError, match=r"computes wrongly.*\n.*test_joined"):
        gradients(training(plain, "webgpu"))


def test_each_kernel_of_a_loop_inside_is_checked(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgsl, "moved", lambda move: f"({move.step}) * (({'tu'[move.depth]} + u) % {move.ring})")

    def forward(m: Cell, x: Any) -> Any:
        return tg.scan(lambda h, e: (tg.scan(lambda g, y: (tg.tanh(g * m.b + y), None), h, e)[0], None), m.b, x)[0]

    infer = tg.compile_forward(model=Cell(5), forward=forward, inputs={"x": (3, 4, 5)}, device="webgpu", seed=0)
    with infer, pytest.raises(CompileError, match=r"computes wrongly.*\n.*test_joined"):
        _ = infer.run(x=np.ones((3, 4, 5), np.float32)).output


def test_the_profile_and_the_explanation_have_a_row_for_each_loop(gpu: None) -> None:
    with training(plain, "webgpu") as train:
        rows = [row.info for row in train.profile(x=np.zeros((T, B, H), np.float32)).rows]
        explained = train.explain().dispatches
        loops = [d for d in explained if d.label.startswith("loop of ")]
        assert len(rows) == len(explained) == len(train.program.dispatches) - 1  # the loop backwards had two
        assert [d.label for d in loops] == ["loop of matmul+tanh", "loop of mul, matmul"]
        assert loops[0].cost.flops > 2 * T * B * H * H and all(d.sites for d in loops)


def test_the_profile_of_a_cpu_has_a_row_for_each_dispatch() -> None:
    """A CPU runs loops as they are."""
    with training(plain, "cpu") as train:
        rows = train.profile(x=np.zeros((T, B, H), np.float32)).rows
        assert train.program.loops and len(rows) == len(train.explain().dispatches) == len(train.program.dispatches)


def test_programs_without_loops_are_as_before() -> None:
    with tg.compile(model=Cell(), loss=lambda m, x: tg.mean(x @ m.w), inputs={"x": (3, H)}, device="cpu",
                    optimizer=optim.sgd(0.1)) as train:  # fmt: skip
        assert joined(train.program) is train.program
