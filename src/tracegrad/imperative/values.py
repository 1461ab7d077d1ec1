"""Convert users' values to arrays of tracegrad's dtypes, and give them types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tracegrad.arrays import HAVE_NUMPY, Array, as_array, cast_lossless, np
from tracegrad.dtypes import DType, TensorType, as_dtype, bool_, f32, i32, number_kind, u32
from tracegrad.errors import DTypeError, InputError, call_site, placed
from tracegrad.methods import TensorMethods

f64 = DType("f64", "float64", "", "", 8)  # of eager tensors only: some shader languages lack it
KINDS = {"f": f32, "i": i32, "u": u32, "b": bool_}
EXACT = {np.dtype(d.numpy): d for d in (f32, i32, u32, bool_)} if HAVE_NUMPY else {}  # used without a cast


class Spec:
    """The properties of an eager tensor that ops depend on.

    `spec_of` returns one object for equal properties, so plans are found by identity.
    requires: whether the tensor needs a gradient
    """

    __slots__ = ("double", "dtype", "ones", "requires", "shape", "type")

    def __init__(self, type: TensorType, double: bool, requires: bool):
        self.type, self.double, self.requires = type, double, requires
        self.dtype, self.shape = f64 if double and type.dtype is f32 else type.dtype, type.shape
        # The default seed of `backward`, one number in memory
        self.ones = np.broadcast_to(np.ones((), self.dtype.numpy), self.shape)

    def requiring(self, flag: bool) -> Spec:
        """Return the same type with or without a gradient."""
        return spec_of(self.type, self.double, flag)

    def __repr__(self) -> str:
        return repr(TensorType(self.dtype, self.shape))


_specs: dict[tuple[int, tuple[int, ...], bool, bool], Spec] = {}


def spec_of(type: TensorType, double: bool = False, requires: bool = False) -> Spec:
    """Return the Spec of a type: always the same object."""
    key = (id(type.dtype), type.shape, double, requires)  # each dtype is one object
    found = _specs.get(key)
    if found is None:
        found = _specs[key] = Spec(type, double, requires)
    return found


NUMBER = Spec(TensorType(f32, ()), False, False)  # stands for a Python number whose value comes with each call


def dtype_of(dtype: Any) -> DType:
    """Return a dtype of eager tensors: one of tracegrad's, or "float64"."""
    if str(getattr(dtype, "name", dtype)) in ("f64", "float64") or dtype is float or dtype is np.float64:
        return f64
    return as_dtype(np.dtype(dtype).name if isinstance(dtype, type) else dtype)


def taking(dtype: Any, spec: Spec) -> Callable[[Array], Array]:
    """Return a function that converts an array of `dtype` to an operand of type `spec`: `typed` without its checks."""
    if EXACT.get(dtype) is spec.dtype:
        return np.ndarray.copy
    if dtype == np.float64 and spec.dtype is f32:
        return lambda x: x.astype(np.float32)
    return lambda x: typed(x, spec.dtype.name if spec.double else None)[0]


def typed(data: Any, dtype: Any = None) -> tuple[Array, Spec]:
    """Return a copy of `data` as an array, and its type. Raise DTypeError for data that cannot be cast to numbers.

    dtype: None keeps f32, i32, u32, bool and the f64 of an eager tensor; other arrays become the nearest of these.
           Numbers and nested lists become f32, or bool if all are True or False. Casts are exact, except that floats
           are rounded.
    """
    if not HAVE_NUMPY:
        raise DTypeError("eager tensors need NumPy: import numpy before tracegrad; compiled programs run without it")
    try:
        x = as_array(data)
        wanted = _own(data, x) if dtype is None else dtype_of(dtype)
        if wanted is f64:
            if number_kind(x) not in KINDS:
                raise InputError(f"{x.dtype.name} values are not numbers")
            array = np.array(x, np.float64, order="C", copy=True)
        else:
            array = x.copy() if EXACT.get(x.dtype) is wanted else cast_lossless(x, wanted.name)
    except InputError as e:
        raise DTypeError(str(e)) from None
    return array, spec_of(TensorType(f32 if wanted is f64 else wanted, array.shape), wanted is f64)


def _own(data: Any, x: Array) -> DType:
    """Return the dtype of `data` if the caller requests none; `x` is `data` as an array."""
    if isinstance(data, TensorMethods):
        return cast("Any", data).dtype
    if isinstance(data, (int, float, list, tuple)) and x.dtype.kind in "iu":
        return f32
    return nearest(x)


def nearest(x: Array) -> DType:
    """Return the dtype that an array becomes, as in a trace: of unsigned integers, only those of 32 bits are u32.

    Raises InputError for values that are neither numbers nor truth values.
    """
    kind = number_kind(x)
    if kind not in KINDS:
        raise InputError(f"{x.dtype.name} values are neither numbers nor truth values")
    return i32 if kind == "u" and x.dtype.itemsize != 4 else KINDS[kind]


def given(data: Any, dtype: Any, what: str) -> tuple[Array, Spec]:
    """Do the same as `typed`, for data that users pass as `what`. A DTypeError names `what` and the user's line."""
    try:
        return typed(data, dtype)
    except DTypeError as e:
        raise placed(e, what, call_site()) from None
