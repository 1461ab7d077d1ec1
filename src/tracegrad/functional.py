"""The transforms of `tg.`: inside a trace they make nodes; outside they run at once, on arrays.

To run at once, the transformed function is traced on leaves for its arrays, and the reference evaluates the graph. A
compiled program would have the same graph, so both modes give the same results.
"""

# Trees can hold any value, and lambdas are mapped over them.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from tracegrad import ops, transforms
from tracegrad.arrays import HAVE_NUMPY, cast_lossless, np
from tracegrad.dtypes import DType, TensorType, as_dtype, count, f32, i32, number_kind, show, whole
from tracegrad.errors import (
    CallError,
    DTypeError,
    InputError,
    RangeError,
    ShapeError,
    TraceError,
    call_site,
    located,
    placed,
)
from tracegrad.hypers import leaf_value
from tracegrad.imperative import streams
from tracegrad.imperative.creation import tensor
from tracegrad.imperative.keys import is_array
from tracegrad.imperative.plans import Plan, Source, indices, part
from tracegrad.imperative.tape import recording
from tracegrad.imperative.tensors import GradTensor
from tracegrad.imperative.values import f64, nearest
from tracegrad.ir import ambient
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.methods import Operand
from tracegrad.passes.indexed import indexed
from tracegrad.prims.leaves import LEAF, leaf
from tracegrad.transforms.recurrence import changed_type, looped, new_carry
from tracegrad.transforms.trees import is_pair, rebuilt, tree_leaves, tree_map
from tracegrad.wrong_calls import check_call, check_function, helpful, wrapped

__all__ = [
    "checkpoint", "custom_vjp", "grad", "hessian", "jacobian", "jvp", "remat", "repeat", "scan", "tree_leaves",
    "tree_map", "value_and_grad", "vjp", "vmap",
]  # fmt: skip

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


def at_once(fn: F) -> F:
    """Make `fn`, which builds nodes, also work on values outside a trace: it is traced, and the graph is evaluated.

    Arrays give arrays. Eager tensors, also tensors that `fn` closes over, give eager tensors, through which
    `backward` passes. Random ops continue the stream of eager random ops.
    """

    @functools.wraps(fn)
    @ambient.restored
    def either(*args: Any, **kwargs: Any) -> Any:
        if ambient.active() is not None or ambient.is_rewriting():
            return fn(*args, **kwargs)
        if not HAVE_NUMPY:
            raise TraceError.here("transforms of arrays, outside a loss or forward, need NumPy, which is not installed")
        return _applied(fn, args, kwargs, f64 if any(map(_is_double, tree_leaves((args, kwargs)))) else None)

    return cast("F", either)


def _applied(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], double: DType | None) -> Any:
    """Trace `fn` on leaves of the arguments, compute the results, and return them. double: f64 if lists are float64."""
    given = (args, kwargs)
    tensors = tree_leaves(given)
    values = [_array(x) for x in tensors]
    with ambient.tracing() as running:
        seed, step, running.random_sites = streams.place()
        running.closed, running.double = {}, double
        types = [TensorType(as_dtype(v.dtype), v.shape) for v in values]
        leaves = [leaf("input", f"{k}", t) for k, t in enumerate(types)]
        one_args, one_kwargs = rebuilt(given, leaves)
        out = fn(*one_args, **one_kwargs)
        if running.double and running.rounded:  # a list came before the first tensor that made the call float64
            return _applied(fn, args, kwargs, running.double)
        env: dict[str, Any] = {f"{k}": v for k, v in enumerate(values)}
        streams.move((seed, step, running.random_sites))
        env |= {"seed": np.uint32(seed), "step": np.uint32(step)}
        env |= {name: np.float32(leaf_value(name, running.hypers)) for name in running.hypers}
        roots = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        tensors += [tensor for tensor, _ in running.closed.values()]
        leaves += [t for _, t in running.closed.values()]
        env |= {t.name: _array(tensor) for tensor, t in running.closed.values()}
        eager = any(isinstance(x, GradTensor) for x in tensors)
        try:
            found = iter(_eager(roots, leaves, tensors, env) if eager else _evaluated(roots, leaves, env))
        except RangeError as e:
            raise placed(e, "an argument", call_site()) from None
    return tree_map(lambda t: next(found) if isinstance(t, Tensor) else t, out)


def _evaluated(roots: list[Tensor], leaves: list[Tensor], env: dict[str, Any]) -> list[Any]:
    """Compute `roots` as arrays. env: the values of all leaves."""
    if any(t.dtype == i32 for t in leaves):  # only such arguments can be indices
        for t, box, n, exempt in indexed(toposort(roots), {}):
            indices(env[t.name][part(box)], n, exempt, 0)
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in evaluate(roots, env, np)]


def _eager(roots: list[Tensor], leaves: list[Tensor], tensors: list[Any], env: dict[str, Any]) -> list[Any]:
    """Compute `roots` as eager tensors. tensors: the value of each of `leaves`. env: the values of all leaves."""
    own = {t.serial for t in leaves}
    others = [t for t in toposort(roots) if t.prim is LEAF and t.serial not in own]
    inputs = [*leaves, *others]
    kinds = {x.dtype.name for x in tensors if isinstance(x, GradTensor) and x.dtype in (f32, f64)}
    if len(kinds) > 1:
        raise DTypeError.here(
            f"arguments are {' and '.join(sorted(kinds))}; give them one dtype with tg.tensor(x, dtype=)"
        )
    double = kinds == {"f64"}
    values = [env[t.name] for t in inputs]
    if double:
        exact = [np.asarray(x, np.float64) if t.dtype.is_float else v for t, v, x in zip(leaves, values, tensors)]
        values = [*exact, *(v.astype(np.float64) if v.dtype.kind == "f" else v for v in values[len(leaves) :])]
    wanted = [type(x) is GradTensor and x.requires_grad and recording.get() for x in tensors]
    owners = [f"o{k}" for k in range(len(tensors))]
    sources = [Source(f"x{k}", owner=o if w else "") for k, (o, w) in enumerate(zip(owners, wanted))]
    sources += [Source(f"x{k}") for k in range(len(tensors), len(inputs))]
    run = Plan(inputs, roots, list, double).function([*(s.text for s in sources), *owners], sources)
    return run(*values, *tensors)


def _array(x: Any) -> Any:
    """Convert an argument to an array of a supported dtype. Raises DTypeError if values do not fit."""
    a = np.asarray(x)
    try:
        return cast_lossless(a, nearest(a).name)
    except InputError as e:
        raise DTypeError(located(str(e), call_site())) from None


def _public(transform: F) -> F:
    """Wrap a transform, so that its results work inside and outside of a trace."""

    def made(*args: Any, **kwargs: Any) -> Any:
        who = f"tg.{transform.__name__}"
        check_call(who, transform, args, kwargs)
        check_function(who, args[0] if args else kwargs["fn"], usage="fn)(x")
        return at_once(transform(*args, **kwargs))

    return wrapped(made, transform)


grad, value_and_grad = _public(transforms.grad), _public(transforms.value_and_grad)
jacobian, hessian = _public(transforms.jacobian), _public(transforms.hessian)
vmap, remat = _public(transforms.vmap), _public(transforms.remat)
checkpoint = remat  # its former name


@helpful
@functools.wraps(transforms.jvp)
def jvp(fn: Callable[..., Any], primals: Any, directions: Any, has_aux: bool = False) -> Any:
    check_function("tg.jvp", fn)
    return at_once(lambda p, d: transforms.jvp(fn, p, d, has_aux))(primals, directions)


@helpful
@functools.wraps(transforms.vjp)
def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    check_function("tg.vjp", fn)
    if ambient.active() is not None:
        return transforms.vjp(fn, *primals, has_aux=has_aux)

    def forward(*primals: Any) -> tuple[Any, ...]:
        out, _, *aux = transforms.vjp(fn, *primals, has_aux=has_aux)
        return (out, *aux)

    begin = streams.place()
    out, *aux = at_once(forward)(*primals)
    backward = at_once(lambda ct, primals: transforms.vjp(fn, *primals, has_aux=has_aux)[1](ct))

    def pull(ct: Any) -> Any:
        with streams.at(*begin):  # the random numbers of the forward
            return backward(ct, primals)

    return (out, pull, *aux)


class CustomVJP(transforms.CustomVJP):
    """A function with a derivative of its own, inside and outside of a trace."""

    def __call__(self, *args: Any) -> Any:
        """Return the result; `bwd` computes its derivative."""
        return at_once(super().__call__)(*args)


@helpful
@functools.wraps(transforms.custom_vjp)
def custom_vjp(fn: Callable[..., Any]) -> CustomVJP:
    check_function("tg.custom_vjp", fn)
    return CustomVJP(fn)


@helpful
@functools.wraps(transforms.scan)
def scan(
    fn: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None, *, reverse: bool = False
) -> tuple[Any, Any]:
    check_function("tg.scan", fn)
    return _looped("scan", fn, init, xs, length, reverse)


def _looped(who: str, fn: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool) -> tuple[Any, Any]:
    elements = tree_leaves(xs)
    sizes = set[Any]() if length is None else set[Any]([(max(whole(length) or 0, 0),)])
    if HAVE_NUMPY and not ambient.building():
        sizes |= {np.shape(x)[:1] for x in elements}
    if ambient.building() or len(sizes) != 1 or sizes & {(), (0,)}:  # traced, without iterations, or an error
        result = at_once(lambda c, x: looped(who, fn, c, x, length, reverse))(init, xs)
        return result if ambient.building() else tree_map(ops.asarray, result)
    ((n,),) = sizes
    double = any(map(_is_double, [*tree_leaves(init), *elements]))
    held = functools.partial(_held, double=double)
    carry, ys = tree_map(held, init), list[Any]()  # on values, a scan is a Python loop
    for k in reversed(range(n)) if reverse else range(n):
        result = fn(carry, rebuilt(xs, [held(x[k]) for x in elements]))
        if not is_pair(result):
            got = type(cast("object", result)).__name__
            raise TraceError.here(f"{who}: fn must return a pair (carry, y), got a {got}; y may be None")
        before, (carry, y) = carry, result
        new = new_carry(who, before, carry)
        if (was := _shapes(before)) != (now := _shapes(new)):
            raise ShapeError.here(f"{who}: fn changes the shapes of the carry: it gets {was} and returns {now}")
        for a, b in zip(tree_leaves(before), new):
            if isinstance(a, GradTensor) and isinstance(b, GradTensor) and a.dtype is not b.dtype:
                if f64 in (a.dtype, b.dtype):  # tg.cast knows no f64
                    raise changed_type(who, a, b, f"give init its dtype with tg.tensor(x, dtype={b.dtype.name!r})")
                raise changed_type(who, a, b)
        ys.append(y)
    ordered = ys[::-1] if reverse else ys
    return tree_map(ops.asarray, carry), tree_map(lambda *parts: ops.stack(parts), *ordered)


def _held(x: Any, double: bool) -> Any:
    """Return an array as a tensor: `c += x` would change an array of the caller, and NumPy's integers wrap."""
    if isinstance(x, GradTensor) or not (is_array(x) or isinstance(x, (np.ndarray, np.generic))):
        return x
    return tensor(x, dtype=f64 if double and number_kind(x) == "f" else None)


def _is_double(x: Any) -> bool:
    return isinstance(x, GradTensor) and x.dtype is f64


def _shapes(tree: Any) -> str:
    return ", ".join(show(np.shape(x)) for x in tree_leaves(tree)) or "nothing"


@overload
def repeat(x: Callable[[C], C], n: int, init: C) -> C: ...
@overload
def repeat(x: Operand, repeats: int, axis: int | None = None) -> Tensor: ...
def repeat(*args: Any, **kwargs: Any) -> Any:
    """Repeat each element of a tensor, or apply a function several times.

        tg.repeat(x, repeats, axis=None)                 # each element `repeats` times in a row
        tg.repeat(fn, n, init)                           # fn(fn(... fn(init))), `n` calls

    x:        any dtype.
    repeats:  an integer of at least 0, for all elements.
    axis:     the axis along which to repeat; None repeats in the flattened `x`.
    fn:       takes and returns values of the same shapes and dtypes. A program contains it once, in a loop.
    n:        number of calls, an integer of at least 0.
    init:     the first argument of `fn`: a tensor, array or number, or a tuple, list or dict of these.
    Returns:  dtype of `x`, `repeats` times as long along `axis`; or the value of the last call of `fn`.
    Gradient: to `x`, summed over the copies; to `init` and to tensors that `fn` uses, as in `scan`.
    Raises:   ShapeError for an `axis` out of range, for `repeats` or `n` that is negative or no integer, and if `fn`
              changes a shape; CallError for other arguments.

    As numpy.repeat and torch.repeat_interleave, with one number for all elements; as jax.lax.fori_loop, without the
    index.

    >>> tg.repeat([1.0, 2.0], 2)
    tensor([1., 1., 2., 2.])
    >>> tg.repeat(lambda x: x * 2, 3, 1.0)
    tensor(8.)
    """
    if len(args) > 1 and not callable(args[0]) and callable(args[1]):
        raise CallError.here("tg.repeat: the function comes first, as in tg.repeat(fn, n, init)")
    if not args or not callable(args[0]):
        return ops.repeat(*args, **kwargs)
    check_call("tg.repeat", _iterated, args, kwargs)
    return _iterated(*args, **kwargs)


def _iterated(fn: Callable[[Any], Any], n: int, init: Any) -> Any:
    try:
        n = count(n, "n")
    except ShapeError as e:
        raise ShapeError.here(f"repeat: {e}") from None
    return _looped("repeat", lambda carry, _: (fn(carry), None), init, None, n, False)[0]
