"""Windows that overlap at steps, taken apart by the remainder of the position: sums over taps without zeros between.

out[n] = sum over o, k with n = o*stride + k*dilation of x[o] w[k] reads every x[o] with a share of the taps only: those
that n leaves the same remainder with. All positions of one remainder, a phase, are a sum over windows at steps of one.
Neighbouring phases that read the same windows are one product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from tracegrad.dtypes import Shape
from tracegrad.ir import Tensor
from tracegrad.lazy import dataclass
from tracegrad.prims.leaves import const
from tracegrad.prims.views import broadcast_to, permute, place, reshape, slice_, unwindow, window

Join = Callable[[Sequence[Tensor], int], Tensor]


@dataclass(frozen=True, slots=True)
class Phases:
    """Neighbouring phases of one axis that read the same windows.

    first, count: of the phases; phase f are the positions that leave f * gcd(stride, dilation).
    tap:          of the first phase the first tap; that of the next is the next.
    taps:         of each phase, one in every `period`; 0 for phases that are zero.
    ahead:        how many elements further on the windows are for it.
    """

    first: int
    count: int
    tap: int
    taps: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The geometry of one axis: `kernel` taps `dilation` apart, at every `stride`; of what they reach, `size` elements
    from `padding` on."""

    kernel: int
    size: int
    stride: int
    padding: int
    dilation: int

    @property
    def common(self) -> int:
        """Remainders that any tap leaves are multiples of this."""
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        """Number of phases; taps so far apart leave the same remainder."""
        return self.stride // self.common

    @property
    def apart(self) -> int:
        """Elements of x between two taps of a phase."""
        return self.dilation // self.common

    @property
    def begin(self) -> int:
        """Of the windows at steps of one, the first that counts."""
        return self.padding // self.stride

    @property
    def length(self) -> int:
        """How many windows count."""
        return (self.padding + self.size - 1) // self.stride + 1 - self.begin if self.size else 0

    def phases(self) -> list[Phases]:
        """Return all of the axis, in order."""
        every, rest = divmod(self.kernel, self.period)
        if self.apart == 1:
            groups = (Phases(0, rest, 0, every + 1, 0), Phases(rest, self.period - rest, rest, every, 0))
            return [p for p in groups if p.count]
        inverse = pow(self.apart, -1, self.period) if self.period > 1 else 0
        taps = [f * inverse % self.period for f in range(self.period)]
        return [
            Phases(f, 1, k, every + (k < rest), (k * self.dilation - f * self.common) // self.stride)
            for f, k in enumerate(taps)
        ]

    def taken(self, w: Tensor, axis: int, p: Phases) -> Tensor:
        """Taps of some phases: [.., kernel, ..] -> [.., count, taps, ..]."""
        whole = min(p.taps * self.period, self.kernel)  # the rest is read by no phase
        w = place(slice_(w, axis, 0, whole), axis, 0, p.taps * self.period)
        w = reshape(w, (*w.shape[:axis], p.taps, self.period, *w.shape[axis + 1 :]))
        w = slice_(w, axis + 1, p.tap, p.count)
        return permute(w, (*range(axis), axis + 1, axis, *range(axis + 2, w.ndim)))

    def filters(self, w: Tensor, axis: int, p: Phases) -> Tensor:
        """Return the same, the last one first: in the order of `windows`."""
        return slice_(self.taken(w, axis, p), axis + 1, p.taps - 1, p.taps, -1)

    def windows(self, x: Tensor, axis: int, p: Phases) -> Tensor:
        """What some phases read: the elements of each window become the last axis."""
        reach = (p.taps - 1) * self.apart
        x = shifted(x, axis, reach + p.ahead - self.begin, self.length + reach)
        return window(x, axis, p.taps, 1, self.apart)

    def laid(self, x: Tensor, axis: int, p: Phases) -> Tensor:
        """Return the elements of each window, on the last axis, at the positions of some phases that they reach."""
        reach = (p.taps - 1) * self.apart
        x = unwindow(x, axis, x.shape[axis] + reach, 1, self.apart)
        return shifted(x, axis, p.ahead - self.begin, self.length)


def shifted(x: Tensor, axis: int, before: int, length: int) -> Tensor:
    """`length` elements: `before` zeros, those of `x`, zeros. Where `before` is negative, `x` lacks its first."""
    start, at = max(-before, 0), max(before, 0)
    count = max(min(x.shape[axis] - start, length - at), 0)
    return place(slice_(x, axis, start if count else 0, count), axis, at if count else 0, length)


def by_phases(axes: Sequence[Steps], product: Callable[[Sequence[Phases]], Tensor], before: int, join: Join) -> Tensor:
    """[.., *sizes], `before` axes first, of what `product` computes for phases of all axes: [.., *counts, *lengths].

    join: concatenates along an axis.
    """
    n = len(axes)

    def rows(chosen: tuple[Phases, ...]) -> Tensor | None:
        """Return all phases of the axes that none were chosen of."""
        if len(chosen) == n:
            return product(chosen) if all(p.taps for p in chosen) else None
        steps = axes[len(chosen)]
        parts = [(p, rows((*chosen, p))) for p in steps.phases()]
        found = next((y for _, y in parts if y is not None), None)
        if found is None:
            return None
        axis = before + len(chosen)
        made = [zeros(y or found, axis, p.count) if y is None else y for p, y in parts]
        return place(join(made, axis), axis, 0, steps.stride, steps.common)

    def zeros(like: Tensor, axis: int, count: int) -> Tensor:
        shape = (*like.shape[:axis], count, *like.shape[axis + 1 :])
        return broadcast_to(const(0.0, like.dtype), shape)

    y = rows(())
    assert y is not None, "some tap is the first"
    if any(s.stride > 1 for s in axes):  # else a view that only moves axes of size 1, which a product would not fuse
        y = permute(y, (*range(before), *itertools.chain(*[(before + n + j, before + j) for j in range(n)])))
    y = reshape(y, (*y.shape[:before], *[s.length * s.stride for s in axes]))
    for j, s in enumerate(axes):
        y = slice_(y, before + j, s.padding - s.begin * s.stride, s.size)
    return y


def geometry(kernel: Shape, size: Shape, stride: Shape, padding: Shape, dilation: Shape) -> list[Steps]:
    """Of all axes."""
    return [Steps(*each) for each in zip(kernel, size, stride, padding, dilation, strict=True)]
