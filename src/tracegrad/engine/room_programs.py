"""Programs with room for many sizes: their arrays are as large as a capacity, and calls use parts of them."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tracegrad.compiler.build import ProgramSource, at_sizes
from tracegrad.compiler.inputtypes import Sizes
from tracegrad.compiler.rooms import Rooms, build_rooms
from tracegrad.engine.run_program import RunProgram
from tracegrad.kernels.form import UnsizedError
from tracegrad.runtime.base import DeviceInfo
from tracegrad.tuning import ROOM_RUNS

LEAST_ROOM = 8  # a smaller one saves less than compiling it takes
FINE_ROOMS = 4  # rooms from one power of two to the next where there are many runs; else one
MOST_WASTE = 2  # times a new room's elements: an old room up to this large serves if no new one can be added
MOST_FAILED = 3  # rooms of a kind that cannot be built: then none is tried, even if each call is the largest so far


class Room(NamedTuple):
    """A program that also serves smaller sizes, by padding. `base` is that program; `at` returns it for other sizes."""

    rooms: Rooms
    base: RunProgram

    def at(self, given: Sequence[int], source: ProgramSource, sizes: Sizes) -> RunProgram | None:
        """Return the program to run at some sizes; None if there is none. given: the sizes that vary."""
        fitted = self.rooms.at(given)
        if fitted is None:
            return None
        made = RunProgram(fitted.built, source, sizes, self.base, self.base.version)
        made.inputs = tuple([fitted.fields[f.name] for f in made.inputs])
        made.indexed = any("range" in f.spec for f in made.inputs)
        made.room, made.results = fitted.inputs, fitted.results
        return made


Key = tuple[int, ...]  # of each size: its room; 0 if it needs no padding; -n if it is fixed at n


class RoomPrograms:
    """Programs for many sizes by their room, the least recently used first."""

    def __init__(self, capacity: int, own: int, own_here: int, version: object = None) -> None:
        """own: how many sizes get programs of their own. own_here: the same on this device, if it is larger.

        version: of the model, for a forward.
        """
        self.capacity, self.own, self.own_here, self.version = capacity, own, own_here, version
        self.refused: dict[Key, str] = {}  # kind of room -> why no program can have it; such a kind is not tried again
        self._works: set[Key] = set()  # kinds with a room that was built: a refusal concerns one room only
        self._failed: set[tuple[Key, Key]] = set()  # rooms that cannot be built for some sizes
        self._kept: OrderedDict[Key, Room] = OrderedDict()
        self._uses: Counter[Key] = Counter()

    def of(
        self, source: ProgramSource, sizes: Sizes, seen: set[Sizes], runs: int, device: DeviceInfo
    ) -> tuple[RunProgram | None, list[RunProgram]]:
        """Return the program for some sizes, built if needed, and the programs dropped for it.

        seen: all sizes so far. runs: how many runs had these sizes so far.
        Returns None as the program if no program with room serves these sizes.
        """
        dropped: list[RunProgram] = []
        for key in self._choices(sizes, seen, runs, device):
            at = [n for (_, n), k in zip(sizes, key) if k >= 0]
            if not self._fits(key, at) and _kind(key) not in self.refused:
                dropped += self._build(key, source, sizes, seen, device.gpu)
            if _kind(key) in self.refused:
                continue
            if not self._fits(key, at):
                wide = MOST_WASTE * _elements(key)
                larger = [k for k in self._larger(key) if _elements(k) <= wide and self._fits(k, at)]
                key = min(larger, key=_elements, default=None)
            if key is not None:
                room = self._kept[key] = self._kept.pop(key)
                return room.at(at, source, sizes), dropped
        return None, dropped

    def _fits(self, key: Key, at: Sequence[int]) -> bool:
        """Return whether a kept room serves these sizes."""
        return key in self._kept and self._kept[key].rooms.fits(at)

    def _build(self, key: Key, source: ProgramSource, sizes: Sizes, seen: set[Sizes], gpu: bool) -> list[RunProgram]:
        """Build the room of a key, unless this failed for the same sizes before. Return the programs dropped for it.

        After a failure no more rooms of its kind are built, unless one works, or a size of the call is the largest yet.
        """
        kind, room = _kind(key), self._kept.get(key)
        tried = key, tuple([n for (_, n), k in zip(sizes, key) if k])
        if tried in self._failed:
            return []
        try:
            made = built(source, sizes, seen, key, room and room.rooms, gpu)
        except UnsizedError as e:
            self._failed.add(tried)
            failures = sum(_kind(k) == kind for k, _ in self._failed)
            # the largest call so far can be as long as a table: then a room that is smaller by 1 serves others
            most = any(k > 0 and n == max(dict(s)[name] for s in seen) for (name, n), k in zip(sizes, key))
            if kind not in self._works and (not most or failures >= MOST_FAILED):
                self.refused[kind] = str(e)
            return []
        self._works.add(kind)
        dropped = [self._kept.pop(key).base] if room else []
        dropped += [self._kept.popitem(last=False)[1].base] if len(self._kept) >= self.capacity else []
        self._kept[key] = Room(made, RunProgram(made.built, version=self.version))
        return dropped

    def _choices(self, sizes: Sizes, seen: set[Sizes], runs: int, device: DeviceInfo) -> Iterator[Key]:
        """Yield rooms in the order of trials.

        First, one size is exact (not padded) and the others are fixed, if many calls differ in that size alone. Next,
        on a CPU with several sizes that vary, one of them is exact and the others are padded. Last, all are padded. A
        GPU skips the second case, because launches cost it more than padding does. A size of 1 is always fixed,
        because one row can be broadcast.
        """
        for name, _ in sizes if device.sizes == "exact" else ():
            key = exact_alone(sizes, name)
            others = [k for k in self._kept if k != key and max(k) == 0 and k.index(0) == key.index(0)]
            if len(_fitting(seen, key)) > max(self.own * (1 + len(others)), self.own_here):
                yield key
        varying = tuple([name for name, n in sizes if n != 1])
        if varying and len(seen) > self.own_here * len(sizes):
            slow = device.sizes == "exact" and (device.software or not device.gpu)
            for exact in exact_first(varying) if slow else [None]:
                yield self._key(sizes, exact, runs)

    def _larger(self, key: Key) -> list[Key]:
        """Return the keys of kept rooms that hold all sizes which a room of this key holds."""
        return [k for k in self._kept if all(m == n if min(m, n) < 1 else m >= n for m, n in zip(k, key))]

    @property
    def serves(self) -> bool:
        """True if there is a program that pads a size."""
        return any(max(key) > 0 for key in self._kept)

    def _key(self, sizes: Sizes, exact: str | None, runs: int) -> Key:
        """Return the capacities for a call: coarse at first, close to its sizes after many runs.

        A larger program that exists is taken instead if it does not waste too many elements.
        """

        def key(steps: int) -> Key:
            return tuple([0 if name == exact else -1 if n == 1 else room_for(n, steps) for name, n in sizes])

        coarse, fine = key(1), key(FINE_ROOMS)
        self._uses[fine] = max(self._uses[fine] + 1, runs)
        wanted = fine if fine in self._kept or self._uses[fine] >= ROOM_RUNS else coarse
        if wanted in self._kept:
            return wanted
        at_hand = min(self._larger(fine), key=_elements, default=wanted)
        waste = MOST_WASTE if len(self._kept) >= self.capacity else 1
        return at_hand if _elements(at_hand) <= waste * _elements(wanted) else wanted

    def drop(self) -> list[RunProgram]:
        """Drop all programs, and return them."""
        dropped = [room.base for room in self._kept.values()]
        self._kept.clear()
        self._uses.clear()
        self._failed.clear()
        self.refused.clear()
        return dropped


def _kind(key: Key) -> Key:
    """Return what rooms of all sizes have in common. A size of 1 differs: one row can be broadcast."""
    return tuple([min(max(n, -2), 1) for n in key])


def _elements(key: Key) -> int:
    return math.prod([max(n, 1) for n in key])


def exact_first(varying: tuple[str, ...]) -> list[str | None]:
    """Return the size to compute without padding, for each trial in order; None: all sizes are padded."""
    return [*(varying if len(varying) > 1 else ()), None]


def room_for(n: int, steps: int) -> int:
    """Return the smallest room that holds size `n`, if rooms have `steps` sizes for each power of two."""
    power = 1 << max((n - 1).bit_length() - 1, 0)
    return max(-(-n * steps // power) * power // steps, LEAST_ROOM)


def exact_alone(sizes: Sizes, name: str) -> Key:
    """Return the key of a program without padding, in which one size can vary and all others are fixed."""
    return tuple([0 if other == name else -n for other, n in sizes])


def _fitting(seen: Iterable[Sizes], key: Key) -> list[Sizes]:
    """Return the sizes that agree with all fixed sizes of a key."""
    return [sizes for sizes in seen if all(k >= 0 or n == -k for (_, n), k in zip(sizes, key))]


def _tried(room: dict[str, int], largest: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the rooms to try, the best first. largest: sizes so far that the first room holds."""
    fine = {name: min(room_for(n, FINE_ROOMS), room[name]) for name, n in largest.items()}
    return [room, fine, dict(largest)]


def _most(largest: int, sizes: int, before: int | None) -> int:
    """Return the capacity for the size without padding.

    largest: of this size so far. sizes: how many sizes vary. before: the capacity of the room to replace.
    """
    most = 5 * room_for(largest, 1) // 4 if sizes > 1 else largest  # not a power of two, where plans change
    return most if before is None else max(before * (2 if largest > before else 1), most)


def built(
    source: ProgramSource, sizes: Sizes, seen: Iterable[Sizes], key: Key, before: Rooms | None, gpu: bool
) -> Rooms:
    """Build a program for the sizes that are not fixed.

    If calls exceeded the capacity of `before` in the size without padding, that capacity at least doubles.

    If the user's functions raise at this capacity, smaller ones are tried, down to the largest sizes so far.

    gpu: as for `build_rooms`. Raises: UnsizedError if each size must have a program of its own.
    """
    room = {name: k for (name, _), k in zip(sizes, key) if k >= 0}
    exact = next((name for name, k in room.items() if not k), None)

    def at(given: Sequence[int]) -> ProgramSource:
        now = dict(zip(room, given))
        return at_sizes(source, tuple([(name, now.get(name, n)) for name, n in sizes]))

    found = [dict(s) for s in _fitting(seen, key)]
    largest = {name: max(s[name] for s in found if s[name] <= n or name == exact) for name, n in room.items()}
    rooms = _tried(room, largest)
    if exact is not None:
        rooms = [{**r, exact: _most(largest[exact], len(room), before and before.room[exact])} for r in rooms]
    now, why = dict(sizes), UnsizedError("no room was tried")
    for k, r in enumerate(rooms):
        if r not in rooms[:k] and all(now[name] <= n for name, n in r.items()):
            try:
                return build_rooms(at, r, exact, gpu)
            except UnsizedError as e:
                why = e
    raise why
