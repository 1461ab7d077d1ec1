"""The recipe of draw.py in C: ten times as fast, if there is a C compiler. The numbers are the same, bit for bit."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping

from tracegrad.arrays import Array
from tracegrad.runtime.c_compiler import VARIABLE, compiler_named

FLAGS = ("-ffp-contract=off",)  # one rounding per operation
SOURCE = """#include <math.h>
#include <stdint.h>
#include <string.h>

static const double LOG[] = {{{log}}}, COS[] = {{{cos}}}, SIN[] = {{{sin}}};

static inline double draw(uint32_t seed, uint64_t n) {{
  uint32_t a = seed + (uint32_t)(n + 1) * {step}u;
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
  const int low = m < {half};
  m = low ? m + m : m;
  const double e = exponent - low, f = m - 1, s = f / (f + 2), z = s * s, w = z * z;
  double r = (((w * LOG[6] + LOG[4]) * w + LOG[2]) * w + LOG[0]) * z;
  r += ((w * LOG[5] + LOG[3]) * w + LOG[1]) * w;
  const double h = f * 0.5 * f;
  return e * {ln2_hi} - ((h - ((r + h) * s + e * {ln2_lo})) - f);
}}

static inline double cosine(double x) {{
  const double q = rint(x * {two_over_pi}), r = x - q * {pio2_hi}, w = q * {pio2_lo}, y = r - w, d = (r - y) - w;
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
    out[k] = sqrt(ln(u > {smallest} ? u : {smallest}) * -2.0) * cosine(v * {two_pi}) * deviation + mean;
  }}
}}

void uniform(float *out, long count, uint32_t seed, uint64_t at, double low, double high) {{
  for (long k = 0; k < count; k++) out[k] = (high - low) * draw(seed, at + k) + low;
}}
"""


class Compiled:
    """Fills arrays as `draw.normal` and `draw.uniform` do. Any thread can call it: calls release Python's lock."""

    def __init__(self, library: ctypes.CDLL) -> None:
        place = (ctypes.c_void_p, ctypes.c_long, ctypes.c_uint32, ctypes.c_uint64)
        self._normal, self._uniform = library.normal, library.uniform
        self._normal.argtypes = self._uniform.argtypes = (*place, ctypes.c_double, ctypes.c_double)

    def fill_normal(self, part: Array, seed: int, at: int, mean: float, deviation: float) -> None:
        """Fill with normal numbers times `deviation` plus `mean`, from the draws beginning at `at`."""
        self._normal(part.ctypes.data, part.size, seed, at, mean, deviation)

    def fill_uniform(self, part: Array, seed: int, at: int, low: float, high: float) -> None:
        """Fill with numbers from `low` to `high`, from the draws beginning at `at`."""
        self._uniform(part.ctypes.data, part.size, seed, at, low, high)


def compiled(constants: Mapping[str, float | tuple[float, ...]]) -> Compiled | None:
    """Compile the recipe with the current C compiler; None without one. constants: of the recipe."""
    return _compiled(os.environ.get(VARIABLE, ""), tuple(constants.items()))


@functools.cache
def _compiled(asked: str, constants: tuple[tuple[str, float | tuple[float, ...]], ...]) -> Compiled | None:
    found = compiler_named(asked)
    spelled = {k: ", ".join(map(repr, v)) if isinstance(v, tuple) else repr(v) for k, v in constants}
    library = found and found.library(SOURCE.format(**spelled), "NumPy draws the parameters", FLAGS)
    return Compiled(library) if library else None
