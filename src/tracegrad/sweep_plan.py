"""The plan of a sweep: the members' own values, and the stacked model, loss and optimizer.

A sweep trains parameters that are stacked along axis 0. The optimizer's update rule is mapped over the members: it sees
the flat parameters of one member, so norms, clipping and matrices belong to this member alone. Members have
hyperparameters of their own. A member whose gradient or update is not finite keeps its parameters and optimizer state;
the other members go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tracegrad import init
from tracegrad.arrays import Array, checked_seed, np
from tracegrad.compiler.layout import arena_of
from tracegrad.compiler.tracing import checked_loss
from tracegrad.dtypes import TensorType, f32
from tracegrad.engine.params import declared, drawn
from tracegrad.errors import InputError
from tracegrad.hypers import ANY, COMPLEMENT, GROUP, OFF, checked
from tracegrad.initializer import Initializer
from tracegrad.ir.ambient import require
from tracegrad.ir.nodes import Tensor
from tracegrad.ir.states import STATE, StateTensor
from tracegrad.nn.module import bound, decays, named_parameters, named_states
from tracegrad.nn.parameters import Parameter, State
from tracegrad.ops.control import assign
from tracegrad.ops.reduction import any as any_, sum as sum_
from tracegrad.optim.arena import Arena
from tracegrad.optim.grouping import NO_GROUPS
from tracegrad.optim.guard import PARAMS
from tracegrad.optim.optimizer import Optimizer
from tracegrad.optim.transform import Host, Kept, PerParameter, State as Kepts, Transform
from tracegrad.passes.pieces import Piece, split
from tracegrad.prims.elementwise import cast as cast_, nonfinite, stop_gradient, where
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import const, leaf
from tracegrad.prims.views import broadcast_to, reshape, slice_
from tracegrad.transforms.custom import custom_vjp
from tracegrad.transforms.derivatives import value_and_grad
from tracegrad.transforms.vmap import vmap
from tracegrad.wrong_calls import remedy

Loss = Callable[..., "tuple[Tensor, dict[str, Tensor]]"]
# parts of the stacked model; "sound" is the state that
MODELS, STATES, VALUES, SOUND = "models", "states", "values", "sound"
# tells which members go on
LOSSES = "losses"  # key of the members' losses in `aux`


class SweepPlan(NamedTuple):
    """The members' own seeds and hyperparameters."""

    seeds: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]
    base: Optimizer  # optimizer of one member, with all hyperparameters of `values`

    @staticmethod
    def of(model: Any, optimizer: Optimizer, seeds: int | Sequence[int], values: Mapping[str, Any]) -> SweepPlan:
        """Make a plan with one entry for each member. Raises InputError for lists that do not fit."""
        given = {"seeds": seeds, **values}
        lists = {name: list(cast("Sequence[Any]", x)) for name, x in given.items() if is_list(x)}
        lengths = {name: len(x) for name, x in lists.items()}
        if not lists or min(lengths.values()) < 1 or len({*lengths.values()}) > 1:
            found = ", ".join(f"{name} {n}" for name, n in lengths.items())
            found = found or ", ".join(f"{name}={x!r}" for name, x in given.items())
            raise InputError.here(
                "tg.sweep: seeds and values are lists with one entry for each member, all of the same length, "
                f"such as seeds=[0, 1, 2]; got {found}"
            )
        count = next(iter(lengths.values()))
        full = {name: lists.get(name, [x] * count) for name, x in given.items()}
        chosen = tuple(checked_seed(seed) for seed in full.pop("seeds"))
        on = {n: x for n, xs in full.items() for x in xs if n in optimizer.off and x != OFF[n] and x is not None}
        base = optimizer.switched_on(on)
        full = {n: xs for n, xs in full.items() if n in base.hyper or n not in optimizer.off}  # off for every member
        return SweepPlan(chosen, checked_values(base, full), base)

    @property
    def names(self) -> list[str]:
        """Names of the states with the members' hyperparameters, and with their complements such as 1 - beta1."""
        return [leaf_ for name in self.values for leaf_ in (name, COMPLEMENT + name)]

    def states(self) -> dict[str, Array]:
        """Return the values of the states `names`."""
        found: dict[str, Array] = {}
        for name, values in self.values.items():
            found[name] = np.array(values, np.float32)
            found[COMPLEMENT + name] = (1.0 - np.array(values, np.float64)).astype(np.float32)
        return found

    def stacked(self, model: Any) -> dict[str, dict[str, Parameter]]:
        """Return the stacked model: parameters of all members by name, and the members' values as states."""
        n, fields = len(self.seeds), declared(model)
        draws = {seed: drawn(fields, seed) for seed in dict.fromkeys(self.seeds)}

        def first(name: str, p: Parameter) -> Initializer:
            return init.literal(np.stack([draws[seed][name] for seed in self.seeds]), p.dtype)

        parts: dict[str, Parameter] = {}
        for name, p in named_parameters(model).items():
            decay = decays(name, p, self.base.decay_filter)
            parts[name] = Parameter((n, *p.shape), p.dtype, first(name, p), decay, p.trainable, p.site)
        held: dict[str, Parameter] = {
            name: State((n, *p.shape), p.dtype, first(name, p), None) for name, p in named_states(model).items()
        }
        states: dict[str, Parameter] = {n: State(x.shape, f32, init.literal(x), None) for n, x in self.states().items()}
        return {MODELS: parts, STATES: held, VALUES: {**states, SOUND: State((n,), f32, init.ones(), None)}}

    def optimizer(self, model: Any) -> Optimizer:
        """Return the optimizer that applies `base` to each member."""
        parameters = named_parameters(model)
        self.base.groups.check(list(parameters), "groups")
        replaced = "lr" in self.values and isinstance(self.base.lr, (int, float))
        return replace(
            self.base,
            transform=per_member(self, arena_of(parameters, self.base)),
            lr=1.0 if replaced else self.base.lr,
            decay_filter=None,
            again=None,
            off=(),
            groups=NO_GROUPS,
        )

    def leaves(self) -> dict[str, Tensor]:
        """Return the members' hyperparameters inside a trace, f32[members] each."""
        type_ = TensorType(f32, (len(self.seeds),))
        return {name: leaf("state", f"{STATE}{VALUES}.{name}", type_) for name in self.names}

    def sound(self) -> Tensor:
        """Return bool[members], as the loss of this trace wrote it: True for a finite loss and gradient."""
        return reshape(require("tg.sweep").writes[f"{STATE}{VALUES}.{SOUND}"], (len(self.seeds),)) > 0.0

    def loss(self, model: Any, loss: Callable[..., Any], names: Sequence[str], each: Sequence[str]) -> Loss:
        """Return the mean loss of the members, where a member's parameters get the gradient of its own loss."""
        axes = (0, 0, 0, *(0 if name in each else None for name in names))
        trained = [name for name, p in named_parameters(model).items() if p.trainable]

        def one(
            own: Mapping[str, Tensor], others: Mapping[str, Tensor], states: Mapping[str, Tensor], *args: Tensor
        ) -> tuple[Tensor, Any]:
            lanes = len(require("tg.sweep").lanes)
            held = {name: StateTensor(name, x, lanes) for name, x in states.items()}
            member = bound(model, {**own, **others, **held})
            y, aux = checked_loss(loss(member, **dict(zip(names, args, strict=True))), loss)
            if LOSSES in aux:
                raise InputError.here(
                    f"tg.sweep: the aux name {LOSSES!r} is reserved for the losses of the members; rename yours"
                )
            return y, (aux, {name: x.now for name, x in held.items()})

        def of_all(m: Any, **given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            own = {name: m[MODELS][name] for name in trained}
            others = {name: x for name, x in m[MODELS].items() if name not in own}
            args = [given[name] for name in names]
            states = {name: x.now for name, x in m[STATES].items()}
            (y, (aux, after)), slopes = vmap(value_and_grad(one, has_aux=True), axes)(own, others, states, *args)
            sound = ~nonfinite(y)
            for g in slopes.values():
                sound = sound & ~any_(nonfinite(g), tuple(range(1, g.ndim)))
            assign(m[VALUES][SOUND], cast_(sound, f32))
            for name, x in after.items():
                if x is not states[name]:
                    assign(m[STATES][name], where(_along(sound, x), x, states[name]))
            left = sum_(cast_(sound, f32))
            # Divide first, because the sum can overflow. Without any member left, it is NaN, and the step fails
            mean = sum_(where(sound, y / left, 0.0)) / cast_(left > 0.0, f32)
            clean = {n: where(_along(sound, g), g, 0.0) for n, g in slopes.items()}
            return with_gradient(stop_gradient(mean), own, clean), {LOSSES: y, **aux}

        return of_all


def _along(sound: Tensor, x: Tensor) -> Tensor:
    """Reshape bool[members] to broadcast against `x`, which has the members in front."""
    return reshape(sound, (sound.size, *[1] * (x.ndim - 1)))


def with_gradient(value: Tensor, at: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Tensor:
    """Return `value` with the gradient `slopes` with respect to the tensors `at`."""

    def plain(at: Mapping[str, Tensor]) -> Tensor:
        return value

    def forward(at: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        return value, None

    def backward(_: None, ct: Tensor) -> tuple[Mapping[str, Tensor]]:
        return ({name: ct * g for name, g in slopes.items()},)

    known = custom_vjp(plain)
    known.defvjp(forward, backward)
    return known(dict(at))


def checked_values(optimizer: Optimizer, values: Mapping[str, Sequence[Any]]) -> dict[str, tuple[float, ...]]:
    """Return the members' hyperparameters as numbers. Raises InputError for unknown names, and values out of range."""
    known = ["lr", *(n for n in optimizer.hyper if GROUP not in n)]
    for name in values:
        if name not in known:
            own = list(dict.fromkeys([*known, *optimizer.off]))
            said = f"{name!r} is not a hyperparameter of optim.{optimizer.name} ({', '.join(own)})"
            raise InputError.here(f"tg.sweep: {said}{remedy(name, values[name], ['seeds', *own], 'sweep')}")
    return {
        name: tuple(
            checked(name, OFF.get(name) if x is None else x, optimizer.ranges.get(name, ANY), "tg.sweep") for x in xs
        )
        for name, xs in values.items()
    }


def is_list(given: object) -> bool:
    """Return whether `given` has an entry for each member."""
    return not isinstance(given, str) and hasattr(given, "__len__") and hasattr(given, "__getitem__")


STEP = ""  # stands for the gradient, and for the update computed from it, beside the names of states


def apart(flat: Tensor, stacked: Arena, own: Arena, count: int) -> list[Tensor]:
    """Return the parts of a flat array of the stacked parameters, each f32[count, slot.size].

    stacked, own: the layouts of all members and of one.
    """
    if not own.slots:
        return [broadcast_to(reshape(flat, (1, 1)), (count, 1))]
    views = stacked.views(flat)
    return [reshape(views[f"{MODELS}.{s.name}"], (count, s.size)) for s in own.slots]


def joined(parts: Sequence[Tensor], stacked: Arena, own: Arena) -> Tensor:
    """Join such parts: the inverse of `apart`."""
    if not own.slots:
        return slice_(reshape(parts[0], (parts[0].size,)), 0, 0, 1)
    return stacked.pack({f"{MODELS}.{s.name}": x for s, x in zip(own.slots, parts)})


def per_member(plan: SweepPlan, one: Arena) -> Transform:
    """Apply the update of `plan.base` to each member. one: the parameters of a member.

    The result has no bounds, so the device checks the new values of every step.
    """
    inner, count = plan.base.transform, len(plan.seeds)
    kept = {name: _stacked(x, count) for name, x in inner.state.items()}

    def layouts(name: str, arena: Arena) -> tuple[Arena, Arena]:
        outside, own = kept.get(name), inner.state.get(name)
        if isinstance(outside, PerParameter) and isinstance(own, PerParameter):
            return outside.layout(arena), own.layout(one)
        return arena, one

    def update(g: Tensor, p: Tensor, state: Kepts, host: Host) -> tuple[Tensor, Kepts]:
        cuts = [_pieces(layouts(name, host.arena)[1]) for name in (STEP, *state)]

        def of_one(
            parts: Mapping[str, Sequence[Tensor]], values: Mapping[str, Tensor], sound: Tensor
        ) -> dict[str, list[Tensor]]:
            inside = Host(one, host.updates, groups=plan.base.groups, own=values)
            g, p, *old = [pack(x) for x in parts.values()]
            before = dict(zip(state, old))
            step, new = inner.update(g, p, before, inside)
            odd = [any_(nonfinite(x)) for x in (p + step, *new.values())]
            for x in odd:
                sound = sound & ~x
            after = {STEP: where(sound, step, const(0.0)), **{n: where(sound, new[n], x) for n, x in before.items()}}
            # In pieces, because joining the parameters of each member would take longer than the update
            return {n: list(x) for n, x in zip(after, split(list(after.values()), cuts))}

        parts = {n: apart(x, *layouts(n, host.arena), count) for n, x in {STEP: g, PARAMS: p, **state}.items()}
        after = vmap(of_one)(parts, plan.leaves(), plan.sound())
        flats = {n: joined(x, *layouts(n, host.arena)) for n, x in after.items()}
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
