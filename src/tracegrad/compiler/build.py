"""Build Programs from a user's functions: trace, differentiate, add the optimizer, and compile the graph."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tracegrad.compiler.draws import noticed
from tracegrad.compiler.inputtypes import FreeSizes, InputSpec, Sizes, input_ranges, input_types
from tracegrad.compiler.layout import Persistent, arena_of, persistent_of
from tracegrad.compiler.pipeline import make_program
from tracegrad.compiler.step_graph import training_graph
from tracegrad.compiler.tracing import checked_loss, checked_outputs, sites_of, states_of, traced
from tracegrad.dtypes import TensorType
from tracegrad.errors import InputError, TraceError, TracegradError, is_function, located
from tracegrad.hypers import NORMAL, PREFIX, UNIT
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.ir.states import STATE
from tracegrad.nn.module import named_parameters
from tracegrad.optim import freezing
from tracegrad.optim.arena import Part
from tracegrad.optim.guard import PARAMS, bounded_arrays
from tracegrad.optim.optimizer import Optimizer
from tracegrad.optim.transform import Transform
from tracegrad.patterns import Selection
from tracegrad.prims.leaves import require_own
from tracegrad.program import Program
from tracegrad.refusals import nearest, shown
from tracegrad.sites import SiteInfo

P = ParamSpec("P")
R = TypeVar("R")
PRECISIONS = ("f32", "f16", "bf16", "tf32")


def uncollected(fn: Callable[P, R]) -> Callable[P, R]:
    """Return `fn` with Python's garbage collector off, which would scan the growing graph again and again."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        enabled = gc.isenabled()
        try:
            gc.disable()
            return fn(*args, **kwargs)
        finally:
            if enabled:
                gc.enable()

    return call


class Built(NamedTuple):
    """A compiled graph: the program, the graph it came from, and the structure of a forward's result."""

    program: Program
    graph: Graph
    structure: Any = None  # of a forward: None for one tensor, a tuple of names, or a dict of names
    warnings: tuple[str, ...] = ()
    sites: tuple[SiteInfo, ...] = ()
    # for a program at one size: inputs whose values depend on the size, as dtype and value
    numbers: Mapping[str, Any] = {}
    serves: str = ""  # for a program at one size: the sizes that it serves, in words


class TracedProgram(NamedTuple):
    """A step or a forward before it is compiled: a graph, without the user's functions."""

    graph: Graph
    persistent: Persistent
    inputs: Mapping[str, TensorType]
    meta: Mapping[str, Any]
    sites: tuple[SiteInfo, ...]
    structure: Any = None
    warnings: tuple[str, ...] = ()

    @uncollected
    def compiled(self) -> Built:
        """Return the compiled program."""
        ranges = input_ranges(self.graph)
        program = make_program(self.graph, self.persistent, ranges, self.meta, self.inputs)
        return Built(program, self.graph, self.structure, self.warnings, self.sites)

    def arrays(self) -> Built:
        """Return a program that computes nothing, with the arrays and hyperparameters shared by steps of all sizes."""
        hot = {PREFIX + x.attrs["name"]: x.type for x in self.graph.leaves("hyper")}
        program = make_program(Graph({}), self.persistent, {}, self.meta, hot)
        return Built(program, self.graph, warnings=self.warnings, sites=self.sites)


class StepSource(NamedTuple):
    """The arguments that a training step is compiled from."""

    model: Any
    loss: Callable[..., Any]
    inputs: Mapping[str, InputSpec]
    optimizer: Optimizer
    precision: str = "f32"
    frozen: Selection | None = None  # parameters whose gradient is not computed
    freezable: bool = False  # the device has a mask of parameters that steps do not change
    grads: bool = True  # gradients stay in an array of their own after the step
    part: Part | None = None  # for several losses: this loss's part of the parameters
    chosen: tuple[Any, Any] = (None, None)  # for several losses: the arguments `frozen` and `params`

    def traced(self) -> TracedProgram:
        """Run the user's functions and differentiate, so that errors in the user's code are raised here.

        If calls choose sizes, try sizes until the user's functions accept them.
        """
        if not self.free.axes:
            return self.at_once()
        errors: list[Exception] = []
        for sizes in self.free.tried():
            try:
                return at_sizes(self, sizes).at_once()
            except Exception as e:
                errors.append(e)
        raise next((e for e in errors if isinstance(e, TracegradError)), errors[0])

    def main(self) -> Built:
        """Return the step; if calls choose sizes, the program that holds the arrays of all steps."""
        step = self.traced()
        return step.arrays() if self.free.axes else step.compiled()

    @property
    def free(self) -> FreeSizes:
        """The sizes that calls choose."""
        return FreeSizes.of(input_types(self.inputs))

    @uncollected
    @ambient.restored
    def at_once(self) -> TracedProgram:
        """Do what `traced` does, for inputs whose sizes are all numbers.

        Raises InputError for an unknown precision, and if `optimizer` is not an `Optimizer`.
        """
        check_precision(self.precision)
        optimizer = checked_optimizer(self.optimizer)
        if self.part is not None and self.part.shared:  # steps of other losses change the arrays that have bounds
            optimizer = replace(optimizer, transform=replace(optimizer.transform, bounds=None))
        with traced(self.model, self.loss, self.inputs, "loss", frozen=self.frozen) as t:
            y, aux = checked_loss(t.result, self.loss)
            part = self.part or Part.alone(arena_of(t.parameters, optimizer))
            own = {slot.name for slot in part.trained}
            optimizer.groups.check([n for n, p in t.parameters.items() if n in own or not p.trainable], "groups")
            masked = self.freezable or part.holes
            freeze = freezing.masks(part.own, optimizer.transform, part.at) if masked else {}
            persistent = persistent_of(t.parameters, part, optimizer, self.precision, t.states, freeze, self.grads)
            graph, doubts = training_graph(t, y, aux, part, optimizer, self.precision, freeze, self.grads)
        meta = {
            "kind": "training",
            "optimizer": optimizer.spec(),
            "hyper": {**t.trace.hypers, **optimizer.hyper, UNIT: NORMAL},
            "off": list(optimizer.off),
            "bounds": [n if n == PARAMS else part.at + n for n in bounded_arrays(optimizer.transform)],
            "ranges": {name: limits._asdict() for name, limits in optimizer.ranges.items()},
        }
        if freeze:
            meta["freeze"] = {mask.name: [list(run) for run in mask.parts] for mask in freeze.values()}
        if part.name:
            trains = [slot.name for slot in part.trained]
            meta["part"] = {"name": part.name, "first": part.first, "size": part.own.size, "trains": trains}
        return TracedProgram(graph, persistent, t.inputs, meta, sites_of(t), warnings=doubts)


class ForwardSource(NamedTuple):
    """The arguments that a forward is compiled from."""

    model: Any
    forward: Callable[..., Any]
    inputs: Mapping[str, InputSpec]
    precision: str = "f32"
    writes: bool = False  # the forward can write states
    like: Program | None = None  # the training program whose parameters and states the forward shares
    patching: bool = False  # patch sites take a mask and a value, as further inputs; else there are no patch sites

    @property
    def free(self) -> FreeSizes:
        """The sizes that calls choose."""
        return FreeSizes.of(input_types(self.inputs))

    @uncollected
    @ambient.restored
    def traced(self) -> TracedProgram:
        """Run the forward once on leaves. Raise TraceError with the line of a write that `writes` does not allow."""
        like, what = self.like, "forward"
        fixed = [f.name for f in like.params if not f.spec.get("trainable", True)] if like else []
        with traced(self.model, self.forward, self.inputs, what, self.patching, fixed or None) as t:
            outputs, structure = checked_outputs(t.result, self.forward)
            own = Part.alone(arena_of(t.parameters))
            persistent = Persistent.of(like, ("param",)) if like else persistent_of(t.parameters, own, states=t.states)
            if t.trace.writes and not self.writes:
                raise unannounced(self.forward, t.trace.writes)
            graph = Graph(outputs, dict(t.trace.captures), dict(t.trace.writes), self.precision)
            require_own(toposort(graph.roots), t.trace)
        sites, meta = sites_of(t), {"kind": what, "hyper": dict(t.trace.hypers)}
        if "patches" in self.inputs and any(s.kind == "patch" for s in sites):
            raise InputError.here("an input of a forward with patch sites cannot be named 'patches': rename it")
        return TracedProgram(graph, persistent, t.inputs, meta, sites, structure)


ProgramSource = StepSource | ForwardSource
AnySource = TypeVar("AnySource", bound=ProgramSource)


def arrays_of(model: Any) -> Program:
    """Return a program that computes nothing, with the arrays of a model's parameters and states."""
    parameters, states = named_parameters(model), states_of(model)
    persistent = persistent_of(parameters, Part.alone(arena_of(parameters)), states=states)
    return make_program(Graph({}), persistent, {}, {"kind": "forward"})


def traced_first(source: ProgramSource) -> TracedProgram:
    """Return `source.traced()`. Warn if the user's function draws random numbers of Python, NumPy or PyTorch."""
    fn = source.forward if isinstance(source, ForwardSource) else source.loss
    return noticed(source.traced, fn, source.model)


def at_sizes(source: AnySource, sizes: Sizes) -> AnySource:
    """Return the same source with these sizes in place of the open ones."""
    return source._replace(inputs=source.free.sized(sizes))


@ambient.restored
def trace_loss(model: Any, loss: Callable[..., Any], inputs: Mapping[str, InputSpec]) -> Graph:
    """Return the graph of a loss, without gradients."""
    with traced(model, loss, inputs, "loss") as t:
        y, aux = checked_loss(t.result, loss)
        named = {f"aux.{n}": x for n, x in aux.items()}
        return Graph({"loss": y, **named}, dict(t.trace.captures), dict(t.trace.writes))


def unannounced(forward: Callable[..., Any], writes: Mapping[str, Tensor]) -> TraceError:
    """Return the error for a forward that writes states without `writes=True`."""
    name, value = next(iter(writes.items()))
    who = getattr(forward, "__name__", "the forward")
    return TraceError(
        located(
            f"{who} writes the state {name.removeprefix(STATE)!r}, {value.type}; say so where it is attached or "
            "compiled, with writes=True, or do not write it here, as a layer with training=False",
            value.site,
        )
    )


def checked_optimizer(optimizer: object) -> Optimizer:
    """Return the optimizer. Raise InputError for anything else, such as a function that makes one."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    hint = "; call it" if is_function(optimizer) else ""
    hint = "; optim.custom(transform) makes an optimizer of it" if isinstance(optimizer, Transform) else hint
    raise InputError.here(
        f"optimizer must come from tracegrad.optim, such as optim.adam(lr=1e-3); got {shown(optimizer)}{hint}"
    )


def check_precision(precision: str) -> None:
    """Raise InputError for an unknown precision."""
    if precision not in PRECISIONS:
        near = nearest(precision, PRECISIONS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise InputError.here(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}{hint}")
