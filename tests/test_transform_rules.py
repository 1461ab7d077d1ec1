"""Forward mode and batching of every row, on the whole case table, and derivatives up to order three."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import tracegrad  # noqa: F401 fills the table
from all_cases import ALL_CASES, op_of
from cases import Case
from tracegrad import elimination, testing, transforms
from tracegrad.dtypes import TensorType, bool_, f32, i32
from tracegrad.ir import ambient
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import PRIMITIVES, Tensor
from tracegrad.prims.leaves import leaf
from xla import options

N = 3  # elements of a batch
COUNTERS = dict.fromkeys(("seed", "step"), np.uint32(7))


def small(case: Case) -> Case:
    """Matrices that are computed by blocks, with 7 rows in blocks of 3: the rules here are loops over the rows."""
    if not case.name.endswith("_blocks"):
        return case
    return dataclasses.replace(case, shapes=tuple(tuple(7 if n == 35 else n for n in s) for s in case.shapes))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "BLOCK", 3)
    monkeypatch.setattr(elimination, "UNBLOCKED", 4)


DIFFERENTIABLE = [small(c) for c in ALL_CASES if c.grad and c.shapes]
RANDOM = (  # other numbers in each element
    "dropout", "dropout_twice", "uniform", "randn", "bernoulli", "bernoulli_of", "categorical", "uniform_between",
    "normal", "randint", "permutation", "gumbel_softmax", "gumbel_softmax_hard",
)  # fmt: skip
SMOOTH = [c for c in DIFFERENTIABLE if c.second and math.isfinite(c.tol)]
DTYPES = {"f": f32, "i": i32, "b": bool_}  # by the kind of an array
by_name = {"argnames": "case", "ids": lambda c: c.name}


def test_every_row_that_goes_forwards_goes_backwards():
    one_way = [p.name for p in PRIMITIVES.values() if p.vjp is None and p.jvp is not None]
    assert not one_way, f"give these rows a vjp, which also gives their jvp: {one_way}"


def test_every_row_can_be_batched():
    with ambient.tracing():
        sources = [p.name for p in PRIMITIVES.values() if p.family == "formula" or p.name in ("leaf", "literal")]
    alone = [p.name for p in PRIMITIVES.values() if p.expand is None and p.batch is None and p.name not in sources]
    assert not alone, f"give these rows a batch, mostly one of prims/rules.py: {alone}"


def values(fn: Callable[..., Any], env: Mapping[str, Any]) -> list[np.ndarray]:
    """What `fn` of tensors gives for arrays, float64 where these are."""
    with ambient.tracing(), np.errstate(all="ignore"):
        xs = [leaf("input", k, TensorType(DTYPES[v.dtype.kind], v.shape)) for k, v in env.items()]
        return evaluate(transforms.tree_leaves(fn(*xs)), {**env, **COUNTERS}, np)


def arrays(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """The arguments of a case."""
    return {k: v for k, v in case.arrays(seed).items() if re.fullmatch(r"[xib]\d+", k)}


def random(shape: Any, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def floats(case: Case) -> list[int]:
    return list(range(len(case.shapes)))


@pytest.mark.parametrize(**by_name, argvalues=DIFFERENTIABLE)
def test_jvp_is_the_transpose_of_vjp(case: Case):
    """<ct, J t> = <J^T ct, t>, and finite differences vouch for J^T; no rounding but that of float64."""
    testing.check_jvp(case)


def batched_inputs(case: Case, chosen: set[str]) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Inputs with an axis in front for those chosen, and the same one element at a time."""
    sets = [arrays(case, k) for k in range(N)]
    together = {k: np.stack([s[k] for s in sets]) if k in chosen else v for k, v in sets[0].items()}
    return together, [{k: s[k] if k in chosen else sets[0][k] for k in s} for s in sets]


@pytest.mark.parametrize(**by_name, argvalues=[c for c in ALL_CASES if c.name not in RANDOM])
def test_vmap_is_a_loop(case: Case):
    testing.check_vmap(case)


def test_vmap_of_nothing_gives_nothing():
    """Also of rows that merge the new axis with another: groups of a convolution, parts of a pack."""
    for case in [c for c in ALL_CASES if c.name.startswith(("conv", "pack", "matmul", "cumsum", "sort", "scan"))]:
        with ambient.tracing():
            xs = [leaf("input", k, TensorType(DTYPES[v.dtype.kind], v.shape)) for k, v in arrays(case).items()]
            none = [leaf("input", x.name, TensorType(x.dtype, (0, *x.shape))) for x in xs]
            of_one, of_none = (transforms.tree_leaves(y) for y in (case.fn(*xs), transforms.vmap(case.fn)(*none)))
            assert [(0, *y.shape) for y in of_one] == [y.shape for y in of_none], case.name


@pytest.mark.parametrize(**by_name, argvalues=[c for c in DIFFERENTIABLE if c.name not in RANDOM])
def test_gradients_under_vmap_are_a_loop(case: Case):
    """vmap(grad(f)), and grad of vmap(f), which is a sum where an input is the same for all."""
    names, wrt = list(arrays(case)), tuple(floats(case))

    def loss(*xs: Tensor) -> Tensor:
        return case.fn(*xs).square().sum()

    gradient = transforms.grad(loss, wrt)
    for shared in (None, *(names if len(names) > 1 else ())):
        chosen = {n for n in names if n != shared}
        together, each = batched_inputs(case, chosen)
        axes = tuple(0 if name in chosen else None for name in names)
        loop = [values(gradient, e) for e in each]
        inner = values(transforms.vmap(gradient, axes), together)
        outer = values(transforms.grad(lambda *xs, axes=axes: transforms.vmap(loss, axes)(*xs).sum(), wrt), together)
        for k in wrt:
            expected = np.stack([g[k] for g in loop])
            np.testing.assert_allclose(inner[k], expected, rtol=1e-8, atol=1e-8, err_msg=f"axes {axes}, input {k}")
            total = expected.sum(0) if names[k] == shared else expected
            np.testing.assert_allclose(outer[k], total, rtol=1e-8, atol=1e-8, err_msg=f"axes {axes}, input {k}")


def along(case: Case, env: Mapping[str, np.ndarray]) -> Callable[..., Tensor]:
    """phi(s, inputs, directions, weights) = sum(weights * f(x + s v)): a function of one number."""
    n, m = len(env), len(case.shapes)

    def phi(s: Tensor, *given: Tensor) -> Tensor:
        xs, vs, weights = given[:n], given[n : n + m], given[-1]
        moved = [x + s * v for x, v in zip(xs, vs)]
        return (case.fn(*moved, *xs[m:]) * weights).sum()

    return phi


def given_for(case: Case) -> dict[str, np.ndarray]:
    env = arrays(case)
    directions = {f"v{k}": random(env[f"x{k}"].shape, k) / 4 for k in floats(case)}
    return {**env, **directions, "weights": random(values(case.fn, env)[0].shape, 5)}


def forwards(f: Callable[..., Any]) -> Callable[..., Any]:
    def derivative(s: Any, *rest: Any) -> Any:
        return transforms.jvp(lambda s: f(s, *rest), (s,), (1.0,))[1]

    return derivative


def third_order(case: Case) -> tuple[Callable[..., Tensor], dict[str, np.ndarray]]:
    return along(case, arrays(case)), given_for(case)


@pytest.mark.parametrize(**by_name, argvalues=SMOOTH)
def test_modes_mix_and_derivatives_agree_with_finite_differences(case: Case):
    """The second and third derivative; `check_jvp` has tried the first."""
    phi, given = third_order(case)
    grad, h = transforms.grad, 1e-5

    def at(f: Callable[..., Tensor], s: float = 0.0) -> np.ndarray:
        return values(f, {"s": np.asarray(s), **given})[0]

    def by_differences(f: Callable[..., Tensor]) -> np.ndarray:
        return (at(f, h) - at(f, -h)) / (2 * h)

    slope = forwards(grad(phi))
    second = [at(f) for f in (slope, grad(grad(phi)), forwards(forwards(phi)))]
    np.testing.assert_allclose(second[1:], second[:1] * 2, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(second[0], by_differences(grad(phi)), rtol=20 * case.tol, atol=20 * case.tol)
    third = [at(f) for f in (forwards(grad(grad(phi))), grad(forwards(forwards(phi))))]
    np.testing.assert_allclose(third[0], third[1], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(third[0], by_differences(slope), rtol=20 * case.tol, atol=20 * case.tol)


def with_derivative(jax: Any, f: Callable[..., Any], s: Any) -> Any:
    """The values of `f`, which are a function and its derivatives so far, and the derivative of the last."""
    ys, slopes = jax.jvp(f, (s,), (jax.numpy.ones(()),))
    return (*ys, slopes[-1])


@pytest.mark.parametrize(**by_name, argvalues=[*{op_of(c): c for c in reversed(SMOOTH)}.values()])
def test_derivatives_up_to_order_three_agree_with_jax(case: Case):
    """JAX differentiates the rows' array rules by itself: it knows nothing of our rules.

    The first smooth row of each op: for the others, finite differences of each order do.
    """
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    phi, given = third_order(case)
    with ambient.tracing():
        s = leaf("input", "s", TensorType(f32, ()))
        y = phi(s, *[leaf("input", k, TensorType(DTYPES[v.dtype.kind], v.shape)) for k, v in given.items()])
    with jax.enable_x64(True):
        theirs = lambda s: (evaluate([y], {"s": s, **given, **COUNTERS}, jax.numpy)[0],)
        for _ in range(3):
            theirs = lambda s, f=theirs: with_derivative(jax, f, s)
        expected = [float(x) for x in jax.jit(theirs, compiler_options=options())(jax.numpy.zeros(()))]
    ours = phi
    for order in range(4):
        (found,) = values(ours, {"s": np.zeros(()), **given})
        tol = case.close * 10**order
        np.testing.assert_allclose(found, expected[order], rtol=tol, atol=tol, err_msg=f"order {order}")
        ours = forwards(ours) if order % 2 else transforms.grad(ours)
