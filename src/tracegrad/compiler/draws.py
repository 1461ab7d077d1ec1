"""Random numbers of Python, NumPy and PyTorch that a user's function draws in its trace: they become constants.

The generators' states are compared before and after a trace. If one changed, a second trace finds the line.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, TypeVar, cast

from tracegrad import errors
from tracegrad.nn.module import children

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
    """Return `traced()`, a trace of `fn`. Warn at the user's line if it draws random numbers of another library."""
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
    """Trace once more from `state`, and warn at the line that draws. Then restore the state after the first trace."""
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
    plain = sys.modules.get("random")  # this module is written in Python, so its frames are traced too
    return errors.is_user(frame) and (plain is None or frame.f_code.co_filename != plain.__file__)


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
    """Yield names and values that `fn` can read: in its module and closure, the model, and the model class's module."""
    plain: Any = inspect.unwrap(getattr(fn, "func", fn))  # the function inside a functools.partial
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
