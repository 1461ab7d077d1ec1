"""The programs of a page whose calls choose sizes: one for each choice of padded sizes.

A size of 1 is never padded, so it has programs of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, cast

from tracegrad.compiler.build import Built, ProgramSource, at_sizes
from tracegrad.compiler.inputtypes import FreeSizes, Sizes, name_of
from tracegrad.compiler.portable import portable
from tracegrad.compiler.rooms import build_rooms
from tracegrad.dtypes import whole
from tracegrad.errors import InputError, ShapeError
from tracegrad.hypers import PREFIX
from tracegrad.kernels.form import UnsizedError

RoomSizes = int | Sequence[int]  # of one name, as a user gives them
RoomsByName = Mapping[str, Sequence[int]]  # sizes in whose shapes a page computes, in ascending order
Range = tuple[int, int]  # the least and the largest size that a program serves


def rooms_of(sizes: Any, frees: Iterable[FreeSizes]) -> dict[str, list[int]]:
    """Return the padded sizes of each name, from `sizes=` of `export`. Raises InputError for wrong names and sizes."""
    known = {name: None for free in frees for name in free.axes}
    given = cast("Mapping[str, Any]", sizes if isinstance(sizes, Mapping) else dict.fromkeys(known, sizes))
    found = {name: _rooms(n) for name, n in given.items()}
    if not known or not all(name in known and rooms and rooms[0] > 0 for name, rooms in found.items()):
        names = ", ".join(map(repr, known)) or "none"
        raise InputError.here(
            f"export: sizes must be the largest size, a list of sizes to compute in, or a dict of these by name, such "
            f"as {{'B': 64, 'T': [25, 100]}}; got {sizes!r}, and calls choose {names}"
        )
    return found


def _rooms(given: Any) -> list[int]:
    several = cast("Sequence[Any]", given) if isinstance(given, (list, tuple)) else [given]
    return sorted({whole(n) or 0 for n in several})


def unnamed(free: FreeSizes, rooms: RoomsByName) -> list[str]:
    """Return the names of the sizes that calls choose and for which `rooms` has no entry."""
    return [name for name in free.axes if name not in rooms]


def missing(free: FreeSizes, names: Sequence[str], what: str) -> InputError:
    """Return the error for sizes without a largest one."""
    chosen = ", ".join(
        [f"{n}: {t}" for n, t in free.types.items() if any(n == i for k in names for i, _ in free.axes[k])]
    )
    return InputError.here(
        f"export: each call of {what} chooses a size of {chosen}; pass the largest, such as "
        f"sizes={64 if len(free.axes) == 1 else dict.fromkeys(names, 64)}: the page then takes all sizes up to it"
    )


def programs(source: ProgramSource, rooms: RoomsByName, what: str) -> list[Built]:
    """Return programs that serve all sizes up to the largest. Raises InputError with the reason if there are none.

    Each program serves sizes up to a padded size. One row can be broadcast, so a size of 1 has programs of its own,
    unless the model refuses it, as one with batch normalisation. The first program serves the largest sizes.
    """
    ranges = [[(a + 1, b) for a, b in pairwise([0, 1, *rooms[name]]) if a < b][::-1] for name in source.free.axes]
    found: list[Built] = []
    for choice in product(*ranges):
        try:
            found.append(_with_room(source, dict(zip(source.free.axes, choice)), what))
        except ShapeError:
            if not found or (1, 1) not in choice:
                raise
    return found


def _with_room(source: ProgramSource, ranges: Mapping[str, Range], what: str) -> Built:
    """Return a program for all sizes of some ranges."""
    room = {name: high for name, (low, high) in ranges.items() if high > low}
    if not room:
        return exact(source, tuple([(name, high) for name, (_, high) in ranges.items()]))
    try:
        built, follows = _built(source, ranges, room)
    except UnsizedError as e:
        why = f"export: {what} has no program for all sizes up to {room}: {e}"
        small = {name: [*range(2, min(high, 5)), high] for name, high in room.items() if high > 2}
        remedy = (
            f"give small sizes programs of their own, as in sizes={small}; or compile again with numbers in inputs=, "
            "load what train.save wrote, and export that"
        )
        raise InputError.here(f"{why}; {remedy}") from None
    return told(built, source.free, {"sizes": {name: list(r) for name, r in ranges.items()}, **follows})


def _built(source: ProgramSource, ranges: Mapping[str, Range], room: Mapping[str, int]) -> tuple[Built, dict[str, Any]]:
    def at(sizes: Sequence[int]) -> ProgramSource:
        now = dict(zip(room, sizes))
        return at_sizes(source, tuple([(name, now.get(name, high)) for name, (_, high) in ranges.items()]))

    rooms = build_rooms(at, room, None, gpu=True)
    return rooms.built, portable(rooms, [ranges[name][0] for name in room])


def exact(source: ProgramSource, sizes: Sizes) -> Built:
    """Return the program for some sizes alone."""
    built = at_sizes(source, sizes).traced().compiled()
    return told(built, source.free, {"sizes": {name: [n, n] for name, n in sizes}}) if sizes else built


def told(built: Built, free: FreeSizes, room: Mapping[str, Any]) -> Built:
    """Return the program; its metadata have the sizes that it serves, its inputs the name of each axis's size."""
    program = built.program
    fields = [
        f if f.name.startswith(PREFIX) else replace(f, spec={**f.spec, "sizes": _names(free, f.name)})
        for f in program.inputs
    ]
    return built._replace(program=replace(program, inputs=tuple(fields), meta={**program.meta, "room": room}))


def _names(free: FreeSizes, name: str) -> list[str | None]:
    return [None if isinstance(n, int) else name_of(n, d) for d, n in enumerate(free.types[name].shape)]
