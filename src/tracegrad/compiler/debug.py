"""Print the compiler's work to stderr if TRACEGRAD_DEBUG is set; each level adds to the levels below it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from tracegrad.errors import InputError
from tracegrad.graph import Graph
from tracegrad.kernels.form import Kernel
from tracegrad.program import Program

VARIABLE = "TRACEGRAD_DEBUG"
COMPILE, TABLE, FORMS, SOURCES, PASSES = range(1, 6)


def level() -> int:
    """Return the level; 0 unless the variable is set. Raises: InputError if it is not a number."""
    text = os.environ.get(VARIABLE, "")
    try:
        return int(text or 0)
    except ValueError:
        raise InputError(f"{VARIABLE} must be a number from 0 to {PASSES}, got {text!r}") from None


class Watch:
    """Prints one compile as far as TRACEGRAD_DEBUG requests; reads the variable once."""

    __slots__ = ("level", "nodes", "started")

    def __init__(self, graph: Graph) -> None:
        self.level = level()
        if self.level:
            self.started, self.nodes = time.perf_counter(), len(graph)
            self.graph("traced", graph)

    def graph(self, after: str, graph: Graph) -> None:
        """Print the graph after a pass."""
        if self.level >= PASSES:
            say(f"graph {after}, {len(graph)} nodes:\n{graph}")

    def program(self, program: Program, forms: Sequence[Sequence[Kernel]]) -> None:
        """Print the finished program; `forms` are the kernel forms of each of its dispatches."""
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
                from tracegrad.kernels.show import show_kernel

                say("\n".join([f"form of kernel {number}", *map(show_kernel, form_of[number])]))
            if self.level >= SOURCES:
                say(f"WGSL of kernel {number}, {kernel.label}\n{kernel.wgsl}")


def table(program: Program) -> str:
    """Return one line per kernel: how often it runs, its workgroups, arrays, offsets, workgroup memory and name."""
    rows: list[tuple[str, ...]] = [("kernel", "runs", "workgroups", "arrays", "slots", "shared", "what")]
    for number, k in enumerate(program.kernels):
        launches = [d for d in program.dispatches if d.kernel == number]
        groups = sum(d.grid[0] * d.grid[1] for d in launches)
        numbers = (number, len(launches), groups, len(k.bindings), k.slots, k.workgroup_memory)
        rows.append((*map(str, numbers), k.label))
    widths = [max(len(row[c]) for row in rows) for c in range(6)]
    return "\n".join("  ".join([*(f"{x:>{w}}" for x, w in zip(row, widths)), row[6]]) for row in rows)


def say(text: str) -> None:
    """Print one message; its first line begins with the name of the library."""
    print(f"tracegrad: {text}", file=sys.stderr)
