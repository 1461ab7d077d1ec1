"""The programs of a page whose calls choose sizes: one with room for all, and one for each choice of sizes of 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

from tracegrad.compiler.build import Built, ProgramSource, at_sizes
from tracegrad.compiler.inputtypes import FreeSizes, Sizes, name_of
from tracegrad.compiler.portable import FEWEST, portable
from tracegrad.compiler.rooms import build_rooms
from tracegrad.dtypes import whole
from tracegrad.errors import InputError
from tracegrad.hypers import PREFIX
from tracegrad.kernels.form import UnsizedError

Most = Mapping[str, int]  # the largest size of each name


def largest(sizes: Any, frees: Iterable[FreeSizes]) -> dict[str, int]:
    """Return the largest sizes, from the argument of `export`. Raises InputError for unknown names and wrong sizes."""
    known = {name: None for free in frees for name in free.axes}
    given = cast("Mapping[str, Any]", sizes if isinstance(sizes, Mapping) else dict.fromkeys(known, sizes))
    found = {name: whole(n) or 0 for name, n in given.items()}
    wrong = [name for name, n in found.items() if name not in known or n < 1]
    if wrong or not known:
        names = ", ".join(map(repr, known)) or "none"
        raise InputError.here(
            f"export: sizes must be the largest size, or a dict of the largest by name, such as {{'B': 64}}; got "
            f"{sizes!r}, and calls choose {names}"
        )
    return found


def unnamed(free: FreeSizes, most: Most) -> list[str]:
    """Return the names of sizes that calls choose, of which `most` does not tell the largest."""
    return [name for name in free.axes if name not in most]


def missing(free: FreeSizes, names: Sequence[str], what: str) -> InputError:
    """Return the error for sizes without a largest one."""
    chosen = ", ".join(
        [f"{n}: {t}" for n, t in free.types.items() if any(n == i for k in names for i, _ in free.axes[k])]
    )
    return InputError.here(
        f"export: each call of {what} chooses a size of {chosen}; tell the largest, such as "
        f"sizes={(dict.fromkeys(names, 64))}: then the page takes all sizes up to it"
    )


def programs(source: ProgramSource, most: Most, what: str) -> list[Built]:
    """Return programs that serve all sizes up to `most`. Raises InputError with the reason if there are none.

    One row can be broadcast, so a size of 1 has programs of its own. The first one has room for the largest sizes.
    """
    names = list(source.free.axes)
    choices = product(*[(False, True) if most[name] > 1 else (True,) for name in names])
    return [_with_room(source, dict(zip(names, ones)), most, what) for ones in choices]


def _with_room(source: ProgramSource, ones: Mapping[str, bool], most: Most, what: str) -> Built:
    """Return a program for sizes of 1, and for all sizes from 2 to `most` of the other names."""
    room = {name: most[name] for name, one in ones.items() if not one}
    limits = {name: [1, 1] if one else [FEWEST, most[name]] for name, one in ones.items()}
    if not room:
        return exact(source, source.free.all(1))
    try:
        built, follows = _built(source, ones, room)
    except UnsizedError as e:
        text = f"export: {what} has no program for all sizes up to {most}: {e}{_hint(source, ones, room)}"
        raise InputError.here(text) from None
    return told(built, source.free, {"sizes": limits, **follows})


def _built(source: ProgramSource, ones: Mapping[str, bool], room: Most) -> tuple[Built, dict[str, Any]]:
    def at(sizes: Sequence[int]) -> ProgramSource:
        now = dict(zip(room, sizes))
        return at_sizes(source, tuple([(name, now.get(name, 1)) for name in ones]))

    rooms = build_rooms(at, room, None, gpu=True)
    return rooms.built, portable(rooms)


def _hint(source: ProgramSource, ones: Mapping[str, bool], room: Most) -> str:
    """Return what to do: all of a table is no slice of it, so one less can be another graph."""
    less = {name: n - 1 for name, n in room.items()}
    for tried in ({**room, name: n} for name, n in less.items() if n > 1):
        try:
            _built(source, ones, tried)
        except UnsizedError:
            continue
        return f"; sizes={tried} works"
    return "; compile again with numbers in inputs=, load what train.save wrote, and export that"


def exact(source: ProgramSource, sizes: Sizes) -> Built:
    """Return the program for some sizes alone."""
    built = at_sizes(source, sizes).traced().compiled()
    return told(built, source.free, {"sizes": {name: [n, n] for name, n in sizes}}) if sizes else built


def told(built: Built, free: FreeSizes, room: Mapping[str, Any]) -> Built:
    """Return a program that says which sizes it serves, and in its inputs, which axes these are."""
    program = built.program
    fields = [
        f if f.name.startswith(PREFIX) else replace(f, spec={**f.spec, "sizes": _names(free, f.name)})
        for f in program.inputs
    ]
    return built._replace(program=replace(program, inputs=tuple(fields), meta={**program.meta, "room": room}))


def _names(free: FreeSizes, name: str) -> list[str | None]:
    return [None if isinstance(n, int) else name_of(n, d) for d, n in enumerate(free.types[name].shape)]
