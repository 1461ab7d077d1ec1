"""What a training does between steps: change values, groups, frozen parameters, the rate and the model; measure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tracegrad.compiler.build import StepSource
from tracegrad.engine.inputs import checked_seed
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.step_programs import StepProgram
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.stores import TrainedParameters
from tracegrad.errors import InputError
from tracegrad.introspection.profile import Profile, profiled
from tracegrad.lr import Plateau
from tracegrad.patterns import Selection, chosen
from tracegrad.runtime.base import Session


def changed(store: TrainedParameters, hyper: Mapping[str, Any]) -> None:
    """See `CompiledTraining.set`."""
    stepper, values = store.stepper, dict(hyper)
    groups = values.pop("groups", None)
    optimizer = stepper.source.optimizer
    knobs, switched = stepper.knobs.changed(values, stepper.program, optimizer.off)
    new, of_groups = optimizer.switched_on(switched), dict[str, float]()
    if groups is not None:
        new, of_groups = new.regrouped(groups)
    if new is not optimizer:
        go_on(store, stepper.source._replace(optimizer=new))
    stepper.knobs = knobs.with_values(of_groups)


def lr_metric(store: TrainedParameters, value: float) -> None:
    """See `CompiledTraining.lr_metric`."""
    schedule = store.stepper.knobs.rate.schedule
    if not isinstance(schedule, Plateau):
        raise InputError.here(f"lr_metric: the schedule {schedule!r} takes no metric; use lr.plateau(peak)")
    new = schedule.after(value)

    def tell(session: Session, stepper: Stepper) -> None:
        stepper.knobs = Knobs(Rate(new, stepper.knobs.rate.start), stepper.knobs.values)

    store.call(tell, store.stepper)


def profile(store: TrainedParameters, program: StepProgram, steps: int, arrays: Mapping[str, Any]) -> Profile:
    """See `CompiledTraining.profile`."""

    def measure(session: Session, stepper: Stepper) -> Profile:
        timings = stepper.timings(session, program, arrays, stepper.knobs, steps)
        return profiled(program.built, timings, session.info, store.worker.limits())

    return store.call(measure, store.stepper)


def replace_model(store: TrainedParameters, model: Any, seed: int | None, optimizer: Any) -> None:
    """See `CompiledTraining.replace_model`."""
    old = store.stepper
    seed = old.seed if seed is None else checked_seed(seed)
    source = old.source._replace(model=model, optimizer=optimizer or old.source.optimizer)
    most = old.sized.capacity if old.sized else 1
    new = Stepper.of(source, source.traced(), seed, most)
    for text in new.built.warnings:
        warnings.warn(text, stacklevel=3)
    if optimizer is None:
        new.knobs = Knobs(Rate(old.knobs.rate.schedule), {**new.knobs.values, **old.knobs.values})
    store.replace(new)


def go_on(store: TrainedParameters, source: StepSource) -> None:
    """Compile the step once more, from a source of the same arrays and perhaps more, and train on from here."""
    built = source.main()
    store.call(lambda session, stepper: stepper.take_over(session, source, built), store.stepper)


def freeze(store: TrainedParameters, given: Selection, what: str) -> None:
    """Leave alone the parameters that are meant (what="freeze"), or train them again ("unfreeze")."""
    stepper = store.stepper
    trained = [f.name for f in stepper.program.params if f.spec.get("trainable", True)]
    fixed = [f.name for f in stepper.program.params if f.name not in trained]
    named = chosen([*trained, *fixed], given, what)
    if what == "unfreeze" and not set(named) & set(trained):
        raise InputError.here(
            f"unfreeze: {', '.join(named)}: compiled without a gradient, by trainable=False or frozen=; leave that "
            "out, and use train.freeze"
        )
    if not stepper.source.freezable:
        go_on(store, stepper.source._replace(freezable=True))

    def apply(session: Session, stepper: Stepper) -> None:
        old = set(stepper.frozen)
        new = old | set(named) if what == "freeze" else old - set(named)
        stepper.freeze(session, [name for name in trained if name in new])

    store.call(apply, stepper)
