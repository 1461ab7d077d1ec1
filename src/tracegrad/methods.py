"""Operators and methods of tensors, which call the public functions.

Modules of higher layers define these functions, and register them: `@entered` in `METHODS`, and `@method` also in
`TensorMethods`. A class that inherits from `TensorMethods` has all methods. VJPs use these operators and methods, too,
so one rule serves every kind of tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

from tracegrad.errors import OF_OPS, CallError, DeviceError, ShapeError, TraceError, TracegradError, placed
from tracegrad.refusals import Count, shown
from tracegrad.sites import STATE, current_site
from tracegrad.wrong_calls import check_call, switch

if TYPE_CHECKING:
    from tracegrad.dtypes import DType, Shape, TensorType
    from tracegrad.spellings import Spellings  # pyright: ignore[reportMissingModuleSource]
else:
    Spellings = object

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=TracegradError)
Operand = Any  # a tensor, an array, or a Python number
Index = Any  # an integer, a slice, None, Ellipsis, or one tensor or array of i32


class Engine(NamedTuple):
    """Functions that run ops at once.

    key:    op -> the text of an expression of the op's parameters, which gives the key of a call's plan
    missed: (op, key, arguments) -> the result of a call with a new key
    run:    (op, arguments) -> the result
    scope:  values of the names in `key`
    """

    key: Callable[[Op], str]
    missed: Callable[[Op, Any, tuple[Any, ...]], Any]
    run: Callable[[Op, tuple[Any, ...]], Any]
    scope: Mapping[str, Any]


METHODS: dict[str, Callable[..., Any]] = {}
AT_ONCE: list[Engine] = []  # one engine, or none without NumPy; the engine registers itself here
TYPE = r"\b(f32|f64|i32|u32|bool)\["


class Missing:
    """The type of MISSING, the default of required arguments. It shows that a call has left one out."""


MISSING = Missing()


class Op:
    """A public op: its function, and the plans of its calls outside of traces, by key."""

    __slots__ = ("function", "named", "plans")

    named: Any  # the public function

    def __init__(self, f: Callable[..., Any]):
        """f: the Python function of the op."""
        self.function = f
        self.plans: dict[Any, Callable[..., Any]] = {}

    @property
    def name(self) -> str:
        """The public name of the op."""
        return self.function.__name__.rstrip("_")

    @property
    def counts(self) -> tuple[int, int, bool, bool]:
        """(positional parameters, keyword-only parameters, has *args, has **kwargs)."""
        code = self.function.__code__
        stars = bool(code.co_flags & CO_VARARGS), bool(code.co_flags & CO_VARKEYWORDS)
        return code.co_argcount, code.co_kwonlyargcount, *stars

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters, with *args and **kwargs last."""
        return self.function.__code__.co_varnames[: sum(self.counts)]

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of each parameter except *args and **kwargs; MISSING if it has none."""
        n, m, _, _ = self.counts
        own = self.function.__defaults__ or ()
        named = self.function.__kwdefaults__ or {}
        given = dict(zip(self.parameters[n - len(own) : n], own))
        return dict.fromkeys(self.parameters[: n + m], MISSING) | given | named

    @property
    def switches(self) -> frozenset[str]:
        """The parameters that are True or False."""
        return frozenset([x for x, kind in self.function.__annotations__.items() if kind == "bool"])

    def apply(self, values: Sequence[Any]) -> Any:
        """Call the function with one value for each parameter: a tuple for *args, and a dict for **kwargs."""
        n, m, many, others = self.counts
        kwargs: dict[str, Any] = dict(zip(self.parameters[n : n + m], values[n:])) | (values[-1] if others else {})
        return self.function(*values[:n], *(values[n + m] if many else ()), **kwargs)

    def refuse(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the arguments of a call. Raises CallError for arguments that are missing, too many or unknown."""
        given = {x: a for x, a in kwargs.items() if a is not MISSING}
        if any(a is MISSING for a in args):
            given |= {x: a for x, a in zip(self.parameters, args) if a is not MISSING}
            args = ()
        check_call(self.name, self.function, args, given)

    def first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Generate the code of the public function at its first call, and call it. Most processes call few ops."""
        self.write()
        return self.named(*args, **kwargs)

    def failed(self, error: TracegradError, values: Sequence[Any]) -> TracegradError:
        """Return `error` with the op's name, the types of its arguments, and the user's line."""
        return placed(with_types(error, values), self.name, current_site())

    def misused(self, error: Exception, values: Sequence[Any]) -> TracegradError:
        """Return a CallError for a Python error about the arguments, and a DeviceError if memory is short."""
        if isinstance(error, MemoryError):
            return placed(DeviceError(f"not enough memory: {error}"), self.name, current_site())
        given = ", ".join([f"{x}={shown(a)}" for x, a in zip(self.parameters, values)])
        text = f"cannot work with {given}: {error}; see help(tg.{self.name})"
        return placed(CallError(text), self.name, current_site())

    def write(self) -> None:
        """Generate the code of the public function."""
        (n, m, many, others), parameters = self.counts, self.parameters
        positional, keywords, rest = parameters[:n], parameters[n : n + m], parameters[n + m :]
        star, stars = [f"*{x}" for x in rest[:many]], [f"**{x}" for x in rest[many:]]
        more, other = [] if many else ["*_more"], [] if others else ["**_other"]
        checked = {x: f"_switch('{x}', {x})" for x in self.switches}
        raw, passed = [f"{x}={x}" for x in keywords], [f"{x}={checked.get(x, x)}" for x in keywords] + stars
        needed = [f"{x} is _missing" for x in (*positional, *keywords) if self.defaults[x] is MISSING]
        engine = AT_ONCE[0] if AT_ONCE else NO_ENGINE
        source = ENTRY.format(
            signature=", ".join([*positional, *star, *more, *keywords, *stars, *other]),
            wrong=" or ".join([*[x.lstrip("*") for x in more + other], *needed]) or "False",
            everything=f"{_tuple([*positional, *star, *more])}, dict({', '.join([*raw, *stars, *other])})",
            key=engine.key(self),
            parameters=_tuple(parameters),
            given=", ".join(parameters),
            passed=", ".join([*[checked.get(x, x) for x in positional], *star, *passed]),
        )
        scope = self.named.__globals__
        scope.update(engine.scope, _missed=engine.missed)
        exec(compiled(source), scope)
        named, defaults = self.named, list(self.defaults.values())
        named.__defaults__, named.__kwdefaults__ = tuple(defaults[:n]), dict(zip(parameters[n:], defaults[n:]))
        named.__code__ = scope["entry"].__code__


def _traced(op: Op, args: tuple[Any, ...]) -> Any:
    return op.apply(args)


def _missed(op: Op, _: Any, args: tuple[Any, ...]) -> Any:
    return op.apply(args)


# Without NumPy, the functions run directly, and require a trace
NO_ENGINE: Engine = Engine(lambda _: "None", _missed, _traced, {})

# The code of a public op. It has the op's own signature, because *args and **kwargs would add half of NumPy's time to a
# small op on values. Arguments that Python would refuse are collected, for an error with a remedy, in 15 to 30 ns a
# call.
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
# Errors of Python for an argument of a type that the checks of the op do not cover
PYTHON = (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError, MemoryError)


def _tuple(items: Sequence[str]) -> str:
    return f"({''.join([f'{x}, ' for x in items])})"


def _first(*args: Any, **kwargs: Any) -> Any:
    return _op.first(args, kwargs)  # type: ignore[name-defined] # noqa: F821


def op(f: F) -> F:
    """Make `f` a public op: in a trace, or given traced tensors, it adds nodes to the graph; elsewhere it runs at once.

    Errors raised in `f` get the op's name, the types of its arguments, and the user's line. As a function decorated
    with jax.jit.

    >>> @extend.op
    ... def triple(x):
    ...     return x * 3.0
    >>> triple(np.ones(2, np.float32))
    tensor([3., 3.])
    """
    entry = Op(f)
    scope = {
        "_op": entry, "_plans": entry.plans, "_function": f, "_state": STATE, "_errors": OF_OPS, "_python": PYTHON,
        "_missing": MISSING, "_switch": switch, "__name__": f.__module__,
    }  # fmt: skip
    named: Any = FunctionType(_first.__code__, scope, f.__name__)
    named.__qualname__, named.__doc__ = f.__qualname__, f.__doc__
    named.__wrapped__, named.entry, entry.named = f, entry, named
    return cast("F", named)


@cache
def compiled(source: str) -> CodeType:
    """Compile source text that the package wrote."""
    return compile(source, f"{__file__}:written", "exec")  # in the package: never the user's line


def with_types(error: E, args: Sequence[Any]) -> E:
    """Add the types of the operands to `error`, unless its message has types."""
    types = [str(cast("Any", a).type) for a in args if isinstance(a, TensorMethods)]
    told = isinstance(error, CallError) or re.search(TYPE, str(error)) or "\n  at " in str(error)
    if not types or error.bare is not None or told:
        return error
    return type(error)(f"{error}; got {' and '.join(types)}")


# Python's name of each operator, and those with a reflected form, such as 1 + x
OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "pow": "pow", "matmul": "matmul", "neg": "neg",
    "abs": "abs", "logical_not": "invert", "logical_and": "and", "logical_or": "or", "less": "lt", "less_equal": "le",
    "remainder": "mod", "floor_divide": "floordiv",
    "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne", "getitem": "getitem",
}  # fmt: skip
REFLECTED = ("add", "sub", "mul", "div", "pow", "matmul", "remainder", "floor_divide", "logical_and", "logical_or")
VARIADIC = ("reshape", "permute", "transpose")  # methods that take one tuple or several integers


def entered(f: F) -> F:
    """Make `f` a public op, register it by name for lower layers, and define the operator of its name, if any."""
    named, name = op(f), f.__name__.rstrip("_")
    METHODS[name] = named
    if name in OPERATORS:
        setattr(TensorMethods, f"__{OPERATORS[name]}__", named)
    if name in REFLECTED:
        setattr(TensorMethods, f"__r{OPERATORS[name]}__", lambda self, a: cast("Any", named)(a, self))
    return named


def method(f: F) -> F:
    """Make `f` a public op and the tensor method of its name. `tools/methods` generates its type stub."""
    named, name = entered(f), f.__name__.rstrip("_")
    if name not in VARIADIC:
        setattr(TensorMethods, name, named)
    return named


def _without(text: str) -> Callable[..., Any]:
    """Make a method that raises TraceError with `text`, for an operator that tensors do not have."""

    def refuse(self: Any, *_: Any) -> Any:
        raise TraceError.here(f"{text}; the tensor is {shown(self)}")

    return refuse


class TensorMethods(Spellings):
    """The operators, methods and properties of tensors. Each class has `type` and `__len__`.

    `entered` replaces each operator without a body by the op of its name, and `method` adds the methods. A function
    that only forwards its arguments would take a fifth of a small op's time.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # an attribute or a property of each kind of tensor

        @property
        def type(self) -> TensorType: ...
        def __len__(self) -> int: ...

    @property
    def dtype(self) -> DType:
        """Element type. As numpy.ndarray.dtype."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """Shape, static in a trace. As numpy.ndarray.shape."""
        return self.type.shape

    @property
    def ndim(self) -> int:
        """Number of axes. As numpy.ndarray.ndim."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements. As numpy.ndarray.size."""
        size = self.type.size
        return Count(size) if type(size) is int else size  # a size that calls choose must not become a plain int

    def __iter__(self) -> Iterator[Self]:
        return (self[k] for k in range(len(self)))

    # `entered` adds the operators of OPERATORS
    __hash__ = object.__hash__

    def __pos__(self) -> Self:
        return self

    __divmod__ = __rdivmod__ = _without("tensors have no divmod: write a // b and a % b")
    __round__ = _without("tensors have no round(x): write tg.round(x), and tg.round(x * 100) / 100 for two decimals")
    __xor__ = __rxor__ = _without("tensors have no ^: write a ** b for a power, a != b where just one of two is true")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _without(
        "tensors have no << and >>: write x * 2**k and x // 2**k"
    )
    __contains__ = _without("a value is not looked up with in: write tg.any(x == value)")
    __delitem__ = _without("tensors never change: make a new one, with slices and tg.concat")

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """Give the tensor another shape, as tg.reshape. Pass one tuple or several integers."""
        return METHODS["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def permute(self, *axes: int | Sequence[int]) -> Self:
        """Reorder the axes, as tg.permute. Pass one tuple or several integers."""
        return METHODS["permute"](self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)

    def transpose(self, *axes: int | Sequence[int] | None) -> Self:
        """Reorder the axes, as tg.transpose. Pass one tuple or several integers, or nothing to reverse them.

        Raises ShapeError for x.transpose(0, 1) of a matrix, which exchanges the axes in PyTorch and not in NumPy.
        """
        if axes == (0, 1) and self.ndim == 2:
            raise ShapeError.here(f"transpose: the order (0, 1) leaves {self.type} as it is; write x.T to swap axes")
        return METHODS["transpose"](self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    @property
    def T(self) -> Self:  # noqa: N802 as NumPy and PyTorch
        """The tensor with its axes reversed, as in NumPy."""
        return METHODS["transpose"](self)

    @property
    def mT(self) -> Self:  # noqa: N802 as NumPy and PyTorch
        """The tensor with its last two axes exchanged: matrices transposed. As numpy.ndarray.mT."""
        return METHODS["swapaxes"](self, -1, -2)

    def astype(self, dtype: DType) -> Self:
        """Convert the elements to `dtype`, as tg.cast."""
        return METHODS["cast"](self, dtype)
