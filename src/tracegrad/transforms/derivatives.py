"""Differentiate functions: grad, value_and_grad, vjp, jvp, jacobian, hessian.

Each transform calls the function on its own variables (row "variable"), which stand for the arguments, and walks the
graph between variables and result. Tensors that the function closes over are constants.
"""

# Trees can hold anything, and lambdas are mapped over them.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from tracegrad.dtypes import f32
from tracegrad.errors import DTypeError, ShapeError, TraceError, call_site, located
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.ir.states import StateTensor
from tracegrad.methods import op
from tracegrad.prims.elementwise import VARIABLE
from tracegrad.prims.leaves import as_tensor, const, iota, placeholder
from tracegrad.prims.views import permute, reshape
from tracegrad.refusals import article, valid
from tracegrad.transforms.trees import is_pair, tree_leaves, tree_map
from tracegrad.transforms.walks import batches, cotangents, repeated, tangents

Function = Callable[..., Any]
ArgNums = int | Sequence[int]


def grad(fn: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of `fn`, whose result is a scalar.

        g = tg.grad(lambda w: tg.sum(w * w))(w)          # 2 w, in the shape of w

    fn:       a function that returns f32 of rank 0; with `has_aux`, a pair of that result and any tree, aux.
    argnums:  position of the argument to differentiate with respect to, counted from 0, or a tuple of positions. Such
              an argument is an f32 tensor, an array, a float, or a tree of these: a list, tuple, dict or model. A model
              must have values: pass the model that a loss or forward receives, or one that `tg.instantiate` returns.
    Returns:  a function of the arguments of `fn`. Its result is a tree like the argument, or for several `argnums` a
              tuple of trees; (gradient, aux) with `has_aux`. The gradient of a leaf that is not f32 is None. Gradients
              are NumPy arrays, but tensors if an argument is a tensor or `fn` uses one.
    Raises:   the function, when called: ShapeError if the result of `fn` is no scalar, DTypeError if an argument has no
              f32 leaf, TraceError if `argnums` are out of range.

    As jax.grad. `tg.value_and_grad` also returns the result.

    >>> tg.grad(lambda x: tg.sum(x**3))(np.array([1.0, 2.0], np.float32))
    array([ 3., 12.], dtype=float32)
    """
    both = value_and_grad(fn, argnums, has_aux)

    @functools.wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(fn: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the value and the gradient of `fn`, as `grad` does, in one pass.

        loss, g = tg.value_and_grad(fn)(w)
        (loss, aux), g = tg.value_and_grad(fn, has_aux=True)(w)

    fn, argnums, has_aux: as for `grad`.
    Returns: a function of the arguments of `fn`, which returns (value, gradient), or with `has_aux`
             ((value, aux), gradient). The gradient is that of `grad`.
    Raises:  the function, when called: ShapeError if the result of `fn` is no scalar, DTypeError if an argument has no
             f32 leaf, TraceError if `argnums` are out of range.

    As jax.value_and_grad.

    >>> tg.value_and_grad(lambda x: tg.sum(x * x))(np.array([1.0, 2.0], np.float32))
    (array(5., dtype=float32), array([2., 4.], dtype=float32))
    """

    @functools.wraps(fn)
    def both(*args: Any, **kwargs: Any) -> Any:
        f, chosen = _of_chosen(fn, args, kwargs, argnums, "grad")
        value, pull, *aux = _vjp("grad", f, chosen, has_aux)
        if not isinstance(value, Tensor) or value.type != (f32, ()):
            shown = value.type if isinstance(value, Tensor) else article(type(value).__name__)
            hint = "; (loss, aux) needs has_aux=True" if isinstance(value, tuple) and not has_aux else ""
            raise ShapeError.here(
                f"grad: {_name(fn)} must return a scalar, f32[], got {shown}; "
                f"reduce it with tg.sum or tg.mean, or use tg.jacobian{hint}"
            )
        found = pull(const(1.0))
        return (value, *aux) if has_aux else value, found[0] if isinstance(argnums, int) else found

    return both


def vjp(fn: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return `fn(*primals)`, and a function that computes vector-Jacobian products, the core of a backward pass.

        y, pull = tg.vjp(fn, x)
        (g,) = pull(ct)                                  # gradient of sum(ct * fn(x)): ct times the Jacobian of fn

    primals: the arguments of `fn`: f32 tensors, arrays, floats, or trees of them. Leaves of other dtypes are constants.
    Returns: (result, pull); with `has_aux`, where `fn` returns (result, aux), (result, pull, aux). `pull` takes a tree
             like the result, None standing for zeros, and returns a tuple with a gradient for each argument, None for
             leaves that are not f32. You can call `pull` any number of times. Results and gradients are
             NumPy arrays, but tensors if an argument is a tensor or `fn` uses one.
    Raises:  DTypeError if an argument has no f32 leaf; `pull` raises ShapeError if shapes differ from the result's, and
             TraceError if the tree differs. A list is a tree: pass an array.

    As jax.vjp.

    >>> value, pull = tg.vjp(lambda x: x * x, 3.0)
    >>> pull(1.0)
    (array(6., dtype=float32),)
    """
    return _vjp("vjp", fn, primals, has_aux)


def _vjp(who: str, fn: Function, primals: Sequence[Any], has_aux: bool) -> tuple[Any, ...]:
    """Implement `vjp`. `who` is the public function that the user called."""
    trees, wrt = _variables(primals, who)
    out, aux = _called(fn, trees, has_aux)

    def pull(ct: Any) -> tuple[Any, ...]:
        pairs = _pairs("vjp", "cotangent", out, ct)
        found = cotangents([y for y, _ in pairs], [t for _, t in pairs], wrt)
        at = {x.serial: g for x, g in zip(wrt, found, strict=True)}
        return tuple([tree_map(lambda x: at.get(x.serial), tree) for tree in trees])

    return (tree_map(as_tensor, out), pull, *aux)


def jvp(fn: Function, primals: Sequence[Any], directions: Sequence[Any], has_aux: bool = False) -> tuple[Any, ...]:
    """Return `fn(*primals)`, and its derivative along `directions`: a Jacobian-vector product, by forward mode.

        y, t = tg.jvp(fn, (x,), (v,))                    # t = d fn(x + h v) / d h at h = 0: the Jacobian of fn times v

    primals:    a tuple or list of the arguments of `fn`: f32 tensors, arrays, floats, or trees of them.
    directions: a tuple or list of trees like `primals`: a direction for each f32 leaf, in its shape; None stands for 0.
    Returns:    (result, derivative); with `has_aux`, where `fn` returns (result, aux), (result, derivative, aux). The
                derivative of a leaf that is not f32 is None. Both are NumPy arrays, or tensors as for `grad`.
    Raises:     TraceError unless both are tuples or lists of the same structure; ShapeError if shapes differ;
                DTypeError if an argument has no f32 leaf.

    Result and derivative are computed together; no value is kept for a backward pass. As jax.jvp.

    >>> tg.jvp(lambda x: x * x, (3.0,), (1.0,))
    (array(9., dtype=float32), array(6., dtype=float32))
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(directions, (tuple, list)):
        raise TraceError.here(
            "jvp: primals and directions must be tuples with one entry for each argument: jvp(f, (x,), (t,))"
        )
    trees, _ = _variables(primals, "jvp")
    given = dict(_pairs("jvp", "tangent", trees, tuple(directions)))
    out, aux = _called(fn, trees, has_aux)
    out = tree_map(as_tensor, out)
    ys = [y for y in tree_leaves(out) if y.dtype.is_float]
    at = {y.serial: t for y, t in zip(ys, tangents(ys, given), strict=True)}
    return (out, tree_map(lambda y: at.get(y.serial), out), *aux)


def jacobian(fn: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the Jacobian of `fn`: the derivatives of results with respect to arguments.

    J[i..., j...] = d out[i...] / d x[j...]

    fn:      a function that returns f32 of any shape, or a tree of such; with `has_aux`, a pair (result, aux).
    argnums: position, or tuple of positions, of the arguments to differentiate with respect to, as for `grad`.
    Returns: a function of the arguments of `fn`. For one result and one argument it returns J, whose shape is the
             result's followed by the argument's. For trees, it returns a tree like the result. Each of its leaves
             is a tree like the argument; for several `argnums`, a tuple of such trees. With `has_aux`, it returns
             (that, aux). All are NumPy arrays, or tensors as for `grad`.
    Raises:  the function, when called: DTypeError if an argument has no f32 leaf or a result is not f32, TraceError if
             `argnums` are out of range.

    All rows or columns are computed at once, as by `vmap`: by forward mode if the arguments have no more elements than
    the results, else by reverse mode. As jax.jacfwd and jax.jacrev.

    >>> tg.jacobian(lambda x: x * x)(np.array([1.0, 2.0], np.float32))
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    @functools.wraps(fn)
    def derivatives(*args: Any, **kwargs: Any) -> Any:
        f, chosen = _of_chosen(fn, args, kwargs, argnums, "jacobian")
        trees, wrt = _variables(chosen, "jacobian")
        out, aux = _called(f, trees, has_aux)
        out = tree_map(as_tensor, out)
        ys = tree_leaves(out)
        if not all(y.dtype.is_float for y in ys):
            raise DTypeError.here(f"jacobian: {_name(fn)} must return f32, got {', '.join(str(y.type) for y in ys)}")
        forwards = sum(x.size for x in wrt) <= sum(y.size for y in ys)
        table = _columns(ys, wrt) if forwards else _rows(ys, wrt)
        at = {(y.serial, x.serial): d for y, ds in zip(ys, table) for x, d in zip(wrt, ds)}

        def row(y: Tensor) -> Any:
            found = tuple([tree_map(lambda x: at.get((y.serial, x.serial)), tree) for tree in trees])
            return found[0] if isinstance(argnums, int) else found

        result = tree_map(row, out)
        return (result, *aux) if has_aux else result

    return derivatives


def hessian(fn: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the second derivatives of `fn`: `jacobian(jacobian(fn))`.

    H[k..., i..., j...] = d^2 out[k...] / d x[i...] d x[j...]

    fn, argnums, has_aux: as for `jacobian`, with the same errors.
    Returns: a function of the arguments of `fn`, which returns H for one result and one argument x. For a scalar
             result and x of shape (n,), H has shape (n, n). For trees, it returns the tree that `jacobian` of
             `jacobian(fn)` returns.

    For a product H v, compute `tg.jvp(tg.grad(fn), (x,), (v,))`, which makes no matrix. As jax.hessian.

    >>> tg.hessian(lambda x: tg.sum(x**3))(np.array([1.0, 2.0], np.float32))
    array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    return jacobian(jacobian(fn, argnums, has_aux), argnums, has_aux)


# parts of the above
def _of_chosen(
    fn: Function, args: Sequence[Any], kwargs: Any, argnums: ArgNums, who: str
) -> tuple[Function, list[Any]]:
    """Return `fn` as a function of the chosen arguments, and these arguments."""
    numbers = cast("tuple[Any, ...]", tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,))
    if any(not isinstance(k, int) for k in numbers):
        raise TraceError.here(
            f"{who}: argnums={argnums!r}; write the index of an argument, counted from 0, or a tuple of indices"
        )
    bad = [k for k in numbers if not -len(args) <= k < len(args)]
    if bad:
        raise TraceError.here(
            f"{who}: argnums={argnums!r} is out of range; {_name(fn)} got {len(args)} by position, and "
            f"{valid(len(args), len(args))}{'' if args else '; pass what argnums counts by position, as in f(x)'}"
        )
    at = [k % len(args) for k in numbers]
    if len(set(at)) != len(at):
        raise TraceError.here(f"{who}: argnums={argnums!r} names an argument twice")

    def of_chosen(*chosen: Any) -> Any:
        given = list(args)
        for k, value in zip(at, chosen, strict=True):
            given[k] = value
        return fn(*given, **kwargs)

    return functools.wraps(fn)(of_chosen), [args[k] for k in at]


def _variables(primals: Sequence[Any], who: str) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Return the arguments with a variable for each f32 leaf, and the variables."""
    wrt: list[Tensor] = []

    @op
    def argument(x: Any) -> Any:
        if isinstance(x, StateTensor):  # a constant, which `fn` can still assign
            return x
        t = as_tensor(x)
        if not t.dtype.is_float:
            return t
        wrt.append(bind(VARIABLE, t))
        return wrt[-1]

    trees: list[Any] = []
    for primal in primals:
        before = len(wrt)
        # a state passed alone becomes its current value; the states of a model stay states
        trees.append(tree_map(argument, primal.now if isinstance(primal, StateTensor) else primal))
        if len(wrt) == before:
            shown = ", ".join(str(t.type) for t in tree_leaves(trees[-1])) or "no tensor"
            raise DTypeError.here(
                f"{who}: the argument to differentiate is {shown}; only f32 has derivatives. Cast it with "
                "tg.cast(x, tg.f32), or let the function close over it"
            )
    return tuple(trees), wrt


def _called(fn: Function, trees: Sequence[Any], has_aux: bool) -> tuple[Any, list[Any]]:
    """Call `fn`. Return its result, and a list of its aux, which is empty without `has_aux`."""
    out = fn(*trees)
    if not has_aux:
        return out, []
    if not is_pair(out):
        raise TraceError.here(f"has_aux: {_name(fn)} must return (result, aux), got {article(type(out).__name__)}")
    return out[0], [out[1]]


def _pairs(who: str, what: str, tree: Any, given: Any) -> list[tuple[Tensor, Tensor]]:
    """Pair each f32 leaf of `tree` with the value given for it; leave out leaves without a value."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def pair(y: Any, given: Any) -> None:
        y = as_tensor(y)
        if given is None or not y.dtype.is_float:
            return
        t = as_tensor(given, f32)
        if t.type != y.type:
            raise ShapeError(
                located(f"{who}: the {what} of {y.type} must have the same type, got {t.type}", call_site())
            )
        pairs.append((y, t))

    tree_map(pair, tree, given)
    return pairs


def _basis(x: Tensor) -> Tensor:
    """Return one array of the type of `x` for each element of `x`: 1 at the element, else 0."""
    at = (x.size, x.size)
    eye = (iota(at, 0) == iota(at, 1)).astype(f32)
    return reshape(eye, (x.size, *x.shape))


def _columns(ys: Sequence[Tensor], wrt: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return d y / d x by one forward walk for each x, with tangents for all elements of x at once."""
    table: list[list[Tensor]] = [[] for _ in ys]
    for x in wrt:
        with placeholder(x.type) as t, ambient.rewriting():
            moved = tangents(ys, {x: t})
            for row, one, many in zip(table, moved, batches(moved, {t: _basis(x)}, x.size)):
                d = repeated(many, one, x.size)
                row.append(reshape(permute(d, (*range(1, d.ndim), 0)), (*one.shape, *x.shape)))
    return table


def _rows(ys: Sequence[Tensor], wrt: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return d y / d x by one backward walk for each y, with cotangents for all elements of y at once."""
    table: list[list[Tensor]] = []
    for y in ys:
        with placeholder(y.type) as ct, ambient.rewriting():
            found = cotangents([y], [ct], wrt)
            many = batches(found, {ct: _basis(y)}, y.size)
            table.append([
                reshape(repeated(m, g, y.size), (*y.shape, *x.shape)) for m, g, x in zip(many, found, wrt)
            ])  # fmt: skip
    return table


def _name(fn: Function) -> str:
    return getattr(fn, "__name__", "the function")
