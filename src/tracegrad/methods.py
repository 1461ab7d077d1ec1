"""Operators and methods of tensors, as spellings of the public functions.

The functions live layers above, so they enter themselves in `METHODS` with `@method`; a class that
inherits `TensorMethods` gets them all. VJPs use the same spellings, which lets one rule serve every kind of tensor.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tracegrad.ambient import current_site
from tracegrad.errors import DTypeError, InputError, ShapeError, TracegradError, placed

if TYPE_CHECKING:
    from tracegrad.dtypes import DType
    from tracegrad.ir import Tensor

METHODS: dict[str, Callable[..., Any]] = {}

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=TracegradError)
Operand = Any  # a tensor, an array, or a Python number
Axis = int | Sequence[int] | None
Index = Any  # an integer, a slice, None, Ellipsis, or one tensor or array of i32


TYPE = re.compile(r"\b(f32|i32|u32|bool)\[")


def op(f: F) -> F:
    """Make `f` a public op: errors of its checks carry its name, the types it got, and the user's line."""
    name = f.__name__.rstrip("_")

    @functools.wraps(f)
    def named(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except (ShapeError, DTypeError, InputError) as e:
            raise placed(_with_types(e, args), name, current_site()) from None

    return cast("F", named)


def _with_types(error: E, args: Sequence[Any]) -> E:
    """`error` naming the types of the operands, unless its rule did."""
    types = [str(cast("Tensor", a).type) for a in args if isinstance(a, TensorMethods)]
    if not types or error.bare is not None or TYPE.search(str(error)):
        return error
    return type(error)(f"{error}; got {' and '.join(types)}")


def method(f: F) -> F:
    """Make `f` a public op, and the method or operator of its name."""
    named = op(f)
    METHODS[f.__name__.rstrip("_")] = named
    return named


class TensorMethods:
    """Everything a tensor can do without an import."""

    __slots__ = ()

    # operators
    def __add__(self, other: Operand) -> Tensor:
        return METHODS["add"](self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return METHODS["add"](other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return METHODS["sub"](self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return METHODS["sub"](other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return METHODS["mul"](self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return METHODS["mul"](other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return METHODS["div"](self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return METHODS["div"](other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return METHODS["pow"](self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return METHODS["pow"](other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return METHODS["matmul"](self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return METHODS["matmul"](other, self)

    def __neg__(self) -> Tensor:
        return METHODS["neg"](self)

    def __abs__(self) -> Tensor:
        return METHODS["abs"](self)

    def __lt__(self, other: Operand) -> Tensor:
        return METHODS["less"](self, other)

    def __le__(self, other: Operand) -> Tensor:
        return METHODS["less_equal"](self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return METHODS["greater"](self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return METHODS["greater_equal"](self, other)

    def __eq__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return METHODS["equal"](self, other)

    def __ne__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return METHODS["not_equal"](self, other)

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Tensor:
        return METHODS["logical_and"](self, other)

    def __or__(self, other: Operand) -> Tensor:
        return METHODS["logical_or"](self, other)

    def __rand__(self, other: Operand) -> Tensor:
        return METHODS["logical_and"](other, self)

    def __ror__(self, other: Operand) -> Tensor:
        return METHODS["logical_or"](other, self)

    def __invert__(self) -> Tensor:
        return METHODS["logical_not"](self)

    def __getitem__(self, key: Index) -> Tensor:
        return METHODS["getitem"](self, key)

    # reductions
    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.sum."""
        return METHODS["sum"](self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.mean."""
        return METHODS["mean"](self, axis=axis, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.max."""
        return METHODS["max"](self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.min."""
        return METHODS["min"](self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.prod."""
        return METHODS["prod"](self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.any."""
        return METHODS["any"](self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.all."""
        return METHODS["all"](self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.argmax."""
        return METHODS["argmax"](self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.argmin."""
        return METHODS["argmin"](self, axis=axis, keepdims=keepdims)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """See tg.logsumexp."""
        return METHODS["logsumexp"](self, axis=axis, keepdims=keepdims)

    def var(self, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
        """See tg.var."""
        return METHODS["var"](self, axis=axis, keepdims=keepdims, ddof=ddof)

    def cumsum(self, axis: int | None = None) -> Tensor:
        """See tg.cumsum."""
        return METHODS["cumsum"](self, axis)

    def softmax(self, axis: int = -1) -> Tensor:
        """See tg.softmax."""
        return METHODS["softmax"](self, axis)

    def log_softmax(self, axis: int = -1) -> Tensor:
        """See tg.log_softmax."""
        return METHODS["log_softmax"](self, axis)

    # element by element
    def exp(self) -> Tensor:
        """See tg.exp."""
        return METHODS["exp"](self)

    def log(self) -> Tensor:
        """See tg.log."""
        return METHODS["log"](self)

    def sqrt(self) -> Tensor:
        """See tg.sqrt."""
        return METHODS["sqrt"](self)

    def rsqrt(self) -> Tensor:
        """See tg.rsqrt."""
        return METHODS["rsqrt"](self)

    def sin(self) -> Tensor:
        """See tg.sin."""
        return METHODS["sin"](self)

    def cos(self) -> Tensor:
        """See tg.cos."""
        return METHODS["cos"](self)

    def tanh(self) -> Tensor:
        """See tg.tanh."""
        return METHODS["tanh"](self)

    def erf(self) -> Tensor:
        """See tg.erf."""
        return METHODS["erf"](self)

    def square(self) -> Tensor:
        """See tg.square."""
        return METHODS["square"](self)

    def sign(self) -> Tensor:
        """See tg.sign."""
        return METHODS["sign"](self)

    def reciprocal(self) -> Tensor:
        """See tg.reciprocal."""
        return METHODS["reciprocal"](self)

    def floor(self) -> Tensor:
        """See tg.floor."""
        return METHODS["floor"](self)

    def ceil(self) -> Tensor:
        """See tg.ceil."""
        return METHODS["ceil"](self)

    def round(self) -> Tensor:
        """See tg.round."""
        return METHODS["round"](self)

    def relu(self) -> Tensor:
        """See tg.relu."""
        return METHODS["relu"](self)

    def sigmoid(self) -> Tensor:
        """See tg.sigmoid."""
        return METHODS["sigmoid"](self)

    def silu(self) -> Tensor:
        """See tg.silu."""
        return METHODS["silu"](self)

    def pow(self, exponent: Operand) -> Tensor:
        """See tg.pow."""
        return METHODS["pow"](self, exponent)

    def clip(self, lo: Operand | None = None, hi: Operand | None = None) -> Tensor:
        """See tg.clip."""
        return METHODS["clip"](self, lo, hi)

    def maximum(self, other: Operand) -> Tensor:
        """See tg.maximum."""
        return METHODS["maximum"](self, other)

    def minimum(self, other: Operand) -> Tensor:
        """See tg.minimum."""
        return METHODS["minimum"](self, other)

    def stop_gradient(self) -> Tensor:
        """See tg.stop_gradient."""
        return METHODS["stop_gradient"](self)

    # shape
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """See tg.reshape; the shape may be one tuple or several integers."""
        return METHODS["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def permute(self, *axes: int | Sequence[int]) -> Tensor:
        """See tg.permute; the axes may be one tuple or several integers."""
        return METHODS["permute"](self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)

    def transpose(self, *axes: int | Sequence[int] | None) -> Tensor:
        """See tg.transpose; the axes may be one tuple or several integers, all of them or none."""
        return METHODS["transpose"](self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    @property
    def T(self) -> Tensor:  # noqa: N802 as NumPy and PyTorch
        """`x` with its axes reversed, as NumPy."""
        return METHODS["transpose"](self)

    def flatten(self, start_axis: int = 1) -> Tensor:
        """See tg.flatten."""
        return METHODS["flatten"](self, start_axis)

    def swapaxes(self, a: int, b: int) -> Tensor:
        """See tg.swapaxes."""
        return METHODS["swapaxes"](self, a, b)

    def broadcast_to(self, shape: int | Sequence[int]) -> Tensor:
        """See tg.broadcast_to."""
        return METHODS["broadcast_to"](self, shape)

    def expand_dims(self, axis: int | Sequence[int]) -> Tensor:
        """See tg.expand_dims."""
        return METHODS["expand_dims"](self, axis)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """See tg.squeeze."""
        return METHODS["squeeze"](self, axis)

    def narrow(self, axis: int, start: int, length: int) -> Tensor:
        """See tg.narrow."""
        return METHODS["narrow"](self, axis, start, length)

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> list[Tensor]:
        """See tg.split."""
        return METHODS["split"](self, sizes, axis)

    def pad(self, widths: int | Sequence[Any], value: float = 0) -> Tensor:
        """See tg.pad."""
        return METHODS["pad"](self, widths, value)

    def flip(self, axis: Axis = None) -> Tensor:
        """See tg.flip."""
        return METHODS["flip"](self, axis)

    def repeat(self, repeats: int, axis: int | None = None) -> Tensor:
        """See tg.repeat."""
        return METHODS["repeat"](self, repeats, axis)

    # indexing and types
    def take(self, indices: Operand, axis: int | None = None) -> Tensor:
        """See tg.take."""
        return METHODS["take"](self, indices, axis)

    def take_along_axis(self, indices: Operand, axis: int = -1) -> Tensor:
        """See tg.take_along_axis."""
        return METHODS["take_along_axis"](self, indices, axis)

    def scatter_add(self, indices: Operand, updates: Operand, axis: int = 0) -> Tensor:
        """See tg.scatter_add."""
        return METHODS["scatter_add"](self, indices, updates, axis)

    def matmul(self, other: Operand) -> Tensor:
        """See tg.matmul."""
        return METHODS["matmul"](self, other)

    def astype(self, dtype: DType) -> Tensor:
        """See tg.cast."""
        return METHODS["cast"](self, dtype)
