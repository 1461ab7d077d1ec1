"""Check the arguments of calls, and say what to write instead: unknown keywords, wrong counts, switches and paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import CO_VARARGS, CO_VARKEYWORDS, signature
from typing import Any, TypeVar, cast

from tracegrad import errors
from tracegrad.errors import CallError, InputError, TraceError, call_site, placed, shortened
from tracegrad.refusals import found, remedies, shown

F = TypeVar("F", bound=Callable[..., Any])
PATH = "str | os.PathLike[str]"  # the annotation of a path


def unexpected(
    takes: Iterable[str], given: Mapping[str, Any], who: str, other: str = "", theirs: Sequence[str] = ()
) -> CallError:
    """Return the error for keywords that a function does not have.

    takes:  its existing keywords. who: its name.
    theirs: keywords of another call; `other` says which, as "where the layer is made".
    """
    names = list(takes)
    told = [_elsewhere(word, value, other, theirs) or remedy(word, value, names, who) for word, value in given.items()]
    problems = "; ".join([f"there is no argument {word!r}{hint}" for word, hint in zip(given, told)])
    stop = "" if problems.endswith("?") else "."
    return CallError(f"{problems}{stop} {'The arguments are ' + ', '.join(names) if names else 'It takes none'}")


def _elsewhere(word: str, value: Any, other: str, theirs: Sequence[str]) -> str:
    """Return text that says which call takes the keyword, after a separator, or ""."""
    name = next((x for x in (word, word.removeprefix("is_")) if x in theirs), None)
    return f"; write {name}={shown_argument(value)} {other}" if name else ""


def shown_argument(value: Any) -> str:
    """Return a short plain value, or a tuple of integers, as Python code; for any other value, "..."."""
    plain = isinstance(value, (int, float, str)) or value is None
    if isinstance(value, tuple):  # a shape, or axes
        plain = all(isinstance(n, int) for n in cast("tuple[Any, ...]", value))
    text = repr(cast("Any", value)) if plain else "..."
    return text if len(text) < 20 else "..."


def remedy(word: str, value: Any, names: Sequence[str], who: str) -> str:
    """Return the remedy for the keyword `word` that `who` lacks, after a separator, or "". names: its keywords."""
    told: list[str] = found(word, "arguments") or []
    fitting = [parts for parts in (t.split(" and ") for t in told) if all(name in names for name in parts)]
    own = fitting[0] if fitting else []
    if len(own) == 1:
        value = int(value) if own[0] == "ddof" and isinstance(value, bool) else value  # unbiased=True is ddof=1
        return f"; write {own[0]}={shown_argument(value)}"
    if own:
        return f"; write {' and '.join([f'{name}=' for name in own])}"
    if instead := found(f"{who.rpartition('.')[2]}.{word}", "no_arguments") or found(word, "no_arguments"):
        return f": {instead}"
    if "batch_size" in names and hasattr(value, "shape"):
        return f"; pass arrays of other names as one dict, {{{word!r}: ..., ...}}"
    near = get_close_matches(word, names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def switch(name: str, value: Any) -> bool:
    """Return a setting that is on or off. Raises InputError for text, None and other numbers: "no" would be true."""
    if getattr(value, "shape", None) == () and not isinstance(value, str):
        value = value.item() if hasattr(value.dtype, "kind") else bool(value)  # NumPy's; a traced tensor refuses
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise _no_value(f"{name} must be True or False, got {shown(value)}")


def _no_value(text: str) -> InputError:
    error = InputError.here(text)
    error.bare = text  # `placed` puts the name of the function before it
    return error


def check_values(who: str, function: Any, given: Mapping[str, Any]) -> None:
    """Check switches and paths among the arguments of a function of the package. Raises InputError."""
    kinds: dict[str, Any] = function.__annotations__ if (function.__module__ or "").startswith("tracegrad.") else {}
    try:
        for name, value in given.items():
            kind, optional, _ = str(kinds.get(name, "")).partition(" | None")
            if optional and value is None:
                continue
            if kind == "bool":
                switch(name, value)
            elif kind == PATH and not isinstance(value, (str, os.PathLike)):
                raise _no_value(f"{name} must be a path, such as 'model.safetensors', got {shown(value)}")
    except InputError as e:
        raise placed(e, who, call_site()) from None


def check_call(
    who: str,
    function: Any,
    args: Sequence[Any],
    given: Mapping[str, Any],
    bound: int = 0,
    other: tuple[str, Any] = ("", None),
) -> None:
    """Check the arguments of a call.

    bound: number of leading arguments that callers do not write, such as self.
    other: (words for messages, function): another function to which the keywords may belong; see `unexpected`.

    Raises CallError for unknown keywords, arguments missing or given twice, and too many positional arguments. Raises
    InputError if an argument should be a switch or a path, and is not.
    """
    if not hasattr(function, "__code__"):
        return
    called = _Called(who, function, args, given, bound)
    if called.unknown:
        its = getattr(other[1], "__code__", None)
        theirs = its.co_varnames[1 : its.co_argcount + its.co_kwonlyargcount] if its else ()
        raise placed(unexpected(called.takes, called.unknown, who, other[0], theirs), who, call_site())
    problem = called.twice() or called.missing() or called.too_many()
    if problem:
        raise CallError.here(f"{who}: {problem}")
    named = dict[str, Any](zip(called.takes[: called.most], args))
    check_values(who, function, {**named, **given})


class _Called:
    """The arguments of a call, compared with the parameters of its function. Each method returns a problem, or ""."""

    def __init__(self, who: str, function: Any, args: Sequence[Any], given: Mapping[str, Any], bound: int) -> None:
        code = function.__code__
        self.who, self.function, self.args, self.given, self.code = who, function, args, given, code
        end = code.co_argcount + code.co_kwonlyargcount
        self.takes = code.co_varnames[bound:end]
        self.most = code.co_argcount - bound  # arguments by position
        self.many = code.co_varnames[end : end + 1] if code.co_flags & CO_VARARGS else ()
        self.unnamed = code.co_varnames[: code.co_posonlyargcount]  # a keyword of that name is another argument
        known = given if code.co_flags & CO_VARKEYWORDS else self.takes
        self.unknown = {name: value for name, value in given.items() if name not in known}

    def twice(self) -> str:
        """Return the problem if an argument is given by position and by name; else ""."""
        both = [x for x in self.takes[: min(len(self.args), self.most)] if x in self.given and x not in self.unnamed]
        return f"{both[0]} is given twice, by position and by name; write {both[0]}=... only" if both else ""

    def missing(self) -> str:
        """Return the problem if required arguments are left out; else ""."""
        needed = self.takes[len(self.args) : max(0, self.most - len(self.function.__defaults__ or ()))]
        needed += tuple([x for x in self.takes[self.most :] if x not in (self.function.__kwdefaults__ or {})])
        left = [x if x in self.unnamed else f"{x}=" for x in needed if x not in self.given or x in self.unnamed]
        if not left or len(self.args) > self.most:
            return ""
        return f"missing {', '.join(left)}; it takes {', '.join([*self.takes, *[f'*{x}' for x in self.many]])}"

    def too_many(self) -> str:
        """Return the problem if there are too many positional arguments; else ""."""
        if len(self.args) <= self.most or self.many:
            return ""
        if not self.takes:
            return f"takes no arguments, got {len(self.args)}; leave them out"
        named = "".join([f"{x}=..., " for x in self.takes[self.most :][:3]])
        instead = f"write {self.who}({named}...)" if named else f"it takes {', '.join(self.takes)}"
        instead = next((told for name, told in remedies()["tuples"].items() if name in self.takes[:2]), instead)
        count = f"{self.most} argument{'s' if self.most != 1 else ''} by position"
        most = f"takes {count}" if self.most > 0 else "takes its arguments by name"
        return f"{most}, got {len(self.args)} by position; {instead}"


def check_function(who: str, fn: object, name: str = "fn", usage: str = "fn, ...") -> None:
    """Raise TraceError unless the argument `name` of `who` is a function. usage: the arguments of a right call."""
    if not errors.is_function(fn):
        raise TraceError.here(f"{who}: {name} must be a function, as in {who}({usage}); got {shown(fn)}")


def check_takes(who: str, name: str, given: Any, takes: Sequence[str]) -> None:
    """Raise InputError unless `given` can be called with as many arguments as `takes` names."""
    how = f"a function of the {takes[0]}" if takes else "a function without arguments"
    if not errors.is_function(given):
        raise InputError.here(f"{who}: {name} must be {how}, got {shown(given)}; define one")
    try:
        found = signature(given)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        found.bind(*takes)
    except TypeError:
        raise InputError.here(
            f"{who}: {name} must be {how}, but the given function takes {found}; write def {name}({', '.join(takes)})"
        ) from None


def helpful(f: F) -> F:
    """Wrap `f`, so that wrong keywords raise an error with a remedy. For functions that are called rarely."""
    module = f.__module__.split(".")[1]
    module = module if module in ("init", "nn") else "tg"
    who = f"{module}.{f.__name__}" if "." not in f.__qualname__ else f.__name__
    if who == "__init__":
        who = f.__qualname__.split(".")[-2]

    def entry(*args: Any, **kwargs: Any) -> Any:
        bound = int("." in f.__qualname__)
        with shortened:
            check_call(who, f, args[bound:], kwargs, bound)
            return f(*args, **kwargs)

    return wrapped(entry, f)


def wrapped(made: Any, f: F) -> F:
    """Return `made` with the name, docstring and signature of `f`. functools.wraps would slow down the import."""
    made.__name__, made.__qualname__, made.__module__ = f.__name__, f.__qualname__, f.__module__
    made.__doc__, made.__annotations__, made.__wrapped__ = f.__doc__, f.__annotations__, f
    made.__dict__.update(f.__dict__)
    return made
