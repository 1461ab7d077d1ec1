"""An independent check that a Program never computes with the wrong memory.

It knows nothing of lifetimes. Every element of every array is labelled with the value it holds; the dispatches are then
played in order on labels instead of numbers. The Plan says which named value each slot of a dispatch stands for. The
Program alone says where that slot points: by its offsets, and the arrays that its shader text names. A dispatch must
find exactly the labels of the value it wants, and leaves its own behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.layout import Lifetime, Persistent, Place, arena_of, persistent_of
from tracegrad.compiler.pipeline import optimize
from tracegrad.compiler.places import make_plan
from tracegrad.compiler.plan import Plan
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernel_source import KernelSource
from tracegrad.kernels.expr import indices_of, walk
from tracegrad.kernels.form import Kernel, Store
from tracegrad.nn.module import named_parameters
from tracegrad.optim.arena import Part
from tracegrad.program import PERSISTENT, Program

ELEMENT = 2**32  # labels are value * ELEMENT + element
GARBAGE = -1


@dataclass(frozen=True)
class Planned:
    """A Program with the Plan that it was spelled out from."""

    graph: Graph  # optimized
    plan: Plan
    program: Program


def planned(
    graph: Graph,
    persistent: Persistent | None = None,
    specs: Any = None,
    meta: Mapping[str, Any] | None = None,
) -> Planned:
    """What `make_program` does, with the plan kept."""
    persistent = persistent or Persistent()
    plan = make_plan(optimize(graph), persistent)
    return Planned(plan.storage.graph, plan, assemble(plan, persistent, specs or {}, meta or {}))


def planned_training(arguments: Mapping[str, Any], built: Any) -> Planned:
    """The plan of what `build_training(**arguments)` built."""
    parameters = named_parameters(arguments["model"])
    persistent = persistent_of(
        parameters,
        Part.alone(arena_of(parameters, arguments["optimizer"])),
        arguments["optimizer"],
        built.graph.precision,
        {f.name: (f.type, f.spec["init"]) for f in built.program.model_states},
    )
    specs = {f.name: f.spec for f in built.program.inputs}
    return planned(built.graph, persistent, specs, built.program.meta)


@dataclass(frozen=True, eq=False)
class Slot:
    """One operand of one member of a launch: elements [begin, begin + size) of buffer `buffer` of the Program."""

    number: int  # in the launch
    value: Tensor
    written: bool
    member: int
    buffer: int
    begin: int

    @property
    def end(self) -> int:
        return self.begin + self.value.size

    def overlaps(self, other: Slot) -> bool:
        return self.buffer == other.buffer and self.begin < other.end and other.begin < self.end


def calls_of(source: KernelSource) -> Iterator[tuple[str, dict[str, int]]]:
    """Each call of a shader function: its text, and the number in its offset variables -> the slot of the launch."""
    functions = source.wgsl.split("\nfn k")[1:]
    main = functions[-1].partition("\nfn main(")[2]
    puts = {
        name: {
            number: array
            for numbers, array in re.findall(r"(?:case )?([\d, ]+|default): \{ mem(\d+)\[i\] = x; \}", body)
            for number in numbers.split(", ")
        }
        for name, body in re.findall(r"fn (put_\w+)(.*)", source.wgsl)
    }
    for function in functions:
        name = function.partition("(")[0]
        fixed = re.findall(r"let o(\d+) = at\[(\d+)\]\.([xyzw]);", function)
        if fixed:
            yield function, {o: 4 * int(vector) + "xyzw".index(component) for o, vector, component in fixed}
            continue
        shared = re.findall(r"let o(\d+) = at\[\(first \+ (\d+)\) / 4\]\[\(first \+ \2\) % 4\];", function)
        begin, end, each, first, slots = map(
            int,
            re.findall(
                rf"w >= (\d+) && w < (\d+)\) {{ let n = \(w - \d+\) / (\d+); k{name}\(.*, (\d+) \+ n \* (\d+)\); }}",
                main,
            )[0],
        )
        for n in range((end - begin) // each):
            arrays = {name: of.get(str(n), of["default"]) for name, of in puts.items()}
            stores = re.sub(
                r"(put_\w+)\(n, (.*)\);", lambda put, arrays=arrays: f"mem{arrays[put[1]]}[{put[2]}] = x;", function
            )
            yield stores, {o: first + n * slots + int(s) for o, s in shared}


def bindings_of_slots(source: KernelSource) -> dict[int, int]:
    """slot -> binding, as the shader text says; checked against the NumPy text where that names both."""
    out: dict[int, int] = {}
    for function, local in calls_of(source):
        for binding, o in re.findall(r"mem(\d+)\[\(?o(\d+) \+", function):
            if out.setdefault(local[o], int(binding)) != int(binding):
                raise AssertionError(f"slot {local[o]} of {source.label} lies in two arrays")
    for binding, slot in re.findall(r"view\(memory\[(\d+)\], at\[(\d+)\]", source.texts["numpy"]):
        if out.setdefault(int(slot), int(binding)) != int(binding):
            raise AssertionError(f"slot {slot} of {source.label} lies in other arrays in NumPy than in WGSL")
    return out


def written_slots(source: KernelSource) -> set[int]:
    """The slots that the shader assigns to."""
    out: set[int] = set()
    for function, local in calls_of(source):
        out |= {local[o] for o in re.findall(r"^\s*mem\d+\[\(?o(\d+) \+ .*\] = ", function, re.MULTILINE)}
    return out


def slots_of(p: Planned, number: int, at: tuple[int, ...] = ()) -> list[Slot]:
    """All operands of dispatch `number`, in iteration `at` of the loops around it."""
    (plan, launch), dispatch = list(p.plan.dispatched())[number], p.program.dispatches[number]
    offsets = list(dispatch.offsets)
    for slot, move in dispatch.moves:
        offsets[slot] += move.step * ((*at, *(0,) * 9)[move.depth] % move.ring)
    source = p.program.kernels[dispatch.kernel]
    binding, writes = bindings_of_slots(source), written_slots(source)
    named = [
        (t, k >= len(plan.externals[id(c)]), member)
        for member, c in enumerate(launch.clusters)
        for k, t in enumerate([*plan.externals[id(c)], *c.outs])
    ]
    assert len(named) == source.slots == len(dispatch.offsets), f"dispatch {number} names other slots than its kernel"
    out: list[Slot] = []
    for k, (t, written, member) in enumerate(named):
        if k not in binding:  # the value turned out to be needless, as a guard that never holds
            assert not written, f"dispatch {number} never writes slot {k}"
            continue
        assert written == (k in writes), f"dispatch {number}: slot {k} is {'not ' * written}written by the shader"
        assert source.bindings[binding[k]].written or not written, f"dispatch {number} writes a read-only binding"
        out.append(Slot(k, t, written, member, dispatch.buffers[binding[k]], offsets[k]))
    return out


def order_of(program: Program) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Dispatches in the order they run, each with its iteration of the loops around it."""

    def span(begin: int, end: int, at: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        number = begin
        while number < end:
            around = [x for x in program.loops if x.begin <= number < x.end]
            if len(around) == len(at):
                yield number, at
                number += 1
            else:
                loop = around[len(at)]
                for k in range(loop.count):
                    yield from span(loop.begin, loop.end, (*at, k))
                number = loop.end

    return span(0, len(program.dispatches), ())


class Simulator:
    """Memory in which every element says which value it belongs to."""

    def __init__(self, p: Planned) -> None:
        self.p = p
        self.number = {b.name: k for k, b in enumerate(p.program.buffers)}
        self.memory = [np.full(b.size, GARBAGE, np.int64) for b in p.program.buffers]
        for k, b in enumerate(p.program.buffers):
            if b.role in (*PERSISTENT, "input", "const"):
                self.memory[k] = self.old(k, 0, b.size)
        self.writers = self.allowed_writers()
        self.launches = list(p.plan.dispatched())
        self.scans = {s.scan.serial: s for plan in p.plan.nested() for s in plan.scans.values()}
        self.leaves = {t.serial: (s, k) for s in self.scans.values() for k, t in enumerate(s.leaves)}
        self.labels: dict[tuple[int, tuple[int, ...]], int] = {}

    @staticmethod
    def old(buffer: int, begin: int, size: int) -> np.ndarray:
        """Labels of what the array holds before the run."""
        return -(buffer + 2) * ELEMENT - np.arange(begin, begin + size)

    def allowed_writers(self) -> dict[int, set[int]]:
        """array -> the values that may be written into it; temporaries and outputs are not listed."""
        fixed = [k for k, b in enumerate(self.p.program.buffers) if b.role not in ("temp", "output")]
        out: dict[int, set[int]] = {k: set() for k in fixed}
        for name, t in self.p.graph.writes.items():
            out[self.place(name)[0]] |= {x.serial for x in leaves_of_pack(t)}
        return out

    def place(self, name: str) -> tuple[int, int]:
        """Array and offset of a state: one of the model's, or an array of its own."""
        own = [(f.buffer, f.offset) for f in self.p.program.model_states if f.name == name]
        return own[0] if own else (self.number[name], 0)

    def wanted(self, t: Tensor, at: tuple[int, ...] = ()) -> np.ndarray:
        """The labels of a value in iteration `at` of the scans around it."""
        if t.prim.family == "pack" or t.prim.name == "reshape":
            return np.concatenate([self.wanted(x, at) for x in t.inputs])
        if t.prim.family == "item":
            return self.item(t, at)
        if t.serial in self.leaves:
            return self.inner(t, at)
        if t.prim.family == "leaf":
            return self.leaf(t)
        return self.label(t, at) * ELEMENT + np.arange(t.size)

    def label(self, t: Tensor, at: tuple[int, ...]) -> int:
        """A number for a value in an iteration."""
        return self.labels.setdefault((t.serial, at), len(self.labels))

    def inner(self, t: Tensor, at: tuple[int, ...]) -> np.ndarray:
        """What a leaf of a body stands for: what an iteration before left, an element, or something from around."""
        scan, k = self.leaves[t.serial]
        if k < len(scan.rings) and at[-1]:
            return self.wanted(scan.roots[k], (*at[:-1], at[-1] - 1))
        outside = self.wanted(scan.scan.inputs[k], at[:-1])
        if not len(scan.rings) <= k < len(scan.rings) + len(scan.body.xs):
            return outside
        element = scan.length - 1 - at[-1] if scan.scan.attrs["reverse"] else at[-1]
        return outside[element * t.size : (element + 1) * t.size]

    def item(self, t: Tensor, at: tuple[int, ...]) -> np.ndarray:
        """A result of a scan: what its last iteration left, or what all gave."""
        scan, k = self.scans[t.inputs[0].serial], t.attrs["index"]
        if k < len(scan.rings):
            return self.wanted(scan.roots[k], (*at, scan.length - 1))
        carry, new = scan.same.get(k, (0, False))
        source = scan.roots[k] if k in scan.roots else scan.roots[carry] if new else scan.leaves[carry]
        parts = [self.wanted(source, (*at, number)) for number in range(scan.length)]
        return np.concatenate(parts[::-1] if scan.scan.attrs["reverse"] else parts)

    def leaf(self, t: Tensor) -> np.ndarray:
        """The labels of what the program was given, by the fields of the Program."""
        program = self.p.program
        if t.prim.name == "literal":
            return self.literal(t)
        role, name = t.attrs["role"], t.attrs["name"]
        if role == "state":
            return self.old(*self.place(name), t.size)
        fields = program.params if role in ("param", "frozen") else program.inputs
        wanted = f"hyper.{name}" if role == "hyper" else name
        (f,) = [f for f in fields if f.name == wanted]
        assert f.shape == t.shape and f.dtype == t.dtype.name
        return self.old(f.buffer, f.offset, t.size)

    def literal(self, t: Tensor) -> np.ndarray:
        """Where the constant's own bytes are, which may be more than one place."""
        k, begin = self.number[f"const.{t.dtype.storage}"], self.p.plan.places[t.serial].offset
        data = np.frombuffer(t.attrs["data"], np.uint8 if t.dtype.name == "bool" else np.uint32)
        stored = np.frombuffer(self.p.program.buffers[k].contents(), np.uint32)[begin : begin + t.size]
        np.testing.assert_array_equal(stored, data, err_msg=f"bytes of constant %{t.serial}")
        return self.old(k, begin, t.size)

    def run(self) -> None:
        """Play every dispatch; then every result must be where the Program says."""
        for number, at in order_of(self.p.program):
            self.dispatch(number, at)
        self.results()

    def dispatch(self, number: int, at: tuple[int, ...]) -> None:
        slots = slots_of(self.p, number, at)
        for s in slots:
            assert s.begin >= 0 and s.end <= self.memory[s.buffer].size, f"dispatch {number}: {s} leaves its array"
            if not s.written:
                found = self.memory[s.buffer][s.begin : s.end]
                label = self.p.program.kernels[self.p.program.dispatches[number].kernel].label
                message = f"dispatch {number} ({label}) reads {s.value!r} where {owners(found)} lie"
                assert np.array_equal(found, self.wanted(s.value, at)), message
        outs = [s for s in slots if s.written]
        self.conflicts(number, slots, outs)
        for s in outs:
            if s.buffer in self.writers:
                mine = s.value.serial in self.writers[s.buffer]
                assert mine, f"dispatch {number} writes {s.value!r} into a foreign array"
            self.memory[s.buffer][s.begin : s.end] = self.wanted(s.value, at)

    def conflicts(self, number: int, slots: list[Slot], outs: list[Slot]) -> None:
        """Within one dispatch there is no order: nothing may be written that another thread reads or writes."""
        for a in outs:
            for b in slots:
                if a is b or not a.overlaps(b):
                    continue
                assert not b.written, f"dispatch {number} writes one place twice: {a} and {b}"
                assert a.member == b.member, f"dispatch {number}: one member reads what another overwrites: {a} and {b}"
                members = self.launches[number][1].members
                kernel = members[a.member].kernel
                first = sum(len(m.kernel.slots) for m in members[: a.member])
                source = self.p.program.kernels[self.p.program.dispatches[number].kernel]
                alone = members[a.member].tiling.lanes == 1
                waits = alone or stores_wait(
                    next(text for text, slots in calls_of(source) if a.number in slots.values())
                )
                assert own_points_only(kernel, b.number - first, a.number - first, b.begin - a.begin, waits), (
                    f"dispatch {number} overwrites {b.value!r} in place but reads it at other points too"
                )

    def results(self) -> None:
        """Outputs, captures and the new persistent arrays."""
        p = self.p
        results = {**p.graph.outputs, **{f"capture.{n}": t for n, t in p.graph.captures.items()}}
        assert {f.name for f in p.program.outputs} == results.keys()
        for f in p.program.outputs:
            t = results[f.name]
            found = self.memory[f.buffer][f.offset : f.offset + t.size]
            assert np.array_equal(found, self.wanted(t)), f"output {f.name} holds {owners(found)}"
        for k, b in enumerate(p.program.buffers):
            if b.role in PERSISTENT:
                wanted = self.old(k, 0, b.size)
                for name, t in p.graph.writes.items():
                    buffer, at = self.place(name)
                    if buffer == k:
                        wanted[at : at + t.size] = self.wanted(t)
                assert np.array_equal(self.memory[k], wanted), f"array {b.name} ends with {owners(self.memory[k])}"


def overlaps(places: Mapping[int, Place], lifetimes: Iterable[Lifetime]) -> list[tuple[int, int]]:
    """Return pairs of temporaries that live at the same time in the same memory: there must be none."""
    known = list(lifetimes)
    out: list[tuple[int, int]] = []
    for k, a in enumerate(known):
        for b in known[k + 1 :]:
            p, q = places[a.key], places[b.key]
            alive = a.first <= b.last and b.first <= a.last
            if alive and p.array == q.array and p.offset < q.offset + b.size and q.offset < p.offset + a.size:
                out.append((a.key, b.key))
    return out


def leaves_of_pack(t: Tensor) -> Iterator[Tensor]:
    """The computed values that make up a new array."""
    if t.prim.family == "pack" or t.prim.name == "reshape":
        for x in t.inputs:
            yield from leaves_of_pack(x)
    else:
        yield t


def stores_wait(function: str) -> bool:
    """Do all lanes wait for each other right before the stores of lane 0?"""
    return bool(re.search(r"storageBarrier\(\);\n  if \(row < \d+ && lane == 0\) \{[^{]*\n  \}\n\}", function))


def own_points_only(kernel: Kernel, read: int, written: int, shift: int, waits: bool) -> bool:
    """Is slot `read` loaded only at the point where `written` is stored, by the thread that stores it?"""
    if shift:
        return False
    store = next(s for s in kernel.body if isinstance(s, Store) and s.slot == written)
    # In a row kernel a value at the outer level is stored by one lane, but may be loaded by all of them.
    lane_0_stores = bool(kernel.inner) and kernel.product is None and not store.inner
    by_all = [s.value for s in kernel.body if not isinstance(s, Store) or s.inner]
    if lane_0_stores and not waits and any(loads(v, read) for v in by_all):
        return False
    values = [s.value for s in kernel.body]
    at = {index for v in walk(values) if v.op == "load" and v.arg[0] == read for index in indices_of(v)}
    return at <= {store.index}


def loads(value: Any, slot: int) -> bool:
    """Does `value` load from the slot?"""
    return any(v.op == "load" and v.arg[0] == slot for v in walk([value]))


def owners(labels: np.ndarray) -> str:
    """What lies in a region, for the message."""

    def named(value: int) -> str:
        before = f"what array {-value - 3} held before"
        return "nothing" if value == GARBAGE else before if value < GARBAGE else f"%{value}"

    return ", ".join(named(int(o)) for o in np.unique(labels // ELEMENT)[:5])


def check_memory(p: Planned) -> None:
    """AssertionError unless every dispatch computes with the values that it should."""
    Simulator(p).run()


def with_offset(p: Planned, dispatch: int, slot: int, offset: int) -> Planned:
    """The same with one offset changed: sabotage, for testing the check."""
    d = p.program.dispatches[dispatch]
    changed = replace(d, offsets=(*d.offsets[:slot], offset, *d.offsets[slot + 1 :]))
    dispatches = (*p.program.dispatches[:dispatch], changed, *p.program.dispatches[dispatch + 1 :])
    return replace(p, program=replace(p.program, dispatches=dispatches))
