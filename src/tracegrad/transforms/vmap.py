"""Apply functions of one element to many elements at once."""

# Trees can hold anything, and lambdas are mapped over them.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tracegrad.dtypes import TensorType, u32
from tracegrad.errors import ShapeError, TraceError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.elementwise import cast
from tracegrad.prims.leaves import as_tensor, iota, placeholder
from tracegrad.prims.views import moved
from tracegrad.transforms.trees import prefix, rebuilt, tree_leaves, tree_map
from tracegrad.transforms.walks import batches, repeated

Axes = Any  # an integer or None, or a list, tuple or dict of them


def vmap(fn: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0) -> Callable[..., Any]:
    """Return a function that applies `fn` to all slices of its arguments along an axis: each op runs once for all.

        norms = tg.vmap(lambda x: tg.sqrt(tg.sum(x * x)))(xs)           # f32[n, d] -> f32[n]
        losses = tg.vmap(loss, in_axes=(0, None, None))(models, x, y)   # n models: parameters have an axis in front

    fn:       a function of one slice of each argument. Arguments are tensors, arrays, numbers, or trees of them:
              lists, tuples, dicts and models.
    in_axes:  the axis along which each argument is sliced: an integer for all positional arguments, or a tuple with an
              entry for each, in the order of the signature. An entry is an integer, None for an argument that all calls
              share, or a list, tuple or dict of these for a tree. Keyword-only arguments are sliced along axis 0. If
              `in_axes` is an integer, all arguments passed by keyword are sliced along axis 0.
    out_axes: the axis along which results are stacked: an integer, or a list, tuple or dict like the result. None for a
              result that is the same for all slices, which gets no such axis.
    Returns:  a function of the whole arguments, whose result has the stacked results of `fn`. They are NumPy arrays,
              but tensors if an argument is a tensor or `fn` uses one.
    Raises:   the function, when called: ShapeError if axes are out of range or have different sizes, TraceError if
              `in_axes` or `out_axes` do not fit the arguments or the result.

    Random ops draw other numbers for each slice. A `tg.capture` in `fn` returns the values of all slices, along a new
    axis 0; a `tg.patch` in `fn` has one value for all. As jax.vmap and torch.func.vmap.

    >>> tg.vmap(lambda row: tg.sum(row * row))(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    array([ 5., 25.], dtype=float32)
    """

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if isinstance(in_axes, (tuple, list)):
            args, kwargs = _in_order(fn, args, kwargs)
        if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
            raise TraceError.here(
                f"vmap: in_axes={in_axes!r} has {len(in_axes)} entries for {len(args)} arguments; give one for each"
            )
        axes = prefix(args, tuple(in_axes) if isinstance(in_axes, list) else in_axes, "vmap: in_axes")
        axes += [0] * len(tree_leaves(kwargs))
        leaves = tree_leaves((args, kwargs))
        chosen = [(_argument(x, axis), axis) for x, axis in zip(leaves, axes, strict=True) if axis is not None]
        n = _count(chosen)
        out: Any = None

        def of_one(*ones: Tensor) -> list[Tensor]:
            nonlocal out
            it = iter(ones)
            one = rebuilt((args, kwargs), [x if axis is None else next(it) for x, axis in zip(leaves, axes)])
            out = tree_map(as_tensor, fn(*one[0], **one[1]))
            return tree_leaves(out)

        found = over(n, of_one, [moved(x, axis, 0) for x, axis in chosen])
        where = prefix(out, out_axes, "vmap: out_axes")
        return rebuilt(out, [_placed(many, y, axis, n) for (many, y), axis in zip(found, where, strict=True)])

    return mapped


def over(n: int, fn: Callable[..., Sequence[Tensor]], xs: Sequence[Tensor]) -> list[tuple[Tensor | None, Tensor]]:
    """Apply `fn` to `n` elements of each of `xs`, along axis 0.

    Returns for each result a pair: its values for all elements, or None if they are the same, and the node for one
    element. Captures of `fn` hold the values of all elements.
    """
    running = ambient.require("vmap")
    with ExitStack() as stack:
        lane, *ones = [stack.enter_context(placeholder(t)) for t in _types(xs)]
        before = set(running.captures)
        running.lanes.append(lane)
        try:
            ys = list(fn(*ones))
        finally:
            running.lanes.pop()
        captured = [name for name in running.captures if name not in before]
        ys += [running.captures[name] for name in captured]
        with ambient.rewriting():
            places = cast(iota((n,), 0), u32)
        many = batches(ys, {lane: places, **dict(zip(ones, xs, strict=True))}, n)
        for name in captured:
            running.captures[name] = t = repeated(many.pop(), ys.pop(), n)
            site = running.sites["capture", name]
            running.sites["capture", name] = site._replace(type=t.type)
    return list(zip(many, ys, strict=True))


def _in_order(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by position where possible: `compile` passes inputs by name."""
    try:
        given = inspect.signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a wrong call is the function's own error, and some builtins have no signature
        return args, kwargs
    return given.args, given.kwargs


def _types(xs: Sequence[Tensor]) -> list[TensorType]:
    """Return the type of the element's number, and the type of one element of each x."""
    return [TensorType(u32, ()), *[TensorType(x.dtype, x.shape[1:]) for x in xs]]


def _argument(x: Any, axis: int) -> Tensor:
    t = as_tensor(x)
    if not -t.ndim <= axis < t.ndim:
        raise ShapeError.here(f"vmap: {t.type} has no axis {axis} to map over; choose another axis in in_axes, or None")
    return t


_argument.__name__ = "vmap"


def _count(chosen: Sequence[tuple[Tensor, int]]) -> int:
    """Return the number of elements along the mapped axes.

    Raises TraceError if no axis is mapped, ShapeError if the axes have different sizes.
    """
    sizes = [x.shape[axis] for x, axis in chosen]
    if not sizes:
        raise TraceError.here("vmap: in_axes must give at least one argument an axis")
    if any(n != sizes[0] for n in sizes):
        shown = ", ".join(f"axis {axis} of {x.type}" for x, axis in chosen)
        raise ShapeError.here(
            f"vmap: the mapped axes have different sizes: {shown}; write None in in_axes for arguments that all share"
        )
    return sizes[0]


def _placed(many: Tensor | None, y: Tensor, axis: int | None, n: int) -> Tensor:
    """Return a result with the new axis at `axis`, or without that axis if `axis` is None."""
    if axis is not None and not -y.ndim - 1 <= axis <= y.ndim:
        raise ShapeError.here(
            f"vmap: out_axes={axis} is out of range for {y.type} with one more axis; leave it out for axis 0"
        )
    if axis is not None:
        return moved(repeated(many, y, n), 0, axis)
    if many is not None:
        raise TraceError.here(
            f"vmap: out_axes is None, but the result {y.type} depends on the mapped axis; write an axis"
        )
    return y
