"""Find where values of a room end: the elements beyond the sizes of a call, which masks hide or nothing reads.

A *tail* is all elements of a tensor whose row-major number `e` has a digit `e // step % size` of at least `end`, a
scalar input of the program. So a reshape keeps it. A comparison of a coordinate with such a scalar makes a mask that is
False in a tail. `where(mask, x, 0)` hides this tail of `x`, which is then unread if all its readers hide it.

Loops in C end where a tail begins, if nothing reads its results or if it adds nothing to a fold. They need not: to
compute more is right, too.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from tracegrad.dtypes import Shape
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.triangles import CHOICE, axes_through, unread_parts
from tracegrad.prims.leaves import IOTA, LEAF, constant


class Tail(NamedTuple):
    """The elements whose digit, of `size` values, is at least the input `end`, given by its serial."""

    step: int
    size: int
    end: int

    def axis(self, shape: Shape) -> tuple[int, int] | None:
        """Return the axis whose coordinate has the digit, and the digit's step in the coordinate; None if none has."""
        after = math.prod(shape)
        for d, n in enumerate(shape):
            after //= n
            if n > 1 and self.step >= after and self.step % after == 0 and n % (self.step // after * self.size) == 0:
                return d, self.step // after
        return None


Tails = frozenset[Tail]
NONE: Tails = frozenset()


def moved(tails: Tails, axes: Mapping[int, int], shape: Shape, other: Shape) -> Tails:
    """Return the tails of a tensor of shape `other`, of which some axes are those of `shape`."""
    found: set[Tail] = set()
    for t in tails:
        d, step = t.axis(shape) or (-1, 0)
        if d in axes:
            e = axes[d]
            whole = step == 1 and t.size == shape[d]  # the coordinate itself, of an axis that can be cut or padded
            if whole or shape[d] == other[e]:
                found.add(Tail(step * math.prod(other[e + 1 :]), other[e] if whole else t.size, t.end))
    return frozenset(found)


def through(t: Tensor, tails: Tails, back: bool = False) -> Tails:
    """Return the tails of a view's result, from those of its input; of the input if `back`."""
    x = t.inputs[0]
    if t.prim.index is None or not tails:  # a reshape
        return tails
    axes = axes_through(t)[0]
    if back:
        return moved(tails, {e: d for d, e in axes.items()}, t.shape, x.shape)
    return moved(tails, axes, x.shape, t.shape)


class Hidden(NamedTuple):
    """Tails in which all elements are one number; those of a mask, in which it is False, have None."""

    tails: Tails
    number: float | None


UNKNOWN = Hidden(NONE, None)


def hidden_tails(order: Iterable[Tensor], sizes: Container[str], stored: Container[int] = ()) -> dict[int, Hidden]:
    """Return the tails of masks, by serial, and of what they hide.

    sizes: the `ends` of the graph. A mask of the user's can be False everywhere, or follow the size without padding.

    Not those of `stored` values: a check of a kernel puts anything into memory.
    """
    search = _Search(sizes)
    for t in order:
        if t.serial not in stored:
            search.add(t)
    return search.hidden


class _Search:
    """Finds hidden tails, one tensor after the other."""

    def __init__(self, sizes: Container[str]) -> None:
        self.sizes = sizes
        self.hidden: dict[int, Hidden] = {}
        self.along: dict[int, int] = {}  # serial of a tensor that equals its coordinate along an axis -> that axis
        self.scalar: dict[int, int] = {}  # serial of a tensor that repeats a scalar input -> that input

    def add(self, t: Tensor) -> None:
        """Note what is known of `t`; its inputs come first."""
        if t.prim is IOTA:
            self.along[t.serial] = t.axis
        elif t.prim is LEAF:
            if t.attrs["role"] == "hyper" and t.name in self.sizes:
                self.scalar[t.serial] = t.serial
        elif t.prim.family == "view":
            self._view(t, t.inputs[0].serial)
        elif t.prim.name == "less":
            self._mask(t, *t.inputs)
        elif t.prim.name == "logical_and":
            masks = [self.hidden[x.serial].tails for x in t.inputs if x.serial in self.hidden]
            if masks:
                self.hidden[t.serial] = Hidden(NONE.union(*masks), None)
        elif t.prim.name == CHOICE and t.dtype.is_float:
            self._choice(t, *t.inputs)

    def _view(self, t: Tensor, x: int) -> None:
        """Note what a view tells that is known of its input, the tensor with serial `x`."""
        if x in self.scalar:
            self.scalar[t.serial] = self.scalar[x]
        elif x in self.along and (axis := axes_through(t)[0].get(self.along[x])) is not None:
            self.along[t.serial] = axis
        elif x in self.hidden and (t.prim.index is None or axes_through(t)[1]):
            tails, number = self.hidden[x]
            self.hidden[t.serial] = Hidden(through(t, tails), number)

    def _mask(self, t: Tensor, coordinate: Tensor, end: Tensor) -> None:
        """Note the tail of `coordinate < end`."""
        if coordinate.serial in self.along and end.serial in self.scalar:
            axis = self.along[coordinate.serial]
            tail = Tail(math.prod(t.shape[axis + 1 :]), t.shape[axis], self.scalar[end.serial])
            self.hidden[t.serial] = Hidden(frozenset({tail}), None)

    def _choice(self, t: Tensor, mask: Tensor, x: Tensor, other: Tensor) -> None:
        """Note the tails of `where(mask, x, other)` in which all is the number `other`."""
        number = constant(other)
        if mask.serial in self.hidden and number is not None:
            inside = self.hidden.get(x.serial, UNKNOWN)
            same = inside.tails if inside.number == number else NONE
            self.hidden[t.serial] = Hidden(self.hidden[mask.serial].tails | same, number)


def choices(order: Sequence[Tensor], sizes: Container[str]) -> set[int]:
    """Return the serials of choices that hide tails. They get no memory: it would be read with its tails."""
    hidden = hidden_tails(order, sizes)
    return {t.serial for t in order if t.prim.name == CHOICE and t.serial in hidden}


class End(NamedTuple):
    """Where a loop can end: a tail of the row-major numbers of points along a group of a kernel's axes."""

    group: str
    tail: Tail


class Ends:
    """The tails of all tensors of a graph. `order` is topological; `roots` are serials of values that others read."""

    def __init__(
        self, order: Sequence[Tensor], roots: Iterable[int], sizes: Container[str], stored: Container[int] = ()
    ) -> None:
        self.hidden = hidden_tails(order, sizes, stored)
        self.sizes = {t.name: t.serial for t in order if t.prim is LEAF and t.name in sizes}
        self.unread = unread_parts(order, roots, self._unread)

    def _unread(self, t: Tensor, mine: Tails) -> Sequence[Tails]:
        """Return the tails that `t` does not read of each input. mine: its own unread tails."""
        family, n = t.prim.family, t.ndim
        if family == "view":
            return [through(t, mine, back=True)]
        if t.prim.name == CHOICE:
            return [mine, mine | self.hidden.get(t.inputs[0].serial, UNKNOWN).tails, mine]
        if family == "product":
            sides = [*range(n - 1)], [*range(n - 2), n - 1]
            return [moved(mine, dict(zip(own, own)), t.shape, x.shape) for own, x in zip(sides, t.inputs)]
        if family == "scan" and (until := t.attrs.get("until")) in self.sizes:
            body, n, end = t.attrs["body"], t.attrs["length"], self.sizes[until]
            first, last = len(body.carries), len(body.carries) + len(body.xs)
            # the loop drops what it computes from later elements, by their numbers: it can end some iterations later
            beyond = frozenset({Tail(1, n, end)})
            each = [first <= k < last and x.dtype.is_float for k, x in enumerate(t.inputs)]
            return [moved(beyond, {0: 0}, (n,), x.shape) if own else NONE for own, x in zip(each, t.inputs)]
        if family == "fold":
            x = t.inputs[0]
            return [moved(mine, {d: d for d in range(n) if d not in t.axes}, t.shape, x.shape)]
        if family == "gather":
            return [moved(mine, {d: d for d in range(n) if d != t.axis}, t.shape, t.inputs[0].shape), mine]
        if family == "scatter":
            x = t.inputs[0]
            others = moved(mine, {d: d for d in range(n) if d != t.axis}, t.shape, x.shape)
            return [others, others | self._neutral(x, (t.axis,), t.prim.identity)]
        return [mine if family == "map" else NONE] * len(t.inputs)

    def of(self, kind: str, rows: int, nodes: Sequence[Tensor], outs: Sequence[Tensor]) -> tuple[End, ...]:
        """Return where the loops of a kernel can end. kind, rows, nodes and outs are those of its `Cluster`."""
        if kind == "scan":
            return ()
        each = [(t.size // rows, self.unread.get(t.serial, NONE)) for t in outs]  # results of each row
        common = [frozenset([x._replace(step=x.step // n) for x in tails if x.step % n == 0]) for n, tails in each]
        results = sorted(common[0].intersection(*common[1:]))
        if kind in ("product", "scatter"):
            return self._of_terms(next(t for t in nodes if t.prim.family == kind), results)
        folds = [self._folded(t.inputs[0], t.axes, t.prim.identity) for t in nodes if t.prim.family == "fold"]
        folds += [tails for n, tails in each if n > 1 and folds]  # results along a row
        inner = folds[0].intersection(*folds[1:]) if folds else NONE
        return (*[End("i", x) for x in results], *[End("j", x) for x in sorted(inner)])

    def _of_terms(self, t: Tensor, results: Sequence[Tail]) -> tuple[End, ...]:
        """Return where the loops of a product or scatter can end. results: the unread tails of what it stores."""
        if t.prim.family == "product":
            row, folded = t.ndim - 2, [*zip(t.inputs, (t.ndim - 1, t.ndim - 2))]
        else:
            row, folded = t.axis, [(t.inputs[0], t.axis)]
        terms = NONE.union(*[self._folded(x, (axis,), t.prim.identity or 0.0) for x, axis in folded])
        found = [_side(x, t.shape, row) for x in results]
        return (*[x for x in found if x], *[End("k", x) for x in sorted(terms)])

    def _neutral(self, x: Tensor, axes: Sequence[int], identity: float | None) -> Tails:
        """Return the tails along some axes that add nothing to a fold of `x`."""
        tails, number = self.hidden.get(x.serial, UNKNOWN)
        known = tails if number is not None and number == identity else ()
        return frozenset([t for t in known if (at := t.axis(x.shape)) and at[0] in axes])

    def _folded(self, x: Tensor, axes: Sequence[int], identity: float | None) -> Tails:
        """Return the tails that add nothing to a fold of `x`, as digits of the number along the folded axes."""
        found: set[Tail] = set()
        for t in self._neutral(x, axes, identity):
            d, step = t.axis(x.shape) or (-1, 0)
            found.add(t._replace(step=step * math.prod([x.shape[e] for e in axes if e > d])))
        return frozenset(found)


def _side(tail: Tail, shape: Shape, row: int) -> End | None:
    """Return the end of a loop over results of a product or scatter, whose rows are along the axis `row`."""
    d, step = tail.axis(shape) or (-1, 0)
    if d < 0:
        return None
    if d == row:
        return End("m", tail._replace(step=step))
    group, after = ("b", shape[d + 1 : row]) if d < row else ("n", shape[d + 1 :])
    return End(group, tail._replace(step=step * math.prod(after)))
