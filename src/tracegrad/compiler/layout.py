"""Lay out memory: the array and offset of each value between kernels, and the arrays that outlive a step."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

from tracegrad.dtypes import STORED, TensorType
from tracegrad.errors import CompileError, InputError
from tracegrad.loops import Move
from tracegrad.nn.module import decays
from tracegrad.nn.parameters import Parameter
from tracegrad.optim import freezing
from tracegrad.optim.arena import Arena, Part
from tracegrad.optim.guard import PARAMS, SCALE_STATE, array_name, bounded_arrays
from tracegrad.optim.optimizer import Optimizer
from tracegrad.optim.transform import Transform
from tracegrad.program import DRAWN, Buffer, Field, Program
from tracegrad.tuning import LITTLE_TEMP, TEMP_ALIGN

CHUNK = 128 * 1024 * 1024  # bytes: the largest array that every WebGPU device can bind
NONE: Set[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Place:
    """A position in an array, `offset` elements from its start. `moves` say how loops change the offset."""

    array: str
    offset: int
    moves: tuple[Move, ...] = ()

    def at(self, elements: int, *moves: Move) -> Place:
        """Return the place that begins `elements` later, with further moves."""
        return Place(self.array, self.offset + elements, (*self.moves, *moves))


@dataclass(frozen=True, slots=True)
class Persistent:
    """Arrays that outlive a step, and the parameters and states of a model in them.

    The arrays come first in a program. A field's `buffer` is a number among them.
    """

    buffers: tuple[Buffer, ...] = ()
    params: tuple[Field, ...] = ()  # in declaration order
    states: tuple[Field, ...] = ()  # names are `state/<path>`
    first: int = 0  # the offset of the optimizer's range of the parameters

    @staticmethod
    def of(program: Program, roles: Sequence[str] = ("param", "grad", "state")) -> Persistent:
        """Return the arrays of some roles that a program shares with its session, and the states of its model."""
        kept = [k for k, b in enumerate(program.buffers) if b.role in roles or b.fill == DRAWN]
        params, states = (
            tuple([replace(f, buffer=kept.index(f.buffer)) for f in fields])
            for fields in (program.params, program.model_states)
        )
        return Persistent(tuple([program.buffers[k] for k in kept]), params, states, program.first)

    def place(self, name: str) -> Place:
        """Return the place of a parameter."""
        return self._place(next(f for f in self.params if f.name == name))

    def place_of_state(self, name: str) -> Place:
        """Return the place of a state: a model's state, or else the array of this name (PARAMS begins at `first`)."""
        found = next((f for f in self.states if f.name == name), None)
        return self._place(found) if found else Place(name, self.first if name == PARAMS else 0)

    def _place(self, f: Field) -> Place:
        return Place(self.buffers[f.buffer].name, f.offset)


@dataclass(slots=True)
class Filling:
    """Arrays that are filled with named values one after the other: `input.f32`, `input.i32`."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])

    def add(self, role: str, name: str, type: TensorType) -> Place:
        """Return the next free place of the array for this role and type, and reserve it for the value `name`."""
        array = f"{role}.{type.dtype.storage}"
        at = self.sizes.get(array, 0)
        self.sizes[array] = max(at + type.size, 1)  # at least 1, because no device allows an empty array
        self.places[name], self.types[name] = Place(array, at), type
        return self.places[name]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A temporary: alive from the launch that writes it to the last that reads it, both included."""

    key: int
    size: int
    first: int
    last: int


class Beside(NamedTuple):
    """The temporaries that launches read and write together.

    read:    key -> the values that some launch reads while it writes the key's value, or the other way round.
    written: key -> the values that some launch writes together with the key's value.
    crowded: the keys of values of launches that bind many other arrays. These values should share one array.
    room:    the keys of each launch, and how many arrays they can take beside all else that the launch binds.
    """

    read: Mapping[int, Set[int]]
    written: Mapping[int, Set[int]]
    crowded: Set[int]
    room: Sequence[tuple[Set[int], int]] = ()


class Chunk:
    """An array of temporaries."""

    def __init__(self) -> None:
        self.end, self.keys = 0, set[int]()
        self.pieces: list[tuple[int, int, Lifetime]] = []  # in order: begin, end, temporary

    def gap(self, t: Lifetime) -> int:
        """Return the lowest place that is free while a temporary lives."""
        at, first, last, size = 0, t.first, t.last, t.size
        for begin, end, other in self.pieces:
            if other.first <= last and first <= other.last:
                if at + size <= begin:
                    break
                if end > at:
                    at = -(-end // TEMP_ALIGN) * TEMP_ALIGN
        return at

    def add(self, at: int, t: Lifetime) -> None:
        """Put a temporary at a place."""
        insort(self.pieces, (at, at + t.size, t), key=itemgetter(0))
        self.keys.add(t.key)
        self.end = max(self.end, at + t.size)


def share_memory(
    lifetimes: Iterable[Lifetime], prefix: str, beside: Beside, most_arrays: int
) -> tuple[dict[int, Place], dict[str, int]]:
    """Return places for temporaries in which no two that live at the same time overlap, and the size of each array.

    Temporaries are placed by size, largest first, each at the lowest place that is free while it lives. Arrays stay
    within `CHUNK` where values allow.

    beside: which values launches touch together. Values that a launch reads and writes are in different arrays, as far
            as `most_arrays` allows, because drivers can load read-only arrays at any time. If temporaries need several
            arrays anyway, values that a launch writes are in different arrays, too. The launch then binds each input by
            itself, so repeated layers have equal kernels.
    """
    order = sorted(lifetimes, key=lambda t: (-t.size, t.first, t.key))
    most = CHUNK // STORED[prefix.split(".")[1]].itemsize
    chunks = _few_arrays(order, beside, most_arrays)
    if any(chunk.end > most for chunk in chunks):
        chunks = _several_arrays(order, most, beside)
    names = [f"{prefix}.{k}" if k else prefix for k in range(len(chunks))]
    places = {t.key: Place(name, at) for name, chunk in zip(names, chunks) for at, _, t in chunk.pieces}
    return places, {name: chunk.end for name, chunk in zip(names, chunks)}


def _few_arrays(order: Sequence[Lifetime], beside: Beside, most_arrays: int) -> list[Chunk]:
    """Put each value into the array that grows least, among arrays without values that launches read beside it."""
    chunks: list[Chunk] = []
    for t in order:
        others = beside.read.get(t.key, NONE)
        free = chunks[:1] if t.key in beside.crowded else [c for c in chunks if c.keys.isdisjoint(others)]
        if not chunks or (not free and len(chunks) < most_arrays):
            chunks.append(Chunk())
            free = chunks[-1:]
        found = [(chunk.gap(t), chunk) for chunk in free or chunks]
        at, chunk = min(found, key=lambda place: max(0, place[0] + t.size - place[1].end))
        chunk.add(at, t)
    return chunks


def _several_arrays(order: Sequence[Lifetime], most: int, beside: Beside) -> list[Chunk]:
    """Put small values into one array, which all launches share, and keep the other values apart from each other.

    Large values are apart only as far as launches can bind more arrays.
    """
    bound = most // LITTLE_TEMP
    while len(chunks := _packed([t for t in order if t.size <= bound], most, {})) > 1:
        bound //= LITTLE_TEMP
    apart = {key: beside.read[key] | beside.written[key] for key in beside.read}
    small = {t.key for t in order if t.size <= bound}
    room = [(keys - small, arrays - (not keys.isdisjoint(small))) for keys, arrays in beside.room]
    return [*chunks, *_packed([t for t in order if t.size > bound], most, apart, room)]


def _packed(
    order: Iterable[Lifetime],
    most: int,
    beside: Mapping[int, Set[int]],
    room: Sequence[tuple[Set[int], int]] = (),
) -> list[Chunk]:
    """Place temporaries in the given order, in arrays of at most `most` elements."""
    chunks: list[Chunk] = []
    for t in order:
        touching = [(keys, arrays) for keys, arrays in room if t.key in keys]
        for chunk in _choices(chunks, beside.get(t.key, NONE), touching):
            at = chunk.gap(t)
            # an array with one value larger than `most` can hold others in the same range
            if not chunk.keys or at + t.size <= max(most, chunk.end):
                chunk.add(at, t)
                if chunk not in chunks:
                    chunks.append(chunk)
                break
    return chunks


def _choices(chunks: Sequence[Chunk], others: Set[int], touching: Sequence[tuple[Set[int], int]]) -> list[Chunk]:
    """List the arrays to try for a value: existing ones without `others`, a new one, then any that launches can bind.

    touching: the launches that touch the value, as in `Beside.room`.
    """
    new = Chunk()
    allowed = [*chunks, new]
    for keys, arrays in touching:
        bound = [chunk for chunk in chunks if not chunk.keys.isdisjoint(keys)]
        if len(bound) >= arrays:
            allowed = [chunk for chunk in allowed if chunk in bound]
    apart = [chunk for chunk in allowed if chunk.keys.isdisjoint(others)]
    return apart if new in apart else [*apart, *[c for c in allowed if c not in apart], new]


HALTED = "halted"  # the state and output by which the device skips steps queued after a step that was not applied
States = Mapping[str, tuple[TensorType, Mapping[str, Any]]]  # of a model, by `state/<path>`: type, and how it begins
NO_STATES: States = {}


def arena_of(parameters: Mapping[str, Parameter], optimizer: Optimizer | None = None) -> Arena:
    """Return the layout of the trainable parameters."""
    by_name = optimizer.decay_filter if optimizer else None
    return Arena.of((n, p.shape, decays(n, p, by_name)) for n, p in parameters.items() if p.trainable)


def persistent_of(
    parameters: Mapping[str, Parameter],
    part: Part,
    optimizer: Optimizer | None = None,
    precision: str = "f32",
    states: States = NO_STATES,
    freeze: Mapping[str, freezing.Mask] = freezing.NONE,
    grads: bool = True,
) -> Persistent:
    """Return arrays for parameters and states; with an optimizer, also for its state and, if kept, gradients.

    Raises CompileError if no parameter is trainable.
    """
    arena = part.whole
    places = {slot.name: Place("params", slot.offset) for slot in arena.slots}
    decay = {slot.name: slot.decay for slot in arena.slots}
    frozen, kept = Filling(), Filling()
    for n, p in parameters.items():
        if not p.trainable:
            places[n] = frozen.add("frozen", n, p.type)
    buffers = [Buffer("params", "f32", arena.size, "param")] if arena.size else []
    buffers += [Buffer(a, a.rpartition(".")[2], size, "param") for a, size in frozen.sizes.items()]
    for n, (type_, _) in states.items():
        kept.add("state", n, type_)
    buffers += [Buffer(a, a.rpartition(".")[2], size, "state", DRAWN) for a, size in kept.sizes.items()]
    if optimizer is not None:
        if not arena.size:
            raise CompileError.here(
                "no parameter of the model is trainable: leave out trainable=False and frozen= for some, or use "
                "tg.compile_forward"
            )
        buffers += [Buffer(part.at + "grads", "f32", part.own.size, "grad")] if grads else []
        buffers += _state(part, optimizer.transform, precision, freeze.values())
    number = {b.name: k for k, b in enumerate(buffers)}

    def value(name: str, type: TensorType, at: Place, **spec: Any) -> Field:
        return Field(name, number[at.array], at.offset, type.dtype.name, type.shape, spec)

    params = [
        value(n, p.type, places[n], init=p.init.spec(), decay=decay.get(n, False), trainable=p.trainable)
        for n, p in parameters.items()
    ]
    own = [value(n, type_, kept.places[n], init=drawn, trainable=False) for n, (type_, drawn) in states.items()]
    return Persistent(tuple(buffers), tuple(params), tuple(own), part.first)


def _state(part: Part, transform: Transform, precision: str, masks: Collection[freezing.Mask]) -> list[Buffer]:
    """Return the arrays of an optimizer's state, and the masks, bounds and flags that a step needs."""
    at, sizes = part.at, transform.sizes(part.own)
    buffers = [Buffer(at + n, "f32", sizes[n], "state", fill) for n, fill in transform.fills.items()]
    if precision == "f16":
        if taken := sorted(SCALE_STATE.keys() & transform.state):
            raise InputError.here(
                f"the loss scale already uses the state names {', '.join(taken)}: rename those of the optimizer"
            )
        buffers += [Buffer(at + n, "f32", 1, "state", fill) for n, fill in SCALE_STATE.items()]
    buffers.append(Buffer(HALTED, "i32", 1, "state"))
    buffers += [Buffer(mask.name, "f32", mask.size, "state") for mask in masks]
    if masks and transform.counts:
        buffers.append(Buffer(at + freezing.MISSED, "f32", part.own.size, "state"))
    if bounded := bounded_arrays(transform):
        buffers.append(Buffer(at + array_name(bounded), "f32", len(bounded), "state"))
    return buffers
