"""The rows of bench/ops.py: each op in tracegrad, PyTorch and JAX, and the shapes that it is measured at.

A row may lack JAX's function. PyTorch's results that would be views are copied, because tracegrad's results are arrays.
"""

# The functions are lambdas over three libraries.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tracegrad as tg

Shape = tuple[int, ...]


class Row(NamedTuple):
    """An op at one choice of shapes. The functions take the f32 inputs, then those of i32.

    ints: (shape, n) of each i32 input, drawn from [0, n). low, high: of the f32 inputs.
    """

    group: str
    op: str
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any] | None
    shapes: tuple[Shape, ...]
    ints: tuple[tuple[Shape, int], ...] = ()
    low: float = -2.0
    high: float = 2.0
    grad: bool = True

    @property
    def name(self) -> str:
        """The op and its shapes."""
        return f"{self.op} {' '.join('x'.join(map(str, s)) or '1' for s in (*self.shapes, *(s for s, _ in self.ints)))}"


FLAT: tuple[Shape, ...] = ((7,), (64, 64), (301, 997), (2_000_000,))
MATRICES: tuple[Shape, ...] = ((3, 5), (128, 784), (1000, 1000), (200_000, 7), (4, 250_000), (251, 1003), (92, 2800))
CUBES: tuple[Shape, ...] = ((32, 64, 200), (7, 300, 65))


def rows(torch: Any, jax: Any) -> Iterator[Row]:
    """All rows. jax may be None."""
    for some in (_unary, _binary, _folds, _scans, _rearranged, _indexed, _products, _images, _others):
        yield from some(torch, torch.nn.functional, jax.numpy if jax else None, jax)


def _unary(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    everywhere = "neg abs exp expm1 sin cos tan tanh square sinh cosh atan erf floor"
    positive = "sqrt rsqrt log log1p reciprocal"
    within = "asin acos"
    other = {
        "relu": F.relu,
        "silu": F.silu,
        "elu": F.elu,
        "softplus": F.softplus,
        "leaky_relu": F.leaky_relu,
        "sigmoid": torch.sigmoid,
        "gelu": F.gelu,
        "tanhshrink": F.tanhshrink,
        "hardtanh": F.hardtanh,
    }
    of_jax = {
        "neg": "negative",
        "abs": "abs",
        "atan": "arctan",
        "asin": "arcsin",
        "acos": "arccos",
    }
    ranges = [*((n, -2.0, 2.0) for n in [*everywhere.split(), *other]), *((n, 0.3, 3.0) for n in positive.split())]
    for name, low, high in [*ranges, *((n, -0.9, 0.9) for n in within.split())]:
        theirs = None
        if jax:
            theirs = (
                getattr(jnp, of_jax.get(name, name), None) or getattr(jax.nn, name, None) or getattr(jax.lax, name)
                if name != "tanhshrink" and name != "hardtanh"
                else None
            )
        for shape in FLAT:
            mine, its = getattr(tg, name), other.get(name) or getattr(torch, name)
            yield Row("elementwise", name, mine, its, theirs, (shape,), (), low, high, grad=name != "floor")
    wide = (2_000_000,)
    yield Row("elementwise", "sin of 1000", tg.sin, torch.sin, jnp and jnp.sin, (wide,), (), -1000.0, 1000.0)
    yield Row("elementwise", "x**1.7", lambda x: x**1.7, lambda x: x**1.7, lambda x: x**1.7, (wide,), (), 0.1, 3.0)
    yield Row("elementwise", "x**3", lambda x: x**3, lambda x: x**3, lambda x: x**3, (wide,), ())
    clip = lambda x: x.clip(-1.0, 1.0)
    yield Row("elementwise", "clip", lambda x: tg.clip(x, -1.0, 1.0), clip, clip, (wide,), ())


def _binary(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    names = {"add": "add", "mul": "multiply", "div": "divide", "maximum": "maximum", "pow": "power", "atan2": "arctan2"}
    for name, other in names.items():
        pairs = [((7,), (7,)), ((301, 997), (301, 997)), ((1000, 1000), (1000, 1000))]
        if name in ("add", "mul"):
            pairs += [
                ((1000, 1000), (1000,)),
                ((1000, 1000), (1000, 1)),
                ((64, 32, 28, 28), (32, 1, 1)),
                ((200_000, 7), (7,)),
                ((7, 200_000), (7, 1)),
            ]
        for pair in pairs:
            theirs = jnp and getattr(jnp, other)
            yield Row("elementwise", name, getattr(tg, name), getattr(torch, name), theirs, pair, (), 0.3, 2.0)
    pair = ((1000, 1000), (1000, 1000))
    yield Row(
        "elementwise",
        "where",
        lambda a, b: tg.where(a > b, a, b * 2.0),
        lambda a, b: torch.where(a > b, a, b * 2.0),
        lambda a, b: jnp.where(a > b, a, b * 2.0),
        pair,
    )


def _folds(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    names = {"sum": "sum", "mean": "mean", "max": "amax", "var": "var", "logsumexp": "logsumexp", "norm": "norm"}
    of_jax = {
        "sum": lambda x, a: jnp.sum(x, a),
        "mean": lambda x, a: jnp.mean(x, a),
        "max": lambda x, a: jnp.max(x, a),
        "var": lambda x, a: jnp.var(x, a),
        "logsumexp": lambda x, a: jax.nn.logsumexp(x, a),
        "norm": lambda x, a: jnp.sqrt(jnp.sum(x * x, a)),
    }
    places = [(s, a) for s in MATRICES for a in (-1, 0)] + [(s, 1) for s in CUBES]
    for name, other in names.items():
        mine, its = getattr(tg, name), getattr(torch, other)
        for shape, axis in places:
            theirs = None if jax is None else lambda x, f=of_jax[name], a=axis: f(x, a)
            yield Row(
                "reductions",
                f"{name} axis {axis}",
                lambda x, f=mine, a=axis: f(x, a),
                lambda x, f=its, a=axis: f(x, dim=a),
                theirs,
                (shape,),
            )
    for name in ("softmax", "log_softmax"):
        for shape, axis in places:
            yield Row(
                "softmax",
                f"{name} axis {axis}",
                lambda x, n=name, a=axis: getattr(tg, n)(x, a),
                lambda x, n=name, a=axis: getattr(torch, n)(x, a),
                lambda x, n=name, a=axis: getattr(jax.nn, n)(x, a),
                (shape,),
            )
    for name in ("argmax", "argmin"):
        for shape, axis in places:
            yield Row(
                "reductions",
                f"{name} axis {axis}",
                lambda x, n=name, a=axis: getattr(tg, n)(x, a),
                lambda x, n=name, a=axis: getattr(torch, n)(x, a),
                lambda x, n=name, a=axis: getattr(jnp, n)(x, a),
                (shape,),
                grad=False,
            )
    for shape in ((1000, 1000), (32, 16, 28, 28), (2_000_000,)):
        yield Row("reductions", "sum of all", lambda x: tg.sum(x), lambda x: x.sum(), lambda x: x.sum(), (shape,))
    images = ((32, 16, 28, 28), (8, 3, 128, 128), (256, 100))
    for shape in images:
        c = (shape[1],)
        yield Row(
            "norms",
            "batch_norm",
            lambda x, g, b: tg.batch_norm(x, g, b),
            lambda x, g, b: F.batch_norm(x, None, None, g, b, True),
            None,
            (shape, c, c),
        )
    for shape in ((2048, 128), (64, 1024), (200, 33), (100_000, 16)):
        c = shape[1:]
        yield Row(
            "norms",
            "layer_norm",
            lambda x, g, b: tg.layer_norm(x, g, b),
            lambda x, g, b: F.layer_norm(x, g.shape, g, b),
            None,
            (shape, c, c),
        )


def _scans(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    places = [
        ((3, 5), -1),
        ((1000, 1000), -1),
        ((1000, 1000), 0),
        ((100_000, 7), -1),
        ((100_000, 7), 0),
        ((1_000_000,), -1),
        ((32, 64, 200), 1),
    ]
    for name in ("cumsum", "cumprod"):
        for shape, axis in places:
            yield Row(
                "scans",
                f"{name} axis {axis}",
                lambda x, n=name, a=axis: getattr(tg, n)(x, a),
                lambda x, n=name, a=axis: getattr(torch, n)(x, a),
                lambda x, n=name, a=axis: getattr(jnp, n)(x, a),
                (shape,),
                (),
                0.9,
                1.1,
            )
    for shape, axis in (((1000, 100), -1), ((100, 1000), -1), ((1000, 100), 0), ((20_000,), 0)):
        yield Row(
            "scans",
            f"sort axis {axis}",
            lambda x, a=axis: tg.sort(x, a)[0],
            lambda x, a=axis: torch.sort(x, a).values,
            lambda x, a=axis: jnp.sort(x, a),
            (shape,),
        )


def _rearranged(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    turned = [
        ((1000, 1000), (1, 0)),
        ((2000, 500), (1, 0)),
        ((251, 1003), (1, 0)),
        ((200_000, 7), (1, 0)),
        ((32, 64, 200), (0, 2, 1)),
        ((32, 64, 8, 32), (0, 2, 1, 3)),
        ((16, 32, 28, 28), (0, 2, 3, 1)),
    ]
    for shape, order in turned:
        yield Row(
            "rearranging",
            f"permute {''.join(map(str, order))}",
            lambda x, o=order: tg.permute(x, o),
            lambda x, o=order: x.permute(o).contiguous(),
            lambda x, o=order: jnp.transpose(x, o),
            (shape,),
        )
    for a, b, axis in (((500, 1000), (500, 1000), 0), ((1000, 300), (1000, 700), 1), ((64, 16, 28, 28),) * 2 + (1,)):
        yield Row(
            "rearranging",
            f"concat {axis}",
            lambda x, y, a=axis: tg.concat([x, y], a),
            lambda x, y, a=axis: torch.cat([x, y], a),
            lambda x, y, a=axis: jnp.concatenate([x, y], a),
            (a, b),
        )
    image = ((32, 16, 28, 28),)
    yield Row(
        "rearranging",
        "pad",
        lambda x: tg.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
        lambda x: F.pad(x, (1, 1, 1, 1)),
        lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
        image,
    )
    for axis in (0, 1):
        yield Row(
            "rearranging",
            f"flip {axis}",
            lambda x, a=axis: tg.flip(x, a),
            lambda x, a=axis: x.flip(a),
            lambda x, a=axis: jnp.flip(x, a),
            ((1000, 1000),),
        )
    yield Row(
        "rearranging",
        "x[:, ::2]",
        lambda x: x[:, ::2],
        lambda x: x[:, ::2].contiguous(),
        lambda x: x[:, ::2],
        ((1000, 1000),),
    )
    yield Row(
        "rearranging",
        "roll",
        lambda x: tg.roll(x, 5, 1),
        lambda x: x.roll(5, 1),
        lambda x: jnp.roll(x, 5, 1),
        ((1000, 1000),),
    )
    yield Row(
        "rearranging",
        "repeat",
        lambda x: tg.repeat(x, 3, 1),
        lambda x: x.repeat_interleave(3, 1),
        lambda x: jnp.repeat(x, 3, 1),
        ((1000, 300),),
    )


def _indexed(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    embedding = "embedding", tg.embedding, lambda w, i: F.embedding(i, w), lambda w, i: w[i]
    by_rows = (
        "scatter_add rows", lambda x, u, i: tg.scatter_add(x, i, u), lambda x, u, i: x.index_add(0, i, u),
        lambda x, u, i: x.at[i].add(u),
    )  # fmt: skip
    scattered = (
        "scatter_add", lambda x, u, i: tg.scatter_add(x, i, u, 1), lambda x, u, i: x.scatter_add(1, i, u), None,
    )  # fmt: skip
    along = (
        "take_along_axis", lambda x, i: tg.take_along_axis(x, i, 1), lambda x, i: torch.take_along_dim(x, i, 1),
        lambda x, i: jnp.take_along_axis(x, i, 1),
    )  # fmt: skip
    columns = (
        "take axis 1", lambda x, i: tg.take(x, i, 1), lambda x, i: x.index_select(1, i),
        lambda x, i: jnp.take(x, i, 1),
    )  # fmt: skip
    entropy = "cross_entropy", tg.cross_entropy, lambda x, i: F.cross_entropy(x, i), None
    table = [  # an op, the shapes of its floats, that of its indices, and how many things these choose from
        *((embedding, ((n, width),), count, n)
          for n, width, count in ((10, 4, (8,)), (10_000, 64, (20_000,)), (65, 128, (32, 64)), (50_000, 32, (4096,)))),
        *((by_rows, ((n, width), (count, width)), (count,), n)
          for n, width, count in ((10_000, 64, 20_000), (2000, 64, 20_000), (50_000, 8, 50_000), (1000, 1, 100_000))),
        (scattered, ((1000, 100), (1000, 300)), (1000, 300), 100),
        (along, ((1000, 100),), (1000, 300), 100),
        (columns, ((1000, 500),), (1000,), 500),
        (entropy, ((128, 10),), (128,), 10),
        (entropy, ((512, 8000),), (512,), 8000),
    ]  # fmt: skip
    for op, shapes, of_indices, n in table:
        yield Row("indexing", *op, shapes, ((of_indices, n),))


def _products(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    sizes = [
        ((3, 4), (4, 5)),
        ((128, 784), (784, 512)),
        ((512, 512), (512, 512)),
        ((2048, 16), (16, 16)),
        ((10_000, 64), (64, 8)),
        ((8, 4096), (4096, 8)),
        ((251, 301), (301, 127)),
        ((1, 1024), (1024, 1024)),
        ((64, 32, 48), (64, 48, 40)),
        ((256, 8, 64), (256, 64, 8)),
        ((2000, 3), (3, 2000)),
    ]
    for pair in sizes:
        yield Row("products", "matmul", tg.matmul, torch.matmul, jnp and jnp.matmul, pair)
    for shape in ((2, 2, 16, 8), (8, 4, 128, 32), (4, 8, 256, 64)):
        yield Row(
            "products",
            "attention causal",
            lambda q, k, v: tg.attention(q, k, v, causal=True),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            None,
            (shape,) * 3,
        )


def _images(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    for x, w, how in (
        ((32, 1, 28, 28), (16, 1, 3, 3), {"padding": 1}),
        ((32, 16, 14, 14), (32, 16, 3, 3), {"padding": 1}),
        ((4, 3, 128, 128), (16, 3, 5, 5), {"padding": 2}),
        ((4, 3, 64, 64), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
        ((8, 32, 32, 32), (32, 1, 3, 3), {"padding": 1, "groups": 32}),
        ((16, 128, 7, 7), (128, 1, 7, 7), {"padding": 3, "groups": 128}),
        ((3, 74, 36, 19), (74, 1, 5, 5), {"stride": 2, "padding": 2, "groups": 74}),
        ((8, 64, 16, 16), (64, 64, 1, 1), {}),
    ):
        yield Row(
            "images",
            "conv2d " + " ".join(f"{k[0]}{v}" for k, v in how.items()),
            lambda x, w, h=how: tg.conv2d(x, w, **h),
            lambda x, w, h=how: F.conv2d(x, w, **h),
            None,
            (x, w),
        )
    yield Row(
        "images",
        "conv_transpose2d s2",
        lambda x, w: tg.conv_transpose2d(x, w, stride=2, padding=1),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        None,
        ((8, 64, 16, 16), (64, 32, 4, 4)),
    )
    for name in ("max_pool2d", "avg_pool2d"):
        for shape, how in (((32, 16, 28, 28), (2, 2, 0)), ((8, 16, 65, 65), (3, 2, 1)), ((8, 64, 8, 8), (8, 8, 0))):
            yield Row(
                "images",
                f"{name} {how[0]}",
                lambda x, n=name, h=how: getattr(tg, n)(x, *h),
                lambda x, n=name, h=how: getattr(F, n)(x, *h),
                None,
                (shape,),
            )
    yield Row(
        "images",
        "upsample 2",
        lambda x: tg.nearest_upsample2d(x, 2),
        lambda x: F.interpolate(x, scale_factor=2),
        None,
        ((8, 16, 32, 32),),
    )


def _others(torch: Any, F: Any, jnp: Any, jax: Any) -> Iterator[Row]:
    for shape in ((64, 64), (2_000_000,)):
        key = jax and jax.random.PRNGKey(0)
        yield Row(
            "random",
            "randn",
            lambda x: x * tg.randn(x.shape),
            lambda x: x * torch.randn_like(x),
            lambda x, k=key: x * jax.random.normal(k, x.shape),
            (shape,),
            grad=False,
        )
        yield Row(
            "random",
            "uniform",
            lambda x: x * tg.uniform(x.shape),
            lambda x: x * torch.rand_like(x),
            lambda x, k=key: x * jax.random.uniform(k, x.shape),
            (shape,),
            grad=False,
        )
        yield Row("random", "dropout", lambda x: tg.dropout(x, 0.1), lambda x: F.dropout(x, 0.1), None, (shape,))
    pair = ((1000, 1000), (1000, 1000))
    yield Row(
        "losses", "mse_loss", tg.mse_loss, lambda x, y: F.mse_loss(x, y), lambda x, y: ((x - y) ** 2).mean(), pair
    )
    yield Row(
        "losses",
        "bce with logits",
        tg.binary_cross_entropy_with_logits,
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        None,
        pair,
    )
