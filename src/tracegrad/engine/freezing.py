"""Write which parameters steps do not change, as masks on the device; `optim/freezing.py` defines the masks."""

from __future__ import annotations

from collections.abc import Collection

from tracegrad.arrays import np
from tracegrad.program import Program
from tracegrad.runtime.base import Session


def parts(program: Program) -> dict[str, list[tuple[str, int, int]]]:
    """Return (parameter, offset, elements) of each mask, by the mask's name; empty if the program has none."""
    return program.meta.get("freeze", {})


def arrays(program: Program) -> tuple[str, ...]:
    """Return the names of the masks."""
    return tuple(parts(program))


def write(session: Session, program: Program, frozen: Collection[str]) -> None:
    """Tell the device to freeze the parameters `frozen`, and no other that the program trains."""
    trained = {f.name for f in program.trained}
    sizes = {b.name: b.size for b in program.buffers}
    for name, found in parts(program).items():
        mask = np.zeros(sizes[name], np.float32)
        for parameter, offset, size in found:
            if parameter in frozen or parameter not in trained:
                mask[offset : offset + size] = 1.0
        session.write(name, mask)
