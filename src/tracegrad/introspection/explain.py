"""The parts of a compiled program as text and as HTML: dispatches, memory, kernels, graph."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tracegrad.compiler.build import Built
from tracegrad.compiler.dispatches import COUNTED, DispatchInfo, dispatches_of
from tracegrad.errors import Site
from tracegrad.introspection.tables import Table, amount, escape, fragment, page, written
from tracegrad.introspection.why import Answers, Why, why
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.costs import Cost
from tracegrad.kernels.show import show_kernel
from tracegrad.program import PERSISTENT, Program
from tracegrad.refusals import Value
from tracegrad.runtime.base import DeviceInfo, as_run

HEAD = ("#", "kernel", "what", "workgroups", "read", "written", "FLOP", "FLOP/B", "lines")
SCREEN = 16  # dispatches shown on one screen


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The explanation of a program. Print it, show it in a notebook, or `save` it as HTML.

    dispatches: one `DispatchInfo` per dispatch, with `label`, `kernel`, `workgroups`, `cost`, `sites` and `forms`.
    verbose:    True prints everything, including kernels, values and graph; False prints one screen.
    """

    dispatches: tuple[DispatchInfo, ...]
    graph: Graph
    program: Program
    note: str = ""  # if calls choose sizes: which the program serves, or why only one
    verbose: bool = False

    @property
    def title(self) -> str:
        """A summary of the program in one line."""
        cost = sum((d.cost for d in self.dispatches), Cost())
        kind = self.program.meta.get("kind", "program")
        return (
            f"{kind}: {len(self.graph)} nodes, {len(self.program.kernels)} kernels, {len(self.dispatches)} dispatches; "
            f"{amount(cost.flops, 'FLOP')}, {amount(cost.read, 'B')} read, {amount(cost.written, 'B')} written"
            f"{'; ' if self.note else ''}{self.note}"
        )

    @property
    def memory(self) -> Memory:
        """Bytes on the device by role."""
        return Memory(self.program)

    def table(self) -> Table:
        """Return a table of the dispatches, in order."""
        rows = [
            (
                str(d.number), str(d.kernel), d.what, str(d.workgroups), amount(d.cost.read, "B"),
                amount(d.cost.written, "B"), amount(d.cost.flops), f"{d.cost.intensity:.3g}", d.lines,
            )
            for d in self.dispatches
        ]  # fmt: skip
        return Table(HEAD, rows, left=("what", "lines"))

    def why(self, wanted: str | Tensor) -> Why:
        """Explain why a value is stored or inlined, as `CompiledTraining.why`."""
        return why(self.graph, self.program, wanted)

    def values(self) -> Table:
        """Return a table of every computed value: why it is stored or inlined, its kernels, and its place in memory."""
        rows = [
            (v.name, v.why, ", ".join(x.partition(",")[0] for x in v.computes), v.memory)
            for v in Answers(self.graph, self.program).values()
        ]
        return Table(("value", "why", "computed by", "memory"), rows, left=("value", "why", "computed by", "memory"))

    def kernels(self) -> Iterator[tuple[str, list[Site], str, str]]:
        """Yield for each kernel: a title with its dispatches, the source lines, its form, and its WGSL."""
        for number, source in enumerate(self.program.kernels):
            mine = [d for d in self.dispatches if d.kernel == number]
            runs = ", ".join(str(d.number) for d in mine)
            sites = sorted({site for d in mine for site in d.sites})
            form = "\n".join(show_kernel(k) for k in mine[0].forms)
            yield f"kernel {number}, {source.label} (dispatch {runs})", sites, form, source.wgsl

    def screen(self) -> str:
        """Return one screen of text: the dispatches that move the most bytes, and the memory."""
        heaviest = sorted(self.dispatches, key=lambda d: d.cost.read + d.cost.written)[-SCREEN:]
        shown = [(d, d.cost) for d in self.dispatches if d in heaviest]
        rows = [
            (str(d.number), d.what, amount(c.read, "B"), amount(c.written, "B"), amount(c.flops), d.lines)
            for d, c in shown
        ]
        table = Table(("#", "what", "read", "written", "FLOP", "lines"), rows, left=("what", "lines")).text(widest=30)
        more = len(self.dispatches) - len(rows)
        left = [f"and {more} dispatches more, each of fewer bytes"] if more else []
        hint = "explain(verbose=True) shows all, with kernels, values and graph; .save('step.html') too"
        return "\n".join([*self.title.split("; "), "", table, *left, "", str(self.memory), "", hint])

    def __str__(self) -> str:
        if not self.verbose:
            return self.screen()
        parts = [self.title, self.table().text(), COUNTED, str(self.memory)]
        for title, sites, form, wgsl in self.kernels():
            parts.append("\n".join([title, *(site.describe() for site in sites)]))
            parts += [form, wgsl.rstrip()]
        return "\n\n".join([*parts, self.values().text(widest=96), "graph", str(self.graph)])

    def __repr__(self) -> str:
        return f"<Explanation of a {self.title}; print it, or save it as HTML>"

    def _repr_html_(self) -> str:
        memory = self.memory.table().html()
        parts = [f"<h3>{escape(self.title)}</h3>", self.table().html(), f"<div>{COUNTED}</div>", memory]
        for title, sites, form, wgsl in self.kernels():
            lines = "\n".join(site.describe() for site in sites)
            inner = [_folded("form", form), _folded("WGSL", wgsl)]
            shown = [f"<pre>{escape(lines)}</pre>"] if sites else []
            parts.append("\n".join([f"<details><summary>{escape(title)}</summary>", *shown, *inner, "</details>"]))
        values = f"<details><summary>values</summary>{self.values().html()}</details>"
        return fragment(*parts, values, _folded("graph", str(self.graph)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML file. Returns its path."""
        return written(path, page(self.title, self._repr_html_()))


def explained(built: Built, device: DeviceInfo, note: str = "", verbose: bool = False) -> Explanation:
    """Explain the program that a graph was compiled to, in the form that `device` runs."""
    program = as_run(built.program, device)
    if built.serves:
        note = f"{built.serves}, whose types are shown"
    return Explanation(dispatches_of(built.graph, program), built.graph, program, note, verbose)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


NAMES = {
    "param": "parameters",
    "grad": "gradients",
    "state": "optimizer state",
    "temp": "temporaries",
    "input": "inputs",
    "output": "outputs",
    "const": "constants",
}


class Memory(dict[str, int], Value):
    """Bytes by role: "param", "grad", "state", "temp", "input", "output", "const", and "total". Prints as a table."""

    def __init__(self, *programs: Program):
        """Count the buffers of programs of one session. The programs share persistent buffers by name."""
        lasting = {b.name: b for p in programs for b in p.buffers if b.role in PERSISTENT}
        found = [*lasting.values(), *(b for p in programs for b in p.buffers if b.role not in PERSISTENT)]
        super().__init__((role, sum(b.bytes for b in found if b.role == role)) for role in NAMES)
        self["total"] = sum(self.values())

    def table(self) -> Table:
        """Return a table with one row per role, and the total."""
        rows = [(NAMES.get(role, role), f"{n:,}") for role, n in self.items() if n or role != "const"]
        return Table(("memory", "bytes"), rows, left=("memory",), total=True)

    def __str__(self) -> str:
        return self.table().text()

    __repr__ = __str__
