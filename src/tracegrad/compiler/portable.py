"""How inputs and results of a program depend on sizes, as plain data for pages, which cannot trace Python.

In Python, a trace at each new size shows whether a program with room serves this size. For a page, this is shown for
all sizes in advance. Sizes at which the model takes the same branches as at the room need no trace. For all other
sizes, one trace serves all sizes with its branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, cast

from tracegrad.compiler.build import uncollected
from tracegrad.compiler.followed import ButNumbers, Followed, GraphAt, recorded
from tracegrad.compiler.rooms import Rooms
from tracegrad.compiler.symbols import Record, Reference, Symbol
from tracegrad.hypers import PREFIX
from tracegrad.ir import ambient
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.padded import lengths_of


@uncollected
@ambient.restored
def portable(rooms: Rooms, least: Sequence[int]) -> dict[str, Any]:
    """Return how inputs and results of a program with room depend on sizes, from the `least` to its room.

    The least size is 2 or more, because one row can be broadcast.

    In the data, {"at": k} is number k of a list: the sizes in the order of "names", then each instruction's result.
    Raises: UnsizedError if the program does not serve all sizes, or if this cannot be shown in advance.
    """
    followed = rooms.followed
    if followed is None:
        raise UnsizedError("the model turns a size into a plain int, and only Python can compute with it")
    sizes = product(*[range(low, n + 1) for low, n in zip(least, rooms.sizes.one)])
    refused = _refused(followed, rooms.graph_at, rooms.sizes.one, sizes)
    if refused is not None:
        at = ", ".join([f"{name}={n}" for name, n in zip(rooms.names, refused)])
        raise UnsizedError(f"at {at} the model computes differently")
    record = followed.record
    read = {f.name.removeprefix(PREFIX) for f in rooms.built.program.inputs}
    given = {name: f.at(record.sizes()) for name, f in lengths_of(rooms.names, rooms.sizes).items() if name in read}
    numbers = {n.field.removeprefix(PREFIX): Symbol(record, ks[0]) for n, ks in followed.numbers} | given
    specs, results = rooms.shapes_at(record.sizes())  # adds instructions to the record
    told = {"names": rooms.names, "numbers": numbers, "specs": specs}
    told["results"] = {name: cut._asdict() for name, cut in results.items()}
    plain = _Plain(record)
    return {**plain.of(told), "instructions": plain.instructions}


class _Plain:
    """Values as plain data, and the instructions that they need."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.instructions: list[list[Any]] = []
        self.places = {k: k for k in range(record.count)}  # number of the record -> number of these instructions

    def of(self, x: Any) -> Any:
        """Return a value, in which a number of the record is {"at": k}."""
        if type(x) in (Symbol, Reference):
            return {"at": self._place(x.index if type(x) is Symbol else int(x))}
        if isinstance(x, Mapping):
            return {name: self.of(value) for name, value in cast("Mapping[str, Any]", x).items()}
        return [self.of(value) for value in cast("Sequence[Any]", x)] if isinstance(x, (list, tuple)) else x

    def _place(self, k: int) -> int:
        if k not in self.places:
            compute, arguments = self.record.instructions[k - self.record.count]
            self.instructions.append([compute.__name__, *map(self.of, arguments)])
            self.places[k] = self.record.count + len(self.instructions) - 1
        return self.places[k]


def _refused(
    followed: Followed, graph_at: GraphAt, room: Sequence[int], sizes: Iterable[Sequence[int]]
) -> Sequence[int] | None:
    """Return the first sizes whose trace differs from the one derived from the room; None if there are none."""
    left: list[Sequence[int]] = []  # sizes at which the model takes other branches
    for n in sizes:
        values = followed.record.computed(n)
        if values is None or not followed.agrees(values, n):
            return n
        if not followed.record.holds(values):
            left.append(n)
    base = recorded(graph_at, room) if left else None
    while base and left:
        other, numbers = recorded(graph_at, left[0]), ButNumbers()
        if other is None:
            return left[0]
        try:
            numbers.check((base[1], other[1]))
        except UnsizedError:
            return left[0]
        behind: list[Sequence[int]] = []
        for n in left:
            here, there = base[0].computed(n), other[0].at(n)
            if there is None:
                behind.append(n)
            elif here is None or not numbers.equal(here, there):
                return n
        if len(behind) == len(left):
            break
        left = behind
    return left[0] if left else None
