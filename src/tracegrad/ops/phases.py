"""Transposed convolution without zeros between the elements: positions are grouped by their remainder, a *phase*.

out[n] = sum over o, k with n = o*stride + k*dilation of x[o] w[k]. For one n, only the taps k contribute for which
n - k*dilation is a multiple of the stride. All positions of one phase use the same taps, and are a sum over windows at
steps of one. Neighbouring phases that read the same windows are computed as one product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracegrad.dtypes import Shape
from tracegrad.ir import Tensor
from tracegrad.prims.leaves import const
from tracegrad.prims.views import broadcast_to, permute, place, reshape, slice_, unwindow, window

Join = Callable[[Sequence[Tensor], int], Tensor]


@dataclass(frozen=True, slots=True)
class Phases:
    """Neighbouring phases of one axis that read the same windows.

    first, count: the first phase, and how many. Phase f has the positions with remainder f * gcd(stride, dilation).
    tap:          first tap of the first phase. Each next phase begins one tap later.
    taps:         number of taps of each phase, one in every `period`; 0 for phases that are zero.
    ahead:        offset of the windows, in elements of x.
    """

    first: int
    count: int
    tap: int
    taps: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The geometry of one axis: windows at every `stride`, of `kernel` taps that are `dilation` apart.

    The output is the `size` elements from `padding` on.
    """

    kernel: int
    size: int
    stride: int
    padding: int
    dilation: int

    @property
    def common(self) -> int:
        """The common divisor of the remainders of all taps."""
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        """The number of phases. Taps this far apart have the same remainder."""
        return self.stride // self.common

    @property
    def apart(self) -> int:
        """The distance, in elements of x, between two taps of a phase."""
        return self.dilation // self.common

    @property
    def begin(self) -> int:
        """The first window, at steps of one, that reaches the output."""
        return self.padding // self.stride

    @property
    def length(self) -> int:
        """The number of windows that reach the output."""
        return (self.padding + self.size - 1) // self.stride + 1 - self.begin if self.size else 0

    def phases(self) -> list[Phases]:
        """Return all phases of the axis, in order."""
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
        """Return the taps of the phases `p`: [.., kernel, ..] -> [.., count, taps, ..]."""
        whole = min(p.taps * self.period, self.kernel)  # no phase reads the rest
        w = place(slice_(w, axis, 0, whole), axis, 0, p.taps * self.period)
        w = reshape(w, (*w.shape[:axis], p.taps, self.period, *w.shape[axis + 1 :]))
        w = slice_(w, axis + 1, p.tap, p.count)
        return permute(w, (*range(axis), axis + 1, axis, *range(axis + 2, w.ndim)))

    def filters(self, w: Tensor, axis: int, p: Phases) -> Tensor:
        """Return `taken` in reverse order, which is the order of `windows`."""
        return slice_(self.taken(w, axis, p), axis + 1, p.taps - 1, p.taps, -1)

    def windows(self, x: Tensor, axis: int, p: Phases) -> Tensor:
        """Return the windows that the phases `p` read. The elements of each window become the last axis."""
        reach = (p.taps - 1) * self.apart
        x = shifted(x, axis, reach + p.ahead - self.begin, self.length + reach)
        return window(x, axis, p.taps, 1, self.apart)

    def laid(self, x: Tensor, axis: int, p: Phases) -> Tensor:
        """Move the elements of each window, on the last axis, to the positions of the phases `p` that they reach."""
        reach = (p.taps - 1) * self.apart
        x = unwindow(x, axis, x.shape[axis] + reach, 1, self.apart)
        return shifted(x, axis, p.ahead - self.begin, self.length)


def shifted(x: Tensor, axis: int, before: int, length: int) -> Tensor:
    """Return `length` elements: `before` zeros, `x`, then zeros. A negative `before` cuts elements of `x` off."""
    start, at = max(-before, 0), max(before, 0)
    count = max(min(x.shape[axis] - start, length - at), 0)
    return place(slice_(x, axis, start if count else 0, count), axis, at if count else 0, length)


def by_phases(axes: Sequence[Steps], product: Callable[[Sequence[Phases]], Tensor], before: int, join: Join) -> Tensor:
    """Compute all phases of all axes, and interleave the results: [.., *sizes], with `before` axes first.

    product: computes one phase of each axis: [.., *counts, *lengths].
    join:    concatenates along an axis.
    """
    n = len(axes)

    def rows(chosen: tuple[Phases, ...]) -> Tensor | None:
        """Return all phases of the axes for which `chosen` has none."""
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
    if any(s.stride > 1 for s in axes):  # else the view only moves axes of size 1, and a product would not fuse with it
        y = permute(y, (*range(before), *itertools.chain(*[(before + n + j, before + j) for j in range(n)])))
    y = reshape(y, (*y.shape[:before], *[s.length * s.stride for s in axes]))
    for j, s in enumerate(axes):
        y = slice_(y, before + j, s.padding - s.begin * s.stride, s.size)
    return y


def geometry(kernel: Shape, size: Shape, stride: Shape, padding: Shape, dilation: Shape) -> list[Steps]:
    """Return the steps of each axis."""
    return [Steps(*each) for each in zip(kernel, size, stride, padding, dilation, strict=True)]
