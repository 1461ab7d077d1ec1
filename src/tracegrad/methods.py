"""Operators and methods of tensors, as spellings of the public functions.

The functions live layers above, so they enter themselves in `METHODS` and `TensorMethods` with `@method`; a class that
inherits the latter gets them all. VJPs use the same spellings, which lets one rule serve every kind of tensor.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from tracegrad.ambient import current_site
from tracegrad.errors import CallError, DTypeError, InputError, ShapeError, TraceError, TracegradError, placed
from tracegrad.refusals import check_call, shown
from tracegrad.shapes import Axes

if TYPE_CHECKING:
    from tracegrad.dtypes import DType
    from tracegrad.ir import Tensor

METHODS: dict[str, Callable[..., Any]] = {}
# The engine that runs ops at once, (op, kinds, args, kwargs) -> result: it needs NumPy, and enters itself here.
AT_ONCE: list[Callable[..., Any]] = []

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=TracegradError)
Operand = Any  # a tensor, an array, or a Python number
Index = Any  # an integer, a slice, None, Ellipsis, or one tensor or array of i32


TYPE = r"\b(f32|f64|i32|u32|bool)\["


class Missing:
    """What stands for an argument that a call leaves out and needs."""


MISSING = Missing()


class Op:
    """A public function, and what the engine prepared for it."""

    __slots__ = ("calls", "everything", "function", "given", "parameters", "plans", "signature", "unexpected")

    def __init__(self, f: Callable[..., Any]):
        """f: a function of Python."""
        self.function = f
        self.plans: dict[Any, Any] = {}  # by all that decides: types of tensors, values of settings
        self.calls: dict[Any, Callable[..., Any]] = {}  # by the Python types of the arguments
        code = f.__code__
        names, n, m = list(code.co_varnames), code.co_argcount, code.co_kwonlyargcount
        stars = [s for s, flag in (("*", CO_VARARGS), ("**", CO_VARKEYWORDS)) if code.co_flags & flag]
        self.parameters = names[: n + m + len(stars)]
        rest = [star + name for star, name in zip(stars, names[n + m :])]
        many, any_named = [x for x in rest if x[1] != "*"], [x for x in rest if x[1] == "*"]
        more, other = [] if many else ["*_more"], [] if any_named else ["**_other"]
        self.signature = ", ".join([*names[:n], *many, *more, *names[n : n + m], *any_named, *other])
        self.unexpected = " or ".join([x.lstrip("*") for x in more + other]) or "False"
        passed = [f"{x}={x}" for x in names[n : n + m]] + any_named
        self.given = _call([*names[:n], *many], passed)
        self.everything = _call([*names[:n], *many, *more], passed + other)

    def refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """CallError for what Python would refuse: arguments that are missing, too many or unknown."""
        given = {x: a for x, a in kwargs.items() if a is not MISSING}
        if any(a is MISSING for a in args):
            given |= {x: a for x, a in zip(self.parameters, args) if a is not MISSING}
            args = ()
        check_call(name, self.function, args, given)


def _call(positional: Sequence[str], named: Sequence[str]) -> str:
    return f"({''.join([f'{x}, ' for x in positional])}), dict({', '.join(named)})"


# What stands behind the name of an op: its own signature, written out, because one of *args and **kwargs would cost a
# small op on values half as much as it takes NumPy. What Python would refuse is collected, and gets a remedy; that
# costs a call 15 to 30 ns.
ENTRY = """\
def entry({signature}):
    try:
        if {unexpected}:
            _refuse({everything})
        try:
            _call = _calls[{kinds}]
        except KeyError:
            _call = None
        return _new({kinds}, {given}) if _call is None else _call({parameters})
    except _errors as _e:
        raise _failed(_e, ({parameters})) from None
    except _python as _e:
        raise _misused(_e, ({parameters})) from _e
"""
ERRORS = (ShapeError, DTypeError, InputError, TraceError, CallError)
# What Python raises where an argument is of a type that no check of the op foresaw
PYTHON = (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError)


def op(f: F) -> F:
    """Make `f` a public op: it makes nodes in a trace and for traced operands, and runs at once elsewhere.

    Errors of its checks carry its name, the types it got, and the user's line.
    """
    name, entry = f.__name__.rstrip("_"), Op(f)

    def new(kinds: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if Missing in (kinds if len(entry.parameters) > 1 else (kinds,)):
            entry.refuse(name, args, kwargs)
        result = AT_ONCE[0](entry, kinds, args, kwargs) if AT_ONCE else NotImplemented
        return f(*args, **kwargs) if result is NotImplemented else result

    def failed(error: TracegradError, args: tuple[Any, ...]) -> TracegradError:
        return placed(with_types(error, args), name, current_site())

    def misused(error: Exception, args: tuple[Any, ...]) -> TracegradError:
        given = ", ".join([f"{x}={shown(a)}" for x, a in zip(entry.parameters, args)])
        return placed(CallError(f"cannot work with {given}: {error}; see help(tg.{name})"), name, current_site())

    kinds = [f"_type({x})" for x in entry.parameters]
    source = ENTRY.format(
        signature=entry.signature,
        unexpected=entry.unexpected,
        everything=entry.everything,
        kinds=kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})",
        parameters="".join([f"{x}, " for x in entry.parameters]),
        given=entry.given,
    )
    scope = {
        "_calls": entry.calls, "_new": new, "_failed": failed, "_errors": ERRORS, "_type": type, "_python": PYTHON,
        "_misused": misused, "_refuse": functools.partial(entry.refuse, name),
    }  # fmt: skip
    exec(_compiled(source), scope)
    named: Any = scope["entry"]
    needed, code = f.__code__.co_argcount - len(f.__defaults__ or ()), f.__code__
    named.__defaults__ = (MISSING,) * needed + (f.__defaults__ or ())
    only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    named.__kwdefaults__ = dict.fromkeys(only, MISSING) | (f.__kwdefaults__ or {})
    functools.update_wrapper(named, f)
    named.entry = entry
    return cast("F", named)


@functools.cache
def _compiled(source: str) -> CodeType:
    return compile(source, f"{__file__}:written", "exec")  # of the package, so that no error takes it for the user's


def with_types(error: E, args: Sequence[Any]) -> E:
    """`error` naming the types of the operands, unless its rule did."""
    types = [str(cast("Tensor", a).type) for a in args if isinstance(a, TensorMethods)]
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


def method(f: F) -> F:
    """Make `f` a public op, and the method and operator of its name where `TensorMethods` declares them."""
    named, name = op(f), f.__name__.rstrip("_")
    METHODS[name] = named
    operator, declared = OPERATORS.get(name, ""), vars(TensorMethods)
    for spelling in (name, f"__{operator}__"):
        if spelling in declared and name not in VARIADIC:
            setattr(TensorMethods, spelling, named)
    if f"__r{operator}__" in declared:
        setattr(TensorMethods, f"__r{operator}__", lambda self, a: cast("Any", named)(a, self))
    return named


def _without(text: str) -> Callable[..., Any]:
    """An operator that tensors do not have."""

    def refuse(self: Any, *_: Any) -> Any:
        raise TraceError.here(f"{text}; the tensor is {shown(self)}")

    return refuse


class TensorMethods:
    """Everything a tensor can do without an import.

    A method without a body is the op of its name: `method` puts it here, because a function that only passed its
    arguments on would take a fifth of a small op's time.
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

    # the operators by name
    def add(self, b: Operand) -> Self: ...
    def sub(self, b: Operand) -> Self: ...
    def mul(self, b: Operand) -> Self: ...
    def div(self, b: Operand) -> Self: ...
    def neg(self) -> Self: ...
    def abs(self) -> Self: ...
    def pow(self, b: Operand) -> Self: ...
    def matmul(self, b: Operand) -> Self: ...

    # element by element
    def exp(self) -> Self: ...
    def log(self) -> Self: ...
    def sqrt(self) -> Self: ...
    def rsqrt(self) -> Self: ...
    def sin(self) -> Self: ...
    def cos(self) -> Self: ...
    def tanh(self) -> Self: ...
    def erf(self) -> Self: ...
    def square(self) -> Self: ...
    def sign(self) -> Self: ...
    def reciprocal(self) -> Self: ...
    def floor(self) -> Self: ...
    def ceil(self) -> Self: ...
    def round(self) -> Self: ...
    def relu(self) -> Self: ...
    def sigmoid(self) -> Self: ...
    def silu(self) -> Self: ...
    def softplus(self) -> Self: ...
    def tanhshrink(self) -> Self: ...
    def stop_gradient(self) -> Self: ...
    def maximum(self, b: Operand) -> Self: ...
    def minimum(self, b: Operand) -> Self: ...
    def leaky_relu(self, alpha: float = 0.01) -> Self: ...
    def gelu(self, approximate: str = "none") -> Self: ...
    def hardtanh(self, lo: float = -1.0, hi: float = 1.0) -> Self: ...
    def elu(self, alpha: float = 1.0) -> Self: ...
    def clip(self, lo: Operand | None = None, hi: Operand | None = None) -> Self: ...

    # reductions
    def sum(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def mean(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def prod(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def max(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def min(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def argmax(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def argmin(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def logsumexp(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def any(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def all(self, axis: Axes = None, keepdims: bool = False) -> Self: ...
    def var(self, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Self: ...
    def variance(self, axis: Axes = None, keepdims: bool = False, correction: int = 1) -> Self: ...
    def cumsum(self, axis: int | None = None) -> Self: ...
    def softmax(self, axis: int = -1) -> Self: ...
    def log_softmax(self, axis: int = -1) -> Self: ...

    # shape
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

    def flatten(self, start_axis: int = 1) -> Self: ...
    def swapaxes(self, a: int, b: int) -> Self: ...
    def broadcast_to(self, shape: int | Sequence[int]) -> Self: ...
    def expand_dims(self, axis: int | Sequence[int]) -> Self: ...
    def squeeze(self, axis: Axes = None) -> Self: ...
    def narrow(self, axis: int, start: int, length: int) -> Self: ...
    def split(self, sizes: int | Sequence[int], axis: int = 0) -> list[Self]: ...
    def pad(self, widths: int | Sequence[Any], value: float = 0) -> Self: ...
    def flip(self, axis: Axes = None) -> Self: ...
    def repeat(self, repeats: int, axis: int | None = None) -> Self: ...

    # indexing and types
    def take(self, indices: Operand, axis: int | None = None) -> Self: ...
    def take_along_axis(self, indices: Operand, axis: int = -1) -> Self: ...
    def scatter_add(self, indices: Operand, updates: Operand, axis: int = 0) -> Self: ...

    def astype(self, dtype: DType) -> Self:
        """See tg.cast."""
        return METHODS["cast"](self, dtype)
