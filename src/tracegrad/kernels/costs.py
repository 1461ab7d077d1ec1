"""The least work that a kernel does: floating-point operations, and bytes read from and written to memory.

Every element of memory and of each value counts once, however many threads load or compute it, and only if something
reads it. So the counts assume perfect caches, tiles and common subexpressions. Integer arithmetic (indices, the bits of
random numbers) counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tracegrad.dtypes import STORED
from tracegrad.ir.graph import reached
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.fuse import Cluster
from tracegrad.kernels.storage import COMPUTED, Storage


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations, and bytes read and written."""

    flops: int = 0
    read: int = 0
    written: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.read + other.read, self.written + other.written)

    def repeated(self, times: int) -> Cost:
        """Return the cost of running `times` times."""
        return Cost(times * self.flops, times * self.read, times * self.written)

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0


def computed_by(c: Cluster, loaded: Iterable[Tensor]) -> list[Tensor]:
    """Return all nodes that a cluster computes, inlined nodes included. loaded: what it reads from memory."""
    known = {t.serial for t in loaded}
    return list(reached(c.computes, lambda t: [x for x in t.operands if x.serial not in known]))


def cost_of(c: Cluster, loaded: Sequence[Tensor], storage: Storage, at: Callable[[int], int] = int) -> Cost:
    """Return the cost of one run of the cluster `c`.

    loaded: the values that it reads from memory.
    at:     converts a number of elements at the capacity to the number in a run.
    """
    terms, hidden = _of_product(c, at) if c.kind == "product" else (0, 0)
    read = {t.serial: at(t.size) - hidden for t in c.outs}  # of each value, the elements that something reads
    flops = 0
    for t in sorted(computed_by(c, loaded), key=lambda t: -t.serial):
        n, family = min(at(t.size), read.get(t.serial, 0)), t.prim.family
        flops += terms if family == "product" else _flops(t, at(t.inputs[0].size) if family in COMPUTED else n)
        for x in t.operands:
            read[x.serial] = read.get(x.serial, 0) + (at(x.size) if family in COMPUTED else n)

    def bytes_of(ts: Sequence[Tensor]) -> int:
        return sum(STORED[storage.held_as(t.serial)].itemsize * min(at(t.size), read[t.serial]) for t in ts)

    return Cost(flops, bytes_of([t for t in loaded if t.serial in read]), bytes_of(c.outs))


def _flops(t: Tensor, n: int) -> int:
    """Return the operations that compute a value from `n` points."""
    if t.prim.family == "map":
        return 0 if t.prim.passes else n * any(x.dtype.is_float for x in (t, *t.inputs))
    return n * (t.prim.family in COMPUTED and t.inputs[0].dtype.is_float)


def _of_product(c: Cluster, at: Callable[[int], int]) -> tuple[int, int]:
    """Return the operations of a product, and how many of its results have no reader."""
    (*batch, m, k), n = c.main.inputs[0].shape, c.main.shape[-1]
    stack, results = math.prod(map(at, batch)), {"m": at(m), "n": at(n)}
    points = {**results, "k": at(k)}
    terms = min([math.prod(points.values()), *(x.left(points) for x in c.limits)])
    left = [x.left(results) for x in c.limits if x.of_results]
    whole = math.prod(results.values())
    return 2 * stack * terms, stack * (whole - min(left, default=whole))
