"""What runs, and where each value lies: launches, and places for leaves, results and temporaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad.dtypes import TensorType
from tracegrad.ir import Graph, Tensor
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import EntangledError, Schedule
from tracegrad.kernels.group import Launch, group_launches
from tracegrad.kernels.lower import external_order, lower
from tracegrad.kernels.reads import base
from tracegrad.kernels.tiling import Tiling, choose_tiling
from tracegrad.layout import Filling, Lifetime, Persistent, Place, share_memory
from tracegrad.passes.place import write_through_copies
from tracegrad.prims.leaves import LEAF, LITERAL

Key = tuple[Any, ...]  # of a kernel: equal where two clusters have one form


@dataclass(slots=True)
class Plan:
    """Everything decided about one optimized graph; `assemble` spells it out."""

    schedule: Schedule
    launches: list[Launch]
    externals: dict[int, list[Tensor]]  # id of a cluster -> what it reads from memory, in slot order
    keys: dict[int, Key]  # id of a cluster -> the key of its kernel
    places: dict[int, Place] = field(default_factory=dict[int, Place])  # serial -> place
    inputs: Filling = field(default_factory=Filling)
    outputs: Filling = field(default_factory=Filling)
    constants: Filling = field(default_factory=Filling)
    temporaries: dict[str, int] = field(default_factory=dict[str, int])  # array -> size
    lifetimes: list[Lifetime] = field(default_factory=list[Lifetime])

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of every array that is not persistent."""
        return self.inputs.sizes | self.outputs.sizes | self.constants.sizes | self.temporaries


def make_plan(graph: Graph, persistent: Persistent, declared: Mapping[str, TensorType] | None = None) -> Plan:
    """The plan of an optimized graph. `declared` are inputs that get a place even where nothing reads them."""
    plan = plan_launches(graph)
    for name, type_ in (declared or {}).items():  # first, and hyperparameters behind them: a feed writes the ones alone
        plan.inputs.add("input", name, type_)
    place_leaves(plan, persistent)
    place_outputs(plan, plan.schedule.graph)
    place_temporaries(plan)
    return plan


def plan_launches(graph: Graph) -> Plan:
    """Schedule, kernels and launches. Clusters of equal form are lowered once."""
    try:
        schedule = Schedule(graph)
    except EntangledError:
        schedule = Schedule(write_through_copies(graph))
    forms: dict[Key, tuple[Kernel, Tiling]] = {}
    keys: dict[int, Key] = {}
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
    return Plan(schedule, launches, externals, keys)


def place_leaves(plan: Plan, persistent: Persistent) -> None:
    """Parameters and state lie where they always do; inputs and constants one after the other."""
    for t in plan.schedule.order:
        if t.prim is LITERAL:
            plan.places[t.serial] = plan.constants.add("const", str(t.serial), t.type)
        elif t.prim is LEAF:
            role, name = t.attrs["role"], t.attrs["name"]
            if role in ("param", "frozen"):
                plan.places[t.serial] = persistent.place(name)
            elif role == "state":
                plan.places[t.serial] = Place(name, 0)
            else:
                name = f"hyper.{name}" if role == "hyper" else name
                plan.places[t.serial] = plan.inputs.places.get(name) or plan.inputs.add("input", name, t.type)


def place_outputs(plan: Plan, graph: Graph) -> None:
    """New state over the old; outputs one after the other, but for those that are new states."""
    for name, t in graph.writes.items():
        place_parts(plan, base(t), Place(name, 0))
    results = {**graph.outputs, **{f"capture.{n}": t for n, t in graph.captures.items()}}
    for name, t in results.items():
        serial = base(t).serial
        if serial in plan.places:
            plan.outputs.places[name], plan.outputs.types[name] = plan.places[serial], t.type
        else:
            plan.places[serial] = plan.outputs.add("output", name, t.type)


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
        plan.temporaries |= sizes
        plan.lifetimes += lifetimes
        for serial, place in places.items():
            place_parts(plan, s.nodes[serial], place)
