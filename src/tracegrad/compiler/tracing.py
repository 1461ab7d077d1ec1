"""A user's function, run once on leaves. Errors of its arguments and results name the function and its line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tracegrad.compiler.inputtypes import InputSpec, concrete_type, declared
from tracegrad.compiler.layout import States
from tracegrad.dtypes import TensorType, f32
from tracegrad.errors import CompileError, InputError, Site, TraceError, call_site, is_function, located
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor
from tracegrad.ir.states import STATE, StateTensor
from tracegrad.nn.module import at_path, bound, like, named_arrays, named_states, no_parameters, state_specs
from tracegrad.nn.parameters import Parameter, State
from tracegrad.patterns import Selection, chosen
from tracegrad.prims.leaves import leaf
from tracegrad.refusals import article, nearest, shown
from tracegrad.sites import SiteInfo
from tracegrad.transforms.trees import is_pair


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

    Raises TraceError inside another trace, and CompileError for a loss of a model without parameters and states.
    """
    if ambient.active() is not None:
        raise TraceError.here(f"a {what} cannot be compiled inside another trace; compile it outside, before the trace")
    arrays = named_arrays(model)
    states = {n: p for n, p in arrays.items() if isinstance(p, State)}
    parameters = {n: p for n, p in arrays.items() if n not in states}
    if not arrays and what == "loss":
        raise no_parameters(model)
    if frozen:
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


def check_function(fn: object, what: str) -> None:
    """Raise InputError unless `fn` can be a loss or forward."""
    if not is_function(fn):
        hint = f"; it is called while tracing, so give the function itself, as in {what}={what}"
        raise InputError.here(f"{what} must be a function of the model and the inputs, got {shown(fn)}{hint}")
    for kind, test in (("async", inspect.iscoroutinefunction), ("a generator", inspect.isgeneratorfunction)):
        if test(fn):
            raise InputError.here(
                f"{what} {fn.__name__} is {kind}: it must be a plain function that returns, without await and yield"
            )


def check_signature(
    fn: Callable[..., Any], inputs: Mapping[str, Any], what: str, declared: Iterable[str] | None = None
) -> None:
    """Raise InputError if the function cannot be called with the model and these names.

    declared: all declared names, for the error."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    parameters = list(signature.parameters.values())
    named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes = [p.name for p in named]
    missing = [p.name for p in named if p.default is p.empty and p.name not in inputs]
    meant = {n: nearest(n, missing) for n in inputs if n not in takes and not anything}
    problems = [
        f"{n!r} is declared but {what} does not take it{f' (did you mean {near!r}?)' if near else ''}"
        for n, near in meant.items()
    ]
    problems += [f"{what} takes {name!r}, which is not declared" for name in missing]
    if not parameters:
        problems = [f"{what} must take the model as its first argument"]
    elif parameters[0].name in inputs:
        others = ["m", *[n for n in inputs if n != "m"]]
        problems = [f"its first argument is the model, as in {what}({', '.join(others)})"]
    if problems:
        call = f"{getattr(fn, '__name__', type(fn).__name__)}({', '.join([p.name for p in parameters])})"
        raise InputError.here(
            f"inputs do not match {what} {call}: {'; '.join(problems)}. Use the same names in both: "
            f"inputs declares {', '.join(declared or inputs) or 'nothing'}"
        )


def _defined(fn: Callable[..., Any]) -> Site | None:
    """Return where a loss or forward is defined, or else the line of the call, for errors about its result."""
    code = getattr(fn, "__code__", None)
    return Site(code.co_filename, code.co_firstlineno) if code is not None else call_site()


def checked_loss(result: Any, loss: Callable[..., Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the rank-0 loss and the aux tensors. Raises CompileError if there is no scalar f32 loss."""
    name = getattr(loss, "__name__", "loss")

    def wrong(text: str, site: Site | None = None) -> CompileError:
        return CompileError(located(f"{name}{text}", site or _defined(loss)))

    aux: Any = {}
    result = _read(result)
    if is_pair(result):
        result, aux = result
        if isinstance(result, dict) and isinstance(aux, Tensor):
            raise wrong(f": the loss, {aux.type}, must come first, then the dict of aux; swap them")
    items = cast("dict[str, Any]", aux).items() if isinstance(aux, dict) else ()
    odd = {n: x for n, x in items if not isinstance(x, Tensor)}
    if not isinstance(aux, dict) or odd:
        got = "; ".join([f"{n!r} is {article(_kind(x))}" for n, x in odd.items()]) or f"got {shown(aux)}"
        raise wrong(f': aux must be a dict of tensors, as in (loss, {{"name": tensor}}); {got}')
    if not isinstance(result, Tensor):
        hint = 'return a scalar such as tg.mean(...), or (scalar, {"name": tensor})'
        raise wrong(f" must return a tensor, got {_kind(cast('object', result))}; {hint}")
    if result.shape != ():
        raise wrong(f" must return a scalar, f32[], got {result.type}; reduce it with tg.mean or tg.sum", result.site)
    if result.dtype != f32:
        hint = "tg.mean gives f32; tg.cast(x, tg.f32) has no gradient"
        raise wrong(f" must return a scalar, f32[], got {result.type}; {hint}", result.site)
    return result, cast("dict[str, Tensor]", aux)


def checked_outputs(result: Any, forward: Callable[..., Any]) -> tuple[dict[str, Tensor], Any]:
    """Return the outputs by name, and the structure they came in.

    Raises CompileError unless the result is a tensor, or a tuple, list or dict of tensors.
    """
    result = _read(result)
    if isinstance(result, Tensor):
        return {"output": result}, None
    pairs: Any = enumerate(cast("tuple[Any, ...]", result)) if isinstance(result, (tuple, list)) else result
    parts = dict[Any, Any](pairs) if isinstance(result, (tuple, list, dict)) else None
    if not parts or not all(isinstance(x, Tensor) for x in parts.values()):
        name, got = getattr(forward, "__name__", "forward"), _odd(cast("object", result), parts)
        said = f"{name} must return a tensor, or a tuple or dict of tensors (not nested: use tg.tree_leaves), got {got}"
        raise CompileError(located(said, _defined(forward)))
    outputs = {f"output.{k}": x for k, x in parts.items()}
    if isinstance(result, dict):
        return outputs, {k: f"output.{k}" for k in parts}
    return outputs, like(result, outputs) if isinstance(result, tuple) else tuple(outputs)


def _read(result: Any) -> Any:
    """Return `result` with states replaced by their current values, also inside tuples, lists and dicts."""
    if isinstance(result, StateTensor):
        return result.now
    if isinstance(result, dict):
        return {key: _read(x) for key, x in cast("dict[Any, Any]", result).items()}
    return like(result, map(_read, cast("list[Any]", result))) if isinstance(result, (tuple, list)) else result


def _odd(result: object, parts: Mapping[Any, Any] | None) -> str:
    """Describe what is wrong with the result of a forward: its kind, and the first part that is not a tensor."""
    odd = next(
        (f", where {k!r} is {article(_kind(x))}" for k, x in (parts or {}).items() if not isinstance(x, Tensor)), ""
    )
    return f"{'an empty ' if parts == {} else ''}{_kind(result)}{odd}"


def _kind(value: object) -> str:
    if callable(value) and hasattr(value, "__code__"):
        return "function (call it)"
    return type(value).__name__ if value is not None else "None (is the return missing?)"
