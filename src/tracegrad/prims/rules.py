"""Rules that many primitives share: forward mode (`jvp`), batching (`batch`), and indexing.

jvp:   (ts, y, *inputs, **attrs) -> the tangent of `y`. `ts` has a tangent per input, or None where it is zero.
batch: (n, y, *inputs, **attrs) -> `n` values of `y` along a new axis 0; each input has that axis in front, of size n or
       1. `y` is the node for one value: its type and primitive define the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tracegrad.ir.nodes import Tensor, bind
from tracegrad.prims.leaves import const

Tangents = Sequence[Tensor | None]


# derivatives
def symmetric(ts: Tangents, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor | None:
    """The `jvp` rule of a primitive whose Jacobians are symmetric: apply its VJP to the tangents.

    Jacobians of elementwise primitives are diagonal, so they are symmetric. Those of softmax are symmetric, too.
    `extend.Primitive` describes the arguments of `jvp` rules. As JAX's JVP rules of elementwise primitives.
    """
    assert y.prim.vjp is not None
    parts = [y.prim.vjp(t, y, *xs, **attrs)[k] for k, t in enumerate(ts) if t is not None]
    return total([p for p in parts if p is not None])


def multilinear(ts: Tangents, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor | None:
    """The `jvp` rule of a primitive that is linear in each input: put each tangent in its input's place, and add.

    `extend.Primitive` describes the arguments of `jvp` rules. As JAX's rule for bilinear primitives.
    """
    return total([bind(y.prim, *xs[:k], t, *xs[k + 1 :], **attrs) for k, t in enumerate(ts) if t is not None])


def linear(ts: Tangents, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor:
    """The `jvp` rule of a primitive that is linear in all inputs together: apply the primitive to the tangents.

    `extend.Primitive` describes the arguments of `jvp` rules. As deflinear in JAX.
    """
    return bind(y.prim, *[zeros_like(x) if t is None else t for t, x in zip(ts, xs)], **attrs)


def zeros_like(x: Tensor) -> Tensor:
    """Return zeros of the type of `x`."""
    return const(0.0, x.dtype).broadcast_to(x.shape)


def total(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the sum, or None for an empty list."""
    out: Tensor | None = None
    for p in parts:
        out = p if out is None else out + p
    return out


# batching
def spread(n: int, x: Tensor) -> Tensor:
    """Return `x` with size `n` along axis 0: repeated if axis 0 has size 1."""
    return x.broadcast_to((n, *x.shape[1:]))


def alike(n: int, y: Tensor, /, *xs: Tensor, **attrs: Any) -> Tensor:
    """The `batch` rule of a primitive that accepts extra leading axes: apply it with the same attributes.

    The primitive must treat each index of the extra axes separately: it is elementwise, or works along axis -1. If it
    counts an axis from the front, the result is wrong, without an error. Then use `shifted`, which adapts the
    attributes `axis`, `axes` and `shape`. `extend.Primitive` describes the arguments of `batch` rules. As JAX's
    defvectorized.
    """
    return bind(y.prim, *[spread(n, x) for x in xs], **attrs)


def shifted(n: int, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor:
    """The `batch` rule of a primitive with the attribute `axis`, `axes` or `shape`: adapt it to the new axis 0.

    `extend.Primitive` describes the arguments of `batch` rules. As JAX's batchers of reductions.
    """
    if attrs.get("axis", -1) >= 0:  # a negative axis counts from the end, which does not change
        attrs["axis"] += 1
    if "axes" in attrs:
        attrs["axes"] = tuple([a + 1 for a in attrs["axes"]])
    if "shape" in attrs:
        attrs["shape"] = (n, *attrs["shape"])
    return bind(y.prim, *[spread(n, x) for x in xs], **attrs)


def merged(n: int, y: Tensor, x: Tensor, *shared: Tensor, **attrs: Any) -> Tensor:
    """The `batch` rule of a primitive that treats the elements of axis 0 separately: merge the new axis into axis 0.

    shared: further inputs, equal for all elements, without the new axis. `extend.Primitive` describes the others.
    As JAX's batcher of convolutions, which merges the batch into one axis.
    """
    z = bind(y.prim, x.reshape((n * x.shape[1], *x.shape[2:])), *shared, **attrs)
    return z.reshape((n, *y.shape))


# arrays
class Indexed(NamedTuple):
    """The array rule `x[key(**attrs)]`. Code that runs often computes the key once."""

    key: Callable[..., Any]

    def __call__(self, xp: Any, x: Any, **attrs: Any) -> Any:
        return x[self.key(**attrs)]
