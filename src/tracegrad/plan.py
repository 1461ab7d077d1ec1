"""From a schedule to a Program: places for every value, launches, and the sources of each distinct kernel."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad.debug import Watch
from tracegrad.dtypes import DTYPES, TensorType
from tracegrad.ir import Graph, Tensor
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import Cluster, Schedule, base
from tracegrad.kernels.group import Launch, group_launches
from tracegrad.kernels.lower import external_order, lower
from tracegrad.kernels.tiling import Tiling, choose_tiling, workgroup_bytes
from tracegrad.layout import Filling, Lifetime, Place, share_memory
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.place import place_results
from tracegrad.passes.simplify import simplify
from tracegrad.passes.split import split_long
from tracegrad.program import Binding, Buffer, Dispatch, Field, KernelSource, Needs, Program
from tracegrad.render.numpy import render_numpy
from tracegrad.render.wgsl import grid_of, render_wgsl


@dataclass(frozen=True, slots=True)
class Persistent:
    """Arrays that outlive a step, and where the parameters lie in them."""

    buffers: tuple[Buffer, ...]
    params: tuple[tuple[str, Place, Mapping[str, Any]], ...]  # name, place, spec: in declaration order
    types: Mapping[str, TensorType]

    def place(self, name: str) -> Place:
        """The place of a parameter."""
        return next(p for n, p, _ in self.params if n == name)


@dataclass(slots=True)
class Plan:
    """Everything decided about one graph; `program` spells it out."""

    schedule: Schedule
    launches: list[Launch]
    externals: dict[int, list[Tensor]]  # id of a cluster -> what it reads from memory, in slot order
    places: dict[int, Place] = field(default_factory=dict[int, Place])  # serial -> place
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    lifetimes: list[Lifetime] = field(default_factory=list[Lifetime])


def optimize(graph: Graph, watch: Watch | None = None) -> Graph:
    """All passes, in order: what is left are primitives whose results have a place."""
    for run in (expand_composites, simplify, split_long, simplify):
        graph = graph.with_roots(run(graph.roots))
        if watch is not None:
            watch.graph(f"after {run.__name__}", graph)
    graph = place_results(graph)
    if watch is not None:
        watch.graph("after place_results", graph)
    return graph


def make_program(
    graph: Graph,
    persistent: Persistent,
    specs: Mapping[str, Mapping[str, Any]],
    meta: Mapping[str, Any],
    declared: Mapping[str, TensorType] | None = None,
) -> Program:
    """The Program of a graph.

    specs:    plain data that go with input fields.
    declared: inputs that the program takes even where nothing reads them.
    """
    watch = Watch(graph)
    graph = optimize(graph, watch)
    plan, keys = make_plan(graph)
    inputs, outputs = fill_arrays(plan, graph, persistent)
    unread = {n: t for n, t in (declared or {}).items() if n not in inputs.places}
    for name, type_ in unread.items():
        inputs.add(f"input.{type_.dtype.storage}", name, type_)
    plan.sizes |= inputs.sizes
    kernels, dispatches = render(plan, keys)
    program = assemble(plan, graph, persistent, kernels, dispatches, (inputs, outputs), specs, meta, unread)
    watch.program(program, [launch.kernels for launch in plan.launches])
    return program


def make_plan(graph: Graph) -> tuple[Plan, dict[int, tuple[Any, ...]]]:
    """Schedule, kernels and launches of an optimized graph. Clusters of equal form are lowered once."""
    schedule = Schedule(graph)
    forms: dict[tuple[Any, ...], tuple[Kernel, Tiling]] = {}
    keys: dict[int, tuple[Any, ...]] = {}
    externals: dict[int, list[Tensor]] = {}
    chosen: list[tuple[Kernel, Tiling]] = []
    for c in schedule.clusters:
        externals[id(c)], key = external_order(c, schedule.stored, schedule.writes)
        if key not in forms:
            kernel = lower(c, externals[id(c)], schedule.writes)
            forms[key] = kernel, choose_tiling(kernel)
        keys[id(c)] = key
        chosen.append(forms[key])
    launches = group_launches(schedule, [k for k, _ in chosen], [t for _, t in chosen])
    return Plan(schedule, launches, externals), keys


def fill_arrays(plan: Plan, graph: Graph, persistent: Persistent) -> tuple[Filling, Filling]:
    """Decide the place of every leaf, result and temporary."""
    s, inputs, outputs, consts = plan.schedule, Filling(), Filling(), Filling()
    for t in s.order:
        if t.prim.name == "literal":
            plan.places[t.serial] = consts.add(f"const.{t.dtype.storage}", str(t.serial), t.type)
        elif t.prim.name == "leaf":
            role, name = t.attrs["role"], t.attrs["name"]
            if role in ("param", "frozen"):
                plan.places[t.serial] = persistent.place(name)
            elif role == "state":
                plan.places[t.serial] = Place(name, 0)
            else:
                full = f"hyper.{name}" if role == "hyper" else name
                plan.places[t.serial] = inputs.add(f"input.{t.dtype.storage}", full, t.type)
    results = {**graph.outputs, **{f"capture.{n}": t for n, t in graph.captures.items()}}
    for name, t in results.items():
        plan.places[base(t).serial] = outputs.add(f"output.{t.dtype.storage}", name, t.type)
    for name, t in graph.writes.items():
        place_parts(plan, base(t), Place(name, 0))
    place_temporaries(plan)
    plan.sizes |= inputs.sizes | outputs.sizes | consts.sizes
    return inputs, outputs


def place_parts(plan: Plan, t: Tensor, place: Place) -> None:
    """Place a value, and the parts of a pack one after the other."""
    plan.places[t.serial] = place
    if t.prim.family == "pack":
        at = place.offset
        for x in t.inputs:
            place_parts(plan, base(x), Place(place.array, at))
            at += x.size


def place_temporaries(plan: Plan) -> None:
    """Lifetimes of everything that has no place yet, by launch; a pack lives as one."""
    s = plan.schedule
    launch_of = {id(c): k for k, launch in enumerate(plan.launches) for c in launch.clusters}
    last: dict[int, int] = {}
    for c in s.clusters:
        for t in plan.externals[id(c)]:
            last[t.serial] = max(last.get(t.serial, 0), launch_of[id(c)])
    packs = [t for t in s.order if t.prim.family == "pack" and t.serial not in plan.places]
    inside = {x for t in packs for x in s.packed(t.serial)}
    found: dict[str, list[Lifetime]] = {}

    def add(t: Tensor, parts: Sequence[int]) -> None:
        written = [launch_of[id(s.owner[p])] for p in parts]
        ends = [last.get(x, 0) for x in (t.serial, *parts)]
        lifetime = Lifetime(t.serial, max(t.size, 1), min(written), max(*written, *ends))
        found.setdefault(f"temp.{t.dtype.storage}", []).append(lifetime)

    for t in packs:
        add(t, s.packed(t.serial))
    for c in s.clusters:
        for t in c.outs:
            if t.serial not in plan.places and t.serial not in inside:
                add(t, [t.serial])
    for prefix, lifetimes in found.items():
        places, sizes = share_memory(lifetimes, prefix)
        plan.sizes |= sizes
        plan.lifetimes += lifetimes
        for serial, place in places.items():
            place_parts(plan, s.nodes[serial], place)


def render(
    plan: Plan, keys: Mapping[int, tuple[Any, ...]]
) -> tuple[list[KernelSource], list[tuple[int, list[str], list[int], tuple[int, int]]]]:
    """Sources of each distinct launch, and the launches: kernel, arrays, offsets, grid."""
    sources: dict[tuple[Any, ...], int] = {}
    kernels: list[KernelSource] = []
    dispatches: list[tuple[int, list[str], list[int], tuple[int, int]]] = []
    for launch in plan.launches:
        arrays: dict[str, int] = {}
        written: set[str] = set()
        binding_of: list[int] = []
        offsets: list[int] = []
        for c in launch.clusters:
            for t in (*plan.externals[id(c)], *c.outs):
                place = plan.places[t.serial]
                binding_of.append(arrays.setdefault(place.array, len(arrays)))
                offsets.append(place.offset)
            written.update(plan.places[t.serial].array for t in c.outs)
        bindings = tuple(Binding(storage_of(a), a in written) for a in arrays)
        key = (tuple(keys[id(c)] for c in launch.clusters), tuple(binding_of), bindings)
        if key not in sources:
            sources[key] = len(kernels)
            kernels.append(source_of(launch, binding_of, bindings))
        dispatches.append((sources[key], list(arrays), offsets, grid_of(launch.workgroups)))
    return kernels, dispatches


def source_of(launch: Launch, binding_of: Sequence[int], bindings: Sequence[Binding]) -> KernelSource:
    """One launch in every language."""
    return KernelSource(
        label=" | ".join(k.label for k in launch.kernels),
        bindings=tuple(bindings),
        slots=sum(len(k.slots) for k in launch.kernels),
        workgroup_memory=workgroup_bytes(launch.tilings),
        wgsl=render_wgsl(launch.kernels, launch.tilings, binding_of, bindings),
        numpy=render_numpy(launch.kernels, binding_of),
    )


def storage_of(array: str) -> str:
    """The element type of an array: its name says so unless it is persistent f32."""
    return "i32" if "i32" in array.split(".") or array == "halted" else "f32"


ROLES = {"temp": "temp", "input": "input", "output": "output", "const": "const"}


def assemble(
    plan: Plan,
    graph: Graph,
    persistent: Persistent,
    kernels: Sequence[KernelSource],
    dispatches: Sequence[tuple[int, list[str], list[int], tuple[int, int]]],
    fillings: tuple[Filling, Filling],
    specs: Mapping[str, Mapping[str, Any]],
    meta: Mapping[str, Any],
    unread: Mapping[str, TensorType] | None = None,
) -> Program:
    """Plain data. `unread` are inputs that are not in the graph."""
    buffers = list(persistent.buffers)
    for name in sorted(plan.sizes):
        data = const_data(plan, name) if name.startswith("const") else ""
        buffers.append(Buffer(name, storage_of(name), plan.sizes[name], ROLES[name.split(".")[0]], data=data))
    number = {b.name: k for k, b in enumerate(buffers)}
    # One name may stand for a parameter, an input and an optimizer state at once: each kind has types of its own.
    given = {**(unread or {}), **{t.name: t.type for t in graph.leaves("input", "patch")}}
    given |= {f"hyper.{t.name}": t.type for t in graph.leaves("hyper")}
    made = {n: t.type for n, t in graph.outputs.items()}
    made |= {f"capture.{n}": t.type for n, t in graph.captures.items()}

    def fields(
        places: Mapping[str, Place], types: Mapping[str, TensorType], data: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Field, ...]:
        return tuple(
            Field(n, number[p.array], p.offset, types[n].dtype.name, types[n].shape, data.get(n, {}))
            for n, p in places.items()
        )

    inputs, outputs = fillings
    params = {n: p for n, p, _ in persistent.params}
    states = {b.name: Place(b.name, 0) for b in buffers if b.role == "state"}
    flat = {b.name: _flat_type(b) for b in buffers if b.role == "state"}
    largest = max(buffers, key=lambda b: b.size)
    return Program(
        kernels=tuple(kernels),
        buffers=tuple(buffers),
        dispatches=tuple(Dispatch(k, tuple(number[a] for a in arrays), tuple(o), g) for k, arrays, o, g in dispatches),
        inputs=fields(inputs.places, given, specs),
        outputs=fields(outputs.places, made, {}),
        params=fields(params, persistent.types, {n: s for n, _, s in persistent.params}),
        states=fields(states, flat, {}),
        needs=Needs(
            storage_buffers=max((len(k.bindings) for k in kernels), default=0),
            binding_bytes=largest.bytes,
            buffer_bytes=largest.bytes,
            workgroup_memory=max((k.workgroup_memory for k in kernels), default=0),
            largest=largest.name + largest_value(plan, largest.name),
        ),
        meta=meta,
    )


def largest_value(plan: Plan, array: str) -> str:
    """The largest temporary of an array, for the error of a device that is too small."""
    inside = [life for life in plan.lifetimes if plan.places[life.key].array == array]
    if not inside:
        return ""
    t = plan.schedule.nodes[max(inside, key=lambda life: life.size).key]
    return f", largest value {t.prim.name} {t.type}"  # no line: a Program is the same wherever it was compiled


def _flat_type(b: Buffer) -> TensorType:
    return TensorType(DTYPES[b.dtype], (b.size,))


def const_data(plan: Plan, array: str) -> str:
    """The bytes of all literals that lie in `array`, base64."""
    parts = [t for t in plan.schedule.order if t.prim.name == "literal" and plan.places[t.serial].array == array]
    parts.sort(key=lambda t: plan.places[t.serial].offset)
    return base64.b64encode(b"".join(_words(t) for t in parts)).decode()


def _words(t: Tensor) -> bytes:
    """A literal's bytes as it is stored: booleans take four."""
    data: bytes = t.attrs["data"]
    return b"".join(bytes((b, 0, 0, 0)) for b in data) if t.dtype.name == "bool" else data


def clusters_of(plan: Plan) -> list[Cluster]:
    """Clusters in launch order."""
    return [c for launch in plan.launches for c in launch.clusters]
