"""Draw the first values of parameters: Mulberry32 and Box-Muller, the same numbers in Python and in the browser.

The recipe, which the JavaScript twin repeats bit for bit. All arithmetic is float64, one rounding an operation, in
the order written here; only `+ - * /`, `sqrt`, `rint` and exact scaling by powers of two are used, because the
platforms' own `log` and `cos` differ in the last bit. The result is rounded to float32 at the end.

1. Draw n (from 0) of the stream: a = (seed + (n + 1) * 0x6D2B79F5) mod 2^32, then in 32-bit arithmetic
   t = imul(a ^ a>>>15, a | 1);  t ^= t + imul(t ^ t>>>7, t | 61);  k = t ^ t>>>14;  uniform u = k / 2^32.
2. A normal number takes two draws, u1 and then u2: sqrt(-2 log(max(u1, 1e-10))) * cos((2 * PI) * u2). A value is
   that times the deviation (randn: scale; kaiming: gain / sqrt(fan_in); xavier: gain * sqrt(2 / (fan_in + fan_out))).
3. `uniform(low, high)` takes one draw: low + (high - low) * u. Zeros, ones and literals take none.
4. One stream runs through all parameters in declaration order, each in row-major order.

log(x): x = m * 2^e with sqrt(1/2) <= m < sqrt(2); f = m - 1; s = f / (2 + f); z = s s; w = z z;
  r = z (L1 + w (L3 + w (L5 + w L7))) + w (L2 + w (L4 + w L6)); h = (0.5 f) f;
  log = e LN2_HI - ((h - (s (h + r) + e LN2_LO)) - f)
cos(x), 0 <= x < 2 PI: q = rint(x 2/PI); r = x - q PIO2_HI; w = q PIO2_LO; y = r - w; d = (r - y) - w; z = y y;
  C = z (C1 + z (C2 + z (C3 + z (C4 + z (C5 + z C6))))); h = 0.5 z; v = 1 - h;
  cosine = v + (((1 - v) - h) + (z C - y d))
  S = S2 + z (S3 + z (S4 + z (S5 + z S6))); c = z y; sine = y - ((z (0.5 d - c S) - d) - c S1)
  q = 0, 4: cosine; 1: -sine; 2: -cosine; 3: sine
Both are fdlibm's, exact to one unit in the last place, so that the numbers are those of tensorgrad, which calls
Math.log and Math.cos.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.dtypes import Shape
from tracegrad.errors import ShapeError
from tracegrad.init import Initializer, Kaiming, Literal, Ones, Randn, Uniform, Xavier
from tracegrad.runtime import browser
from tracegrad.shapes import show

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F64 = NDArray[np.float64]

STEP = 0x6D2B79F5
SMALLEST = 1e-10  # what a uniform 0 counts as under the logarithm
CHUNK = 1 << 14  # values at a time: the temporaries stay in the cache

LN2_HI, LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
LOG = (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
       1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01)  # fmt: skip
TWO_OVER_PI = 6.36619772367581382433e-01
PIO2_HI, PIO2_LO = 1.57079632673412561417e00, 6.07710050650619224932e-11  # the first has 33 bits: q * PIO2_HI is exact
COS = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
       -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11)  # fmt: skip
SIN = (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
       2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10)  # fmt: skip


def draw(specs: Sequence[tuple[Shape, Initializer]], seed: int) -> list[NDArray[Any]]:
    """First values of parameters, given as (shape, initialiser) in declaration order.

    Float32 arrays of the given shapes; a literal keeps its own dtype. Equal seeds (mod 2^32) give equal numbers.
    Raises ShapeError for a literal of another shape.
    """
    if not HAVE_NUMPY:
        return browser.draw(specs, seed)
    out: list[NDArray[Any]] = []
    at = 0  # draws taken so far
    for shape, init in specs:
        values, used = _values(shape, init, seed, at)
        out.append(values.reshape(shape))
        at += used
    return out


def _values(shape: Shape, init: Initializer, seed: int, at: int) -> tuple[NDArray[Any], int]:
    """The values in order, and how many draws they took."""
    size = math.prod(shape)
    if isinstance(init, Literal):
        if init.shape != shape:
            raise ShapeError(f"init.literal: the values are {show(init.shape)}, the parameter is {show(shape)}")
        return np.frombuffer(init.data, np.dtype(init.dtype.numpy)).copy(), 0
    out = np.full(size, 1.0 if isinstance(init, Ones) else 0.0, np.float32)
    if isinstance(init, (Randn, Kaiming, Xavier)):
        std = init.std(shape)
        for i in range(0, size, CHUNK):
            part = out[i : i + CHUNK]
            part[:] = normal(seed, at + 2 * i, len(part)) * std
        return out, 2 * size
    if isinstance(init, Uniform):
        for i in range(0, size, CHUNK):
            part = out[i : i + CHUNK]
            part[:] = init.low + (init.high - init.low) * uniform(seed, at + i, len(part))
        return out, size
    return out, 0


def uniform(seed: int, at: int, count: int) -> F64:
    """Draws `at` to `at + count` of the stream, in [0, 1). The state advances by a constant, so any draw is direct."""
    first = np.uint32((seed + (at + 1) * STEP) & 0xFFFFFFFF)
    a = first + np.arange(count, dtype=np.uint32) * np.uint32(STEP)
    t = (a ^ (a >> np.uint32(15))) * (a | np.uint32(1))
    t ^= t + (t ^ (t >> np.uint32(7))) * (t | np.uint32(61))
    return (t ^ (t >> np.uint32(14))) / 4294967296.0


def normal(seed: int, at: int, count: int) -> F64:
    """`count` standard normal numbers from the draws `at` to `at + 2 count`."""
    u = uniform(seed, at, 2 * count)
    return np.sqrt(-2.0 * _log(np.maximum(u[0::2], SMALLEST))) * _cos((2.0 * math.pi) * u[1::2])


def _log(x: F64) -> F64:
    """See the module."""
    m, exponent = np.frexp(x)
    low = (m < math.sqrt(0.5)).astype(np.float64)
    m = m + m * low
    e = exponent - low
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    l1, l2, l3, l4, l5, l6, l7 = LOG
    r = z * (l1 + w * (l3 + w * (l5 + w * l7))) + w * (l2 + w * (l4 + w * l6))
    h = (0.5 * f) * f
    return e * LN2_HI - ((h - (s * (h + r) + e * LN2_LO)) - f)


def _cos(x: F64) -> F64:
    """See the module."""
    q = np.rint(x * TWO_OVER_PI)
    r = x - q * PIO2_HI
    w = q * PIO2_LO
    y = r - w
    d = (r - y) - w
    z = y * y
    c1, c2, c3, c4, c5, c6 = COS
    h = 0.5 * z
    v = 1.0 - h
    tail = z * (c1 + z * (c2 + z * (c3 + z * (c4 + z * (c5 + z * c6)))))
    cosine = v + (((1.0 - v) - h) + (z * tail - y * d))
    s1, s2, s3, s4, s5, s6 = SIN
    cube = z * y
    sine = y - ((z * (0.5 * d - cube * (s2 + z * (s3 + z * (s4 + z * (s5 + z * s6))))) - d) - cube * s1)
    # Chosen, and negated, by bits: on random quadrants NumPy's masked copies take longer than all of the above.
    quadrant, bits, other = q.astype(np.int64), cosine.view(np.int64), sine.view(np.int64)
    bits ^= (bits ^ other) & -(quadrant & 1)
    bits ^= ((quadrant + 1) & 2) << 62
    return cosine
