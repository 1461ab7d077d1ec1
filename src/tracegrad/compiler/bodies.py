"""Compile scans: the body is a plan of its own, whose launches run repeatedly at places that move.

A carry has a *ring* of places. If the new value is computed from the old one point by point, and nothing else reads the
old one, both share one place. Otherwise the carry has two places in turns; or one for each iteration, if all values are
needed, for instance for a gradient. No value is ever copied from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.compiler.plan import ScanPlan
from tracegrad.graph import Graph
from tracegrad.ir import Tensor, bind, graft, reached, toposort
from tracegrad.kernels.reads import base, reads_of
from tracegrad.kernels.storage import Storage, analyse
from tracegrad.kernels.stored import COMPUTED
from tracegrad.passes.place import COMPUTING, place_results, settled
from tracegrad.prims.leaves import LEAF
from tracegrad.transforms.loops import Body


def iteration(scan: Tensor, arrays: Sequence[str], precision: str) -> tuple[ScanPlan, Storage]:
    """Return a scan without its plan yet, and the storage of one iteration. `arrays`: the arrays of the inputs."""
    body: Body = scan.attrs["body"]
    n, length = len(body.new), scan.attrs["length"]
    same: dict[int, tuple[int, bool]] = {}
    for k, t in enumerate(body.each):
        for new, values in ((False, body.carries), (True, body.new)):
            carry = next((c for c, x in enumerate(values) if x is t), None)
            if carry is not None and n + k not in same:
                same[n + k] = (carry, new)
    all_wanted = {carry for carry, _ in same.values()}
    rings = [length + 1 if k in all_wanted else 1 if in_place(body, k) else 2 for k in range(n)]
    names = [f"carry.{k}" if k < n and rings[k] == 1 else array for k, array in enumerate(arrays)]
    leaves = tuple([bind(LEAF, role="inner", name=name, type=t.type) for t, name in zip(body.leaves, names)])
    roots = graft(body.roots, {old.serial: new for old, new in zip(body.leaves, leaves)})
    kept = {k: t for k, t in enumerate(roots) if k not in same}
    written = {names[k]: t for k, t in kept.items() if k < n and rings[k] == 1}
    outputs = {str(k): t for k, t in kept.items() if k >= n or rings[k] != 1}
    storage = settled(analyse(place_results(Graph(outputs, {}, written, precision))))
    graph = storage.graph
    placed = {k: graph.outputs[str(k)] if str(k) in graph.outputs else graph.writes[names[k]] for k in kept}
    return ScanPlan(scan, leaves, tuple(rings), same, placed, None), storage  # pyright: ignore[reportArgumentType]


def in_place(body: Body, carry: int) -> bool:
    """Return whether the new value of a carry can overwrite the old one."""
    leaf, new = body.carries[carry], base(body.new[carry])
    if new.prim.family not in COMPUTING or any(base(t) is new for k, t in enumerate(body.roots) if k != carry):
        return False
    others = [t for k, t in enumerate(body.roots) if k != carry]
    if any(t is leaf for t in reached(others, lambda t: () if t is new else t.inputs)):
        return False  # something besides the new value needs the old one
    stored = {t.serial for t in toposort([new]) if t.prim.family in COMPUTED}
    reads: dict[int, Any] = reads_of(new, stored).leaves
    return leaf.serial not in reads or (leaf.size == new.size and reads[leaf.serial][1] == {1})
