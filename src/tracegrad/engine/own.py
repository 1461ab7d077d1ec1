"""Who has the parameters of a forward: a training, or a host of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tracegrad.arrays import handed_out
from tracegrad.engine import params
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.worker import Worker
from tracegrad.lr import as_schedule
from tracegrad.program import Program
from tracegrad.runtime.base import Session

Array = Any


class Host(Protocol):
    """Whoever has the parameters: a training, or `OwnParameters`."""

    worker: Worker
    model: Any

    @property
    def version(self) -> object:
        """Changes when the model does: programs of another version are of no use."""
        ...

    @property
    def layout(self) -> Program | None:
        """The program whose parameters a forward shares, if any."""
        ...

    @property
    def knobs(self) -> Knobs:
        """Hot values, for forwards that read them."""
        ...

    @property
    def seed(self) -> int:
        """Of the random streams."""
        ...

    @property
    def param_names(self) -> list[str]:
        """In declaration order."""
        ...

    def loaded(self, session: Session, program: Program) -> None:
        """A program of this model was loaded: see that its parameters are there. On the worker's thread."""
        ...

    def unloaded(self) -> None:
        """A program of this model was unloaded. On the worker's thread."""
        ...

    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite parameters by name."""
        ...

    def download_params(self) -> dict[str, Array]:
        """Parameters by name."""
        ...


class OwnParameters:
    """The host of a `tg.compile_forward`: drawn from the seed, kept here, written once a program is loaded.

    A forward changes no parameter, so this copy is always the truth, also before the first program exists.
    """

    def __init__(self, model: Any, seed: int, session_factory: Callable[[], Callable[[], Session]]):
        self.model, self.seed = model, seed
        self.version: object = self
        self.layout: Program | None = None
        self.fields = params.declared(model)
        self._values = params.drawn(self.fields, seed)
        self._program: Program | None = None  # any that was loaded: all lay the parameters out alike
        self._programs = 0  # loaded now: without any there is no buffer to write to
        self.worker = Worker(session_factory()).opened()

    @property
    def knobs(self) -> Knobs:
        """No hyperparameter was set."""
        return Knobs(Rate(as_schedule(0.0)), {})

    @property
    def param_names(self) -> list[str]:
        """In declaration order."""
        return [f.name for f in self.fields]

    def loaded(self, session: Session, program: Program) -> None:
        """Write all parameters: the buffers may be new."""
        self._program = program
        self._programs += 1
        params.upload(session, program, program.params, self._values)

    def unloaded(self) -> None:
        """One program fewer."""
        self._programs -= 1

    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """As `CompiledTraining.upload_params`."""
        arrays = params.check_record(self.fields, record, strict, "upload_params")

        def apply(session: Session) -> None:
            self._values |= arrays
            if self._program is not None and self._programs:
                params.upload(session, self._program, self._program.params, arrays)

        self.worker.call(apply)

    def download_params(self) -> dict[str, Array]:
        """As `CompiledTraining.download_params`."""
        return self.worker.call(lambda _: {name: handed_out(x.copy()) for name, x in self._values.items()})
