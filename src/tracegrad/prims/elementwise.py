"""Elementwise primitives: the array function, generated code and derivative of each, side by side.

A VJP is `lambda ct, y, *inputs` and returns one cotangent per input. Inputs have equal shapes here: the public
functions broadcast, so a VJP never has to undo a broadcast.
"""

# The rules are lambdas, whose parameters cannot be annotated.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from typing import Any

from tracegrad.dtypes import TensorType, as_dtype, bool_, f32, i32, u32
from tracegrad.errors import DTypeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import entered, method
from tracegrad.prims import functions, quotients, turns
from tracegrad.prims.leaves import as_tensor, as_tensors
from tracegrad.prims.maps import ANY, BOOL, INT, NUMBER, broadcast, elementwise, map_row, typed

# The rows that are public functions without a wrapper
__all__ = [
    "abs", "add", "atan2", "cast", "ceil", "cos", "div", "equal", "erf", "exp", "expm1", "floor", "isnan", "less",
    "less_equal", "log", "log1p", "logical_and", "logical_not", "logical_or", "maximum", "minimum", "mul", "neg",
    "not_equal", "round", "rsqrt", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tanh", "where",
]  # fmt: skip

SMALL = 2.0**-31  # its powers down to the -4th, which third derivatives use, are finite
TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)


def _pow_vjp(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return `ct` times b a^(b-1), which is 0 for b = 0, and `ct` times y log(a), which is 0 for a = 0 and b >= 0.

    As PyTorch.
    """
    inverse = logical_or(b != 0.0, abs(a) >= SMALL)  # else a power can be inf, and 0 * inf is NaN
    slope = where(inverse, b * pow(where(inverse, a, 1.0), b - 1.0), 0.0)
    base = where(logical_and(a == 0.0, b >= 0.0), 1.0, a)
    return ct * slope, ct * y * log(base)


# Beyond these, the operands of atan2 are scaled. The squares in its second derivative are finite f32 in each range.
FAR, FARTHER = 2.0**16, 2.0**60


def _atan2_vjp(ct: Tensor, t: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `ct` times x / (x^2 + y^2) and -y / (x^2 + y^2), which are 0 at the origin, as PyTorch.

    Operands are scaled so that no square overflows, and the square of the larger operand is 0 only at the origin.
    """
    size = maximum(abs(x), abs(y))
    large = where(size > FARTHER, FARTHER**-2, where(size > FAR, FAR**-2, 1.0))
    k = where(size < 1.0 / FARTHER, FARTHER**2, where(size < 1.0 / FAR, FAR**2, large))
    y, x = y * k, x * k
    square = x * x + y * y
    share = where(square == 0.0, 0.0, 1.0 / where(square == 0.0, 1.0, square))
    return ct * (x * share * k), -ct * (y * share * k)


def _modulo_vjp(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return `ct` times 1 and times -floor(a / b).

    If only `b` is infinite, the second factor is 0 where the signs of `a` and `b` are alike, else -1.
    """
    finite = logical_or(nonfinite(a), logical_or(isnan(b), logical_not(nonfinite(b))))
    return ct, -ct * where(finite, round((a - y) / b), where(y == a, 0.0, -1.0))


def _ties(ct: Tensor, a_wins: Tensor, b_wins: Tensor) -> tuple[Tensor, Tensor]:
    """Return a gradient per operand: `ct` for the selected one, 0 for the other, half of `ct` for both at a tie."""
    half = ct * 0.5
    return where(a_wins, ct, where(b_wins, 0.0, half)), where(b_wins, ct, where(a_wins, 0.0, half))


def _where_type(c: TensorType, a: TensorType, b: TensorType) -> TensorType:
    if c.dtype != bool_:
        raise DTypeError(f"the condition must be bool, got {c}; compare it with something")
    return typed(ANY, skip=1)(c, a, b)


WHERE = map_row(
    "where",
    _where_type,
    array="where",
    vjp=lambda ct, y, c, a, b: (None, where(c, ct, 0.0), where(c, 0.0, ct)),
    wgsl="select({2}, {1}, {0})",
)


@entered
def where(condition: Any, a: Any, b: Any) -> Tensor:
    """Return `a` where `condition` holds, else `b`, element by element.

    condition: bool.
    a, b:      any dtype, both of one dtype; a Python number takes the dtype of the other. All three shapes broadcast.
    Returns:   the dtype of a and b, the broadcast shape.
    Gradient:  to the operand that was chosen, 0 to the other. As in PyTorch, 0 times an infinite derivative is NaN:
               `where(x > 0, log(x), 0.0)` has the gradient NaN at x = 0. There, change the input of `log`, too:
               `where(x > 0, log(where(x > 0, x, 1.0)), 0.0)`.
    Raises:    DTypeError unless `condition` is bool, and if the dtypes of a and b differ; ShapeError if the shapes do
               not broadcast.

    As numpy.where and torch.where.

    >>> tg.where(np.array([True, False]), [1.0, 2.0], 0.0)
    tensor([1., 0.])
    """
    return bind(WHERE, *broadcast(as_tensor(condition), *as_tensors(a, b)))


CAST = map_row(
    "cast",
    lambda x, *, dtype: TensorType(dtype, x.shape),
    array="{0}.astype('{dtype.numpy}')",
    vjp=lambda ct, y, x, *, dtype: (cast(ct, x.dtype) if x.dtype.is_float and dtype.is_float else None,),
    wgsl="{dtype}({0})",
    # XLA would turn `y * mask.astype(f32)` into a selection, which gives 0 for infinity times False
    xla=lambda x, t, y: (x.np.where(y, 1.0, 0.0) if y.dtype == x.np.bool_ else y).astype(t.dtype.numpy),
)


@entered
def cast(x: Any, dtype: Any) -> Tensor:
    """Convert `x` to `dtype`.

    x:        any dtype and shape.
    dtype:    tg.f32, tg.i32, tg.u32, tg.bool_, or a name such as "i32". The method is `x.astype(dtype)`.
    Returns:  `dtype`, shape of `x`:
              - f32 to integer drops the fraction, so -1.7 becomes -1. NaN becomes 0. Numbers out of range become the
                nearest integer of `dtype` that f32 can hold: for i32, these are -2147483648 and 2147483520.
              - i32 to u32 and back keeps the bits.
              - Booleans become 0 and 1; numbers become the boolean x != 0.
    Gradient: from f32 to f32, the result's gradient; otherwise none.
    Raises:   DTypeError if `dtype` is none of these.

    As numpy.ndarray.astype and torch.Tensor.to.

    >>> tg.cast([1.7, -1.7], tg.i32)
    tensor([ 1, -1], dtype=i32)
    """
    x, dtype = as_tensor(x), as_dtype(dtype)
    if x.dtype.is_float and dtype.is_int:  # languages convert values out of range differently
        lowest, highest = FITTING[dtype.name]
        x = where(isnan(x), 0.0, minimum(maximum(x, lowest), highest))
    return x if x.dtype == dtype else bind(CAST, x, dtype=dtype)


# The least and the greatest f32 that fit into the type
FITTING = {"i32": (-2147483648.0, 2147483520.0), "u32": (0.0, 4294967040.0)}


STOP_GRADIENT = map_row("stop_gradient", lambda x: x, lambda xp, x: x, None, "{0}", cost=0)


@method
def stop_gradient(x: Any) -> Tensor:
    """Return `x` as a constant: no gradient flows through it.

    x:        any dtype and shape; a tensor, an array or a number.
    Returns:  dtype and shape of `x`.
    Gradient: 0.
    Raises:   DTypeError if `x` is none of these.

    As jax.lax.stop_gradient and torch.Tensor.detach.

    >>> float(tg.grad(lambda x: x * tg.stop_gradient(x))(3.0))    # 2 x = 6.0 without stop_gradient
    3.0
    """
    return bind(STOP_GRADIENT, as_tensor(x))


# Copies its input into memory of its own, for a value that must be stored at a given place.
COPY = map_row("copy", lambda x: x, lambda xp, x: x, lambda ct, y, x: (ct,), "{0}", cost=0)

# `x` rounded to half precision: to nearest, even at ties; infinite from 65520 on. Lowering inserts it.
# Not f32(f16(x)): NVIDIA's driver removes the two conversions. `quantizeToF16` makes 0 of denormals.
HALF = map_row(
    "half",
    lambda x: x,
    "{0}.astype('float16').astype({0}.dtype)",
    lambda ct, y, x: (ct,),
    "half_({0})",
    helper=functions.HALF_HELPER,
)

# `x` as a separate variable: a transform differentiates with respect to it, but not to other uses of `x`
VARIABLE = map_row("variable", lambda x: x, lambda xp, x: x, lambda ct, y, x: (ct,), "{0}", cost=0)


# A row: name, function of the array namespace, WGSL, and VJP: (ct, y, *inputs) -> one cotangent per input.
add = elementwise("add", array="add", wgsl="({0} + {1})", vjp=lambda ct, y, a, b: (ct, ct), accepts=NUMBER)
sub = elementwise("sub", array="subtract", wgsl="({0} - {1})", vjp=lambda ct, y, a, b: (ct, -ct), accepts=NUMBER)
mul = elementwise("mul", array="multiply", wgsl="({0} * {1})", vjp=lambda ct, y, a, b: (ct * b, ct * a), accepts=NUMBER)
div = elementwise(
    "div",
    array="divide",
    wgsl="div_({0}, {1})",
    vjp=lambda ct, y, a, b: (ct / b, -ct * y / b),
    cost=4,
    helper=functions.DIV,
)
neg = elementwise("neg", array="negative", wgsl="(-{0})", vjp=lambda ct, y, x: (-ct,), accepts=(f32, i32))
abs = elementwise("abs", array="absolute", wgsl="abs({0})", vjp=lambda ct, y, x: (ct * sign(x),), accepts=(f32, i32))
sign = elementwise("sign", array="sign", wgsl="sign_{t}({0})", accepts=(f32, i32), helper=functions.SIGN)
square = elementwise(
    "square", array="square", wgsl="({0} * {0})", vjp=lambda ct, y, x: (ct * (2.0 * x),), accepts=NUMBER
)
sqrt = elementwise("sqrt", array="sqrt", wgsl="sqrt({0})", vjp=lambda ct, y, x: (ct * 0.5 / y,), cost=4)
rsqrt = elementwise(
    "rsqrt",
    array="xp.reciprocal(xp.sqrt({0}))",
    wgsl="(1.0 / sqrt({0}))",
    vjp=lambda ct, y, x: (ct * (-0.5) * y / x,),
    cost=8,
)
exp = elementwise("exp", array="exp", wgsl="exp_({0})", vjp=lambda ct, y, x: (ct * y,), cost=8, helper=functions.EXP)
half_exp = elementwise(  # e^x / 2, the building block of hyperbolic functions
    "half_exp",
    spelled=False,
    array=functions.HALF_EXP_ARRAY,
    wgsl="half_exp_({0})",
    vjp=lambda ct, y, x: (ct * y,),
    cost=8,
    helper=functions.HALF_EXP,
)
expm1 = elementwise(
    "expm1", array="expm1", wgsl="expm1_({0})", vjp=lambda ct, y, x: (ct * (y + 1.0),), cost=12, helper=functions.EXPM1
)
log = elementwise("log", array="log", wgsl="log_({0})", vjp=lambda ct, y, x: (ct / x,), cost=12, helper=functions.LOG)
log1p = elementwise(
    "log1p", array="log1p", wgsl="log1p_({0})", vjp=lambda ct, y, x: (ct / (x + 1.0),), cost=12, helper=functions.LOG1P
)
sin = elementwise("sin", array="sin", wgsl="sin_({0})", vjp=lambda ct, y, x: (ct * cos(x),), cost=8, helper=turns.SIN)
cos = elementwise("cos", array="cos", wgsl="cos_({0})", vjp=lambda ct, y, x: (-ct * sin(x),), cost=8, helper=turns.COS)
tanh = elementwise(
    "tanh", array="tanh", wgsl="tanh_({0})", vjp=lambda ct, y, x: (ct * (1.0 - y * y),), cost=12, helper=functions.TANH
)
# Unlike `sigmoid`, not exact to the last bits for small values: meant as a factor
logistic = elementwise(
    "logistic",
    spelled=False,
    array=functions.LOGISTIC_ARRAY,
    wgsl="logistic_({0})",
    vjp=lambda ct, y, x: (ct * (y * (1.0 - y)),),
    cost=8,
    helper=functions.LOGISTIC,
)
erf = elementwise(
    "erf",
    array=functions.ERF_ARRAY,
    wgsl="erf_({0})",
    vjp=lambda ct, y, x: (ct * exp(-(x * x)) * TWO_OVER_SQRT_PI,),
    cost=12,
    helper=functions.ERF,
)
atan2 = elementwise("atan2", array="arctan2", wgsl="atan2_({0}, {1})", vjp=_atan2_vjp, cost=12, helper=functions.ATAN2)
pow = elementwise("pow", array="power", wgsl="pow_({0}, {1})", vjp=_pow_vjp, cost=12, helper=functions.POW)
modulo = elementwise(  # the remainder with the sign of `b`
    "modulo",
    spelled=False,
    array="remainder",
    wgsl="modulo_({0}, {1})",
    vjp=_modulo_vjp,
    cost=12,
    helper=quotients.MODULO,
)
quotient = elementwise(
    "quotient",
    spelled=False,
    array=quotients.QUOTIENT_ARRAY,
    wgsl="quotient_{t}({0}, {1})",
    accepts=INT,
    cost=8,
    helper=quotients.QUOTIENT,
)
floor = elementwise("floor", array="floor", wgsl="floor({0})")
ceil = elementwise("ceil", array="ceil", wgsl="ceil({0})")
round = elementwise("round", array="rint", wgsl="round({0})")
minimum = elementwise(
    "minimum",
    array="minimum",
    wgsl="min_{t}({0}, {1})",
    helper=functions.MIN_HELPER,
    vjp=lambda ct, y, a, b: _ties(ct, a < b, b < a),
    accepts=NUMBER,
)
maximum = elementwise(
    "maximum",
    array="maximum",
    wgsl="max_{t}({0}, {1})",
    helper=functions.MAX_HELPER,
    vjp=lambda ct, y, a, b: _ties(ct, b < a, a < b),
    accepts=NUMBER,
)
# Returns the number if the other operand is NaN: one operation of a GPU, where `maximum` takes seven
fmax = elementwise("fmax", spelled=False, array="fmax", wgsl="max({0}, {1})")
less = elementwise(
    "less",
    spelled=False,
    array="less",
    wgsl="less_{of}({0}, {1})",
    out=bool_,
    accepts=NUMBER,
    helper=functions.LESS_HELPER,
)
less_equal = elementwise(
    "less_equal",
    spelled=False,
    array="less_equal",
    wgsl="less_equal_{of}({0}, {1})",
    out=bool_,
    accepts=NUMBER,
    helper=functions.AT_MOST_HELPER,
)
equal = elementwise("equal", spelled=False, array="equal", wgsl="({0} == {1})", out=bool_, accepts=ANY)
# Not "!=": drivers can read it as an ordered comparison, which is false for NaN
not_equal = elementwise("not_equal", spelled=False, array="not_equal", wgsl="(!({0} == {1}))", out=bool_, accepts=ANY)
logical_and = elementwise("logical_and", spelled=False, array="logical_and", wgsl="({0} & {1})", accepts=BOOL)
logical_or = elementwise("logical_or", spelled=False, array="logical_or", wgsl="({0} | {1})", accepts=BOOL)
logical_not = elementwise("logical_not", spelled=False, array="logical_not", wgsl="(!{0})", accepts=BOOL)
bit_xor = elementwise("bit_xor", spelled=False, array="bitwise_xor", wgsl="({0} ^ {1})", accepts=INT)
shift_right = elementwise("shift_right", spelled=False, array="right_shift", wgsl="({0} >> {1})", accepts=(u32,))
bits = elementwise(
    "bits", spelled=False, array="{0}.astype('float32').view('int32')", wgsl="bitcast<i32>({0})", out=i32
)
# Tests the bits, because WGSL lets a compiler assume that no NaN and no infinity exist
nonfinite = elementwise(
    "nonfinite",
    spelled=False,
    array="~xp.isfinite({0})",
    wgsl="((bitcast<u32>({0}) & 0x7f800000u) == 0x7f800000u)",
    out=bool_,
)
isnan = elementwise("isnan", array="isnan", wgsl="((bitcast<u32>({0}) & 0x7fffffffu) > 0x7f800000u)", out=bool_)
