"""Where the parameters of a model are: in the arrays of a training, or in a copy of a forward's own.

A store has the `worker`, the `model` and its parameters as `fields`, the `seed` of random streams and the hot values,
`knobs`. Programs share the parameters of `layout`, if any; those compiled for another `version` are of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tracegrad.arrays import handed_out
from tracegrad.engine import indexcheck, params
from tracegrad.engine.call_sizes import as_arrays, sizes_of
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.step_programs import StepProgram
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.worker import Worker
from tracegrad.errors import AbortedError, InputError
from tracegrad.lr import as_schedule
from tracegrad.program import Field, Program
from tracegrad.refusals import Helped
from tracegrad.runtime.base import Session
from tracegrad.runtime.storage import from_storage

Array = Any
T = TypeVar("T")
BY_POSITION = ("step", "run_steps")  # methods that take the name of a loss first
EMA = "ema"  # the optimizer state of the parameters' averages


class TrainedParameters:
    """The parameters of a training, in the arrays of its step. Forwards attached to it share them."""

    def __init__(self, worker: Worker, stepper: Stepper):
        self.worker, self.stepper = worker, stepper  # of the first loss, where there are several

    @property
    def steppers(self) -> dict[str, Stepper]:
        """By loss; that of the only one is called ""."""
        return {s.source.part.name if s.source.part else "": s for s in self.stepper.together}

    def stepper_of(self, loss: str | None, what: str) -> Stepper:
        """The stepper of a loss. InputError unless one of several is named, or none where there is one."""
        steppers = self.steppers
        if loss in steppers:
            return steppers[loss]
        if "" in steppers and loss is None:
            return self.stepper
        if "" in steppers:
            raise InputError.here(f"{what}: this training has one loss, which has no name; leave out {loss!r}")
        names = ", ".join(map(repr, steppers))
        first = next(iter(steppers))
        how = f"{what}({first!r}, ...)" if what in BY_POSITION else f"{what}(..., loss={first!r})"
        said = f"say which loss is meant, as in train.{how}" if loss is None else f"there is no loss {loss!r}"
        raise InputError.here(f"{what}: {said}; the losses are {names}")

    @property
    def model(self) -> Any:
        """The model that is trained now."""
        return self.stepper.source.model

    @property
    def version(self) -> Stepper:
        """Changes with `replace_model`."""
        return self.stepper

    @property
    def layout(self) -> Program:
        """The step's program."""
        return self.stepper.program

    @property
    def knobs(self) -> Knobs:
        """The hot values of the next step; of several losses, where they have one name, those of the first."""
        values: dict[str, float] = {}
        for stepper in reversed(self.stepper.together):
            values |= stepper.knobs.values
        return Knobs(self.stepper.knobs.rate, values)

    @property
    def seed(self) -> int:
        """What pins initialisation and all randomness."""
        return self.stepper.seed

    @property
    def fields(self) -> Sequence[Field]:
        """In declaration order."""
        return self.stepper.program.params

    def program_for(
        self, stepper: Stepper, given: Mapping[str, Any], what: str, split: bool = False
    ) -> tuple[StepProgram, Mapping[str, Any]]:
        """The program of a step on these inputs, and the inputs as far as sizes wanted them as arrays.

        split: for `run_steps`, inputs may have one more axis in front.
        """
        if stepper.sized is None:
            return stepper.main, given
        free = stepper.sized.free
        given = as_arrays(free, given, split)
        info = self.worker.info
        shares = info.resizes and not info.gpu and not indexcheck.enabled()  # WGSL has no sums of as many as a run says
        program, dropped = stepper.program_for(sizes_of(free, given, what, split), shares)

        def unload(session: Session) -> None:
            for old in dropped:
                old.unload(session)

        if dropped:
            self.worker.post(unload)  # behind the steps queued so far
        return program, given

    unwritten = False  # forwards share the step's buffers

    def write(self, session: Session, program: Program, new: bool) -> None:
        """Nothing is to be written."""

    def call(self, fn: Callable[[Session, Stepper], T], stepper: Stepper | None = None) -> T:
        """Run `fn` on the worker's thread, after the steps queued so far.

        stepper: the one that `fn` is for; that of now if None. AbortedError if `replace_model` has replaced it by then.
        """
        mine = stepper or self.stepper

        def call(session: Session) -> T:
            if mine.replaced:
                raise AbortedError(mine.replaced)
            return fn(session, mine)

        self.worker.check_open("CompiledTraining")
        return self.worker.call(call)

    def replace(self, new: Stepper) -> None:
        """Go over to another model once it is loaded; what is in flight resolves as Aborted."""
        reason = "displaced by replace_model"

        def load(session: Session) -> None:
            new.install(session)
            for old in self.stepper.together:
                old.replaced = reason
            self.stepper = new

        self.worker.check_open("CompiledTraining")
        self.worker.swap(load, reason)

    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """See `CompiledTraining.upload_params`."""
        stepper = self.stepper
        arrays = params.check_record(stepper.program.params, record, strict, "upload_params")

        def write(session: Session, stepper: Stepper) -> None:
            stepper.upload(session, arrays)
            for one in stepper.together:
                if one.counter == 0:
                    one.clear(session)  # averages begin at the parameters that the first step finds

        self.call(write, stepper)

    def download_params(self, ema: bool = False) -> dict[str, Array]:
        """See `CompiledTraining.download_params`."""
        if ema and not any(_ema_of(s.program) for s in self.stepper.together):
            raise InputError.here("download_params: no averages are kept; make the optimizer with ema=0.999, or so")

        def read(session: Session, stepper: Stepper) -> dict[str, Array]:
            program = stepper.program
            now = params.download(session, program, program.params)
            for one in [s.program for s in stepper.together if ema]:
                now |= _trained(session, one, _ema_of(one)) if _ema_of(one) else {}
            return now

        return {name: handed_out(x) for name, x in self.call(read).items()}

    def set_states(self, record: Mapping[str, Any], strict: bool) -> None:
        """See `HasStates.set_states`."""
        stepper = self.stepper
        fields = params.states_in(stepper.program)
        arrays = params.check_record(fields, record, strict, "set_states", "state")
        self.call(lambda session, stepper: params.upload(session, stepper.program, fields, arrays), stepper)

    def states(self) -> dict[str, Array]:
        """See `HasStates.states`."""

        def read(session: Session, stepper: Stepper) -> dict[str, Array]:
            return params.download(session, stepper.program, params.states_in(stepper.program))

        return {name: handed_out(x) for name, x in self.call(read).items()}

    def release(self, session: Session, program: Program) -> None:
        """Nothing is to be saved: the step keeps the buffers."""

    def download_grads(self, stepper: Stepper) -> dict[str, Array]:
        """See `CompiledTraining.download_grads`."""

        def read(session: Session, stepper: Stepper) -> dict[str, Array]:
            program = stepper.program
            return _trained(session, program, next(b.name for b in program.buffers if b.role == "grad"))

        return {name: handed_out(x) for name, x in self.call(read, stepper).items()}


def _trained(session: Session, program: Program, array: str) -> dict[str, Array]:
    """An array in the layout of the trained parameters, by their names."""
    flat = session.read(array)
    return {f.name: from_storage(flat, f) for f in program.trained}


def _ema_of(program: Program) -> str:
    """The array of the averages that an optimizer keeps; "" if it keeps none."""
    return next((f.name for f in program.states if f.name in (EMA, f"{program.part}/{EMA}")), "")


class OwnParameters:
    """The parameters of a `tg.compile_forward`: drawn from the seed, kept here, written before a run.

    A forward changes no parameter, so this copy is always the truth, also before the first program exists. States may
    be changed: while a program is loaded, the device has them.
    """

    knobs = Knobs(Rate(as_schedule(0.0)), {})  # no hyperparameter was set
    unset = False  # are the parameters those of a seed that the user did not choose? Then its first run warns

    def __init__(self, model: Any, seed: int, session_factory: Callable[[], Callable[[], Session]]):
        self.model, self.seed = model, seed
        self.version: object = self
        self.layout: Program | None = None
        self.fields, self.states_fields = params.declared(model), params.declared_states(model)
        first = params.drawn([*self.fields, *self.states_fields], seed)
        self._values = {f.name: first[f.name] for f in self.fields}
        self._states = {f.name: first[f.name] for f in self.states_fields}
        self._unwritten: dict[str, Array] = {}  # of the parameters, since the last run
        self._loaded: list[Program] = []  # what is on the device, and with it the states
        self.worker = Worker(session_factory()).opened()

    @property
    def unwritten(self) -> bool:
        """Is there something to write before the next run?"""
        return bool(self._unwritten)

    def write(self, session: Session, program: Program, new: bool) -> None:
        """Write what has changed, before a run of `program`. All if it is `new`: its buffers may be, too."""
        if new:
            self._unwritten = dict(self._values)
            if not self._loaded:
                params.upload(session, program, params.states_in(program), self._states)
            self._loaded.append(program)
        if self._unwritten:
            params.upload(session, program, program.params, self._unwritten)
            self._unwritten = {}

    def release(self, session: Session, program: Program) -> None:
        """Before `program` is unloaded: the device forgets the states with the last of them."""
        if self._loaded == [program]:
            self._states = params.download(session, program, params.states_in(program))
        self._loaded = [p for p in self._loaded if p is not program]

    def set_states(self, record: Mapping[str, Any], strict: bool) -> None:
        """As `TrainedParameters.set_states`."""
        arrays = params.check_record(self.states_fields, record, strict, "set_states", "state")

        def apply(session: Session) -> None:
            self._states |= arrays
            for program in self._loaded[:1]:
                params.upload(session, program, params.states_in(program), arrays)

        self.worker.call(apply)

    def states(self) -> dict[str, Array]:
        """As `TrainedParameters.states`."""

        def read(session: Session) -> dict[str, Array]:
            for program in self._loaded[:1]:
                return params.download(session, program, params.states_in(program))
            return {name: x.copy() for name, x in self._states.items()}

        return {name: handed_out(x) for name, x in self.worker.call(read).items()}

    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """As `CompiledTraining.upload_params`."""
        arrays = params.check_record(self.fields, record, strict, "upload_params")
        self.unset = False

        def apply(_: Session) -> None:
            self._values |= arrays
            self._unwritten |= arrays

        self.worker.call(apply)

    def download_params(self) -> dict[str, Array]:
        """As `CompiledTraining.download_params`."""
        return self.worker.call(lambda _: {name: handed_out(x.copy()) for name, x in self._values.items()})


ParameterStore = TrainedParameters | OwnParameters


class HasStates(Helped):
    """What trainings and forwards have in common: the parameters and states of their model."""

    store: Any  # a ParameterStore; each class says which

    def params(self) -> dict[str, Array]:
        """The parameters by name, after the steps and runs queued so far; `download_params` by a shorter name.

        >>> sorted(train.params())
        ['W', 'b']
        """
        return self.store.download_params()

    def set_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite parameters by name; `upload_params` by a shorter name.

        >>> train.set_params({"W": np.ones((2, 1)), "b": np.zeros(1)})
        """
        self.store.upload_params(record, strict)

    def states(self) -> dict[str, Array]:
        """The states of the model by name, after the steps and runs queued so far; see `tg.Module.state`.

        >>> train.states()
        {}
        """
        return self.store.states()

    def set_states(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite states by name, after the steps and runs queued so far. Names missing in `record` keep theirs.

        strict:  every state must be there.
        Raises:  InputError naming every unknown name, wrong shape, wrong dtype and NaN, before anything is written.

        >>> train.set_states({})
        """
        self.store.set_states(record, strict)
