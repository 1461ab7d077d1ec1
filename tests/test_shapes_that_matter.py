"""Every row of the case table at other sizes, value and gradient, on every runtime.

The sizes: none, one, odd, prime, beside a multiple of 16. Rows whose function names its sizes keep those.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from all_cases import ALL_CASES
from cases import Case
from test_kernels import COUNTERS, NOTHING, run
from test_numerics import runtime  # noqa: F401
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import Shape, TensorType, bool_, f32, i32
from tracegrad.errors import TracegradError
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.runtime.wgpu_session import NativeSession
from tracegrad.transforms.walks import gradients

# What each new size of a row is drawn from. Sizes that were different may become equal.
SIZES = ((0, 1, 2), (2, 3, 5, 6, 7), (1, 15, 17, 31))
MOST = 2000  # elements of an operand; sizes of larger ones are halved, to an odd number


@dataclass(frozen=True)
class Resized:
    """A row of the table at other sizes."""

    case: Case
    sizes: dict[int, int]  # of each size that the row has, the new one

    def shape(self, shape: Shape) -> Shape:
        return tuple([self.sizes.get(n, n) for n in shape])

    def types(self) -> dict[str, tuple[TensorType, int]]:
        """The operands, and what indices are drawn below."""
        c = self.case
        found = {f"x{k}": (TensorType(f32, self.shape(s)), 0) for k, s in enumerate(c.shapes)}
        found |= {f"i{k}": (TensorType(i32, self.shape(s)), self.sizes.get(n, n)) for k, (s, n) in enumerate(c.ints)}
        return found | {f"b{k}": (TensorType(bool_, self.shape(s)), 0) for k, s in enumerate(c.bools)}

    def results(self, key: str, env: dict[str, Any]) -> dict[str, Tensor]:
        """The value and its gradients by name, and the operands into `env`. Nothing where the sizes do not fit."""
        rng = np.random.default_rng(zlib.crc32(key.encode()))
        given: dict[str, Tensor] = {}

        def operand(name: str, type: TensorType, values: Any) -> Tensor:
            """An input, which has an element at least, cut to the shape."""
            env[f"{key}.{name}"] = values
            t = leaf("input", f"{key}.{name}", TensorType(type.dtype, values.shape))
            for axis, n in enumerate(type.shape):
                t = t[tuple([slice(None)] * axis + [slice(0, 0)])] if n == 0 else t
            return t

        for name, (type, below) in self.types().items():
            held = tuple([max(n, 1) for n in type.shape])
            if type.dtype is f32:
                values: Any = rng.uniform(self.case.low, self.case.high, held).astype("f")
            else:
                values = rng.integers(0, 2 if type.dtype is bool_ else max(below, 1), held).astype(type.dtype.numpy)
            given[name] = operand(name, type, values)
        try:
            y = self.case.apply(given)
        except (TracegradError, ValueError):  # the function names sizes
            return {}
        found = {f"{key}.output": y}
        floats = [t for n, t in given.items() if n.startswith("x")]
        if self.case.grad and floats:
            weights = rng.standard_normal([max(n, 1) for n in y.shape]).astype("f")
            loss = (y * operand("ct", y.type, weights)).sum()
            found |= {f"{key}.grad{k}": g for k, g in enumerate(gradients(loss, floats))}
        return found


@dataclass(frozen=True)
class Batch:
    """All rows at the sizes of one choice, as one program."""

    graph: Graph
    program: Program
    env: dict[str, Any]
    wanted: dict[str, Any]
    rounded: dict[str, Any]  # the same by arithmetic of f32: how far from that rounding may lead
    cases: dict[str, Case]


@cache
def batch(number: int) -> Batch:
    cases, env, outputs = dict[str, Case](), dict[str, Any](COUNTERS), dict[str, Tensor]()
    with tracing():
        for case in ALL_CASES:
            resized = Resized(case, chosen(case, SIZES[number], number))
            mine: dict[str, Any] = {}
            found = resized.results(case.name, mine)
            if found:
                env |= mine
                outputs |= found
                cases[case.name] = case
    graph = Graph(outputs)
    double = {n: x.astype("d") if x.dtype == np.float32 else x for n, x in env.items()}
    with np.errstate(all="ignore"):
        wanted, rounded = (dict(zip(outputs, evaluate(graph.roots, e, np), strict=True)) for e in (double, env))
    return Batch(graph, make_program(graph, NOTHING, {}, {}), env, wanted, rounded, cases)


def chosen(case: Case, sizes: tuple[int, ...], number: int) -> dict[int, int]:
    """A new size for each that the row has; 1 stays, because it broadcasts."""
    shapes = (*case.shapes, *(s for s, _ in case.ints), *case.bools)
    rng = np.random.default_rng(zlib.crc32(case.name.encode()) + number)
    new = {n: int(rng.choice(sizes)) for n in sorted({n for s in shapes for n in s if n > 1})}
    while max(math.prod(new.get(n, n) for n in s) for s in shapes or [()]) > MOST:
        longest = max(new, key=lambda n: new[n])
        new[longest] = new[longest] // 2 | 1
    return new


def differs(case: Case, got: Any, want: Any, rounded: Any) -> bool:
    """Beyond the row's tolerance, and eight times what rounding alone does to the reference."""
    if got.shape != want.shape or want.dtype.kind != "f":
        return not np.array_equal(got, want)
    with np.errstate(all="ignore"):
        want = want.astype("f")  # products of many elements overflow
        apart = np.abs(rounded - want)
        sizes = np.abs(want[np.isfinite(want)])
        slack = case.f32_tol * max(1.0, sizes.max(initial=0.0)) + 8 * apart[np.isfinite(apart)].max(initial=0.0)
        return not np.allclose(got, want, case.f32_tol, slack, equal_nan=True)


@pytest.mark.filterwarnings("error:.*kernels run as NumPy:RuntimeWarning")  # where C fails, NumPy would do instead
@pytest.mark.parametrize("number", range(len(SIZES)), ids=lambda k: "-".join(map(str, SIZES[k])))
def test_every_row_at_other_sizes(number: int, runtime: Any) -> None:  # noqa: F811
    b = batch(number)
    got = run(runtime, b.program, b.env)
    bad: list[str] = []
    for name, want in b.wanted.items():
        case, g, w = b.cases[name.rpartition(".")[0]], got[name], np.asarray(want)
        if isinstance(runtime, NativeSession) and not np.isfinite(w).all():  # a driver may assume that none is infinite
            continue
        if differs(case, g, w, b.rounded[name]):
            bad.append(f"{name} {g.shape} {w.shape}: {np.ravel(g)[:9]}, not {np.ravel(w)[:9]}")
    assert not bad, "\n".join(bad)


def test_most_rows_are_met() -> None:
    met = {name for k in range(len(SIZES)) for name in batch(k).cases}
    assert len(met) > 0.8 * len(ALL_CASES), sorted({c.name for c in ALL_CASES} - met)
