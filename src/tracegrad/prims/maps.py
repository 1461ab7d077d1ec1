"""Functions that register primitives: elementwise ones, with public function and docstring, and composites."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.dtypes import DType, TensorType, all_of, bool_, broadcast_shapes, f32, i32, u32
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.ir.nodes import Primitive, Tensor, bind, register
from tracegrad.methods import entered, method
from tracegrad.prims.leaves import as_tensor, as_tensors
from tracegrad.prims.rules import alike, symmetric
from tracegrad.prims.views import broadcast_to

if TYPE_CHECKING:
    from typing import Concatenate

    Expansion = Callable[Concatenate[Tensor, ...], Tensor]  # (*inputs, **attrs) -> the result
    Vjp = Callable[Concatenate[Tensor, Tensor, Tensor, ...], Sequence[Tensor | None]]  # (ct, y, *inputs, **attrs)

# for each elementwise row that is a public function: what it returns, its gradient, and an example with its result
TEXT = """
abs | Return |x| | sign(x), which is 0 at 0 | [-1.5, 2.0]) -> tensor([1.5, 2. ])
add | Return a + b (integers wrap at 32 bits) | 1 to a, 1 to b | [1.0, 2.0], 1.0) -> tensor([2., 3.])
atan2 | Return the angle in [-pi, pi] of the point with coordinates x = b and y = a | b / (a^2 + b^2) to a, -a / (a^2 + b^2) to b; 0 at the origin | [1.0, -1.0], [1.0, -1.0]) -> tensor([ 0.7853981, -2.3561945])
ceil | Return the smallest integer that is at least x | 0: the result is constant between integers | [1.2, -1.2]) -> tensor([ 2., -1.])
cos | Return the cosine of x radians | -sin(x) | [0.0, 1.0]) -> tensor([1.       , 0.5403023])
div | Return a / b (by 0: inf, -inf or NaN) | 1 / b to a, -a / b^2 to b | [1.0, 4.0], 2.0) -> tensor([0.5, 2. ])
equal | Return a == b (NaN equals nothing) | none | [1.0, 2.0], 2.0) -> tensor([False,  True], dtype=bool)
erf | Return the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x | 2 / sqrt(pi) * exp(-x^2) | [0.0, 1.0]) -> tensor([0.       , 0.8427008])
exp | Return e^x (inf above x = 88.7228) | e^x | [0.0, 1.0]) -> tensor([1.      , 2.718282])
expm1 | Return e^x - 1, accurate also near 0 | e^x | [0.0, 1.0]) -> tensor([0.       , 1.7182819])
floor | Return the largest integer that is at most x | 0: the result is constant between integers | [1.2, -1.2]) -> tensor([ 1., -2.])
isnan | Return whether x is NaN | none | [1.0, np.nan]) -> tensor([False,  True], dtype=bool)
less | Return a < b (False for NaN) | none | [1.0, 3.0], 2.0) -> tensor([ True, False], dtype=bool)
less_equal | Return a <= b (False for NaN) | none | [1.0, 2.0, 3.0], 2.0) -> tensor([ True,  True, False], dtype=bool)
log | Return the natural logarithm of x (-inf at 0, NaN below) | 1 / x | [1.0, 2.0]) -> tensor([0.       , 0.6931472])
log1p | Return log(1 + x), accurate also near 0 (-inf at -1, NaN below) | 1 / (1 + x) | [0.0, 1.0]) -> tensor([0.       , 0.6931472])
logical_and | Return whether a and b are both True | none | np.array([True, False]), True) -> tensor([ True, False], dtype=bool)
logical_not | Return the opposite of x: True where x is False | none | np.array([True, False])) -> tensor([False,  True], dtype=bool)
logical_or | Return whether a or b or both are True | none | np.array([True, False]), False) -> tensor([ True, False], dtype=bool)
maximum | Return the larger of a and b, or NaN if either is NaN | to the larger one, half to each at a tie | [1.0, 3.0], 2.0) -> tensor([2., 3.])
minimum | Return the smaller of a and b, or NaN if either is NaN | to the smaller one, half to each at a tie | [1.0, 3.0], 2.0) -> tensor([1., 2.])
mul | Return a * b (integers wrap at 32 bits) | b to a, a to b | [1.0, 2.0], 3.0) -> tensor([3., 6.])
neg | Return -x | -1 | [1.0, -2.0]) -> tensor([-1.,  2.])
not_equal | Return a != b (True for NaN) | none | [1.0, 2.0], 2.0) -> tensor([ True, False], dtype=bool)
round | Return x rounded to the nearest integer, halves to the even one | 0: the result is constant between halves | [0.5, 1.5, 1.7]) -> tensor([0., 2., 2.])
rsqrt | Return 1 / sqrt(x) (inf at 0, NaN below) | -1 / (2 x sqrt(x)) | [1.0, 4.0]) -> tensor([1. , 0.5])
sign | Return -1, 0 or 1, with the sign of x (NaN for NaN) | 0 | [-2.0, 0.0, 3.0]) -> tensor([-1.,  0.,  1.])
sin | Return the sine of x radians | cos(x) | [0.0, 1.0]) -> tensor([0.      , 0.841471])
sqrt | Return the square root of x (NaN below 0) | 1 / (2 sqrt(x)), infinite at 0 | [1.0, 2.0]) -> tensor([1.       , 1.4142135])
square | Return x^2 (integers wrap at 32 bits) | 2 x | [2.0, 3.0]) -> tensor([4., 9.])
sub | Return a - b (integers wrap at 32 bits) | 1 to a, -1 to b | [3.0, 2.0], 1.0) -> tensor([2., 1.])
tanh | Return the hyperbolic tangent, (e^x - e^-x) / (e^x + e^-x) | 1 - tanh(x)^2 | [0.0, 1.0]) -> tensor([0.       , 0.7615942])
"""  # noqa: E501
EXAMPLES: Mapping[str, Sequence[str]] = {row.partition(" | ")[0]: row.split(" | ")[1:] for row in TEXT.split("\n")}


FLOAT = (f32,)
NUMBER = (f32, i32, u32)
INT = (i32, u32)
BOOL = (bool_,)
ANY = (f32, i32, u32, bool_)


def broadcast(*values: Any) -> tuple[Tensor, ...]:
    """Convert numbers, arrays and tensors to tensors of one shape. A number takes the dtype of the first tensor.

    Raises DTypeError if dtypes differ, and ShapeError if shapes do not broadcast.
    """
    xs = as_tensors(*values)
    shape = xs[0].shape
    if all(x.shape == shape for x in xs):
        return xs
    # raised here, where the error can show the types that the caller passed
    if len({x.dtype for x in xs if x.dtype != bool_}) > 1:
        raise DTypeError(f"dtypes differ: {all_of(x.type for x in xs)}; cast one with tg.cast(x, dtype)")
    try:
        shape = broadcast_shapes(*(x.shape for x in xs))
    except ShapeError:
        raise ShapeError(
            f"shapes do not broadcast: {all_of(x.type for x in xs)}; "
            "matched from the last axis, sizes must be equal or 1"
        ) from None
    return tuple([broadcast_to(x, shape) for x in xs])


def typed(accepts: tuple[DType, ...], out: DType | None = None, skip: int = 0) -> Callable[..., TensorType]:
    """Return a type rule for `extend.composite`: all inputs have one shape and one dtype, which `accepts` lists.

    accepts: the dtypes.
    out:     dtype of the result; None takes the dtype of the inputs.
    skip:    number of leading inputs that can have any dtype, such as a condition.
    Returns: a function from the types of the inputs to the type of the result. It raises DTypeError or ShapeError for
             inputs that do not fit.

    >>> rule = extend.typed((tg.f32,))
    >>> str(rule(tg.TensorType(tg.f32, (2,))))
    'f32[2]'
    """

    def rule(*types: TensorType, **_: Any) -> TensorType:
        first, alike = types[skip], types[skip:]
        if first.dtype not in accepts or alike.count(first) < len(alike) or types[0].shape != first.shape:
            raise _refusal(accepts, alike, types)
        return TensorType(out or first.dtype, first.shape)

    return rule


def _refusal(
    accepts: tuple[DType, ...], alike: Sequence[TensorType], types: Sequence[TensorType]
) -> DTypeError | ShapeError:
    """Return the error for operands that an elementwise primitive does not take."""
    if any(t.dtype not in accepts for t in alike):
        takes, other = " or ".join([d.name for d in accepts]), accepts[0].name.replace("bool", "bool_")
        mask = other == "f32" and any(t.dtype == bool_ for t in alike)
        remedy = "cast a condition with tg.cast(mask, tg.f32), or write tg.where(mask, x, 0)"
        return DTypeError(
            f"takes {takes}, got {all_of(alike)}; {remedy if mask else f'cast with tg.cast(x, tg.{other})'}"
        )
    if any(t.dtype != alike[0].dtype for t in alike):
        return DTypeError(f"dtypes differ: {all_of(alike)}; cast one with tg.cast(x, dtype)")
    return ShapeError(f"shapes differ: {all_of(types)}")


def map_row(name: str, type: Any, array: Any, vjp: Any, wgsl: str, *, helper: str = "", **more: Any) -> Primitive:
    """Register a primitive of the family "map". All share the rules `jvp` and `batch`. more: `cost` and `xla`."""
    jvp = symmetric if vjp is not None else None
    return register(Primitive(name, "map", type, array, vjp, jvp, alike, wgsl, helper, **more))


def composite(
    name: str,
    *,
    type: Any,
    expand: Expansion,
    array: Any = None,
    vjp: Vjp | None = None,
    jvp: Any = None,
    batch: Any = None,
    indexes: Callable[..., tuple[int, int, int | None]] | None = None,
    xla: Callable[..., Any] | None = None,
    xla_if: Callable[..., bool] | None = None,
    identity: float | None = None,
) -> Primitive:
    """Register an op that is made of other ops, with a derivative of its own. Call it by `extend.bind`.

    name:    a new name.
    type:    type rule: a function from the types of the inputs to the type of the result.
    expand:  the op itself, written with other ops: (*inputs, **attrs) -> tensor. The attributes are what `extend.bind`
             gets by keyword. A tensor from outside gets no gradient: pass it as an input.
    array:   NumPy's function, if NumPy has the op. Eager calls use it, and tests compare kernels with it.
    vjp:     (ct, y, *inputs, **attrs) -> one gradient for each input, or None. y is the result, ct its gradient.
             Default: the derivative of `expand`.
    jvp:     forward-mode rule, if the one derived from `vjp` costs more.
    batch:   rule for `tg.vmap`, if batching `expand` costs more.
    indexes: for an input of indices: (*input types, **attrs) -> (number of this input, size of the axis, exempt). The
             last is a value that is valid although it is no index, or None.
    xla:     an implementation in JAX, if XLA compiles it better than `expand`.
    xla_if:  (x, node) -> whether `xla` serves this node. Default: always.
    identity: for an op of one input along the attribute `axis`: more elements of this value at the end of the axis
             change no other result.
    Returns: the `extend.Primitive`.
    Raises:  InputError if the name is taken.

    `extend.Primitive` has the signature of each rule. As jax.custom_vjp on a jitted function.

    >>> cube = extend.composite("doc_cube", type=extend.typed((tg.f32,)), expand=lambda x: x * x * x,
    ...                         vjp=lambda ct, y, x: (ct * 3.0 * x * x,))
    >>> tg.grad(lambda x: extend.bind(cube, extend.as_tensor(x)))(2.0)
    array(12., dtype=float32)
    """
    rules: dict[str, Any] = {"expand": expand, "indexes": indexes, "xla": xla, "xla_if": xla_if, "identity": identity}
    return register(Primitive(name, "composite", type, array, vjp, jvp, batch, **rules))


def elementwise(
    name: str,
    *,
    array: Any,
    wgsl: str,
    vjp: Callable[..., Any] | None = None,
    accepts: tuple[DType, ...] = FLOAT,
    out: DType | None = None,
    cost: int = 1,
    helper: str = "",
    spelled: bool = True,
) -> Callable[..., Tensor]:
    """Register an op that computes each element by a formula, and return it as a function whose inputs broadcast.

    name:    a new name.
    array:   the op in NumPy: a function (xp, *arrays) -> array, where xp has NumPy's functions; the name of one; or an
             expression of xp, with {0} and {1} for the inputs.
    wgsl:    the op as an expression in WGSL, with {0} and {1} too. The compiler translates it to C. It knows the
             trigonometric and hyperbolic functions, and abs, ceil, clamp, exp, exp2, floor, log, log2, max, min, pow,
             round, select, sign, sqrt, step and trunc. With others a CPU warns and runs `array`. For NaN and infinities
             WGSL defines no results: sign(NaN) is mostly 0, and clamp(NaN, lo, hi) differs between devices. If they
             matter, let a `helper` test the bits, as in (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u for NaN.
             Eager calls and JAX run `array`, compiled programs run `wgsl`: both must give the same numbers. The first
             use of a compiled kernel compares them. If they differ, a CPU warns and runs `array`, and a GPU raises
             CompileError.
    vjp:     (ct, y, *inputs) -> a tuple with one gradient for each input. y is the result, ct its gradient. Default:
             the gradient to the inputs is 0, without an error.
    accepts: the dtypes that inputs can have. All inputs of a call have one dtype.
    out:     dtype of the result; None takes the dtype of the inputs.
    cost:    cost of one element: an addition is 1, a load from memory 4, an `exp` 8.
    helper:  WGSL functions that `wgsl` calls.
    spelled: whether the op is a method of tensors too.
    Returns: the function, of one tensor, or of two if `wgsl` contains {1}.
    Raises:  InputError if the name is taken.

    >>> halve = extend.elementwise("doc_halve", array=lambda xp, x: x * xp.float32(0.5), wgsl="({0} * 0.5)",
    ...                            vjp=lambda ct, y, x: (ct * 0.5,))
    >>> halve([3.0])
    tensor([1.5])
    """
    p = map_row(name, typed(accepts, out), array, vjp, wgsl, helper=helper, cost=cost)

    def unary(x: Any) -> Tensor:
        return bind(p, as_tensor(x))

    def binary(a: Any, b: Any) -> Tensor:
        return bind(p, *broadcast(a, b))

    f: Any = binary if "{1}" in wgsl else unary
    if f is binary:
        f.rowwise = True  # a number is a value like any other and does not select a plan: see imperative.keys
    f.__name__ = f.__qualname__ = name
    f.__module__ = sys._getframe(1).f_globals.get("__name__", "__main__")  # pyright: ignore[reportPrivateUsage]
    f.__doc__ = _document(name, f is binary, accepts, out, array, differentiable=vjp is not None)
    return method(f) if spelled else entered(f)


def _document(
    name: str, two: bool, accepts: tuple[DType, ...], out: DType | None, array: Any, *, differentiable: bool
) -> str:
    """Return the docstring of an elementwise op. It names NumPy's function if `array` is the name of one."""
    alike = [f"numpy.{array}"] if str(array).isidentifier() else []
    alike += [f"torch.{TORCH.get(name, name)}"] if name in EXAMPLES else []  # of another op, no such name is known
    last = f"\n\nAs {' and '.join(alike)}." if alike else ""
    plain = f"{name.replace('_', ' ').capitalize()} of {'`a` and `b`' if two else '`x`'}"
    meaning, slope, *example = EXAMPLES.get(name, [plain, "by its `vjp`" if differentiable else "none"])
    numbers = "Python's booleans" if accepts == BOOL else "floats" if accepts == FLOAT else "numbers"
    return (
        f"{meaning}, element by element{'; a and b broadcast' if two else ''}.\n\n"
        f"{'a, b:     ' if two else 'x:        '}{' or '.join(', '.join(d.name for d in accepts).rsplit(', ', 1))}"
        f"{', both of one dtype' if two and len(accepts) > 1 else ''}; tensors, arrays"
        f"{' (float64 becomes f32)' if f32 in accepts else ''} or {numbers}, of any shape.\n"
        f"Returns:  {out.name if out else 'the same dtype'}, {'the broadcast' if two else 'the same'} shape.\n"
        f"Gradient: {slope}{'; summed over axes that broadcast' if two and differentiable else ''}.\n"
        f"Raises:   DTypeError for other "
        f"{'or differing dtypes; ShapeError if the shapes do not broadcast' if two else 'dtypes'}.{last}"
        + "".join([f"\n\n>>> tg.{name}({x}".replace(" -> ", "\n") for x in example])
    )


TORCH = {"equal": "eq"}  # names that differ in PyTorch
float_type = typed(FLOAT)  # f32 only
