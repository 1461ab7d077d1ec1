"""Operators and methods of tensors, as spellings of the public functions.

The functions live layers above, so they enter themselves in `METHODS` with `@method`; a class that
inherits `TensorMethods` gets them all. VJPs use the same spellings, which lets one rule serve every kind of tensor.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from tracegrad.ambient import current_site
from tracegrad.errors import DTypeError, InputError, ShapeError, TraceError, TracegradError, placed
from tracegrad.shapes import Axes

if TYPE_CHECKING:
    from tracegrad.dtypes import DType
    from tracegrad.ir import Tensor

METHODS: dict[str, Callable[..., Any]] = {}
# The engine that runs ops at once, (op, kinds, args, kwargs) -> result: it needs NumPy, and enters itself here.
AT_ONCE: list[Callable[..., Any]] = []

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="TensorMethods")
E = TypeVar("E", bound=TracegradError)
Operand = Any  # a tensor, an array, or a Python number
Index = Any  # an integer, a slice, None, Ellipsis, or one tensor or array of i32


TYPE = re.compile(r"\b(f32|f64|i32|u32|bool)\[")


class Op:
    """A public function, and what the engine prepared for it."""

    __slots__ = ("calls", "function", "given", "parameters", "plans", "signature")

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
        marked = many or ["*"] * bool(m)
        self.signature = ", ".join([*names[:n], *marked, *names[n : n + m], *any_named])
        passed = ", ".join([f"{x}={x}" for x in names[n : n + m]] + any_named)
        self.given = f"({''.join([f'{x}, ' for x in [*names[:n], *many]])}), dict({passed})"


# What stands behind the name of an op: its own signature, written out, because one of *args and **kwargs would cost a
# small op on values half as much as it takes NumPy.
ENTRY = """\
def entry({signature}):
    try:
        try:
            _call = _calls[{kinds}]
        except KeyError:
            _call = None
        return _new({kinds}, {given}) if _call is None else _call({parameters})
    except _errors as _e:
        raise _failed(_e, ({parameters})) from None
"""


def op(f: F) -> F:
    """Make `f` a public op: it makes nodes in a trace and for traced operands, and runs at once elsewhere.

    Errors of its checks carry its name, the types it got, and the user's line.
    """
    name, entry = f.__name__.rstrip("_"), Op(f)

    def new(kinds: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = AT_ONCE[0](entry, kinds, args, kwargs) if AT_ONCE else NotImplemented
        return f(*args, **kwargs) if result is NotImplemented else result

    def failed(error: TracegradError, args: tuple[Any, ...]) -> TracegradError:
        return placed(_with_types(error, args), name, current_site())

    kinds = [f"_type({x})" for x in entry.parameters]
    source = ENTRY.format(
        signature=entry.signature,
        kinds=kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})",
        parameters="".join([f"{x}, " for x in entry.parameters]),
        given=entry.given,
    )
    errors = (ShapeError, DTypeError, InputError, TraceError)
    scope = {"_calls": entry.calls, "_new": new, "_failed": failed, "_errors": errors, "_type": type}
    exec(_compiled(source), scope)
    named: Any = scope["entry"]
    named.__defaults__, named.__kwdefaults__ = f.__defaults__, f.__kwdefaults__
    functools.update_wrapper(named, f)
    named.entry = entry
    return cast("F", named)


@functools.cache
def _compiled(source: str) -> CodeType:
    return compile(source, f"{__file__}:written", "exec")  # of the package, so that no error takes it for the user's


def _with_types(error: E, args: Sequence[Any]) -> E:
    """`error` naming the types of the operands, unless its rule did."""
    types = [str(cast("Tensor", a).type) for a in args if isinstance(a, TensorMethods)]
    if not types or error.bare is not None or TYPE.search(str(error)) or "\n  at " in str(error):
        return error
    return type(error)(f"{error}; got {' and '.join(types)}")


def method(f: F) -> F:
    """Make `f` a public op, and the method or operator of its name."""
    named = op(f)
    METHODS[f.__name__.rstrip("_")] = named
    return named


# Methods that only pass their arguments on. The function is looked up when it is called: it is defined layers above.
def _unary(name: str):
    def spelled(self: S) -> S:
        return METHODS[name](self)

    return _itself(spelled, name)


def _binary(name: str):
    def spelled(self: S, other: Operand) -> S:
        return METHODS[name](self, other)

    return _itself(spelled, name)


def _reflected(name: str):
    def spelled(self: S, other: Operand) -> S:
        return METHODS[name](other, self)

    return _described(spelled, name)


def _reduction(name: str):
    def spelled(self: S, axis: Axes = None, keepdims: bool = False) -> S:
        return METHODS[name](self, axis, keepdims)

    return _itself(spelled, name)


def _itself(f: F, name: str) -> F:
    """`f`, which passes on to the op just what it gets: eager tensors have the op in its place."""
    f.op = name  # pyright: ignore[reportFunctionMemberAccess]
    return _described(f, name)


def _described(f: F, name: str) -> F:
    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"See tg.{name}."
    return f


class TensorMethods:
    """Everything a tensor can do without an import."""

    __slots__ = ()

    # operators
    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("div"), _reflected("div")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __and__, __rand__ = _binary("logical_and"), _reflected("logical_and")
    __or__, __ror__ = _binary("logical_or"), _reflected("logical_or")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __neg__, __abs__, __invert__ = _unary("neg"), _unary("abs"), _unary("logical_not")
    __getitem__ = _binary("getitem")
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        return METHODS["equal"](self, other)

    def __ne__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        return METHODS["not_equal"](self, other)

    # the operators by name
    add, sub, mul, div = _binary("add"), _binary("sub"), _binary("mul"), _binary("div")
    neg, abs = _unary("neg"), _unary("abs")

    # element by element
    exp, log, sqrt, rsqrt = _unary("exp"), _unary("log"), _unary("sqrt"), _unary("rsqrt")
    sin, cos, tanh, erf = _unary("sin"), _unary("cos"), _unary("tanh"), _unary("erf")
    square, sign, reciprocal = _unary("square"), _unary("sign"), _unary("reciprocal")
    floor, ceil, round = _unary("floor"), _unary("ceil"), _unary("round")
    relu, sigmoid, silu = _unary("relu"), _unary("sigmoid"), _unary("silu")
    softplus = _unary("softplus")
    stop_gradient = _unary("stop_gradient")
    pow, maximum, minimum = _binary("pow"), _binary("maximum"), _binary("minimum")
    matmul = _binary("matmul")

    # reductions
    sum, mean, prod = _reduction("sum"), _reduction("mean"), _reduction("prod")
    max, min, argmax = _reduction("max"), _reduction("min"), _reduction("argmax")
    argmin, logsumexp = _reduction("argmin"), _reduction("logsumexp")
    any, all = _reduction("any"), _reduction("all")

    def var(self, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Self:
        """See tg.var."""
        return METHODS["var"](self, axis=axis, keepdims=keepdims, ddof=ddof)

    def variance(self, axis: Axes = None, keepdims: bool = False, correction: int = 1) -> Self:
        """See tg.variance."""
        return METHODS["variance"](self, axis, keepdims, correction)

    def cumsum(self, axis: int | None = None) -> Self:
        """See tg.cumsum."""
        return METHODS["cumsum"](self, axis)

    def softmax(self, axis: int = -1) -> Self:
        """See tg.softmax."""
        return METHODS["softmax"](self, axis)

    def log_softmax(self, axis: int = -1) -> Self:
        """See tg.log_softmax."""
        return METHODS["log_softmax"](self, axis)

    def leaky_relu(self, alpha: float = 0.01) -> Self:
        """See tg.leaky_relu."""
        return METHODS["leaky_relu"](self, alpha)

    def gelu(self, approximate: str = "none") -> Self:
        """See tg.gelu."""
        return METHODS["gelu"](self, approximate)

    def hardtanh(self, lo: float = -1.0, hi: float = 1.0) -> Self:
        """See tg.hardtanh."""
        return METHODS["hardtanh"](self, lo, hi)

    tanhshrink = _unary("tanhshrink")

    def elu(self, alpha: float = 1.0) -> Self:
        """See tg.elu."""
        return METHODS["elu"](self, alpha)

    def clip(self, lo: Operand | None = None, hi: Operand | None = None) -> Self:
        """See tg.clip."""
        return METHODS["clip"](self, lo, hi)

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

    def flatten(self, start_axis: int = 1) -> Self:
        """See tg.flatten."""
        return METHODS["flatten"](self, start_axis)

    def swapaxes(self, a: int, b: int) -> Self:
        """See tg.swapaxes."""
        return METHODS["swapaxes"](self, a, b)

    def broadcast_to(self, shape: int | Sequence[int]) -> Self:
        """See tg.broadcast_to."""
        return METHODS["broadcast_to"](self, shape)

    def expand_dims(self, axis: int | Sequence[int]) -> Self:
        """See tg.expand_dims."""
        return METHODS["expand_dims"](self, axis)

    def squeeze(self, axis: Axes = None) -> Self:
        """See tg.squeeze."""
        return METHODS["squeeze"](self, axis)

    def narrow(self, axis: int, start: int, length: int) -> Self:
        """See tg.narrow."""
        return METHODS["narrow"](self, axis, start, length)

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> list[Self]:
        """See tg.split."""
        return METHODS["split"](self, sizes, axis)

    def pad(self, widths: int | Sequence[Any], value: float = 0) -> Self:
        """See tg.pad."""
        return METHODS["pad"](self, widths, value)

    def flip(self, axis: Axes = None) -> Self:
        """See tg.flip."""
        return METHODS["flip"](self, axis)

    def repeat(self, repeats: int, axis: int | None = None) -> Self:
        """See tg.repeat."""
        return METHODS["repeat"](self, repeats, axis)

    # indexing and types
    def take(self, indices: Operand, axis: int | None = None) -> Self:
        """See tg.take."""
        return METHODS["take"](self, indices, axis)

    def take_along_axis(self, indices: Operand, axis: int = -1) -> Self:
        """See tg.take_along_axis."""
        return METHODS["take_along_axis"](self, indices, axis)

    def scatter_add(self, indices: Operand, updates: Operand, axis: int = 0) -> Self:
        """See tg.scatter_add."""
        return METHODS["scatter_add"](self, indices, updates, axis)

    def astype(self, dtype: DType) -> Self:
        """See tg.cast."""
        return METHODS["cast"](self, dtype)
