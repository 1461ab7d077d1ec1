"""Properties of a training to read: model, graph, program, and names and types of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracegrad.dtypes import InputType
from tracegrad.engine.faces import HasStates
from tracegrad.engine.stores import TrainedParameters
from tracegrad.engine.worker import Worker
from tracegrad.ir.graph import Graph
from tracegrad.kernel_source import KernelSource
from tracegrad.program import Program
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
        """The graph of the step: forward, gradients and update. With several losses, the graph of the first loss."""
        return self.store.stepper.latest.built.graph

    @property
    def program(self) -> Program:
        """The compiled step as plain data, for the sizes used last. With several losses, the step of the first loss."""
        return self.store.stepper.latest.program

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """The kernels of the compiled step. Each has its text in WGSL as `wgsl`."""
        return self.program.kernels

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """The uses of `tg.capture` and `tg.patch` in the loss, in order; see `CompiledForward.sites`.

        Results of steps have the captured values. Only runs of a forward can patch: in a step, `tg.patch` does nothing.
        """
        return self.store.stepper.latest.built.sites

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of `inputs=`."""
        return list(dict.fromkeys(n for s in self.store.stepper.together for n in s.source.inputs))

    @property
    def input_types(self) -> Mapping[str, InputType]:
        """The declared type of each input, by name."""
        return {n: t for s in self.store.stepper.together for n, t in s.source.free.types.items()}

    @property
    def loss_function(self) -> Callable[..., Any]:
        """The function of the loss that was passed to `tg.compile`."""
        return self.store.stepper.source.loss

    @property
    def lr(self) -> float:
        """The learning rate that the schedule gives the next step."""
        return self.store.call(lambda session, stepper: stepper.knobs.rate.now(stepper.counter + 1))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the loss, always ()."""
        return ()

    @property
    def seed(self) -> int:
        """The seed, which determines the first parameters and all numbers of random ops."""
        return self.store.seed
