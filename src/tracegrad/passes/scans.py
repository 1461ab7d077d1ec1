"""Apply passes to the bodies of scans, and trim scans to what is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.ir.graph import reached
from tracegrad.ir.nodes import Tensor, bind, rewrite, toposort
from tracegrad.passes.simplify import of_nothing, without_idle_waits
from tracegrad.prims.leaves import LEAF
from tracegrad.transforms.loops import Body, item

Pass = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def in_bodies(roots: Sequence[Tensor], run: Pass) -> list[Tensor]:
    """Apply a pass to the body of every scan; `run` must go into nested scans itself."""

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim.family != "scan":
            return None
        body: Body = t.attrs["body"]
        return bind(t.prim, *inputs, **{**t.attrs, "body": body.with_roots(list(run(body.roots)))})

    return rewrite(roots, rule) if any_scan(roots) else list(roots)


def everywhere(roots: Sequence[Tensor], run: Pass) -> list[Tensor]:
    """Apply a pass to a graph and to all bodies in it."""
    return in_bodies(run(roots), lambda inner: everywhere(inner, run))


def only_asked(roots: Sequence[Tensor]) -> list[Tensor]:
    """Return the graph with every scan trimmed to the results, carries and inputs that are needed."""
    roots = without_idle_waits(roots)
    if not any_scan(roots):
        return roots
    # first, because empty values would count as reads
    roots = everywhere(roots, lambda inner: rewrite(inner, of_nothing))
    asked = items_read(roots)
    places: dict[int, dict[int, int]] = {}  # serial of a new scan -> old item -> new item

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim.family == "scan":
            body, own, kept = _trimmed(t.attrs["body"], asked[id(t.attrs["body"])])
            new = bind(t.prim, *(inputs[k] for k in kept), **{**t.attrs, "body": body})
            places[new.serial] = own
            return new
        if t.prim.family == "item":
            return item(inputs[0], places[inputs[0].serial][t.attrs["index"]])
        return None

    return rewrite(roots, rule)


def items_read(roots: Sequence[Tensor]) -> dict[int, set[int]]:
    """Return the indices of the results of each scan that are read, by `id` of its body."""
    found: dict[int, set[int]] = {}
    for t in toposort(roots):
        if t.prim.family == "item":
            found.setdefault(id(t.inputs[0].attrs["body"]), set()).add(t.attrs["index"])
    return found


def _trimmed(body: Body, asked: set[int]) -> tuple[Body, dict[int, int], list[int]]:
    """Return the body trimmed to the results `asked`, old index -> new index of each, and the inputs that it keeps."""
    later = {leaf.serial: [t] for leaf, t in zip(body.carries, body.new)}  # a carry that is read has to be computed
    read = {t.serial for t in reached([body.roots[k] for k in asked], lambda t: later.get(t.serial, t.operands))}
    needed = asked | {k for k, t in enumerate(body.carries) if t.serial in read}
    places = {k: place for place, k in enumerate(sorted(needed))}
    roots = only_asked([body.roots[k] for k in places])
    used = {t.serial for t in toposort(roots)}
    xs, consts = (tuple([t for t in part if t.serial in used]) for part in (body.xs, body.consts))
    carries = tuple([body.carries[k] for k in places if k < len(body.new)])
    trimmed = Body(carries, xs, consts, tuple(roots[: len(carries)]), tuple(roots[len(carries) :]))
    kept = {t.serial for t in trimmed.leaves}
    return trimmed, places, [k for k, t in enumerate(body.leaves) if t.serial in kept]


def stray_leaves(roots: Sequence[Tensor], own: Sequence[Tensor] = ()) -> list[Tensor]:
    """Return the leaves of bodies that are read outside of their body. `own`: the leaves of this body."""
    known = {t.serial for t in own}
    found: list[Tensor] = []
    for t in toposort(roots):
        if t.prim.family == "scan":
            found += stray_leaves(t.attrs["body"].roots, t.attrs["body"].leaves)
        elif t.prim is LEAF and t.attrs["role"] == "inner" and t.serial not in known:
            found.append(t)
    return found


def any_scan(roots: Sequence[Tensor]) -> bool:
    """Return whether the graph has a scan."""
    return any(t.prim.family == "scan" for t in toposort(roots))
