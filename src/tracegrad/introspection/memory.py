"""The bytes that a program takes on a device, by role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tracegrad.introspection.tables import Table
from tracegrad.program import PERSISTENT, Program

NAMES = {
    "param": "parameters",
    "grad": "gradients",
    "state": "optimizer state",
    "temp": "temporaries",
    "input": "inputs",
    "output": "outputs",
    "const": "constants",
}


class Memory(Mapping[str, int]):
    """Bytes by role: "param" "grad" "state" "temp" "input" "output" "const", and "total"; prints as a table."""

    __slots__ = ("_bytes",)

    def __init__(self, *programs: Program):
        """Count the buffers of programs of one session. The programs share persistent buffers by name."""
        lasting = {b.name: b for p in programs for b in p.buffers if b.role in PERSISTENT}
        found = [*lasting.values(), *(b for p in programs for b in p.buffers if b.role not in PERSISTENT)]
        self._bytes = {role: sum(b.bytes for b in found if b.role == role) for role in NAMES}
        self._bytes["total"] = sum(self._bytes.values())

    def __getitem__(self, role: str) -> int:
        return self._bytes[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bytes)

    def __len__(self) -> int:
        return len(self._bytes)

    def table(self) -> Table:
        """Return a table with one row per role, and the total."""
        rows = [(NAMES.get(role, role), f"{n:,}") for role, n in self._bytes.items() if n or role != "const"]
        return Table(("memory", "bytes"), rows, left=("memory",), total=True)

    def __str__(self) -> str:
        return self.table().text()

    __repr__ = __str__
