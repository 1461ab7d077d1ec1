"""The table of ops, second half: softmax, losses, normalisation, attention, images, random, patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cases import Case, F, torch
from tracegrad import ops as tg


@dataclass(frozen=True, repr=False)
class FedCase(Case):
    """A case whose op makes leaves of its own; `feed` holds their values."""

    feed: Mapping[str, np.ndarray] = field(default_factory=dict, hash=False)

    def arrays(self, seed: int = 0, dtype: str = "float64") -> dict[str, np.ndarray]:
        return super().arrays(seed, dtype) | dict(self.feed)


COUNTERS = {"seed": np.uint32(2026), "step": np.uint32(3)}
PATCH = {
    "patch.p": np.float32(1),
    "patch.p.mask": np.array([[True, False], [False, True], [True, True]]),
    "patch.p.value": np.arange(6, dtype=np.float32).reshape(3, 2),
}


def _last(loss: Any, x: Any, t: Any, **kw: Any) -> Any:
    """A PyTorch loss over classes on the last axis."""
    y = loss(x.reshape(-1, x.shape[-1]), t.reshape(-1).long(), **kw)
    return y.reshape(t.shape) if kw.get("reduction") == "none" else y


def _rotated(x: Any, base: float = 10000.0, each: Any = None, first: Any = 0) -> Any:
    t, d = x.shape[-2:]
    each = first + torch.arange(t, dtype=torch.float64)[:, None] if each is None else each
    a = each * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    u, v = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([u * a.cos() - v * a.sin(), v * a.cos() + u * a.sin()], -1)


def _first_key(m: Any) -> Any:
    """True in the first column: no query sees nothing."""
    return tg.arange(m.shape[-1]) == 0


def _softmaxes() -> list[Case]:
    rows = [
        Case(f"{name}_{axis}", lambda x, n=name, a=axis: getattr(tg, n)(x, a), ((2, 3, 4),),
             torch=lambda x, n=name, a=axis: getattr(torch, n)(x, a))
        for name in ("softmax", "log_softmax") for axis in (-1, 0, 1, -2)
    ]  # fmt: skip
    return [
        *rows,
        Case("softmax_long", tg.softmax, ((2, 300),), torch=lambda x: torch.softmax(x, -1)),
        Case("softmax_causal", tg.softmax_causal, ((2, 5, 5),),
             torch=lambda x: torch.softmax(torch.where(torch.ones(5, 5).tril() > 0, x, -torch.inf), -1)),
        Case("where_causal", lambda x: tg.where_causal(x, -3.0), ((2, 3, 4),),
             torch=lambda x: torch.where(torch.ones(3, 4).tril() > 0, x, -3.0)),
    ]  # fmt: skip


def _class_losses() -> list[Case]:
    rows: list[Case] = []
    for reduction in ("mean", "sum", "none"):
        for smoothing, ignore in ((0.0, None), (0.1, None), (0.0, 2), (0.2, 0)):
            rows.append(
                Case(
                    f"cross_entropy_{reduction}_{smoothing}_{ignore}",
                    lambda x, t, r=reduction, s=smoothing, i=ignore: tg.cross_entropy(x, t, r, s, i),
                    ((3, 2, 5),),
                    ints=(((3, 2), 5),),
                    torch=lambda x, t, r=reduction, s=smoothing, i=ignore: _last(
                        F.cross_entropy, x, t, reduction=r, label_smoothing=s, ignore_index=-100 if i is None else i
                    ),
                )
            )
        for ignore in (None, 1):
            rows.append(
                Case(
                    f"nll_loss_{reduction}_{ignore}",
                    lambda x, t, r=reduction, i=ignore: tg.nll_loss(x, t, r, i),
                    ((7, 4),),
                    ints=(((7,), 4),),
                    torch=lambda x, t, r=reduction, i=ignore: _last(
                        F.nll_loss, x, t, reduction=r, ignore_index=-100 if i is None else i
                    ),
                )
            )
        for name in ("mse_loss", "binary_cross_entropy_with_logits"):
            rows.append(
                Case(
                    f"{name}_{reduction}",
                    lambda x, t, n=name, r=reduction: getattr(tg, n)(x, t, r),
                    ((3, 4), (3, 4)),
                    torch=lambda x, t, n=name, r=reduction: getattr(F, n)(x, t, reduction=r),
                )
            )
    weights = (0.5, 2.0, 1.0, 0.0, 3.0)
    for reduction in ("mean", "sum", "none"):
        for smoothing, ignore in ((0.0, None), (0.2, 1)):
            rows.append(
                Case(
                    f"cross_entropy_weight_{reduction}_{smoothing}_{ignore}",
                    lambda x, t, r=reduction, s=smoothing, i=ignore: tg.cross_entropy(x, t, r, s, i, weight=weights),
                    ((3, 2, 5),),
                    ints=(((3, 2), 5),),
                    torch=lambda x, t, r=reduction, s=smoothing, i=ignore: _last(
                        F.cross_entropy, x, t, reduction=r, label_smoothing=s, ignore_index=-100 if i is None else i,
                        weight=torch.tensor(weights, dtype=x.dtype),
                    ),
                )
            )  # fmt: skip
        rows.append(
            Case(
                f"nll_loss_weight_{reduction}",
                lambda x, t, r=reduction: tg.nll_loss(x, t, r, 1, weight=weights),
                ((3, 2, 5),),
                ints=(((3, 2), 5),),
                torch=lambda x, t, r=reduction: _last(
                    F.nll_loss, x, t, reduction=r, ignore_index=1, weight=torch.tensor(weights, dtype=x.dtype)
                ),
            )
        )
        rows.append(
            Case(
                f"binary_cross_entropy_pos_weight_{reduction}",
                lambda x, t, r=reduction: tg.binary_cross_entropy_with_logits(x, t, r, pos_weight=weights),
                ((3, 5), (3, 5)),
                torch=lambda x, t, r=reduction: F.binary_cross_entropy_with_logits(
                    x, t, reduction=r, pos_weight=torch.tensor(weights, dtype=x.dtype)
                ),
            )
        )  # fmt: skip
    for smoothing in (0.0, 0.3):
        rows.append(
            Case(
                f"cross_entropy_probabilities_{smoothing}",
                lambda x, q, w, s=smoothing: tg.cross_entropy(x, q, label_smoothing=s, weight=w),
                ((4, 5), (4, 5), (5,)),
                low=0.1,
                torch=lambda x, q, w, s=smoothing: F.cross_entropy(x, q, label_smoothing=s, weight=w),
            )
        )
    rows.append(
        Case(
            "cross_entropy_probabilities_none",
            lambda x, q: tg.cross_entropy(x, q, "none"),
            ((2, 3, 5), (2, 3, 5)),
            torch=lambda x, q: F.cross_entropy(x.permute(0, 2, 1), q.permute(0, 2, 1), reduction="none"),
        )
    )
    return rows


NORMS = [
    Case("layer_norm", lambda x, g, b: tg.layer_norm(x, g, b), ((2, 3, 6), (6,), (6,)),
         torch=lambda x, g, b: F.layer_norm(x, (6,), g, b)),
    Case("layer_norm_plain", tg.layer_norm, ((4, 7),), torch=lambda x: F.layer_norm(x, (7,))),
    Case("layer_norm_long", lambda x, g: tg.layer_norm(x, g, eps=1e-3), ((2, 300), (300,)),
         torch=lambda x, g: F.layer_norm(x, (300,), g, eps=1e-3)),
    Case("rms_norm", lambda x, g: tg.rms_norm(x, g), ((2, 3, 6), (6,)),
         torch=lambda x, g: F.rms_norm(x, (6,), g, 1e-6)),
    Case("batch_norm", lambda x, g, b: tg.batch_norm(x, g, b), ((2, 3, 4, 5), (3,), (3,)),
         torch=lambda x, g, b: F.batch_norm(x, None, None, g, b, True)),
    Case("batch_norm_rank_2", lambda x: tg.batch_norm(x), ((6, 3),), torch=lambda x: F.batch_norm(x, None, None, None, None, True)),  # noqa: E501
    Case("batch_norm_known", lambda x, m, v: tg.batch_norm(x, mean=m, var=v), ((4, 3), (3,), (3,)), low=0.5,
         torch=lambda x, m, v: (x - m) / torch.sqrt(v + 1e-5)),
]  # fmt: skip

ATTENTION = [
    Case("split_heads", lambda x: tg.split_heads(x, 2), ((2, 3, 8),),
         torch=lambda x: x.reshape(2, 3, 2, 4).transpose(1, 2)),
    Case("merge_heads", tg.merge_heads, ((2, 2, 3, 4),), torch=lambda x: x.transpose(1, 2).reshape(2, 3, 8)),
    Case("merge_heads_of_one", tg.merge_heads, ((2, 3, 4),), torch=lambda x: x.transpose(0, 1).reshape(3, 8)),
    Case("rope_q", lambda q, k: tg.rope(q, k)[0], ((2, 3, 5, 6), (2, 1, 5, 6)), torch=lambda q, k: _rotated(q) + 0 * k),
    Case("rope_k", lambda q, k: tg.rope(q, k, base=100)[1], ((5, 4), (7, 4)),
         torch=lambda q, k: _rotated(k, 100) + 0 * q.sum()),
    Case("rope_from", lambda q, k, p: tg.rope(q, k, position=p[0])[0], ((2, 3, 6), (2, 3, 6)), ints=(((2,), 4),),
         torch=lambda q, k, p: _rotated(q, first=p[0]) + 0 * k, close=1e-5),
    Case("rope_each", lambda q, k, p: tg.rope(q, k, 50, p)[1], ((2, 3, 4), (2, 3, 4)), ints=(((2, 3), 9),),
         torch=lambda q, k, p: _rotated(k, 50, p[..., None]) + 0 * q.sum(), close=1e-5),
    Case("attention", lambda q, k, v: tg.attention(q, k, v), ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6)),
         torch=lambda q, k, v: F.scaled_dot_product_attention(q, k, v)),
    Case("attention_causal", lambda q, k, v: tg.attention(q, k, v, causal=True), ((2, 2, 5, 4),) * 3,
         torch=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    Case("attention_masked", lambda q, k, v, m: tg.attention(q, k, v, mask=m | _first_key(m)), ((2, 2, 3, 4),) * 3,
         bools=((2, 1, 3, 3),),
         torch=lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m | (torch.arange(3) == 0))),
    Case("attention_biased", lambda q, k, v, m: tg.attention(q, k, v, mask=m), (*[(2, 2, 3, 4)] * 3, (3, 3)),
         torch=lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)),
    Case("attention_layer",
         lambda x, w: x + tg.merge_heads(tg.attention(*[tg.split_heads(h, 2) for h in tg.split(x @ w, 3, -1)], True)),
         ((2, 4, 6), (6, 18)),
         torch=lambda x, w: x + F.scaled_dot_product_attention(
             *[h.reshape(2, 4, 2, 3).transpose(1, 2) for h in (x @ w).chunk(3, -1)], is_causal=True
         ).transpose(1, 2).reshape(2, 4, 6)),
]  # fmt: skip

GEOMETRIES: tuple[dict[str, Any], ...] = (
    {},
    {"padding": 1},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"groups": 2, "stride": 2, "padding": 1},
)


def _convolutions() -> list[Case]:
    rows: list[Case] = []
    for how in GEOMETRIES:
        g = how.get("groups", 1)
        at = "_".join(f"{k}{v}" for k, v in how.items()).replace(" ", "")
        rows += [
            Case(
                f"conv2d_{at}",
                lambda x, w, how=how: tg.conv2d(x, w, **how),
                ((2, 4, 6, 5), (4, 4 // g, 3, 2)),
                torch=lambda x, w, how=how: F.conv2d(x, w, **how),
            ),
            Case(
                f"conv_transpose2d_{at}",
                lambda x, w, how=how: tg.conv_transpose2d(x, w, **how),
                ((2, 4, 3, 4), (4, 3, 3, 4)),
                torch=lambda x, w, how=how: F.conv_transpose2d(x, w, **how),
            ),
        ]
    return [
        *rows,
        Case("conv1d", lambda x, w: tg.conv1d(x, w, stride=2, padding=1, dilation=2), ((2, 3, 9), (4, 3, 3)),
             torch=lambda x, w: F.conv1d(x, w, stride=2, padding=1, dilation=2)),
        Case("conv3d", lambda x, w: tg.conv3d(x, w, stride=(1, 2, 1), padding=(1, 0, 2), dilation=(1, 1, 2)),
             ((2, 2, 3, 5, 4), (3, 2, 2, 3, 2)),
             torch=lambda x, w: F.conv3d(x, w, stride=(1, 2, 1), padding=(1, 0, 2), dilation=(1, 1, 2))),
        Case("conv3d_groups", lambda x, w: tg.conv3d(x, w, stride=2, padding=1, groups=2),
             ((1, 4, 4, 3, 5), (4, 2, 2, 2, 2)), torch=lambda x, w: F.conv3d(x, w, stride=2, padding=1, groups=2)),
        Case("conv2d_wide", lambda x, w: tg.conv2d(x, w, padding=3), ((1, 2, 4, 3), (2, 2, 7, 7)),
             torch=lambda x, w: F.conv2d(x, w, padding=3)),
        Case("conv2d_phases", lambda x, w: tg.conv2d(x, w, stride=(4, 3), padding=(1, 3), dilation=(2, 2)),
             ((1, 2, 9, 7), (2, 2, 3, 3)),
             torch=lambda x, w: F.conv2d(x, w, stride=(4, 3), padding=(1, 3), dilation=(2, 2))),
        Case("conv_transpose2d_phases",
             lambda x, w: tg.conv_transpose2d(x, w, (4, 3), (1, 2), (1, 2), dilation=(2, 4)),
             ((1, 2, 3, 2), (2, 2, 3, 3)),
             torch=lambda x, w: F.conv_transpose2d(x, w, None, (4, 3), (1, 2), (1, 2), 1, (2, 4))),
        Case("conv_transpose1d", lambda x, w: tg.conv_transpose1d(x, w, 3, 1, 1, groups=2, dilation=2),
             ((2, 4, 5), (4, 3, 4)), torch=lambda x, w: F.conv_transpose1d(x, w, None, 3, 1, 1, 2, 2)),
        Case("conv_transpose3d",
             lambda x, w: tg.conv_transpose3d(x, w, (1, 2, 1), (1, 0, 2), (0, 1, 1), dilation=(1, 1, 2)),
             ((2, 2, 3, 2, 4), (2, 3, 2, 3, 2)),
             torch=lambda x, w: F.conv_transpose3d(x, w, None, (1, 2, 1), (1, 0, 2), (0, 1, 1), 1, (1, 1, 2))),
        Case("conv_bias_relu_pool",
             lambda x, w, b: tg.max_pool2d(tg.relu(tg.conv2d(x, w, padding=1) + b.reshape(3, 1, 1)), 2),
             ((2, 2, 6, 6), (3, 2, 3, 3), (3,)), second=False,
             torch=lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b, padding=1)), 2)),
    ]  # fmt: skip


def _pools() -> list[Case]:
    return [
        Case(
            f"{name}_{k}_{s}_{p}".replace(" ", ""),
            lambda x, n=name, a=(k, s, p): getattr(tg, n)(x, *a),
            ((2, 2, 7, 6),),
            torch=lambda x, n=name, a=(k, s, p): getattr(F, n)(x, *a),
        )
        for name in ("max_pool2d", "avg_pool2d")
        for k, s, p in ((2, None, 0), (3, 2, 1), ((2, 3), (3, 2), (1, 0)), (5, 1, 2))
    ] + [
        Case(
            name,
            lambda x, n=name: getattr(tg, n)(x, (2, 3, 2), (2, 1, 2), (1, 1, 0)),
            ((2, 2, 3, 4, 5),),
            torch=lambda x, n=name: getattr(F, n)(x, (2, 3, 2), (2, 1, 2), (1, 1, 0)),
        )
        for name in ("max_pool3d", "avg_pool3d")
    ]


IMAGES = [
    Case("nearest_upsample2d", lambda x: tg.nearest_upsample2d(x, (2, 3)), ((2, 2, 3, 2),),
         torch=lambda x: F.interpolate(x, scale_factor=(2, 3))),
    Case("im2col", lambda x: tg.im2col(x, (3, 2), 2, 1), ((2, 2, 5, 6),),
         torch=lambda x: F.unfold(x, (3, 2), stride=2, padding=1).transpose(1, 2)),
    Case("col2im", lambda x: tg.col2im(x, (2, 2, 5, 6), (3, 2), 2, 1), ((2, 12, 12),),
         torch=lambda x: F.fold(x.transpose(1, 2), (5, 6), (3, 2), stride=2, padding=1)),
]  # fmt: skip

RANDOM = [
    FedCase("dropout", lambda x: tg.dropout(x, 0.4), ((5, 7),), feed=COUNTERS),
    FedCase("dropout_twice", lambda x: tg.dropout(tg.dropout(x * x, 0.2) * x, 0.3), ((5, 7),), feed=COUNTERS),
    FedCase("uniform", lambda x: x * tg.uniform((3, 4)), ((3, 4),), feed=COUNTERS),
    FedCase("randn", lambda x: x * tg.randn((3, 4)), ((3, 4),), feed=COUNTERS),
    FedCase("bernoulli", lambda x: tg.where(tg.bernoulli((3, 4), 0.3), x, 0.0), ((3, 4),), feed=COUNTERS),
    FedCase("bernoulli_of", lambda x: tg.bernoulli((2, 3, 4), tg.sigmoid(x)), ((3, 1),), grad=False, feed=COUNTERS),
    FedCase("categorical", lambda x: tg.categorical(x), ((9, 4),), grad=False, feed=COUNTERS),
]

CONTROL = [
    FedCase("patch", lambda x: tg.patch("p", x * x), ((3, 2),), feed=PATCH),
    Case("capture", lambda x: tg.capture("c", x * x), ((3, 2),), torch=lambda x: x * x),
]

NN_CASES: list[Case] = [
    *_softmaxes(),
    *_class_losses(),
    *NORMS,
    *ATTENTION,
    *_convolutions(),
    *_pools(),
    *IMAGES,
    *RANDOM,
    *CONTROL,
]
