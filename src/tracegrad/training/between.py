"""Changes of a training between steps: hyperparameters, groups, frozen parameters, learning rate, model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from tracegrad.arrays import checked_seed
from tracegrad.compiler.build import StepSource, traced_first
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.stores import TrainedParameters
from tracegrad.errors import InputError
from tracegrad.lr import plateau_of, with_plateau
from tracegrad.patterns import Selection, chosen
from tracegrad.refusals import shown
from tracegrad.runtime.base import Session


def changed(store: TrainedParameters, stepper: Stepper, hyper: Mapping[str, Any]) -> None:
    """Change hyperparameters; see `CompiledTraining.set`."""
    values = dict(hyper)
    groups = values.pop("groups", None)
    optimizer = stepper.source.optimizer
    knobs, switched = stepper.knobs.changed(values, stepper.program, optimizer.off)
    new, of_groups = optimizer.switched_on(switched), dict[str, float]()
    if groups is not None:
        new, of_groups = new.regrouped(groups)
    if new is not optimizer:
        go_on(store, stepper, stepper.source._replace(optimizer=new))
    stepper.knobs = Knobs(knobs.rate, {**knobs.values, **of_groups})


def lr_metric(store: TrainedParameters, stepper: Stepper, value: float, of_fit: bool = False) -> None:
    """Tell `lr.plateau` a metric; see `CompiledTraining.lr_metric`. Raises InputError for another schedule.

    of_fit: `fit` chose the metric. A later metric of the user takes its place."""
    rate = stepper.knobs.rate
    schedule = rate.schedule if rate.untold is None or of_fit else rate.untold
    plateau = plateau_of(schedule)
    if plateau is None:
        raise InputError.here(f"lr_metric: the schedule {schedule!r} takes no metric; use lr.plateau(peak)")
    new = with_plateau(schedule, plateau.after(value))

    def tell(session: Session, stepper: Stepper) -> None:
        start = stepper.knobs.rate.start
        stepper.knobs = Knobs(Rate(new, start, untold=schedule if of_fit else None), stepper.knobs.values)

    store.call(tell, stepper)


def replace_model(store: TrainedParameters, model: Any, seed: int | None, optimizer: Any) -> None:
    """Train another model; see `CompiledTraining.replace_model`. Raises InputError for the name of an unknown loss."""
    old = store.stepper
    seed = old.seed if seed is None else checked_seed(seed)
    sources = {name: s.source._replace(model=model) for name, s in store.steppers.items()}
    given = {"": optimizer} if "" in sources else dict(optimizer or {})
    if unknown := [name for name in given if name not in sources]:
        raise InputError.here(
            f"replace_model: optimizer: there is no loss {unknown[0]!r}; there are {', '.join(sources)}"
        )
    sources = {n: s._replace(optimizer=given.get(n) or s.optimizer) for n, s in sources.items()}
    if old.source.part:
        from tracegrad.compiler.several import shared

        sources = shared(sources, *old.source.chosen)
    traced = [(source, traced_first(source)) for source in sources.values()]
    steppers = Stepper.all_of(traced, seed, old.sized.capacity if old.sized else 1)
    for name, before, new in zip(sources, old.together, steppers, strict=True):
        for text in new.built.warnings:
            warnings.warn(text, stacklevel=3)
        if given.get(name) is None:
            new.knobs = Knobs(Rate(before.knobs.rate.schedule), {**new.knobs.values, **before.knobs.values})
    store.replace(steppers[0])


def go_on(store: TrainedParameters, stepper: Stepper, source: StepSource) -> None:
    """Compile the step once more from `source`, which keeps all arrays and can add some, and go on from here."""
    built = source.main()
    store.call(lambda session, stepper: stepper.take_over(session, source, built), stepper)


def freeze(store: TrainedParameters, given: Selection, what: str) -> None:
    """Freeze the selected parameters (what="freeze"), or train them again ("unfreeze").

    Raises InputError for a selection that matches nothing, or only parameters that have no gradient."""
    stepper = store.stepper
    trained = [f.name for f in stepper.program.params if f.spec.get("trainable", True)]
    fixed = [f.name for f in stepper.program.params if f.name not in trained]
    named = chosen([*trained, *fixed], given, what)
    if what == "unfreeze" and not set(named) & set(trained):
        raise InputError.here(
            f"unfreeze: {', '.join(named)}: compiled without a gradient, by trainable=False or frozen=; leave these "
            "out, and use train.freeze"
        )
    own = {id(one): {f.name for f in one.program.trained} for one in stepper.together}
    meant = [one for one in stepper.together if own[id(one)] & set(named)]
    for one in meant:
        if not one.source.freezable:
            go_on(store, one, one.source._replace(freezable=True))

    def apply(session: Session, _: Stepper) -> None:
        for one in meant:
            old = set(one.frozen)
            new = old | set(named) if what == "freeze" else old - set(named)
            one.freeze(session, [name for name in trained if name in new & own[id(one)]])

    store.call(apply, stepper)


def turns(losses: Sequence[str], given: Any, what: str) -> tuple[str, ...]:
    """Return the names of the losses in turn; () if there is one loss. Raises InputError for unknown names.

    given: `schedule=` of the call `what`."""
    example = f"schedule={tuple(losses)!r}"
    if given is None:
        if losses:
            raise InputError.here(f"{what}: there are several losses; name their order, as in {example}")
        return ()
    if not losses:
        raise InputError.here(f"{what}: schedule= is for several losses, and this training has one; leave it out")
    names = () if isinstance(given, str) or not hasattr(given, "__iter__") else tuple(cast("Iterable[Any]", given))
    if not names or not set(names) <= set(losses):
        raise InputError.here(
            f"{what}: schedule must be a sequence of names of losses, as in {example}, got {shown(given)}"
        )
    return names
