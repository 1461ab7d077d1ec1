"""Elementwise steps: functions, arithmetic, comparisons, choices, casts, integers and booleans."""

from __future__ import annotations

from typing import Any

from fuzzing.drawing import Pool, UnfitError
from fuzzing.table import Drawn, NoCounterpartError, Op, register

UNARY = {  # name here: name in torch, name in jax.numpy or jax.nn
    "neg": ("neg", "negative"), "exp": ("exp", "exp"),
    "expm1": ("expm1", "expm1"), "sin": ("sin", "sin"), "cos": ("cos", "cos"), "tanh": ("tanh", "tanh"),
    "square": ("square", "square"), "sigmoid": ("sigmoid", "nn.sigmoid"), "relu": ("relu", "nn.relu"),
    "silu": ("nn.functional.silu", "nn.silu"), "elu": ("nn.functional.elu", "nn.elu"),
    "softplus": ("nn.functional.softplus", None),
    "floor": ("floor", "floor"), "ceil": ("ceil", "ceil"), "round": ("round", "round"), "erf": ("erf", "erf"),
    "gelu": ("nn.functional.gelu", None), "sqrt": ("sqrt", "sqrt"), "rsqrt": ("rsqrt", None), "log": ("log", "log"),
    "log1p": ("log1p", "log1p"), "reciprocal": ("reciprocal", "reciprocal"),
    "tan": ("tan", "tan"), "asin": ("asin", None), "acos": ("acos", None), "atan": ("atan", "arctan"),
    "sinh": ("sinh", "sinh"), "cosh": ("cosh", "cosh"),
    "tanhshrink": ("nn.functional.tanhshrink", None), "stop_gradient": ("detach", "lax.stop_gradient"),
}  # fmt: skip
# The gradients of pow are those of PyTorch at 0, and not those of JAX
BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "minimum": "minimum",
          "maximum": "maximum", "pow": None}  # fmt: skip
COMPARE = {"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne"}


def attribute(module: Any, path: str) -> Any:
    """module.a.b"""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def of_jax(jax: Any, path: str) -> Any:
    """A function of jax.numpy, or of another part of jax where the path says so."""
    if path == "erf":
        return jax.scipy.special.erf
    return attribute(jax if "." in path else jax.numpy, path)


def _unary(pool: Pool) -> Drawn:
    return (pool.pick(),), {}


def _binary(pool: Pool) -> Drawn:
    a = pool.pick()
    pair = (a, pool.broadcastable(pool.of(a)))
    return (pair if pool.below(2) else pair[::-1]), {}


def _integers(pool: Pool) -> Drawn:
    a = pool.pick("i32")
    return (a, pool.broadcastable(pool.of(a), "i32")), {}


def _unsigned(pool: Pool) -> Drawn:
    a = pool.pick("u32")
    return (a, pool.broadcastable(pool.of(a), "u32")), {}


def _divisor_int(pool: Pool) -> Drawn:
    return (pool.pick(pool.one(("i32", "u32"))),), {"c": pool.one((1, 2, 3, 7, 16, 1000, 2**31 - 1))}


def _booleans(pool: Pool) -> Drawn:
    a = pool.pick("bool")
    return (a, pool.broadcastable(pool.of(a), "bool")), {}


def _where(pool: Pool) -> Drawn:
    a = pool.pick()
    return (pool.broadcastable(pool.of(a), "bool"), a, pool.broadcastable(pool.of(a))), {}


def _clip(pool: Pool) -> Drawn:
    low, high = sorted((pool.number(), pool.number()))
    return (pool.pick(),), {"lo": low, "hi": high}


def _number(pool: Pool) -> Drawn:
    return (pool.pick(),), {"c": pool.number()}


def _divisor(pool: Pool) -> Drawn:
    return (pool.pick(),), {"c": pool.one((3.0, 0.5, -2.0, 7.0, 0.625))}


def _cast(pool: Pool) -> Drawn:
    dtype = pool.one(("f32", "i32", "u32", "bool"))
    to = pool.one({"f32": ("i32", "bool"), "i32": ("f32", "bool", "u32"), "u32": ("f32", "i32"),
                   "bool": ("f32", "i32")}[dtype])  # fmt: skip
    k = pool.find(lambda k: pool.dtype(k) == dtype)
    if k is None or pool.flavour == "special":  # each library casts what is out of range in its own way
        raise UnfitError
    return (k,), {"to": to}


def _cast_torch(torch: Any, x: Any, to: str) -> Any:
    if to == "u32":
        raise NoCounterpartError(to)
    return x.to({"f32": torch.float64, "i32": torch.int32, "bool": torch.bool}[to])


def _cast_jax(jax: Any, x: Any, to: str) -> Any:
    return x.astype({"f32": "float64", "i32": "int32", "u32": "uint32", "bool": "bool"}[to])


def _quotient(torch: Any, a: Any, b: Any) -> Any:
    """floor_divide, with a derivative of 0: PyTorch has none."""
    return torch.floor(torch.floor_divide(a.detach(), b.detach()) + (a - a.detach()) + (b - b.detach()))


def _whole(name: str, library: Any, a: Any, b: Any) -> Any:
    """A remainder or quotient of integers: `a` and 0 for the divisor 0, which other libraries refuse or leave open."""
    divided = getattr(library, name)(a, library.where(b == 0, 1, b))
    return library.where(b == 0, a if name == "remainder" else 0, divided)


def _where_less(pool: Pool) -> Drawn:
    a = pool.pick()
    return (a, pool.broadcastable(pool.of(a))), {}


register(
    *(
        Op(n, _unary, lambda tg, x, n=n: getattr(tg, n)(x),
           lambda torch, x, p=t: attribute(torch, p)(x),
           None if j is None else lambda jax, x, p=j: of_jax(jax, p)(x))
        for n, (t, j) in UNARY.items()
    ),
    *(
        Op(n, _binary, lambda tg, a, b, n=n: getattr(tg, n)(a, b), lambda torch, a, b, n=n: getattr(torch, n)(a, b),
           None if j is None else lambda jax, a, b, n=j: getattr(jax.numpy, n)(a, b), weight=4)
        for n, j in BINARY.items()
    ),
    *(
        Op(n, _binary, lambda tg, a, b, n=n: getattr(tg, n)(a, b), lambda torch, a, b, n=t: getattr(torch, n)(a, b),
           lambda jax, a, b, n=n: getattr(jax.numpy, n)(a, b), weight=1)
        for n, t in COMPARE.items()
    ),
    *(
        Op(f"int_{n}", _integers, lambda tg, a, b, n=n: getattr(tg, n)(a, b),
           lambda torch, a, b, n=n: getattr(torch, n)(a, b), lambda jax, a, b, n=j: getattr(jax.numpy, n)(a, b),
           weight=1)
        for n, j in list(BINARY.items())[:3] + list(BINARY.items())[4:6]
    ),
    *(
        Op(f"int_{n}", _integers, lambda tg, a, b, n=n: getattr(tg, n)(a, b),
           lambda torch, a, b, n=t: getattr(torch, n)(a, b), lambda jax, a, b, n=n: getattr(jax.numpy, n)(a, b),
           weight=1)
        for n, t in COMPARE.items()
    ),
    *(
        Op(n, _booleans, lambda tg, a, b, n=n: getattr(tg, n)(a, b), lambda torch, a, b, n=n: getattr(torch, n)(a, b),
           lambda jax, a, b, n=n: getattr(jax.numpy, n)(a, b))
        for n in ("logical_and", "logical_or")
    ),
    Op("remainder", _binary, lambda tg, a, b: a % b, lambda torch, a, b: torch.remainder(a, b),
       lambda jax, a, b: jax.numpy.remainder(a, b), weight=3),
    Op("floor_divide", _binary, lambda tg, a, b: a // b,
       lambda torch, a, b: _quotient(torch, a, b),
       lambda jax, a, b: jax.lax.stop_gradient(jax.numpy.floor_divide(a, b)), weight=3),
    Op("remainder_number", _divisor, lambda tg, x, c: x % c, lambda torch, x, c: x % c, lambda jax, x, c: x % c),
    Op("floor_divide_number", _divisor, lambda tg, x, c: x // c,
       lambda torch, x, c: _quotient(torch, x, torch.full((), c)),
       lambda jax, x, c: jax.lax.stop_gradient(x // c)),
    *(
        Op(f"int_{n}", _integers, lambda tg, a, b, n=n: getattr(tg, n)(a, b),
           lambda torch, a, b, n=n: _whole(n, torch, a, b).int(),
           lambda jax, a, b, n=n: _whole(n, jax.numpy, a, b).astype("int32"))
        for n in ("remainder", "floor_divide")
    ),
    *(
        Op(f"uint_{n}", _unsigned, lambda tg, a, b, n=n: getattr(tg, n)(a, b), None,
           lambda jax, a, b, n=j: getattr(jax.numpy, n)(a, b), weight=1)
        for n, j in [*list(BINARY.items())[:3], *list(BINARY.items())[4:6], *((n, n) for n in COMPARE)]
    ),
    *(
        Op(f"uint_{n}", _unsigned, lambda tg, a, b, n=n: getattr(tg, n)(a, b), None,
           lambda jax, a, b, n=n: _whole(n, jax.numpy, a, b).astype("uint32"))
        for n in ("remainder", "floor_divide")
    ),
    *(
        Op(f"int_{n}_number", _divisor_int, lambda tg, x, c, n=n: getattr(tg, n)(x, c), None,
           lambda jax, x, c, n=n: getattr(jax.numpy, n)(x, c).astype(x.dtype))
        for n in ("remainder", "floor_divide")
    ),
    *(
        Op(f"int_{n}", lambda p: ((p.pick("i32"),), {}), lambda tg, x, n=n: getattr(tg, n)(x),
           lambda torch, x, n=n: getattr(torch, n)(x), lambda jax, x, n=j: getattr(jax.numpy, n)(x), weight=1)
        for n, j in (("neg", "negative"), ("abs", "abs"), ("sign", "sign"), ("square", "square"))
    ),
    Op("logical_not", lambda p: ((p.pick("bool"),), {}), lambda tg, x: tg.logical_not(x),
       lambda torch, x: torch.logical_not(x), lambda jax, x: jax.numpy.logical_not(x)),
    Op("where", _where, lambda tg, c, a, b: tg.where(c, a, b), lambda torch, c, a, b: torch.where(c, a, b),
       lambda jax, c, a, b: jax.numpy.where(c, a, b), weight=4),
    Op("where_less", _where_less, lambda tg, a, b: tg.where(a < b, a * 0.5, b),
       lambda torch, a, b: torch.where(a < b, a * 0.5, b), lambda jax, a, b: jax.numpy.where(a < b, a * 0.5, b)),
    Op("abs", _unary, lambda tg, x: tg.abs(x), lambda torch, x: torch.abs(x),
       lambda jax, x: jax.numpy.where(x == 0, 0.0 * x, jax.numpy.abs(x))),  # JAX's derivative is 1 at 0
    Op("sign", _unary, lambda tg, x: tg.sign(x), lambda torch, x: torch.where(x.isnan(), x, torch.sign(x)),
       lambda jax, x: jax.numpy.sign(x)),
    Op("clip", _clip, lambda tg, x, lo, hi: tg.clip(x, lo, hi), None,
       lambda jax, x, lo, hi: jax.numpy.where(x < lo, lo, jax.numpy.where(x > hi, hi, x))),
    Op("add_number", _number, lambda tg, x, c: x + c, lambda torch, x, c: x + c, lambda jax, x, c: x + c),
    Op("mul_number", _number, lambda tg, x, c: x * c, lambda torch, x, c: x * c, lambda jax, x, c: x * c),
    Op("number_sub", _number, lambda tg, x, c: c - x, lambda torch, x, c: c - x, lambda jax, x, c: c - x),
    Op("div_number", _divisor, lambda tg, x, c: x / c, lambda torch, x, c: x / c, lambda jax, x, c: x / c),
    Op("leaky_relu", _divisor, lambda tg, x, c: tg.leaky_relu(x, c),  # jax.nn's slope at 0 is 1, and PyTorch's is c
       lambda torch, x, c: torch.nn.functional.leaky_relu(x, c), lambda jax, x, c: jax.numpy.where(x > 0, x, c * x)),
    Op("power_2", _unary, lambda tg, x: x**2, lambda torch, x: x**2, lambda jax, x: x**2),
    Op("power_3", _unary, lambda tg, x: x**3, lambda torch, x: x**3, lambda jax, x: x**3),
    Op("gelu_tanh", _unary, lambda tg, x: tg.gelu(x, "tanh"),
       lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"), lambda jax, x: jax.nn.gelu(x)),
    Op("cast", _cast, lambda tg, x, to: tg.cast(x, to), _cast_torch, _cast_jax, weight=4),
)  # fmt: skip
