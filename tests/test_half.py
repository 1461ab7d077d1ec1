"""Storage in half precision: every op, on every runtime, within a bound that is calculated for these very numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from all_cases import ALL_CASES
from cases import Case
from test_kernels import COUNTERS, NOTHING, run
from together import by_rows
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind, toposort
from tracegrad.kernels import fuse, storage
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.storage import analyse
from tracegrad.passes.expand import expand_composites
from tracegrad.prims.elementwise import COPY
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import cotangents, gradients

U = 2.0**-11  # unit roundoff of half precision
TINY = 2.0**-25  # half of its smallest number: what rounding adds below 6e-5


@dataclass(frozen=True)
class Subject:
    """An op whose inputs and results are stored by one kernel and read by another, and what comes of it: scalars."""

    graph: Graph
    env: dict[str, Any]
    program: Program

    @staticmethod
    def of(case: Case) -> Subject:
        """`value` is a weighted sum of the results, `slope` one of the gradients, each weight normal."""
        rng = np.random.default_rng(5)
        env = {**COUNTERS, **case.arrays(dtype="float32")}

        def weighted(t: Tensor, name: str) -> Tensor:
            env[name] = rng.standard_normal(t.shape).astype(np.float32)
            return (t * leaf("input", name, TensorType(f32, t.shape))).sum()

        with tracing():
            leaves = {n: bind(COPY, t) if n.startswith("x") else t for n, t in case.leaves().items()}
            y = case.apply(leaves)
            outputs = {"value": weighted(y, "ct")}
            floats = [t for n, t in leaves.items() if n.startswith("x")]
            if case.grad and case.second and floats:
                found = gradients(outputs["value"], floats)
                parts = [weighted(g, f"d{k}") for k, g in enumerate(found)]
                outputs["slope"] = sum(parts[1:], parts[0])
        graph = Graph(outputs, precision="f16")
        names = {t.name for t in toposort(graph.roots) if t.prim.name == "leaf"}
        return Subject(graph, {n: x for n, x in env.items() if n in names}, make_program(graph, NOTHING, {}, {}))

    def halves(self) -> list[Tensor]:
        """What is stored in half precision, in the graph that is compiled."""
        s = Schedule(optimize(self.graph))
        return [t for c in s.clusters for t in c.outs if t.serial in s.storage.halves]

    def bounds(self) -> dict[str, float]:
        """How far each result may be from that of f32.

        A stored value t becomes t (1 + d) + e with |d| <= U and |e| <= TINY, so a result changes by at most the sum of
        |dr / dt| (U |t| + TINY) over all elements of all stored values, to first order; as much again for the others.
        An infinite t, such as the -inf of a masked maximum, is stored exactly.
        """
        double = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in self.env.items()}
        graph = optimize(self.graph).graph
        out: dict[str, float] = {}
        for name in self.graph.outputs:
            s = Schedule(analyse(graph))
            ts = [t for c in s.clusters for t in c.outs if t.serial in s.storage.halves]
            r = graph.outputs[name]
            with tracing():
                slopes = cotangents([r], [r * 0 + 1], ts)
            with np.errstate(all="ignore"):
                values = evaluate([r, *ts, *slopes], double, np)
            pairs = zip(values[1 : 1 + len(ts)], values[1 + len(ts) :], strict=True)
            far = [np.abs(g) * np.where(np.isinf(t), 0.0, U * np.abs(t) + TINY) for t, g in pairs]
            out[name] = 2 * sum(float(x.sum()) for x in far)
        return out


def is_subject(case: Case) -> bool:
    """Does the row compute numbers, none of them in a loop, whose body the bound does not look into?"""
    with tracing():
        y = case.apply(case.leaves())
    return y.dtype is f32 and not any(t.prim.family == "scan" for t in toposort(expand_composites([y])))


CASES = [case for case in ALL_CASES if is_subject(case)]


@pytest.fixture(scope="module", autouse=True)
def everything_stored() -> Iterator[None]:
    """No kernel computes more than one value, so that all that may be stored in half precision is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracegrad.kernels.storage.worth_storing", lambda *_: storage.SHARED)
        patch.setattr(fuse.Schedule, "_merge", lambda *_: fuse.ELSEWHERE)
        yield


@cache
def subject_of(case: Case) -> Subject:
    return Subject.of(case)


@pytest.fixture(scope="module")
def c_session_of(everything_stored: None) -> Iterator[Callable[[Case], CpuSession]]:
    """The session of a row with kernels in C."""
    with by_rows(CASES, lambda case: subject_of(case).program) as session_of:
        yield session_of


@dataclass(frozen=True)
class Expected:
    """A subject, and how far each of its results may be from that of f32."""

    case: Case
    subject: Subject
    results: dict[str, tuple[float, float]]  # the result of f32, and the distance

    def check(self, session: Any) -> None:
        got = run(session, self.subject.program, self.subject.env)
        for name, (want, far) in self.results.items():
            assert abs(float(got[name]) - want) <= far, (name, float(got[name]), want, far)


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.name)
def expected(request: pytest.FixtureRequest, everything_stored: None) -> Expected:
    """Calculated once for all runtimes, because pytest runs the tests of one row one after another."""
    case: Case = request.param
    subject = subject_of(case)
    assert subject.program.needs_f16 == bool(subject.halves())
    want = run(CpuSession(), make_program(replace(subject.graph, precision="f32"), NOTHING, {}, {}), subject.env)
    found: dict[str, tuple[float, float]] = {}
    for name, bound in subject.bounds().items():
        w = float(want[name])
        found[name] = w, bound + case.f32_tol * max(1.0, abs(w)) * subject.graph.outputs[name].size
    return Expected(case, subject, found)


def through_memory(session: Any) -> tuple[Any, Any]:
    """Numbers of all sizes and the special ones, and what memory in half precision gives back of them."""
    rng = np.random.default_rng(0)
    special = [65504, 65519.99, 65520, 1e6, 3e38, np.inf, -np.inf, np.nan, -65520, 6e-8, 2.9e-8, 3.1e-8, 1e-9, -0.0]
    sizes = np.exp(rng.uniform(-18, 11.5, 4096 - len(special))) * rng.choice([-1, 1], 4096 - len(special))
    x = np.stack([np.concatenate([special, sizes])] * 2).astype(np.float32)  # twice: the larger of both is itself
    with tracing():
        t = bind(COPY, leaf("input", "x", TensorType(f32, x.shape)))
        program = make_program(Graph({"y": (-t).max(0)}, precision="f16"), NOTHING, {}, {})
    assert program.needs_f16
    return x[0], -run(session, program, {"x": x})["y"]


def assert_rounded_to_nearest(session: Any) -> None:
    x, got = through_memory(session)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, x.astype(np.float16).astype(np.float32))


def test_memory_rounds_to_nearest_on_numpy() -> None:
    assert_rounded_to_nearest(CpuSession())


def test_memory_rounds_to_nearest_in_c(c_session: CpuSession) -> None:
    assert_rounded_to_nearest(c_session)


def test_memory_rounds_to_nearest_in_wgsl(device: Any) -> None:
    assert_rounded_to_nearest(device)


@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_pass_halves_by_vectors(transposed: bool, device: Any) -> None:
    """Two products with the identity: what lies between them was rounded to nearest once, and lost nothing else."""
    n = 128
    with tracing():
        x, one = (leaf("input", name, TensorType(f32, (n, n))) for name in ("x", "one"))
        between = x @ one
        program = make_program(
            Graph({"y": (between.transpose() if transposed else between) @ one}, precision="f16"), NOTHING, {}, {}
        )
    assert all("array<vec4<f16>>" in k.wgsl for k in program.kernels)
    rng = np.random.default_rng(0)
    x = (np.exp(rng.uniform(-18, 11, (n, n))) * rng.choice([-1, 1], (n, n))).astype(np.float32)
    got = run(device, program, {"x": x, "one": np.eye(n, dtype=np.float32)})["y"]
    np.testing.assert_array_equal(got.T if transposed else got, x.astype(np.float16).astype(np.float32))


def test_numpy(expected: Expected) -> None:
    expected.check(CpuSession())


@pytest.mark.filterwarnings("error::RuntimeWarning")  # where C fails, NumPy would do instead
@pytest.mark.usefixtures("quick_c")  # no user has kernels of one value each
def test_c(expected: Expected, c_session_of: Callable[[Case], CpuSession]) -> None:
    expected.check(c_session_of(expected.case))


def test_wgsl(expected: Expected, device: Any) -> None:
    expected.check(device)
