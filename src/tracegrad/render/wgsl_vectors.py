"""Decide which arrays of a launch are read and written by vectors of four elements.

An array is declared as vec4s if every store of the launch to it is of a whole vector. (Threads that write parts of one
vector would race: a device may write all of it.) Then any kernel of the launch can read its elements, and tiles load
the operands of products by vectors, which takes a quarter of the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tracegrad.dtypes import f16, f32
from tracegrad.kernels.expr import Index, Value, Var, names_of, walk
from tracegrad.kernels.form import Axis, Kernel, Store, divides
from tracegrad.kernels.tiling import Tiling

XYZW = "xyzw"  # components of a vector

Launched = Sequence[tuple[Kernel, Tiling]]


def vector_slots(launched: Launched, binding_of: Sequence[int], aligned: Sequence[bool]) -> list[bool]:
    """Return for each slot of a launch whether its array is of vectors. aligned: the slot begins at a whole vector."""
    by_element: set[int] = set()
    by_vector: set[int] = set()
    first = 0
    for kernel, tiling in launched:
        found = slots_by_vectors(kernel, tiling)
        for number, slot in enumerate(kernel.slots, first):
            if aligned[number] and number - first in found:
                by_vector.add(binding_of[number])
            elif slot.written:
                by_element.add(binding_of[number])
        first += len(kernel.slots)
    return [b in by_vector - by_element for b in binding_of]


def slots_by_vectors(kernel: Kernel, tiling: Tiling) -> set[int]:
    """Return the slots that a tile can read or write by vectors."""
    p = kernel.product
    if tiling.kind != "tile" or tiling.tile is None or p is None:
        return set()
    stores = [s for s in kernel.body if isinstance(s, Store)]
    rows, columns, k = (x[-1] if x else None for x in (p.m, p.n, tiling.tile.summed(kernel)))
    floats = [slot.dtype in (f32, f16) for slot in kernel.slots].__getitem__
    loads = [
        *(v for axis in (rows, k) for v in vector_loads([p.a], axis, floats)),
        *(v for axis in (columns, k) for v in vector_loads([p.b], axis, floats)),
        *vector_loads([s.value for s in stores], columns, floats),
    ]
    written = [s.slot for s in stores if floats(s.slot) and columns and steps_by_one(s.index, columns)]
    return {v.arg[0] for v in loads} | set(written)


def vector_loads(roots: Iterable[Value], axis: Axis | None, vectors: Callable[[int], bool]) -> list[Value]:
    """Return the loads below `roots` that are of neighbouring elements along `axis`, from arrays of vectors."""
    if axis is None:
        return []
    found = list(walk(roots))
    guarded = {v.args[0] for v in found if v.op == "inside"}
    loads = (v for v in found if v.op == "load" and v not in guarded)
    return [v for v in loads if vectors(v.arg[0]) and steps_by_one(v.arg[1], axis)]


def steps_by_one(index: Index, axis: Axis) -> bool:
    """Return whether every fourth point along `axis` begins a vector, and the next point is the next element."""
    others = [(atom, c) for atom, c in index.terms if not (isinstance(atom, Var) and atom.name == axis.name)]
    whole = divides(4, axis.size) and index.const % 4 == 0 and all(c % 4 == 0 for _, c in others)
    return index.strides.get(axis.name) == 1 and whole and axis.name not in names_of(atom for atom, _ in others)
