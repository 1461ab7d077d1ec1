"""Convert draws for two initialisers: truncated normal numbers, and orthogonal matrices.

js/random.js repeats this code bit for bit: float64, one rounding per operation, in the order written here. Draws are
float32.

truncated_normal: a draw u becomes mean + std * quantile(min(p_low + (p_high - p_low) * u, 1 - 2^-53)), kept within
  [low, high]. `quantile` maps p_low and p_high to (low - mean) / std and (high - mean) / std; 64 halvings of
  [1e-300, 1 - 2^-53] at sqrt(a) * sqrt(b) find them. If most of the interval is above the mean, everything is mirrored,
  because floats hold probabilities near 0 more exactly than those near 1.
quantile: the normal distribution's, by Wichura's algorithm AS 241, PPND16 (1988), exact to 16 digits.
orthogonal: modified Gram-Schmidt on the rows of a normal matrix, or its columns if these are fewer, each sum from left
  to right. The diagonal of R is positive, so all orthogonal matrices are equally likely (Mezzadri 2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.dtypes import Shape
from tracegrad.init import Orthogonal, TruncatedNormal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F64 = NDArray[np.float64]

# AS 241: numerator and denominator, from the constant on: about the middle, towards the tails, and far out
MIDDLE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
TAIL = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
FAR = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip
SMALLEST, LARGEST = 1e-300, 1.0 - 2.0**-53
HALVINGS = 64

Log = Callable[[Any], Any]


def quantile(p: F64, log: Log) -> F64:
    """Return the number that a normal number is below with probability p."""
    q = p - 0.5
    r = np.sqrt(-log(np.where(q <= 0.0, p, 1.0 - p)))
    tail = np.where(r <= 5.0, _ratio(r - 1.6, TAIL), _ratio(r - 5.0, FAR))
    return np.where(np.abs(q) <= 0.425, q * _ratio(0.180625 - q * q, MIDDLE), np.where(q < 0.0, -tail, tail))


def _ratio(x: F64, rows: tuple[Sequence[float], Sequence[float]]) -> F64:
    above, below = (np.full_like(x, row[-1]) for row in rows)
    for a, b in zip(rows[0][-2::-1], rows[1][-2::-1], strict=True):
        above = above * x + a
        below = below * x + b
    return above / below


def truncated(flat: NDArray[Any], init: TruncatedNormal, log: Log) -> None:
    """Convert draws in [0, 1) to the values of a parameter, in place."""
    mean, std, low, high = (float(x) for x in (init.mean, init.std, init.low, init.high))
    a, b = (low - mean) / std, (high - mean) / std
    mirrored = a + b > 0.0
    if mirrored:
        a, b = -b, -a
    first, last = _probability(a, log), _probability(b, log)
    z = quantile(np.minimum(first + (last - first) * flat.astype(np.float64), LARGEST), log)
    flat[:] = np.minimum(np.maximum(mean + std * (-z if mirrored else z), low), high)


def _probability(z: float, log: Log) -> float:
    a, b = SMALLEST, LARGEST
    for _ in range(HALVINGS):
        middle = math.sqrt(a) * math.sqrt(b)
        if float(quantile(np.asarray([middle]), log)[0]) <= z:
            a = middle
        else:
            b = middle
    return a


def orthogonal(flat: NDArray[Any], shape: Shape, init: Orthogonal) -> None:
    """Convert normal numbers to orthogonal matrices, in place."""
    members = math.prod(shape[: init.stacked])
    for part in flat.reshape(members, shape[init.stacked], -1):
        tall = part.shape[0] > part.shape[1]
        rows = np.array(part.T if tall else part, np.float64, order="C")
        for k, row in enumerate(rows):
            row /= math.sqrt(float(_sums(row * row)))
            rest = rows[k + 1 :]
            rest -= _sums(rest * row)[:, None] * row
        rows *= float(init.gain)
        part[:] = rows.T if tall else rows


def _sums(x: F64) -> F64:
    """Sum along the last axis from left to right; `np.sum` adds in an order of its own."""
    return np.cumsum(x, axis=-1)[..., -1]
