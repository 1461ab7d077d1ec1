"""Initialisers: plain data that describe the first values of a parameter.

Only `literal` has values. `runtime.draw`, and its counterpart in the browser, draws the others from one random stream,
in the order in which the parameters were declared.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracegrad import foreign
from tracegrad.dtypes import DType, Shape, as_dtype, f32, number_kind, show
from tracegrad.errors import DTypeError, InputError
from tracegrad.hypers import ANY, AT_LEAST_0, POSITIVE, checked_whole, kind_of
from tracegrad.initializer import Even, Gaussian, Initializer, fans
from tracegrad.prims import leaves
from tracegrad.wrong_calls import helpful

SQRT2 = math.sqrt(2.0)


class Randn(Gaussian):
    """Normal numbers of mean 0 and standard deviation `scale`: the default of `nn.Embedding` and `self.param`.

    As torch.nn.init.normal_ with mean 0; the numbers follow from the seed of `tg.compile`. Every initialiser raises
    InputError for an argument that is not a finite number, and for a negative `scale`, `std` or `gain`.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.randn(0.02)), seed=0).W
    >>> round(tg.std(W).item(), 3)
    0.02
    """

    scale: float

    def __init__(self, scale: float = 0.02) -> None:
        self._hold({"scale": AT_LEAST_0}, scale=scale)

    def deviation(self, shape: Shape) -> float:
        """Return the standard deviation, `scale`."""
        return self.scale


class Normal(Gaussian):
    """Normal numbers of mean `mean` and standard deviation `std`. As torch.nn.init.normal_.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.normal(5.0, 0.1)), seed=0).W
    >>> round(tg.mean(W).item(), 2), round(tg.std(W).item(), 2)
    (5.0, 0.1)
    """

    mean: float
    std: float

    def __init__(self, mean: float = 0.0, std: float = 1.0) -> None:
        self._hold({"mean": ANY, "std": AT_LEAST_0}, mean=mean, std=std)

    def center(self) -> float:
        """Return the mean of the distribution."""
        return self.mean

    def deviation(self, shape: Shape) -> float:
        """Return the standard deviation, `std`."""
        return self.std


class TruncatedNormal(Initializer):
    """Numbers of a normal distribution that is cut off at `low` and `high`.

    mean, std: of the distribution before it is cut off.
    low, high: the limits, as values, not as multiples of `std`.
    Raises InputError unless low < high and std > 0. As torch.nn.init.trunc_normal_.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.truncated_normal(std=0.02, low=-0.04, high=0.04)), seed=0).W
    >>> -0.04 <= W.min().item() < W.max().item() <= 0.04
    True
    """

    mean: float
    std: float
    low: float
    high: float

    def __init__(self, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0) -> None:
        ranges = {"mean": ANY, "std": POSITIVE, "low": ANY, "high": ANY}
        self._hold(ranges, mean=mean, std=std, low=low, high=high)
        if self.low >= self.high:
            raise InputError.here(
                f"init.truncated_normal: low must be below high, got [{self.low!r}, {self.high!r}]; swap them"
            )


class Kaiming(Gaussian):
    """Normal numbers of standard deviation gain / sqrt(fan_in), for layers before a relu (He et al. 2015).

    fan_in is the number of input elements that each output element depends on. It is `in` for a matrix [in, out], and
    n for a vector [n]. For a convolution [out, in/groups, *kernel], it is in/groups * (product of kernel).
    The default of `nn.Linear` and `nn.Conv1d` to `nn.Conv3d`, with gain sqrt(2). As torch.nn.init.kaiming_normal_.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.kaiming()), seed=0).W
    >>> round(tg.std(W).item(), 3)    # sqrt(2) / sqrt(100) is 0.141
    0.142
    """

    gain: float

    def __init__(self, gain: float = SQRT2) -> None:
        self._hold({"gain": AT_LEAST_0}, gain=gain)

    def deviation(self, shape: Shape) -> float:
        """Return the standard deviation for a parameter of `shape`: gain / sqrt(fan_in)."""
        return self.gain / math.sqrt(fans(shape)[0])


class Lecun(Gaussian):
    """Normal numbers of standard deviation 1 / sqrt(fan_in), for layers before tanh or selu (LeCun et al. 1998).

    `kaiming` explains fan_in. As jax.nn.initializers.lecun_normal without truncation.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.lecun()), seed=0).W
    >>> round(tg.std(W).item(), 3)    # 1 / sqrt(100) is 0.1
    0.101
    """

    def deviation(self, shape: Shape) -> float:
        """Return the standard deviation for a parameter of `shape`: 1 / sqrt(fan_in)."""
        return 1.0 / math.sqrt(fans(shape)[0])


class Xavier(Gaussian):
    """Normal numbers of standard deviation gain * sqrt(2 / (fan_in + fan_out)) (Glorot & Bengio 2010).

    (fan_in, fan_out) is (in, out) for a matrix [in, out], and (n, n) for a vector [n]. For a convolution
    [out, in/groups, *kernel], it is (in/groups, out) times the product of kernel. As torch.nn.init.xavier_normal_.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.xavier()), seed=0).W
    >>> round(tg.std(W).item(), 3)    # sqrt(2 / 500) is 0.063
    0.064
    """

    gain: float

    def __init__(self, gain: float = 1.0) -> None:
        self._hold({"gain": AT_LEAST_0}, gain=gain)

    def deviation(self, shape: Shape) -> float:
        """Return the standard deviation for a parameter of `shape`: gain * sqrt(2 / (fan_in + fan_out))."""
        return self.gain * math.sqrt(2.0 / sum(fans(shape)))


class Uniform(Even):
    """Uniform numbers in [low, high). Raises InputError if low > high. As torch.nn.init.uniform_.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.uniform(-0.1, 0.1)), seed=0).W
    >>> -0.1 <= W.min().item() < W.max().item() < 0.1
    True
    """

    low: float
    high: float

    def __init__(self, low: float, high: float) -> None:
        self._hold({"low": ANY, "high": ANY}, low=low, high=high)
        if self.low > self.high:
            raise InputError.here(
                f"init.uniform: low must not be above high, got [{self.low!r}, {self.high!r}); swap them"
            )

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """Return the range of the numbers, `low` and `high`."""
        return float(self.low), float(self.high)  # NumPy scalars may have fewer bits


class KaimingUniform(Even):
    """Uniform numbers in [-c, c), c = gain * sqrt(3 / fan_in): the standard deviation is that of `kaiming`.

    `kaiming` explains fan_in. The default gain is sqrt(2).
    As torch.nn.init.kaiming_uniform_ (He et al. 2015); gain=1/sqrt(3) is the default of torch.nn.Linear.

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.kaiming_uniform(gain=3**-0.5)), seed=0).W
    >>> round(W.max().item(), 3)    # c = 1 / sqrt(100), as for PyTorch's layer
    0.1
    """

    gain: float

    def __init__(self, gain: float = SQRT2) -> None:
        self._hold({"gain": AT_LEAST_0}, gain=gain)

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """Return the range of the numbers, -c and c, for a parameter of `shape`."""
        c = self.gain * math.sqrt(3.0 / fans(shape)[0])
        return -c, c


class XavierUniform(Even):
    """Uniform numbers in [-c, c), c = gain * sqrt(6 / (fan_in + fan_out)): the standard deviation is that of `xavier`.

    `xavier` explains fan_in and fan_out. As torch.nn.init.xavier_uniform_ (Glorot & Bengio 2010).

    >>> W = tg.instantiate(nn.Linear(100, 400, init=init.xavier_uniform()), seed=0).W
    >>> round(W.max().item(), 3)    # c = sqrt(6 / 500) is 0.110
    0.11
    """

    gain: float

    def __init__(self, gain: float = 1.0) -> None:
        self._hold({"gain": AT_LEAST_0}, gain=gain)

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """Return the range of the numbers, -c and c, for a parameter of `shape`."""
        c = self.gain * math.sqrt(6.0 / sum(fans(shape)))
        return -c, c


class Orthogonal(Initializer):
    """`gain` times a random matrix with orthonormal rows, or columns if there are fewer columns (Saxe et al. 2014).

    A convolution [out, in/groups, *kernel] counts as a matrix [out, the rest]. As torch.nn.init.orthogonal_.
    stacked: for `nn.stack`: the number of leading axes with a matrix each, an integer of at least 0.
    Raises ShapeError for a parameter with fewer than two axes after these.

    The host computes a matrix with sides n <= m in n^2 m operations.

    >>> W = tg.instantiate(nn.Linear(4, 4, init=init.orthogonal()), seed=0).W
    >>> bool(np.allclose(W @ W.transpose(), np.eye(4), atol=1e-6))
    True
    """

    gain: float
    stacked: int  # number of leading axes added by `nn.stack`

    def __init__(self, gain: float = 1.0, stacked: int = 0) -> None:
        self._hold({"gain": AT_LEAST_0}, gain=gain, stacked=checked_whole("stacked", stacked, "init.orthogonal", 0))


class Zeros(Initializer):
    """Zeros, for biases. Weight decay does not apply by default. As torch.nn.init.zeros_.

    >>> tg.instantiate(nn.Linear(2, 1, init=init.zeros()), 0).W
    tensor([[0.],
            [0.]], requires_grad=True)
    """


class Ones(Initializer):
    """Ones, for gains. Weight decay does not apply by default. As torch.nn.init.ones_.

    >>> tg.instantiate(nn.Linear(2, 1, init=init.ones()), 0).W
    tensor([[1.],
            [1.]], requires_grad=True)
    """


class Literal(Initializer):
    """Given values; make one with `literal`. `data` are the bytes, little-endian, row-major."""

    dtype: DType
    shape: Shape
    data: bytes

    def __init__(self, dtype: DType, shape: Shape, data: bytes) -> None:
        self._hold(dtype=dtype, shape=shape, data=data)

    def __repr__(self) -> str:
        return f"literal({self.dtype}{show(self.shape)})"

    def spec(self) -> dict[str, Any]:
        """Return plain data, with the bytes in base64."""
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
__all__ = [*KINDS, "literal"]  # pyright: ignore[reportUnsupportedDunderAll]


@helpful
def literal(array: Any, dtype: DType | str = f32) -> Literal:
    """Make an initialiser of given values: an array, a nested list or a number, stored as `dtype`.

    The values must have the shape of the parameter; else `tg.instantiate` and `compile` raise ShapeError.
    Raises DTypeError for anything else, and for values that `dtype` cannot hold.
    As jax.nn.initializers.constant, without broadcasting.

    >>> layer = nn.Linear(1, 2, init=init.literal([[1.0, 2.0]]))
    >>> tg.instantiate(layer, 0).W
    tensor([[1., 2.]], requires_grad=True)
    """
    dtype = as_dtype(dtype)
    if hasattr(array, "astype") and not isinstance(array, type):
        # an ndarray converts itself, without a list of a million numbers in between
        array = _lossless(array, dtype)
    scalar = isinstance(array, (bool, int, float))
    t = leaves.literal([array] if scalar else array, dtype)
    return Literal(dtype, () if scalar else t.shape, t.attrs["data"])


def _lossless(array: Any, dtype: DType) -> Any:
    """Convert an ndarray to `dtype`. Raises DTypeError if a float would become an integer."""
    kind = number_kind(array)
    if kind not in "fiub" or (kind == "f" and not dtype.is_float):
        raise DTypeError(f"init.literal: {array.dtype} values do not fit {dtype}")
    return array.astype(dtype.numpy)


def decays_by_default(init: Initializer) -> bool:
    """Return whether weight decay applies by default: not for zeros and ones, the values of biases and gains."""
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
        raise foreign.no_such_name("tracegrad.init", name, {"init": __all__}, "initialisers")
