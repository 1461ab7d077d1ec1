"""WGSL and C of sine and cosine. The argument is reduced to a number of quarter turns and a remainder."""

from __future__ import annotations

import functools
import math

from tracegrad.prims.functions import horner

# sin(r) = r + r^3 P(r^2), cos(r) = 1 - r^2 / 2 + r^4 P(r^2) for |r| <= pi / 4
SIN_P = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS_P = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
# pi/2 in parts: products of all but the last with an integer of up to 13 bits are exact
HALF_PI = (1.5703125, 4.837512969970703e-4, 7.549533620476723e-8, 2.5633440682570896e-12)
# The first 224 bits after the point of 1 / (2 pi), a quarter of 2/pi
TWO_OVER_PI = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EA

_WORDS = [TWO_OVER_PI >> 32 * k & 0xFFFFFFFF for k in range(6, -1, -1)]

# x - k pi/2 in [-pi/4, pi/4], and k modulo 4. Large arguments use Payne and Hanek's method: the 96 bits of 2/pi that
# matter, times the mantissa, in integers.
TURN = f"""fn high_(a: u32, b: u32) -> u32 {{
  let t = (a >> 16u) * (b & 0xffffu) + (((a & 0xffffu) * (b & 0xffffu)) >> 16u);
  return (a >> 16u) * (b >> 16u) + (t >> 16u) + (((a & 0xffffu) * (b >> 16u) + (t & 0xffffu)) >> 16u);
}}

fn far_turn_(x: f32) -> vec2<f32> {{
  var words = array<u32, 8>(0u, {", ".join(f"{w:#x}u" for w in _WORDS)});
  let u = bitcast<u32>(x);
  let m = (u << 8u) | 0x80000000u;
  let e = ((u >> 23u) & 0xffu) - 126u;
  let i = e >> 5u;
  let s = e & 31u;
  var a = words[i];
  var b = words[i + 1u];
  var c = words[i + 2u];
  if (s > 0u) {{
    a = (a << s) | (b >> (32u - s));
    b = (b << s) | (c >> (32u - s));
    c = (c << s) | (words[i + 3u] >> (32u - s));
  }}
  let carried = high_(m, c);
  var low = m * b + carried;
  var high = high_(m, b) + select(0u, 1u, low < carried) + m * a;
  var k = high >> 30u;
  high = high & 0x3fffffffu;
  let past = high >= 0x20000000u;  // nearer to the next multiple
  if (past) {{
    k = k + 1u;
    low = ~low + 1u;
    high = 0x3fffffffu - high + select(0u, 1u, low == 0u);
  }}
  let r = (f32(high) * 4294967296.0 + f32(low)) * {math.pi / 2 * 2.0**-62!r};
  let y = select(r, -r, past != (x < 0.0));
  return vec2<f32>(y, f32(select(k, 0u - k, x < 0.0) & 3u));
}}

fn turn_(x: f32) -> vec2<f32> {{
  if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) {{ return vec2<f32>(bitcast<f32>(nan_bits), 0.0); }}
  if (abs(x) > 8192.0) {{ return far_turn_(x); }}
  let k = round(x * {2 / math.pi!r});
  let r = x - k * {HALF_PI[0]} - k * {HALF_PI[1]!r} - k * {HALF_PI[2]!r} - k * {HALF_PI[3]!r};
  return vec2<f32>(r, f32(i32(k) & 3));
}}

fn wave_(r: f32, k: i32) -> f32 {{
  let z = r * r;
  let s = r + r * z * {horner(SIN_P, "z")};
  let c = 1.0 - 0.5 * z + z * z * {horner(COS_P, "z")};
  let y = select(s, c, (k & 1) == 1);
  return select(y, -y, (k & 2) == 2);
}}"""

SIN = f"""{TURN}

fn sin_(x: f32) -> f32 {{
  let t = turn_(x);
  return select(wave_(t.x, i32(t.y)), x, abs(x) < 1e-4);
}}"""

# For a language with doubles: x / (2 pi) minus the nearest integer, for every x. The constant is in parts of 29 bits,
# so that products are exact. The nearest integer is subtracted after each part, so that no sum loses the remainder.
# Without a branch, because a branch prevents vector code on a CPU.
_TURNS = [(TWO_OVER_PI >> 193 - 29 * k & 0x1FFFFFFF) * 2.0 ** (-31 - 29 * k) for k in range(5)]
_LAST_TURN = (TWO_OVER_PI >> 24 & (1 << 53) - 1) * 2.0**-200

# Up to NEAR_TURNS, floats suffice: `near_turn_` uses them. `turn_` selects its result there, so that code which calls
# `near_turn_` alone, where no argument is larger, gets the same bits.
NEAR_TURNS = 8192.0
# Functions that have a version for arguments up to NEAR_TURNS, with the prefix `near_` in its name
OF_TURNS = ("turn_", "sin_", "cos_")
FAR_TURN = f"(unsigned_of_float({{0}}) & 0x7fffffffu) > unsigned_of_float({NEAR_TURNS!r}f)"  # or NaN
NEAR_TURN = f"""#ifndef have_near_turn_in_c
#define have_near_turn_in_c
HELPER vec2_f32 near_turn_(float x) {{
  const float k = __builtin_rintf(x * {2 / math.pi!r}f);
  const float r = {functools.reduce(lambda text, part: f"({text} - k * {part!r}f)", HALF_PI, "x")};
  return vec2_f32_(r, k);
}}
#endif"""

TURN_IN_DOUBLES = "\n".join(
    [
        NEAR_TURN,
        "HELPER vec2_f32 turn_(float x) {",
        "  const double d = x;",
        f"  double y = d * {_TURNS[0]!r};",
        *(f"  y -= __builtin_rint(y);\n  y += d * {part!r};" for part in [*_TURNS[1:], _LAST_TURN]),
        "  y -= __builtin_rint(y);\n  const double k = __builtin_rint(4.0 * y);",
        f"  const vec2_f32 far = vec2_f32_((float)((4.0 * y - k) * {math.pi / 2!r}), (float)k), near = near_turn_(x);",
        f"  const _Bool beyond = !(__builtin_fabsf(x) <= {NEAR_TURNS!r}f);",
        "  return vec2_f32_(select(near.x, far.x, beyond), select(near.y, far.y, beyond));",
        "}",
    ]
)

COS = f"""{TURN}

fn cos_(x: f32) -> f32 {{
  let t = turn_(x);
  return wave_(t.x, i32(t.y) + 1);
}}"""
