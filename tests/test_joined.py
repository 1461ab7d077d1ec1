"""Loops in one launch: what a GPU runs of a scan, on whatever adapter there is, against the reference and the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from all_cases import ALL_CASES, Case
from fuzzing.runners import taken_for_a_gpu
from test_kernels import NOTHING, assert_same, graph_of, inputs_of, run
from tracegrad import optim
from tracegrad.compiler.joined import joined
from tracegrad.compiler.pipeline import make_program
from tracegrad.errors import CompileError
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
def test_rows_that_meet_stay_a_loop(name: str, gpu: None) -> None:
    train = training(MEETING[name], "webgpu")
    assert any(x.count == T for x in joined(train.program).loops)
    assert_close(gradients(train), gradients(training(MEETING[name], "cpu")))


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
    monkeypatch.setattr(wgsl, "moved", lambda step, ring: f"({step}) * ((t + 1) % {ring})")
    with pytest.raises(CompileError, match=r"computes wrongly.*\n.*test_joined"):
        gradients(training(plain, "webgpu"))


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
