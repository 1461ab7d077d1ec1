"""Recompute large elementwise values in the backward pass instead of keeping them from the forward pass until then."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence, Set

from tracegrad.ir import ambient
from tracegrad.ir.graph import beside, postorder
from tracegrad.ir.nodes import Tensor, bind, rebind, toposort
from tracegrad.kernels.storage import Storage, analyse
from tracegrad.prims.views import BARRIER
from tracegrad.tuning import MUCH_SMALLER, RECOMPUTE_FROM

POINTWISE = ("map", "view", "formula")


def recompute(storage: Storage) -> Storage:
    """Let the backward pass recompute y = f(x) if it reads x too, so that y lives in the forward pass only.

    For example, a layer norm keeps its normalised input without gain and offset, and a gelu keeps its input only. The
    forward pass is the nodes that the loss depends on. A recomputed value waits for the gradient that it is combined
    with: otherwise it would be scheduled early, and its memory would not be saved. So does a large value of the
    backward pass that depends on no gradient, such as the input of a gelu within the limits of its slope.
    """
    graph, order = storage.graph, storage.order
    loss = graph.outputs.get("loss")
    if loss is None or all(t.size < RECOMPUTE_FROM for t in order):
        return storage
    forward = {t.serial for t in toposort([loss])}
    again = _chosen(storage, forward)
    if not again:
        return storage
    return analyse(graph.with_roots(_Backward(storage, forward, again).rebuilt(graph.roots)))


def _chosen(storage: Storage, forward: set[int]) -> set[int]:
    """Return the serials of values to recompute: all their inputs are small, or read by the backward pass anyway."""
    order, stored = storage.order, storage.stored
    read = [x for t in order if t.serial not in forward for x in t.inputs]
    late = {t.serial for t in beside(read, _computed(stored))}
    return _from_kept(order, (forward & late & stored.keys()) - storage.roots - storage.once, late, stored)


def _from_kept(order: Sequence[Tensor], among: Set[int], late: Set[int], stored: Container[int]) -> set[int]:
    """Return those large values `among` that are computed from small values, and from values `late` that are kept."""
    found: set[int] = set()
    for t in order:
        if t.serial in among and t.prim.family == "map" and t.size >= RECOMPUTE_FROM:
            sources = beside(t.inputs, _computed(stored, found))
            if all(x.serial in late or x.prim.family == "leaf" or MUCH_SMALLER * x.size <= t.size for x in sources):
                found.add(t.serial)
    return found


def _computed(stored: Container[int], again: Container[int] = ()) -> Callable[[Tensor], bool]:
    """Return a function that tells of a value whether its readers compute it, inlined or `again`."""
    return lambda t: t.serial in again or (t.prim.family in POINTWISE and t.serial not in stored)


class _Backward:
    """Rebuilds all nodes outside of the forward pass.

    A node that only moves or combines values of the forward pass, point by point, *floats*: it could be computed at any
    time. All other nodes wait for the gradients among their inputs, and so do the recomputed values that they read.
    """

    def __init__(self, storage: Storage, forward: set[int], again: set[int]) -> None:
        order, self.stored = storage.order, storage.stored
        self.backward = [t for t in order if t.serial not in forward]
        self.new: dict[int, Tensor] = {t.serial: t for t in order if t.serial in forward}  # the rebuilt nodes
        self.gradient: dict[int, Tensor] = {}  # the last gradient that a node that does not float depends on
        self.waits: dict[int, Tensor] = {}  # the last gradient among a node's inputs
        for t in self.backward:
            last = max((self.gradient[x.serial] for x in t.inputs if x.serial in self.gradient), key=_serial, default=t)
            if last is not t:
                self.waits[t.serial] = last
            if last is not t or t.prim.family not in POINTWISE:
                self.gradient[t.serial] = last if t.prim.family in POINTWISE else t
        self.again = again | self.floating(storage, again)
        self.meets = self.meetings()
        self.copies: dict[tuple[int, int], Tensor] = {}

    def floating(self, storage: Storage, again: set[int]) -> set[int]:
        """Return the large stored nodes that float, if all that they read is kept for nodes that do not."""
        free = self.stored.keys() - self.gradient.keys() - storage.roots - storage.once
        read = [x for t in self.backward if t.serial in self.gradient for x in t.inputs]
        late = {t.serial for t in beside(read, _computed(self.stored, again))}
        return _from_kept(self.backward, free, late, self.stored)

    def meetings(self) -> dict[int, Tensor]:
        """Return, for each value to recompute, the gradient that its first reader in the backward pass waits for."""
        found: dict[int, Tensor] = {}
        for t in self.backward:
            for x in beside(t.inputs, _computed(self.stored)) if t.serial in self.waits else ():
                if x.serial in self.again:
                    found.setdefault(x.serial, self.waits[t.serial])
        return found

    def rebuilt(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Return the rebuilt roots."""
        with ambient.rewriting() as here:
            for t in self.backward:
                here.site = t.site
                last = self.waits.get(t.serial)
                self.new[t.serial] = rebind(t, [self.read(x, last) for x in t.inputs])
        return [self.new[t.serial] for t in roots]

    def read(self, x: Tensor, last: Tensor | None) -> Tensor:
        """Return what a reader that waits for `last` reads instead of `x`."""
        if last is None or x.serial in self.gradient or x.prim.family not in POINTWISE:
            return self.new[x.serial]
        if x.serial in self.again:
            # If the inputs of `x` are recomputed later, recompute `x` with them: then both are computed once.
            sources = beside(x.inputs, _computed(self.stored))
            parts = [self.meets[y.serial] for y in sources if y.serial in self.meets]
            return self.copy(x, max([last, *(g for g in parts if g.serial in self.new)], key=_serial))
        return self.new[x.serial] if x.serial in self.stored else rebind(x, [self.read(i, last) for i in x.inputs])

    def copy(self, x: Tensor, last: Tensor) -> Tensor:
        """Return a copy of `x` that is computed once the gradient `last` exists.

        A value in `again` has one copy for all gradients. Other values have one copy for each gradient.
        """

        def key(t: Tensor) -> tuple[int, int]:
            return t.serial, -1 if t.serial in self.again else last.serial

        computed = _computed(self.stored, self.again)
        for t in postorder([x], lambda t: t.inputs if computed(t) and key(t) not in self.copies else ()):
            if key(t) in self.copies:
                continue
            if computed(t):
                self.copies[key(t)] = rebind(t, [self.copies[key(i)] for i in t.inputs])
            else:
                self.copies[key(t)] = bind(BARRIER, t, self.new[last.serial])
        return self.copies[key(x)]


def _serial(t: Tensor) -> int:
    return t.serial
