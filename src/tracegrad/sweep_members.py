"""One optimizer for each member of a sweep: its update rule, mapped over the members.

A sweep trains parameters that are stacked along axis 0. Each update rule sees the flat parameters of one member, so
norms, clipping and matrices belong to this member alone. Members have hyperparameters of their own.
A member whose gradient or update is not finite keeps its parameters and optimizer state; the other members go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tracegrad.ir import Tensor
from tracegrad.ops.reduction import any as any_
from tracegrad.optim.arena import Arena
from tracegrad.optim.groups import Groups
from tracegrad.optim.guard import PARAMS
from tracegrad.optim.host import Host
from tracegrad.optim.transform import Kept, PerParameter, State, Transform
from tracegrad.passes.pieces import Piece, split
from tracegrad.prims.elementwise import nonfinite, where
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import const
from tracegrad.prims.views import broadcast_to, reshape, slice_
from tracegrad.transforms.vmap import vmap

STEP = ""  # beside the names of states: the gradient, and the step that is made of it


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a sweep: their number, parameters and own values.

    arena:  the parameters of one member.
    prefix: prefix of the names of the stacked parameters.
    groups: groups of the optimizer, by the names of one member's parameters.
    values: returns, inside a trace, the hyperparameters of the members, f32[count] each.
    sound:  returns, inside a trace, bool[count]: True for members with a finite loss and gradient in this step.
    """

    count: int
    arena: Arena
    prefix: str
    groups: Groups
    values: Callable[[], Mapping[str, Tensor]]
    sound: Callable[[], Tensor]

    def of_all(self, flat: Tensor, stacked: Arena, own: Arena) -> list[Tensor]:
        """Return the parts of a flat array of the stacked parameters, each f32[count, slot.size]."""
        if not own.slots:
            return [broadcast_to(reshape(flat, (1, 1)), (self.count, 1))]
        views = stacked.views(flat)
        return [reshape(views[self.prefix + s.name], (self.count, s.size)) for s in own.slots]

    def flat(self, parts: Sequence[Tensor], stacked: Arena, own: Arena) -> Tensor:
        """Join such parts: the inverse of `of_all`."""
        if not own.slots:
            return slice_(reshape(parts[0], (self.count,)), 0, 0, 1)
        return stacked.pack({self.prefix + s.name: x for s, x in zip(own.slots, parts)})


def per_member(inner: Transform, members: Members) -> Transform:
    """Apply `inner` to each member. The result has no bounds, so the device checks the new values of every step."""
    kept = {name: _stacked(x, members.count) for name, x in inner.state.items()}

    def layouts(name: str, arena: Arena) -> tuple[Arena, Arena]:
        outside, own = kept.get(name), inner.state.get(name)
        if isinstance(outside, PerParameter) and isinstance(own, PerParameter):
            return outside.layout(arena), own.layout(members.arena)
        return arena, members.arena

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        cuts = [_pieces(layouts(name, host.arena)[1]) for name in (STEP, *state)]

        def of_one(
            parts: Mapping[str, Sequence[Tensor]], values: Mapping[str, Tensor], sound: Tensor
        ) -> dict[str, list[Tensor]]:
            inside = Host(members.arena, host.updates, groups=members.groups, own=values)
            g, p, *old = [pack(x) for x in parts.values()]
            before = dict(zip(state, old))
            step, new = inner.update(g, p, before, inside)
            odd = [any_(nonfinite(x)) for x in (p + step, *new.values())]
            for x in odd:
                sound = sound & ~x
            after = {STEP: where(sound, step, const(0.0)), **{n: where(sound, new[n], x) for n, x in before.items()}}
            # In pieces, because joining the parameters of each member would take longer than the update
            return {n: list(x) for n, x in zip(after, split(list(after.values()), cuts))}

        parts = {n: members.of_all(x, *layouts(n, host.arena)) for n, x in {STEP: g, PARAMS: p, **state}.items()}
        after = vmap(of_one)(parts, dict(members.values()), members.sound())
        flats = {n: members.flat(x, *layouts(n, host.arena)) for n, x in after.items()}
        return flats.pop(STEP), flats

    return replace(inner, state=kept, update=update, bounds=None)


def _pieces(layout: Arena) -> list[Piece]:
    return [Piece(s.name, s.offset, (s.size,), s.size) for s in layout.slots] or [Piece("", 0, (1,), 1)]


def _stacked(kept: Kept, count: int) -> Kept:
    if not isinstance(kept, PerParameter):
        return kept

    def shape(stacked: tuple[int, ...]) -> tuple[int, ...] | None:
        one = kept.shape(stacked[1:])
        return None if one is None else (count, *one)

    return PerParameter(shape, kept.fill)
