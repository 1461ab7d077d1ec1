"""Assemble a Program from a plan: the sources of distinct launches, and all references as indices, in plain data."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence, Set
from typing import Any

from tracegrad.compiler.layout import HALTED, Persistent, Place
from tracegrad.compiler.plan import Plan
from tracegrad.dtypes import TensorType
from tracegrad.ir.nodes import Tensor
from tracegrad.kernel_source import Binding, BoundKernel, BoundLaunch, KernelSource, Texts
from tracegrad.kernels.form import capacity_of, on_device
from tracegrad.kernels.fuse import MAX_BUFFERS
from tracegrad.kernels.group import Launch
from tracegrad.kernels.tiling import grid_of, reaches_of, takes_first, without_barriers, workgroup_bytes
from tracegrad.loops import Loop
from tracegrad.prims.leaves import LITERAL
from tracegrad.program import COUNTS, DRAWN, Buffer, Dispatch, Field, Program
from tracegrad.render.languages import LANGUAGES


def assemble(
    plan: Plan,
    persistent: Persistent,
    specs: Mapping[str, Mapping[str, Any]],
    meta: Mapping[str, Any],
) -> Program:
    """Return the Program. specs: plain data to attach to input fields, by name."""
    buffers = [*persistent.buffers, *(buffer_of(plan, name, size) for name, size in sorted(plan.sizes.items()))]
    number = {b.name: k for k, b in enumerate(buffers)}

    def fields(
        places: Mapping[str, Place], types: Mapping[str, TensorType], data: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Field, ...]:
        return tuple(
            Field(n, number[p.array], p.offset, types[n].dtype.name, types[n].shape, data.get(n, {}))
            for n, p in places.items()
        )

    rendered = Rendered({b.name: b for b in buffers}, number)
    rendered.launches(plan)
    arrays = [(k, b) for k, b in enumerate(buffers) if b.role == "state" and b.fill != DRAWN]
    flat = [Field(b.name, k, 0, b.dtype, (b.size,)) for k, b in arrays]
    counting = {HALTED: {COUNTS: True}} if HALTED in plan.storage.graph.writes else {}
    return Program(
        kernels=tuple(rendered.kernels),
        buffers=tuple(buffers),
        dispatches=tuple(rendered.dispatches),
        inputs=fields(plan.inputs.places, plan.inputs.types, specs),
        outputs=fields(plan.outputs.places, plan.outputs.types, counting),
        params=persistent.params,
        states=(*flat, *persistent.states),
        meta=meta,
        largest=largest_value(plan),
        loops=tuple(rendered.loops),
    )


def buffer_of(plan: Plan, name: str, size: int) -> Buffer:
    """Return the buffer of an array called `role.storage` or `role.storage.number`."""
    role, storage = name.split(".")[:2]
    return Buffer(name, storage, size, role, data=constant_data(plan, name) if role == "const" else "")


def constant_data(plan: Plan, array: str) -> str:
    """Return the bytes of all literals in `array`, as base64."""
    found = [(p.places[t.serial], t) for p in plan.nested() for t in p.storage.order if t.prim is LITERAL]
    parts = sorted([(place.offset, t) for place, t in found if place.array == array], key=lambda part: part[0])
    return base64.b64encode(b"".join(_words(t) for _, t in parts)).decode()


def _words(t: Tensor) -> bytes:
    """Return a literal's bytes in the layout of memory, where a boolean takes four."""
    data: bytes = t.attrs["data"]
    return b"".join(bytes((b, 0, 0, 0)) for b in data) if t.dtype.name == "bool" else data


class Rendered:
    """The dispatches, kernels and loops found so far. Launches that differ only in offsets share a kernel."""

    def __init__(self, buffers: Mapping[str, Buffer], number: Mapping[str, int]) -> None:
        self.buffers, self.number = buffers, number
        self.sources: dict[tuple[Any, ...], int] = {}
        self.kernels: list[KernelSource] = []
        self.dispatches: list[Dispatch] = []
        self.loops: list[Loop] = []

    def launches(self, plan: Plan) -> None:
        """Add all launches of a plan; the launches of a scan become a loop."""
        for launch in plan.launches:
            if launch.scan is None:
                self.launch(plan, launch)
                continue
            scan = plan.scans[id(launch.scan)]
            begin, place = len(self.dispatches), len(self.loops)
            self.launches(scan.plan)
            until = scan.until(plan)
            self.loops.insert(
                place,
                Loop(begin, len(self.dispatches), scan.length, scan.per, scan.per > 0 and scan.reverse, until),
            )

    def launch(self, plan: Plan, launch: Launch) -> None:
        """Add one dispatch, and its kernel if the kernel is new."""
        values: list[int] = []
        written: set[str] = set()
        for c in launch.clusters:
            values += [t.serial for t in (*plan.externals[id(c)], *c.outs)]
            written.update(plan.places[t.serial].array for t in c.outs)
        places = [plan.places[value] for value in values]
        arrays, binding_of = bound_arrays([(p.array, plan.pack_of.get(v, v)) for v, p in zip(values, places)], written)
        bindings = tuple(
            Binding(self.buffers[a].dtype, a in written, 0 if is_one_of_several(a) else self.buffers[a].size)
            for a in arrays
        )
        aligned = tuple([p.offset % 4 == 0 and all(move.step % 4 == 0 for move in p.moves) for p in places])
        forms = tuple([(id(m.kernel), id(m.sized)) for m in launch.members])  # equal clusters have one kernel
        key = (forms, tuple(binding_of), bindings, aligned)
        if key not in self.sources:
            self.sources[key] = len(self.kernels)
            self.kernels.append(source_of(launch, binding_of, bindings, aligned))
        bound = tuple([self.number[a] for a in arrays])
        moves = tuple((k, move) for k, place in enumerate(places) for move in place.moves)
        offsets = tuple(place.offset for place in places)
        self.dispatches.append(Dispatch(self.sources[key], bound, offsets, grid_of(launch.workgroups), moves))


def bound_arrays(wanted: Sequence[tuple[str, int]], written: Set[str]) -> tuple[list[str], list[int]]:
    """Return the arrays that a launch binds, and the binding of each slot.

    If temporaries take several arrays, each value in a read-only array other than the first has its own binding, unless
    this takes more than MAX_BUFFERS. So launches of repeated layers share a kernel, although their arrays differ.

    wanted: for each slot, its array and the serial of its value, or of the pack that the value is a part of.
    """
    arrays: dict[object, str] = {}
    of_slot = [(a, value if is_one_of_several(a) and a not in written else -1) for a, value in wanted]
    if len(set(of_slot)) > MAX_BUFFERS:
        of_slot = [(a, -1) for a, _ in wanted]
    for slot in of_slot:
        arrays.setdefault(slot, slot[0])
    number = {slot: k for k, slot in enumerate(arrays)}
    return list(arrays.values()), [number[slot] for slot in of_slot]


def is_one_of_several(array: str) -> bool:
    """Return whether temporaries take several arrays, and this is not the first: `role.storage.number`."""
    return array.count(".") == 2


def source_of(
    launch: Launch, binding_of: Sequence[int], bindings: tuple[Binding, ...], aligned: Sequence[bool]
) -> KernelSource:
    """Return one launch in every language; each text is generated when it is first requested."""
    kernels, tilings = [m.kernel for m in launch.members], [m.tiling for m in launch.members]
    sized = [m.sized for m in launch.members if m.sized]
    shared = workgroup_bytes(tilings)
    serial = without_barriers(kernels, tilings) if shared else []
    lowered = serial or tilings
    reaches, serial_reaches = reaches_of(sized, tilings), reaches_of(sized, serial)
    on_gpu, side_by_side = [*map(on_device, sized)], len(reaches) > 1
    follows = any(map(capacity_of, on_gpu))
    most = max(map(capacity_of, sized), default=0)  # each kernel begins in the text where it does in the grid
    assert all(r.at(most) == t.workgroups for r, t in zip(reaches, tilings))
    assert all(r.at(most) == t.workgroups for r, t in zip(serial_reaches, serial))
    capacity = most if side_by_side or follows else 0

    def spell(name: str) -> Any:
        language = LANGUAGES[name]
        spelled = on_gpu if language.gpu else sized
        own = (serial_reaches if name == "serial_wgsl" else reaches) if language.gpu and side_by_side else ()
        bound: list[BoundKernel] = []
        first = 0
        for k, tiling, reach in zip(spelled or kernels, tilings, own or [None] * len(tilings)):
            mine = slice(first, first + len(k.slots))
            bound.append(BoundKernel(k, tiling, first, binding_of[mine], aligned[mine], reach))
            first += len(k.slots)
        return language.spell(BoundLaunch(bound, bindings, capacity if language.gpu else 0))

    return KernelSource(
        label=" | ".join(k.label for k in kernels),
        bindings=bindings,
        slots=sum(len(k.slots) for k in kernels),
        workgroup_memory=shared,
        texts=Texts(spell, **({} if serial else {"serial_wgsl": None})),
        serial_grid=grid_of(sum(t.workgroups for t in serial)),
        own=True,
        forms=tuple(kernels),
        binding_of=tuple(binding_of),
        apart=tuple(lowered) if takes_first(lowered) else (),
        capacity=capacity,
        follows=follows,
        reaches=reaches,
        serial_reaches=serial_reaches,
    )


def largest_value(plan: Plan) -> str:
    """Describe the largest temporary, for the error of a device that is too small; "" if there are no temporaries."""
    if not plan.lifetimes:
        return ""
    t = plan.storage.nodes.get(max(plan.lifetimes, key=lambda life: life.size).key)
    if t is None:
        return "the memory of a scan"
    return f"{t.prim.name} {t.type}"  # without the user's line: a Program is the same wherever it is compiled
