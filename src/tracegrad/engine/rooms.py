"""The programs of a step or forward that have room for several sizes of calls."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracegrad.compiler.build import ProgramSource, at_sizes
from tracegrad.compiler.inputtypes import Sizes
from tracegrad.compiler.rooms import Fitted, Rooms, build_rooms
from tracegrad.engine.run_program import RunProgram
from tracegrad.kernels.form import UnsizedError
from tracegrad.runtime.base import DeviceInfo

LEAST_ROOM = 2
FEW_ROOMS, MANY_ROOMS = 2, 4  # rooms from one power of two to the next
MOST_WASTE = 2  # elements in a room at hand, where no more rooms are kept, for each in the room that would be compiled
COARSE_RUNS = 64  # runs in a room before finer rooms are compiled


class Found(NamedTuple):
    """A program with room for some sizes, at these."""

    fitted: Fitted
    base: RunProgram

    def program(self, source: ProgramSource, sizes: Sizes, version: object) -> RunProgram:
        """Return the program to run."""
        made = RunProgram(self.fitted.built, source, sizes, self.base, version)
        made.inputs = tuple([self.fitted.fields[f.name] for f in made.inputs])
        made.room, made.results = self.fitted.inputs, self.fitted.results
        return made


class Room(NamedTuple):
    """A program with room for some sizes."""

    rooms: Rooms
    base: RunProgram


Key = tuple[int, ...]  # the room of each size; 0: exact, 1: the size is 1


class RoomPrograms:
    """Programs by their room, the least recently used first."""

    def __init__(self, capacity: int, version: object = None) -> None:
        """version: of the model, for a forward."""
        self.capacity, self.version = capacity, version
        # names of the sizes that vary -> why no program is exact in the first, the second, ..., and why none has room
        self.refused: dict[tuple[str, ...], list[str]] = {}
        self._kept: OrderedDict[Key, Room] = OrderedDict()
        self._uses: Counter[Key] = Counter()

    def of(
        self, source: ProgramSource, sizes: Sizes, seen: Iterable[Sizes], device: DeviceInfo
    ) -> tuple[Found | None, list[RunProgram]]:
        """Return the program for some sizes, built if needed, and the programs dropped for it.

        On a CPU, one of several sizes is exact in runs, if that can be proved; the others have room. On a GPU, launches
        cost more than elements that do not count. A size of 1 is fixed, because one row can be broadcast. seen: all
        sizes so far.
        """
        slow = device.software or not device.gpu
        dropped: list[RunProgram] = []
        varying = tuple([name for name, n in sizes if n != 1])
        at = [n for _, n in sizes if n != 1]
        refused = self.refused.setdefault(varying, [])
        for exact in (exact_first(varying) if slow else [None])[len(refused) :] if varying else ():
            key = self._key(sizes, exact)
            room = self._kept.pop(key, None)
            fitted = room.rooms.at(at) if room else None
            if room is None or not room.rooms.fits(at):
                dropped += [room.base] if room else []
                try:
                    made = _built(source, sizes, seen, key, room and room.rooms, device.gpu)
                except UnsizedError as e:
                    refused.append(str(e))
                    continue
                room, fitted = Room(made, RunProgram(made.built, version=self.version)), made.at(at)
                dropped += self._beyond()
            assert room is not None
            self._kept[key] = room
            return fitted and Found(fitted, room.base), dropped
        return None, dropped

    @property
    def serves(self) -> bool:
        """Whether there is a program with room."""
        return bool(self._kept)

    def _key(self, sizes: Sizes, exact: str | None) -> Key:
        """Return the room to compute in: finer where there are many runs, and one at hand where many are kept."""

        def key(steps: int) -> Key:
            return tuple([0 if name == exact else n if n == 1 else room_for(n, steps) for name, n in sizes])

        coarse, fine = key(FEW_ROOMS), key(MANY_ROOMS)
        self._uses[coarse] += 1
        wanted = fine if fine in self._kept or self._uses[coarse] > COARSE_RUNS else coarse
        if wanted in self._kept or len(self._kept) < self.capacity:
            return wanted
        larger = [k for k in self._kept if all(m == n if min(m, n) < 2 else m >= n for m, n in zip(k, wanted))]
        at_hand = min(larger, key=_elements, default=wanted)
        return at_hand if _elements(at_hand) <= MOST_WASTE * _elements(wanted) else wanted

    def _beyond(self) -> list[RunProgram]:
        """Drop a program if there will be too many, and return it."""
        return [self._kept.popitem(last=False)[1].base] if len(self._kept) >= self.capacity else []

    def drop(self) -> list[RunProgram]:
        """Drop all programs, and return them."""
        dropped = [room.base for room in self._kept.values()]
        self._kept.clear()
        self._uses.clear()
        self.refused.clear()
        return dropped


def _elements(key: Key) -> int:
    return math.prod([max(n, 1) for n in key])


def exact_first(varying: tuple[str, ...]) -> list[str | None]:
    """Return which size to compute exactly, in the order of trials; None: none."""
    return [*(varying if len(varying) > 1 else ()), None]


def room_for(n: int, steps: int) -> int:
    """Return the least room for a size, of which there are `steps` from one power of two to the next."""
    most = LEAST_ROOM
    while 2 * most <= n:
        most *= 2
    return -(-n * steps // most) * most // steps if n > most else most


def _built(
    source: ProgramSource, sizes: Sizes, seen: Iterable[Sizes], key: Key, before: Rooms | None, gpu: bool
) -> Rooms:
    """Build a program for the sizes that are not 1; the exact one has twice the room that it had `before`.

    If the user's functions refuse its room, it has the largest sizes so far.
    """
    varying = [name for name, n in sizes if n != 1]
    exact = next((name for (name, _), n in zip(sizes, key) if not n), None)

    def at(given: Sequence[int]) -> ProgramSource:
        now = dict(zip(varying, given))
        return at_sizes(source, tuple([(name, now.get(name, 1)) for name, _ in sizes]))

    found = [dict(s) for s in seen]
    room = {name: n for (name, _), n in zip(sizes, key) if n != 1}
    largest = {name: max(s[name] for s in found if s[name] <= n or name == exact) for name, n in room.items()}
    if exact is not None:
        room[exact] = largest[exact] = max(2 * before.room[exact] if before else 0, largest[exact])
    try:
        return build_rooms(at, room, exact, gpu)
    except UnsizedError:
        if largest == room:
            raise
        return build_rooms(at, largest, exact, gpu)
