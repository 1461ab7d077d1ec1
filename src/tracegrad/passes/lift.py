"""Lift work out of scans: values that do not depend on earlier iterations are computed for all iterations at once.

before the loop:  values that no iteration changes, transposed weights included; products and folds of elements alone,
                  such as x_t @ W
after the loop:   products that no later iteration needs, such as the outputs of a recurrent layer. Also sums over all
                  iterations, such as the gradients of weights: sum_t a_t^T @ b_t is one product. In a loop, a sum over
                  a batch would keep a GPU from running all iterations in one launch

The loop stores the inputs of lifted work, one value for each iteration, if they are small or add little to what the
scan stores anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tracegrad.ir import ambient
from tracegrad.ir.graph import beside, computed_once, depending
from tracegrad.ir.nodes import Tensor, bind, graft, rewrite, toposort
from tracegrad.passes.scans import any_scan, everywhere, in_bodies, items_read, only_asked
from tracegrad.passes.simplify import simplify
from tracegrad.prims.elementwise import COPY
from tracegrad.prims.folds import MATMUL, SCATTER_ADD, SUM, scatter_add
from tracegrad.prims.leaves import const
from tracegrad.prims.views import PERMUTE, broadcast_to, permute, reshape
from tracegrad.transforms.loops import SCAN, Body, inner_leaf, item
from tracegrad.transforms.walks import batches
from tracegrad.tuning import LIFTED_BYTES, LIFTED_TIMES

PRODUCTS = ("product", "scatter")  # families worth moving: many small products become a large one
FOLDS = (*PRODUCTS, "fold")  # families worth moving if they are summed over all iterations
INSIDE = ("scan", "item")  # an inner loop stays: outside, the values of all outer iterations would need memory at once
NOTHING = frozenset[int]()


class Cut(NamedTuple):
    """Serials of nodes. The loop stores the values `at` the cut.

    `products` lie between the cut and the value that moves out; another product depends on the ones in `inner`.
    """

    at: frozenset[int] = NOTHING
    products: frozenset[int] = NOTHING
    inner: frozenset[int] = NOTHING

    @property
    def sinks(self) -> bool:
        """True if the value is better computed outside of the loop."""
        return bool(self.products) or not self.at


class Cuts:
    """The cuts of the values of one body.

    live: nodes that the next iteration needs, so that the loop computes everything on the way to them.
    """

    def __init__(self, live: Sequence[Tensor], roots: Sequence[Tensor], carries: Sequence[Tensor]) -> None:
        order = toposort(roots)
        self.nodes = {t.serial: t for t in order}
        self.stored: dict[int, Tensor] = {}
        self.live = {t.serial for t in (*toposort(live), *carries)}
        self.once = computed_once(order)
        self.bound = depending(order, [*carries, *[t for t in order if t.prim.family in INSIDE]])

    def store(self, values: Iterable[Tensor]) -> None:
        """Mark values as stored for all iterations."""
        self.stored |= {t.serial: t for t in values}

    def size(self, serials: frozenset[int]) -> int:
        """Return how many elements of these values are not stored yet, for one iteration."""
        return sum(self.nodes[serial].size for serial in serials - self.stored.keys())

    def of(self, roots: Sequence[Tensor], families: Sequence[str] = PRODUCTS) -> Cut:
        """Return the cut before the inputs of `roots`. families: of ops that are worth moving."""
        found: dict[int, Cut] = {}
        for t in toposort(roots):
            found[t.serial] = self._of(t, _union([found[x.serial] for x in t.inputs]), families)
        return _union([found[t.serial] for t in roots])

    def _of(self, t: Tensor, behind: Cut, families: Sequence[str]) -> Cut:
        """Return the cut for `t`, given the cut `behind` for its inputs."""
        own, family = frozenset([t.serial]), t.prim.family
        if t.serial in self.stored or (t.serial in self.once and family != "leaf"):
            return Cut(own)
        if t.serial not in self.bound:
            return behind
        if family == "view" and len(t.inputs) == 1:
            return behind
        if family in families and t.serial not in self.live:
            # a fold of values that depend on another fold can need them whole in memory
            whole = t.inputs if behind.products and families is FOLDS else ()
            read = frozenset([x.serial for x in whole])
            return Cut(behind.at, behind.products | own, behind.inner | behind.products | read)
        less = not behind.products and t.size < self.size(behind.at)
        return Cut(own) if less or t.serial in self.live or family in (*INSIDE, "view") else behind


def _union(cuts: Sequence[Cut]) -> Cut:
    return Cut(*[frozenset[int]().union(*part) for part in zip(*cuts)]) if cuts else Cut()


WORD = 4  # bytes of a value


def out_of_loops(roots: Sequence[Tensor]) -> list[Tensor]:
    """Lift work out of every scan, inner scans first."""
    if not any_scan(roots):
        return list(roots)
    roots = in_bodies(roots, out_of_loops)
    asked = items_read(roots)
    results: dict[int, dict[int, Tensor]] = {}  # serial of a scan -> the new values of its items

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim.family == "scan":
            results[t.serial] = _Loop(t, sorted(asked[id(t.attrs["body"])])).results()
        lifted = t.prim.family == "item" and inputs[0].serial in results
        return results[inputs[0].serial][t.attrs["index"]] if lifted else None

    return everywhere(only_asked(rewrite(roots, rule)), simplify)


class Sum(NamedTuple):
    """A carry to which every iteration adds `terms`, and of which only the last value is needed."""

    carry: int
    terms: tuple[Tensor, ...]


@dataclass(slots=True)
class _Loop:
    """A scan while it is being rewritten."""

    scan: Tensor
    asked: list[int]  # indices of its items that are read
    roots: list[Tensor] = field(init=False)
    xs: dict[Tensor, Tensor] = field(init=False)  # leaf of the body -> the value that it iterates over
    consts: dict[Tensor, Tensor] = field(init=False)  # leaf of the body -> the value that it stands for
    # once the scan is bound again: what it outputs, whose inputs can stay inside, and serials of what iterations change
    given: dict[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    varying: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        body: Body = self.scan.attrs["body"]
        _, xs, consts = body.split(self.scan.inputs)
        self.roots = list(body.roots)
        self.xs, self.consts = dict(zip(body.xs, xs)), dict(zip(body.consts, consts))

    @property
    def carries(self) -> tuple[Tensor, ...]:
        return self.scan.attrs["body"].carries

    @property
    def length(self) -> int:
        return self.scan.attrs["length"]

    def results(self) -> dict[int, Tensor]:
        """Return the new value of each item that is read."""
        with ambient.rewriting() as here:
            here.site = self.scan.site
            self.hoist_shared()
            self.hoist_elements()
            return self.rebuilt()

    def behind(self, leaves: Iterable[Tensor]) -> set[int]:
        """Return the serials of all nodes of the body that depend on `leaves`."""
        return depending(toposort(self.roots), leaves)

    def inside(self) -> list[Tensor]:
        """Return the loops in the body."""
        return [t for t in toposort(self.roots) if t.prim.family in INSIDE]

    def hoist_shared(self) -> None:
        """Compute values that no iteration changes once, unless they are views or made of constants.

        Of transposed operands a copy is made, so that no product rearranges them again.
        """
        varying, shared = self.behind([*self.carries, *self.xs]), self.behind(self.consts)

        def own(t: Tensor) -> bool:
            return t.serial in varying or t.serial not in shared or t.prim.family in ("leaf", "view", "scan")

        def across(x: Tensor) -> bool:
            return x.serial not in varying and x.prim is PERMUTE and x.axes[-1] != x.ndim - 1

        multiplied = [x for t in toposort(self.roots) if t.prim.family == "product" for x in t.inputs]
        found = {t: self.around(t) for t in beside(self.roots, own)}
        found |= {x: bind(COPY, self.around(x)) for x in dict.fromkeys(filter(across, multiplied))}
        leaves = {t: inner_leaf("const", t.type) for t in found}
        self.consts |= {leaves[t]: value for t, value in found.items()}
        self.roots = graft(self.roots, {t.serial: leaf for t, leaf in leaves.items()})

    def hoist_elements(self) -> None:
        """Compute products and folds of elements for all iterations, before the loop."""
        order = toposort(self.roots)
        free = self.behind(self.xs) - self.behind([*self.carries, *self.inside()])
        once = computed_once(order)
        kept = {self.roots[k].serial for k in self.asked}
        new: dict[int, Tensor] = {}
        for t in order:
            if t.serial in free and (t.prim.family in (*PRODUCTS, "fold") or t.serial in once):
                held = sum(x.size for x in toposort([t]) if x in self.xs)
                if t.serial in kept or self.fits(t.size, held):
                    new[t.serial] = inner_leaf("x", t.type)
                    self.xs[new[t.serial]] = self.stacked(t)
        self.roots = graft(self.roots, new)

    def fits(self, size: int, held: int) -> bool:
        """Return whether `size` more elements can be stored per iteration. `held`: elements that are stored anyway."""
        return WORD * self.length * size <= max(LIFTED_BYTES, LIFTED_TIMES * WORD * self.length * held)

    def around(self, t: Tensor) -> Tensor:
        """Return `t`, which no iteration changes, as a value outside of the loop."""
        return graft([t], {leaf.serial: x for leaf, x in self.consts.items()})[0]

    def stacked(self, t: Tensor) -> Tensor:
        """Return the values of `t` in all iterations, along a new axis 0, outside of the loop."""
        known = self.xs | self.given
        many = known[t] if t in known else batches([t], known, self.length)[0]
        return broadcast_to(self.around(t), (self.length, *t.shape)) if many is None else self.around(many)

    def sums(self) -> list[Sum]:
        """Return the carries that are sums."""
        n = len(self.carries)
        read = [x for t in toposort(self.roots) for x in t.inputs]
        readers = Counter(x.serial for x in (*read, *[self.roots[k] for k in {*range(n), *self.asked}]))
        found: list[Sum] = []
        for k, leaf in enumerate(self.carries):
            behind = self.behind([leaf])
            t, terms = self.roots[k], list[Tensor]()
            while t is not leaf and t.prim.name == "add" and readers[t.serial] == 1:
                a, b = t.inputs if t.inputs[0].serial in behind else t.inputs[::-1]
                if b.serial in behind:
                    break
                terms.append(b)
                t = a
            if t is leaf and terms and readers[leaf.serial] == 1:
                found.append(Sum(k, tuple(terms)))
        return found

    def rebuilt(self) -> dict[int, Tensor]:
        """Bind the scan without the lifted values, compute these after it, and return the new value of each item."""
        n = len(self.carries)
        values = [k for k in self.asked if k >= n]
        cuts, moved = self.cut(values)
        gone = {s.carry for s in moved}
        left = [k for k in range(n) if k not in gone]
        each = [t for t in cuts.stored.values() if t not in self.xs]
        scan = self.bound(left, each)
        self.given = {t: item(scan, len(left) + k) for k, t in enumerate(each)}
        self.varying = self.behind([*self.carries, *self.xs])
        results = {k: item(scan, place) for place, k in enumerate(left)}
        for s in moved:
            results[s.carry] = self.scan.inputs[s.carry]
            for t in s.terms:
                results[s.carry] = results[s.carry] + summed(t, self)
        return results | {k: self.stacked(self.roots[k]) for k in values}

    def cut(self, values: Sequence[int]) -> tuple[Cuts, list[Sum]]:
        """Return what the loop stores in each iteration, and the sums to compute after it. values: items to return."""
        sums, roots = self.sums(), {k: self.roots[k] for k in values}
        added = {s.carry for s in sums}
        cuts = Cuts([self.roots[k] for k in range(len(self.carries)) if k not in added], self.roots, self.carries)
        cuts.store([t for t in roots.values() if t.serial in cuts.live])
        kept = {k for k, t in roots.items() if not cuts.of([t]).sinks}
        cuts.store([roots[k] for k in kept])
        kept |= {k for k, t in roots.items() if k not in kept and not self.sink(cuts, [t])}
        moved: list[Sum] = []
        for families in (PRODUCTS, FOLDS):
            left = [s for s in sums if s not in moved and cuts.of(s.terms, families).products]
            moved += [s for s in left if self.sink(cuts, s.terms, families)]
        cuts.store([roots[k] for k in kept])
        return cuts, [*moved, *(s for s in sums if s not in moved and cuts.of(s.terms).at <= cuts.stored.keys())]

    def bound(self, left: Sequence[int], each: Sequence[Tensor]) -> Tensor:
        """Return the scan with the carries `left`, which outputs `each`."""
        carries, new = tuple([self.carries[k] for k in left]), tuple([self.roots[k] for k in left])
        body = Body(carries, (*self.xs,), (*self.consts,), new, tuple(each))
        inputs = [*(self.scan.inputs[k] for k in left), *self.xs.values(), *self.consts.values()]
        return bind(SCAN, *inputs, **{**self.scan.attrs, "body": body})

    def sink(self, cuts: Cuts, roots: Sequence[Tensor], families: Sequence[str] = PRODUCTS) -> bool:
        """Return whether the inputs of `roots` from the loop fit into memory. If so, mark them as stored.

        families: as for `Cuts.of`.
        """
        cut = cuts.of(roots, families)
        held = sum(t.size for t in (*self.xs, *cuts.stored.values()))
        if not self.fits(cuts.size(cut.at | cut.inner), held):
            return False
        cuts.store([cuts.nodes[serial] for serial in sorted(cut.at)])
        return True


LINEAR = ("neg", "add", "sub")


def summed(t: Tensor, o: _Loop) -> Tensor:
    """Return the sum of `t` over all iterations, moved through linear ops to products, whose inner axis gets longer."""
    family, name = t.prim.family, t.prim.name
    if t.serial not in o.varying:
        return o.around(t) * const(o.length, t.dtype)
    if t in o.given:
        return reshape(bind(SUM, o.stacked(t), axes=(0,)), t.shape)
    if name in LINEAR or (family == "view" and len(t.inputs) == 1) or (name == "sum" and _of_product(t)):
        return bind(t.prim, *[summed(x, o) for x in t.inputs], **t.attrs)
    if name == "mul" and any(x.serial not in o.varying for x in t.inputs):
        a, b = t.inputs if t.inputs[0].serial in o.varying else t.inputs[::-1]
        return summed(a, o) * o.around(b)
    if t.prim is MATMUL:
        return _product(t, o)
    if t.prim is SCATTER_ADD:
        return _scatter(t, o)
    if name == "sum":
        (x,) = t.inputs
        many = bind(SUM, o.stacked(x), axes=(0, *[a + 1 for a in t.axes]))
        return reshape(many, t.shape)
    return reshape(bind(SUM, o.stacked(t), axes=(0,)), t.shape)


def _of_product(t: Tensor) -> bool:
    """Return whether there is a product behind linear ops."""
    while t.prim.family == "view" or t.prim.name in ("sum", "neg"):
        t = t.inputs[0]
    return t.prim.family == "product" or t.prim is SCATTER_ADD


def _product(t: Tensor, o: _Loop) -> Tensor:
    """Return sum_t a_t @ b_t as one product: all a_t side by side, times all b_t stacked by rows."""
    a, b = t.inputs
    if a.serial not in o.varying:
        return bind(MATMUL, o.around(a), summed(b, o))
    if b.serial not in o.varying:
        return bind(MATMUL, summed(a, o), o.around(b))
    batch, n = tuple(range(1, t.ndim - 1)), t.ndim
    if n == 2 and a.prim is PERMUTE and a not in o.given:  # a view of rows that are already stacked
        wide = permute(_below(o.stacked(a.inputs[0])), (1, 0))
    else:
        wide = permute(o.stacked(a), (*batch, n - 1, 0, n))
    high = permute(o.stacked(b), (*batch, 0, n - 1, n))
    k = o.length * a.shape[-1]
    return bind(MATMUL, reshape(wide, (*a.shape[:-1], k)), reshape(high, (*b.shape[:-2], k, b.shape[-1])))


def _below(x: Tensor) -> Tensor:
    """Return all matrices stacked by rows as one matrix."""
    return reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))


def _scatter(t: Tensor, o: _Loop) -> Tensor:
    """Return one scatter of the updates of all iterations, one after the other."""
    x, indices = t.inputs
    if indices.serial not in o.varying:
        return scatter_add(summed(x, o), o.around(indices), t.axis, t.attrs["length"])
    axes = [*range(1, t.axis + 1), 0, *range(t.axis + 1, t.ndim + 1)]
    shape = (*x.shape[: t.axis], o.length * x.shape[t.axis], *x.shape[t.axis + 1 :])
    many = [reshape(permute(o.stacked(y), axes), shape) for y in (x, indices)]
    return scatter_add(many[0], many[1], t.axis, t.attrs["length"])
