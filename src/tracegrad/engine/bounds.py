"""Bounds of |element| in persistent arrays, by which a device knows that new values are finite without a check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Any

from tracegrad.arrays import np
from tracegrad.optim.guard import TRIAL, array_name
from tracegrad.program import DRAWN, Field, Program
from tracegrad.runtime.base import Session

MOST_NAMED = 4  # most names in an error


def bounded(program: Program) -> tuple[str, ...]:
    """Return the arrays that have a bound, in order."""
    return tuple(program.meta.get("bounds", ()))


def array_of(program: Program) -> str:
    """Return the array in which the device keeps the bounds."""
    name = array_name(bounded(program))
    return f"{program.part}/{name}" if program.part else name


def tell(session: Session, program: Program, bounds: Mapping[str, float]) -> None:
    """Set the bounds of arrays: the largest |element| that each can have. Arrays without a bound are skipped."""
    names = bounded(program)
    for name in names:
        if name in bounds:
            session.write(array_of(program), np.asarray([bounds[name]], dtype=np.float32), names.index(name))


def known(session: Session, program: Program) -> dict[str, float]:
    """Return the bounds that the device has."""
    names = bounded(program)
    return dict(zip(names, map(float, session.read(array_of(program))))) if names else {}


def filled(program: Program) -> dict[str, float]:
    """Return the bounds of the arrays that are initially filled with one number."""
    return {b.name: abs(b.fill) for b in program.buffers if not isinstance(b.fill, str)}


def measured(arrays: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest |element| of each array."""
    return {name: largest(x) for name, x in arrays.items()}


def written(program: Program, fields: Iterable[Field], arrays: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest |element| that `arrays`, by field name, write into each array that has a bound."""
    found: dict[str, float] = {}
    for f in fields:
        name = program.buffers[f.buffer].name
        if f.name in arrays and name in bounded(program):
            found[name] = max(found.get(name, 0.0), largest(arrays[f.name]))
    return found


def largest(x: Any) -> float:
    """Return the largest |element|; infinity if any element is NaN."""
    low, high = float(x.min()), float(x.max())
    return max(high, -low) if isfinite(low) and isfinite(high) else inf


def lift(session: Session, program: Program) -> None:
    """Make the next step a trial: the device applies it even if the bounds do not show that its values are finite."""
    if bounded(program):
        session.write(array_of(program), np.asarray([TRIAL], dtype=np.float32))


def not_finite(program: Program, arrays: Mapping[str, Any]) -> str:
    """Return which of `arrays`, written by a step, have infinite or NaN elements; "" if none has.

    The states of the model are skipped, because the device itself checks their new values.
    """
    found: list[str] = []
    kept = [b for b in program.buffers if b.role in ("param", "state") and b.fill != DRAWN]
    for name in (b.name for b in kept if b.name in arrays):
        parts = [f for f in program.params if program.buffers[f.buffer].name == name]
        found += _parts(arrays[name], [(f.name, f) for f in parts] or [(f"the state {name!r}", None)])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def _parts(x: Any, parts: Sequence[tuple[str, Field | None]]) -> list[str]:
    found: list[str] = []
    for name, f in parts:
        part = x[f.offset : f.offset + f.size] if f else x
        if part.dtype.kind == "f" and not isfinite(largest(part)):
            odd = np.isfinite(part).tolist().count(False)
            found.append(f"{name} ({odd} of {part.size} values)")
    return found
