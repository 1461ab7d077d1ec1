"""Draw the first values of parameters: Mulberry32 and Box-Muller, the same numbers in Python, C and the browser.

The versions in C and JavaScript repeat this recipe bit for bit. All arithmetic is float64, with one rounding per
operation, in the order written here. The recipe uses only `+ - * /`, `sqrt`, `rint` and exact scaling by powers of
two, because the platforms' own `log` and `cos` differ in the last bit. The result is rounded to float32 at the end.

1. Draw n (from 0) of the stream, in 32-bit arithmetic but for u:

   a = (seed + (n + 1) * 0x6D2B79F5) mod 2^32
   t = imul(a ^ a>>>15, a | 1);  t ^= t + imul(t ^ t>>>7, t | 61);  k = t ^ t>>>14
   u = k / 2^32, uniform

2. A normal number takes two draws, u1 and then u2: sqrt(-2 log(max(u1, 1e-10))) * cos((2 * PI) * u2). A value is
   this number times the deviation (randn: scale; kaiming: gain / sqrt(fan_in); lecun: 1 / sqrt(fan_in);
   xavier: gain * sqrt(2 / (fan_in + fan_out))). `normal` adds its mean.
3. `uniform(low, high)` and similar initialisers take one draw: low + (high - low) * u. Zeros, ones and literals take
   none. `truncated_normal` takes one draw as well; `orthogonal` takes normal numbers of deviation 1: see `shaped.py`.
4. One stream runs through all parameters in declaration order, each in row-major order.

log(x), x = m * 2^e with sqrt(1/2) <= m < sqrt(2):

  f = m - 1; s = f / (2 + f); z = s s; w = z z
  r = z (L1 + w (L3 + w (L5 + w L7))) + w (L2 + w (L4 + w L6)); h = (0.5 f) f
  log = e LN2_HI - ((h - (s (h + r) + e LN2_LO)) - f)

cos(x), 0 <= x < 2 PI:

  q = rint(x 2/PI); r = x - q PIO2_HI; w = q PIO2_LO; y = r - w; d = (r - y) - w; z = y y
  C = z (C1 + z (C2 + z (C3 + z (C4 + z (C5 + z C6))))); h = 0.5 z; v = 1 - h
  cosine = v + (((1 - v) - h) + (z C - y d))
  S = S2 + z (S3 + z (S4 + z (S5 + z S6))); c = z y; sine = y - ((z (0.5 d - c S) - d) - c S1)
  cos = cosine for q of 0 and 4, -sine for 1, -cosine for 2, sine for 3

Both are fdlibm's, exact to one unit in the last place. So the numbers equal those of tensorgrad, which calls Math.log
and Math.cos.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.dtypes import DTYPES, Shape, show
from tracegrad.errors import ShapeError
from tracegrad.files.jsontext import dumped
from tracegrad.init import Literal, Ones, Orthogonal, Randn, TruncatedNormal, Uniform
from tracegrad.initializer import Even, Gaussian, Initializer
from tracegrad.runtime.process import in_background, processors
from tracegrad.runtime.shaped import orthogonal, truncated
from tracegrad.runtime.tab import javascript
from tracegrad.tuning import DRAW_CHUNK, DRAW_IN_C, DRAW_THREADS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F64 = NDArray[np.float64]

STEP = 0x6D2B79F5
SMALLEST = 1e-10  # replaces a uniform 0 under the logarithm
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
    """Return first values of parameters, given as (shape, initialiser) in declaration order.

    The arrays are float32 and have the given shapes; a literal keeps its own dtype. Equal seeds (mod 2^32) give equal
    numbers. Raises ShapeError for a literal of another shape.
    """
    if not HAVE_NUMPY:
        return _drawn_by_javascript(specs, seed)
    out: list[NDArray[Any]] = []
    fills: list[Callable[[ctypes.CDLL | None], None]] = []
    at = 0  # draws used so far
    for shape, given in specs:
        out.append(_undrawn(shape, given))
        init = _drawn_as(given)
        if draws := _draws(init):
            flat = out[-1].reshape(-1)
            parts = range(0, flat.size, DRAW_CHUNK)
            fills += [partial(_fill, flat[i : i + DRAW_CHUNK], shape, init, seed, at + draws * i) for i in parts]
            at += draws * flat.size
    values = sum(x.size for x in out)
    threads = max(1, min(processors(), DRAW_THREADS, values // DRAW_CHUNK))
    compiled = _compiled() if values >= DRAW_IN_C else None

    def fill(thread: int) -> None:
        for f in fills[thread::threads]:
            f(compiled)

    if threads == 1:
        fill(0)
    else:
        for part in [in_background(partial(fill, k)) for k in range(threads)]:
            part.result()
    for x, (shape, init) in zip(out, specs, strict=True):
        _shape(x.reshape(-1), shape, init)
    return out


def _drawn_as(init: Initializer) -> Initializer:
    """Return the initialiser to draw from: `init`, or a simpler one whose numbers `shaped.py` converts to `init`'s."""
    if isinstance(init, Orthogonal):
        return Randn(1.0)
    return Uniform(0.0, 1.0) if isinstance(init, TruncatedNormal) else init


def _shape(flat: NDArray[Any], shape: Shape, init: Initializer) -> None:
    if isinstance(init, Orthogonal):
        orthogonal(flat, shape, init)
    elif isinstance(init, TruncatedNormal):
        for part in np.split(flat, range(DRAW_CHUNK, len(flat), DRAW_CHUNK)):
            truncated(part, init, _log)


def _draws(init: Initializer) -> int:
    """Return how many draws of the stream each value of a parameter takes."""
    return 2 if isinstance(init, Gaussian) else int(isinstance(init, Even))


def _undrawn(shape: Shape, init: Initializer) -> NDArray[Any]:
    """Return the array, with its values if they need no draws."""
    if not isinstance(init, Literal):
        return np.full(shape, 1.0 if isinstance(init, Ones) else 0.0, np.float32)
    if init.shape != shape:
        raise ShapeError(f"init.literal: the values are {show(init.shape)}, the parameter is {show(shape)}")
    return np.frombuffer(init.data, np.dtype(init.dtype.numpy)).reshape(shape).copy()


def _fill(part: NDArray[Any], shape: Shape, init: Initializer, seed: int, at: int, c: ctypes.CDLL | None) -> None:
    """Fill values of a parameter from draw `at` on. c: the recipe in C, if there is a compiler."""
    if isinstance(init, Even):
        low, high = init.bounds(shape)
        if c is not None:
            c.uniform(part.ctypes.data, part.size, seed, at, low, high)
        else:
            part[:] = low + (high - low) * uniform(seed, at, len(part))
    elif isinstance(init, Gaussian):
        mean, deviation = float(init.center()), float(init.deviation(shape))
        if c is not None:
            c.normal(part.ctypes.data, part.size, seed, at, mean, deviation)
        else:
            part[:] = normal(seed, at, len(part)) * deviation + mean


def uniform(seed: int, at: int, count: int) -> F64:
    """Return `count` draws from draw `at` on, in [0, 1). The state advances by a constant, so no draw needs others."""
    a = np.arange(count, dtype=np.uint32) * np.uint32(STEP) + np.uint32((seed + (at + 1) * STEP) & 0xFFFFFFFF)
    t = (a ^ a >> 15) * (a | 1)
    t ^= t + (t ^ t >> 7) * (t | 61)
    return (t ^ t >> 14) / 4294967296.0


def normal(seed: int, at: int, count: int) -> F64:
    """Return `count` standard normal numbers from the draws `at` to `at + 2 count`."""
    u = uniform(seed, at, 2 * count)
    return np.sqrt(_log(np.maximum(u[0::2], SMALLEST)) * -2.0) * _cos(u[1::2] * (2.0 * math.pi))


def _polynomial(x: F64, c: Sequence[float]) -> F64:
    """Return c[0] + x (c[1] + x (...))."""
    out = x * c[-1]
    for k in c[-2:0:-1]:
        out += k
        out *= x
    return out + c[0]


def _log(x: F64) -> F64:
    """Return log(x) by the recipe above."""
    m, exponent = np.frexp(x)
    low = m < math.sqrt(0.5)
    f, e = m + m * low - 1.0, (exponent - low).astype(np.float64)
    s = f / (f + 2.0)
    z = s * s
    w = z * z
    r = _polynomial(w, LOG[0::2]) * z + _polynomial(w, LOG[1::2]) * w
    h = f * 0.5 * f
    return e * LN2_HI - (h - ((r + h) * s + e * LN2_LO) - f)


def _cos(x: F64) -> F64:
    """Return cos(x) by the recipe above."""
    q = np.rint(x * TWO_OVER_PI)
    r, w = x - q * PIO2_HI, q * PIO2_LO
    y = r - w
    d, z = r - y - w, y * y
    h, cube = z * 0.5, z * y
    v = 1.0 - h
    cosine = _polynomial(z, COS) * z * z - y * d + (1.0 - v - h) + v
    sine = y - ((d * 0.5 - _polynomial(z, SIN[1:]) * cube) * z - d - cube * SIN[0])
    quadrant = q.astype(np.int64)
    sign = np.subtract(1.0, quadrant + 1 & 2, dtype=np.float64)
    return np.where(quadrant & 1, sine, cosine) * sign


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(map(repr, numbers))


FLAGS = ("-ffp-contract=off",)  # one rounding per operation
SOURCE = f"""#include <math.h>
#include <stdint.h>
#include <string.h>

static const double LOG[] = {{{_listed(LOG)}}}, COS[] = {{{_listed(COS)}}}, SIN[] = {{{_listed(SIN)}}};

static inline double draw(uint32_t seed, uint64_t n) {{
  uint32_t a = seed + (uint32_t)(n + 1) * {STEP}u;
  uint32_t t = (a ^ a >> 15) * (a | 1);
  t ^= t + (t ^ t >> 7) * (t | 61);
  return (t ^ t >> 14) / 4294967296.0;
}}

static inline double ln(double x) {{
  int64_t bits;
  memcpy(&bits, &x, 8); /* never 0, nor denormal */
  int32_t exponent = (int32_t)(bits >> 52) - 1022;
  bits = (bits & 0xfffffffffffff) | 0x3fe0000000000000;
  double m;
  memcpy(&m, &bits, 8);
  const int low = m < {math.sqrt(0.5)!r};
  m = low ? m + m : m;
  const double e = exponent - low, f = m - 1, s = f / (f + 2), z = s * s, w = z * z;
  double r = (((w * LOG[6] + LOG[4]) * w + LOG[2]) * w + LOG[0]) * z;
  r += ((w * LOG[5] + LOG[3]) * w + LOG[1]) * w;
  const double h = f * 0.5 * f;
  return e * {LN2_HI!r} - ((h - ((r + h) * s + e * {LN2_LO!r})) - f);
}}

static inline double cosine(double x) {{
  const double q = rint(x * {TWO_OVER_PI!r}), r = x - q * {PIO2_HI!r}, w = q * {PIO2_LO!r}, y = r - w, d = (r - y) - w;
  const double z = y * y, h = z * 0.5, v = 1 - h;
  double c = ((((z * COS[5] + COS[4]) * z + COS[3]) * z + COS[2]) * z + COS[1]) * z + COS[0];
  c = (((c * z * z - y * d) + ((1 - v) - h)) + v);
  const double cube = z * y;
  double s = (((z * SIN[5] + SIN[4]) * z + SIN[3]) * z + SIN[2]) * z + SIN[1];
  s = y - (((d * 0.5 - s * cube) * z - d) - cube * SIN[0]);
  const int quadrant = (int)q;
  const double chosen = quadrant & 1 ? s : c;
  return quadrant + 1 & 2 ? -chosen : chosen;
}}

void normal(float *out, long count, uint32_t seed, uint64_t at, double mean, double deviation) {{
  for (long k = 0; k < count; k++) {{
    const double u = draw(seed, at + 2 * k), v = draw(seed, at + 2 * k + 1);
    out[k] = sqrt(ln(u > {SMALLEST!r} ? u : {SMALLEST!r}) * -2.0) * cosine(v * {2.0 * math.pi!r}) * deviation + mean;
  }}
}}

void uniform(float *out, long count, uint32_t seed, uint64_t at, double low, double high) {{
  for (long k = 0; k < count; k++) out[k] = (high - low) * draw(seed, at + k) + low;
}}
"""


def _compiled() -> ctypes.CDLL | None:
    """Return the recipe in C, which is ten times as fast; None without a C compiler. Calls release Python's lock."""
    from tracegrad.runtime.c_compiler import compiler

    found = compiler()
    library = found and found.library(SOURCE, "NumPy draws the parameters", FLAGS)
    for fill in (library.normal, library.uniform) if library else ():
        place = (ctypes.c_void_p, ctypes.c_long, ctypes.c_uint32, ctypes.c_uint64)
        fill.argtypes = (*place, ctypes.c_double, ctypes.c_double)
    return library


def _drawn_by_javascript(specs: Sequence[tuple[Shape, Initializer]], seed: int) -> list[Any]:
    """Return the values of `draw`, computed by js/random.js: for a tab without NumPy."""
    dtypes = [init.dtype.name if isinstance(init, Literal) else "f32" for _, init in specs]
    fields = [
        {"name": str(k), "shape": shape, "dtype": dtype, "spec": {"init": init.spec()}}
        for k, ((shape, init), dtype) in enumerate(zip(specs, dtypes, strict=True))
    ]
    parts = javascript().drawn(dumped(fields), seed)
    return [
        np.frombuffer(init.data if isinstance(init, Literal) else part.to_bytes(), DTYPES[dtype].numpy).reshape(shape)
        for part, (shape, init), dtype in zip(parts, specs, dtypes, strict=True)
    ]
