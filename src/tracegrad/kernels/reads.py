"""Find which stored values a stored node reads, and whether at its own point.

Along a chain of elementwise ops, reshapes and trailing broadcasts, the reader's flat index `e` becomes `e // q` of the
value. With q = 1 a point reads "at its own point", and with q = length of a row "at its own row". Otherwise q is None.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from tracegrad.dtypes import DType
from tracegrad.ir.graph import reached
from tracegrad.ir.nodes import Tensor
from tracegrad.ir.states import STATE
from tracegrad.prims.leaves import LITERAL

IN_MEMORY = ("pack", "item")  # values in memory without their own kernel: other kernels write their parts


@dataclass(slots=True)
class Reads:
    """The values that one stored node reads: serial -> every q with which the node reads the value.

    waits: stored values that must be computed before the node, although the node does not read them.
    """

    stored: dict[int, set[int | None]] = field(default_factory=dict[int, "set[int | None]"])
    leaves: dict[int, tuple[Tensor, set[int | None]]] = field(
        default_factory=dict[int, "tuple[Tensor, set[int | None]]"]
    )
    waits: set[int] = field(default_factory=set[int])


def reads_of(t: Tensor, stored: Container[int]) -> Reads:
    """Return the stored nodes and leaves that `t` reads, directly or through inlined nodes."""
    found = Reads()
    waited: list[Tensor] = []
    seen: set[tuple[int, int | None]] = set()
    stack = [(x, q) for x, q in zip(t.inputs, _first(t))]
    while stack:
        x, q = stack.pop()
        if (x.serial, q) in seen:
            continue
        seen.add((x.serial, q))
        family = x.prim.family
        if x.serial in stored or family in IN_MEMORY:
            found.stored.setdefault(x.serial, set()).add(q)
        elif family == "leaf":
            found.leaves.setdefault(x.serial, (x, set()))[1].add(q)
        else:
            stack.extend(zip(x.operands, _through(x, q)))
            waited += x.inputs[len(x.operands) :]
    found.waits = _stored_behind(waited, stored)
    return found


def read_by(roots: Iterable[Tensor]) -> set[int]:
    """Return the serials of all nodes that `roots` are computed from, without nodes that they only wait for."""
    return {t.serial for t in reached(roots, lambda t: t.operands)}


def _stored_behind(ts: Iterable[Tensor], stored: Container[int]) -> set[int]:
    """Return the stored values among `ts`, and those from which the others are computed."""

    def held(x: Tensor) -> bool:
        return x.serial in stored or x.prim.family in IN_MEMORY

    return {x.serial for x in reached(ts, lambda x: () if held(x) else x.inputs) if held(x)}


def _first(t: Tensor) -> list[int | None]:
    """Return, for each input of a stored node, the q with which the node reads this input."""
    if t.prim.family == "fold":
        return [1 if trailing(t) else None]
    if t.prim.family in ("product", "scatter", "scan"):
        return [None] * len(t.inputs)
    return _through(t, 1)


def _through(t: Tensor, q: int | None) -> list[int | None]:
    """Return, for each operand of an inlined node, the q of its reader, if the reader reads the node with `q`."""
    if q is None or t.prim.family == "map":
        return [q] * len(t.operands)
    if t.prim.family == "gather":
        return [None, q]
    factor = repeats(t)
    return [None if factor is None else q * factor]


def repeats(t: Tensor) -> int | None:
    """Return how many neighbours in `t` repeat each element of a view's input; None if the order differs."""
    return t.prim.repeats(t.inputs[0].type, t.type) if t.prim.repeats is not None else None


def base(t: Tensor) -> Tensor:
    """Return the node that owns the memory of `t`: reshapes share memory with their input."""
    while repeats(t) == 1:
        t = t.inputs[0]
    return t


def trailing(fold: Tensor) -> bool:
    """Return whether a fold is over the last axes (sizes of 1 aside), so that its rows are contiguous."""
    shape, axes = fold.inputs[0].shape, fold.axes
    folded = [d for d in range(len(shape)) if d in axes and shape[d] > 1]
    return not any(shape[d] > 1 and d not in axes for d in range(min(folded, default=0), len(shape)))


def region_of(leaf: Tensor) -> str:
    """Return the region of memory that a write to the leaf changes: an array, or one state in the array of states."""
    if leaf.prim is LITERAL:
        return f"const.{leaf.dtype.storage}"
    role = leaf.attrs["role"]
    if role in ("state", "inner"):
        return str(leaf.attrs["name"])
    if role == "frozen":
        return f"frozen.{leaf.dtype.storage}"
    return "params" if role == "param" else f"input.{leaf.dtype.storage}"


def array_of(leaf: Tensor) -> str:
    """Return the persistent, input or constant array that holds a leaf."""
    return array_named(region_of(leaf), leaf.dtype)


def array_named(region: str, dtype: DType) -> str:
    """Return the array that the region is, or is a part of: states of one element type share an array."""
    return f"state.{dtype.storage}" if region.startswith(STATE) else region


def delivered_parts(order: Sequence[Tensor]) -> list[Tensor]:
    """Return the nodes that have memory of their own because others read it: parts of packs, and inputs of scans."""
    parts = [base(x) for t in order if t.prim.family in ("pack", "scan") for x in t.inputs]
    return [x for x in parts if x.prim.family not in ("leaf", *IN_MEMORY)]
