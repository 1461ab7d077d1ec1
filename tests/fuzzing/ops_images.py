"""Steps on images and sequences: convolutions with stride, padding, dilation and groups; pools; windows."""

from __future__ import annotations

from typing import Any

from fuzzing.drawing import Pool, UnfitError
from fuzzing.table import Drawn, Op, register

EDGES = (1, 2, 3, 5, 6, 7, 4, 8, 9)


def _image(pool: Pool, channels: int | None = None) -> int:
    found = pool.find(
        lambda k: (
            pool.dtype(k) == "f32"
            and len(pool.of(k)) == 4
            and 0 not in pool.of(k)
            and channels in (None, pool.of(k)[1])
            and pool.known[k].v.size < 1000
        )
    )
    if found is not None and pool.below(3):
        return found
    c = pool.one((1, 2, 3, 4)) if channels is None else channels
    return pool.shaped((pool.one((1, 2, 3)), c, pool.one(EDGES), pool.one(EDGES)))


def _conv(pool: Pool) -> Drawn:
    x = _image(pool)
    _, channels, h, w = pool.of(x)
    groups = pool.one([g for g in range(1, channels + 1) if channels % g == 0])
    stride, dilation, padding = ([pool.one(c), pool.one(c)] for c in ((1, 1, 2, 3), (1, 1, 2), (0, 1, 2)))
    kernel = [pool.between(1, 3), pool.between(1, 3)]
    for k in range(2):
        if (h, w)[k] + 2 * padding[k] < dilation[k] * (kernel[k] - 1) + 1:
            kernel[k] = 1
    out = groups * pool.one((1, 2, 3))
    weight = pool.shaped((out, channels // groups, *kernel))
    return (x, weight), {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def _conv_transpose(pool: Pool) -> Drawn:
    x = _image(pool)
    _, channels, h, w = pool.of(x)
    groups = pool.one([g for g in range(1, channels + 1) if channels % g == 0])
    stride, dilation = ([pool.one(c), pool.one(c)] for c in ((1, 1, 2, 3), (1, 1, 2)))
    kernel = [pool.between(1, 3), pool.between(1, 3)]
    extra = [pool.below(max(s, d)) for s, d in zip(stride, dilation)]
    padding = [pool.below(2) if n > 2 else 0 for n in (h, w)]
    weight = pool.shaped((channels, pool.one((1, 2, 3)), *kernel))
    return (x, weight), {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
                         "output_padding": extra}  # fmt: skip


def _conv1d(pool: Pool) -> Drawn:
    b, c, n, size = pool.one((1, 2)), pool.one((1, 2, 3)), pool.one((5, 7, 8, 15, 17, 33)), pool.between(1, 3)
    g = pool.one((1, 1, 2, 3))
    x, w = pool.shaped((b, g * c, n)), pool.shaped((g * pool.one((1, 2, 3)), c, size))
    how = {"stride": pool.one((1, 2, 3)), "padding": pool.below(3), "dilation": pool.one((1, 2))}
    return (x, w), {**how, "groups": g}


def _conv3d(pool: Pool) -> Drawn:
    b, c, g = pool.one((1, 2)), pool.one((1, 2)), pool.one((1, 2))
    x = pool.shaped((b, c * g, *[pool.one((3, 4, 5)) for _ in range(3)]))
    w = pool.shaped((g * pool.one((1, 2)), c, *[pool.between(1, 3) for _ in range(3)]))
    how = {"stride": [pool.one((1, 1, 2)) for _ in range(3)], "padding": [pool.below(2) for _ in range(3)]}
    return (x, w), {**how, "dilation": pool.one((1, 1, [1, 2, 1])) if pool.of(w)[3] < 3 else 1, "groups": g}


def _transposed(rank: int) -> Any:
    """Of sequences or volumes."""

    def draw(pool: Pool) -> Drawn:
        b, c, g = pool.one((1, 2)), pool.one((1, 2)), pool.one((1, 1, 2))
        x = pool.shaped((b, c * g, *(pool.one((1, 2, 3, 5)) for _ in range(rank))))
        w = pool.shaped((c * g, pool.one((1, 2)), *(pool.between(1, 3) for _ in range(rank))))
        stride, dilation = pool.one((1, 2, 3)), pool.one((1, 1, 2))
        padding = pool.below(2) if min(pool.of(x)[2:]) > 2 else 0
        how = {"stride": stride, "dilation": dilation, "padding": padding}
        return (x, w), {**how, "output_padding": pool.below(max(stride, dilation)), "groups": g}

    return draw


def _shuffle(pool: Pool) -> Drawn:
    r, turned = pool.one((1, 2, 3)), bool(pool.below(2))
    b, c, h, w = (pool.one((1, 2, 3)) for _ in range(4))
    return (pool.shaped((b, c, h * r, w * r) if turned else (b, c * r * r, h, w)),), {"factor": r, "turned": turned}


def _adaptive(pool: Pool) -> Drawn:
    return (_image(pool),), {"size": [pool.one((1, 2, 3, 5)) for _ in range(2)]}


def _unfold(pool: Pool) -> Drawn:
    x = _image(pool)
    kernel = [pool.between(1, min(3, n)) for n in pool.of(x)[2:]]
    dilation = [1 if k * 2 > n + 1 else pool.between(1, 2) for k, n in zip(kernel, pool.of(x)[2:])]
    return (x,), {"kernel": kernel, "dilation": dilation, "padding": pool.below(2), "stride": pool.between(1, 2)}


def _pool(pool: Pool) -> Drawn:
    x = _image(pool)
    size = [pool.between(1, min(3, n)) for n in pool.of(x)[2:]]
    stride = [pool.between(1, 3) for _ in size]
    return (x,), {"size": size, "stride": stride, "padding": [pool.between(0, k // 2) for k in size]}


def _upsample(pool: Pool) -> Drawn:
    return (_image(pool),), {"scale": [pool.one((1, 2, 3)), pool.one((1, 2, 3))]}


def _im2col(pool: Pool) -> Drawn:
    x = _image(pool)
    kernel = [pool.between(1, min(3, n)) for n in pool.of(x)[2:]]
    return (x,), {"kernel": kernel, "stride": pool.between(1, 2), "padding": pool.below(2)}


def _batch_norm(pool: Pool) -> Drawn:
    x = _image(pool)
    n, c, h, w = pool.of(x)
    if n * h * w < 3:
        raise UnfitError
    return (x, pool.shaped((c,)), pool.shaped((c,))), {}


def _torch(name: str) -> Any:
    return lambda torch, x, w, **how: getattr(torch.nn.functional, name)(x, w, **how)


def _jax_conv(jax: Any, x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, stride, [(p, p) for p in padding], rhs_dilation=dilation, feature_group_count=groups)  # fmt: skip


register(
    Op("conv2d", _conv, lambda tg, x, w, **how: tg.conv2d(x, w, **how), _torch("conv2d"), _jax_conv, weight=6),
    Op("conv_transpose2d", _conv_transpose, lambda tg, x, w, **how: tg.conv_transpose2d(x, w, **how),
       _torch("conv_transpose2d"), None, weight=4),
    Op("conv1d", _conv1d, lambda tg, x, w, **how: tg.conv1d(x, w, **how), _torch("conv1d"), None, weight=2),
    Op("conv3d", _conv3d, lambda tg, x, w, **how: tg.conv3d(x, w, **how), _torch("conv3d"), None),
    Op("conv_transpose1d", _transposed(1), lambda tg, x, w, **how: tg.conv_transpose1d(x, w, **how),
       _torch("conv_transpose1d"), None),
    Op("conv_transpose3d", _transposed(3), lambda tg, x, w, **how: tg.conv_transpose3d(x, w, **how),
       _torch("conv_transpose3d"), None),
    Op("pixel_shuffle", _shuffle,
       lambda tg, x, factor, turned: (tg.pixel_unshuffle if turned else tg.pixel_shuffle)(x, factor),
       lambda torch, x, factor, turned:
       getattr(torch.nn.functional, "pixel_unshuffle" if turned else "pixel_shuffle")(x, factor), None),
    Op("adaptive_avg_pool2d", _adaptive, lambda tg, x, size: tg.adaptive_avg_pool2d(x, size),
       lambda torch, x, size: torch.nn.functional.adaptive_avg_pool2d(x, size), None),
    Op("unfold", _unfold, lambda tg, x, kernel, **how: tg.unfold(x, kernel, **how),
       lambda torch, x, kernel, **how: torch.nn.functional.unfold(x, kernel, **how), None),
    Op("max_pool2d", _pool, lambda tg, x, size, stride, padding: tg.max_pool2d(x, size, stride, padding),
       lambda torch, x, size, stride, padding: torch.nn.functional.max_pool2d(x, size, stride, padding), None,
       weight=5),
    Op("avg_pool2d", _pool, lambda tg, x, size, stride, padding: tg.avg_pool2d(x, size, stride, padding),
       lambda torch, x, size, stride, padding: torch.nn.functional.avg_pool2d(x, size, stride, padding), None,
       weight=5),
    Op("nearest_upsample2d", _upsample, lambda tg, x, scale: tg.nearest_upsample2d(x, scale),
       lambda torch, x, scale: torch.nn.functional.interpolate(x, scale_factor=tuple(map(float, scale))), None),
    Op("im2col", _im2col, lambda tg, x, kernel, stride, padding: tg.im2col(x, kernel, stride, padding),
       lambda torch, x, kernel, stride, padding:
       torch.nn.functional.unfold(x, kernel, stride=stride, padding=padding).transpose(1, 2), None),
    Op("batch_norm", _batch_norm, lambda tg, x, g, b: tg.batch_norm(x, g, b, eps=1e-3),
       lambda torch, x, g, b: torch.nn.functional.batch_norm(x, None, None, g, b, True, eps=1e-3), None),
)  # fmt: skip
