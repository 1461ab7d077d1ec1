"""Views over rows of every length, on the CPU's C: what guards hide is 0 and what they show is right, to the bit.

GCC 12.2 at -O3 masked the loads of a row by the first one's condition, for rows of 2, 3, 5 and 6. GCC 11 and 12 wrote
out short rows that a sum reads backwards, and added up other elements.
`tools/compilers` runs these under every compiler at hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from together import together
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import DType, TensorType, f32, i32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf
from tracegrad.render import c_values
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

ALL = "TRACEGRAD_ALL_SHAPES" in os.environ  # tools/compilers sets it
ROWS = (1, 2, 3, 5, 6, 7, 13, 16, 17, 33, 64) if ALL else (2, 5, 17, 64)
WIDTHS = {f32: (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 17) if ALL else (2, 3, 5, 6, 7, 9), i32: (2, 3, 5, 7) if ALL else (3,)}

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "pad rows": lambda x: tg.pad(x, [(1, 2), (0, 0)]),
    "pad columns": lambda x: tg.pad(x, [(0, 0), (2, 1)]),
    "pad both": lambda x: tg.pad(x, [(1, 1), (1, 1)]),
    "pad and flip": lambda x: tg.flip(tg.pad(x, [(2, 1), (1, 0)]), 0),
    "concat rows": lambda x: tg.concat([x, x[:1], x], 0),
    "concat columns": lambda x: tg.concat([x[:, :1], x, x], 1),
    "pad of a concat": lambda x: tg.pad(tg.concat([x, x], 0), [(1, 0), (0, 1)]),
    "roll": lambda x: tg.concat([x[-1:], x[:-1]], 0) if x.shape[0] > 1 else x,
    "shifted sum": lambda x: tg.pad(x, [(1, 0), (0, 0)])[:-1] + x,
    "sum of a pad": lambda x: tg.sum(tg.pad(x, [(1, 1), (1, 1)]), 1),
    "sum of a pad's columns": lambda x: tg.sum(tg.pad(x, [(1, 1), (1, 1)]), 0),
    "sum of reversed rows": lambda x: tg.sum(tg.flip(x, 1)),
    "sum of all reversed": lambda x: tg.sum(tg.flip(tg.flip(x, 0), 1)),
    "sums of reversed columns": lambda x: tg.sum(tg.flip(x[None] + tg.zeros((3, 1, 1), x.dtype), 2), (1, 2)),
    "sum of rolled rows": lambda x: tg.sum(tg.concat([x[:, 1:], x[:, :1]], 1) if x.shape[1] > 1 else x),
    "max of a concat": lambda x: tg.max(tg.concat([x, -x], 0), 1),
    "distances of pairs": lambda x: over_pairs(x, lambda a, b: tg.abs(a - b)),
    "counts of pairs": lambda x: over_pairs(x, lambda a, b: tg.cast(a < b, f32)),
    "chosen conditions": lambda x: over_pairs(x, lambda a, b: tg.cast(tg.where(a < 2 * b, b < a, b > 0), x.dtype)),
}
GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[:-1, 1:] if min(x.shape) > 1 else x,
    "step": lambda x: x[::2, ::3],
    "windows": lambda x: tg.avg_pool2d(tg.reshape(x, (1, 1, *x.shape)), (min(2, x.shape[0]), min(2, x.shape[1])), 1),
    "maxima": lambda x: tg.max_pool2d(tg.reshape(x, (1, 1, *x.shape)), (min(2, x.shape[0]), min(2, x.shape[1])), 1),
}
# Of three operands, broadcast in every way: a choice at ties, a sum of choices along the rest.
CHOICES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "maximum": lambda x, y, z: tg.maximum(x - y, z),
    "minimum": lambda x, y, z: tg.minimum(x, y + z),
    "relu": lambda x, y, z: tg.relu(x - y) * z,
    "clip": lambda x, y, z: tg.clip(x + y, -1, 2) * z,
    "abs": lambda x, y, z: tg.abs(x - y) - z,
    "leaky": lambda x, y, z: tg.leaky_relu(x - y, 0.5) + tg.relu(z),
    "where": lambda x, y, z: tg.where(x < y, x * 2, z),
    "where equal": lambda x, y, z: tg.where(tg.equal(x, y), x, tg.where(x < z, y * 4, -y)),
    "two bounds": lambda x, y, z: tg.maximum(tg.minimum(x, y), z),
    "nested": lambda x, y, z: tg.where(x < y, tg.where(x < 0, y, x * 2), tg.where(y < z, x, z * 2)),
    "either": lambda x, y, z: tg.where((x < y) | (y > z), x, tg.relu(y)),
    "condition": lambda x, y, z: tg.where(tg.where(x < y, y < z, tg.equal(x, z)), x, z * 2),
}
OPERANDS = ("k nk -", "nk k -", "nk nk k", "nk n k", "n nk n") if ALL else ("k nk -", "nk n k")


def over_pairs(x: Tensor, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Sums of f(x[i], x[j]) over j, in rows as long as `x` has rows."""
    x = tg.reshape(x, x.shape[::-1])
    return tg.sum(f(x[:, :, None], x[:, None, :]), -1)


def outputs(name: str, x: Tensor, weights: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    if name in VIEWS:
        return VIEWS[name](x)
    y = GRADIENTS[name](x)
    return gradients(tg.sum(y * weights(y.shape)), [x])[0]


def exact(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Small integers, no two neighbours equal: sums of a few are exact in f32."""
    return (np.random.default_rng(seed).permutation(int(np.prod(shape))) % 4099 - 2049).reshape(shape)


def compare(session: CpuSession, names: list[str], dtype: DType, shapes: list[tuple[int, int]]) -> None:
    """All of them in one program, and so in one call of the compiler."""
    env: dict[str, Any] = {}
    found: dict[str, Tensor] = {}

    def given(name: str, shape: tuple[int, ...]) -> Tensor:
        env[name] = exact(shape, len(env)).astype(dtype.numpy)
        return leaf("input", name, TensorType(dtype, shape))

    with tracing():
        for shape in shapes:
            x = given(f"x{shape}", shape)
            for name in names:
                y = outputs(name, x, lambda s, at=f"{name} {shape}": given(f"w {at}", s))
                found[f"{name} of {shape}"] = y
    check(session, found, env)


def check(session: CpuSession, found: dict[str, Tensor], env: dict[str, Any], what: str = "") -> None:
    """Are these to the bit what the reference makes of them? One program computes all."""
    program = make_program(Graph(found), Persistent(), {}, {})
    handle = session.load(program)
    got = session.run(handle, [{f.name: env[f.name] for f in program.inputs}]).outputs()[0]
    session.unload(handle)
    for name, want in zip(found, evaluate(list(found.values()), env, np), strict=True):
        np.testing.assert_array_equal(got[name], want, err_msg=f"{what} {name}")


@pytest.mark.filterwarnings("error::RuntimeWarning")  # where C fails, NumPy would do instead
@pytest.mark.parametrize(("dtype", "width"), [(d, n) for d, widths in WIDTHS.items() for n in widths], ids=str)
def test_rows_of_any_length(dtype: DType, width: int, c_session: CpuSession) -> None:
    names = [*VIEWS, *(GRADIENTS if dtype is f32 else ())]
    compare(c_session, names, dtype, [(rows, width) for rows in ROWS])


def compare_choices(session: CpuSession, of: str, shape: tuple[int, int]) -> None:
    """The values of each choice and its gradients, in one program and so one kernel where they fit together."""
    n, k = shape
    shapes = {"nk": (n, k), "n": (n, 1), "k": (k,), "-": ()}
    for name, choice in CHOICES.items():
        rng = np.random.default_rng(5)
        drawn = [rng.integers(-3, 4, shapes[s]).astype(np.float32) for s in (*of.split(), "nk")]
        env = {f"x{j}": x for j, x in enumerate(drawn)}
        with tracing():
            *xs, weights = (leaf("input", j, TensorType(f32, x.shape)) for j, x in env.items())
            y = choice(*xs)
            by = gradients(tg.sum(y * weights), xs)
            found = {"values": y, **{f"by operand {j}": g for j, g in enumerate(by)}}
        check(session, found, env, f"{name} of {of}, {shape}:")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("of", OPERANDS)
@pytest.mark.parametrize("width", (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 17) if ALL else (3, 5))
@together
def test_choices_in_rows_of_any_length(width: int, of: str, c_session: CpuSession) -> None:
    """GCC 13.3 took one element's condition for all where sums of choices had rows of 3."""
    for rows in (1, 4, 5, 16, 33) if ALL else (16,):
        compare_choices(c_session, of, (rows, width))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("margin", [0, 1, 40])
def test_no_load_strays_past_the_margin(margin: int, c_session: CpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little memory around arrays, addresses are chosen before the innermost loop, or clamped."""
    monkeypatch.setattr(c_values, "MARGIN", margin)
    compare(c_session, [*VIEWS, *GRADIENTS], f32, [(7, 5), (33, 6), (3, 40)])


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_long_joins_read_only_what_they_join(c_session: CpuSession) -> None:
    """Further apart than the margin: along the first axis, the last one, and a single one."""
    views: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "rows": lambda a, b: tg.concat([a, b], 0),
        "columns": lambda a, b: tg.concat([a, b], 1),
        "flat": lambda a, b: tg.concat([tg.flatten(a, 0), tg.flatten(b, 0)], 0),
        "far pad": lambda a, b: tg.pad(a, [(5000, 3), (0, 0)]) + 0 * tg.sum(b),
        "both": lambda a, b: tg.pad(a, [(90, 80), (70, 60)]) + tg.sum(b),
    }
    with tracing():
        a, b = (leaf("input", n, TensorType(f32, (100, 70))) for n in "ab")
        found = {name: f(a, b) for name, f in views.items()}
    check(c_session, found, {n: exact((100, 70), k).astype(np.float32) for k, n in enumerate("ab")})
