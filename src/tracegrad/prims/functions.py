"""WGSL code of functions whose precision WGSL leaves to the driver.

WGSL promises little: exp within 3 + 2|x| ulp, log within 2^-21 near 1, pow as exp2(b log2(a)). sin and cos are within
2^-11, and only on [-pi, pi]. NaN and infinity are undefined everywhere. These functions are short polynomials after
Cephes (Moshier), with the arguments reduced by exact products; docs/numerics.md has the errors. Code tests special
values by their bits, because a compiler can assume that comparisons never see such values. Functions that need each
other are parts of one text, separated by a blank line: a shader holds each part once.
"""

from __future__ import annotations

import math

# erf(x) = x + x P(x^2) below 1, and sign(x) (1 - exp(Q(|x|))) from 1 on, where Q fits log(erfc) on [1, 4].
# Weighted least squares iterated to the minimax. In f32 |error| < 1.5e-7; a rational fit, which divides, has 3.1e-7.
ERF_P = (-0.0005522360443137586, 0.004888213239610195, -0.026683002710342407, 0.11279019713401794,
         -0.376121461391449, 0.12837910652160645)  # fmt: skip
ERF_Q = (0.0001855748996604234, -0.0029396156314760447, 0.021805351600050926, -0.10303743183612823,
         -0.6382256150245667, -1.1270400285720825, -0.00035370892146602273)  # fmt: skip
# x (1 + x^2 P(x^2)) up to 1, relative error 5e-9
TANH_P = (-0.00035845203092321754, 0.0023013646714389324, -0.007946106605231762, 0.021486658602952957,
          -0.05387980118393898, 0.13332344591617584, -0.33333295583724976)  # fmt: skip
# e^r = 1 + r + r^2 P(r) for |r| <= log(2) / 2, minimax: relative error 3.1e-9
EXP_P = (1.3820732e-3, 8.368677e-3, 4.1668266e-2, 0.16666521, 0.49999994)
# log(1 + f) = f - f^2 / 2 + f^3 P(f) for 1 + f in [sqrt(1/2), sqrt(2)]
LOG_P = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
         2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
# log(2) in parts: products of all but the last with an integer of up to 13 bits are exact
LN2 = (0.693359375, -2.12194440e-4)
# atan(q) = q + q^3 P(q^2) for 0 <= q <= 1, relative error 1.7e-8
ATAN_P = (0.0029206406325101852, -0.01636773720383644, 0.04321157559752464, -0.07552192360162735, 0.10665995627641678,
          -0.14211052656173706, 0.19993773102760315, -0.33333152532577515)  # fmt: skip


def horner(coefficients: tuple[float, ...], z: str) -> str:
    """Return a polynomial in `z`, highest power first, as text that is valid Python and WGSL."""
    text = repr(coefficients[0])
    for c in coefficients[1:]:
        text = f"({text} * {z} + {c!r})"
    return text


EXP_OF_R = horner(EXP_P, "r")

IS_NAN = "fn is_nan_(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }"

SIGN = f"""{IS_NAN}

fn sign_f32(x: f32) -> f32 {{ return select(sign(x), x, is_nan_(x)); }}

fn sign_i32(x: i32) -> i32 {{ return sign(x); }}"""

# WGSL promises nothing for divisors beyond 2^126: an H200 gives 3e38 / 3e38 = 0 and inf / 3e38 = NaN.
DIV = """fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}"""

# 2^n as two factors, because f32 can represent neither 2^128 nor 2^-150
SCALE = """fn scale_(x: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}"""

EXP = f"""{IS_NAN}

{SCALE}

fn exp_times_(x: f32, power: i32) -> f32 {{  // e^x 2^power
  let c = clamp(x, -105.0, 90.0);
  let n = round(c * {1 / math.log(2)!r});
  let r = c - n * {LN2[0]} - n * ({LN2[1]});
  let y = {EXP_OF_R} * r * r + r + 1.0;
  return select(scale_(y, i32(n) + power), x, is_nan_(x));
}}

fn exp_(x: f32) -> f32 {{ return exp_times_(x, 0); }}"""

# e^x / 2, which overflows a little later than e^x. Scaled by the exponent: NVIDIA's driver makes r r / 2 of (r / 2) r.
HALF_EXP = f"""{EXP}

fn half_exp_(x: f32) -> f32 {{ return exp_times_(x, -1); }}"""

HALF_EXP_ARRAY = "(lambda r: (r * 0.5) * r)(xp.exp({0} * 0.5))"

# e^x for |x| <= 87 with the device's exp, within 3 + 2|x| ulp: for small results or small parts of a result
NEAR_EXP = "fn near_exp_(x: f32) -> f32 { return exp(x); }"


# EXP and NEAR_EXP for a language that computes as written, in which exp is a function call. Adding 1.5 2^23 + b rounds
# to an integer n and leaves n + b in the low bits, so the factors of 2^n need no conversion. `clamp` must keep NaN.
def _reduced(x: str, biased: float) -> str:
    return f"""let t = {x} * {1 / math.log(2)!r} + {biased!r};
  let n = t - {biased!r};
  let r = {x} - n * {LN2[0]} - n * ({LN2[1]});"""


EXP_AS_WRITTEN = f"""fn exp_times_(x: f32, power: i32) -> f32 {{
  let c = clamp(x, -105.0, 90.0);
  {_reduced("c", 1.5 * 2**23 + 254)}
  let y = ({EXP_OF_R} * r + 1.0) * r + 1.0;
  let i = bitcast<u32>(t) + u32(power);
  let half = (i << 22u) & 0x7f800000u;
  return y * bitcast<f32>(half) * bitcast<f32>((i << 23u) - half);
}}"""

NEAR_EXP_AS_WRITTEN = f"""fn near_exp_(x: f32) -> f32 {{
  {_reduced("x", 1.5 * 2**23 + 127)}
  let y = ({EXP_OF_R} * r + 1.0) * r + 1.0;
  return y * bitcast<f32>(bitcast<u32>(t) << 23u);
}}"""

# 2^n (e^r - 1) + (2^n - 1)
EXPM1 = f"""{EXP}

fn expm1_(x: f32) -> f32 {{
  let c = clamp(x, -30.0, 80.0);
  let n = round(c * {1 / math.log(2)!r});
  let r = c - n * {LN2[0]} - n * ({LN2[1]});
  let y = {EXP_OF_R} * r * r + r;
  let s = scale_(1.0, i32(n));
  return select(select(s * y + (s - 1.0), x, abs(x) < 1e-8), exp_(x), !(x < 80.0));
}}"""

# log(x) = e log(2) + log(1 + f) where x = 2^e (1 + f). The code has no branch, like the functions below: a branch
# prevents vector code on a CPU. The functions log_(x) and log1p_(x) share these parts. Where 1 + x rounds, log1p_(x)
# computes a better f: a compiler that reassociates would remove Kahan's correction of that rounding.
LOG_PARTS = f"""fn log_sum_(f: f32, e: f32) -> f32 {{
  let z = f * f;
  let y = {horner(LOG_P, "f")} * f * z + e * ({LN2[1]}) - 0.5 * z;
  return f + y + e * {LN2[0]};
}}

fn log_special_(y: f32, x: f32, v: u32) -> f32 {{
  let u = bitcast<u32>(x);
  let other = select(x, bitcast<f32>(nan_bits), u >> 31u == 1u);
  let at_zero = select(other, -bitcast<f32>(inf_bits), (v << 1u) == 0u);
  return select(y, at_zero, u - 1u >= 0x7f7fffffu || v == 0u);
}}"""

LOG = f"""{LOG_PARTS}

fn log_(x: f32) -> f32 {{
  let u = bitcast<u32>(x);
  let tiny = u < 0x800000u;  // of a denormal, 2^23 times it; 0 where the device flushes denormals
  let v = select(u, bitcast<u32>(x * 8388608.0), tiny);
  let m = bitcast<f32>((v & 0x7fffffu) | 0x3f000000u);
  let low = m < {math.sqrt(0.5)!r};
  let e = f32(i32(v >> 23u) - select(126, 127, low) - select(0, 23, tiny));
  return log_special_(log_sum_(select(m, m + m, low) - 1.0, e), x, v);
}}"""

# x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). Subtracting the bits of sqrt(1/2) leaves e in the bits from 23 on;
# adding them to the 23 bits below gives 1 + f. log(1 + f) = f + f^2 Q(f), minimax: relative error 4.1e-9. The last
# part is e log(2), where log(2) in f32 is near enough. A condition minus 1 is a mask: sums and masks take fewer
# instructions than choices. `log_end_` is 0, or what becomes of +inf, NaN and negative numbers.
LOG_Q = (-0.07621778, 0.12904434, -0.13242988, 0.14181825, -0.16609083, 0.20001974, -0.25001583, 0.33333326,
         -0.49999988)  # fmt: skip
LOG_SUM_AS_WRITTEN = f"""fn log_sum_(f: f32, e: f32) -> f32 {{
  return f * f * {horner(LOG_Q, "f")} + f + e * {math.log(2)!r};
}}

fn log_end_(u: u32) -> f32 {{
  return bitcast<f32>((u | u32(i32(u) >> 31u)) & (u32(u < 0x7f800000u) - 1u));
}}"""

LOG_AS_WRITTEN = """fn log_(x: f32) -> f32 {
  let u = bitcast<u32>(x);
  let usual = (u32(u < 0x800000u) - 1u) & 0x0b800000u;  // 0 for a denormal, which is multiplied by 2^23
  let v = bitcast<u32>(x * bitcast<f32>(0x4b000000u - usual)) - 0x4ab504f3u + usual;
  let y = log_sum_(bitcast<f32>((v & 0x7fffffu) + 0x3f3504f3u) - 1.0, f32(i32(v) >> 23u)) + log_end_(u);
  return select(y, -bitcast<f32>(inf_bits), x == 0.0);
}"""

LOG1P = f"""{LOG_PARTS}

fn log1p_(x: f32) -> f32 {{
  let s = 1.0 + x;
  let v = bitcast<u32>(s);
  let m = bitcast<f32>((v & 0x7fffffu) | 0x3f000000u);
  let low = m < {math.sqrt(0.5)!r};
  let e = i32(v >> 23u) - select(126, 127, low);
  let y = log_sum_(select(select(m, m + m, low) - 1.0, x, e == 0), f32(e));
  return select(log_special_(y, s, v), x, abs(x) < 1e-10);
}}"""

LOG1P_AS_WRITTEN = """fn log1p_(x: f32) -> f32 {
  let s = 1.0 + x;
  let v = bitcast<u32>(s) - 0x3f3504f3u;
  let e = i32(v) >> 23u;
  let y = log_sum_(select(bitcast<f32>((v & 0x7fffffu) + 0x3f3504f3u) - 1.0, x, e == 0), f32(e));
  return select(select(y + log_end_(bitcast<u32>(s)), -bitcast<f32>(inf_bits), s == 0.0), x, abs(x) < 1e-10);
}"""

# 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)): 2^n itself overflows before the result. The last condition: tiny, or NaN.
EXPM1_AS_WRITTEN = f"""fn expm1_(x: f32) -> f32 {{
  let c = clamp(x, -30.0, 89.0);
  {_reduced("c", 1.5 * 2**23 + 126)}
  let y = {EXP_OF_R} * r * r + r;
  let s = bitcast<f32>(bitcast<u32>(t) << 23u);
  let u = bitcast<u32>(x) & 0x7fffffffu;
  return select(2.0 * (s * y + (s - 0.5)), x, u - 0x322bcc77u > 0x7f800000u - 0x322bcc77u);
}}"""

# tanh_ and erf_ compute two formulas and select one, without a branch. A branch keeps a GPU from computing several
# values side by side, and a CPU from vectors. For NaN, they select the polynomial, because `min` would drop NaN.
SIGNED = """fn signed_(y: f32, x: f32) -> f32 {  // y >= 0 with the sign of x
  return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u));
}"""

TANH = f"""{NEAR_EXP}

{SIGNED}

fn tanh_(x: f32) -> f32 {{
  let a = abs(x);
  let z = x * x;
  let y = 1.0 - 2.0 / (near_exp_(2.0 * min(a, 15.0)) + 1.0);
  return select(x * (1.0 + z * {horner(TANH_P, "z")}), signed_(y, x), a >= 1.0);
}}"""

# 1 + E R(E) with E = e^(-2 |x|) from 0.9 on, without a division; below, x (1 + x^2 P(x^2)). 2^r = T(r) for |r| <= 1/2,
# nearest where E is large. In f32, each adds a relative error of at most 1.6e-8.
TANH_NEAR = (0.0013039595, -0.0068600555, 0.020904126, -0.05372149, 0.1333036, -0.33333212)
TANH_FAR = (-1.2590938, 1.8771874, -1.9902452, 1.9996532, -1.999996)
TWO_TO = (0.0013346606, 0.009674427, 0.05550457, 0.24022138, 0.6931472, 1.0000001)
TANH_AS_WRITTEN = f"""fn tanh_(x: f32) -> f32 {{
  let a = abs(x);
  let z = x * x;
  let b = min(a, 10.0);
  let t = b * {-2 / math.log(2)!r} + {1.5 * 2**23 + 127!r};
  let n = t - {1.5 * 2**23 + 127!r};
  let r = b * {-2 / math.log(2)!r} - n;
  let e = {horner(TWO_TO, "r")} * bitcast<f32>(bitcast<u32>(t) << 23u);
  let y = {horner(TANH_FAR, "e")} * e + 1.0;
  return select(x * (1.0 + z * {horner(TANH_NEAR, "z")}), signed_(y, x), a >= 0.9);
}}"""

ERF = f"""{NEAR_EXP}

{SIGNED}

fn erf_(x: f32) -> f32 {{
  let a = abs(x);
  let z = x * x;
  let b = min(a, 4.0);
  let y = 1.0 - near_exp_({horner(ERF_Q, "b")});
  return select(x + x * {horner(ERF_P, "z")}, signed_(y, x), a >= 1.0);
}}"""

# 1 / (1 + e^-x). The error of e^-x is scaled by e^-x / (1 + e^-x)^2: within 2^-23, and 3 + 2|x| ulp
LOGISTIC = f"""{NEAR_EXP}

fn logistic_(x: f32) -> f32 {{
  let a = abs(x);
  let e = select(near_exp_(-a), 0.0, a > 87.0);
  return select(1.0, e, x < 0.0) / (1.0 + e);
}}"""

LOGISTIC_ARRAY = "(lambda x, e: xp.where(x < 0.0, e, 1.0) / (1.0 + e))({0}, xp.exp(-xp.abs({0})))"

# The smaller operand divided by the larger is at most 1. Two denormals are multiplied by 2^23 first: a device that
# flushes them to 0 then sees equal operands and does not divide by 0. Signs and zeros are tested by their bits, as IEEE
# requires: atan2(-0, -1) is -pi.
ATAN2 = f"""{IS_NAN}

{DIV}

fn atan2_(y: f32, x: f32) -> f32 {{
  let whole_v = bitcast<u32>(y) & 0x7fffffffu;
  let whole_u = bitcast<u32>(x) & 0x7fffffffu;
  let tiny = max(whole_u, whole_v) < 0x800000u;
  let v = select(whole_v, bitcast<u32>(bitcast<f32>(whole_v) * 8388608.0), tiny);
  let u = select(whole_u, bitcast<u32>(bitcast<f32>(whole_u) * 8388608.0), tiny);
  let q = select(div_(bitcast<f32>(min(u, v)), bitcast<f32>(max(u, v))), select(1.0, 0.0, u == 0u), u == v);
  let z = q * q;
  let p = q + q * z * {horner(ATAN_P, "z")};
  let near = select(p, {math.pi / 2!r} - p, v > u);
  let a = select(near, {math.pi!r} - near, bitcast<u32>(x) >> 31u == 1u);
  let s = select(a, -a, bitcast<u32>(y) >> 31u == 1u);
  return select(s, bitcast<f32>(nan_bits), max(u, v) > 0x7f800000u);
}}"""

# ERF as one NumPy expression
ERF_ARRAY = (
    "(lambda x, z, a: xp.where(a >= 1.0, "
    f"xp.copysign(1.0 - xp.exp({horner(ERF_Q, 'a')}), x), x + x * {horner(ERF_P, 'z')}))"
    "({0}, xp.minimum({0} * {0}, 1.0), xp.minimum(xp.abs({0}), 4.0))"
)

# a^b = exp(b log(m) + b e log(2)). Logarithm and exponent are both cut after 12 bits, so that the large products are
# exact. Beyond 2^32 every exponent gives 0, 1 or infinity, even for numbers next to 1. Special values as in C and
# NumPy.
POW = f"""{EXP}

fn upper_(x: f32) -> f32 {{ return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }}

fn pow_(a: f32, b: f32) -> f32 {{
  let u = bitcast<u32>(a) & 0x7fffffffu;  // not abs(a), which may flush denormals
  let c = bitcast<f32>(u);
  let tiny = u < 0x800000u;  // of a denormal, 2^23 times it
  let v = select(u, bitcast<u32>(c * 8388608.0), tiny);
  let low = (v & 0x7fffffu) > 0x3504f3u;  // m in [sqrt(1/2), sqrt(2)]
  let e = f32(i32(v >> 23u) - select(127, 126, low) - select(0, 23, tiny));
  let m = bitcast<f32>((v & 0x7fffffu) | select(0x3f800000u, 0x3f000000u, low));
  let f = m - 1.0;
  let fh = upper_(f);
  let fl = f - fh;
  let q = 0.5 * fh * fh;
  let hi = upper_(f - q);  // log(m) = hi + lo
  let lo = f - hi - q - (fh + 0.5 * fl) * fl + {horner(LOG_P, "f")} * f * f * f;
  let d = clamp(b, -4294967296.0, 4294967296.0);
  let dh = upper_(d);
  let dl = d - dh;
  let whole = round(dh * e);
  let small = dl * hi + d * lo + (dl * e + (dh * e - whole)) * {math.log(2)!r};
  let k = round((dh * hi + small) * {1 / math.log(2)!r});
  let r = dh * hi - k * {LN2[0]} - k * ({LN2[1]}) + small;  // exact where 2^k is finite
  let general = scale_(exp_(clamp(r, -1.0, 1.0)), i32(clamp(whole + k, -250.0, 250.0)));
  let of_one = select(general, 1.0, u == 0x3f800000u);
  let ends = select(0.0, bitcast<f32>(inf_bits), (v == 0u) == (b < 0.0));
  let size = select(of_one, ends, v == 0u || u >= 0x7f800000u);
  let integral = floor(b) == b;
  let odd = integral && abs(b) < 16777216.0 && (i32(clamp(b, -16777216.0, 16777216.0)) & 1) == 1;
  let none = !integral && c != 0.0 && u < 0x7f800000u;
  let below = select(select(size, -size, odd), bitcast<f32>(nan_bits), none);
  let p = select(size, below, bitcast<u32>(a) != u);
  return select(select(p, bitcast<f32>(nan_bits), is_nan_(a) || is_nan_(b)), 1.0, b == 0.0 || a == 1.0);
}}"""


def _extremum(name: str) -> str:
    """Return WGSL of max or min that keeps NaN, as NumPy and PyTorch do, by way of `a + b`: WGSL's own drops NaN."""
    return "\n".join(
        [
            f"fn {name}_f32(a: f32, b: f32) -> f32 {{",
            "  let nan = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;",
            f"  return select({name}(a, b), a + b, nan);",
            "}",
            *(f"fn {name}_{t}(a: {t}, b: {t}) -> {t} {{ return {name}(a, b); }}" for t in ("i32", "u32")),
        ]
    )


MAX_HELPER, MIN_HELPER = _extremum("max"), _extremum("min")


def _comparison(name: str, symbol: str) -> str:
    """Return WGSL of a comparison that is false for NaN.

    NVIDIA's driver turns `select(x, 0.0, x <= 0.0)` into `max(x, 0.0)`, which drops NaN.
    """
    return "\n".join(
        [
            f"fn {name}_f32(a: f32, b: f32) -> bool {{",
            "  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);",
            f"  return a {symbol} b && largest <= 0x7f800000u;",
            "}",
            *(f"fn {name}_{t}(a: {t}, b: {t}) -> bool {{ return a {symbol} b; }}" for t in ("i32", "u32")),
        ]
    )


LESS_HELPER, AT_MOST_HELPER = _comparison("less", "<"), _comparison("less_equal", "<=")

HALF_HELPER = f"""fn half_(x: f32) -> f32 {{
  return select(quantizeToF16(x), round(x * {2.0**24!r}) * {2.0**-24!r}, abs(x) < {2.0**-14!r});
}}"""
