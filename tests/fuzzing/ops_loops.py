"""Recurrent steps: a scan whose body is a random expression, with weights that all iterations share.

The compiler moves work out of loops: products of elements, transposed weights, values that no iteration changes, and
sums of products. So bodies draw all of these, nested scans, and derivatives of the whole.

A body has two carries: `h`, a batch of vectors, and `s`, a matrix to which each iteration adds. An expression is a
name, or a list of an operation and its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fuzzing.drawing import Pool, UnfitError
from fuzzing.table import Drawn, Op, register

Expression = Any
VECTORS = ("mm", "mm", "mm", "add", "mul", "tanh", "sin", "softmax", "sum", "rows", "less", "turn", "cumsum", "inner")
MATRICES = ("T", "T", "mm", "scale", "softmax", "outer", "outer", "largest")
HOW = ("plain", "plain", "grad", "grad", "twice", "jvp", "vmap", "checkpoint")


class Library(NamedTuple):
    """What a body needs of a library, beside operators."""

    np: Any  # sin, tanh, cumsum and others, which all three libraries call alike
    total: Callable[[Any, int], Any]  # a sum along an axis, which stays
    most: Callable[[Any, int], Any]  # the largest along an axis, which stays
    softmax: Callable[[Any], Any]
    stack: Callable[[Any], Any]
    joined: Callable[[Any], Any]
    scan: Callable[..., Any]
    grad: Callable[..., Any]
    jvp: Callable[..., Any]
    vmap: Callable[..., Any]
    checkpoint: Callable[..., Any]


def computed(lib: Library, e: Expression, env: dict[str, Any]) -> Any:
    """The value of an expression."""
    if isinstance(e, str):
        return env[e]
    kind, *operands = e
    v = [computed(lib, x, env) for x in operands]
    if kind == "inner":
        step = lambda g, x: (lib.np.tanh(g @ env["w"] + x), g * x)
        return lib.scan(step, v[0], lib.stack([v[1], env["h"]]), False)[1][0] + v[0]
    return {
        "mm": lambda a, b: a @ b,
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "tanh": lambda a: lib.np.tanh(a),
        "sin": lambda a: lib.np.sin(a),
        "softmax": lambda a: lib.softmax(a),
        "sum": lambda a: a * 0.5 + lib.total(a, 1),
        "rows": lambda a: a - lib.total(a, 0),
        "less": lambda a, b: lib.np.where(a < b, a * 0.5, b),
        "turn": lambda a: lib.joined([a[:, 1:], a[:, :1]]),
        "cumsum": lambda a: lib.np.cumsum(a, 1),
        "T": lambda a: lib.np.swapaxes(a, 0, 1),
        "scale": lambda a: a * 0.5,
        "outer": lambda a, b: lib.np.swapaxes(a, 0, 1) @ b,
        "largest": lambda a: a - lib.most(a, 1),
    }[kind](*v)


def vector(pool: Pool, depth: int, inner: bool = True) -> Expression:
    """A random expression for a batch of vectors."""
    if depth == 0 or pool.chance(6):
        return pool.one(("h", "x", "x", "h", "b"))
    kind = pool.one(VECTORS)
    if kind == "inner" and not inner:
        return "h"
    if kind == "mm":
        return [kind, vector(pool, depth - 1, inner), matrix(pool, depth - 1)]
    count = 2 if kind in ("add", "mul", "less", "inner") else 1
    return [kind, *(vector(pool, depth - 1, inner and kind != "inner") for _ in range(count))]


def matrix(pool: Pool, depth: int) -> Expression:
    """A random expression for a matrix."""
    if depth <= 0 or pool.chance(3):
        return pool.one(("w", "u"))
    kind = pool.one(MATRICES)
    if kind == "outer":
        return [kind, vector(pool, depth - 1, False), vector(pool, depth - 1, False)]
    return [kind, *(matrix(pool, depth - 1) for _ in range(2 if kind == "mm" else 1))]


def _draw(pool: Pool) -> Drawn:
    if pool.flavour == "special":
        raise UnfitError
    t, b, n = pool.one((1, 2, 3, 5)), pool.one((1, 2, 3)), pool.one((1, 2, 3, 5, 7))
    args = [pool.shaped(s) for s in ((n, n), (n, n), (b, n), (b, n), (t, b, n))]
    h = vector(pool, pool.between(1, 3))
    attrs = {
        "h": h if pool.chance(4) else [pool.one(("tanh", "sin")), h],
        "s": pool.one(("w", matrix(pool, 2), ["outer", vector(pool, 1), vector(pool, 2)])),
        "y": vector(pool, pool.between(0, 3)),
        "result": pool.one(("rows", "last", "sum")),
        "reverse": bool(pool.below(2)),
        "how": pool.one(HOW),
        "wrt": pool.below(5),
    }
    return tuple(args), attrs


def _loop(lib: Library, *args: Any, result: str, reverse: bool, how: str, wrt: int, **new: Expression) -> Any:
    """`new`: the expressions of the carries `h` and `s`, and of the result `y` of an iteration."""

    def looped(w: Any, u: Any, b: Any, h0: Any, x: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            env = {"w": w, "u": u, "b": b, "h": carry[0], "x": x}
            h, s, y = (computed(lib, new[name], env) for name in "hsy")
            return (h, carry[1] + s), y

        body = lib.checkpoint(step) if how == "checkpoint" else step
        found = lib.scan(body, (h0, w), x, reverse)
        return {"rows": found[1], "last": found[0][0], "sum": found[0][1]}[result]

    def at(value: Any) -> Any:
        return looped(*args[:wrt], value, *args[wrt + 1 :])

    if how == "vmap":
        return lib.vmap(at)(lib.stack([args[wrt], args[wrt] * 0.5]))
    if how == "jvp":
        return lib.jvp(at, (args[wrt],), (args[wrt],))[1]
    if how not in ("grad", "twice"):
        return at(args[wrt])
    slope = lib.grad(lambda a: lib.np.sum(lib.np.sin(at(a))))
    return lib.grad(lambda a: lib.np.sum(lib.np.sin(slope(a))))(args[wrt]) if how == "twice" else slope(args[wrt])


def ours(tg: Any) -> Library:
    """tracegrad, or what writes its calls down."""
    return Library(
        np=tg,
        total=lambda a, axis: tg.sum(a, axis, True),
        most=lambda a, axis: tg.max(a, axis, True),
        softmax=lambda a: tg.softmax(a, 1),
        stack=lambda xs: tg.stack(xs, 0),
        joined=lambda xs: tg.concat(xs, 1),
        scan=lambda step, init, xs, reverse: tg.scan(step, init, xs, reverse=reverse),
        grad=tg.grad,
        jvp=tg.jvp,
        vmap=tg.vmap,
        checkpoint=tg.checkpoint,
    )


def _torch_scan(torch: Any, step: Any, carry: Any, xs: Any, reverse: bool) -> Any:
    ys = []
    for k in reversed(range(len(xs))) if reverse else range(len(xs)):
        carry, y = step(carry, xs[k])
        ys.append(y)
    return carry, torch.stack(ys[::-1] if reverse else ys)


def pytorch(torch: Any) -> Library:
    """PyTorch, whose loop is Python's."""
    return Library(
        np=torch,
        total=lambda a, axis: torch.sum(a, axis, keepdim=True),
        most=lambda a, axis: torch.amax(a, axis, keepdim=True),
        softmax=lambda a: torch.softmax(a, 1),
        stack=lambda xs: torch.stack(xs, 0),
        joined=lambda xs: torch.cat(xs, 1),
        scan=lambda step, init, xs, reverse: _torch_scan(torch, step, init, xs, reverse),
        grad=torch.func.grad,
        jvp=torch.func.jvp,
        vmap=torch.vmap,
        checkpoint=lambda step: step,
    )


def jax(module: Any) -> Library:
    """JAX."""
    np = module.numpy
    return Library(
        np=np,
        total=lambda a, axis: np.sum(a, axis, keepdims=True),
        most=lambda a, axis: np.max(a, axis, keepdims=True),
        softmax=lambda a: module.nn.softmax(a, 1),
        stack=lambda xs: np.stack(xs, 0),
        joined=lambda xs: np.concatenate(xs, 1),
        scan=lambda step, init, xs, reverse: module.lax.scan(step, init, xs, reverse=reverse),
        grad=module.grad,
        jvp=module.jvp,
        vmap=module.vmap,
        checkpoint=module.checkpoint,
    )


register(
    Op("loop", _draw, lambda tg, *xs, **how: _loop(ours(tg), *xs, **how),
       lambda torch, *xs, **how: _loop(pytorch(torch), *xs, **how),
       lambda module, *xs, **how: _loop(jax(module), *xs, **how), weight=10),
)  # fmt: skip
