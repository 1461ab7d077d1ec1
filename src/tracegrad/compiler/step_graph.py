"""One training step as a graph: loss, gradients, the optimizer's update, and the guard that applies it or not."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from tracegrad.compiler.layout import HALTED
from tracegrad.compiler.tracing import Traced
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.ir.graph import Graph, reached
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.optim import freezing
from tracegrad.optim.arena import Part
from tracegrad.optim.gradients import sum_of_squares
from tracegrad.optim.guard import PARAMS, Guard, LossScale, NewStates, any_nonfinite
from tracegrad.optim.optimizer import Optimizer
from tracegrad.optim.transform import Host
from tracegrad.prims.elementwise import STOP_GRADIENT, nonfinite, where
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import LEAF, as_tensor, constant, leaf, require_own
from tracegrad.prims.views import broadcast_to
from tracegrad.transforms.walks import gradients

SKIPPED = "skipped"  # the output that reports a step skipped because gradients overflowed in half precision


def training_graph(
    t: Traced,
    y: Tensor,
    aux: Mapping[str, Tensor],
    part: Part,
    optimizer: Optimizer,
    precision: str,
    freeze: Mapping[str, freezing.Mask] = freezing.NONE,
    grads: bool = True,
) -> tuple[Graph, tuple[str, ...]]:
    """Return one graph of loss, gradients, guard and update, and warnings about the loss. grads: keep the gradients."""
    at = part.at
    scaling = LossScale.traced(at) if precision == "f16" else None
    found = dict(zip(trained(part), gradients(y, [t.leaves[n] for n in trained(part)], scaling and scaling.scale)))
    doubts = doubtful(t, y, aux, found)
    g = _packed(found, part, scaling)
    free = {name: mask.free() for name, mask in freeze.items()}
    if free:
        g = where(free[freezing.PARAMS], g, 0.0)  # clipping must measure trained parameters only
    missed = freezing.missed_of(part.own, optimizer.transform, freeze, at)
    host = Host(part.own, scaling and scaling.updates(), g, optimizer.groups, missed=missed)
    before, new, guard, halted = _updated(g, part, optimizer, host, free)
    states = NewStates({n: (t.leaves[n], x) for n, x in t.trace.writes.items()})
    hopeless = nonfinite(y) | (halted.reshape(()) != 0)
    hopeless = hopeless if states.odd is None else hopeless | states.odd
    # A pack is in memory before it is read: the last kernel, which sets `halted`, must not also read `halted`.
    poison = pack([where(hopeless, inf, guard.poison if guard else 0.0)])
    bad = nonfinite(sum_of_squares(g, host.unit) + poison.reshape(()))
    bad = bad if guard else bad | any_nonfinite(new)
    writes = ({at + "grads": g} if grads else {}) | _unless(bad, before, new, free, at)
    if missed is not None:
        writes[at + freezing.MISSED] = where(free[freezing.PARAMS] | bad, missed, missed + 1.0)
    writes |= guard.writes if guard else {}
    writes |= states.unless(bad)
    outputs, halt = {"loss": y}, bad
    if scaling:
        skipped = bad & ~nonfinite(poison.reshape(())) & ~scaling.hopeless()
        halt = bad & ~skipped
        writes |= scaling.after(skipped, bad)
        outputs[SKIPPED] = where(skipped, 1, 0)
    writes[HALTED] = where(halt, halted.reshape(()) + 1, 0).reshape((1,))  # a count: see `program.COUNTS`
    outputs |= {HALTED: writes[HALTED], **{f"aux.{n}": x for n, x in aux.items()}}
    graph = Graph(outputs, dict(t.trace.captures), writes, precision)
    require_own(toposort(graph.roots), t.trace)
    return graph, doubts


def trained(part: Part) -> list[str]:
    """Return the names of the parameters that a step changes."""
    return [slot.name for slot in part.trained]


def _packed(found: Mapping[str, Tensor], part: Part, scaling: LossScale | None) -> Tensor:
    """Return all gradients as one array, with zeros for parameters that have none."""
    zeros = {slot.name: broadcast_to(as_tensor(0.0), slot.shape) for slot in part.own.slots if slot.name in part.holes}
    return part.own.pack({**zeros, **{n: g * (1.0 / scaling.scale) if scaling else g for n, g in found.items()}})


def _updated(
    g: Tensor, part: Part, optimizer: Optimizer, host: Host, free: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], Guard | None, Tensor]:
    """Return the arrays that the optimizer changes, before and after the step; the guard; and `halted`."""
    arena, at = part.own, part.at
    sizes = optimizer.transform.sizes(arena)
    state = {name: leaf("state", at + name, TensorType(f32, (size,))) for name, size in sizes.items()}
    p = leaf("state", PARAMS, TensorType(f32, (arena.size,)))
    halted = leaf("state", HALTED, TensorType(i32, (1,)))
    # A gradient that was accumulated before a parameter was frozen must not count in the norm of clipping either
    seen = {n: where(free[freezing.mask_of(n, free)], x, 0.0) for n, x in state.items()} if free else state
    updates, new = optimizer.transform.update(g, p, seen, host)
    new = {**new, PARAMS: p + updates}
    return {**state, PARAMS: p}, new, Guard.traced(optimizer.transform, host, at), halted


def _unless(
    bad: Tensor, before: Mapping[str, Tensor], new: Mapping[str, Tensor], free: Mapping[str, Tensor], at: str
) -> dict[str, Tensor]:
    """Return the values to write: the new ones, or the old ones if the step is bad or a parameter is frozen."""
    keep = {x.size: broadcast_to(~bad, (x.size,)) for x in before.values()}
    kept = {n: keep[x.size] & free[freezing.mask_of(n, free)] if free else keep[x.size] for n, x in before.items()}
    return {n if n == PARAMS else at + n: where(kept[n], x, before[n]) for n, x in new.items()}


def doubtful(t: Traced, y: Tensor, aux: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return warnings about a loss: parameters or inputs that it does not use, or a gradient that is zero."""
    used = {x.serial for x in toposort([y])}
    delivered = [y, *aux.values(), *t.trace.captures.values(), *t.trace.writes.values()]
    read = {x.name for x in toposort(delivered) if x.prim is LEAF}
    names = [n for n, x in t.leaves.items() if n in found and x.serial not in used]
    inputs = [n for n in t.inputs if n not in read]
    texts: list[str] = []
    if names:
        texts.append(
            f"the loss does not use {', '.join(names)}: the gradient is zero, and only weight decay changes them. Use "
            "them in the loss, or leave them out of the model"
        )
    elif all(constant(g) == 0.0 for g in found.values()):
        texts.append(
            "the loss has no gradient by any parameter: on the way are ops without a derivative, such as argmax, "
            "comparisons, casts to integers or tg.stop_gradient. Train with another loss, and report this one as aux"
        )
    if calls := _never_trained(t, y, found):
        texts.append(
            f"the loss calls {' and '.join(calls)} with training=False, as for predictions: to train with "
            "dropout and the statistics of the batch, pass training=True, as in predict(m, x, training=True)"
        )
    if inputs:
        texts.append(
            f"the loss does not use the input {', '.join(map(repr, inputs))}: leave it out of inputs=, or use it"
        )
    return tuple(texts)


def _never_trained(t: Traced, y: Tensor, found: Mapping[str, Tensor]) -> list[str]:
    """Return the kinds of layers through which the loss learns, if all their calls have training=False."""
    if not t.trace.switched or any(on for _, on, _ in t.trace.switched):
        return []
    fixed = {id(x) for n, x in t.leaves.items() if n not in found}
    learnt = {id(x) for x in reached([y], lambda x: () if x.prim is STOP_GRADIENT else x.inputs)} - fixed
    return list(dict.fromkeys([name for name, _, x in t.trace.switched if id(x) in learnt]))
