"""Check whether two batch sizes give one program: compare graphs and plans made at both, number by number.

Only sizes may differ between the two; all else must be equal. The check names no op: a mean over the batch shows as a
factor that differs, a flip as an index, a Python loop over rows as more nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from tracegrad.compiler.plan import Plan, ScanPlan
from tracegrad.dtypes import TensorType
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.expr import Dynamic, Index, Quotient, Var, guards_of, names_of, walk
from tracegrad.kernels.form import Axis, Extent, Kernel, Store, UnsizedError, operands_of, sized
from tracegrad.kernels.group import Launch
from tracegrad.kernels.show import body_of
from tracegrad.passes.alike import Comparison, Numbers
from tracegrad.prims.leaves import CONST, LITERAL
from tracegrad.transforms.loops import Body


class Pair(NamedTuple):
    """Two batch sizes. The first is a prime, so that a multiple of it is no coincidence."""

    a: int
    b: int

    def per(self, a: int, b: int) -> int:
        """Return elements per element of the batch, from counts at the two sizes; 0 if the counts are equal.

        Raises UnsizedError if the elements are not proportional.
        """
        if a == b:
            return 0
        if a % self.a or a // self.a * self.b != b:
            raise UnsizedError(f"{a} at a batch of {self.a} is {b} at one of {self.b}")
        return a // self.a

    def agree(self, a: Any, b: Any) -> bool:
        """Return whether two attributes of a node are equal or grow with the batch."""
        if isinstance(a, int) and isinstance(b, int):
            if bool in (type(a), type(b)):
                return a is b
            return a == b or a * self.b == b * self.a
        if isinstance(a, tuple) and isinstance(b, tuple):
            xs, ys = cast("tuple[Any, ...]", a), cast("tuple[Any, ...]", b)
            return len(xs) == len(ys) and all(map(self.agree, xs, ys))
        return repr(a) == repr(b) if isinstance(a, float) else bool(a == b)


def check_graphs(one: Graph, other: Graph, sizes: Pair) -> None:
    """Raise UnsizedError, with the line, for the first node that differs in more than the size of the batch.

    Constants can have different values.
    """
    _Growth(sizes).check((one, other))


class _Growth(Comparison):
    """Compares traces that differ in the size of the batch."""

    def __init__(self, sizes: Pair) -> None:
        self.sizes = sizes

    def same(self, node: Tensor, name: str, values: Sequence[Any]) -> bool:
        """Return whether the values are equal or grow with the batch. Numbers can follow it in other ways."""
        if node.prim is CONST and name == "value" and node.dtype.name != "bool":
            return True
        return self.sizes.agree(*values)

    def nodes_of(self, graph: Graph, numbers: Numbers, trace: int) -> list[Tensor]:
        """Return the nodes that compute something at the second size, unlike a broadcast of one row to one row.

        A node that only renames its input gets the input's number.
        """

        def then(t: Tensor) -> TensorType:
            size = self.sizes[trace]
            return t.type._replace(shape=tuple([n // size * self.sizes.b if n % size == 0 else n for n in t.shape]))

        found: list[Tensor] = []
        for t in super().nodes_of(graph, numbers, trace):
            repeats = t.prim.repeats
            if repeats is not None and then(t) == then(t.inputs[0]) and repeats(then(t.inputs[0]), then(t)) == 1:
                numbers[t.serial] = numbers[t.inputs[0].serial]
            else:
                numbers[t.serial] = len(found)
                found.append(t)
        return found

    def bodies(self, loop: Tensor, bodies: Sequence[Body]) -> None:
        """Raise UnsizedError if a carry or an element is of another size in another trace, or the bodies differ."""
        one, other = bodies
        if any(x.size != y.size for x, y in zip((*one.carries, *one.xs), (*other.carries, *other.xs))):
            where = f", {loop.site.short}" if loop.site else ""
            raise UnsizedError(f"{loop.prim.name}{where}, is a loop whose iterations grow with the size")
        super().bodies(loop, bodies)


def decide_extents(one: Plan, other: Plan, sizes: Pair) -> None:
    """Give each launch of `one`, planned for the capacity, kernels in which the size of a run sets one extent.

    The axis is the outermost, or one that the kernel sums over. Elements that belong to the batch are
    then right whatever the other elements hold: they come first in every value, and a kernel reads no others for them.
    Raises: UnsizedError where the plans do not prove this.
    """
    _Decision(sizes).plans(one, other)


class _Decision:
    """Compares two plans, and the plans of their loops."""

    def __init__(self, sizes: Pair) -> None:
        self.sizes = sizes
        self.made: dict[tuple[int, int], list[Kernel]] = {}
        self.names: tuple[dict[int, Any], dict[int, Any]] = {}, {}  # serial -> a name that is equal in both plans
        self.count = 0

    def plans(self, one: Plan, other: Plan) -> None:
        """Compare the launches of two plans one by one."""
        if len(one.launches) != len(other.launches):
            raise UnsizedError(f"other kernels run at a batch of {self.sizes.a} than at one of {self.sizes.b}")
        for x, y in zip(one.launches, other.launches):
            self.count += 1
            touched = [self.touched(p, c, seen) for p, c, seen in zip((one, other), (x, y), self.names)]
            scans = one.scans.get(id(x.clusters[0])), other.scans.get(id(y.clusters[0]))
            if touched[0] != touched[1] or bool(scans[0]) != bool(scans[1]):
                what = x.kernels[0].label if x.kernels else "a loop"
                raise UnsizedError(f"{what} reads other values at a batch of {self.sizes.b}")
            if scans[0] and scans[1]:
                self.scans(one, other, scans[0], scans[1])
            else:
                self.launches(x, y)
        packs = zip(_packs(one), _packs(other))
        if any(self.sizes.per(t.size, u.size) for t, u in packs):
            raise UnsizedError("parts that grow with the batch are put together")

    def launches(self, x: Launch, y: Launch) -> None:
        """Decide the extents of a kernel."""
        key = (id(x.kernels[0]), id(y.kernels[0]))
        if key not in self.made:
            self.made[key] = [_with_extent(x.kernels[0], y.kernels[0], self.sizes)]
        x.sized = self.made[key]

    def scans(self, one: Plan, other: Plan, x: ScanPlan, y: ScanPlan) -> None:
        """Compare two loops. The places in them follow from what is compared here."""
        per = self.sizes.per(x.length, y.length)
        rings = [[0 if ring == scan.length + 1 else ring for ring in scan.rings] for scan in (x, y)]
        same = (rings[0], x.same, list(x.roots), x.reverse, per) == (
            rings[1], y.same, list(y.roots), y.reverse, x.per)  # fmt: skip
        own = len(x.leaves) - len(x.body.consts)  # the others are read whole in each iteration
        if not same or len(x.leaves) != len(y.leaves):
            raise UnsizedError(f"a loop is planned otherwise at a batch of {self.sizes.b}")
        grown = [*zip(x.leaves[:own], y.leaves[:own]), *((t, y.roots[k]) for k, t in x.roots.items())]
        if any(a.size != b.size for a, b in grown):
            raise UnsizedError("what a loop stores in an iteration grows with the size")
        self.count += 1
        for plan, scan, seen in zip((one, other), (x, y), self.names):
            seen |= {t.serial: ("leaf", self.count, k) for k, t in enumerate(scan.leaves)}
            seen |= {t.serial: ("item", self.count, t.attrs["index"]) for t in plan.items_of(scan)}
        self.plans(x.plan, y.plan)

    def touched(self, plan: Plan, launch: Launch, seen: dict[int, Any]) -> list[Any]:
        """Return what a launch reads and computes, by names that are equal in two plans. seen: serial -> name."""
        (c,) = launch.clusters
        for k, t in enumerate(c.outs):
            seen[t.serial] = (self.count, k)
        found: list[Any] = [len(c.outs)]
        for t in plan.externals[id(c)]:
            if t.prim is LITERAL:
                found.append(t.attrs["data"])
            elif t.serial in seen:
                found.append(seen[t.serial])
            elif t.prim.family == "leaf":
                found.append((t.attrs["role"], t.attrs["name"]))
            else:
                found.append(t.prim.name)
        return found


def _packs(plan: Plan) -> list[Tensor]:
    return [t for t in plan.storage.order if t.prim.family == "pack"]


def leading(a: TensorType, b: TensorType, sizes: Pair) -> int:
    """Return elements of axis 0 per element of the batch. No other axis may grow.

    Raises UnsizedError if another does.
    """
    if a.shape[1:] != b.shape[1:]:
        raise UnsizedError(f"{a} grows with the batch along another axis than the first")
    return sizes.per(a.shape[0], b.shape[0]) if a.shape else 0


def _with_extent(one: Kernel, other: Kernel, sizes: Pair) -> Kernel:
    """Return the kernel with the axis whose extent the run sets, or the kernel itself if there is none."""
    if _spelled(one) != _spelled(other):
        raise UnsizedError(f"{one.label} computes otherwise at a batch of {sizes.b}")
    axes = [*zip(one.outer, other.outer), *zip(one.inner, other.inner)]
    grown = {a.name: per for a, b in axes if (per := sizes.per(a.size, b.size))}
    slots = [sizes.per(a.size, b.size) for a, b in zip(one.slots, other.slots)]
    first = next((a.name for a in one.outer if a.size > 1), "")
    for axis in grown:
        if axis != first and axis not in [a.name for a in one.inner]:
            raise UnsizedError(f"{one.label} has the batch as another axis than the first")
    for s in one.body:
        if isinstance(s, Store) and not _stored(s, grown, slots[s.slot], first):
            raise UnsizedError(f"{one.label} writes what another kernel would have to know the batch of")
    for v in walk([x for s in one.body for x in operands_of(s)]):
        slot: int = v.arg[0] if v.op == "load" else -1
        of_slot, axes = slots[slot] if slot >= 0 else 0, grown or {"": 0}
        if of_slot and not any(_within(v.arg[1], axis, per, of_slot, one, sizes.a) for axis, per in axes.items()):
            raise UnsizedError(f"{one.label} reads other rows of the batch than its own")
    return sized(one, {axis: Extent.of(sizes.a, per) for axis, per in grown.items()}) if grown else one


def _stored(s: Store, grown: Mapping[str, int], of_slot: int, first: str) -> bool:
    """Return whether the store writes exactly the batch's elements of a slot; all, once, if the slot does not grow."""
    if of_slot:
        return any(_own_row(s.index, axis, per, of_slot) for axis, per in grown.items())
    return first not in grown and not (s.inner and grown)


def _own_row(index: Index, axis: str, per: int, of_slot: int) -> bool:
    """Return whether each point along the axis has an equal, contiguous share of the slot to itself, in order.

    The index is valid at the capacity. So the offset added to `share * point` is at least 0 at the first point, and
    less than a share at the last point. An offset that does not depend on the point is in this range everywhere.
    """
    rest = [a for a, _ in index.terms if not (isinstance(a, Var) and a.name == axis)]
    # A value read from memory is clamped to a fixed range, so an index by it counts as the same at every point
    return index.strides.get(axis, -1) * per == of_slot and axis not in names_of(rest, loaded=False)


def _within(index: Index, axis: str, per: int, of_slot: int, kernel: Kernel, capacity: int) -> bool:
    """Return whether a load stays among the elements that belong to the batch, at every size.

    Either each row reads its own part, also under guards that do not depend on rows. Or the upper bound of the index,
    `slope * size + at`, is below the slot's size at the smallest and at the largest batch.
    """
    values = walk([x for s in kernel.body for x in operands_of(s)])
    guards = [g.index for g in guards_of(values)]
    guarded = axis in names_of((a for g in guards for a, _ in g.terms), loaded=False)
    if per and not guarded and _own_row(index, axis, per, of_slot):
        return True
    slope, at = _largest(index, axis, per)
    return all(slope * n + at < of_slot * n for n in (1, capacity))


def _largest(index: Index, axis: str, per: int) -> tuple[int, int]:
    """Return an upper bound of an index, as a slope along the size and an offset."""
    slope, at = 0, index.const
    for atom, c in index.terms:
        more, high = _largest_atom(atom, axis, per) if c > 0 else (0, atom.lo)
        slope, at = slope + c * more, at + c * high
    return slope, at


def _largest_atom(atom: Var | Quotient | Dynamic, axis: str, per: int) -> tuple[int, int]:
    if isinstance(atom, Var) and atom.name == axis:
        return per, -1
    if isinstance(atom, Quotient) and not atom.mod:
        slope, at = _largest(atom.index, axis, per)
        if slope % atom.d == 0:
            return slope // atom.d, at // atom.d
    return 0, atom.hi


def _spelled(kernel: Kernel) -> list[str]:
    """Return the text of a kernel except the sizes of its axes and slots."""

    def names(axes: Sequence[Axis]) -> str:
        return ", ".join([a.name for a in axes])

    head = f"{kernel.label} {kernel.uniform} ({names(kernel.outer)}) ({names(kernel.inner)})"
    return [head, *body_of(kernel, names)]
