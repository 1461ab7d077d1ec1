"""Primitives whose results depend on many elements: folds, products, gather, scatter, and packing into one array."""

# The rules are lambdas, whose parameters cannot be annotated.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from math import isfinite, prod
from typing import Any

from tracegrad.dtypes import DType, TensorType, all_of, f32, i32, reduced_shape
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.ir.nodes import Primitive, Tensor, bind, register
from tracegrad.methods import METHODS
from tracegrad.prims.leaves import HIGH, LOW, const, iota
from tracegrad.prims.rules import linear, multilinear, shifted, spread
from tracegrad.prims.views import broadcast_to, permute, place, reshape, slice_


def fold(name: str, *, array: str, combine: str, identity: float, vjp: Any, xla: Any = None) -> Primitive:
    """Register a fold over `axes`, which stay as size 1. `array`: its NumPy code, with {keepdims} as a placeholder."""

    def rule(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        if x.dtype.name == "bool":
            raise DTypeError(f"takes numbers, got {x}; cast with tg.cast(x, tg.i32)")
        return TensorType(x.dtype, reduced_shape(x.shape, axes))

    return register(Primitive(name, "fold", rule, array, vjp, batch=shifted, combine=combine, identity=identity,
                              xla=xla))  # fmt: skip


def identity_of(prim: Primitive, dtype: DType) -> float | int:
    """Return the identity of a fold of elements of a type, such as 0 for a sum."""
    value = prim.identity or 0.0
    if dtype.is_float:
        return value
    return int(value) if isfinite(value) else LOW[dtype.name] if value < 0 else HIGH[dtype.name]


def _hits(y: Tensor, x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return 1 where `x` equals the extremum `y` and 0 elsewhere, and the number of ones, which share the gradient."""
    hit = METHODS["cast"](x == broadcast_to(y, x.shape), f32)
    return hit, hit.sum(axes, keepdims=True)


def _extremum_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> tuple[Tensor]:
    """Share the gradient among ties, as PyTorch's amax and amin."""
    hit, count = _hits(y, x, axes)
    return (broadcast_to(ct / count, x.shape) * hit,)


def _extremum_xla(x: Any, t: Tensor, values: Any) -> Any:
    """Reduce by max or min, and keep NaN on XLA's CPU.

    There, such a reduction of some thousand elements drops NaN: jnp.max(jnp.full(8000, jnp.nan)) is -inf in JAX 0.10.2.
    For 100 elements it is NaN. https://github.com/openxla/xla/issues/21461 reports the same for constants.
    """
    over: dict[str, Any] = {"axis": t.attrs["axes"], "keepdims": True}
    plain = partial(getattr(x.np, t.prim.name), **over)

    def keeping(values: Any) -> Any:
        return x.np.where(x.np.isnan(values).any(**over), x.np.nan, plain(values)).astype(values.dtype)

    return x.lax.platform_dependent(values, cpu=keeping, default=plain) if t.dtype == f32 else plain(values)


def _others(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return, for each element, the product of all others over `axes`.

    No quotient is used, so zeros, infinities and derivatives of every order are right.
    """
    kept = [d for d in range(x.ndim) if d not in axes]
    order = (*kept, *axes)
    rows = permute(x, order)
    flat = reshape(rows, (*[x.shape[d] for d in kept], prod([x.shape[d] for d in axes])))
    return permute(reshape(_others_in_rows(flat), rows.shape), [order.index(d) for d in range(x.ndim)])


def _others_in_rows(x: Tensor) -> Tensor:
    """Return for each element the product of all others in its row: its pair's other element times all other pairs."""
    *batch, n = x.shape
    if n < 2:
        return broadcast_to(const(1.0), x.shape)
    at, pairs = len(batch), -(-n // 2)
    if n % 2:
        whole = (*batch, n + 1)
        x = METHODS["where"](iota(whole, at) < n, place(x, at, 0, n + 1), 1.0)
    x = reshape(x, (*batch, pairs, 2))
    first, second = (reshape(slice_(x, at + 1, k, 1), (*batch, pairs)) for k in (0, 1))
    others = _others_in_rows(first * second)
    partners = slice_(x, at + 1, 1, 2, -1)
    result = partners * broadcast_to(reshape(others, (*batch, pairs, 1)), x.shape)
    return slice_(reshape(result, (*batch, 2 * pairs)), at, 0, n)


# The ufuncs behind x.sum() and x.max() avoid a layer of Python. NumPy would sum i32 as i64. PEAK is MAX as the shift in
# sums of exponentials: the shift cancels, so it has no derivative, and NaN passes through the exponentials anyway.
SUM = fold("sum", array="xp.add.reduce({0}, {axes}, {0}.dtype, keepdims={keepdims})", combine="add", identity=0.0,
           vjp=lambda ct, y, x, *, axes: (broadcast_to(ct, x.shape),))  # fmt: skip
MAX = fold("max", array="xp.maximum.reduce({0}, {axes}, keepdims={keepdims})", combine="maximum",
           identity=float("-inf"), vjp=_extremum_vjp, xla=_extremum_xla)  # fmt: skip
PEAK = fold("peak", array="xp.maximum.reduce({0}, {axes}, keepdims={keepdims})", combine="fmax",
            identity=float("-inf"),
            vjp=lambda ct, y, x, *, axes: (None,))  # fmt: skip
MIN = fold("min", array="xp.minimum.reduce({0}, {axes}, keepdims={keepdims})", combine="minimum",
           identity=float("inf"), vjp=_extremum_vjp, xla=_extremum_xla)  # fmt: skip
PROD = fold("prod", array="xp.multiply.reduce({0}, {axes}, {0}.dtype, keepdims={keepdims})", combine="mul",
            identity=1.0,
            vjp=lambda ct, y, x, *, axes: (broadcast_to(ct, x.shape) * _others(x, axes),))  # fmt: skip


def check_product(a: TensorType, b: TensorType) -> None:
    """Raise DTypeError unless both are f32, and ShapeError unless their inner dimensions are equal.

    The inner dimensions are the last axis of `a`, and the second to last axis of `b` or its only axis.
    """
    if a.dtype != f32 or b.dtype != f32:
        raise DTypeError(f"takes f32, got {a} and {b}; cast with tg.cast(x, tg.f32)")
    at = -2 if b.ndim > 1 else -1
    if a.shape[-1] != b.shape[at]:
        hint = ""
        if b.ndim > 1 and a.shape[-1] == b.shape[-1]:
            hint = " (did you mean swapaxes(b, -1, -2)?)"
        elif prod(a.shape[1:]) == b.shape[at]:
            hint = " (did you mean tg.flatten(a)?)"
        raise ShapeError(
            f"inner dimensions differ: a is {a}, b is {b}; "
            f"a.shape[-1] = {a.shape[-1]} must equal b.shape[{at}] = {b.shape[at]}{hint}"
        )


def _matmul_type(a: TensorType, b: TensorType) -> TensorType:
    if a.shape[:-2] != b.shape[:-2]:
        raise ShapeError(f"batch dimensions differ: a is {a}, b is {b}")
    check_product(a, b)
    return TensorType(a.dtype, (*a.shape[:-1], b.shape[-1]))


def _transposed(x: Tensor) -> Tensor:
    return x.swapaxes(-1, -2)


def _is_transposed(x: Tensor) -> bool:
    return x.prim.name == "permute" and x.attrs["axes"] == (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


def _gradient(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, the gradient of `x`; for a transposed view as b^T @ a^T, in the layout of the view's input."""
    if _is_transposed(x):
        return _transposed(bind(MATMUL, _transposed(b), _transposed(a)))
    return bind(MATMUL, a, b)


def _matmul_batch(n: int, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Batch a product. If one factor is the same for all elements, one product has the rows or columns of all."""
    if a.shape[0] == b.shape[0] or y.ndim != 2:
        return bind(MATMUL, spread(n, a), spread(n, b))
    (m, k), columns = a.shape[1:], b.shape[-1]
    if b.shape[0] == 1:
        return reshape(bind(MATMUL, reshape(a, (n * m, k)), reshape(b, b.shape[1:])), (n, m, columns))
    wide = bind(MATMUL, reshape(a, (m, k)), reshape(permute(b, (1, 0, 2)), (k, n * columns)))
    return permute(reshape(wide, (m, n, columns)), (1, 0, 2))


def _dot_general(x: Any, t: Tensor, a: Any, b: Any) -> Any:
    row, column, batch = t.ndim - 2, t.ndim - 1, tuple(range(t.ndim - 2))
    across, down = (_is_transposed(one) for one in t.inputs)
    # XLA drops two transposes in a row. Its CPU multiplies a transposed matrix by a vector seven times as slowly
    a, b = (x.np.swapaxes(one, -1, -2) if view else one for one, view in ((a, across), (b, down)))
    dims = (((row if across else column,), (column if down else row,)), (batch, batch))
    return x.lax.dot_general(x.narrow(a), x.narrow(b), dims, preferred_element_type=t.dtype.numpy)


# out[.., m, n] = sum_k a[.., m, k] b[.., k, n], equal batch dimensions
MATMUL = register(
    Primitive(
        "matmul",
        "product",
        _matmul_type,
        array="matmul",
        vjp=lambda ct, y, a, b: (_gradient(a, ct, _transposed(b)), _gradient(b, _transposed(a), ct)),
        jvp=multilinear,
        batch=_matmul_batch,
        combine="add",
        identity=0.0,
        xla=_dot_general,
    )
)


def _gather_type(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    if indices.dtype != i32:
        raise DTypeError(f"indices must be i32, got {indices}")
    if indices.ndim != x.ndim or any(n != m for d, (n, m) in enumerate(zip(x.shape, indices.shape)) if d != axis):
        raise ShapeError(f"x is {x}, indices are {indices}: all axes but {axis} must be equal")
    if x.shape[axis] == 0 and indices.size:
        raise ShapeError(f"nothing to pick from: axis {axis} of {x} is empty")
    return TensorType(x.dtype, indices.shape)


def _gather_batch(n: int, y: Tensor, x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """Look up all indices in one `x` at once, so that a table's gradient is one scatter into the table, not `n`."""
    if x.shape[0] != 1 or n == 1:
        return bind(GATHER, spread(n, x), spread(n, indices), axis=axis + 1)
    order = (*range(1, axis + 1), 0, *range(axis + 1, indices.ndim))  # the new axis comes next to `axis`
    beside = permute(indices, order)
    long = reshape(beside, (*x.shape[1 : axis + 1], n * indices.shape[axis + 1], *x.shape[axis + 2 :]))
    picked = reshape(bind(GATHER, reshape(x, x.shape[1:]), long, axis=axis), beside.shape)
    return permute(picked, (axis, *range(axis), *range(axis + 1, indices.ndim)))


def _clamped(xp: Any, indices: Any, n: int) -> Any:
    return xp.minimum(xp.maximum(indices, 0), n - 1)  # half the time of xp.clip, which is written in Python


def _shared_indices(t: Tensor, indices: Any) -> Any | None:
    """Return the indices along the node's axis if input 1 repeats them along all other axes, else None.

    XLA then moves whole rows, many times faster than looking up one index for each element of a table's row.
    """
    node = t.inputs[1]
    if node.prim.name != "broadcast" or node.inputs[0].size != node.inputs[0].shape[t.axis] or 0 in node.shape:
        return None
    return indices[tuple([slice(None) if d == t.axis else 0 for d in range(node.ndim)])]


def _take(x: Any, t: Tensor, values: Any, indices: Any) -> Any:
    rows = _shared_indices(t, indices)
    if rows is None:
        return _gather_array(x.np, values, indices, axis=t.axis)
    return x.np.take(values, rows, t.axis, mode="clip")


def _gather_array(xp: Any, x: Any, indices: Any, *, axis: int) -> Any:
    return xp.take_along_axis(x, _clamped(xp, indices, x.shape[axis]), axis)


# out[.., k, ..] = x[.., indices[.., k, ..], ..]; indices are clamped to the axis
GATHER = register(
    Primitive(
        "gather",
        "gather",
        _gather_type,
        array=_gather_array,
        vjp=lambda ct, y, x, indices, *, axis: (scatter_add(ct, indices, axis, x.shape[axis]), None),
        jvp=multilinear,
        batch=_gather_batch,
        indexes=lambda x, indices, *, axis: (1, x.shape[axis], None),
        cost=4,
        xla=_take,
    )
)


def _scatter_type(x: TensorType, indices: TensorType, *, axis: int, length: int) -> TensorType:
    if indices.dtype != i32 or indices.shape != x.shape:
        raise ShapeError(f"indices must be i32 of the updates' shape: updates are {x}, indices are {indices}")
    if length == 0 and x.size:
        raise ShapeError(f"nothing to add to: axis {axis} of the result is empty, and updates are {x}")
    return TensorType(x.dtype, (*x.shape[:axis], length, *x.shape[axis + 1 :]))


def _scatter(name: str, *, of: Primitive, ufunc: str, method: str, **rules: Any) -> Primitive:
    """Register a scatter, which folds the updates of a row as the fold `of` does.

    ufunc: the NumPy ufunc that combines two updates; method: the method of JAX's `x.at[...]` that does so.
    """

    def array(xp: Any, x: Any, indices: Any, *, axis: int, length: int) -> Any:
        at = [xp.arange(n).reshape([-1 if d == k else 1 for d in range(x.ndim)]) for k, n in enumerate(x.shape)]
        at[axis] = _clamped(xp, indices, length)
        out = xp.full((*x.shape[:axis], length, *x.shape[axis + 1 :]), of.identity, x.dtype)
        if hasattr(out, "at"):  # jax.numpy: immutable arrays
            return getattr(out.at[tuple(at)], method)(x)
        getattr(xp, ufunc).at(out, tuple(at), x)
        return out

    def rows_at_once(x: Any, t: Tensor, updates: Any, indices: Any) -> Any:
        rows, length = _shared_indices(t, indices), t.attrs["length"]
        if rows is None:
            return array(x.np, updates, indices, axis=t.axis, length=length)
        at = (*[slice(None)] * t.axis, _clamped(x.np, rows, length))
        return getattr(x.np.full(t.shape, of.identity, updates.dtype).at[at], method)(updates)

    return register(Primitive(
        name, "scatter", _scatter_type, array=array, batch=shifted, combine=of.combine, identity=of.identity,
        indexes=lambda x, indices, *, axis, length: (1, length, None), xla=rows_at_once, **rules,
    ))  # fmt: skip


# out[.., v, ..] = sum of x[.., k, ..] over the k whose index is v, in the order of k
SCATTER_ADD = _scatter(
    "scatter_add", of=SUM, ufunc="add", method="add", jvp=multilinear,
    vjp=lambda ct, y, x, indices, *, axis, length: (bind(GATHER, ct, indices, axis=axis), None),
)  # fmt: skip


def _scatter_max_vjp(ct: Tensor, y: Tensor, x: Tensor, indices: Tensor, *, axis: int, length: int) -> tuple[Any, ...]:
    """Share the gradient among ties. No index selects a row without updates, so no count of 0 is a divisor."""

    def back(rows: Tensor) -> Tensor:
        return bind(GATHER, rows, indices, axis=axis)

    hit = METHODS["cast"](x == back(y), f32)
    return back(ct) / back(scatter_add(hit, indices, axis, length)) * hit, None


# the largest of x[.., k, ..] over the same k
SCATTER_MAX = _scatter("scatter_max", of=MAX, ufunc="maximum", method="max", vjp=_scatter_max_vjp)
SCATTERED_BY = {SCATTER_ADD: SUM, SCATTER_MAX: MAX}  # the fold that combines scatters of parts of the updates


def scatter_add(x: Tensor, indices: Tensor, axis: int, length: int) -> Tensor:
    """Return zeros of `length` along `axis`, plus each element of `x` at its index. `indices` has the shape of `x`."""
    return bind(SCATTER_ADD, x, indices, axis=axis, length=length)


def _pack_type(*types: TensorType) -> TensorType:
    if len({t.dtype for t in types}) != 1:
        raise DTypeError(f"dtypes differ: {all_of(types)}")
    return TensorType(types[0].dtype, (sum(t.size for t in types),))


def offsets(sizes: Sequence[int]) -> list[int]:
    """Return where each of several consecutive pieces begins."""
    return [0, *accumulate(sizes)][: len(sizes)]


def _pack_batch(n: int, y: Tensor, *xs: Tensor) -> Tensor:
    rows = [permute(reshape(spread(n, x), (n, x.size // x.shape[0])), (1, 0)) for x in xs]
    return permute(reshape(pack(rows), (y.size, n)), (1, 0))


# All inputs, flattened, one after the other. A pack is never a kernel: each input is computed into its place.
PACK = register(
    Primitive(
        "pack",
        "pack",
        _pack_type,
        array=lambda xp, *xs: xp.concatenate([xp.reshape(x, -1) for x in xs]),
        vjp=lambda ct, y, *xs: tuple(
            reshape(ct[at : at + x.size], x.shape) for at, x in zip(offsets([x.size for x in xs]), xs)
        ),
        jvp=linear,
        batch=_pack_batch,
    )
)


def pack(xs: Sequence[Tensor]) -> Tensor:
    """Return one flat array of all `xs`."""
    return bind(PACK, *xs)


def count(x: Tensor, axes: Sequence[int]) -> int:
    """Return the number of elements that a reduction over `axes` combines into one."""
    return prod([x.shape[d] for d in axes])


def drop(y: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Remove the reduced `axes` from `y`, unless `keepdims`."""
    return y if keepdims else reshape(y, tuple([n for d, n in enumerate(y.shape) if d not in axes]))


def folded(p: Primitive, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Fold `x` over `axes`, skipping axes of size 1."""
    long = tuple([d for d in axes if x.shape[d] != 1])
    return drop(bind(p, x, axes=long) if long else x, axes, keepdims)
