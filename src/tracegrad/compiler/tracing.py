"""A user's function, run once on leaves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from tracegrad.compiler.inputtypes import InputSpec, concrete_type, declared
from tracegrad.compiler.layout import States
from tracegrad.compiler.signatures import check_function, check_signature
from tracegrad.dtypes import TensorType
from tracegrad.errors import TraceError, call_site, located
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor
from tracegrad.ir.states import STATE, StateTensor
from tracegrad.nn.module import at_path, bound, named_arrays, named_states, no_parameters, state_specs
from tracegrad.nn.parameters import Parameter, State
from tracegrad.patterns import Selection, chosen
from tracegrad.prims.leaves import leaf
from tracegrad.sites import SiteInfo


class Traced(NamedTuple):
    """One run of a user's function on leaves."""

    trace: ambient.Trace
    parameters: dict[str, Parameter]
    states: States
    leaves: dict[str, Tensor]
    inputs: dict[str, TensorType]
    result: Any


def states_of(model: Any) -> States:
    """Return the types of a model's states, and how they begin."""
    states = named_states(model)
    return {STATE + n: (s.type, spec) for (n, s), spec in zip(states.items(), state_specs(model), strict=True)}


def sites_of(t: Traced) -> tuple[SiteInfo, ...]:
    """Return the sites in the order of the user's function."""
    return tuple(t.trace.sites.values())


def _check_kept(m: Any, states: Iterable[str]) -> None:
    """Raise TraceError if the function replaced a state instead of calling `assign`: no step would store it."""
    kept = {x.name for x in named_states(m).values() if isinstance(x, StateTensor)}
    for name in states:
        if name not in kept:
            said = f"the state {name!r} was replaced, which is lost after the trace; write m.{name}.assign(value)"
            raise TraceError(
                located(f"{said} instead of m.{name} = value", getattr(at_path(m, name), "site", call_site()))
            )


@contextmanager
def traced(
    model: Any,
    fn: Callable[..., Any],
    inputs: Mapping[str, InputSpec],
    what: str,
    patching: bool = False,
    frozen: Selection | None = None,
) -> Generator[Traced]:
    """Run `fn` once on leaves; inside the block its trace is still open. frozen: parameters without a gradient.

    Raises TraceError inside another trace, and CompileError if the model has no parameters.
    """
    if ambient.active() is not None:
        raise TraceError.here(f"a {what} cannot be compiled inside another trace; compile it outside, before the trace")
    arrays = named_arrays(model)
    states = {n: p for n, p in arrays.items() if isinstance(p, State)}
    parameters = {n: p for n, p in arrays.items() if n not in states}
    if not arrays:
        raise no_parameters(model)
    if frozen is not None:
        named = chosen(parameters, frozen, "frozen")
        parameters |= {n: replace(parameters[n], trainable=False) for n in named}
    inputs = declared(inputs)
    check_function(fn, what)
    check_signature(fn, inputs, what)
    types = {name: concrete_type(name, spec) for name, spec in inputs.items()}
    with ambient.tracing(patching) as running:
        leaves = {n: leaf("param" if p.trainable else "frozen", n, p.type) for n, p in parameters.items()}
        held = {n: leaf("state", STATE + n, s.type) for n, s in states.items()}
        values = {n: leaf("input", n, type_) for n, type_ in types.items()}
        m = bound(model, {**leaves, **{n: StateTensor(n, x) for n, x in held.items()}})
        leaves |= {STATE + n: x for n, x in held.items()}
        result = fn(m, **values)
        _check_kept(m, states)
        yield Traced(running, parameters, states_of(model), leaves, types, result)
