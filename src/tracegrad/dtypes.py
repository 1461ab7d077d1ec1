"""Data types, tensor types, and how each language spells them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracegrad.errors import DTypeError
from tracegrad.refusals import shown

Shape = tuple[int, ...]
Dimension = int | str | None  # of an input; each call chooses a size that is None or a name


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `tg.i32[B, T]` is the type of an input.

    >>> tg.f32.name
    'f32'
    """

    name: str
    numpy: str  # name for numpy.dtype()
    wgsl: str  # type of a value in a shader
    storage: str  # type in a buffer: booleans are stored as integers
    itemsize: int = 4

    def __getitem__(self, shape: Dimension | tuple[Dimension, ...]) -> InputType:
        return InputType(self, shape if isinstance(shape, tuple) else (shape,))

    @property
    def is_float(self) -> bool:
        """True for types that carry gradients. As torch.dtype.is_floating_point."""
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
STORED = {d.name: d for d in (f32, i32, f16)}  # element types of buffers


def nearest_f32(x: float) -> float:
    """Round `x` to f32. Too large numbers become infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


class TensorType(NamedTuple):
    """Element type and static shape; prints as `f32[2,3]`.

    >>> str(tg.TensorType(tg.f32, (2, 3)))
    'f32[2,3]'
    """

    dtype: DType
    shape: Shape

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
    """The declared type of an input. Each call chooses the dimensions that are None or a name.

    >>> tg.i32[64, 128]
    i32[64,128]
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
    """Return the kind of NumPy's dtype of `x`: "f" for extension floats, too, such as ml_dtypes.bfloat16; or ""."""
    dtype = getattr(x, "dtype", None)
    return "f" if "float" in getattr(dtype, "name", "") else getattr(dtype, "kind", "")


def scalar_dtype(value: bool | int | float) -> DType:
    """Return the default dtype of a Python number."""
    return bool_ if isinstance(value, bool) else i32 if isinstance(value, int) else f32
