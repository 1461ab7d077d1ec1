"""Split flat arrays of all parameters into one array for each parameter.

The optimizer's rules work on one flat array, so that kernels are few. XLA fuses the rules for separate parameters as
well, reads a parameter without a copy, and can shard each parameter over several devices as its shape allows.

Parts that lie side by side are joined: a sum of arrays placed among zeros is a concatenation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from tracegrad.dtypes import Shape, TensorType
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import PRIMITIVES, Tensor, bind, rewrite
from tracegrad.passes.scans import everywhere
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import IOTA, LEAF, const, iota, leaf
from tracegrad.prims.views import BROADCAST, PLACE, SLICE, broadcast_to, reshape, slice_


class Piece(NamedTuple):
    """A part of a flat array that becomes an array of its own."""

    name: str
    offset: int
    shape: Shape
    size: int


Pieces = Sequence[Piece]
Parts = tuple[Tensor, ...]


def in_pieces(graph: Graph, arrays: Mapping[str, Pieces]) -> tuple[Graph, set[int]]:
    """Return the same graph over pieces of arrays, and the serials of pieces that were values of their own: gradients.

    arrays: name of a state -> the pieces that it consists of, in order. Pieces become states by their own names.
    """
    layouts = {pieces[-1].offset + pieces[-1].size: pieces for pieces in arrays.values()}
    taker = _Taker(arrays, layouts)
    roots = rewrite(graph.roots, taker.rule)
    whole = graph.with_roots(roots)
    writes: dict[str, Tensor] = {}
    for name, t in whole.writes.items():
        parts = taker.parts_of(t, arrays[name]) if name in arrays else None
        if parts is None:
            writes[name] = t
        else:
            writes |= zip([piece.name for piece in arrays[name]], parts)
    return Graph(whole.outputs, whole.captures, writes, graph.precision, graph.ends), taker.separate


def split(flats: Sequence[Tensor], layouts: Sequence[Pieces]) -> list[Parts]:
    """Return the pieces of each array. Arrays of the first layout are computed in pieces, as far as possible."""
    first = layouts[0]
    taker = _Taker({}, {first[-1].offset + first[-1].size: first})
    whole = rewrite(flats, taker.rule)
    return [taker.pieces_of(t, p) if p == first else tuple([_cut(t, one) for one in p]) for t, p in zip(whole, layouts)]


class _Taker:
    """Rewrites nodes over flat arrays to nodes over their pieces; a reader that needs the whole gets a pack."""

    def __init__(self, arrays: Mapping[str, Pieces], layouts: Mapping[int, Pieces]) -> None:
        self.arrays, self.layouts = arrays, layouts
        self.known: dict[int, Parts] = {}  # by the serial of the rewritten node
        self.separate: set[int] = set()  # serials of pieces that were values of their own, put together

    def rule(self, t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        """Return what replaces `t`, whose inputs are rebuilt as `inputs`; None keeps `t`. For `rewrite`."""
        if t.prim is LEAF and t.attrs["role"] == "state" and t.name in self.arrays:
            return self._whole([leaf("state", p.name, TensorType(t.dtype, p.shape)) for p in self.arrays[t.name]])
        pieces = self.layouts.get(t.size) if t.ndim == 1 else None
        if t.prim.family == "pack" and pieces and [x.size for x in inputs] == [p.size for p in pieces]:
            self.known[t.serial] = tuple([reshape(x, p.shape) for x, p in zip(inputs, pieces)])
            self.separate.update(x.serial for x in self.known[t.serial])
        elif t.prim.family == "map" and any(x.serial in self.known for x in inputs) and pieces:
            return self._whole(self._mapped(t, inputs, pieces))
        elif t.prim is SLICE and t.attrs["step"] == 1 and inputs[0].serial in self.known:
            return self._sliced(t, inputs[0])
        elif t.prim.family == "fold" and inputs[0].serial in self.known:
            parts = self.known[inputs[0].serial]
            folded = [reshape(bind(t.prim, x, axes=tuple(range(x.ndim))), (1,)) for x in parts]
            return reduce(lambda a, b: bind(PRIMITIVES[t.prim.combine], a, b), folded)
        return None

    def _whole(self, parts: Sequence[Tensor]) -> Tensor:
        flat = pack([reshape(x, (x.size,)) for x in parts])
        self.known[flat.serial] = tuple(parts)
        return flat

    def _mapped(self, t: Tensor, inputs: Sequence[Tensor], pieces: Pieces) -> list[Tensor]:
        parts = [self.pieces_of(x, pieces) for x in inputs]
        return [bind(t.prim, *xs, **t.attrs) for xs in zip(*parts)]

    def parts_of(self, t: Tensor, pieces: Pieces) -> Parts | None:
        """Return the pieces of `t`; None if it has another shape than all pieces together."""
        return self.pieces_of(t, pieces) if t.shape == (pieces[-1].offset + pieces[-1].size,) else None

    def pieces_of(self, t: Tensor, pieces: Pieces) -> Parts:
        """Return the pieces of any array of this size; they are computed separately where that costs nothing."""
        found = self.known.get(t.serial)
        if found is None:
            found = self.known[t.serial] = tuple([self._part(t, k, p) for k, p in enumerate(pieces)])
        return found

    def _part(self, t: Tensor, k: int, piece: Piece) -> Tensor:
        made = MADE.get(t.prim.name)
        if made is not None and (part := made(t, piece)) is not None:
            return part
        if t.prim.family == "map":
            pieces = self.layouts[t.size]
            return bind(t.prim, *[self.pieces_of(x, pieces)[k] for x in t.inputs], **t.attrs)
        return _cut(t, piece)

    def _sliced(self, t: Tensor, x: Tensor) -> Tensor | None:
        """Return a slice that lies in one piece as a slice of that piece; None if it does not."""
        start, length = t.attrs["start"], t.attrs["length"]
        for piece, part in zip(self.layouts[x.size], self.known[x.serial]):
            if piece.offset <= start and start + length <= piece.offset + piece.size:
                return slice_(reshape(part, (part.size,)), 0, start - piece.offset, length)
        return None


def _cut(t: Tensor, piece: Piece) -> Tensor:
    return reshape(slice_(t, 0, piece.offset, piece.size), piece.shape)


def _of_one(t: Tensor, piece: Piece) -> Tensor | None:
    """Return a piece of a broadcast of one element; None if more elements are broadcast."""
    (x,) = t.inputs
    return broadcast_to(reshape(x, ()), piece.shape) if x.size == 1 else None


def _coordinates(t: Tensor, piece: Piece) -> Tensor:
    return reshape(iota((piece.size,), 0) + const(piece.offset, t.dtype), piece.shape)


MADE: Mapping[str, Callable[[Tensor, Piece], Tensor | None]] = {BROADCAST.name: _of_one, IOTA.name: _coordinates}


class Placed(NamedTuple):
    """Arrays that do not overlap along an axis of a larger one, by where they begin."""

    axis: int
    length: int
    parts: dict[int, Tensor]

    def beside(self, other: Placed) -> Placed | None:
        """Return both together, or None if they overlap."""
        both = Placed(self.axis, self.length, dict(sorted({**self.parts, **other.parts}.items())))
        apart = len(both.parts) == len(self.parts) + len(other.parts) and self[:2] == other[:2]
        begins = [*both.parts, self.length]
        return both if apart and all(a + n <= b for a, n, b in zip(begins, both.sizes, begins[1:])) else None

    @property
    def sizes(self) -> list[int]:
        """Elements of each part along the axis."""
        return [x.shape[self.axis] for x in self.parts.values()]


def join_places(roots: Sequence[Tensor]) -> list[Tensor]:
    """Concatenate arrays that are placed among zeros and added, if they fill the whole axis.

    place(a, at 0) + place(b, behind a)  ->  concat(a, b)

    The gradient of an array that is read in slices is such a sum. XLA would compute each part for all elements.
    """
    return everywhere(roots, _joined)


def _joined(roots: Sequence[Tensor]) -> list[Tensor]:
    known: dict[int, Placed] = {}  # by the serial of a sum, also of an incomplete one

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim is PLACE and t.attrs["step"] == 1 and inputs[0].size:
            known[t.serial] = Placed(t.attrs["axis"], t.attrs["length"], {t.attrs["start"]: inputs[0]})
        elif t.prim.name == "add" and all(x.serial in known for x in inputs):
            one, other = (known[x.serial] for x in inputs)
            both = one.beside(other)
            if both is not None and sum(both.sizes) == both.length:
                return bind(PRIMITIVES["concat"], *both.parts.values(), axis=both.axis)
            if both is not None:
                known[t.serial] = both
        return None

    return rewrite(roots, rule)
