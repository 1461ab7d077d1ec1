"""One optimizer for each member of a sweep: its update rule, mapped over the members.

A sweep trains parameters that are stacked along axis 0. Each update rule sees the flat parameters of one member, so
norms, clipping and matrices belong to this member alone. Members have hyperparameters of their own.
A member whose gradient or update is not finite keeps its parameters and optimizer state; the other members go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tracegrad.ir import Tensor
from tracegrad.ops.joining import concat
from tracegrad.ops.reduction import any as any_
from tracegrad.optim.arena import Arena
from tracegrad.optim.groups import Groups
from tracegrad.optim.host import Host
from tracegrad.optim.transform import Kept, PerParameter, State, Transform
from tracegrad.prims.elementwise import nonfinite, where
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import const
from tracegrad.prims.views import broadcast_to, reshape, slice_
from tracegrad.transforms.vmap import vmap


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

    def rows(self, flat: Tensor, stacked: Arena, own: Arena) -> Tensor:
        """Return f32[count, own.size]: a flat array of the stacked parameters as one row per member."""
        if not own.slots:
            return broadcast_to(reshape(flat, (1, 1)), (self.count, 1))
        views = stacked.views(flat)
        rows = concat([reshape(views[self.prefix + s.name], (self.count, s.size)) for s in own.slots], axis=1)
        # A pack is stored in memory: update rules then read one array, instead of selecting a parameter per element
        return reshape(pack([reshape(rows, (rows.size,))]), rows.shape)

    def flat(self, rows: Tensor, stacked: Arena, own: Arena) -> Tensor:
        """Turn one row per member back into a flat array of the stacked parameters: the inverse of `rows`."""
        if not own.slots:
            return slice_(reshape(rows, (self.count,)), 0, 0, 1)
        return stacked.pack({self.prefix + s.name: slice_(rows, 1, s.offset, s.size) for s in own.slots})


def per_member(inner: Transform, members: Members) -> Transform:
    """Apply `inner` to each member. The result has no bounds, so the device checks the new values of every step."""
    kept = {name: _stacked(x, members.count) for name, x in inner.state.items()}

    def layouts(name: str, arena: Arena) -> tuple[Arena, Arena]:
        outside, own = kept.get(name), inner.state.get(name)
        if isinstance(outside, PerParameter) and isinstance(own, PerParameter):
            return outside.layout(arena), own.layout(members.arena)
        return arena, members.arena

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        def of_one(
            g: Tensor, p: Tensor, state: State, values: Mapping[str, Tensor], sound: Tensor
        ) -> tuple[Tensor, State]:
            inside = Host(members.arena, host.updates, groups=members.groups, own=values)
            step, new = inner.update(g, p, state, inside)
            odd = [any_(nonfinite(x)) for x in (p + step, *new.values())]
            for x in odd:
                sound = sound & ~x
            return where(sound, step, const(0.0)), {n: where(sound, x, state[n]) for n, x in new.items()}

        own_state = {n: members.rows(x, *layouts(n, host.arena)) for n, x in state.items()}
        own = (members.rows(g, *layouts("", host.arena)), members.rows(p, *layouts("", host.arena)))
        step, new = vmap(of_one)(*own, own_state, dict(members.values()), members.sound())
        after = {n: members.flat(x, *layouts(n, host.arena)) for n, x in new.items()}
        return members.flat(step, *layouts("", host.arena)), after

    return replace(inner, state=kept, update=update, bounds=None)


def _stacked(kept: Kept, count: int) -> Kept:
    if not isinstance(kept, PerParameter):
        return kept

    def shape(stacked: tuple[int, ...]) -> tuple[int, ...] | None:
        one = kept.shape(stacked[1:])
        return None if one is None else (count, *one)

    return PerParameter(shape, kept.fill)
