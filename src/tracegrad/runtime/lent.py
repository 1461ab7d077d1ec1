"""Read large inputs of a C program directly from the copy of the caller's array, without another copy.

The address of an input is among the arguments of the calls that read it, and is set for each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracegrad.kernel_source import KernelSource
from tracegrad.program import Program
from tracegrad.render.c_calls import FunctionStep, GatheredStep, Place, ProductStep, Step
from tracegrad.runtime.calls import FIRST_OF_GATHERED, FIRST_OF_PRODUCT, Call
from tracegrad.runtime.storage import address, lying
from tracegrad.tuning import POOL_FROM

Array = Any


class Lent:
    """One input: where it is now, and which arguments of calls point to it."""

    def __init__(self, flat: Array, offset: int, size: int) -> None:
        """flat: the array with memory for the input. offset, size: in elements."""
        self.flat, self.first, self.end = flat, offset, offset + size
        self.home = self.at = address(flat) + flat.itemsize * offset
        self.pointers: list[tuple[Any, int, int]] = []  # (arguments, index, distance from the input's begin)

    def note(
        self, call: Call, kernel: KernelSource, memory: Sequence[Array], offsets: Sequence[int], step: Step
    ) -> None:
        """Record which arguments of a call point into this input."""
        for k, place in _pointers(step):
            if not isinstance(place, int) or memory[kernel.binding_of[place]] is not self.flat:
                continue
            if self.first <= offsets[place] < self.end:
                self.pointers.append((call.arguments, k, call.arguments[k] - self.home))

    def point(self, at: int) -> None:
        """Let the calls read the input at this address from now on."""
        if at != self.at:
            for arguments, k, behind in self.pointers:
                arguments[k] = at + behind
            self.at = at


def lent_inputs(program: Program, memory: Mapping[str, Array]) -> dict[str, Lent]:
    """Return the inputs of a program that are large enough, by name."""
    arrays = [memory[b.name] for b in program.buffers]
    large = [f for f in program.inputs if lying(arrays[f.buffer], f).nbytes >= POOL_FROM]
    return {f.name: Lent(arrays[f.buffer], f.offset, f.size) for f in large}


def _pointers(step: Step) -> list[tuple[int, Place]]:
    """Return which arguments of a call are addresses, and of which places."""
    if isinstance(step, FunctionStep):
        return list(enumerate(step.places))
    first = FIRST_OF_GATHERED if isinstance(step, GatheredStep) else FIRST_OF_PRODUCT
    assert isinstance(step, GatheredStep | ProductStep)
    return [(first, step.a.place), (first + 1, step.b.place)]
