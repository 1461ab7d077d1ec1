"""Initialisers: how a parameter's first values are made, as plain data.

They hold no numbers but those of `literal`; `runtime.draw` (and its twin in the browser) makes the values, in the
order in which the parameters were declared, from one random stream.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tracegrad import foreign
from tracegrad.dtypes import DType, Shape, as_dtype, f32
from tracegrad.errors import DTypeError, InputError
from tracegrad.habits import INITS
from tracegrad.hypers import AT_LEAST_0, POSITIVE, checked
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
    """What all of them are: frozen plain data, equal where their values are.

    No dataclasses: making one takes 500 calls, and `import tracegrad` would make all of them.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **given: Any) -> Any:
            if args or given:  # a copy is made without
                check_call(f"init.{kind_of(cls)}", cls.__init__, args, given, bound=1)
            return super().__new__(cls)

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"an initialiser is fixed once it is made; {name} cannot be set")

    def values(self) -> dict[str, Any]:
        """What it was made with, by name."""
        return {name: getattr(self, name) for name in type(self).__slots__}

    def spec(self) -> dict[str, Any]:
        """As plain data, which `from_spec` and the browser read."""
        return {"kind": kind_of(type(self)), **self.values()}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.values() == cast("Initializer", other).values()

    def __hash__(self) -> int:
        return hash((type(self), *self.values().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={x!r}' for name, x in self.values().items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.values().values())

    def _hold(self, **values: Any) -> None:
        for name, x in values.items():
            object.__setattr__(self, name, x)


def kind_of(cls: type) -> str:
    """Return `xavier_uniform` of XavierUniform: what the public function is called."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")


class Gaussian(Initializer):
    """Normal numbers of one mean and deviation a parameter."""

    __slots__ = ()

    def center(self) -> float:
        """Their mean."""
        return 0.0

    def deviation(self, shape: Shape) -> float:
        """Their standard deviation for a parameter of `shape`."""
        raise NotImplementedError


class Even(Initializer):
    """Numbers spread evenly over one range a parameter."""

    __slots__ = ()

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """Return the lowest value of a parameter of `shape`, and what all its values are below."""
        raise NotImplementedError


class Randn(Gaussian):
    """Normal numbers of mean 0 and standard deviation `scale`. What `nn.Embedding` and `self.param` begin with.

    As torch.nn.init.normal_ with mean 0.

    >>> weight = init.randn(0.02)
    """

    __slots__ = ("scale",)
    scale: float

    def __init__(self, scale: float = 0.02) -> None:
        self._hold(scale=scale)
        checked("scale", self.scale, AT_LEAST_0, "init.randn")

    def deviation(self, shape: Shape) -> float:
        """scale"""
        return self.scale


class Normal(Gaussian):
    """Normal numbers of mean `mean` and standard deviation `std`.

    As torch.nn.init.normal_.

    >>> weight = init.normal(0.0, 0.1)
    """

    __slots__ = ("mean", "std")
    mean: float
    std: float

    def __init__(self, mean: float = 0.0, std: float = 1.0) -> None:
        self._hold(mean=mean, std=std)
        checked("mean", self.mean, what="init.normal")
        checked("std", self.std, AT_LEAST_0, "init.normal")

    def center(self) -> float:
        """mean"""
        return self.mean

    def deviation(self, shape: Shape) -> float:
        """std"""
        return self.std


class TruncatedNormal(Initializer):
    """Normal numbers of mean `mean` and deviation `std`, given that they lie in [low, high]. PyTorch's trunc_normal_.

    low and high are values, not multiples of `std`. Raises InputError if [low, high] is empty or `std` is 0.

    >>> weight = init.truncated_normal(std=0.02, low=-0.04, high=0.04)
    """

    __slots__ = ("mean", "std", "low", "high")
    mean: float
    std: float
    low: float
    high: float

    def __init__(self, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0) -> None:
        self._hold(mean=mean, std=std, low=low, high=high)
        for name in ("mean", "low", "high"):
            checked(name, getattr(self, name), what="init.truncated_normal")
        checked("std", self.std, POSITIVE, "init.truncated_normal")
        if self.low >= self.high:
            raise InputError.here(
                f"init.truncated_normal: low must be below high, got [{self.low!r}, {self.high!r}]; exchange them"
            )


class Kaiming(Gaussian):
    """Normal numbers of deviation gain / sqrt(fan_in), for layers before a relu (He et al. 2015).

    fan_in is shape[0] of a matrix [in, out], and in/groups * kh * kw of a convolution. What `nn.Linear` and
    `nn.Conv2d` begin with. PyTorch's kaiming_normal_.
    As torch.nn.init.kaiming_normal_.

    >>> layer = nn.Linear(3, 4, init=init.kaiming())
    """

    __slots__ = ("gain",)
    gain: float

    def __init__(self, gain: float = SQRT2) -> None:
        self._hold(gain=gain)
        checked("gain", self.gain, AT_LEAST_0, "init.kaiming")

    def deviation(self, shape: Shape) -> float:
        """gain / sqrt(fan_in)"""
        return self.gain / math.sqrt(fans(shape)[0])


class Lecun(Gaussian):
    """Normal numbers of deviation 1 / sqrt(fan_in), for layers before tanh or selu (LeCun et al. 1998).

    As jax.nn.initializers.lecun_normal without truncation.

    >>> layer = nn.Linear(3, 4, init=init.lecun())
    """

    __slots__ = ()

    def deviation(self, shape: Shape) -> float:
        """Return 1 / sqrt(fan_in)"""
        return 1.0 / math.sqrt(fans(shape)[0])


class Xavier(Gaussian):
    """Normal numbers of deviation gain * sqrt(2 / (fan_in + fan_out)) (Glorot & Bengio 2010).

    PyTorch's xavier_normal_.
    As torch.nn.init.xavier_normal_ (Glorot and Bengio 2010).

    >>> layer = nn.Linear(3, 4, init=init.xavier())
    """

    __slots__ = ("gain",)
    gain: float

    def __init__(self, gain: float = 1.0) -> None:
        self._hold(gain=gain)
        checked("gain", self.gain, AT_LEAST_0, "init.xavier")

    def deviation(self, shape: Shape) -> float:
        """gain * sqrt(2 / (fan_in + fan_out))"""
        return self.gain * math.sqrt(2.0 / sum(fans(shape)))


class Uniform(Even):
    """Numbers spread evenly over [low, high).

    As torch.nn.init.uniform_.

    >>> weight = init.uniform(-0.1, 0.1)
    """

    __slots__ = ("low", "high")
    low: float
    high: float

    def __init__(self, low: float, high: float) -> None:
        self._hold(low=low, high=high)
        checked("low", self.low, what="init.uniform")
        checked("high", self.high, what="init.uniform")
        if self.low > self.high:
            raise InputError.here(
                f"init.uniform: low must not be above high, got [{self.low!r}, {self.high!r}); exchange them"
            )

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """low, high"""
        return float(self.low), float(self.high)  # they may be NumPy's, of fewer bits


class KaimingUniform(Even):
    """Numbers spread evenly over [-c, c), c = gain * sqrt(3 / fan_in), whose deviation is `kaiming`'s.

    PyTorch's kaiming_uniform_; with gain=1/sqrt(3) what torch.nn.Linear begins with (He et al. 2015).

    >>> layer = nn.Linear(3, 4, init=init.kaiming_uniform(gain=3**-0.5))        # as PyTorch's begins
    """

    __slots__ = ("gain",)
    gain: float

    def __init__(self, gain: float = SQRT2) -> None:
        self._hold(gain=gain)
        checked("gain", self.gain, AT_LEAST_0, "init.kaiming_uniform")

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """-c, c"""
        c = self.gain * math.sqrt(3.0 / fans(shape)[0])
        return -c, c


class XavierUniform(Even):
    """Numbers spread evenly over [-c, c), c = gain * sqrt(6 / (fan_in + fan_out)), whose deviation is `xavier`'s.

    PyTorch's xavier_uniform_ (Glorot & Bengio 2010).

    >>> layer = nn.Linear(3, 4, init=init.xavier_uniform())
    """

    __slots__ = ("gain",)
    gain: float

    def __init__(self, gain: float = 1.0) -> None:
        self._hold(gain=gain)
        checked("gain", self.gain, AT_LEAST_0, "init.xavier_uniform")

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """-c, c"""
        c = self.gain * math.sqrt(6.0 / sum(fans(shape)))
        return -c, c


class Orthogonal(Initializer):
    """`gain` times a random matrix whose rows, or columns if these are fewer, are orthonormal (Saxe et al. 2014).

    A convolution [out, in/groups, *kernel] is the matrix [out, the rest], as in PyTorch's orthogonal_. Computed on the
    host in n^2 m operations for a matrix with sides n <= m. Raises ShapeError for a parameter with fewer than two axes.

    >>> layer = nn.Linear(4, 4, init=init.orthogonal())
    """

    __slots__ = ("gain", "stacked")
    gain: float
    stacked: int  # leading axes that count models, of `nn.stack`

    def __init__(self, gain: float = 1.0, stacked: int = 0) -> None:
        self._hold(gain=gain, stacked=stacked)
        checked("gain", self.gain, AT_LEAST_0, "init.orthogonal")


class Zeros(Initializer):
    """Zeros: biases. Not decayed by default.

    As torch.nn.init.zeros_.

    >>> bias = init.zeros()
    """

    __slots__ = ()


class Ones(Initializer):
    """Ones: gains. Not decayed by default.

    As torch.nn.init.ones_.

    >>> gain = init.ones()
    """

    __slots__ = ()


class Literal(Initializer):
    """Given values; make one with `literal`. `data` are the bytes, little-endian, row-major."""

    __slots__ = ("dtype", "shape", "data")
    dtype: DType
    shape: Shape
    data: bytes

    def __init__(self, dtype: DType, shape: Shape, data: bytes) -> None:
        self._hold(dtype=dtype, shape=shape, data=data)

    def __repr__(self) -> str:
        return f"literal({self.dtype}{show(self.shape)})"

    def spec(self) -> dict[str, Any]:
        """As plain data; the bytes in base64."""
        data = base64.b64encode(self.data).decode("ascii")
        return {"kind": "literal", "dtype": self.dtype.name, "shape": list(self.shape), "data": data}


randn = Randn
normal = Normal
truncated_normal = TruncatedNormal
kaiming = Kaiming
lecun = Lecun
xavier = Xavier
uniform = Uniform
kaiming_uniform = KaimingUniform
xavier_uniform = XavierUniform
orthogonal = Orthogonal
zeros = Zeros
ones = Ones

KINDS: dict[str, type[Initializer]] = {
    kind_of(c): c
    for c in (Randn, Normal, TruncatedNormal, Kaiming, Lecun, Xavier, Uniform, KaimingUniform, XavierUniform,
              Orthogonal, Zeros, Ones)
}  # fmt: skip
PUBLIC = (*KINDS, "literal")


def literal(array: Any, dtype: DType | str = f32) -> Literal:
    """Return the values of `array`: an array, a nested list or a number, stored as `dtype`.

    Raises DTypeError for anything else, and for values that `dtype` cannot hold.

    >>> layer = nn.Linear(1, 2, init=init.literal(np.array([[1.0, 2.0]], np.float32)))
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
    """Return the ndarray as `dtype`. Raises DTypeError if a float would become an integer."""
    if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and not dtype.is_float):
        raise DTypeError(f"init.literal: {array.dtype} values do not fit {dtype}")
    return array.astype(dtype.numpy)


def decays_by_default(init: Initializer) -> bool:
    """Weight decay applies to weights, and not to what starts at 0 or 1: biases and gains."""
    return not isinstance(init, (Zeros, Ones))


def from_spec(spec: Mapping[str, Any]) -> Initializer:
    """Return the initialiser that `spec()` describes. Raises InputError for an unknown kind."""
    values = dict(spec)
    kind = values.pop("kind", None)
    if kind == "literal":
        return Literal(as_dtype(values["dtype"]), tuple(values["shape"]), base64.b64decode(values["data"]))
    if kind not in KINDS:
        raise InputError(f"initialiser of unknown kind {kind!r}; known are {', '.join(KINDS)} and literal")
    return KINDS[kind](**values)


if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.init", name, {"init": PUBLIC}, INITS)
