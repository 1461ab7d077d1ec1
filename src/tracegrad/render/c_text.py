"""Translate the notation of rows to C, with a prelude that defines what C lacks.

The rows of the table write their ops once, as expressions and functions of WGSL. GCC and Clang both know `__auto_type`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from tracegrad.prims import quotients, turns
from tracegrad.prims.functions import (
    EXP_AS_WRITTEN,
    EXPM1_AS_WRITTEN,
    LOG1P_AS_WRITTEN,
    LOG_AS_WRITTEN,
    LOG_SUM_AS_WRITTEN,
    NEAR_EXP_AS_WRITTEN,
    TANH_AS_WRITTEN,
)

C_TYPE = {
    "f32": "float",
    "f16": "unsigned short",
    "i32": "int",
    "u32": "unsigned",
    "bool": "_Bool",
    "vec2<f32>": "vec2_f32",
}

ALIGNED = "__attribute__((aligned(64)))"  # without it, GCC 12's stores that zero 80 bytes crash

# C functions that replace helpers of the rows, and compute what NumPy does. Comparisons with NaN are false, so max and
# min keep NaN. Two choices compile to vector instructions; `||` would be a branch.
NATIVE = {
    "div_": "static inline float div_(float a, float b) { return a / b; }",
    "is_nan_": "static inline _Bool is_nan_(float x) { return x != x; }",
    "less_f32": "static inline _Bool less_f32(float a, float b) { return a < b; }",
    "less_equal_f32": "static inline _Bool less_equal_f32(float a, float b) { return a <= b; }",
    "half_": "static inline float half_(float x) { return f32_of_f16(f16_of_f32(x)); }",
    "max_f32": "static inline float max_f32(float a, float b) { float m = a > b ? a : b; return a != a ? a : m; }",
    "min_f32": "static inline float min_f32(float a, float b) { float m = a < b ? a : b; return a != a ? a : m; }",
    "turn_": turns.TURN_IN_DOUBLES,
    "near_turn_": turns.NEAR_TURN,
    "far_turn_": "",  # `turn_` does not call it
    "high_": "",
    "log_special_": "",  # `log_` and `log1p_` do not call it either
    "modulo_": quotients.MODULO_IN_DOUBLES,
    "near_modulo_": quotients.NEAR_MODULO,
    "quotient_i32": quotients.QUOTIENT_IN_DOUBLES,
    "quotient_u32": quotients.UNSIGNED_IN_DOUBLES,
}
FAR = {
    **dict.fromkeys(turns.OF_TURNS, turns.FAR_TURN),
    "modulo_": quotients.FAR_MODULO,
}  # functions with a short form, and where it fails
CALLED_FORM = "called_"
OF_NUMBERS = {"max_f32": "max", "min_f32": "min"}  # functions that keep NaN -> the same functions without this care
AS_WRITTEN = {  # shorter than the rows' functions: C compilers, unlike GPU drivers, do not rewrite arithmetic
    "exp_times_": EXP_AS_WRITTEN,
    "near_exp_": NEAR_EXP_AS_WRITTEN,
    "expm1_": EXPM1_AS_WRITTEN,
    "log_sum_": LOG_SUM_AS_WRITTEN,
    "log_": LOG_AS_WRITTEN,
    "log1p_": LOG1P_AS_WRITTEN,
    "tanh_": TANH_AS_WRITTEN,
}
_pattern = cache(re.compile)  # compiles on first use: at import this would cost 5000 calls


def _typed(name: str, types: Iterable[str], arguments: str, value: str) -> str:
    """Return one function for each type, and a macro that chooses between them."""
    ones = list(types)
    text = [f"static inline {t} {name}_{t}({arguments.replace('T', t)}) {{ return {value}; }}" for t in ones]
    names = arguments.replace("T ", "")
    choice = ", ".join([f"{t}: {name}_{t}" for t in ones])
    first = names.split(",")[0]
    return "\n".join([*text, f"#define {name}({names}) _Generic(({first}), {choice})({names})"])


NUMBERS = ("float", "int", "unsigned")

# Hides a function's effects, so that a caller must assume the worst. GCC 12 dropped the call of a function that writes
# memory: its summary of side effects misses stores to addresses that its own loop pass made.
OPAQUE = """
#if defined(__clang__)
#define OPAQUE __attribute__((noinline))
#else
#define OPAQUE __attribute__((noipa))
#endif
"""

# Inlines a function that a row uses. Otherwise Clang would call a long function that a library uses several times, once
# for each element.
HELPERS = "#define HELPER static inline __attribute__((always_inline))"

# Chooses by bits, with both sides computed first, so that the compiler cannot make a branch in the loop. GCC makes a
# masked load of `condition ? p[i] : 0`, and GCC 12 masks a group of neighbours by the first one's condition. GCC reads
# `x & -condition` as such a choice, too: GCC 13.3 then summed groups of three with one condition for all of them. It
# does not change `x & (condition - 1)`. GCC vectorizes choices between conditions only if they use `&` and `|` alone.
CHOICE = """
static inline int select_int(int no, int yes, _Bool condition) { return yes ^ ((no ^ yes) & ((int)condition - 1)); }
static inline unsigned select_unsigned(unsigned no, unsigned yes, _Bool condition) {
  return yes ^ ((no ^ yes) & ((unsigned)condition - 1u));
}
static inline float select_float(float no, float yes, _Bool condition) {
  return float_of_int(select_int(int_of_float(no), int_of_float(yes), condition));
}
static inline _Bool select_bool(_Bool no, _Bool yes, _Bool condition) { return (condition & yes) | (!condition & no); }
#define select(no, yes, condition) \\
  _Generic((no), float: select_float, unsigned: select_unsigned, _Bool: select_bool, default: select_int) \\
  (no, yes, condition)
"""

# Hides an integer from the optimiser. GCC 12 and 13 vectorize p[(int)condition] as a load of p[-1].
HIDDEN = """
static inline int hidden(int x) { __asm__("" : "+r"(x)); return x; }
"""

# Clamps to bounds that GCC must not know. For each constant bound GCC would generate a branch, and repeat the code
# after the branch. GCC must load `nothing_`, because another library could define a symbol of that name.
CLAMP = """
__attribute__((weak)) float nothing_ = 0.0f;
static inline float clamp_float(float x, float lo, float hi) { return min(max(x, lo + nothing_), hi + nothing_); }
static inline int clamp_int(int x, int lo, int hi) { return min(max(x, lo), hi); }
static inline unsigned clamp_unsigned(unsigned x, unsigned lo, unsigned hi) { return min(max(x, lo), hi); }
#define clamp(x, lo, hi) _Generic((x), float: clamp_float, int: clamp_int, unsigned: clamp_unsigned)(x, lo, hi)
"""

# Converts half precision by its bits, without a branch: some compilers lack the type, and GCC 12 misaligns its stack in
# vectorized loops over _Float16. Products and sums with powers of two move the exponent and round to nearest even.
HALF = """
static inline float f32_of_f16(unsigned short h) {
  const unsigned bits = (h & 0x7fffu) << 13;
  const unsigned special = (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  const float small = float_of_unsigned(bits) * 0x1p112f; /* exact, also where h is denormal */
  return float_of_unsigned((special ? bits | special : unsigned_of_float(small)) | (h & 0x8000u) << 16);
}
static inline unsigned short f16_of_f32(float x) {
  const unsigned a = unsigned_of_float(x) & 0x7fffffffu, sign = (unsigned_of_float(x) >> 16) & 0x8000u;
  const unsigned normal = (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13;
  const unsigned denormal = unsigned_of_float(float_of_unsigned(a) + 0.5f) - (126u << 23);
  const unsigned large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return sign | (a >= 0x477ff000u ? large : a < 0x38800000u ? denormal : normal);
}
"""

# Transposes a matrix, with steps from row to row of both. Rows and columns are taken four at a time: elements beyond
# the matrix are read, and written after each column of the result and after its end. A later column overwrites them.
TURN = """
typedef int four_ __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
#define PICK(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define PICK(x, y, ...) __builtin_shuffle(x, y, (four_){__VA_ARGS__})
#endif
static OPAQUE void turn(const void *from, long step, long rows, long columns, void *to, long to_step) {
  for (long column = 0; column < columns; column += 4)
    for (long row = (rows - 1) / 4 * 4; row >= 0; row -= 4) {
      const int *p = (const int *)from + row * step + column;
      int *q = (int *)to + column * to_step + row;
      const four_ a = *(four_ *)p, b = *(four_ *)(p + step), c = *(four_ *)(p + 2 * step), d = *(four_ *)(p + 3 * step);
      const four_ e = PICK(a, b, 0, 4, 1, 5), f = PICK(a, b, 2, 6, 3, 7);
      const four_ g = PICK(c, d, 0, 4, 1, 5), h = PICK(c, d, 2, 6, 3, 7);
      *(four_ *)q = PICK(e, g, 0, 1, 4, 5), *(four_ *)(q + to_step) = PICK(e, g, 2, 3, 6, 7);
      *(four_ *)(q + 2 * to_step) = PICK(f, h, 0, 1, 4, 5), *(four_ *)(q + 3 * to_step) = PICK(f, h, 2, 3, 6, 7);
    }
}
"""

# Functions of WGSL that users' ops can call. Without these macros C computes them in double, which `select` lacks.
MATHS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "log", "log2", "sin", "sinh",
    "tan", "tanh", "trunc",
)  # fmt: skip

PRELUDE = "\n".join(
    [
        "#define true 1",
        "#define false 0",
        "#define inf_bits 0x7f800000u",
        "#define nan_bits 0x7fc00000u",
        "#define floor(x) __builtin_floorf(x)",
        "#define ceil(x) __builtin_ceilf(x)",
        "#define round(x) __builtin_rintf(x)",
        "#define sqrt(x) __builtin_sqrtf(x)",
        "#define step(edge, x) ((edge) <= (x) ? 1.0f : 0.0f)",  # without it, a call is of a function of glibc
        *[f"#define {name}(x) __builtin_{name}f(x)" for name in MATHS],
        *[f"#define {name}(x, y) __builtin_{name}f(x, y)" for name in ("atan2", "pow")],
        "typedef struct { float x, y; } vec2_f32;",
        "static inline vec2_f32 vec2_f32_(float x, float y) { return (vec2_f32){x, y}; }",
        *[
            f"static inline {to} {to}_of_{t}({t} x) {{ {to} y; __builtin_memcpy(&y, &x, 4); return y; }}"
            for to in NUMBERS
            for t in NUMBERS
        ],
        *[
            f"#define bits_as_{to}(x) _Generic((x), {', '.join([f'{t}: {to}_of_{t}' for t in NUMBERS])})(x)"
            for to in NUMBERS
        ],
        OPAQUE,
        HELPERS,
        CHOICE,
        HIDDEN,
        HALF,
        TURN,
        "#define array_of_unsigned(...) ((const unsigned[]){__VA_ARGS__})",
        _typed("max", (*NUMBERS, "long"), "T a, T b", "b > a ? b : a"),  # a NaN in `b` does not count
        _typed("min", (*NUMBERS, "long"), "T a, T b", "b < a ? b : a"),
        CLAMP,
        _typed("sign", ("float", "int"), "T x", "(x > 0) - (x < 0)"),
        "static inline float abs_float(float x) { return __builtin_fabsf(x); }",
        "static inline int abs_int(int x) { return x < 0 ? -x : x; }",
        "#define abs(x) _Generic((x), float: abs_float, int: abs_int)(x)",
    ]
)


def in_form(text: str, form: str) -> str:
    """Return the text with the prefix `form` before the names of all functions of FAR that it calls or defines.

    "near_" marks the short forms. "called_" marks functions that compute the same and that compilers do not inline.
    """
    return _pattern(rf"\b({'|'.join(FAR)})(?= ?\()").sub(rf"{form}\1", text) if form else text


def helpers_in_form(helper: str, form: str) -> str:
    """Return the functions that another form of a helper needs."""
    if form != CALLED_FORM or not beyond(helper):
        return in_form(helper, form)
    signature = helper[helper.rindex("fn ") : helper.index("{", helper.rindex("fn "))]
    name, *arguments = _pattern(r"\w+(?=\(|:)").findall(signature)
    return f"{helper}\n\n{in_form(signature, form)}{{ return {name}({', '.join(arguments)}); }}"


@cache
def of_numbers(text: str) -> str:
    """Return the text with max and min that do not keep NaN; "" if it calls neither."""
    pattern = _pattern(rf"\b({'|'.join(OF_NUMBERS)})(?= ?\()")
    return pattern.sub(lambda found: OF_NUMBERS[found[1]], text) if pattern.search(text) else ""


@cache
def beyond(text: str) -> str:
    """Return the condition on arguments for which a helper's short form fails; "" if it has no short form."""
    called = _pattern(rf"\b({'|'.join(FAR)})(?= ?\()").search(text)
    return FAR[called[1]] if called else ""


NUMBER = r"\d[\w.]*(?:(?<=[\d.]e)[+-]\w+)?"
TOKEN = rf"//.*|(?:bitcast|vec2|array)<[^>]*>|\{{\d\}}|{NUMBER}|\w+|->|[<>=!]=|<<|>>|&&|\|\||\S"
CALLED = {
    **{t: f"({c})" for t, c in C_TYPE.items()},
    **{f"bitcast<{t}>": f"bits_as_{C_TYPE[t]}" for t in ("f32", "i32", "u32")},
    "vec2<f32>": "vec2_f32_",
    "array<u32, 8>": "array_of_unsigned",
    "f16": "f16_of_f32",
    "f32": "(float)+",  # GCC makes no vectors of floats that come from `_Bool` instead of its int
}


@lru_cache(4096)  # bounded, because constants are expressions, too
def as_c(notation: str) -> str:
    """Translate an expression or a function of a row to C. `{0}`, `{1}` and so on stay in place.

    Everything not translated here is the same in C. Where WGSL allows omitting parentheses, C has the same precedence.
    """
    tokens = [*(t for t in _pattern(TOKEN).findall(notation) if not t.startswith("//")), ""]
    out: list[str] = []
    k = 0
    while tokens[k]:
        token, following = tokens[k], tokens[k + 1]
        k += 1
        if token == "fn":
            out.append(f"HELPER {C_TYPE[tokens[tokens.index('->') + 1]]}")
        elif token == "->":  # C puts the result's type first
            k += 1
        elif token in ("let", "var"):
            typed = tokens[k + 1] == ":"
            out += ["const"] * (token == "let") + ["__auto_type"] * (not typed)
        elif following == ":":
            out += [C_TYPE[tokens[k + 1]], token]
            k += 2
        elif token[0].isdigit():
            out.append(number(token))
        else:
            out.append(CALLED.get(token, token) if following == "(" else token)
    text = " ".join(out)
    for loose in ("( ", " )", " ,", " ;"):
        text = text.replace(loose, loose.strip())
    return text


def number(token: str) -> str:
    """Return a number in C. With a point, an exponent or an `f` it is an f32, which C writes as `1.0f` or `1e5f`."""
    if token.endswith("u") or token.startswith("0x") or token.isdigit():
        return token
    digits = token.removesuffix("f")
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"


@cache
def helper(text: str) -> str:
    """Return functions of a row as C that can be included more than once."""
    name = text[len("fn ") : text.index("(")]
    functions = {x[: x.index("(")]: f"fn {x}" for x in f"\n{text}".split("\nfn ")[1:]}
    done = [NATIVE[f] if f in NATIVE else as_c(AS_WRITTEN.get(f, x)) for f, x in functions.items()]
    if name.startswith(CALLED_FORM):
        done = [x.replace("HELPER", "static OPAQUE", 1) for x in done]
    return "\n".join([f"#ifndef have_{name}", f"#define have_{name}", *done, "#endif"])


def library_source(texts: Iterable[str]) -> str:
    """Return the texts of all kernels as one library."""
    return "\n".join([PRELUDE, *dict.fromkeys(texts)])
