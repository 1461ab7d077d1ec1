"""Functions with their own backward pass: custom_vjp and remat.

Each makes a composite of the value that the function computed, with another VJP. An attribute of the composite is a
function on tensors, which the batching rule applies to many elements.
"""

# Trees can hold anything, and lambdas are mapped over them.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast

from tracegrad.errors import ShapeError, TraceError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor, bind, graft, toposort
from tracegrad.prims.leaves import LEAF, as_tensor, const
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import spread, zeros_like
from tracegrad.prims.views import BARRIER, reshape
from tracegrad.transforms.trees import arrays_in, is_pair, rebuilt, tree_leaves, tree_map, with_arrays
from tracegrad.transforms.vmap import over
from tracegrad.transforms.walks import cotangents, repeated
from tracegrad.wrong_calls import check_function

Pull = Callable[..., Sequence[Tensor | None]]  # (ct, *inputs) -> one cotangent per input


def _over_some(n: int, fn: Callable[..., Sequence[Tensor]], xs: Sequence[Tensor]) -> list[Tensor]:
    """Apply `fn` to `n` elements. A tensor of `xs` whose axis 0 has size 1 is the same for all elements."""
    many = [x for x in xs if x.shape[0] == n]

    def of_one(*ones: Tensor) -> Sequence[Tensor]:
        it = iter(ones)
        return fn(*[next(it) if x.shape[0] == n else reshape(x, x.shape[1:]) for x in xs])

    return [repeated(values, y, n) for values, y in over(n, of_one, many)]


# checkpoint
def _checkpoint_vjp(
    ct: Tensor, y: Tensor, value: Tensor, *xs: Tensor, rebuild: Callable[..., Tensor]
) -> tuple[Tensor | None, ...]:
    """Recompute the value from the same inputs, once `ct` exists, and differentiate the copy."""
    again = [bind(BARRIER, x, ct, value) for x in xs]
    wrt = [x for x in again if x.dtype.is_float]
    found = iter(cotangents([rebuild(*again)], [ct], wrt))
    return (None, *[next(found) if x.dtype.is_float else None for x in xs])


CHECKPOINT = composite(
    "checkpoint",
    type=lambda value, *xs, rebuild: value,
    expand=lambda value, *xs, rebuild: value,
    vjp=_checkpoint_vjp,
    jvp=lambda ts, y, value, *xs, rebuild: ts[0],
    batch=lambda n, y, value, *xs, rebuild: bind(
        CHECKPOINT,
        spread(n, value),
        *xs,
        rebuild=lambda *xs: _over_some(n, lambda *ones: [rebuild(*ones)], xs)[0],
    ),
)


def remat(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` in a form that needs less memory: the backward pass recomputes inner values instead of keeping them.

        for block in m.blocks:
            x = tg.remat(block)(x)                       # keeps x for the backward pass, and no value inside the block

    fn:       a function or a layer. Gradients also flow to tensors that `fn` closes over, such as parameters.
    Returns:  a function with the result and the gradients of `fn`, the same to the last bit. Random ops draw the same
              numbers again.
    Cost:     the backward pass runs `fn` once more; k times more if k f32 results of `fn` need gradients.
    Raises:   TraceError unless `fn` is a function or another object that you can call, such as a layer.

    `tg.remat` and `tg.checkpoint` are the same function. As jax.remat and torch.utils.checkpoint (Chen et al. 2016).

    >>> tg.grad(tg.remat(lambda x: tg.sum(tg.sin(x))))(np.zeros(2, np.float32))
    array([1., 1.], dtype=float32)
    """

    @functools.wraps(fn)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        ambient.require("remat")
        begin = const(0.0).serial
        out = tree_map(as_tensor, fn(*args, **kwargs))
        return tree_map(lambda y: _checkpointed(y, begin), out)

    return recomputed


def _checkpointed(y: Tensor, begin: int) -> Tensor:
    """Return `y`, marked so that the backward pass recomputes the nodes made since `begin`."""
    inside = toposort([y], begin)
    # a leaf counts as an input of `fn`, even if `fn` was the first to use it
    older = {x.serial: x for t in inside for x in t.inputs if x.serial < begin or x.prim is LEAF}
    if not y.dtype.is_float or not older or y.serial < begin:
        return y
    xs = list(older.values())

    def rebuild(*others: Tensor) -> Tensor:
        return graft([y], {x.serial: other for x, other in zip(xs, others, strict=True)})[0]

    return bind(CHECKPOINT, y, *xs, rebuild=rebuild)


# custom_vjp
def _custom_vjp(ct: Tensor, y: Tensor, value: Tensor, *xs: Tensor, pull: Pull) -> tuple[Tensor | None, ...]:
    return (None, *pull(ct, *xs))


def _custom_batch(n: int, y: Tensor, value: Tensor, *xs: Tensor, pull: Pull) -> Tensor:
    def pull_many(ct: Tensor, *xs: Tensor) -> list[Tensor | None]:
        given: list[bool] = []

        def of_one(ct: Tensor, *ones: Tensor) -> list[Tensor]:
            found = pull(ct, *ones)
            given[:] = [g is not None for g in found]
            return [g for g in found if g is not None]

        found = iter(_over_some(n, of_one, [ct, *xs]))
        cts = [next(found) if has else None for has in given]
        shared = [g is not None and x.shape[0] != g.shape[0] for g, x in zip(cts, xs, strict=True)]
        return [g.sum(0, keepdims=True) if g is not None and s else g for g, s in zip(cts, shared, strict=True)]

    return bind(CUSTOM_VJP, spread(n, value), *xs, pull=pull_many)


CUSTOM_VJP = composite(
    "custom_vjp",
    type=lambda value, *xs, pull: value,
    expand=lambda value, *xs, pull: value,
    vjp=_custom_vjp,
    batch=_custom_batch,
)


_INSIDE: ContextVar[tuple[CustomVJP, ...]] = ContextVar("custom_vjp", default=())  # functions whose `fwd` is running


class CustomVJP:
    """A function with its own derivative; `custom_vjp` makes one."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        """Wrap `fn`; call `defvjp` before calling the object."""
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the functions that compute the result and its gradient.

        fwd: takes the arguments of the function; returns (value, kept).
        bwd: takes `kept` and the gradient of the loss with respect to the value; returns a tuple with a gradient, or
             None for zeros, for each argument.

        As the defvjp of jax.custom_vjp.
        """
        for name, rule in (("fwd", fwd), ("bwd", bwd)):
            check_function("defvjp", rule, name, "fwd, bwd")
        self.rules = fwd, bwd

    def __call__(self, *args: Any) -> Any:
        """Return the result; `bwd` computes its derivative."""
        ambient.require("custom_vjp")
        name = getattr(self.fn, "__name__", "the function")
        if self.rules is None:
            raise TraceError.here(f"custom_vjp: {name} has no derivative yet; give it one with {name}.defvjp(fwd, bwd)")
        if self in _INSIDE.get():
            return self.fn(*args)
        fwd, bwd = self.rules
        args = tree_map(as_tensor, args)
        before = _INSIDE.set((*_INSIDE.get(), self))
        try:
            result = fwd(*args)
        finally:
            _INSIDE.reset(before)
        if not is_pair(result):
            raise TraceError.here(f"custom_vjp: fwd of {name} must return (result, residuals)")
        out, residuals = result
        out = tree_map(as_tensor, out)
        xs = tree_leaves(args)
        kept = [as_tensor(r) for r in arrays_in(residuals)]
        ys = tree_leaves(out)

        def pull_of(k: int) -> Pull:
            def pull(ct: Tensor, *inputs: Tensor) -> list[Tensor | None]:
                seeds = [ct if j == k else zeros_like(y) for j, y in enumerate(ys)]
                given = bwd(with_arrays(residuals, inputs[len(xs) :]), rebuilt(out, seeds))
                return [*_checked(name, args, given), *[None] * len(kept)]

            return pull

        wrapped = [bind(CUSTOM_VJP, y, *xs, *kept, pull=pull_of(k)) for k, y in enumerate(ys)]
        return rebuilt(out, [w if y.dtype.is_float else y for w, y in zip(wrapped, ys, strict=True)])


def _checked(name: str, args: tuple[Any, ...], given: Any) -> list[Tensor | None]:
    """Return a cotangent, or None, for each leaf of the arguments, from the result of `bwd`."""
    if not isinstance(given, (tuple, list)) or len(cast("tuple[Any, ...]", given)) != len(args):
        raise TraceError.here(f"custom_vjp: bwd of {name} must return a tuple with one entry for each of its "
                              f"{len(args)} arguments")  # fmt: skip
    found: list[Tensor | None] = []

    def check(x: Tensor, g: Any) -> None:
        g = None if g is None or not x.dtype.is_float else as_tensor(g)
        if g is not None and g.type != x.type:
            raise ShapeError.here(
                f"custom_vjp: bwd of {name} returned {g.type} as the cotangent of {x.type}; the types must be equal"
            )
        found.append(g)

    tree_map(check, args, tuple(cast("tuple[Any, ...]", given)))
    return found


def custom_vjp(fn: Callable[..., Any]) -> CustomVJP:
    """Return `fn` as a function whose gradient you define, by the method `defvjp(fwd, bwd)` of the result.

        @tg.custom_vjp
        def clipped(x):                                  # the identity, whose gradient is clipped to [-1, 1]
            return x
        clipped.defvjp(lambda x: (x, None), lambda kept, ct: (tg.clip(ct, -1.0, 1.0),))

    fn:       a function whose arguments are tensors, or lists, tuples and dicts of tensors, passed by position. Tensors
              that it closes over get no gradient.
    fwd:      takes the arguments of `fn`, and returns (value, kept): the result, and what `bwd` needs. The
              returned function runs `fwd`, not `fn`. If `fwd` calls the returned function, that call runs `fn`.
    bwd:      takes `kept` and `ct`, the gradient of the loss with respect to the value, and returns a tuple with a
              gradient, or None for zeros, for each argument.
    Returns:  a function of the same arguments.
    Raises:   TraceError if `fn` is not callable, if the returned function is called before `defvjp`, or if `fwd` or
              `bwd` returns another structure than described here. ShapeError if a gradient has another shape than its
              argument.

    `tg.jvp` uses `bwd` too, and is right only if `bwd` is linear in `ct`. Second derivatives differentiate `bwd`. As
    jax.custom_vjp, and torch.autograd.Function.

    >>> sign = tg.custom_vjp(lambda x: tg.sign(x))
    >>> sign.defvjp(lambda x: (tg.sign(x), None), lambda kept, ct: (ct,))    # straight through: ct passes unchanged
    >>> tg.grad(lambda x: tg.sum(sign(x)))(np.array([-2.0, 3.0], np.float32))
    array([1., 1.], dtype=float32)
    """
    return CustomVJP(fn)
