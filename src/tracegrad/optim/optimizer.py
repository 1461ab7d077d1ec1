"""Optimizers: a chain of transforms, a learning rate, and the first values of all hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, cast

from tracegrad.errors import InputError, call_site, placed, shortened
from tracegrad.hypers import GROUP, OFF, Range, check_positions, checked_all, checked_whole
from tracegrad.lr import as_schedule
from tracegrad.optim import scaling
from tracegrad.optim.gradients import accumulate, clip_by_global_norm, normalize_gradients
from tracegrad.optim.grouping import NO_GROUPS, Groups
from tracegrad.optim.transform import MONOTONE, Transform, chain
from tracegrad.patterns import Selection, matcher
from tracegrad.prims.leaves import unboxed
from tracegrad.refusals import absent
from tracegrad.schedule import Schedule
from tracegrad.wrong_calls import check_call, unexpected, wrapped

__all__ = ["Optimizer", "Options"]

LR = Schedule | float
Chain = list[Transform]
P = ParamSpec("P")


class Options(TypedDict, total=False):
    """The keyword arguments of all optimizers: `optim.adam(lr=1e-3, clip_grad_norm=1.0)`. `train`: see `tg.compile`.

    lr:               (of each optimizer itself) the learning rate: a number, or a schedule of `tg.lr`.
    clip_grad_norm:   scale the gradient of all parameters to this norm if its norm is larger, as PyTorch's
                      torch.nn.utils.clip_grad_norm_. Default None: no clipping.
    normalize_grads:  divide each parameter's gradient by its norm, before clipping: True for all parameters, or a
                      selection: a pattern of names such as "body.*", a list of patterns, or a function of the name.
                      Default False.
    ema:              keep a running average of the parameters with this factor, such as 0.999; default None: no
                      average. `train.download_params(ema=True)` reads the average. With `accumulate=`, it moves at each
                      update.
    accumulate:       k: update at every k-th step only, with the mean of k gradients. Default 1. A schedule counts all
                      steps: for n updates it takes `steps=n * k`.
    groups:           values for some parameters: {"backbone.*": {"lr": 0.1}, "head.*": {"weight_decay": 0.0}}. A key is
                      a pattern of names, where `*` matches any text, or a function of the name. The first match counts.
                      "lr" is a factor on the learning rate; other values replace the optimizer's.
                      `train.set(groups=...)` changes these values.
    decay_filter:     the parameters that weight decay applies to: a selection, as above; see `nn.decays`.
    Raises:           InputError unless factors of means but `momentum` are in [0, 1), `clip_grad_norm` is above 0,
                      `accumulate` an integer >= 1, others >= 0 (see `adafactor`); CallError for an unknown keyword.

    An option that is not used costs no time and no memory. If weight_decay, momentum or clip_grad_norm was not used and
    `train.set` sets it, the step is compiled once more, and training goes on from its current state.

    >>> optimizer = optim.sgd(lr=0.1, momentum=0.9, accumulate=4, groups={"backbone.*": {"lr": 0.1}})
    """

    clip_grad_norm: float | None
    normalize_grads: bool | Selection
    ema: float | None
    accumulate: int
    groups: Mapping[Any, Mapping[str, float]]
    decay_filter: Selection | None


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The update rule and its values, for `tg.compile`. Make one with `optim.adam` and the like, or `optim.custom`.

    transform:  the update rule. Its result, which includes the factor -lr, is added to the parameters.
    lr:         a number, or a schedule of `tg.lr`. Its value at each step is the hyperparameter "lr".
    hyper:      first values of all other hyperparameters. `set` of the training that `tg.compile` returns changes them.
    name:       the name of the function that made it, such as "adam".
    decay_filter: function of a parameter's name, or None; see `nn.decays`.
    groups:     as in `Options`.
    options:    the options that shape the transform, as plain data.
    again, off: what `train.set` needs to switch options on. Only tracegrad uses them.
    Unlike torch.optim.Optimizer, it does not hold the state.

    >>> optimizer = optim.adam(lr=1e-3)
    >>> optimizer.name, optimizer.hyper
    ('adam', {'beta1': 0.9, 'beta2': 0.999, 'eps': 1e-08})
    """

    transform: Transform
    lr: LR
    hyper: Mapping[str, float]
    decay_filter: Callable[[str], bool] | None = None
    name: str = "custom"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what shaped the transform, plain data
    again: Callable[..., Optimizer] | None = None  # makes this optimizer with other hyperparameters
    off: tuple[str, ...] = ()  # hyperparameters that `again` takes and that the transform lacks
    groups: Groups = NO_GROUPS

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise absent(f"optim.{self.name}", name, ("lr", "hyper", "options", "spec"), "optimizers", "objects")

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The valid numbers of each hyperparameter, by name, as `Range(low, high, above)`; None is no limit.

        `low` itself is valid unless `above` is True, and `high` itself is not. A name not here takes any finite number.
        """
        own = self.transform.ranges
        return {**own, **{n: own[n.split(GROUP)[0]] for n in self.groups.hyper if n.split(GROUP)[0] in own}}

    def regrouped(self, given: Any) -> tuple[Optimizer, dict[str, float]]:
        """Return the optimizer for `train.set(groups=given)`, and the groups' new values by name.

        If `given` has a new group, or a hyperparameter that its group lacks, the result is a new optimizer, and the
        step must be compiled again. Otherwise it is this optimizer. Raises InputError if the optimizer takes no groups.
        """
        old = dict(zip(self.groups.selections, self.groups.overrides))
        asked: Mapping[Any, Any] = cast("Mapping[Any, Any]", given) if isinstance(given, Mapping) else {}
        merged: dict[Any, Any] = dict(old)
        for s, values in asked.items():
            merged[s] = {**old.get(s, {}), **values} if isinstance(values, Mapping) else values
        if self.again is None:
            raise InputError.here("set: this optimizer takes no groups; make it with optim.custom")
        new = self.again(groups=merged if isinstance(given, Mapping) else given)
        places = {f"{name}{GROUP}{k}" for k, s in enumerate(merged) if s in asked for name in asked[s]}
        same = self.groups.hyper.keys() == new.groups.hyper.keys() and len(merged) == len(old)
        return (self if same else new), {name: x for name, x in new.groups.hyper.items() if name in places}

    def switched_on(self, values: Mapping[str, float]) -> Optimizer:
        """Return this optimizer, or a new one if `values` turn on an option that was off, such as weight decay."""
        wanted = {name: values[name] for name in self.off if values.get(name, OFF[name]) != OFF[name]}
        return self.again(**wanted) if wanted and self.again is not None else self

    def spec(self) -> dict[str, Any]:
        """Return the optimizer as plain data: "kind", "lr", "hyper", "state" (first values) and "options".

        The update rule is not included. As `defaults` of torch.optim.Optimizer.
        """
        return {
            "kind": self.name,
            "lr": as_schedule(self.lr).spec(),
            "hyper": dict(self.hyper),
            "state": self.transform.fills,
            "options": dict(self.options),
        }

    def __repr__(self) -> str:
        values = {"lr": self.lr, **self.hyper, **self.options}
        return f"optim.{self.name}({', '.join(f'{k}={v!r}' for k, v in values.items())})"


def recipe(
    *optional: str, flat: bool = True, shaping: tuple[str, ...] = ()
) -> Callable[[Callable[P, Chain]], Callable[P, Optimizer]]:
    """Turn a function that returns the core of a chain into a public optimizer, with the options around the core.

    The function takes `lr`, parameters of its own, and `**options`.
    optional: hyperparameters that the core lacks while they are off.
    flat:     True if the core uses hyperparameters on flat arrays only, so that groups can override all of them.
    shaping:  parameters that shape the chain. The optimizer's `options` have them as plain data.
    """

    def make(core: Callable[P, Chain]) -> Callable[P, Optimizer]:
        @shortened
        def optimizer(*args: P.args, **kwargs: P.kwargs) -> Optimizer:
            what = f"optim.{core.__name__}"
            check_call(what, core, args, kwargs)
            parts, own = core(*args, **kwargs), signature(core).bind(*args, **kwargs)
            own.apply_defaults()
            values: dict[str, Any] = own.arguments
            options: Options = values.pop("options")
            if unknown := {word: x for word, x in options.items() if word not in Options.__annotations__}:
                raise placed(unexpected((*values, *Options.__annotations__), unknown, what), what, call_site())
            as_schedule(values["lr"])  # raises for anything but a learning rate
            check_positions(what, core, args)
            transform, shaped_by = _around(parts, options, what)
            hyper = checked_all(transform.hyper, transform.ranges, what)
            known = {"lr": 1.0} | {n: x for n, x in hyper.items() if n != "clip_grad_norm" and (flat or n in MONOTONE)}
            given, decay = cast("object", options.get("groups")), options.get("decay_filter")
            groups = NO_GROUPS if given is None else Groups.checked(given, known, transform.ranges, what)
            if groups.selections:
                shaped_by["groups"] = groups.spec()
            return Optimizer(
                transform=transform if groups.names <= {*MONOTONE} else replace(transform, bounds=None),
                lr=values["lr"],
                hyper=hyper | groups.hyper,
                decay_filter=None if decay is None else matcher(decay, f"{what}: decay_filter"),
                name=core.__name__,
                options={name: unboxed(values[name]) for name in shaping} | shaped_by,
                again=cast("Any", partial(optimizer, **values, **options)),
                off=tuple(n for n in (*optional, "clip_grad_norm") if n not in hyper),
                groups=groups,
            )

        core.__annotations__["return"] = "Optimizer"  # for the signature that help() shows
        return cast("Callable[P, Optimizer]", wrapped(optimizer, core))

    return make


def _around(core: Chain, options: Options, what: str) -> tuple[Transform, dict[str, Any]]:
    """Return the chain normalize, clip, core, lr, ema, inside `accumulate` if on; and the options in use, as data."""
    every = checked_whole("accumulate", options.get("accumulate", 1), what)
    normalize = options.get("normalize_grads", False)
    clip, ema = options.get("clip_grad_norm"), options.get("ema")
    parts: Chain = []
    if normalize is not False:
        parts.append(normalize_gradients(None if normalize is True else normalize))
    if clip is not None:
        parts.append(clip_by_global_norm(clip))
    # a user's own chain has `scale_by_lr`, and can have transforms after it
    scaled = any("lr" in part.ranges for part in core)
    parts += core if scaled else [*core, scaling.scale_by_lr()]
    if ema is not None:
        parts.append(scaling.track_ema(ema))
    transform = chain(*parts)
    shaped_by: dict[str, Any] = {"accumulate": every} if every != 1 else {}
    if normalize is not False:
        shaped_by["normalize_grads"] = True
    return transform if every == 1 else accumulate(every, transform), shaped_by
