"""Operators and methods of tensors, as spellings of the public functions.

The functions live layers above, so they enter themselves: in `METHODS` with `@entered`, and in `TensorMethods` too with
`@method`. A class that inherits the latter gets them all. VJPs use the same spellings, which lets one rule serve every
kind of tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

from tracegrad.errors import CallError, DTypeError, InputError, ShapeError, TraceError, TracegradError, placed
from tracegrad.refusals import check_call, shown
from tracegrad.sites import STATE, current_site

if TYPE_CHECKING:
    from tracegrad.dtypes import DType
    from tracegrad.spellings import Spellings  # pyright: ignore[reportMissingModuleSource]
else:
    Spellings = object

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=TracegradError)
Operand = Any  # a tensor, an array, or a Python number
Index = Any  # an integer, a slice, None, Ellipsis, or one tensor or array of i32


class Engine(NamedTuple):
    """Runs ops at once.

    key:    the key of a call's plan, as text: an expression of the op's parameters
    missed: (op, key, arguments) -> the result of a call whose key is new
    run:    (op, arguments) -> the result
    scope:  what the names in `key` stand for
    """

    key: Callable[[Op], str]
    missed: Callable[[Op, Any, tuple[Any, ...]], Any]
    run: Callable[[Op, tuple[Any, ...]], Any]
    scope: Mapping[str, Any]


METHODS: dict[str, Callable[..., Any]] = {}
AT_ONCE: list[Engine] = []  # one, or none: the engine needs NumPy, and enters itself here
TYPE = r"\b(f32|f64|i32|u32|bool)\["


class Missing:
    """What stands for an argument that a call leaves out and needs."""


MISSING = Missing()


class Op:
    """A public function, and the plans of its calls outside of traces, by key."""

    __slots__ = ("function", "named", "plans")

    named: Any  # the public function

    def __init__(self, f: Callable[..., Any]):
        """f: a function of Python."""
        self.function = f
        self.plans: dict[Any, Callable[..., Any]] = {}

    @property
    def name(self) -> str:
        """What users call it."""
        return self.function.__name__.rstrip("_")

    @property
    def counts(self) -> tuple[int, int, bool, bool]:
        """How many parameters there are, and how many that are named only; are there *args, are there **kwargs?"""
        code = self.function.__code__
        stars = bool(code.co_flags & CO_VARARGS), bool(code.co_flags & CO_VARKEYWORDS)
        return code.co_argcount, code.co_kwonlyargcount, *stars

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters; *args and **kwargs come last."""
        return self.function.__code__.co_varnames[: sum(self.counts)]

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of each parameter but *args and **kwargs; MISSING for none."""
        n, m, _, _ = self.counts
        own = self.function.__defaults__ or ()
        named = self.function.__kwdefaults__ or {}
        given = dict(zip(self.parameters[n - len(own) : n], own))
        return dict.fromkeys(self.parameters[: n + m], MISSING) | given | named

    def apply(self, values: Sequence[Any]) -> Any:
        """Return the function of one value for each parameter: of a tuple for *args, and of a dict for **kwargs."""
        n, m, many, others = self.counts
        kwargs: dict[str, Any] = dict(zip(self.parameters[n : n + m], values[n:])) | (values[-1] if others else {})
        return self.function(*values[:n], *(values[n + m] if many else ()), **kwargs)

    def refuse(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """CallError for what Python would refuse: arguments that are missing, too many or unknown."""
        given = {x: a for x, a in kwargs.items() if a is not MISSING}
        if any(a is MISSING for a in args):
            given |= {x: a for x, a in zip(self.parameters, args) if a is not MISSING}
            args = ()
        check_call(self.name, self.function, args, given)

    def first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first call: gives the public function its code, because most processes call few of all ops."""
        self.write()
        return self.named(*args, **kwargs)

    def failed(self, error: TracegradError, values: Sequence[Any]) -> TracegradError:
        """Return `error`, with the op's name, the types it got, and the user's line."""
        return placed(with_types(error, values), self.name, current_site())

    def misused(self, error: Exception, values: Sequence[Any]) -> TracegradError:
        """What Python's own error says about arguments, as one of ours."""
        given = ", ".join([f"{x}={shown(a)}" for x, a in zip(self.parameters, values)])
        return placed(
            CallError(f"cannot work with {given}: {error}; see help(tg.{self.name})"), self.name, current_site()
        )

    def write(self) -> None:
        """Give the public function its code."""
        (n, m, many, others), parameters = self.counts, self.parameters
        positional, keywords, rest = parameters[:n], parameters[n : n + m], parameters[n + m :]
        star, stars = [f"*{x}" for x in rest[:many]], [f"**{x}" for x in rest[many:]]
        more, other = [] if many else ["*_more"], [] if others else ["**_other"]
        passed = [f"{x}={x}" for x in keywords] + stars
        needed = [f"{x} is _missing" for x in (*positional, *keywords) if self.defaults[x] is MISSING]
        engine = AT_ONCE[0] if AT_ONCE else NO_ENGINE
        source = ENTRY.format(
            signature=", ".join([*positional, *star, *more, *keywords, *stars, *other]),
            wrong=" or ".join([*[x.lstrip("*") for x in more + other], *needed]) or "False",
            everything=f"{_tuple([*positional, *star, *more])}, dict({', '.join(passed + other)})",
            key=engine.key(self),
            parameters=_tuple(parameters),
            given=", ".join(parameters),
            passed=", ".join([*positional, *star, *passed]),
        )
        scope = self.named.__globals__
        scope.update(engine.scope, _missed=engine.missed)
        exec(_compiled(source), scope)
        named, defaults = self.named, list(self.defaults.values())
        named.__defaults__, named.__kwdefaults__ = tuple(defaults[:n]), dict(zip(parameters[n:], defaults[n:]))
        named.__code__ = scope["entry"].__code__


def _traced(op: Op, args: tuple[Any, ...]) -> Any:
    return op.apply(args)


def _missed(op: Op, _: Any, args: tuple[Any, ...]) -> Any:
    return op.apply(args)


# Without NumPy the functions themselves run, and ask for a trace
NO_ENGINE: Engine = Engine(lambda _: "None", _missed, _traced, {})

# What stands behind the name of an op: its own signature, written out, because one of *args and **kwargs would cost a
# small op on values half as much as it takes NumPy. What Python would refuse is collected, and gets a remedy; that
# costs a call 15 to 30 ns.
ENTRY = """\
def entry({signature}):
    try:
        if {wrong}:
            _op.refuse({everything})
        if _state() is not None:
            return _function({passed})
        _key = {key}
        try:
            _run = _plans[_key]
        except KeyError:
            _run = None
        return _missed(_op, _key, {parameters}) if _run is None else _run({given})
    except _errors as _e:
        raise _op.failed(_e, {parameters}) from None
    except _python as _e:
        raise _op.misused(_e, {parameters}) from _e
"""
ERRORS = (ShapeError, DTypeError, InputError, TraceError, CallError)
# What Python raises where an argument is of a type that no check of the op foresaw
PYTHON = (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError)


def _tuple(items: Sequence[str]) -> str:
    return f"({''.join([f'{x}, ' for x in items])})"


def _first(*args: Any, **kwargs: Any) -> Any:
    return _op.first(args, kwargs)  # type: ignore[name-defined] # noqa: F821


def op(f: F) -> F:
    """Make `f` a public op: it makes nodes in a trace and for traced operands, and runs at once elsewhere.

    Errors of its checks carry its name, the types it got, and the user's line.

    >>> @extend.op
    ... def triple(x):
    ...     return x * 3.0
    >>> triple(np.ones(2, np.float32))
    tensor([3., 3.])
    """
    entry = Op(f)
    scope = {
        "_op": entry, "_plans": entry.plans, "_function": f, "_state": STATE, "_errors": ERRORS, "_python": PYTHON,
        "_missing": MISSING, "__name__": f.__module__,
    }  # fmt: skip
    named: Any = FunctionType(_first.__code__, scope, f.__name__)
    named.__qualname__, named.__doc__ = f.__qualname__, f.__doc__
    named.__wrapped__, named.entry, entry.named = f, entry, named
    return cast("F", named)


@cache
def _compiled(source: str) -> CodeType:
    return compile(source, f"{__file__}:written", "exec")  # of the package, so that errors do not blame the user


def with_types(error: E, args: Sequence[Any]) -> E:
    """Return `error` naming the types of the operands, unless its rule did."""
    types = [str(cast("Any", a).type) for a in args if isinstance(a, TensorMethods)]
    told = isinstance(error, CallError) or re.search(TYPE, str(error)) or "\n  at " in str(error)
    if not types or error.bare is not None or told:
        return error
    return type(error)(f"{error}; got {' and '.join(types)}")


# Python's name of each operator; those of two operands with a reflected form have that too
OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "pow": "pow", "matmul": "matmul", "neg": "neg",
    "abs": "abs", "logical_not": "invert", "logical_and": "and", "logical_or": "or", "less": "lt", "less_equal": "le",
    "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne", "getitem": "getitem",
}  # fmt: skip
VARIADIC = ("reshape", "permute", "transpose")  # methods that take one tuple or several integers


def entered(f: F) -> F:
    """Make `f` a public op that the layers below find by its name, and the operator of its name."""
    named, name = op(f), f.__name__.rstrip("_")
    METHODS[name] = named
    operator, declared = OPERATORS.get(name, ""), vars(TensorMethods)
    if f"__{operator}__" in declared:
        setattr(TensorMethods, f"__{operator}__", named)
    if f"__r{operator}__" in declared:
        setattr(TensorMethods, f"__r{operator}__", lambda self, a: cast("Any", named)(a, self))
    return named


def method(f: F) -> F:
    """Make `f` a public op and the method of its name. What type checkers know of it `tools/methods` writes."""
    named, name = entered(f), f.__name__.rstrip("_")
    if name not in VARIADIC:
        setattr(TensorMethods, name, named)
    return named


def _without(text: str) -> Callable[..., Any]:
    """An operator that tensors do not have."""

    def refuse(self: Any, *_: Any) -> Any:
        raise TraceError.here(f"{text}; the tensor is {shown(self)}")

    return refuse


class TensorMethods(Spellings):
    """Everything a tensor can do without an import.

    An operator without a body is the op of its name: `entered` puts it here, and `method` the methods, because a
    function that only passed its arguments on would take a fifth of a small op's time.
    """

    __slots__ = ()

    # operators
    def __add__(self, b: Operand) -> Self: ...
    def __radd__(self, a: Operand) -> Self: ...
    def __sub__(self, b: Operand) -> Self: ...
    def __rsub__(self, a: Operand) -> Self: ...
    def __mul__(self, b: Operand) -> Self: ...
    def __rmul__(self, a: Operand) -> Self: ...
    def __truediv__(self, b: Operand) -> Self: ...
    def __rtruediv__(self, a: Operand) -> Self: ...
    def __pow__(self, b: Operand) -> Self: ...
    def __rpow__(self, a: Operand) -> Self: ...
    def __matmul__(self, b: Operand) -> Self: ...
    def __rmatmul__(self, a: Operand) -> Self: ...
    def __and__(self, b: Operand) -> Self: ...
    def __rand__(self, a: Operand) -> Self: ...
    def __or__(self, b: Operand) -> Self: ...
    def __ror__(self, a: Operand) -> Self: ...
    def __lt__(self, b: Operand) -> Self: ...
    def __le__(self, b: Operand) -> Self: ...
    def __gt__(self, b: Operand) -> Self: ...
    def __ge__(self, b: Operand) -> Self: ...
    def __neg__(self) -> Self: ...
    def __abs__(self) -> Self: ...
    def __invert__(self) -> Self: ...
    def __getitem__(self, key: Index) -> Self: ...
    def __eq__(self, b: object) -> Self: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __ne__(self, b: object) -> Self: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    __hash__ = object.__hash__

    __mod__ = __rmod__ = __divmod__ = _without("tensors have no %: write a - tg.floor(a / b) * b")
    __floordiv__ = __rfloordiv__ = _without("tensors have no //: write tg.floor(a / b)")
    __contains__ = _without("a value is not looked up with in: write tg.any(x == value)")
    __delitem__ = _without("tensors never change: make a new one, with slices and tg.concat")

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """See tg.reshape; the shape may be one tuple or several integers."""
        return METHODS["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def permute(self, *axes: int | Sequence[int]) -> Self:
        """See tg.permute; the axes may be one tuple or several integers."""
        return METHODS["permute"](self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)

    def transpose(self, *axes: int | Sequence[int] | None) -> Self:
        """See tg.transpose; the axes may be one tuple or several integers, all of them or none."""
        return METHODS["transpose"](self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    @property
    def T(self) -> Self:  # noqa: N802 as NumPy and PyTorch
        """`x` with its axes reversed, as NumPy."""
        return METHODS["transpose"](self)

    def astype(self, dtype: DType) -> Self:
        """See tg.cast."""
        return METHODS["cast"](self, dtype)
