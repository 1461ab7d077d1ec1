"""Loops over a size that has room end at the size of a run, in C. What lies beyond it is never read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_triangles import poisoned
from tracegrad.compiler.build import ForwardSource
from tracegrad.compiler.rooms import Rooms, build_rooms
from tracegrad.runtime.cpu import CpuSession

# a kernel that fails its check runs in NumPy, with right numbers
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

B, T, D = 3, 16, 8
Case = Callable[[Any, Any], Any]


def of_each(x: Any, w: Any) -> Any:
    return tg.mean(tg.scan(lambda h, v: (tg.tanh(v + h @ w), h), tg.zeros((B, D)), x)[1], 0)


def of_last(x: Any, w: Any) -> Any:
    return tg.scan(lambda h, v: (tg.tanh(v + h @ w), None), tg.zeros((B, D)), x)[0]


def reversed_loop(x: Any, w: Any) -> Any:
    last, each = tg.scan(lambda h, v: (tg.tanh(v + h @ w), h), x[0], x, reverse=True)
    return last + tg.max(each, 0)


def of_new_values(x: Any, w: Any) -> Any:
    """The results are also the carry, so all of its values are kept."""

    def step(h: Any, v: Any) -> tuple[Any, Any]:
        h = tg.tanh(v + h @ w)
        return h, h

    return tg.sum(tg.exp(tg.scan(step, tg.zeros((B, D)), x)[1]), 0)


def of_turns(x: Any, w: Any) -> Any:
    """Carries in two places, which change places in each iteration."""
    first = tg.zeros((B, D)), tg.ones((B, D))
    (a, b), _ = tg.scan(lambda c, v: ((c[1], c[0] * 0.5 + v @ w), None), first, x)
    (c, d), _ = tg.scan(lambda c, v: ((c[1], c[0] * 0.5 + v @ w), None), first, x, reverse=True)
    return a * 2.0 + b + c * 3.0 - d


def of_one_less(x: Any, w: Any) -> Any:
    last, each = tg.scan(lambda h, v: (tg.tanh(v + h @ w), h), x[0], x[1:])
    return last + tg.sum(each, 0)


def of_a_loop_in_a_loop(x: Any, w: Any) -> Any:
    def step(h: Any, v: Any) -> tuple[Any, Any]:
        k, ks = tg.scan(lambda k, u: (tg.tanh(0.3 * (k + u @ w)), k), h, x)
        return tg.tanh(0.3 * (k + v)), tg.sum(ks, 0)

    last, each = tg.scan(step, tg.zeros((B, D)), x)
    return last + tg.mean(each, 0)


def of_indices(x: Any, w: Any) -> Any:
    """What is beyond the size is an index too, and a divisor."""

    def step(h: Any, v: Any) -> tuple[Any, Any]:
        k = tg.argmax(h + v, 1)
        return tg.tanh(h + v), (k, k + 1)

    _, (at, by) = tg.scan(step, tg.zeros((B, D)), x)
    return tg.sum(tg.take(w, at, 0) / tg.cast(by // (at + 1), tg.f32)[..., None], 0)


CASES = [of_each, of_last, reversed_loop, of_new_values, of_turns, of_one_less, of_a_loop_in_a_loop, of_indices]


def gradients(f: Case, x: Any, w: Any) -> dict[str, Any]:
    def loss(x: Any, w: Any) -> Any:
        return tg.sum(tg.sin(f(x, w)))

    gx, gw = tg.grad(loss, argnums=(0, 1))(x, w)
    return {"y": f(x, w), "gx": gx, "gw": gw}


def rooms_of(f: Case) -> Rooms:
    model = tg.nn.Linear(1, 1)

    def forward(m: Any, x: Any, w: Any) -> Any:
        return gradients(f, x, w)

    return build_rooms(
        lambda n: ForwardSource(model, forward, {"x": (n[0], B, D), "w": (D, D)}), {"T": T}, None, gpu=False
    )


@pytest.mark.parametrize("f", CASES)
def test_what_lies_beyond_the_size_is_not_read(f: Case, c_session: CpuSession) -> None:
    rng = np.random.default_rng(0)
    x, w = (0.3 * rng.standard_normal(shape).astype(np.float32) for shape in ((T, B, D), (D, D)))
    rooms = rooms_of(f)
    left: list[int] = []
    for n in (T, 3, 4, 8, T - 1):
        fitted = rooms.at((n,))
        assert fitted is not None
        beyond = x.copy()
        beyond[n:] = np.nan
        given = {"x": beyond, "w": w, **{k: np.asarray(v, d) for k, (d, v) in fitted.built.numbers.items()}}
        got, nans = poisoned(c_session, rooms.built.program, given)
        want = gradients(f, tg.tensor(x[:n]), tg.tensor(w))
        for name, value in want.items():
            y = next(v for k, v in got.items() if k.endswith(name))
            np.testing.assert_allclose(y[: len(value)], value.numpy(), rtol=1e-4, atol=2e-5, err_msg=f"{name} at {n}")
        left.append(nans)
    assert left[1] > left[0] or f is of_indices, left  # integers


def test_which_loops_end() -> None:
    """Also one in reverse, whose carry has its values apart from those that are kept, and one of T - 1 elements."""
    loops = {f: rooms_of(f).built.program.loops for f in (of_last, reversed_loop, of_one_less, of_turns)}
    assert all(x.until for x in (*loops[of_last], *loops[reversed_loop], *loops[of_one_less]))
    assert {x.until.size for x in loops[of_one_less] if x.until} == {"hyper.size of T - 1"}
    loop = next(x for x in loops[of_turns] if x.until and x.until.turns == 2 and not x.until.reverse)
    assert [loop.left_out(t) for t in range(5)] == [0, 0, 2, 2, 4]  # two at a time


def test_sums_of_a_loop_are_computed_after_it() -> None:
    """A mask on the carry would hide that it is a sum."""
    program = rooms_of(of_each).built.program
    products = [k for k, kernel in enumerate(program.kernels) if "matmul" in kernel.label]
    inside = {d.kernel for x in program.loops for d in program.dispatches[x.begin : x.end]}
    assert any(k not in inside for k in products)
