"""What a training consists of, to be read: model, graph, program, names and types of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracegrad.dtypes import InputType
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.stores import HasStates, TrainedParameters
from tracegrad.engine.worker import Worker
from tracegrad.graph import Graph
from tracegrad.kernel_source import KernelSource
from tracegrad.lr import starting_at
from tracegrad.program import Program
from tracegrad.runtime.base import Session
from tracegrad.sites import SiteInfo


class Parts(HasStates):
    """The parts of a training as properties."""

    store: TrainedParameters
    worker: Worker

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.store.model

    @property
    def graph(self) -> Graph:
        """The graph of the step: forward, gradients and update. With several losses, the first; see `explain`."""
        return self.store.stepper.latest.built.graph

    @property
    def program(self) -> Program:
        """The compiled step as plain data, for the sizes used last. With several losses, the first."""
        return self.store.stepper.latest.program

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """The program's kernels."""
        return self.program.kernels

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """Sites of `tg.capture` and `tg.patch` in the loss, in order; each has `kind name type site`.

        Results of steps have the captured values. Only runs of a forward can patch: in a step, `tg.patch` does nothing.
        """
        return self.store.stepper.latest.built.sites

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, as declared."""
        return list(dict.fromkeys(n for s in self.store.stepper.together for n in s.source.inputs))

    @property
    def input_types(self) -> Mapping[str, InputType]:
        """Types of the inputs, by name, as declared."""
        return {n: t for s in self.store.stepper.together for n, t in s.source.free.types.items()}

    @property
    def loss_function(self) -> Callable[..., Any]:
        """The loss, as given to `tg.compile`."""
        return self.store.stepper.source.loss

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""

        def read(session: Session, stepper: Stepper) -> float:
            step, rate = stepper.counter + 1, stepper.knobs.rate
            return starting_at(rate.schedule, rate.start or step).at(step)

        return self.store.call(read)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the loss: ()."""
        return ()

    @property
    def seed(self) -> int:
        """The seed of the initialisation and of all randomness."""
        return self.store.seed
