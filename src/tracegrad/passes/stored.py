"""Read what a step writes, where the step would compute it again from what it overwrites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tracegrad.ir import Tensor, rebind, toposort
from tracegrad.prims.elementwise import WHERE
from tracegrad.prims.views import BROADCAST, RESHAPE


def read_stored(writes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the writes. A value chosen under a condition reads other values as they are chosen under it.

    m = where(c, m', m0), p = where(c, p0 - m', p0)  ->  p = where(c, p0 - m, p0)

    m differs from m' only where p drops both. XLA would compute m' again in the loop of p, and copy m0 for it first,
    because m overwrites m0.
    """
    groups: dict[int, list[Tensor]] = defaultdict(list)
    for t in writes.values():
        if t.prim is WHERE and _condition(t).size == 1:
            groups[_condition(t).serial].append(t)
    new = dict(writes)
    for chosen in groups.values():
        read = _reading(chosen)
        new |= {name: read[t.serial] for name, t in writes.items() if t.serial in read}
    return new


def _condition(t: Tensor) -> Tensor:
    """Return the condition of a choice, before it was broadcast."""
    c = t.inputs[0]
    while c.prim in (BROADCAST, RESHAPE) and c.inputs[0].size == 1:
        (c,) = c.inputs
    return c


def _reading(chosen: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the choices, all under one condition, by serial, each reading the others."""
    first = toposort([x for t in chosen for x in (t.inputs[0], t.inputs[2])])  # these keep reading what is not chosen
    done = {t.serial: t for t in first}
    by_value = {t.inputs[1].serial: t for t in chosen}
    made: dict[int, Tensor] = {}
    for t in toposort([t.inputs[1] for t in chosen], known=done):
        value = done[t.serial] = rebind(t, [done[x.serial] for x in t.inputs])
        if t.serial in by_value:
            choice = by_value[t.serial]
            made[choice.serial] = done[t.serial] = rebind(choice, (choice.inputs[0], value, choice.inputs[2]))
    return made
