"""Initialisers: how a parameter's first values are made, as plain data.

They hold no numbers but those of `literal`; `runtime.draw` (and its twin in the browser) makes the values, in the
order in which the parameters were declared, from one random stream.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from tracegrad import foreign
from tracegrad.dtypes import DType, Shape, as_dtype, f32
from tracegrad.errors import DTypeError, InputError
from tracegrad.hypers import AT_LEAST_0, checked
from tracegrad.prims import leaves
from tracegrad.refusals import check_call
from tracegrad.shapes import show

SQRT2 = math.sqrt(2.0)


def fans(shape: Shape) -> tuple[int, int]:
    """Inputs and outputs that each output and input of a weight is connected with.

    A matrix is [in, out]; more axes are a convolution's [out, in/groups, *kernel]; a vector counts as both.
    """
    if len(shape) <= 1:
        n = shape[0] if shape else 1
        return n, n
    if len(shape) == 2:
        return shape[0], shape[1]
    area = math.prod(shape[2:])
    return shape[1] * area, shape[0] * area


class Initializer:
    """What all of them are: frozen plain data."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **given: Any) -> Any:
            if given:
                check_call(f"init.{cls.__name__.lower()}", cls.__init__, args, given, bound=1)
            return super().__new__(cls)

    def spec(self) -> dict[str, Any]:
        """As plain data, which `from_spec` and the browser read."""
        values = {f.name: getattr(self, f.name) for f in fields(cast("Any", self))}
        return {"kind": type(self).__name__.lower(), **values}


@dataclass(frozen=True, slots=True)
class Randn(Initializer):
    """Normal numbers of mean 0 and standard deviation `scale`."""

    scale: float = 0.02

    def __post_init__(self) -> None:
        checked("scale", self.scale, AT_LEAST_0, "init.randn")

    def std(self, shape: Shape) -> float:
        """Standard deviation for a parameter of `shape`."""
        return self.scale


@dataclass(frozen=True, slots=True)
class Kaiming(Initializer):
    """Normal numbers of deviation gain / sqrt(fan_in), for layers before a relu (He et al. 2015).

    fan_in is shape[0] of a matrix [in, out], and in/groups * kh * kw of a convolution.
    """

    gain: float = SQRT2

    def __post_init__(self) -> None:
        checked("gain", self.gain, AT_LEAST_0, "init.kaiming")

    def std(self, shape: Shape) -> float:
        """Standard deviation for a parameter of `shape`."""
        return self.gain / math.sqrt(fans(shape)[0])


@dataclass(frozen=True, slots=True)
class Xavier(Initializer):
    """Normal numbers of deviation gain * sqrt(2 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""

    gain: float = 1.0

    def __post_init__(self) -> None:
        checked("gain", self.gain, AT_LEAST_0, "init.xavier")

    def std(self, shape: Shape) -> float:
        """Standard deviation for a parameter of `shape`."""
        return self.gain * math.sqrt(2.0 / sum(fans(shape)))


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Numbers spread evenly over [low, high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        checked("low", self.low, what="init.uniform")
        checked("high", self.high, what="init.uniform")
        if self.low > self.high:
            raise InputError.here(
                f"init.uniform: low must not be above high, got [{self.low!r}, {self.high!r}); exchange them"
            )


@dataclass(frozen=True, slots=True)
class Zeros(Initializer):
    """Zeros: biases. Not decayed by default."""


@dataclass(frozen=True, slots=True)
class Ones(Initializer):
    """Ones: gains. Not decayed by default."""


@dataclass(frozen=True, slots=True, repr=False)
class Literal(Initializer):
    """Given values; make one with `literal`. `data` are the bytes, little-endian, row-major."""

    dtype: DType
    shape: Shape
    data: bytes

    def __repr__(self) -> str:
        return f"literal({self.dtype}{show(self.shape)})"

    def spec(self) -> dict[str, Any]:
        """As plain data; the bytes in base64."""
        data = base64.b64encode(self.data).decode("ascii")
        return {"kind": "literal", "dtype": self.dtype.name, "shape": list(self.shape), "data": data}


randn = Randn
kaiming = Kaiming
xavier = Xavier
uniform = Uniform
zeros = Zeros
ones = Ones


PUBLIC = ("randn", "kaiming", "xavier", "uniform", "zeros", "ones", "literal")


def literal(array: Any, dtype: DType | str = f32) -> Literal:
    """The values of `array`: an array, a nested list or a number, stored as `dtype`.

    Raises DTypeError for anything else, and for values that `dtype` cannot hold.
    """
    dtype = as_dtype(dtype)
    if hasattr(array, "astype"):  # an ndarray converts itself, without a list of a million numbers in between
        array = _lossless(array, dtype)
    elif isinstance(array, (bool, int, float)):
        array = [array]
        t = leaves.literal(array, dtype)
        return Literal(dtype, (), t.attrs["data"])
    t = leaves.literal(array, dtype)
    return Literal(dtype, t.shape, t.attrs["data"])


def _lossless(array: Any, dtype: DType) -> Any:
    """The ndarray as `dtype`; DTypeError if a float would become an integer."""
    if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and not dtype.is_float):
        raise DTypeError(f"init.literal: {array.dtype} values do not fit {dtype}")
    return array.astype(dtype.numpy)


def decays_by_default(init: Initializer) -> bool:
    """Weight decay applies to weights, and not to what starts at 0 or 1: biases and gains."""
    return not isinstance(init, (Zeros, Ones))


def from_spec(spec: Mapping[str, Any]) -> Initializer:
    """The initialiser that `spec()` describes. InputError for an unknown kind."""
    values = dict(spec)
    kind = values.pop("kind", None)
    if kind == "literal":
        return Literal(as_dtype(values["dtype"]), tuple(values["shape"]), base64.b64decode(values["data"]))
    kinds = {c.__name__.lower(): c for c in (Randn, Kaiming, Xavier, Uniform, Zeros, Ones)}
    if kind not in kinds:
        raise InputError(f"initialiser of unknown kind {kind!r}; known are {', '.join(kinds)} and literal")
    return kinds[kind](**values)


if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.init", name, {"init": PUBLIC})
