"""What the compiler prints to stderr when TRACEGRAD_DEBUG is set; each level adds to those below it.

1: one line a compile   2: a table of its kernels   3: kernel forms   4: WGSL   5: the graph after each pass
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from tracegrad.errors import InputError
from tracegrad.ir import Graph
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.show import show_kernel
from tracegrad.program import Program

VARIABLE = "TRACEGRAD_DEBUG"
COMPILE, TABLE, FORMS, SOURCES, PASSES = range(1, 6)


def level() -> int:
    """0 unless the variable is set. InputError if it is no number."""
    text = os.environ.get(VARIABLE, "")
    try:
        return int(text or 0)
    except ValueError:
        raise InputError(f"{VARIABLE} must be a number from 0 to {PASSES}, got {text!r}") from None


class Watch:
    """One compile, watched as closely as TRACEGRAD_DEBUG asks for; reads it once, and else does nothing."""

    __slots__ = ("level", "nodes", "started")

    def __init__(self, graph: Graph) -> None:
        self.level = level()
        if self.level:
            self.started, self.nodes = time.perf_counter(), len(graph)
            self.graph("traced", graph)

    def graph(self, after: str, graph: Graph) -> None:
        """A pass was done."""
        if self.level >= PASSES:
            say(f"graph {after}, {len(graph)} nodes:\n{graph}")

    def program(self, program: Program, forms: Sequence[Sequence[Kernel]]) -> None:
        """All was done; `forms` are those of each of the program's dispatches."""
        if not self.level:
            return
        ms = 1e3 * (time.perf_counter() - self.started)
        size = sum(b.bytes for b in program.buffers)
        say(
            f"{program.meta.get('kind', 'program')}: {self.nodes} nodes, {len(program.kernels)} kernels, "
            f"{len(program.dispatches)} dispatches, {size:,} bytes, compiled in {ms:.1f} ms"
        )
        if self.level >= TABLE:
            say(table(program))
        form_of = {d.kernel: kernels for d, kernels in reversed(list(zip(program.dispatches, forms)))}
        for number, kernel in enumerate(program.kernels):
            if self.level >= FORMS:
                say("\n".join([f"form of kernel {number}", *map(show_kernel, form_of[number])]))
            if self.level >= SOURCES:
                say(f"WGSL of kernel {number}, {kernel.label}\n{kernel.wgsl}")


def table(program: Program) -> str:
    """One line a kernel: how often it is launched, its workgroups, arrays, offsets, workgroup memory and name."""
    rows: list[tuple[str, ...]] = [("kernel", "runs", "workgroups", "arrays", "slots", "shared", "what")]
    for number, k in enumerate(program.kernels):
        launches = [d for d in program.dispatches if d.kernel == number]
        groups = sum(d.grid[0] * d.grid[1] for d in launches)
        numbers = (number, len(launches), groups, len(k.bindings), k.slots, k.workgroup_memory)
        rows.append((*map(str, numbers), k.label))
    widths = [max(len(row[c]) for row in rows) for c in range(6)]
    return "\n".join("  ".join([*(f"{x:>{w}}" for x, w in zip(row, widths)), row[6]]) for row in rows)


def say(text: str) -> None:
    """One message; its first line begins with the name of the library."""
    print(f"tracegrad: {text}", file=sys.stderr)
