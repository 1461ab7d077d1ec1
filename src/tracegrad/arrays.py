"""`np`: NumPy, or `tracegrad.bare` if NumPy is missing, as in Pyodide. Also converts users' values to arrays."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tracegrad import bare
from tracegrad.dtypes import DTYPES, LARGEST_F32, Dimension, number_kind
from tracegrad.errors import DeviceError, InputError, TracegradError
from tracegrad.refusals import found

SEEDS = 2**32
HAVE_NUMPY = importlib.util.find_spec("numpy") is not None

if TYPE_CHECKING or HAVE_NUMPY:
    import numpy as np
else:
    np = bare

Array = Any


def need_numpy(device: str) -> None:
    """Check that NumPy is installed for `device`. Raises DeviceError otherwise."""
    if not HAVE_NUMPY:
        raise DeviceError.here(f"device={device!r} needs NumPy, which is not installed")


def handed_out(x: Any) -> Any:
    """Return a result in the form that users get: a NumPy array if NumPy is loaded, else a memoryview of this shape."""
    if not isinstance(x, bare.Array):
        return x
    numpy: Any = sys.modules.get("numpy")
    return x.shaped() if numpy is None else numpy.asarray(x.shaped()).reshape(x.shape)


def checked_seed(seed: Any, what: str = "seed") -> int:
    """Return `seed` as an int. Raise InputError unless it is an integer that fits u32."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < SEEDS:
        raise InputError.here(f"{what} must be an integer from 0 to {SEEDS - 1}, got {seed!r}")
    return int(cast("int", seed))


def seed_or_new(seed: int | None) -> int:
    """Return `seed`, checked; for None, a new one each time."""
    return int.from_bytes(os.urandom(4), "little") if seed is None else checked_seed(seed)


def dtype_of(x: Array) -> str:
    """Return the name of the dtype, such as `f32`; dtypes that tracegrad lacks keep NumPy's name."""
    return next((d.name for d in DTYPES.values() if d.numpy == x.dtype.name), x.dtype.name)


def describe(x: Array) -> str:
    """Return `f32[2,3]`, with the name of `dtype_of`."""
    return f"{dtype_of(x)}[{','.join(map(str, x.shape))}]"


def new_copy(x: Array) -> Array:
    """Return `x` as a contiguous array with memory of its own."""
    return np.array(x, order="C", copy=True)


def as_array(value: Any, shapes: Sequence[tuple[Dimension, ...]] = ()) -> Array:
    """Return `value` as an array. Raise InputError if it cannot be converted.

    shapes: for a JavaScript typed array, which has no shape: it gets the first of these that has its number of
            elements.
    """
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    try:
        if hasattr(value, "to_py"):  # a JavaScript object, in a browser's Python: a typed array, or nested lists
            own: Any = value.to_py()
            return _filling(np.asarray(own), shapes) if isinstance(own, memoryview) else np.asarray(own)
        x = np.asarray(value)
    except Exception as e:  # torch, jax and nested lists each raise their own errors
        why, kind = str(e), cast("type[object]", type(value)).__name__
        if isinstance(e, ValueError) and kind in ("list", "tuple"):
            why = "its lists have different lengths; pad them to one shape"
        elif "BFloat16" in why:  # of PyTorch; NumPy has no such dtype
            why = f"{why}; write x.float()"
        elif isinstance(e, TracegradError):  # from a traced tensor or a parameter
            raise InputError(why.partition("\n")[0]) from e
        raise InputError(f"{kind} cannot be read as an array: {why}") from e
    if x.dtype == object or x.dtype.kind in "US":
        kind = cast("type[object]", type(value)).__name__
        remedy = found(kind, "no_arrays")
        raise InputError(f"{kind} cannot be read as an array of numbers{f'; {remedy}' if remedy else ''}")
    return x


def _filling(x: Array, shapes: Sequence[tuple[Dimension, ...]]) -> Array:
    """Return flat `x` in the first of `shapes` with as many elements. A name or None stands for the remaining size."""
    for shape in shapes:
        known = math.prod(n for n in shape if isinstance(n, int))
        free = sum(not isinstance(n, int) for n in shape)
        if x.size and known and (x.size == known if not free else free == 1 and x.size % known == 0):
            return x.reshape([n if isinstance(n, int) else x.size // known for n in shape])
    return x


def cast_lossless(x: Array, dtype: str) -> Array:
    """Return a new contiguous array of `dtype` with the values of `x`. Raise InputError if the cast would lose any."""
    target = np.dtype(DTYPES[dtype].numpy)
    if x.dtype == target:
        return new_copy(x)
    kind = number_kind(x)
    if kind not in _CASTS[dtype]:
        remedy = found(f"{kind}:{dtype}", "casts") or found(kind, "casts")
        hint = f"; {remedy}" if remedy else ""
        raise InputError(f"{x.dtype.name} values cannot be converted to {dtype} without loss{hint}")
    if dtype == "f32":
        return _to_f32(x, kind)
    info = np.iinfo(target)
    if x.size and kind != "b":
        low, high = int(x.min()), int(x.max())
        if low < info.min or high > info.max:
            raise InputError(f"the value {low if low < info.min else high} of {x.dtype.name} does not fit {dtype}")
    return np.array(x, dtype=target, order="C", copy=True)


_CASTS = {"f32": "fiub", "i32": "iub", "u32": "iub", "bool": "b"}


def _to_f32(x: Array, kind: str) -> Array:
    with np.errstate(over="ignore"):
        out = np.array(x, dtype=np.float32, order="C", copy=True)
    if kind == "f":
        if x.dtype.itemsize > 4 and x.size and bool((np.isinf(out) & ~np.isinf(x)).any()):
            raise InputError(
                f"a finite {x.dtype.name} value exceeds the largest f32, {LARGEST_F32:.4g}; scale the values"
            )
    elif x.dtype.itemsize > 2 and x.size:
        # An integer is exact in f32 only up to 2**24, and beyond that if its low bits are zero.
        exact = out.astype(np.float64) == x.astype(np.float64)
        if not bool(exact.all()) or int(np.abs(x.astype(np.float64)).max()) > 2**53:
            raise InputError(f"a value of {x.dtype.name} is not exact in f32; to round it, write x.astype(np.float32)")
    return out
