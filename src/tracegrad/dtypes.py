"""Data types, tensor types, and how each language spells them; shape arithmetic on plain tuples."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import index
from typing import Any, NamedTuple, SupportsIndex, cast

from tracegrad.errors import CallError, DTypeError, ShapeError, TracegradError, refusing
from tracegrad.refusals import shown

Shape = tuple[int, ...]
Dimension = int | str | None  # of an input; each call chooses a size that is None or a name


@dataclass(frozen=True, slots=True)
class DType:
    """The type of a tensor's elements: tg.f32, tg.i32, tg.u32 or tg.bool_. As numpy.dtype.

    name:     such as "f32".
    itemsize: bytes of an element in memory.
    numpy, wgsl, storage: the type's name in NumPy, in the kernels of a GPU, and in a GPU's memory. That memory stores
                    u32 and bool as i32.

    `dtype[shape]` is an `InputType`, for `inputs=`.

    >>> tg.bool_.name, tg.bool_.numpy, tg.bool_.itemsize
    ('bool', 'bool', 4)
    >>> tg.i32[64, 128]
    i32[64,128]
    """

    name: str
    numpy: str
    wgsl: str
    storage: str
    itemsize: int = 4

    def __getitem__(self, shape: Dimension | tuple[Dimension, ...]) -> InputType:
        sizes: tuple[Any, ...] = shape if isinstance(shape, tuple) else (shape,)
        for n in sizes:
            k = 0 if n is None or isinstance(n, str) else whole(n)
            if k is None or k < 0:
                raise ShapeError.here(
                    f"{self}[...]: a size is an integer of at least 0, None or a name such as 'B'; got {shown(n)}"
                )
        return InputType(self, sizes)

    @refusing
    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise CallError with a remedy: types of NumPy and JAX are functions."""
        name = "tg.bool_" if self.name == "bool" else f"tg.{self.name}"
        raise CallError.here(f"{name} is a type: write tg.cast(x, {name}), and for an input {name}[8, 3]")

    __iter__ = None  # Python would ask for self[0], self[1] and so on without an end

    @property
    def is_float(self) -> bool:
        """True for f32, the only type that a program differentiates. As torch.dtype.is_floating_point."""
        return self.name == "f32"

    @property
    def is_int(self) -> bool:
        """True for i32 and u32. As numpy.issubdtype(dtype, numpy.integer)."""
        return self.name in ("i32", "u32")

    def __repr__(self) -> str:
        return self.name


f32 = DType("f32", "float32", "f32", "f32")
i32 = DType("i32", "int32", "i32", "i32")
u32 = DType("u32", "uint32", "u32", "i32")
bool_ = DType("bool", "bool", "bool", "i32")

f16 = DType("f16", "float16", "f32", "f16", 2)  # half-precision storage of an f32 between kernels; no tensor has it

DTYPES = {d.name: d for d in (f32, i32, u32, bool_)}
LARGEST_F32 = (2.0 - 2.0**-23) * 2.0**127
STORED = {d.name: d for d in (f32, i32, f16)}  # element types of buffers


def nearest_f32(x: float) -> float:
    """Round `x` to f32. Too large numbers become infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except (OverflowError, struct.error):  # of a float, and of an int
        return math.inf if x > 0 else -math.inf


class TensorType(NamedTuple):
    """The type of a tensor: `dtype`, the type of its elements, and `shape`, a tuple of integers. Prints as `f32[2,3]`.

    As jax.ShapeDtypeStruct.

    >>> tg.zeros((2, 3)).type
    f32[2,3]
    """

    dtype: DType
    shape: Shape

    @refusing
    def __call__(self, *_: Any) -> Any:
        """Raise CallError with a remedy: `type` of a tensor of PyTorch is a function."""
        raise CallError.here(f"x.type is the type of a tensor, {self}: write tg.cast(x, tg.f32), or another dtype")

    @property
    def size(self) -> int:
        """Number of elements. As numpy.ndarray.size."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes. As numpy.ndarray.ndim."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    __str__ = __repr__


class InputType(NamedTuple):
    """The declared type of an input: `dtype` and `shape`. Write `tg.i32["B", 128]`; it prints as `i32[B,128]`.

    Each entry of `shape` is an integer, or a size that each call chooses: None, or a name. Axes with the same name have
    the same size within a call. As keras.Input and tf.TensorSpec, with None for a size that varies.

    >>> tg.i32["B", 128].shape
    ('B', 128)
    """

    dtype: DType
    shape: tuple[Dimension, ...]

    __repr__ = __str__ = TensorType.__repr__


def as_dtype(value: Any) -> DType:
    """Return `value` as a DType, or raise DTypeError.

    value: a DType, a name such as "f32" or "float32", a class such as float or np.float32, or a dtype of NumPy or
           PyTorch.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, type):
        name = {"float": "f32", "int": "i32"}.get(value.__name__, value.__name__)
    else:
        name = str(getattr(value, "name", value)).removeprefix("torch.")
    for d in DTYPES.values():
        if name in (d.name, d.numpy):
            return d
    hint = "; a shape goes in one tuple, (2, 3)" if isinstance(value, int) else ""
    raise DTypeError(f"{shown(value)} is not a dtype; use one of tg.f32, tg.i32, tg.u32, tg.bool_{hint}")


def number_kind(x: Any) -> str:
    """Return the `kind` of the dtype of `x`: "f" for ml_dtypes.bfloat16 and the like, too; "" without a dtype."""
    dtype = getattr(x, "dtype", None)
    return "f" if "float" in getattr(dtype, "name", "") else getattr(dtype, "kind", "")


def scalar_dtype(value: bool | int | float) -> DType:
    """Return the default dtype of a Python number."""
    return bool_ if isinstance(value, bool) else i32 if isinstance(value, int) else f32


Axes = int | Sequence[int] | None


def whole(value: object) -> int | None:
    """Return `value` as an int if it is an integer of Python, NumPy or the like; None for anything else and for a bool.

    Raises the error of a traced scalar, which has no value."""
    if type(value) is int:
        return value
    # a number that depends on a size that calls choose: `int` would make it a constant
    if isinstance(value, int) and hasattr(value, "note"):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or getattr(value, "ndim", 0):
        return None
    # An eager tensor counts if its dtype is an integer. A traced tensor raises an error of its own.
    try:
        return int(index(cast("SupportsIndex", value)))  # x.size is an int with a remedy, which JAX does not take
    except TypeError as e:
        if isinstance(e, TracegradError):
            raise
        return None  # an array of several elements, or of floats


def integer(value: object, what: str) -> int:
    """Return `value` as an int. Raises ShapeError naming `what` if it is not an integer."""
    n = whole(value)
    if n is not None:
        return n
    hint = ""
    if isinstance(value, float) and value.is_integer():
        hint = f"; write {int(value)}, or // for a division"
    raise ShapeError(f"{what} must be an integer, got {shown(value)}{hint}")


def count(value: object, what: str) -> int:
    """Return `value` as an int of at least 0. Raises ShapeError naming `what` otherwise."""
    n = integer(value, what)
    if n < 0:
        raise ShapeError(f"{what} must not be negative, got {n}")
    return n


def check_integers(who: str, **values: object) -> None:
    """Raise ShapeError naming the caller's line for a value that is no integer."""
    for name, value in values.items():
        try:
            integer(value, name)
        except ShapeError as e:
            raise ShapeError.here(f"{who}: {e}") from None


def integers(values: object, what: str) -> tuple[int, ...]:
    """Return one integer or a sequence of them, as a tuple. Raises ShapeError naming `what` for anything else."""
    if whole(values) is not None or isinstance(values, float) or getattr(values, "shape", None) == ():
        return (integer(values, what),)
    if isinstance(values, (str, dict, set)) or not hasattr(values, "__iter__"):
        raise ShapeError(f"{what} must be an integer or a tuple of integers, got {shown(values)}")
    return tuple([integer(n, what) for n in cast("Iterable[object]", values)])


def normalize_axis(axis: int, ndim: int) -> int:
    """Return `axis` counted from the front. Raises ShapeError outside [-ndim, ndim)."""
    if isinstance(axis, bool):
        raise ShapeError(f"axis must be an integer, got {axis}; keepdims={axis} is an argument of its own")
    axis = integer(axis, "axis")
    if not -ndim <= axis < ndim:
        known = f"valid are {-ndim} to {ndim - 1}" if ndim else "a scalar has none"
        raise ShapeError(f"axis {axis} is out of range for {ndim} dimension{'s' if ndim != 1 else ''}; {known}")
    return axis % ndim


def normalize_axes(axis: Axes, ndim: int) -> tuple[int, ...]:
    """Return sorted axes, counted from the front; None means all. Raises ShapeError for a bad or repeated axis."""
    return tuple(sorted(ordered_axes(axis, ndim)))


def ordered_axes(axis: Axes, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the front, in the given order, for callers that have a value for each axis.

    Raises ShapeError for a bad axis, and for an axis named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, bool):
        normalize_axis(axis, ndim)
    if hasattr(axis, "type"):
        hint = "of two tensors, write tg.maximum(a, b) or tg.minimum(a, b)"
        raise ShapeError(f"axis must be an integer or integers, got {getattr(axis, 'type')}; {hint}")  # noqa: B009
    out = tuple([normalize_axis(a, ndim) for a in integers(axis, "axis")])
    if len(set(out)) != len(out):
        raise ShapeError(f"axis {axis} names the same dimension twice; leave one out")
    return out


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all of `shapes` broadcast to, by NumPy's rule. Raises ShapeError if there is none."""
    out: list[int] = []
    for dims in zip_longest(*(reversed(s) for s in shapes), fillvalue=1):
        sizes = [d for d in dims if d != 1]
        if any(d != sizes[0] for d in sizes[1:]):
            raise ShapeError(
                f"shapes {' and '.join(map(show, shapes))} do not broadcast: "
                f"{' and '.join(map(str, sorted({*sizes})))} differ on the same axis"
            )
        out.append(sizes[0] if sizes else 1)
    return tuple(reversed(out))


def show(shape: Sequence[int]) -> str:
    """Return a shape as text, such as `[2,3]`, as types print it."""
    return f"[{','.join(map(str, shape))}]"


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides, in elements."""
    out: list[int] = []
    step = 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def resolve_reshape(shape: Sequence[int], size: int) -> Shape:
    """Return `shape` with one -1 filled in. Raises ShapeError if it cannot hold `size` elements."""
    dims = tuple(shape)
    if dims.count(-1) > 1:
        raise ShapeError(f"cannot infer more than one -1 in {show(dims)}; write all sizes but one")
    if any(n < -1 for n in dims):
        raise ShapeError(f"a size cannot be negative, got {show(dims)}; -1 for one size means that reshape infers it")
    known = math.prod(n for n in dims if n != -1)
    if -1 in dims:
        if known == 0 or size % known:
            raise ShapeError(f"cannot infer -1 in {show(dims)}: {size} elements cannot be divided by {known}")
        dims = tuple(size // known if n == -1 else n for n in dims)
    if math.prod(dims) != size:
        hint = "; -1 in place of one size stands for what is left" if len(dims) > 1 else ""
        raise ShapeError(f"cannot reshape {size} elements to {show(dims)}, which holds {math.prod(dims)}{hint}")
    return dims


def all_of(types: Iterable[TensorType]) -> str:
    """Return the types as text, joined by "and", for an error message."""
    return " and ".join(map(str, types))


def axis_first(shape: Shape, axis: int) -> Shape:
    """Return `shape` with `axis` moved to the front."""
    return (shape[axis], *shape[:axis], *shape[axis + 1 :])


def reduced_shape(shape: Shape, axes: Sequence[int]) -> Shape:
    """Return `shape` with the `axes` set to 1."""
    return tuple(1 if d in axes else n for d, n in enumerate(shape))
