"""Check whether two batch sizes give one program: compare graphs and plans made at both, number by number.

Only sizes may differ between the two; all else must be equal. The check names no op: a mean over the batch shows as a
factor that differs, a flip as an index, a Python loop over rows as more nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from tracegrad.compiler.plan import Plan, ScanPlan
from tracegrad.dtypes import TensorType
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.form import Axis, Kernel, UnsizedError
from tracegrad.kernels.group import Launch, Member
from tracegrad.kernels.reads import base
from tracegrad.kernels.rows import RowLayout, Turned, turned, turnings
from tracegrad.kernels.show import body_of
from tracegrad.kernels.tiling import choose_tiling
from tracegrad.passes.alike import Comparison, Numbers
from tracegrad.prims.leaves import CONST, LITERAL


class Pair(NamedTuple):
    """Two batch sizes. The first is a prime, so that multiples of it depend on the batch."""

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
        """Return whether the values are equal or proportional to the batch. Constants are compared elsewhere."""
        if node.prim is CONST and name == "value" and node.dtype.name != "bool":
            return True
        return self.sizes.agree(*values)

    def nodes_of(self, graph: Graph, numbers: Numbers, trace: int) -> list[Tensor]:
        """Return the nodes except views that change nothing at the second size, such as a broadcast of 1 row to 1.

        Such a view gets the number of its input.
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


def sized_members(one: Plan, other: Plan, sizes: Pair, outside: int) -> dict[int, Member]:
    """Return the members of `one`, planned for the capacity, with kernels in which the size of a run sets one extent.

    The key is the id of a cluster. Each launch of the plans has one cluster. A kernel computes elements of the batch
    from elements of the batch only. Raises: UnsizedError if the plans do not prove this.

    outside: the elements before the axis of the size in an input; the most of all inputs.
    """
    comparison = _Plans(sizes, one, outside)
    comparison.plans(one, other)
    for name, t in one.storage.graph.results.items():
        rows = comparison.of(t)
        if rows and rows.before > 1:
            raise UnsizedError(f"the result {name} does not have the batch in front")
    return comparison.sized


class _Plans:
    """Compares two plans, and the plans of their loops."""

    def __init__(self, sizes: Pair, plan: Plan, outside: int) -> None:
        self.sizes, self.outside = sizes, outside
        self.made: dict[Any, Turned] = {}
        self.names: tuple[dict[int, Any], dict[int, Any]] = {}, {}  # serial -> a name that is equal in both plans
        self.rows: dict[Any, RowLayout] = {}  # by name
        self.kept = _kept(plan)
        self.sized: dict[int, Member] = {}  # by id of a cluster
        self.count = 0

    def of(self, t: Tensor) -> RowLayout | None:
        """Return the layout of rows in a value of the first plan; None if it does not grow."""
        return self.rows.get(self.names[0].get(base(t).serial))

    def plans(self, one: Plan, other: Plan) -> None:
        """Compare the launches of two plans one by one."""
        if len(one.launches) != len(other.launches):
            raise UnsizedError(f"other kernels run at a batch of {self.sizes.a} than at one of {self.sizes.b}")
        for x, y in zip(one.launches, other.launches):
            self.count += 1
            touched = [self.touched(p, c, seen) for p, c, seen in zip((one, other), (x, y), self.names)]
            if touched[0] != touched[1] or bool(x.scan) != bool(y.scan):
                what = "a loop" if x.scan else x.members[0].kernel.label
                raise UnsizedError(f"{what} reads other values at a batch of {self.sizes.b}")
            if x.scan:
                self.scans(one, other, one.scans[id(x.scan)], other.scans[id(y.scan)], touched[0][1:])
            else:
                self.members(x.members[0], y.members[0], touched[0][1:])
        packs = zip(*[[t for t in p.storage.order if t.prim.family == "pack"] for p in (one, other)])
        if any(self.sizes.per(t.size, u.size) for t, u in packs):
            raise UnsizedError("parts that grow with the batch are put together")

    def members(self, x: Member, y: Member, read: Sequence[Any]) -> None:
        """Give member `x` a kernel in which a run sets the extents that grow. read: names of the values it reads."""
        a, b, outs = x.kernel, y.kernel, x.cluster.outs
        grows = [self.sizes.per(s.size, t.size) for s, t in zip(a.slots, b.slots)]
        held = [self.rows.get(name, RowLayout(1, per)) if per else None for name, per in zip(read, grows)]
        held += [None] * len(outs)
        kept = [self.kept.get(t.serial, 0) if per else None for t, per in zip(outs, grows[len(read) :])]
        key = id(a), id(b), tuple(held), tuple(kept)
        if key not in self.made:
            self.made[key] = _turned(a, b, self.sizes, held, [None] * len(read) + kept, self.outside)
        made = self.made[key]
        tiling = x.tiling if made.kernel is a else choose_tiling(made.kernel, self.sizes.a)
        self.sized[id(x.cluster)] = Member(x.cluster, made.kernel, tiling, made.sized)
        self.rows |= {(self.count, k): rows for k, rows in enumerate(made.held[len(read) :]) if rows}

    def scans(self, one: Plan, other: Plan, x: ScanPlan, y: ScanPlan, read: Sequence[Any]) -> None:
        """Compare two loops. What is compared here also determines all places in them. read: names of the inputs."""
        per = self.sizes.per(x.length, y.length)
        self.check_loops(x, y, per)
        self.count += 1
        at = self.count
        for plan, scan, seen in zip((one, other), (x, y), self.names):
            seen |= {t.serial: ("leaf", at, k) for k, t in enumerate(scan.leaves)}
            seen |= {t.serial: ("item", at, t.attrs["index"]) for t in plan.items_of(scan)}
        self.leaves(x, y, at, read)
        self.plans(x.plan, y.plan)
        self.results(x, at)

    def check_loops(self, x: ScanPlan, y: ScanPlan, per: int) -> None:
        """Raise UnsizedError unless two loops are planned alike. per: how their length grows with the size."""
        one, other = (
            ([0 if ring == s.length + 1 else ring for ring in s.rings], s.same, [*s.roots], s.reverse, len(s.leaves))
            for s in (x, y)
        )
        if one != other or per != x.per:
            raise UnsizedError(f"a loop is planned otherwise at a batch of {self.sizes.b}")
        # constants are read whole in each iteration
        grown = [*zip(x.leaves[: x.xs.stop], y.leaves), *((t, y.roots[k]) for k, t in x.roots.items())]
        if per and any(a.size != b.size for a, b in grown):
            raise UnsizedError("what a loop stores in an iteration grows with the size, as its length does")

    def leaves(self, x: ScanPlan, y: ScanPlan, at: int, read: Sequence[Any]) -> None:
        """Find the rows of what an iteration of loop `at` reads. read: names of the inputs."""
        for k, (a, b) in enumerate(zip(x.leaves, y.leaves)):
            many, others = (x.length, y.length) if k in x.xs else (1, 1)
            each = self.sizes.per(a.size * many, b.size * others)
            rows = self.rows.get(read[k], RowLayout(1, each)) if each else None
            if rows and (many > 1 < rows.before if x.per else rows.before % many):
                raise UnsizedError("a loop moves along an axis that is behind the batch")
            if rows and a.size != b.size:
                self.rows["leaf", at, k] = RowLayout(rows.before // many, rows.after, True)

    def results(self, x: ScanPlan, at: int) -> None:
        """Find the rows of the results of loop `at`."""
        carries, roots = range(len(x.rings)), {k: self.of(t) for k, t in x.roots.items()}
        if any(roots[k] != self.rows.get(("leaf", at, k)) for k in carries):
            raise UnsizedError("a loop carries the batch along another axis from one iteration to the next")
        roots |= {k: roots[carry] for k, (carry, _) in x.same.items()}
        for k, rows in roots.items():
            times = 1 if k in carries else x.length
            each = x.roots[k] if k in x.roots else x.leaves[x.same[k][0]]
            held = rows and rows._replace(before=rows.before * times)
            if held or (x.per and times > 1):
                self.rows["item", at, k] = held or RowLayout(1, each.size * x.per, True)

    def touched(self, plan: Plan, launch: Launch, seen: dict[int, Any]) -> list[Any]:
        """Return how many values a launch computes, then the names of all that it reads. seen: serial -> name."""
        (c,) = launch.clusters
        for k, t in enumerate(c.outs):
            seen[t.serial] = (self.count, k)

        def name(t: Tensor) -> Any:
            if t.prim is LITERAL:
                return t.attrs["data"]
            given = (t.attrs["role"], t.attrs["name"]) if t.prim.family == "leaf" else t.prim.name
            return seen.get(t.serial, given)

        return [len(c.outs), *map(name, plan.externals[id(c)])]


def _kept(plan: Plan) -> dict[int, int]:
    """Return values whose rows must stay behind axes of loops: serial -> a divisor of the elements before the rows."""
    found: dict[int, int] = {}
    for scan in plan.scans.values():
        inside, carries = _kept(scan.plan), len(scan.rings)
        found |= inside
        times = [scan.length if k in scan.xs and not scan.per else 1 for k in range(len(scan.leaves))]
        roots = [(t, scan.leaves[k] if k < carries else t, 1) for k, t in scan.roots.items()]
        for t, leaf, many in (*zip(scan.scan.inputs, scan.leaves, times), *roots):
            key = base(t).serial
            found[key] = math.lcm(found.get(key, 1), inside.get(leaf.serial, 1) * many)
    return found


def _turned(
    one: Kernel, other: Kernel, sizes: Pair, held: Sequence[RowLayout | None], kept: Sequence[int | None], outside: int
) -> Turned:
    """Return the kernel of the first plan, of which a run sets the extents."""
    axes = [*zip(one.outer, other.outer), *zip(one.inner, other.inner)]
    grown = {a.name: per for a, b in axes if (per := sizes.per(a.size, b.size))}
    if sum(a.name in grown for a in one.outer) > 1:
        raise UnsizedError(f"{one.label} has the batch as several axes")
    why: UnsizedError | None = None
    for near in turnings(one, grown, held, kept, outside):
        try:
            made, again = (turned(k, n, near, held, kept) for k, n in zip((one, other), sizes))
        except UnsizedError as e:
            why = why or e
            continue
        if _spelled(made.plain) == _spelled(again.plain) and made.held == again.held:
            return made
        why = why or UnsizedError(f"{one.label} computes differently at a batch of {sizes.b}")
    assert why is not None
    raise why


def _spelled(kernel: Kernel) -> list[str]:
    """Return the text of a kernel except the sizes of its axes and slots."""

    def names(axes: Sequence[Axis]) -> str:
        return ", ".join([a.name for a in axes])

    head = f"{kernel.label} {kernel.uniform} ({names(kernel.outer)}) ({names(kernel.inner)})"
    return [head, *body_of(kernel, names)]
