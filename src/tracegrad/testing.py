"""Checks of ops for packages that add ops, the same as for tracegrad's own ops.

`check_op` runs all checks on one op. For many ops, use a table of `Case` and one parametrised test per check:

    @pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
    def test_gradients(case):
        testing.check_vjp(case)
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tracegrad import transforms
from tracegrad.dtypes import InputType, Shape, TensorType, bool_, f32, i32
from tracegrad.entrypoints import compile_forward, devices
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import Tensor
from tracegrad.nn.module import Module
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.walks import cotangents, gradients, tangents

__all__ = [
    "Case", "check_jvp", "check_op", "check_pytorch", "check_runtime", "check_second_order", "check_types",
    "check_vjp", "check_vmap",
]  # fmt: skip

STEP = 1e-6  # step of central differences in float64, where rounding and curvature errors are about equal
BATCH = 3  # elements that `check_vmap` computes at once
COUNTERS = {"seed": np.uint32(7), "step": np.uint32(7)}  # keys of random ops
DTYPES = {"x": f32, "i": i32, "b": bool_}  # by the first letter of an input's name

Arrays = dict[str, np.ndarray]


class _Model(Module):
    """A model for a single op: `compile_forward` needs at least one array."""

    def __init__(self) -> None:
        self.unused = self.state(())


@dataclass(frozen=True)
class Case:
    """One op on one choice of types. Inputs are named `x0, x1, ...`, `i0, ...` and `b0, ...`.

    fn:      function of the tensors in the order floats, ints, bools
    shapes:  shapes of the f32 inputs, drawn uniformly from [low, high)
    ints:    (shape, n) of each i32 input, drawn from [0, n)
    bools:   shape of each bool input
    torch:   the same function on torch tensors, or None if PyTorch has none
    grad:    check gradients; `second`: also check gradients of gradients
    tol:     relative tolerance against finite differences
    close:   relative and absolute tolerance in float64 against PyTorch
    f32_tol: relative and absolute tolerance of runtimes in f32 against float64
    """

    name: str
    fn: Callable[..., Tensor]
    shapes: tuple[Shape, ...] = ()
    low: float = -2.0
    high: float = 2.0
    ints: tuple[tuple[Shape, int], ...] = ()
    bools: tuple[Shape, ...] = ()
    torch: Callable[..., Any] | None = None
    grad: bool = True
    second: bool = True
    tol: float = 1e-5
    close: float = 1e-6
    f32_tol: float = 2e-5

    def __repr__(self) -> str:
        return self.name

    @property
    def differentiable(self) -> bool:
        """Whether finite differences can check the op, as torch.autograd.gradcheck does."""
        return self.grad and bool(self.shapes) and math.isfinite(self.tol)

    def arrays(self, seed: int = 0, dtype: str = "float64") -> Arrays:
        """Return random inputs by name."""
        rng = np.random.default_rng(seed)
        env: Arrays = {}
        for k, s in enumerate(self.shapes):
            env[f"x{k}"] = rng.uniform(self.low, self.high, s).astype(dtype)
        for k, (s, n) in enumerate(self.ints):
            env[f"i{k}"] = rng.integers(0, n, s).astype(np.int32)
        for k, s in enumerate(self.bools):
            env[f"b{k}"] = rng.integers(0, 2, s).astype(bool)
        return env

    def types(self) -> dict[str, TensorType]:
        """Return the type of each input by name."""
        shapes = {f"x{k}": s for k, s in enumerate(self.shapes)}
        shapes |= {f"i{k}": s for k, (s, _) in enumerate(self.ints)} | {f"b{k}": s for k, s in enumerate(self.bools)}
        return {name: TensorType(DTYPES[name[0]], s) for name, s in shapes.items()}

    def leaves(self) -> dict[str, Tensor]:
        """Return traced inputs by name. Call it inside a trace."""
        return {name: leaf("input", name, t) for name, t in self.types().items()}

    def apply(self, leaves: Mapping[str, Tensor]) -> Tensor:
        """Apply the op to its inputs."""
        return self.fn(*leaves.values())


def check_op(
    fn: Callable[..., Tensor], *shapes: Shape, name: str | None = None, on: Sequence[str] | None = None, **row: Any
) -> None:
    """Check one op in every way in which tracegrad checks its own ops.

    The checks: the type rule, gradients against finite differences in float64, gradients of gradients, forward mode
    against backward mode, and `vmap` against a loop. With `torch=`, results are compared with PyTorch. Values and
    gradients of every runtime on this machine are compared with float64.

    fn:      a function of tensors, such as an op made by `tracegrad.extend.elementwise`
    shapes:  shapes of its f32 inputs
    name:    the op's name in messages of failures; by default the function's own name
    on:      names of the devices to run on; by default the CPU, and WebGPU if there is an adapter
    row:     the other fields of `Case`, such as `low=0.1`, `ints=(((3,), 10),)` or `grad=False`
    Raises:  AssertionError that says which check failed and by how much.

        check_op(softsign, (3, 4), torch=torch.nn.functional.softsign)
    """
    case = Case(name or getattr(fn, "__name__", "op"), fn, shapes, **row)
    check_types(case)
    if case.differentiable:
        check_vjp(case)
        check_jvp(case)
        if case.second:
            check_second_order(case)
    check_vmap(case)
    if case.torch is not None:
        check_pytorch(case)
    for device in on if on is not None else dict.fromkeys(d.name for d in devices()):
        check_runtime(case, device)


def check_types(case: Case) -> None:
    """Check that the type rule gives the shape and dtype of the array that the op computes.

    As jax.eval_shape.
    """
    with tracing():
        y = case.apply(case.leaves())
        (value,) = evaluate([y], {**COUNTERS, **case.arrays(dtype="float32")}, np)
    assert value.shape == y.shape, f"{case}: the type rule gives shape {y.shape}, the array has {value.shape}"
    expected = np.dtype(y.dtype.numpy)
    assert value.dtype == expected, f"{case}: the type rule gives {expected}, the array has {value.dtype}"


def check_vjp(case: Case) -> None:
    """Check the gradient along one random direction against central differences in float64.

    As torch.autograd.gradcheck along one direction.
    """
    env = case.arrays()
    with tracing():
        leaves = case.leaves()
        loss = _weighted(case.apply(leaves), env)
        along = _directions(case, env, 2)
        _agree(case, "gradient", loss, leaves, env, along, case.tol)


def check_second_order(case: Case) -> None:
    """Check the gradient of the gradient, along two random directions, against central differences in float64.

    As torch.autograd.gradgradcheck along two directions.
    """
    env = case.arrays()
    with tracing():
        leaves = case.leaves()
        loss = _weighted(case.apply(leaves), env)
        along, inner = _directions(case, env, 2), _directions(case, env, 3)
        xs = [leaves[k] for k in along]
        weights = [leaf("input", f"v.{k}", x.type) for k, x in zip(inner, xs)]
        env |= {f"v.{k}": d for k, d in inner.items()}
        slope = sum([(g * w).sum() for g, w in zip(gradients(loss, xs), weights)], start=0.0)
        assert isinstance(slope, Tensor)
        _agree(case, "second derivative", slope, leaves, env, along, 10 * case.tol)


def check_jvp(case: Case) -> None:
    """Check that forward mode is the transpose of backward mode: <ct, J t> = <J^T ct, t>, in float64.

    As the transpose test of JAX's check_grads.
    """
    env = case.arrays()
    n = len(case.shapes)
    ts = {f"t{k}": np.random.default_rng(k).standard_normal(env[f"x{k}"].shape) for k in range(n)}
    with tracing():
        leaves = case.leaves()
        y = case.apply(leaves)
        ct = leaf("input", "ct", TensorType(f32, y.shape))
        xs = [leaves[f"x{k}"] for k in range(n)]
        t = [leaf("input", k, TensorType(f32, v.shape)) for k, v in ts.items()]
        forth = (tangents([y], dict(zip(xs, t)))[0] * ct).sum()
        back = sum(((g * v).sum() for g, v in zip(cotangents([y], [ct], xs), t)), start=0.0)
        assert isinstance(back, Tensor)
        env = {**COUNTERS, **env, **ts, "ct": np.random.default_rng(9).standard_normal(y.shape)}
        with np.errstate(all="ignore"):
            forwards, backwards = evaluate([forth, back], env, np)
    np.testing.assert_allclose(forwards, backwards, 1e-9, 1e-9, err_msg=f"{case}: jvp is not the transpose of vjp")


def check_vmap(case: Case) -> None:
    """Check that `vmap` gives the results of a loop: with all inputs batched, and with each input batched alone.

    As the tests of jax.vmap.
    """
    names = list(case.types())
    for chosen in [set(names), *([{name} for name in names] if len(names) > 1 else [])]:
        sets = [case.arrays(k) for k in range(BATCH)]
        together = {k: np.stack([s[k] for s in sets]) if k in chosen else sets[0][k] for k in names}
        each = [{k: s[k] if k in chosen else sets[0][k] for k in names} for s in sets]
        axes = tuple(0 if name in chosen else None for name in names)
        found = _value(transforms.vmap(case.fn, axes), together)
        expected = np.stack([_value(case.fn, e) for e in each])
        assert found.dtype == expected.dtype, f"{case}: vmap gives {found.dtype}, a loop {expected.dtype}"
        message = f"{case}: vmap over axes {axes} differs from a loop"
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=message)


def check_pytorch(case: Case) -> None:
    """Check values and gradients against `case.torch` in float64."""
    torch: Any = import_module("torch")
    assert case.torch is not None, f"{case}: the row names no function of PyTorch"
    env = case.arrays(seed=zlib.crc32(case.name.encode()))
    theirs: dict[str, Any] = {k: torch.tensor(v, requires_grad=v.dtype.kind == "f") for k, v in env.items()}
    expected = case.torch(*theirs.values())
    with tracing():
        leaves = case.leaves()
        y = case.apply(leaves)
        (value,) = evaluate([y], env, np)
        want = expected.detach().numpy()
        np.testing.assert_allclose(value, want, case.close, case.close, err_msg=f"{case}: not PyTorch's values")
        xs = [t for t in leaves.values() if t.dtype.is_float]
        if not (case.grad and xs):
            return
        grads = evaluate(gradients(_weighted(y, env), xs), env, np)
    expected.backward(torch.tensor(env["ct"]))
    for x, g in zip(xs, grads):
        message = f"{case}: not PyTorch's gradient of {x.name}"
        np.testing.assert_allclose(g, theirs[x.name].grad.numpy(), case.close, case.close, err_msg=message)


def check_runtime(case: Case, device: str) -> None:
    """Check the compiled op, its value and its gradients, on one device against the reference in float64."""
    env = case.arrays(dtype="float32")
    with tracing():
        y = case.apply(case.leaves())
    env["ct"] = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)

    def results(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        y = case.fn(*(leaves[k] for k in case.types()))
        xs = {k: leaves[k] for k in leaves if k.startswith("x")} if case.grad else {}
        slope = gradients((y * leaves["ct"]).sum(), list(xs.values())) if xs else []
        return {"output": y} | {f"grad.{k}": g for k, g in zip(xs, slope)}

    types = {k: InputType(t.dtype, t.shape) for k, t in case.types().items()} | {"ct": InputType(f32, y.shape)}

    def forward(_: Module, **leaves: Tensor) -> dict[str, Tensor]:
        return results(leaves)

    with switched({"TRACEGRAD_VERIFY": "off"}):  # a refused kernel runs in NumPy, which hides its fault
        compiled = compile_forward(model=_Model(), forward=forward, inputs=types, device=device, seed=0)
        with compiled:
            got: dict[str, np.ndarray] = compiled.run(env).output
    with tracing(), np.errstate(all="ignore"):
        wanted = results({k: leaf("input", k, TensorType(t.dtype, tuple(env[k].shape))) for k, t in types.items()})
        double = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in env.items()}
        exact = dict(zip(wanted, evaluate(list(wanted.values()), double, np)))
    for name, want in exact.items():
        scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0))) if want.dtype.kind == "f" else 1.0
        tol = case.f32_tol if want.dtype.kind == "f" else 0.0
        message = f"{case}: {name} on {device} differs from the reference in float64"
        np.testing.assert_allclose(got[name], want, rtol=tol, atol=tol * scale, err_msg=message)


@contextmanager
def switched(values: Mapping[str, str]) -> Generator[None]:
    """Set environment variables, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def _value(fn: Callable[..., Tensor], env: Arrays) -> np.ndarray:
    """Evaluate `fn` of tensors on arrays, in float64."""
    with tracing(), np.errstate(all="ignore"):
        xs = [leaf("input", k, TensorType(DTYPES[k[0]], v.shape)) for k, v in env.items()]
        return evaluate([fn(*xs)], {**COUNTERS, **env}, np)[0]


def _weighted(y: Tensor, env: Arrays) -> Tensor:
    """Return a scalar: the sum of the result's elements, each with a random weight."""
    env["ct"] = np.random.default_rng(1).standard_normal(y.shape)
    return (y * leaf("input", "ct", TensorType(f32, y.shape))).sum()


def _directions(case: Case, env: Arrays, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {f"x{k}": rng.standard_normal(env[f"x{k}"].shape) for k in range(len(case.shapes))}


def _agree(
    case: Case, what: str, loss: Tensor, leaves: Mapping[str, Tensor], env: Arrays, along: Arrays, tol: float
) -> None:
    """Compare the gradient of `loss` along one direction with the central difference of `loss`."""

    def at(e: float) -> float:
        moved: Arrays = {k: env[k] + e * d for k, d in along.items()}
        return float(evaluate([loss], {**COUNTERS, **env, **moved}, np)[0])

    numeric = (at(STEP) - at(-STEP)) / (2 * STEP)
    grads: list[np.ndarray] = evaluate(gradients(loss, [leaves[k] for k in along]), {**COUNTERS, **env}, np)
    analytic = math.fsum(float(np.vdot(g, d)) for g, d in zip(grads, along.values()))
    message = f"{case}: the {what} differs from finite differences"
    np.testing.assert_allclose(analytic, numeric, rtol=tol, atol=tol, err_msg=message)
