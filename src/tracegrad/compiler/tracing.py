"""A user's function, run once on leaves. Errors about its arguments and results name the function and its line.

Random numbers of Python, NumPy and PyTorch that the function draws become constants. The generators' states are
compared before and after a trace. If one changed, a second trace finds the line.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from types import FrameType, ModuleType
from typing import Any, NamedTuple, TypeVar, cast

from tracegrad import ambient, errors
from tracegrad.compiler.inputtypes import InputSpec, concrete_type, declared
from tracegrad.compiler.layout import States
from tracegrad.dtypes import TensorType, f32
from tracegrad.errors import CompileError, InputError, Site, TraceError, call_site, located
from tracegrad.ir import Tensor
from tracegrad.nn.module import bound, children, like, named_arrays, no_parameters, state_specs
from tracegrad.nn.parameters import Parameter, State
from tracegrad.patterns import Selection, chosen
from tracegrad.prims.leaves import leaf
from tracegrad.refusals import article, shown
from tracegrad.sites import SiteInfo
from tracegrad.states import STATE, StateTensor

T = TypeVar("T")
REMEDY = (
    "A trace runs your function once, so these numbers are the same in every step. For new ones in each step, write "
    "tg.randn(shape), tg.uniform(shape), tg.bernoulli(shape, p) or tg.randint, or pass them as an input. Draw numbers "
    "that never change before you compile"
)


class _Generator:
    """One generator: its name, and functions that return and restore its state."""

    def __init__(self, name: str, state: Callable[[], Any], restore: Callable[[Any], object]) -> None:
        self.name, self.state, self.restore = name, state, restore

    def mark(self) -> Any:
        """Return the state, with bytes in place of arrays, for comparisons."""
        return _comparable(self.state())


def _comparable(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _comparable(v) for k, v in cast("dict[Any, Any]", x).items()}
    if isinstance(x, tuple):
        return [_comparable(v) for v in cast("tuple[Any, ...]", x)]
    x = x.numpy() if hasattr(x, "numpy") else x
    return x.tobytes() if hasattr(x, "tobytes") else x


_Line = tuple[str, int, dict[Any, Any]]  # file, line, and the registry of warnings of the user's module


def noticed(traced: Callable[[], T], fn: Callable[..., Any], model: Any) -> T:
    """Return `traced()`, a trace of `fn`. Warn at the user's line where it draws numbers that are not of tracegrad."""
    before = [(g, g.state()) for g in _generators(fn, model)]
    known = {g.name for g, _ in before}
    found = traced()
    for g, state in before:
        if g.mark() != _comparable(state):
            _warn(g, state, traced)
    for g in _of_libraries():
        if g.name not in known:  # the function was the first to use the library
            _warn(g, g.state(), traced)
    return found


def _warn(g: _Generator, state: Any, traced: Callable[[], object]) -> None:
    """Trace once more from `state`, and warn at the line that changes it. The generator stays as the first left it."""
    after = g.state()
    g.restore(state)
    lines, tracer = _Lines(g), sys.gettrace()
    sys.settrace(lines)
    try:
        traced()
    finally:
        sys.settrace(tracer)
        g.restore(after)
    if lines.found is not None:
        file, line, registry = lines.found
        text = f"{g.name} drew numbers while this function was traced. {REMEDY}\n{errors.Site(file, line).describe()}"
        warnings.warn_explicit(text, UserWarning, file, line, registry=registry)


class _Lines:
    """A function for sys.settrace that finds the first line of the user's code that changes a generator."""

    def __init__(self, g: _Generator) -> None:
        self.g, self.mark = g, g.mark()
        self.at: _Line | None = None
        self.found: _Line | None = None

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.found is not None or not _is_users(frame):
            return None
        if self.g.mark() != self.mark:
            self.found = self.at
        here = frame.f_back if event == "return" else frame
        while here is not None and not _is_users(here):
            here = here.f_back
        if here is not None:
            registry = here.f_globals.setdefault("__warningregistry__", {})
            self.at = here.f_code.co_filename, here.f_lineno, registry
        return self


def _is_users(frame: FrameType) -> bool:
    plain = sys.modules.get("random")  # written in Python
    file = frame.f_code.co_filename
    others = file.startswith(errors.NOT_THE_USER) or errors.is_generated(frame)
    return not (others or (plain is not None and file == plain.__file__))


def _of_libraries() -> Iterator[_Generator]:
    """Yield the generators of whole libraries. Only loaded libraries count: none is imported for this."""
    plain, numpy, torch = map(sys.modules.get, ("random", "numpy.random", "torch"))
    if plain is not None:
        yield _Generator("random", plain.getstate, plain.setstate)
    if numpy is not None:
        yield _Generator("np.random", numpy.get_state, numpy.set_state)
    if torch is not None:
        yield _Generator("torch", torch.get_rng_state, torch.set_rng_state)


def _generators(fn: Callable[..., Any], model: Any) -> Iterator[_Generator]:
    """Yield the generators of libraries, and the generators that the modules of `fn` and `model` hold by name."""
    yield from _of_libraries()
    plain, numpy, torch = map(sys.modules.get, ("random", "numpy.random", "torch"))
    read = [m.Random for m in (plain,) if m]
    numpys = [m.Generator for m in (numpy,) if m]
    others = [*[m.RandomState for m in (numpy,) if m], *[m.Generator for m in (torch,) if m]]
    seen: set[int] = set()
    for name, value in _named(fn, model):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tuple(read)):
            yield _Generator(name, value.getstate, value.setstate)
        elif isinstance(value, tuple(numpys)):
            yield _of_numpy(name, value.bit_generator)
        elif isinstance(value, tuple(others)):
            yield _Generator(name, value.get_state, value.set_state)


def _of_numpy(name: str, bits: Any) -> _Generator:
    return _Generator(name, lambda: bits.state, lambda state: setattr(bits, "state", state))


def _named(fn: Callable[..., Any], model: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values that `fn` can read: of its module, its closure, the model and its class's module."""
    plain: Any = inspect.unwrap(getattr(fn, "func", fn))  # of functools.partial
    plain = getattr(plain, "__func__", plain)
    yield from list(getattr(plain, "__globals__", {}).items())
    yield from list(getattr(sys.modules.get(type(model).__module__), "__dict__", {}).items())
    code, cells = getattr(plain, "__code__", None), getattr(plain, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a name that is assigned later
            continue
    yield from _held(model, set())


def _held(node: Any, seen: set[int], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that modules and containers hold, and those of objects in them, two objects deep.

    depth: how many objects that are neither modules nor containers lead here.
    """
    held = children(node)
    if held is None:
        depth += 1
        held = {} if depth > 2 or isinstance(node, (type, ModuleType)) else getattr(node, "__dict__", {})
    if not held or id(node) in seen:
        return
    seen.add(id(node))
    for name, value in list(held.items()):
        yield str(name), value
        yield from _held(value, seen, depth)


def check_function(fn: object, what: str) -> None:
    """Raise InputError unless `fn` can be a loss or forward."""
    if not callable(fn):
        hint = f"; it is called while tracing, so give the function itself, as in {what}={what}"
        raise InputError.here(f"{what} must be a function of the model and the inputs, got {shown(fn)}{hint}")
    for kind, test in (("async", inspect.iscoroutinefunction), ("a generator", inspect.isgeneratorfunction)):
        if test(fn):
            raise InputError.here(
                f"{what} {fn.__name__} is {kind}: it must be a plain function that returns, without await and yield"
            )


def check_signature(fn: Callable[..., Any], inputs: Mapping[str, Any], what: str) -> None:
    """Raise InputError if the function cannot be called with the model and these names."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    parameters = list(signature.parameters.values())
    named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes = [p.name for p in named]
    missing = [p.name for p in named if p.default is p.empty and p.name not in inputs]
    problems = [
        f"{n!r} is declared but {what} does not take it{_meant(n, missing)}"
        for n in inputs
        if n not in takes and not anything
    ]
    problems += [f"{what} takes {name!r}, which is not declared" for name in missing]
    if not parameters:
        problems = [f"{what} must take the model as its first argument"]
    elif parameters[0].name in inputs:
        others = [n for n in inputs if n != "m"]
        problems = [f"its first argument is the model, as in {what}(m, {', '.join(others)})"]
    if problems:
        call = f"{getattr(fn, '__name__', type(fn).__name__)}({', '.join([p.name for p in parameters])})"
        raise InputError.here(
            f"inputs do not match {what} {call}: {'; '.join(problems)}. Use the same names in both: "
            f"inputs declares {', '.join(inputs) or 'nothing'}"
        )


def _meant(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name.lower(), [n.lower() for n in names], n=1)
    return f" (did you mean {next(n for n in names if n.lower() == near[0])!r}?)" if near else ""


def _defined(fn: Callable[..., Any]) -> Site | None:
    """Return where a loss or forward is defined, for errors about its result."""
    code = getattr(fn, "__code__", None)
    return Site(code.co_filename, code.co_firstlineno) if code is not None else call_site()


def checked_loss(result: Any, loss: Callable[..., Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the rank-0 loss and the aux tensors. Raises CompileError if there is no scalar f32 loss."""
    name = getattr(loss, "__name__", "loss")
    aux: Any = {}
    result = _read(result)
    if isinstance(result, tuple) and len(cast("tuple[Any, ...]", result)) == 2:
        result, aux = cast("tuple[Any, Any]", result)
        if isinstance(result, dict) and isinstance(aux, Tensor):
            raise CompileError(
                located(
                    f"{name}: the loss, {aux.type}, must come first, then the dict of aux; swap them", _defined(loss)
                )
            )
    items = cast("dict[str, Any]", aux).items() if isinstance(aux, dict) else ()
    wrong = {n: x for n, x in items if not isinstance(x, Tensor)}
    if not isinstance(aux, dict) or wrong:
        got = shown(aux) if not wrong else ", ".join([f"{n!r} is {article(_kind(x))}" for n, x in wrong.items()])
        raise CompileError(
            located(
                f'{name}: aux must be a dict of tensors, as in (loss, {{"name": tensor}}), got {got}', _defined(loss)
            )
        )
    if not isinstance(result, Tensor):
        hint = 'return a scalar such as tg.mean(...), or (scalar, {"name": tensor})'
        raise CompileError(
            located(f"{name} must return a tensor, got {_kind(cast('object', result))}; {hint}", _defined(loss))
        )
    if result.shape != () or result.dtype != f32:
        hint = (
            "reduce it with tg.mean or tg.sum"
            if result.shape
            else "tg.mean gives f32; tg.cast(x, tg.f32) has no gradient"
        )
        raise CompileError(
            located(f"{name} must return a scalar, f32[], got {result.type}; {hint}", result.site or call_site())
        )
    return result, cast("dict[str, Tensor]", aux)


def checked_outputs(result: Any, forward: Callable[..., Any]) -> tuple[dict[str, Tensor], Any]:
    """Return the outputs by name, and the structure they came in.

    Raises CompileError for a result that is no tensor, tuple or dict.
    """
    result = _read(result)
    if isinstance(result, Tensor):
        return {"output": result}, None
    parts: dict[Any, Any] | None = None
    if isinstance(result, dict):
        parts = dict(cast("dict[Any, Any]", result))
    elif isinstance(result, (tuple, list)):
        parts = dict(enumerate(cast("tuple[Any, ...]", result)))
    if not parts or not all(isinstance(x, Tensor) for x in parts.values()):
        name = getattr(forward, "__name__", "forward")
        got = _odd(cast("object", result), parts)
        raise CompileError(
            located(
                f"{name} must return a tensor, or a tuple or dict of tensors (not nested), got {got}", _defined(forward)
            )
        )
    outputs = {f"output.{k}": x for k, x in parts.items()}
    return outputs, {k: f"output.{k}" for k in parts} if isinstance(result, dict) else tuple(outputs)


def _read(result: Any) -> Any:
    """Return `result` with states of the model replaced by their current values; in a loss, those in its aux."""
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


class Traced(NamedTuple):
    """One run of a user's function on leaves."""

    trace: ambient.Trace
    parameters: dict[str, Parameter]
    states: States
    leaves: dict[str, Tensor]
    inputs: dict[str, TensorType]
    result: Any


def sites_of(t: Traced) -> tuple[SiteInfo, ...]:
    """Return the sites in the order of the user's function."""
    return tuple(t.trace.sites.values())


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
        raise CompileError.here(f"the model {type(model).__name__} has no parameters: {no_parameters(model)}")
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
        first = {STATE + n: (s.type, spec) for (n, s), spec in zip(states.items(), state_specs(model), strict=True)}
        yield Traced(running, parameters, first, leaves, types, fn(m, **values))
