"""The subset of NumPy that the engine needs, on the standard library, for Python in a browser tab without NumPy.

Names and meanings are those of NumPy: contiguous arrays, and the few functions for inputs, results and checkpoints.
No part of a step is computed here. Using a name that is missing raises an AttributeError that asks for NumPy.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import math
import struct
from array import array as packed
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

Shape = tuple[int, ...]
integer = int


class DType(NamedTuple):
    """An element type."""

    name: str
    kind: str
    itemsize: int
    format: Any  # code for memoryview and array

    def newbyteorder(self, _order: str) -> DType:
        """Return the type itself: WebAssembly and files are little-endian."""
        return self


bool_ = DType("bool", "b", 1, "?")
uint8, uint16, uint32 = (DType(f"uint{8 * n}", "u", n, c) for n, c in ((1, "B"), (2, "H"), (4, "I")))
int8, int16, int32 = (DType(f"int{8 * n}", "i", n, c) for n, c in ((1, "b"), (2, "h"), (4, "i")))
int64, uint64 = DType("int64", "i", 8, "q"), DType("uint64", "u", 8, "Q")
float32, float64 = DType("float32", "f", 4, "f"), DType("float64", "f", 8, "d")
HALF = DType("float16", "f", 2, "e")  # only read from files, as float32
_ALL = (bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64, float32, float64)
_NAMED = {d.name: d for d in _ALL} | {f"{d.kind}{d.itemsize}": d for d in (*_ALL, HALF)}


def dtype(name: Any) -> DType:
    """Return the type for a name such as "float32" or "<f4", or the type itself."""
    return name if isinstance(name, DType) else _NAMED[name.lstrip("<=")]


_dtype = dtype  # for functions with an argument `dtype`


class Array:
    """A contiguous array: `flat`, a memoryview of its elements in row-major order, and a shape."""

    __slots__ = ("dtype", "flat", "shape")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, flat: Any, shape: Shape, dtype: DType) -> None:
        self.flat, self.shape, self.dtype = flat, shape, dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.flat)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.flat.nbytes

    def shaped(self) -> memoryview:
        """Return a memoryview with this shape; flat without elements, because memoryview cannot shape none."""
        return self.flat.cast("B").cast(self.dtype.format, self.shape) if self.size else self.flat

    def __buffer__(self, flags: int) -> memoryview:
        return self.shaped()

    def reshape(self, *shape: Any) -> Array:
        """Return the same elements in another shape; one axis can be -1. Raises ValueError if sizes differ."""
        sizes = list(cast("Sequence[int]", shape if not shape or isinstance(shape[0], int) else shape[0]))
        if -1 in sizes:
            sizes[sizes.index(-1)] = self.size // max(1, -math.prod(sizes))
        if math.prod(sizes) != self.size:
            raise ValueError(f"cannot reshape an array of size {self.size} into shape {tuple(sizes)}")
        return Array(self.flat, tuple(sizes), self.dtype)

    def view(self, other: Any) -> Array:
        """Return the same bytes as another type of equal size."""
        kind = dtype(other)
        return Array(self.flat.cast("B").cast(kind.format), self.shape, kind)

    def astype(self, other: Any, order: str = "C", copy: bool = True) -> Array:
        """Return the values in another type; without `copy`, the array itself where it has that type."""
        kind = dtype(other)
        if kind != self.dtype:
            return _made(self.flat, self.shape, kind)
        return self.copy() if copy else self

    def copy(self) -> Array:
        """Return a copy."""
        return _of_bytes(bytearray(self.flat.cast("B") if self.size else b""), self.shape, self.dtype)

    def tobytes(self) -> bytes:
        """Return the bytes, in row-major order."""
        return self.flat.tobytes()

    def tolist(self) -> Any:
        """Return nested lists, or a number."""
        return self.shaped().tolist()

    def min(self) -> Any:
        """Return the least element."""
        return min(self.flat)

    def max(self) -> Any:
        """Return the greatest element."""
        return max(self.flat)

    def sum(self) -> Any:
        """Return the sum of all elements."""
        return sum(self.flat)

    def all(self) -> bool:
        """Return True if no element is 0."""
        return 0 not in self.flat

    def any(self) -> bool:
        """Return True if some element is not 0."""
        return builtins.any(self.flat)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(self.shape[0]))

    def __float__(self) -> float:
        return float(self._only())

    def __int__(self) -> int:
        return int(self._only())

    def __bool__(self) -> bool:
        return bool(self._only())

    def _only(self) -> Any:
        if self.size != 1:
            raise TypeError(f"an array of shape {self.shape} is not a single number")
        return self.flat[0]

    def __getitem__(self, index: Any) -> Any:
        """Select by integers, slices and one Ellipsis. A range of rows is a view; anything else is a copy."""
        axes = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
        if Ellipsis in axes:
            at = axes.index(Ellipsis)
            axes = (*axes[:at], *[slice(None)] * (self.ndim - len(axes) + 1), *axes[at + 1 :])
        row = math.prod(self.shape[1:])
        if len(axes) == 1 and isinstance(axes[0], int):
            k = range(self.shape[0])[axes[0]]
            return (
                Array(self.flat[k * row : (k + 1) * row], self.shape[1:], self.dtype) if self.ndim > 1 else self.flat[k]
            )
        chosen: list[Any] = [range(n)[a] for n, a in zip(self.shape, (*axes, *[slice(None)] * (self.ndim - len(axes))))]
        shape = tuple(len(c) for c in chosen if isinstance(c, range))
        if len(axes) == 1 and chosen[0].step == 1:
            rows = chosen[0]
            return Array(self.flat[rows.start * row : rows.start * row + len(rows) * row], shape, self.dtype)
        values = [self.flat[k] for k in self._places(chosen)]
        return _made(values, shape, self.dtype) if shape else values[0]

    def __setitem__(self, index: slice | tuple[slice, ...], values: Array | float) -> None:
        """Overwrite the elements that slices without a step select, by those of an array or by a number."""
        axes = index if isinstance(index, tuple) else (index,)
        chosen = [range(n)[a] for n, a in zip(self.shape, (*axes, *[slice(None)] * (self.ndim - len(axes))))]
        given = values if isinstance(values, Array) else full(math.prod(map(len, chosen)), values, self.dtype)
        *outer, run = chosen
        for n, k in enumerate(self._places([*outer, run.start])):
            self.flat[k : k + len(run)] = given.flat[n * len(run) : (n + 1) * len(run)]

    def _places(self, chosen: Sequence[int | range]) -> Iterator[int]:
        """Yield the index in `flat` of each element at the chosen coordinates, in row-major order."""
        strides = [math.prod(self.shape[d + 1 :]) for d in range(self.ndim)]
        steps = [[k * s for k in ((c,) if isinstance(c, int) else c)] for c, s in zip(chosen, strides)]
        return map(sum, itertools.product(*steps))

    def _with(self, other: Any, op: Callable[[Any, Any], Any], kind: DType) -> Array:
        right = other.flat if isinstance(other, Array) else itertools.repeat(other)
        return _made([op(a, b) for a, b in zip(self.flat, right)], self.shape, kind)

    def __eq__(self, other: object) -> Any:
        return self._with(other, lambda a, b: a == b, bool_)

    def __ne__(self, other: object) -> Any:
        return self._with(other, lambda a, b: a != b, bool_)

    def __and__(self, other: Any) -> Array:
        return self._with(other, lambda a, b: a & b, self.dtype)

    def __lshift__(self, other: int) -> Array:
        return self._with(other, lambda a, b: a << b, self.dtype)

    def __invert__(self) -> Array:
        return self == False  # noqa: E712

    def __repr__(self) -> str:
        return f"array({self.tolist()}, {self.dtype.name})"


ndarray = Array


def _of_bytes(data: bytearray | bytes, shape: Shape, kind: DType) -> Array:
    return Array(memoryview(data).cast(kind.format), shape, kind)


def _made(values: Any, shape: Shape, kind: DType) -> Array:
    """Make an array of numbers in row-major order."""
    if kind is bool_:
        return _of_bytes(bytearray(map(bool, values)), shape, kind)
    flat = packed(cast("Literal['f']", kind.format), values)
    return Array(memoryview(flat), shape, kind)


def asarray(value: Any, dtype: Any = None) -> Array:
    """Make an array of numbers, nested lists, or an object with the buffer protocol, which is not copied."""
    if isinstance(value, Array):
        x = value
    elif isinstance(value, (bool, int, float, list, tuple)):
        x = _of_numbers(value)
    else:
        x = _of_buffer(memoryview(value))
    return x if dtype is None or _NAMED.get(dtype, dtype) == x.dtype else x.astype(dtype)


def _of_numbers(value: Any) -> Array:
    """Make a bool array of booleans, int64 of integers, float64 of floats. Raises ValueError for anything else."""
    shape: list[int] = []
    flat: list[Any] = [value]
    while flat and isinstance(flat[0], (list, tuple)):
        lengths = {len(cast("Any", v)) if isinstance(v, (list, tuple)) else -1 for v in flat}
        if len(lengths) > 1:
            raise ValueError("its rows differ in length")
        shape += lengths
        flat = [x for v in flat for x in v]
    kinds: set[Any] = {type(x) for x in flat}
    if not kinds <= {bool, int, float}:
        odd = next(x for x in flat if type(x) not in (bool, int, float))
        raise ValueError(f"{odd!r} is not a number")
    kind = float64 if float in kinds or not kinds else int64 if int in kinds else bool_
    return _made(flat, tuple(shape), kind)


def _of_buffer(view: memoryview) -> Array:
    code = view.format.lstrip("@=<")
    kind = next((d for d in _ALL if d.format == code), None)
    if kind is None and code in ("l", "L", "n", "N"):
        kind = _NAMED[f"{'i' if code in 'ln' else 'u'}{view.itemsize}"]
    if kind is None:
        raise ValueError(f"elements of format {view.format!r} are not read")
    shape = cast("Shape", view.shape)
    if not view.c_contiguous:
        return _of_bytes(view.tobytes(), shape, kind)
    return Array(view.cast("B").cast(kind.format) if view.nbytes else view, shape, kind)


def array(value: Any, dtype: Any = None, order: str = "C", copy: bool = True) -> Array:
    """Make an array with memory of its own."""
    x = asarray(value)
    return x.copy() if dtype is None else x.astype(dtype)


ascontiguousarray = asarray  # every array here is contiguous


def full(shape: Any, value: Any, dtype: Any = float64) -> Array:
    """Make an array filled with one number."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = _dtype(dtype)
    one = _made([value if kind.kind == "f" else int(value)], (1,), kind).tobytes()
    return _of_bytes(bytearray(one * math.prod(sizes)), sizes, kind)


def zeros(shape: Any, dtype: Any = float64) -> Array:
    """Make an array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float64) -> Array:
    """Make an array of ones."""
    return full(shape, 1, dtype)


def frombuffer(data: Any, dtype: Any = float64, count: int = -1, offset: int = 0) -> Array:
    """Return `count` elements from a buffer, starting at byte `offset`; float16 is read as float32."""
    kind = _dtype(dtype)
    view = memoryview(data).cast("B")[offset:]
    count = len(view) // kind.itemsize if count < 0 else count
    part = view[: count * kind.itemsize]
    if kind is HALF:
        return _made(struct.unpack(f"<{count}e", part), (count,), float32)
    return Array(part.cast(kind.format), (count,), kind)


def broadcast_to(x: Array, shape: Shape) -> Array:
    """Repeat axes of size 1 and missing leading axes. Raises ValueError if `x` does not broadcast to `shape`."""
    sizes = (*[1] * (len(shape) - x.ndim), *x.shape)
    if len(sizes) != len(shape) or builtins.any(a not in (1, b) for a, b in zip(sizes, shape)):
        raise ValueError(f"{x.shape} does not broadcast to {shape}")
    strides = [0 if n == 1 else math.prod(sizes[d + 1 :]) for d, n in enumerate(sizes)]
    steps = [[k * s for k in range(n)] for n, s in zip(shape, strides)]
    return _made([x.flat[sum(at)] for at in itertools.product(*steps)], shape, x.dtype)


def where(condition: Array, a: Any, b: Array) -> Array:
    """Return the number `a` where `condition` is True, elsewhere the element of `b`."""
    return _made([a if c else x for c, x in zip(condition.flat, b.flat)], b.shape, b.dtype)


def ndim(value: Any) -> int:
    """Return the number of axes of an array; 0 for a number."""
    return len(value.shape) if hasattr(value, "shape") else int(isinstance(value, (list, tuple)))


def argmax(x: Array) -> int:
    """Return the flat index of the first largest element."""
    values = x.flat.tolist()
    return values.index(max(values))


def unravel_index(index: int, shape: Shape) -> Shape:
    """Return the coordinates of the element at a flat index."""
    out: list[int] = []
    for n in reversed(shape):
        index, k = divmod(index, n)
        out.append(k)
    return tuple(reversed(out))


def any(x: Any) -> bool:
    """Return True if some element is not 0."""
    return x.any() if isinstance(x, Array) else bool(x)


def abs(x: Array) -> Array:
    """Return the magnitude of each element."""
    return _made([-v if v < 0 else v for v in x.flat], x.shape, x.dtype)


def isinf(x: Array) -> Array:
    """Return a bool array, True at infinite elements."""
    return _made(map(math.isinf, x.flat), x.shape, bool_)


def isfinite(x: Any) -> Any:
    """Return whether a number, or each element of an array, is finite."""
    return _made(map(math.isfinite, x.flat), x.shape, bool_) if isinstance(x, Array) else math.isfinite(x)


class _Limits(NamedTuple):
    min: float
    max: float


def finfo(_kind: Any) -> _Limits:
    """Return the range of float32."""
    most = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
    return _Limits(-most, most)


def iinfo(kind: Any) -> _Limits:
    """Return the range of an integer type."""
    d = dtype(kind)
    bits = 8 * d.itemsize
    return _Limits(0, 2**bits - 1) if d.kind == "u" else _Limits(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@contextlib.contextmanager
def errstate(**_: str) -> Generator[None, None, None]:
    """Do nothing: this module never warns."""
    yield


def __getattr__(name: str) -> Any:
    raise AttributeError(f"this needs numpy.{name}: load NumPy before tracegrad")
