"""Transforms, the parts of an optimizer's chain, and `Host`, which gives them hyperparameters, counts and layout.

If a group of parameters overrides a name, the update rule gets an array with one value for each element. The kernel
selects the value by position, at the cost of one comparison for each run of neighbours that share a value.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from tracegrad.dtypes import Shape, f32
from tracegrad.errors import DTypeError, InputError, ShapeError
from tracegrad.hypers import COMPLEMENT, GROUP, RANGES, UNIT, Range, checked_all, scalar
from tracegrad.ir.nodes import Tensor
from tracegrad.optim.arena import Arena, Slot
from tracegrad.optim.grouping import NO_GROUPS, Groups
from tracegrad.prims.elementwise import cast, expm1, log1p, maximum, where
from tracegrad.prims.leaves import as_tensor, counter, iota
from tracegrad.prims.views import broadcast_to, reshape, slice_
from tracegrad.refusals import shown

__all__ = ["Host", "PerParameter", "Transform", "chain"]

MONOTONE = ("lr", "weight_decay")  # a larger value never makes a bound of `Transform.bounds` smaller
NO_VALUES: Mapping[str, Tensor] = MappingProxyType({})


class Host(NamedTuple):
    """The argument `host` of `Transform.update`: hyperparameters, counts of updates, and places of parameters.

    arena: the places of the parameters in the flat arrays f32[n] that `update` gets; n = arena.size.

    The library makes the host. `update` uses `hyper(name)`, `complement(name)`, `unit`, `step` and `steps`, and not the
    other fields. They give f32[] tensors, whose values can change at each step without compiling, or f32[n] with a
    value for each element of the flat arrays.

    >>> slow = optim.Transform({}, lambda g, p, state, host: (g / host.step, {}))     # smaller updates, step by step
    >>> optimizer = optim.custom(slow, lr=0.1)
    """

    arena: Arena
    updates: Tensor | None = None  # the number of this update, if it differs from the step number
    guarded: Tensor | None = None  # the gradient of which the guard sums (unit * g)^2
    groups: Groups = NO_GROUPS
    largest: bool = False  # if groups override a value, give the largest: for `Transform.bounds`
    missed: Tensor | None = None  # f32[n]: for each element, the updates that it missed while it was frozen
    own: Mapping[str, Tensor] = NO_VALUES  # values of one member of a sweep, which replace those of all members

    def hyper(self, name: str) -> Tensor:
        """Return the current value of the hyperparameter `name`, f32[]. As optax.inject_hyperparams.

        If a group of parameters has a value of its own, the result is f32[n] with n = arena.size. Its element i is the
        value of the group whose parameter holds element i of the flat gradient.
        """
        return self._spread(
            name, lambda leaf: self._leaf(name) * scalar(leaf) if leaf.startswith(f"lr{GROUP}") else self._leaf(leaf)
        )

    def complement(self, name: str) -> Tensor:
        """Return 1 - hyper(name), of the same shape, computed in double precision.

        In f32, 1 - 0.999 would be wrong in the fifth digit.
        """
        return self._spread(name, lambda leaf: self._leaf(COMPLEMENT + leaf))

    def _leaf(self, name: str) -> Tensor:
        if name not in self.own:
            return scalar(name)
        # a member's "lr" is a factor on the schedule
        return self.own[name] * scalar(name) if name == "lr" else self.own[name]

    def _spread(self, name: str, value: Callable[[str], Tensor]) -> Tensor:
        if name not in self.groups.names:
            return value(name)
        runs = self.groups.runs(name, ((slot.name, slot.offset + slot.size) for slot in self.arena.slots))
        found = {leaf: value(leaf) for leaf, _ in runs}
        if self.largest:
            return reduce(maximum, found.values())
        return self._chosen(runs, found, iota((self.arena.size,), 0))

    def _chosen(self, runs: list[tuple[str, int]], values: Mapping[str, Tensor], at: Tensor) -> Tensor:
        out = broadcast_to(values[runs[-1][0]], at.shape)
        for leaf, end in reversed(runs[:-1]):
            out = where(at < end, values[leaf], out)
        return out

    @property
    def unit(self) -> Tensor:
        """A factor u, f32[], for norms of the gradient g: compute sqrt(sum((u g)^2)) / u, whose sum does not overflow.

        u is 2^10, so that small squares do not vanish. In a step whose squares would overflow, u is 2^-80.
        """
        return scalar(UNIT)

    @property
    def step(self) -> Tensor:
        """The index of this update, f32[]: 1 in the first one. Exact up to 2^24. As state["step"] of torch.optim.Adam.

        Inside `accumulate`, several steps of the training are one update.
        """
        return cast(counter("step"), f32) if self.updates is None else self.updates

    @property
    def steps(self) -> Tensor:
        """Number of updates of each parameter, the current one included. Steps that freeze a parameter do not count.

        f32[] until a parameter is first frozen, then f32[n], n the arena's size. Without `Transform(..., counts=True)`,
        the same as `step`.
        """
        if self.missed is None:
            return self.step
        # The correction is largest in the first update, which bounds it for all parameters
        return as_tensor(1.0) if self.largest else maximum(self.step - self.missed, 1.0)

    def steps_of(self, slot: Slot) -> Tensor:
        """Return how many updates the parameter has had, including the current one, as f32[]: 1 in its first update.

        Counts differ between parameters if `train.freeze` froze some of them for a while. See `steps`.

        slot: the parameter's place, one of `host.arena.slots`.
        """
        if self.missed is None:
            return self.step
        return reshape(slice_(self.steps, 0, slot.offset, 1), ()) if slot.size else self.step

    def bias_correction(self, name: str) -> Tensor:
        """Return 1 - b^steps with b = hyper(name), by which you divide a running mean that starts at 0.

        f32[], or f32[n] if `steps` or `hyper(name)` is f32[n]. Accurate also where the result is near 0. As in
        Adam (Kingma and Ba 2015).
        """
        return -expm1(self.steps * log1p(-self.complement(name)))


State = Mapping[str, Tensor]
Fill = float | Literal["params"]
Update = Callable[[Tensor, Tensor, State, Host], "tuple[Tensor, State]"]


@dataclass(frozen=True, slots=True)
class PerParameter:
    """Declares a state with one part for each parameter, in another shape than the parameter. See `Transform.state`.

    shape: function of a parameter's shape that returns the shape of its part, such as (m, n) -> (m, 1); None: no part.
    fill:  the first value of all elements, which `reset` of the training writes again.

    >>> rows = optim.PerParameter(lambda shape: (shape[0], 1) if len(shape) == 2 else None)
    >>> rows.shape((3, 4))
    (3, 1)
    """

    shape: Callable[[Shape], Shape | None]
    fill: float = 0.0

    def layout(self, arena: Arena) -> Arena:
        """Return an `Arena` that says where each parameter's part begins in the flat array of this state.

        arena: the arena of the parameters. A parameter without a part has no slot in the result.
        """
        return arena.shaped(self.shape)


Kept = Fill | PerParameter


@dataclass(frozen=True, slots=True)
class Transform:
    """One part of an optimizer: a pure function `update` on tensors, and the arrays that it keeps between steps.

    update: (g, p, state, host) -> (g', new state). `g` is the gradient and `p` the parameters, each flat, f32[n]: one
            array with the elements of all parameters, whose places are in `host.arena`. The first transform of a chain
            gets the gradient, each later one the previous g'. The last g' is added to `p`. `optim.custom` appends
            `scale_by_lr`, which multiplies by -lr, to a chain without it. `host`: see `Host`.
    state:  the arrays that `update` keeps, by name, with their first values: a number for all elements, or "params" for
            a copy of the parameters. An array is f32[n], in the layout of the parameters, unless a `PerParameter` gives
            the shape of its part for each parameter. `update` gets and returns exactly these arrays, flat.
    hyper:  first values of the hyperparameters that `update` reads by `host.hyper` or `host.complement`.
    ranges: ranges of hyperparameters, by name. A name without a range takes any number that is finite in f32.
    bounds: an optional function (G, P, S, host) -> (G', S') of numbers f32[], which limits the results of `update`. If
            |g| <= G, |p| <= P and |state| <= S for all elements, then |g'| <= G' and |new state| <= S' must hold. While
            G' and S' are finite, the device does not check new values for NaN and infinity, which saves one dispatch a
            step.
    counts: pass True if `update` reads `host.steps`, `host.steps_of` or `host.bias_correction`. These then count, for
            each parameter, the steps that updated it. After a `freeze` these counts can differ, so `steps` and
            `bias_correction` are f32[n]. With False, they count all steps, also those in which a parameter was frozen.

    A step that would make a parameter or a state infinite or NaN fails, and changes nothing. `update` is traced
    as a part of the step, so write it with tracegrad ops. As optax.GradientTransformation.

    >>> def update(g, p, state, host):
    ...     m = host.hyper("decay") * state["m"] + g
    ...     return tg.sign(m), {"m": m}
    >>> optim.custom(optim.Transform({"m": 0.0}, update, {"decay": 0.9}), lr=1e-2)
    optim.custom(lr=0.01, decay=0.9)
    """

    state: Mapping[str, Kept]
    update: Update
    hyper: Mapping[str, float] = field(default_factory=dict[str, float])
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    bounds: Update | None = None
    counts: bool = False

    @property
    def fills(self) -> dict[str, Fill]:
        """The first value of each state, by name, which `reset` of the training writes again: a number, or "params".

        "params" means a copy of the parameters. As init of optax.GradientTransformation.
        """
        return {name: kept.fill if isinstance(kept, PerParameter) else kept for name, kept in self.state.items()}

    def sizes(self, arena: Arena) -> dict[str, int]:
        """Return the number of elements of each state, by name, for the parameters of `arena`.

        >>> arena = optim.Arena.of([("W", (2, 3), True)])
        >>> optim.scale_by_adam().sizes(arena)
        {'m': 6, 'v': 6}
        """
        return {
            name: (kept.layout(arena) if isinstance(kept, PerParameter) else arena).size
            for name, kept in self.state.items()
        }

    @staticmethod
    def made(
        state: Mapping[str, Kept],
        update: Update,
        bounds: Update | None = None,
        *,
        ranges: Mapping[str, Range] = RANGES,
        counts: bool = False,
        **hyper: float,
    ) -> Transform:
        """Make a transform with the hyperparameters `hyper`, and check their values.

        state, update, bounds, counts: as of the class.
        ranges: ranges by name, also of names that `hyper` lacks. By default those of tracegrad's optimizers.
        hyper:  first values. A name without a range takes any number that is finite in f32.
        Raises: InputError for a value that is not in its range.

        >>> optim.Transform.made({}, lambda g, p, state, host: (host.hyper("gain") * g, {}), gain=2.0).hyper
        {'gain': 2.0}
        """
        own = {name: ranges[name] for name in hyper if name in ranges}
        return Transform(state, update, checked_all(hyper, own, ""), own, bounds, counts)


def check_transform(who: str, given: object) -> None:
    """Raise InputError unless `given` is a transform. An optimizer is a chain that is complete already."""
    if isinstance(given, Transform):
        return
    hint = "pass them one by one, *parts" if isinstance(given, (list, tuple)) else "such as optim.scale_by_adam()"
    raise InputError.here(f"{who}: takes transforms, {hint}; got {shown(given)}")


def chain(*transforms: Transform) -> Transform:
    """Return one transform that applies `transforms` in order: each gets the result of the previous one.

    State names that occur twice get a number: "m", "m.1". Hyperparameters of the same name share one value.
    As optax.chain.
    Raises InputError for an argument that is no transform, and if two transforms give one hyperparameter different
    values. Compiling the training raises InputError if an `update` returns other names of state than its transform
    declares, and ShapeError if a returned state has another shape.

    >>> optim.custom(optim.chain(optim.clip_by_global_norm(1.0), optim.scale_by_momentum(0.9)), lr=0.1)
    optim.custom(lr=0.1, clip_grad_norm=1.0, momentum=0.9)
    """
    names: list[dict[str, str]] = []  # of each transform: its own name -> the chain's
    state: dict[str, Kept] = {}
    hyper: dict[str, float] = {}
    ranges: dict[str, Range] = {}
    for t in transforms:
        check_transform("optim.chain", t)
        own: dict[str, str] = {}
        for name, fill in t.state.items():
            own[name] = _unused(name, state)
            state[own[name]] = fill
        names.append(own)
        hyper = merge_hyper(hyper, t.hyper)
        ranges |= t.ranges

    def through(rules: Sequence[Update]) -> Update:
        def apply(g: Tensor, p: Tensor, old: State, host: Host) -> tuple[Tensor, State]:
            new: dict[str, Tensor] = {}
            for rule, own in zip(rules, names, strict=True):
                kept = {name: old[full] for name, full in own.items()}
                g, part = _checked(rule(g, p, kept, host), g, kept)
                new |= {own[name]: value for name, value in part.items()}
            return g, new

        return apply

    bounds = [t.bounds for t in transforms if t.bounds is not None]
    bounded = through(bounds) if len(bounds) == len(transforms) else None
    counts = any(t.counts for t in transforms)
    return Transform(state, through([t.update for t in transforms]), hyper, ranges, bounded, counts)


def _checked(found: Any, g: Tensor, kept: State) -> tuple[Tensor, State]:
    """Return what an `update` gave, (g', state). Raises InputError, ShapeError or DTypeError if it does not fit."""
    if not isinstance(found, tuple) or len(typing.cast("tuple[Any, ...]", found)) != 2:
        raise InputError.here(f"the update of a transform must return a pair (g, state), got {shown(found)}")
    new, given = typing.cast("tuple[Any, Any]", found)
    if not isinstance(given, Mapping):
        raise InputError.here(f"the update of a transform must return a pair (g, state), got the state {shown(given)}")
    part = typing.cast("Mapping[str, Any]", given)
    if part.keys() != kept.keys():
        raise InputError.here(
            f"a transform declares the state {sorted(kept)}, but its update returned the state {sorted(part)}"
        )
    new, state = as_tensor(new), {n: as_tensor(x) for n, x in part.items()}
    for name, value, like in [("g", new, g), *((f"the state {n!r}", x, kept[n]) for n, x in state.items())]:
        if value.dtype is not like.dtype:
            raise DTypeError.here(f"the update of a transform gives {name} as {value.type}; it must be {like.type}")
        if value.shape != like.shape:
            raise ShapeError.here(f"the update of a transform gives {name} as {value.type}; it must be {like.type}")
    return new, state


def _unused(name: str, taken: Mapping[str, Kept]) -> str:
    full, k = name, 0
    while full in taken:
        k += 1
        full = f"{name}.{k}"
    return full


def merge_hyper(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Merge two sets of hyperparameters. Raises InputError if they give one name two values."""
    for name in a.keys() & b.keys():
        if a[name] != b[name]:
            raise InputError.here(f"the hyperparameter {name!r} has two initial values, {a[name]!r} and {b[name]!r}")
    return {**a, **b}
