"""What a compiled training tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracegrad.engine.inputs import blank, check_inputs, merge
from tracegrad.engine.knobs import Knobs
from tracegrad.engine.steps import Stepper
from tracegrad.engine.worker import Worker
from tracegrad.errors import AbortedError
from tracegrad.habits import TRAININGS
from tracegrad.introspection.explain import Explanation, explained
from tracegrad.introspection.memory import Memory
from tracegrad.introspection.profile import Profile, checked_steps, make_profile
from tracegrad.introspection.why import Why, why
from tracegrad.ir import Graph, Tensor
from tracegrad.program import KernelSource, Program, field_named
from tracegrad.refusals import Helped
from tracegrad.runtime.base import DeviceInfo, Session
from tracegrad.sites import SiteInfo


class Inspected(Helped):
    """The part of `CompiledTraining` that only looks. Nothing but `profile` waits for the device."""

    remedies = TRAININGS
    called = "train.step(x=..., y=...) trains, train.attach(forward=..., inputs=...) makes a forward"
    worker: Worker
    _stepper: Stepper
    _knobs: Knobs
    _declared: Mapping[str, Any]

    def explain(self) -> Explanation:
        """What a step consists of: its dispatches with bytes, FLOPs and your lines, memory, kernels, and the graph.

        Prints as text, shows as HTML in notebooks, and `.save(path)` writes an HTML file. No device is touched.
        """
        stepper = self._stepper
        return explained(stepper.graph, stepper.program, self.device)

    def why(self, name_or_node: str | Tensor) -> Why:
        """Why a value of the step is stored or inlined, what merged or split the kernels around it, where it lies.

        name_or_node: a result such as "loss", a capture, a parameter, an input, an optimizer state, "grads.NAME" for a
                      parameter's gradient, "%12" as `print(train.graph)` numbers nodes, or a node of `train.graph`.
        Returns:      text to print; `.values` has an entry for each value that the node was compiled to: its rule, its
                      dispatches, the values of the same kernel, what refused to merge it with each neighbour, its place
                      and lifetime, and your line.
        Raises:       MissingNameError for an unknown name, with the nearest one.
        """
        return why(self._stepper.graph, self._stepper.program, name_or_node)

    def profile(self, steps: int = 10, mapping: Mapping[str, Any] | None = None, **inputs: Any) -> Profile:
        """Time every dispatch of a step, after the steps queued so far; see `Profile`.

        steps:    how often; a dispatch's time is the median.
        inputs:   a batch as for `step`, by keyword, in one dict, or both; zeros if none is given.
        Returns:  a table with the device's limits and your lines; `.save(path)` writes a Chrome trace.
        Raises:   InputError for inputs that do not fit; DeviceError in a browser's Python.

        Changes nothing: parameters, optimizer state, step counter, random stream and kept gradients stay.
        """
        stepper, knobs, steps = self._stepper, self._knobs, checked_steps(steps)
        given = merge(mapping, inputs, "profile")
        arrays = check_inputs(stepper.inputs, given, "profile") if given else blank(stepper.inputs)

        def measure(session: Session) -> Profile:
            timings = stepper.timings(session, arrays, knobs, steps)
            return make_profile(stepper.graph, stepper.program, timings, session.info, self.worker.limits())

        return self._call(measure, stepper)

    @property
    def graph(self) -> Graph:
        """The step's graph: forward, gradients and update."""
        return self._stepper.graph

    @property
    def program(self) -> Program:
        """The compiled step, as plain data."""
        return self._stepper.program

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """The program's kernels."""
        return self._stepper.program.kernels

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """Sites of `tg.capture` and `tg.patch` in the loss, in order; each has `kind name type site`.

        Steps give back what is captured. Only runs of a forward can patch: in a step, `tg.patch` does nothing.
        """
        return self._stepper.sites

    @property
    def param_names(self) -> list[str]:
        """Names of the parameters, in declaration order."""
        return [f.name for f in self._stepper.program.params]

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, as declared."""
        return list(self._declared)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the loss: ()."""
        return field_named(self._stepper.program.outputs, "loss").shape

    @property
    def seed(self) -> int:
        """What pins initialisation and all randomness."""
        return self._stepper.seed

    @property
    def device(self) -> DeviceInfo:
        """The device in use."""
        return self.worker.info

    @property
    def memory(self) -> Memory:
        """Bytes on the device by role, and their "total"; prints as a table. Attached forwards add their own."""
        return Memory(self._stepper.program)

    def _call(self, fn: Callable[[Session], Any], stepper: Stepper) -> Any:
        """Run `fn` on the worker's thread, unless `replace_model` has replaced the model of `stepper` by then."""

        def call(session: Session) -> Any:
            if stepper.replaced:
                raise AbortedError(stepper.replaced)
            return fn(session)

        self.worker.check_open("CompiledTraining")
        return self.worker.call(call)
