"""The table of ops, third part: what joined them later, from angles to losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cases import Case, F, torch
from cases_nn import COUNTERS, FedCase
from tracegrad import linalg, ops as tg
from tracegrad.alignment import ctc_loss
from tracegrad.dtypes import f32

SPECIAL = np.array([[1.5, np.nan, np.inf], [-np.inf, 0.0, -2.0]])


def _angles() -> list[Case]:
    within = {"asin": 0.9, "acos": 0.9, "tan": 1.2, "atan": 3.0, "sinh": 3.0, "cosh": 3.0}
    return [
        Case(n, getattr(tg, n), ((3, 4),), low=-most, high=most, torch=getattr(torch, n, None))
        for n, most in within.items()
    ]


FUNCTION_CASES: list[Case] = [
    *_angles(),
    Case("atan2", tg.atan2, ((3, 4), (4,)), torch=getattr(torch, "atan2", None)),
    Case("logaddexp", tg.logaddexp, ((3, 4), (4,)), low=-3.0, high=3.0, torch=getattr(torch, "logaddexp", None)),
    Case("remainder", tg.remainder, ((3, 4), (4,)), low=1.1, high=1.9, torch=getattr(torch, "remainder", None)),
    Case("remainder_scaled", lambda a, b: tg.remainder(a * 7.0, -b), ((3, 4), (3, 1)), low=1.05, high=1.1,
         torch=lambda a, b: torch.remainder(a * 7.0, -b)),
    Case("floor_divide", lambda a, b: tg.floor_divide(a * 9.0, b), ((3, 4), (4,)), low=-1, high=1.1, grad=False,
         torch=lambda a, b: torch.floor_divide(a * 9.0, b)),
    Case("fmod", lambda a, b: tg.fmod(a * 7.0, b), ((3, 4), (4,)), low=-1.1, high=-1.05,
         torch=lambda a, b: torch.fmod(a * 7.0, b)),
    Case("fmod_i32", lambda a: tg.fmod(a - 20, -7), ints=(((3, 40), 41),), grad=False,
         torch=lambda a: torch.fmod(a - 20, -7).int()),
    Case("lgamma", tg.lgamma, ((3, 4),), low=0.1, high=7.0, torch=getattr(torch, "lgamma", None)),
    Case("lgamma_below", lambda x: tg.lgamma(x - 3.0), ((3, 4),), low=0.2, high=0.8,
         torch=lambda x: torch.lgamma(x - 3.0)),
    Case("digamma", tg.digamma, ((3, 4),), low=0.3, high=9.0, torch=getattr(torch, "digamma", None)),
    Case("remainder_i32", lambda a: tg.remainder(a - 20, 7), ints=(((3, 40), 41),), grad=False,
         torch=lambda a: torch.remainder(a - 20, 7).int()),
    Case("floor_divide_i32", lambda a: tg.floor_divide(a - 20, -7), ints=(((3, 40), 41),), grad=False,
         torch=lambda a: torch.floor_divide(a - 20, -7).int()),
    *[
        Case(n, lambda x, n=n: getattr(tg, n)(x + SPECIAL), ((2, 3),), grad=False,
             torch=lambda x, n=n: getattr(torch, n)(x + torch.tensor(SPECIAL)))
        for n in ("isnan", "isinf", "isfinite")
    ],
    Case("nan_to_num", lambda x: tg.nan_to_num(x * 1.5, 2.0, 3.0, -4.0) * x, ((2, 3),),
         torch=lambda x: torch.nan_to_num(x * 1.5, 2.0, 3.0, -4.0) * x),
    *[
        Case(f"std_{a}_{ddof}", lambda x, a=a, d=ddof: tg.std(x, a, True, d), ((2, 3, 4),),
             torch=lambda x, a=a, d=ddof: torch.std(x, tuple(range(3)) if a is None else a, correction=d, keepdim=True))
        for a, ddof in ((None, 0), (1, 1), ((0, 2), 0))
    ],
    *[
        Case(f"norm_{ord}_{a}".replace(" ", ""), lambda x, o=ord, a=a: tg.norm(x, a, ord=o), ((2, 3, 4),), low=0.2,
             second=ord != 0, torch=lambda x, o=ord, a=a: torch.linalg.vector_norm(x, o, a), grad=ord != 0)
        for ord, a in ((2, None), (2, 1), (1, (0, 2)), (3, -1), (1.5, 0), (math.inf, 1), (-math.inf, 0), (0, 1))
    ],
    Case("logcumsumexp", lambda x: tg.logcumsumexp(x, 0), ((5, 3),), torch=lambda x: torch.logcumsumexp(x, 0)),
    Case("logcumsumexp_long", lambda x: tg.logcumsumexp(x, -1), ((2, 70),), close=1e-5,
         torch=lambda x: torch.logcumsumexp(x, -1)),
    *[
        Case(f"{name}_{n}", lambda x, name=name: getattr(tg, name)(x, -1), ((2, n),),
             torch=lambda x, name=name: getattr(torch, name)(x, -1)[0])
        for name, n in (("cummax", 5), ("cummax", 70), ("cummin", 5))
    ],
    Case("cummax_i32", lambda a: tg.cummax(a, 0), ints=(((40, 2), 9),), grad=False,
         torch=lambda a: torch.cummax(a, 0)[0].int()),
    Case("cumprod", lambda x: tg.cumprod(x, 0), ((5, 3),), torch=lambda x: torch.cumprod(x, 0)),
    Case("cumprod_flat", tg.cumprod, ((5, 3),), low=0.5, torch=lambda x: torch.cumprod(x.flatten(), 0)),
    Case("cumprod_long", lambda x: tg.cumprod(x, -1), ((2, 70),), low=0.8, high=1.2, tol=1e-4,
         torch=lambda x: torch.cumprod(x, -1)),
    Case("cumprod_i32", lambda a: tg.cumprod(a, 1), ints=(((2, 40), 3),), grad=False,
         torch=lambda a: torch.cumprod(a, 1).int()),
    # shapes
    Case("roll", lambda x: tg.roll(x, 2, 1), ((2, 5),), torch=lambda x: torch.roll(x, 2, 1)),
    Case("roll_back", lambda x: tg.roll(x, (-1, 7), (0, -1)), ((3, 4),),
         torch=lambda x: torch.roll(x, (-1, 7), (0, 1))),
    Case("roll_axes_in_any_order", lambda x: tg.roll(x, (1, -2), (-1, 0)), ((3, 4),),
         torch=lambda x: torch.roll(x, (1, -2), (1, 0))),
    Case("roll_one_axis_twice", lambda x: tg.roll(x, (1, -3, 3), (0, 1, -2)), ((3, 4),),
         torch=lambda x: torch.roll(torch.roll(x, (1, -3), (0, 1)), 3, 0)),
    Case("roll_flat", lambda x: tg.roll(x, 3), ((2, 4),), torch=lambda x: torch.roll(x, 3)),
    Case("triu", lambda x: tg.triu(x, 1), ((2, 3, 4),), torch=lambda x: torch.triu(x, 1)),
    Case("diag_of_matrices", lambda x: tg.diag(x, 1), ((2, 3, 2, 4),), torch=lambda x: torch.diagonal(x, 1, -2, -1)),
    *[
        Case(f"diag_{s}_{k}".replace(" ", ""), lambda x, k=k: tg.diag(x, k), (s,),
             torch=lambda x, k=k: torch.diag(x, k))
        for s, k in (((3,), 0), ((3,), 2), ((3,), -1), ((3, 4), 0), ((3, 4), 2), ((3, 4), -1), ((4, 2), -2))
    ],
    Case("meshgrid", lambda a, b: tg.meshgrid(a, b)[1] * tg.meshgrid(a, b)[0], ((3,), (4,)),
         torch=lambda a, b: torch.meshgrid(a, b, indexing="xy")[1] * torch.meshgrid(a, b, indexing="xy")[0]),
    Case("meshgrid_ij", lambda a, b, c: tg.stack(tg.meshgrid(a, b, c, indexing="ij")), ((2,), (3,), (4,)),
         torch=lambda a, b, c: torch.stack(torch.meshgrid(a, b, c, indexing="ij"))),
    Case("arange_steps", lambda x: x * tg.arange(7, -2, -3, dtype=f32), ((2, 3),),
         torch=lambda x: x * torch.arange(7, -2, -3)),
    Case("arange_whole", lambda x: x * tg.arange(3.0), ((2, 3),), torch=lambda x: x * torch.arange(3.0)),
    Case("arange_fractions", lambda x: x * tg.arange(0.5, 2.0, 0.5), ((2, 3),),
         torch=lambda x: x * torch.arange(0.5, 2.0, 0.5)),
    # random
    FedCase("uniform_between", lambda x: x * tg.uniform((2, 3), -3.0, 5.0), ((2, 3),), feed=COUNTERS),
    FedCase("normal", lambda m, s: tg.normal((2, 3), m, s), ((3,), (2, 1)), low=0.5, feed=COUNTERS),
    FedCase("randint", lambda x: x * tg.cast(tg.randint((2, 3), -5, 100), f32), ((2, 3),), feed=COUNTERS),
    FedCase("permutation", lambda x: x[tg.permutation(6)], ((6, 2),), feed=COUNTERS),
    FedCase("gumbel_softmax", lambda x: tg.gumbel_softmax(x, 0.7), ((2, 3),), feed=COUNTERS),
    FedCase("gumbel_softmax_hard", lambda x: tg.gumbel_softmax(x, hard=True, axis=0), ((2, 3),), feed=COUNTERS,
            tol=math.inf),
]  # fmt: skip

SORTING_CASES: list[Case] = [
    Case("sort", lambda x: tg.sort(x)[0], ((3, 5),), torch=lambda x: torch.sort(x)[0]),
    Case(
        "sort_0_descending",
        lambda x: tg.sort(x, 0, True)[0],
        ((5, 3),),
        torch=lambda x: torch.sort(x, 0, descending=True)[0],
    ),
    # second=False keeps its gradients out of test_half.py: rounding to half precision may exchange two elements
    Case("sort_merged", lambda x: tg.sort(x * x)[0], ((2, 132),), second=False, torch=lambda x: torch.sort(x * x)[0]),
    Case("sort_one", lambda x: tg.sort(x)[0], ((3, 1),), torch=lambda x: x * 1),
    Case("argsort", tg.argsort, ((3, 135),), grad=False, torch=lambda x: torch.argsort(x, stable=True).int()),
    Case(
        "argsort_i32",
        lambda a: tg.argsort(a, 0, True),
        ints=(((134, 2), 5),),
        grad=False,
        torch=lambda a: torch.argsort(a, dim=0, descending=True, stable=True).int(),
    ),
    Case(
        "argsort_bools",
        lambda b: tg.argsort(b, -1),
        bools=((2, 9),),
        grad=False,
        torch=lambda b: torch.argsort(b, stable=True).int(),
    ),
    Case("sort_exchanged", lambda x: tg.sort(x, 0)[0], ((270, 12),), second=False, torch=lambda x: torch.sort(x, 0)[0]),
    Case(
        "argsort_exchanged",
        lambda a: tg.argsort(a, 1, True),
        ints=(((2, 257, 13), 40),),
        grad=False,
        torch=lambda a: torch.argsort(a, dim=1, descending=True, stable=True).int(),
    ),
    Case(
        "topk_exchanged",
        lambda x: tg.topk(x, 5, 0)[1],
        ((300, 12),),
        grad=False,
        torch=lambda x: torch.topk(x, 5, 0)[1].int(),
    ),
    Case("topk", lambda x: tg.topk(x, 3)[0], ((2, 8),), torch=lambda x: torch.topk(x, 3)[0]),
    Case(
        "topk_least",
        lambda x: tg.topk(x, 2, 0, largest=False)[0],
        ((75, 2),),
        torch=lambda x: torch.topk(x, 2, 0, largest=False)[0],
    ),
    Case("topk_indices", lambda x: tg.topk(x, 5)[1], ((2, 90),), grad=False, torch=lambda x: torch.topk(x, 5)[1].int()),
]

LOSS_CASES: list[Case] = [
    *[
        Case(f"{name}_{how}", lambda x, t, n=name, h=how, m=more: getattr(tg, n)(x, t, h, **m), ((3, 4), (3, 4)),
             torch=lambda x, t, n=name, h=how, m=more: getattr(F, n)(x, t, reduction=h, **m))
        for name, more in (("l1_loss", {}), ("smooth_l1_loss", {"beta": 0.7}), ("huber_loss", {"delta": 0.7}))
        for how in ("mean", "sum", "none")
    ],
    Case("hinge_loss", lambda x, t: tg.hinge_loss(x, t), ((3, 4), (3, 4)),
         torch=lambda x, t: torch.relu(1 - x * t).mean()),
    *[
        Case(f"triplet_margin_loss_{how}", lambda a, p, n, h=how: tg.triplet_margin_loss(a, p, n, 0.4, reduction=h),
             ((5, 4), (5, 4), (5, 4)),
             torch=lambda a, p, n, h=how: F.triplet_margin_loss(a, p, n, margin=0.4, reduction=h))
        for how in ("mean", "sum", "none")
    ],
    *[
        Case(f"kl_div_{how}", lambda x, t, h=how: tg.kl_div(x, t, h), ((3, 4), (3, 4)), low=0.1,
             torch=lambda x, t, h=how: F.kl_div(x, t, reduction=h))
        for how in ("mean", "batchmean", "none")
    ],
    Case("kl_div_log_target", lambda x, t: tg.kl_div(x, t, "sum", log_target=True), ((3, 4), (3, 4)),
         torch=lambda x, t: F.kl_div(x, t, reduction="sum", log_target=True)),
    Case("normalize", lambda x: tg.normalize(x, 1), ((3, 4, 2),), torch=lambda x: F.normalize(x)),
    Case("normalize_1", lambda x: tg.normalize(x, ord=1), ((3, 4),), low=0.1, torch=lambda x: F.normalize(x, p=1)),
    Case("cosine_similarity", lambda a, b: tg.cosine_similarity(a, b, 1), ((3, 4, 2), (4, 2)),
         torch=lambda a, b: F.cosine_similarity(a, b[None], 1)),
]  # fmt: skip


def _segment_max_torch(torch: Any, x: Any, i: Any, n: int) -> Any:
    """The maximum of each segment, one segment after the other."""
    return torch.stack([x[i == k].amax(0) for k in range(n)])


def _segment_softmax_torch(torch: Any, x: Any, i: Any, n: int) -> Any:
    e = torch.exp(x)
    return e / torch.zeros(n, *x.shape[1:]).to(x).index_add(0, i.long(), e)[i.long()]


IMAGE_CASES: list[Case] = [
    *[
        Case(f"interpolate_{mode}_{how}_{align}".replace(" ", ""),
             lambda x, m=mode, h=how, a=align: tg.interpolate(x, mode=m, align_corners=a, **h), (shape,),
             torch=lambda x, m=mode, h=how, a=align: F.interpolate(x, mode=m, align_corners=a or None, **h))
        for mode, shape, how, align in (
            ("nearest", (2, 3, 5), {"size": 8}, False),
            ("nearest", (1, 2, 5, 4), {"size": (3, 9)}, False),
            ("nearest", (1, 2, 3, 4), {"scale_factor": 2.5}, False),
            ("linear", (2, 3, 5), {"size": 8}, False),
            ("linear", (2, 3, 5), {"size": 3}, True),
            ("bilinear", (1, 2, 5, 4), {"size": (3, 9)}, False),
            ("bilinear", (1, 2, 5, 4), {"size": (7, 1)}, True),
            ("bilinear", (1, 2, 3, 4), {"scale_factor": (1.7, 2)}, False),
            ("trilinear", (1, 1, 2, 3, 4), {"size": (3, 2, 5)}, False),
            ("bicubic", (1, 2, 5, 4), {"size": (3, 9)}, False),
            ("bicubic", (1, 2, 5, 1), {"size": (7, 2)}, True),
            ("bicubic", (1, 2, 3, 4), {"scale_factor": (1.7, 2)}, False),
        )
    ],
    Case("adaptive_avg_pool1d", lambda x: tg.adaptive_avg_pool1d(x, 3), ((2, 3, 7),),
         torch=lambda x: F.adaptive_avg_pool1d(x, 3)),
    Case("adaptive_avg_pool2d", lambda x: tg.adaptive_avg_pool2d(x, (2, 4)), ((2, 3, 5, 6),),
         torch=lambda x: F.adaptive_avg_pool2d(x, (2, 4))),
    Case("adaptive_avg_pool2d_1", lambda x: tg.adaptive_avg_pool2d(x, 1), ((2, 3, 4, 6),),
         torch=lambda x: F.adaptive_avg_pool2d(x, 1)),
    Case("avg_pool1d", lambda x: tg.avg_pool1d(x, 3, 2, 1), ((2, 3, 7),), torch=lambda x: F.avg_pool1d(x, 3, 2, 1)),
    Case("max_pool1d", lambda x: tg.max_pool1d(x, 2), ((2, 3, 7),), torch=lambda x: F.max_pool1d(x, 2)),
    Case("pixel_shuffle", lambda x: tg.pixel_shuffle(x, 2), ((2, 8, 2, 3),), torch=lambda x: F.pixel_shuffle(x, 2)),
    Case("pixel_unshuffle", lambda x: tg.pixel_unshuffle(x, 3), ((2, 2, 3, 6),),
         torch=lambda x: F.pixel_unshuffle(x, 3)),
    Case("unfold", lambda x: tg.unfold(x, (2, 3), 2, (1, 0), (1, 2)), ((2, 2, 5, 7),),
         torch=lambda x: F.unfold(x, (2, 3), 2, (1, 0), (1, 2))),
    *[
        Case(f"grid_sample_{padding}_{corners}".lower(),
             lambda x, g, p=padding, c=corners: tg.grid_sample(x, g, "bilinear", p, c),
             ((2, 3, 4, 5), (2, 3, 2, 2)), low=-1.3, high=1.3, tol=1e-4,
             torch=lambda x, g, p=padding, c=corners: F.grid_sample(x, g, "bilinear", p, c))
        for padding, corners in (("zeros", False), ("zeros", True), ("border", False))
    ],
    Case("grid_sample_nearest", lambda x, g: tg.grid_sample(x, g, "nearest"), ((2, 3, 4, 5), (2, 3, 2, 2)),
         torch=lambda x, g: F.grid_sample(x, g, "nearest", align_corners=False)),
    *[
        Case(f"affine_grid_{corners}".lower(), lambda t, c=corners: tg.affine_grid(t, (2, 1, 3, 4), c), ((2, 2, 3),),
             torch=lambda t, c=corners: F.affine_grid(t, [2, 1, 3, 4], align_corners=c))
        for corners in (False, True)
    ],
    Case("segment_sum", lambda x, i: tg.segment_sum(x, i, 4), ((6, 2),), ints=(((6,), 4),),
         torch=lambda x, i: torch.zeros(4, 2).double().index_add(0, i.long(), x)),
    Case("segment_max", lambda x, i: tg.segment_max(x, tg.concat([i, tg.arange(4)], 0), 4), ((10, 2),),
         ints=(((6,), 4),), torch=lambda x, i: _segment_max_torch(torch, x, torch.cat([i, torch.arange(4)]), 4)),
    Case("segment_max_of_ties",
         lambda x, i: tg.segment_max(tg.concat([x, x], 0), tg.concat([i, tg.arange(3), i, tg.arange(3)], 0), 3),
         ((9, 2),), ints=(((6,), 3),),
         torch=lambda x, i: _segment_max_torch(torch, torch.cat([x, x]), torch.cat([i, torch.arange(3)] * 2), 3)),
    Case("segment_softmax", lambda x, i: tg.segment_softmax(x, i, 4), ((6, 2),), ints=(((6,), 4),), low=-3, high=3,
         torch=lambda x, i: _segment_softmax_torch(torch, x, i, 4)),
]  # fmt: skip

T_LENGTHS, S_LENGTHS = np.array([6, 5, 6], np.int32), np.array([3, 1, 2], np.int32)
TIME_CASES: list[Case] = [
    Case("ctc_loss", lambda x, t: ctc_loss(tg.log_softmax(x, -1), t + 1, T_LENGTHS, S_LENGTHS), ((6, 3, 5),),
         ints=(((3, 3), 4),), torch=lambda x, t: F.ctc_loss(torch.log_softmax(x, -1), t.long() + 1,
                                                         torch.tensor(T_LENGTHS), torch.tensor(S_LENGTHS))),
    Case("ctc_loss_none", lambda x, t: ctc_loss(tg.log_softmax(x, -1), t, T_LENGTHS, S_LENGTHS, 4, "none"),
         ((6, 3, 5),), ints=(((3, 3), 4),),
         torch=lambda x, t: F.ctc_loss(torch.log_softmax(x, -1), t.long(), torch.tensor(T_LENGTHS),
                                       torch.tensor(S_LENGTHS), 4, "none")),
]  # fmt: skip


def _positive(x: Any, eye: Any) -> Any:
    return x @ x.swapaxes(-1, -2) + eye


LINALG_CASES: list[Case] = [
    Case("cholesky", lambda x: linalg.cholesky(_positive(x, np.eye(3))), ((2, 3, 3),),
         torch=lambda x: torch.linalg.cholesky(_positive(x, torch.eye(3)))),
    Case("cholesky_blocks", lambda x: linalg.cholesky(_positive(x, 8 * np.eye(x.shape[-1]))), ((2, 35, 35),), tol=1e-4,
         torch=lambda x: torch.linalg.cholesky(_positive(x, 8 * torch.eye(x.shape[-1])))),
    *[
        Case(f"solve_triangular_{upper}_blocks", lambda x, b, u=upper: linalg.solve_triangular(
                 x + 8 * np.eye(x.shape[-1]), b, upper=u), ((35, 35), (2, 35, 2)), tol=1e-4,
             torch=lambda x, b, u=upper: torch.linalg.solve_triangular(
                 (x + 8 * torch.eye(35)).triu() if u else (x + 8 * torch.eye(35)).tril(), b, upper=u))
        for upper in (False, True)
    ],
    *[
        Case(f"solve_triangular_{upper}", lambda x, b, u=upper: linalg.solve_triangular(x + 2 * np.eye(3), b, upper=u),
             ((3, 3), (2, 3, 2)), tol=1e-4, torch=lambda x, b, u=upper: torch.linalg.solve_triangular(
                 (x + 2 * torch.eye(3)).triu() if u else (x + 2 * torch.eye(3)).tril(), b, upper=u))
        for upper in (False, True)
    ],
    Case("solve", lambda x, b: linalg.solve(x + np.eye(3)[::-1] * 3, b), ((2, 3, 3), (3, 2)), tol=1e-4,
         torch=lambda x, b: torch.linalg.solve(x + torch.eye(3).flip(0) * 3, b)),
    Case("solve_blocks", lambda x, b: linalg.solve(x + 9 * np.eye(x.shape[-1])[::-1], b), ((2, 35, 35), (35, 2)),
         tol=1e-4, torch=lambda x, b: torch.linalg.solve(x + 9 * torch.eye(35).flip(0), b)),
    Case("solve_vector", lambda x, b: linalg.solve(x + 3 * np.eye(3), b), ((3, 3), (3,)), tol=1e-4,
         torch=lambda x, b: torch.linalg.solve(x + 3 * torch.eye(3), b)),
    Case("det", lambda x: linalg.det(x + 2 * np.eye(3)[::-1]), ((2, 3, 3),), tol=1e-4,
         torch=lambda x: torch.linalg.det(x + 2 * torch.eye(3).flip(0))),
    Case("slogdet", lambda x: linalg.slogdet(x + 3 * np.eye(3)[::-1]).logabsdet, ((2, 3, 3),), tol=1e-4,
         torch=lambda x: torch.linalg.slogdet(x + 3 * torch.eye(3).flip(0)).logabsdet),
    Case("slogdet_blocks", lambda x: linalg.slogdet(x + 9 * np.eye(x.shape[-1])[::-1]).logabsdet, ((2, 35, 35),),
         tol=1e-4, torch=lambda x: torch.linalg.slogdet(x + 9 * torch.eye(35).flip(0)).logabsdet),
    Case("inv", lambda x: linalg.inv(x + 3 * np.eye(3)), ((2, 3, 3),), tol=1e-4,
         torch=lambda x: torch.linalg.inv(x + 3 * torch.eye(3))),
]  # fmt: skip

MORE_CASES: list[Case] = [*FUNCTION_CASES, *SORTING_CASES, *LOSS_CASES, *IMAGE_CASES, *TIME_CASES, *LINALG_CASES]
