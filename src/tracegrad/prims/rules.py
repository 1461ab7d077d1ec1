"""Rules that many rows share: how tangents go forwards, how a row computes `n` values at once, and what only indexes.

jvp:   (ts, y, *inputs, **attrs) -> the tangent of `y`. `ts` has a tangent per input, or None where it is zero.
batch: (n, y, *inputs, **attrs) -> `n` values of `y` along a new axis 0; each input has that axis in front, of size n or
       1. `y` is the node itself, for one value: its type and primitive say what is to be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tracegrad.ir import Tensor, bind
from tracegrad.prims.leaves import const

Tangents = Sequence[Tensor | None]


# derivatives
def symmetric(ts: Tangents, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor | None:
    """The row's own VJP, of tangents: for each input the Jacobian equals its transpose.

    So it is for every elementwise row, whose Jacobians are diagonal, and for some others, such as softmax.
    """
    assert y.prim.vjp is not None
    parts = [y.prim.vjp(t, y, *xs, **attrs)[k] for k, t in enumerate(ts) if t is not None]
    return total([p for p in parts if p is not None])


def multilinear(ts: Tangents, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor | None:
    """The row itself with one input at a time replaced by its tangent: it is linear in each."""
    return total([bind(y.prim, *xs[:k], t, *xs[k + 1 :], **attrs) for k, t in enumerate(ts) if t is not None])


def linear(ts: Tangents, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor:
    """The row itself, of all tangents at once: it is linear in its inputs together."""
    return bind(y.prim, *[zeros_like(x) if t is None else t for t, x in zip(ts, xs)], **attrs)


def zeros_like(x: Tensor) -> Tensor:
    """Zeros of the type of `x`."""
    return const(0.0, x.dtype).broadcast_to(x.shape)


def total(parts: Sequence[Tensor]) -> Tensor | None:
    """The sum; None of nothing."""
    out: Tensor | None = None
    for p in parts:
        out = p if out is None else out + p
    return out


# batching
def spread(n: int, x: Tensor) -> Tensor:
    """`x` with `n` along axis 0, repeated if it is the same for all."""
    return x.broadcast_to((n, *x.shape[1:]))


def alike(n: int, y: Tensor, /, *xs: Tensor, **attrs: Any) -> Tensor:
    """The row itself: leading axes mean nothing to it."""
    return bind(y.prim, *[spread(n, x) for x in xs], **attrs)


def shifted(n: int, y: Tensor, *xs: Tensor, **attrs: Any) -> Tensor:
    """The row itself, with `axis` and `axes` counted behind the new axis, and `shape` with it in front."""
    if attrs.get("axis", -1) >= 0:  # a negative one counts from the end, which stays
        attrs["axis"] += 1
    if "axes" in attrs:
        attrs["axes"] = tuple([a + 1 for a in attrs["axes"]])
    if "shape" in attrs:
        attrs["shape"] = (n, *attrs["shape"])
    return bind(y.prim, *[spread(n, x) for x in xs], **attrs)


def merged(n: int, y: Tensor, x: Tensor, *shared: Tensor, **attrs: Any) -> Tensor:
    """The row itself on one axis 0, of `n` times as many: it treats the elements of axis 0 apart.

    shared: further inputs, which are the same for all, without the new axis.
    """
    z = bind(y.prim, x.reshape((n * x.shape[1], *x.shape[2:])), *shared, **attrs)
    return z.reshape((n, *y.shape))


# arrays
class Indexed(NamedTuple):
    """The array rule `x[key(**attrs)]`. Where it runs often, the key is made once."""

    key: Callable[..., Any]

    def __call__(self, xp: Any, x: Any, **attrs: Any) -> Any:
        return x[self.key(**attrs)]
