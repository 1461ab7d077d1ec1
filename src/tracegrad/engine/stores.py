"""The parameters of a model on a device: those of a training, or those of a forward compiled alone.

A store has the `worker`, the `model` and its parameters as `fields`, the `seed` of random streams, and `knobs`: the
learning rate and hyperparameters. Forwards share the arrays of its `layout`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tracegrad import safetensors
from tracegrad.arrays import Array, handed_out
from tracegrad.compiler.build import arrays_of
from tracegrad.engine import params
from tracegrad.engine.inputs import sizes_of
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.run_program import RunProgram
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.worker import Worker
from tracegrad.errors import AbortedError, InputError
from tracegrad.lr import as_schedule
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session
from tracegrad.runtime.memory import from_storage

T = TypeVar("T")
BY_POSITION = ("step", "run_steps")  # methods that take the name of a loss first
EMA = "ema"  # the optimizer state of the parameters' averages


class _Parameters(ABC):
    """The parameters and states of a model, in the arrays of one program, its `layout`."""

    worker: Worker

    @property
    def version(self) -> object:
        """An object that changes with the model. Programs compiled for another version cannot run."""
        return self

    @property
    @abstractmethod
    def layout(self) -> Program:
        """The program that declares the arrays."""

    def with_arrays(self, fn: Callable[[Session, Program], T], version: Any = None) -> T:
        """Run `fn` on the worker's thread, after all work queued so far.

        version: the version that `fn` is for; None: any. Only a training's version can change.
        """
        return self.worker.call(lambda session: fn(session, self.layout))

    def drop(self, programs: Sequence[RunProgram]) -> None:
        """Free programs on the device, after the work queued so far. Those of another version are gone already."""

        def unload(session: Session) -> None:
            for program in programs:
                if program.version in (None, self.version):
                    program.unload(session)

        if programs:
            self.worker.post(unload)

    @property
    def fields(self) -> Sequence[Field]:
        """The parameters, in declaration order."""
        return self.layout.params

    def set_states(self, record: Mapping[str, Any], strict: bool) -> None:
        """Do what `HasStates.set_states` documents."""
        fields, version = params.states_in(self.layout), self.version
        arrays = params.check_record(fields, record, strict, "set_states", "state")
        self.with_arrays(lambda session, program: params.upload(session, program, fields, arrays), version)

    @abstractmethod
    def upload_params(self, record: Mapping[str, Any], strict: bool, called: str) -> None:
        """Do what `HasParams.upload_params` documents; `called`: the call, for errors."""

    def load(self, path: str | os.PathLike[str], file: safetensors.File) -> None:
        """Replace all parameters, and the model's states that the file has. Nothing changes if one does not fit."""
        states, what = params.states_in(self.layout), f"load {os.fspath(path)}"
        own, found = params.of_file(file.tensors, self.fields, states)
        params.check_record(states, found, False, what, "state")
        params.check_record(self.fields, own, True, what)
        self.upload_params(own, True, "load")
        if found:
            self.set_states(found, False)

    def states(self) -> dict[str, Array]:
        """Do what `HasStates.states` documents."""
        return self.told(lambda session, program: params.download(session, program, params.states_in(program)))

    def told(self, read: Callable[[Session, Program], Mapping[str, Array]], version: Any = None) -> dict[str, Array]:
        """Return the arrays that `read` returns, as users get them. version: as for `with_arrays`."""
        return {name: handed_out(x) for name, x in self.with_arrays(read, version).items()}


class TrainedParameters(_Parameters):
    """The parameters of a training, in the arrays of its step. Forwards attached to it share them."""

    def __init__(self, worker: Worker, stepper: Stepper):
        self.worker, self.stepper = worker, stepper  # of the first loss, if there are several

    @property
    def steppers(self) -> dict[str, Stepper]:
        """Return the steppers by loss; the name of an only loss is ""."""
        return {s.source.part.name if s.source.part else "": s for s in self.stepper.together}

    def stepper_of(self, loss: str | None, what: str) -> Stepper:
        """Return the stepper of a loss; `loss` must be None if there is only one. Raise InputError for other values."""
        steppers = self.steppers
        if loss in steppers:
            return steppers[loss]
        if "" in steppers and loss is None:
            return self.stepper
        if "" in steppers:
            raise InputError.here(f"{what}: this training has one loss without a name; leave out {loss!r}")
        names = ", ".join(map(repr, steppers))
        first = next(iter(steppers))
        how = f"{what}({first!r}, ...)" if what in BY_POSITION else f"{what}(..., loss={first!r})"
        said = f"say which loss is meant, as in train.{how}" if loss is None else f"there is no loss {loss!r}"
        raise InputError.here(f"{what}: {said}; the losses are {names}")

    @property
    def model(self) -> Any:
        """The model in training now."""
        return self.stepper.source.model

    @property
    def version(self) -> Stepper:
        """The current stepper, which `replace_model` replaces."""
        return self.stepper

    @property
    def layout(self) -> Program:
        """The step's program."""
        return self.stepper.program

    @property
    def knobs(self) -> Knobs:
        """The learning rate and hyperparameters of the next step; for a shared name, the first loss's value."""
        values: dict[str, float] = {}
        for stepper in reversed(self.stepper.together):
            values |= stepper.knobs.values
        return Knobs(self.stepper.knobs.rate, values)

    @property
    def seed(self) -> int:
        """The seed of initialisation and of all random numbers."""
        return self.stepper.seed

    def program_for(
        self, stepper: Stepper, given: Mapping[str, Any], what: str, split: bool = False
    ) -> tuple[RunProgram, Mapping[str, Any]]:
        """Return the program of a step on these inputs, and the inputs, as arrays where sizes need them.

        split: for `run_steps`, inputs can have one more axis in front.
        """
        sized = stepper.sized
        if sized is None:
            return stepper.main, given
        sizes, given = sizes_of(sized.free, given, what, split)
        with sized.lock:
            program, dropped = sized.of(sizes, lambda: stepper.source, lambda: self.worker.info)
        self.drop(dropped)
        return program, given

    def call(self, fn: Callable[[Session, Stepper], T], stepper: Stepper | None = None) -> T:
        """Run `fn` on the worker's thread, after the steps queued so far.

        stepper: the one that `fn` is for; None: the current one. AbortedError if `replace_model` has replaced it by
                 then.
        """
        mine = stepper or self.stepper

        def call(session: Session) -> T:
            if mine.replaced:
                raise AbortedError(mine.replaced)
            return fn(session, mine)

        self.worker.check_open("CompiledTraining")
        return self.worker.call(call)

    def replace(self, new: Stepper) -> None:
        """Change to another model once it is loaded; calls in flight resolve as Aborted."""
        reason = "displaced by replace_model"

        def load(session: Session) -> None:
            new.install(session)
            for old in self.stepper.together:
                old.replaced = reason
            self.stepper = new

        self.worker.check_open("CompiledTraining")
        self.worker.swap(load, reason)

    def upload_params(self, record: Mapping[str, Any], strict: bool, called: str) -> None:
        """Do what `CompiledTraining.upload_params` documents; errors name the method `called`."""
        stepper = self.stepper
        arrays = params.check_record(stepper.program.params, record, strict, called)

        def write(session: Session, stepper: Stepper) -> None:
            stepper.upload(session, arrays)
            for one in stepper.together:
                if one.counter == 0:
                    one.clear(session)  # averages begin at the parameters of the first step

        self.call(write, stepper)

    def download_params(self, ema: bool = False) -> dict[str, Array]:
        """Do what `CompiledTraining.download_params` documents.

        Raises InputError for averages that the optimizer does not keep.
        """
        averaged = [s.program for s in self.stepper.together if ema and _ema_of(s.program)]
        if ema and not averaged:
            raise InputError.here(
                "download_params: the optimizer keeps no averages; make it with ema=, such as ema=0.999"
            )

        def read(session: Session, program: Program) -> dict[str, Array]:
            now = params.download(session, program, program.params)
            for one in averaged:
                now |= _trained(session, one, _ema_of(one))
            return now

        return self.told(read)

    def with_arrays(self, fn: Callable[[Session, Program], T], version: Stepper | None = None) -> T:
        """Run `fn` on the worker's thread. Raise AbortedError if `replace_model` has replaced `version` by then."""
        return self.call(lambda session, stepper: fn(session, stepper.program), version)

    def download_grads(self, stepper: Stepper) -> dict[str, Array]:
        """Do what `CompiledTraining.download_grads` documents."""

        grads = next(b.name for b in stepper.program.buffers if b.role == "grad")
        return self.told(lambda session, _: _trained(session, stepper.program, grads), stepper)


def _trained(session: Session, program: Program, array: str) -> dict[str, Array]:
    """Return the parts of an array that is laid out as the trained parameters are, by parameter name."""
    flat = session.read(array)
    return {f.name: from_storage(flat, f) for f in program.trained}


def _ema_of(program: Program) -> str:
    """Return the array of the averages that an optimizer keeps; "" if it keeps none."""
    return next((f.name for f in program.states if f.name in (EMA, f"{program.part}/{EMA}")), "")


class OwnParameters(_Parameters):
    """The parameters of a `tg.compile_forward`, drawn from the seed, in arrays that outlive its programs."""

    knobs = Knobs(Rate(as_schedule(0.0)), {})  # no hyperparameter was set
    unset = False  # true if the parameters come from a seed that the user did not choose: the first run then warns

    def __init__(self, model: Any, seed: int, session_factory: Callable[[], Callable[[], Session]]):
        self.model, self.seed = model, seed
        self._layout = arrays_of(model)
        fields = params.drawable(self.layout)
        first = params.drawn(fields, seed)

        def install(session: Session) -> None:
            session.load(self.layout)
            params.upload(session, self.layout, fields, first)

        self.worker = Worker(session_factory())
        try:
            self.worker.opened().begin(install)
        except BaseException:
            self.worker.close()
            raise

    @property
    def layout(self) -> Program:
        """The program that declares the arrays."""
        return self._layout

    def upload_params(self, record: Mapping[str, Any], strict: bool, called: str) -> None:
        """Do the same as `CompiledTraining.upload_params`; errors name the method `called`."""
        arrays = params.check_record(self.fields, record, strict, called)
        self.unset = False
        self.with_arrays(lambda session, program: params.upload(session, program, program.params, arrays))

    def download_params(self) -> dict[str, Array]:
        """Do the same as `CompiledTraining.download_params`."""
        return self.told(lambda session, program: params.download(session, program, program.params))


ParameterStore = TrainedParameters | OwnParameters
