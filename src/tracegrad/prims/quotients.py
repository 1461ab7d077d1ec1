"""WGSL and C of remainders and of quotients of integers."""

from __future__ import annotations

# a - b floor(a / b), exactly: the significands are divided as integers, 8 bits at a time, because a / b rounds. A GPU
# can flush denormals, so both are multiplied by 2^149 before a smaller |a| is subtracted from |b|.
MODULO = """fn modulo_(a: f32, b: f32) -> f32 {
  let u = bitcast<u32>(a) & 0x7fffffffu;
  let v = bitcast<u32>(b) & 0x7fffffffu;
  let e = max(u >> 23u, 1u);
  let f = max(v >> 23u, 1u);
  let n = max((v & 0x7fffffu) | select(0x800000u, 0u, v < 0x800000u), 1u);
  var m = (u & 0x7fffffu) | select(0x800000u, 0u, u < 0x800000u);
  var left = select(e - f, 0u, e < f);
  while (left > 0u) {
    let bits = min(left, 8u);
    m = ((m % n) << bits) % n;
    left -= bits;
  }
  m = m % n;
  let apart = ((bitcast<u32>(a) ^ bitcast<u32>(b)) >> 31u) == 1u;
  m = select(m, n - m, apart && m != 0u);
  let shift = min(countLeadingZeros(m) - 8u, f - 1u);
  let reduced = select((m << shift) + ((f - shift - 1u) << 23u), 0u, m == 0u);
  let up = select(0u, 149u << 23u, f <= 105u);
  let small = select(bitcast<f32>(u + up), f32(u), u < 0x800000u && up > 0u);
  let less = bitcast<u32>(bitcast<f32>(v + up) - small) - up;
  let smaller = select(less, v, v == 0x7f800000u);
  let within = select(u, smaller, apart && u != 0u);
  let y = select(reduced, within, e < f) | (bitcast<u32>(b) & 0x80000000u);
  return bitcast<f32>(select(y, nan_bits, v == 0u || u >= 0x7f800000u || v > 0x7f800000u));
}"""

# The same in doubles, without a branch. A quotient cut to 29 bits times b is exact. Each step takes at least 28 bits of
# the quotient, so 10 steps reach any two f32. If rounding makes one quotient too large, the next
# is negative and corrects it.
MODULO_IN_DOUBLES = "\n".join(
    [
        "static inline double cut_(double x) {",
        "  unsigned long long u;",
        "  __builtin_memcpy(&u, &x, 8), u &= ~0xffffffull, __builtin_memcpy(&x, &u, 8);",
        "  return __builtin_floor(x);",
        "}",
        "HELPER float modulo_(float a, float b) {",
        "  const double size = __builtin_fabs((double)b), y = size > 1e39 ? 1e39 : size, share = 1.0 / y;",
        "  double x = __builtin_fabs((double)a);",
        *["  x -= cut_(x * share) * y;"] * 10,
        "  x += x < 0.0 ? y : 0.0;",
        "  x -= x >= y ? y : 0.0;",
        "  const float r = (float)x;",
        "  const unsigned sign = unsigned_of_float(b) & 0x80000000u;",
        "  const _Bool turned = (r != 0.0f) & ((unsigned_of_float(a) & 0x80000000u) != sign);",
        "  return float_of_unsigned(unsigned_of_float(select(r, (float)size - r, turned)) | sign);",
        "}",
    ]
)

# Where a / b is below 2^22 and b is not very large, one step suffices. The f32 quotient is off by at most 1, and its
# product with b is exact in a double. The remainder is exact in f32.
FAR_MODULO = "!((__builtin_fabsf({0}) <= 0x1p22f * __builtin_fabsf({1})) & (__builtin_fabsf({1}) < 0x1p100f))"
NEAR_MODULO = """HELPER float near_modulo_(float a, float b) {
  const float x = __builtin_fabsf(a), y = __builtin_fabsf(b), q = __builtin_floorf(x / y);
  const float left = (float)((double)x - (double)q * (double)y);
  const float at_least_0 = left + select(0.0f, y, left < 0.0f);
  const float r = at_least_0 - select(0.0f, y, at_least_0 >= y);
  const unsigned sign = unsigned_of_float(b) & 0x80000000u;
  const _Bool turned = (r != 0.0f) & ((unsigned_of_float(a) & 0x80000000u) != sign);
  return float_of_unsigned(unsigned_of_float(select(r, y - r, turned)) | sign);
}"""

# floor(a / b), and 0 for b = 0
QUOTIENT = """fn quotient_i32(a: i32, b: i32) -> i32 {
  let d = select(b, 1, b == 0);
  let q = a / d;
  let below = a != q * d && (a < 0) != (d < 0);
  return select(q - select(0, 1, below), 0, b == 0);
}
fn quotient_u32(a: u32, b: u32) -> u32 { return select(a / max(b, 1u), 0u, b == 0u); }"""
QUOTIENT_ARRAY = "(xp.floor_divide({0}, {1} + ({1} == 0)) * ({1} != 0))"

# A CPU has vector instructions that divide doubles, but none that divide integers. A double holds every integer of 32
# bits, and a quotient that is no integer never rounds to an integer. The lowest i32 divided by -1 wraps to itself.
QUOTIENT_IN_DOUBLES = """static inline int quotient_i32(int a, int b) {
  const double q = __builtin_floor((double)a / (double)(b + (b == 0)));
  return (int)(q >= 0x1p31 ? -0x1p31 : q) & ((b == 0) - 1);
}"""
UNSIGNED_IN_DOUBLES = """static inline unsigned quotient_u32(unsigned a, unsigned b) {
  const double x = (double)(int)(a ^ 0x80000000u) + 0x1p31;
  const double y = (double)(int)((b + (b == 0u)) ^ 0x80000000u) + 0x1p31;
  const int q = (int)(__builtin_floor(x / y) - 0x1p31);
  return ((unsigned)q ^ 0x80000000u) & ((unsigned)(b == 0u) - 1u);
}"""
