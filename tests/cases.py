"""The table of ops. Every row is checked in the same ways by test_ops.py and by the tests of the runtimes.

A row says what is called, on which types and in which range; the checks come from the table, not from the row.
"""

from __future__ import annotations

import math

import numpy as np

from tracegrad import ops as tg
from tracegrad.dtypes import f32, i32
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.prims import folds, views
from tracegrad.prims.elementwise import COPY
from tracegrad.testing import Case

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # the rows still need names to refer to; test_ops.py skips the oracle
    torch = F = None


def _unary() -> list[Case]:
    """Functions of one tensor whose name PyTorch shares."""
    everywhere = "neg abs sign exp expm1 sin cos tanh square sigmoid relu silu elu softplus leaky_relu floor ceil round"
    everywhere += " log_sigmoid"
    positive = "sqrt rsqrt log reciprocal"
    flat = ("sign", "floor", "ceil", "round")
    spelled = {n: getattr(F, n, None) for n in ("relu", "silu", "elu", "softplus", "leaky_relu")}
    spelled["log_sigmoid"] = getattr(F, "logsigmoid", None)
    rows = [
        Case(n, getattr(tg, n), ((3, 4),), grad=n not in flat, torch=spelled.get(n) or getattr(torch, n, None))
        for n in everywhere.split()
    ]
    rows += [
        Case(n, getattr(tg, n), ((3, 4),), low=0.3, high=3.0, torch=getattr(torch, n, None)) for n in positive.split()
    ]
    return rows


def _binary() -> list[Case]:
    smooth = ["add", "sub", "mul", "minimum", "maximum"]
    compare = {
        "less": "lt",
        "less_equal": "le",
        "greater": "gt",
        "greater_equal": "ge",
        "equal": "eq",
        "not_equal": "ne",
    }
    rows = [Case(n, getattr(tg, n), ((3, 4), (4,)), torch=getattr(torch, n, None)) for n in smooth]
    rows += [
        Case(n, getattr(tg, n), ((3, 1), (2, 1, 4)), torch=getattr(torch, t, None), grad=False)
        for n, t in compare.items()
    ]
    rows += [
        Case(n, getattr(tg, n), bools=((3, 4), (4,)), torch=getattr(torch, n, None), grad=False)
        for n in ("logical_and", "logical_or")
    ]
    return rows


def _reductions() -> list[Case]:
    rows: list[Case] = []
    folds_of_torch = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "logsumexp": "logsumexp"}
    for axis in (None, 0, -1, (0, 2)):
        for keepdims in (False, True):
            kw = {"axis": axis, "keepdims": keepdims}
            dims = tuple(range(3)) if axis is None else axis
            at = f"{axis}".replace(" ", "") + ("_keepdims" if keepdims else "")
            for name, other in folds_of_torch.items():
                ours, theirs = getattr(tg, name), getattr(torch, other, None)
                rows.append(
                    Case(
                        f"{name}_{at}",
                        lambda x, f=ours, kw=kw: f(x, **kw),
                        ((2, 3, 4),),
                        torch=lambda x, f=theirs, d=dims, k=keepdims: f(x, d, keepdim=k),
                    )
                )
            rows.append(
                Case(
                    f"var_{at}",
                    lambda x, kw=kw: tg.var(x, **kw, ddof=1),
                    ((2, 3, 4),),
                    torch=lambda x, d=dims, k=keepdims: torch.var(x, d, correction=1, keepdim=k),
                )
            )
            rows.append(Case(f"prod_{at}", lambda x, kw=kw: tg.prod(x, **kw), ((2, 3, 4),), low=0.5))
    return rows


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return tg.einsum("bqk,bkd->bqd", tg.einsum("bqd,bkd->bqk", q, k), v)


CORE_CASES: list[Case] = [
    *_unary(),
    *_binary(),
    *_reductions(),
    # arithmetic with more to it
    Case("div", lambda a, b: a / b, ((3, 4), (4,)), low=0.5, torch=lambda a, b: a / b),
    Case("scalar_left", lambda x: 2 - 3 / x, ((3, 4),), low=0.5, torch=lambda x: 2 - 3 / x),
    Case("scalar_right", lambda x: (x * 2 - 1) / 3, ((3, 4),), torch=lambda x: (x * 2 - 1) / 3),
    Case("log1p", tg.log1p, ((3, 4),), low=-0.7, torch=getattr(torch, "log1p", None)),
    # the fit differs from the true erf by 2e-7, its derivative by some 1e-6
    Case("erf", tg.erf, ((3, 4),), tol=1e-4, close=1e-5, torch=getattr(torch, "erf", None)),
    Case("gelu", tg.gelu, ((3, 4),), tol=1e-4, close=1e-5, torch=getattr(F, "gelu", None)),
    Case("gelu_tanh", lambda x: tg.gelu(x, "tanh"), ((3, 4),), torch=lambda x: F.gelu(x, approximate="tanh")),
    Case("pow", tg.pow, ((3, 4), (4,)), low=0.3, torch=getattr(torch, "pow", None)),
    Case("pow_2", lambda x: x**2, ((3, 4),), torch=lambda x: x**2),
    Case("pow_3", lambda x: x**3, ((3, 4),), torch=lambda x: x**3),
    Case("pow_5", lambda x: x**5, ((3, 4),), torch=lambda x: x**5),
    Case("pow_fraction", lambda x: x**1.7, ((3, 4),), low=0.2, torch=lambda x: x**1.7),
    Case("pow_of_number", lambda x: 2**x, ((3, 4),), torch=lambda x: 2**x),
    Case("clip", lambda x: tg.clip(x, -0.5, 1.0), ((3, 4),), torch=lambda x: torch.clip(x, -0.5, 1.0)),
    Case("clip_below", lambda x: tg.clip(x, lo=0.1), ((3, 4),), torch=lambda x: torch.clip(x, min=0.1)),
    Case("clip_tensors", tg.clip, ((3, 4), (3, 1), (4,)), torch=getattr(torch, "clip", None)),
    Case("clip_crossed", lambda x, lo, hi: tg.clip(x, lo + 4, hi), ((3, 4), (3, 1), (4,)),
         torch=lambda x, lo, hi: torch.clip(x, lo + 4, hi)),
    Case(
        "where",
        lambda a, b, c: tg.where(c, a, b),
        ((3, 4), (4,)),
        bools=((3, 1),),
        torch=lambda a, b, c: torch.where(c, a, b),
    ),
    Case("logical_not", tg.logical_not, bools=((3, 4),), torch=getattr(torch, "logical_not", None), grad=False),
    Case("hardtanh", lambda x: tg.hardtanh(x, -0.5, 1.0), ((3, 4),), torch=lambda x: F.hardtanh(x, -0.5, 1.0)),
    Case("tanhshrink", tg.tanhshrink, ((3, 4),), torch=getattr(F, "tanhshrink", None)),
    Case("variance", lambda x: tg.variance(x, 1), ((3, 4),), torch=lambda x: torch.var(x, 1)),
    Case("elu_alpha", lambda x: tg.elu(x, 0.5), ((3, 4),), torch=lambda x: F.elu(x, 0.5)),
    Case("leaky_relu_negative", lambda x: tg.leaky_relu(x, -0.5), ((3, 4),), torch=lambda x: F.leaky_relu(x, -0.5)),
    Case("stop_gradient", lambda x: x * tg.stop_gradient(x), ((3, 4),), torch=lambda x: x * x.detach(), tol=math.inf),
    # i32
    Case("i32_arithmetic", lambda a, b: (a + b) * a - b * 2, ints=(((3, 4), 9), ((4,), 9)), grad=False,
         torch=lambda a, b: (a + b) * a - b * 2),
    Case("i32_power", lambda a: a**5, ints=(((3, 4), 9),), grad=False, torch=lambda a: a**5),
    Case("i32_sum", lambda a: a.sum(0), ints=(((3, 4), 9),), grad=False),
    Case("i32_max", lambda a: a.max(0), ints=(((3, 4), 9),), grad=False, torch=lambda a: torch.amax(a, 0)),
    Case("cast_to_float", lambda a: tg.cast(a, f32) / 2, ints=(((3, 4), 9),), grad=False, torch=lambda a: a / 2),
    Case("cast_to_int", lambda x: tg.cast(x, i32), ((3, 4),), grad=False, torch=lambda x: x.int()),
    # reductions with more to it
    Case("sum_of_bools", lambda b: tg.sum(b, 0), bools=((5, 4),), grad=False),
    Case("mean_of_bools", lambda b: tg.mean(b, 0), bools=((5, 4),), grad=False, torch=lambda b: b.double().mean(0)),
    Case("any", lambda b: tg.any(b, -1), bools=((5, 2),), grad=False, torch=lambda b: torch.any(b, -1)),
    Case("all", lambda b: tg.all(b, -1), bools=((5, 2),), grad=False, torch=lambda b: torch.all(b, -1)),
    Case("any_of_ints", lambda a: tg.any(a, 0), ints=(((2, 6), 2),), grad=False, torch=lambda a: torch.any(a != 0, 0)),
    Case("all_of_ints", lambda a: tg.all(a, 0), ints=(((2, 6), 3),), grad=False, torch=lambda a: torch.all(a != 0, 0)),
    Case("argmax", lambda x: tg.argmax(x), ((3, 4),), grad=False, torch=lambda x: torch.argmax(x)),
    Case("argmax_0", lambda x: tg.argmax(x, 0), ((3, 4),), grad=False, torch=lambda x: torch.argmax(x, 0)),
    Case("argmax_tuple", lambda x: tg.argmax(x, (0, 2)), ((3, 4, 2),), grad=False,
         torch=lambda x: torch.argmax(x.permute(1, 0, 2).reshape(4, 6), 1)),
    Case("argmin_keepdims", lambda x: tg.argmin(x, -1, keepdims=True), ((3, 4),), grad=False,
         torch=lambda x: torch.argmin(x, -1, keepdim=True)),
    Case("argmax_i32", lambda a: tg.argmax(a, 1), ints=(((3, 40), 4),), grad=False),
    Case("cumsum", lambda x: tg.cumsum(x, 0), ((5, 3),), torch=lambda x: torch.cumsum(x, 0)),
    Case("cumsum_flat", tg.cumsum, ((5, 3),), torch=lambda x: torch.cumsum(x.flatten(), 0)),
    Case("cumsum_long", lambda x: tg.cumsum(x, -1), ((2, 1100),), torch=lambda x: torch.cumsum(x, -1), close=1e-5),
    Case("cumsum_i32", lambda a: tg.cumsum(a, 1), ints=(((2, 70), 9),), grad=False),
    # shapes
    Case("reshape", lambda x: x.reshape(4, -1), ((2, 3, 4),), torch=lambda x: x.reshape(4, -1)),
    Case("flatten", lambda x: tg.flatten(x), ((2, 3, 4),), torch=lambda x: x.flatten(1)),
    Case("permute", lambda x: x.permute(2, 0, -2), ((2, 3, 4),), torch=lambda x: x.permute(2, 0, 1)),
    Case("transpose", lambda x: tg.transpose(x), ((2, 3, 4),), torch=lambda x: x.permute(2, 1, 0)),
    Case("swapaxes", lambda x: x.swapaxes(0, -1), ((2, 3, 4),), torch=lambda x: x.swapaxes(0, -1)),
    Case("broadcast_to", lambda x: x.broadcast_to((2, 3, 4)), ((3, 1),), torch=lambda x: x.broadcast_to((2, 3, 4))),
    Case("expand_dims", lambda x: tg.expand_dims(x, (0, -1)), ((2, 3),), torch=lambda x: x[None, ..., None]),
    Case("squeeze", lambda x: tg.squeeze(x, 1), ((2, 1, 3, 1),), torch=lambda x: x.squeeze(1)),
    Case("squeeze_all", lambda x: tg.squeeze(x), ((2, 1, 3, 1),), torch=lambda x: x.squeeze()),
    Case("narrow", lambda x: tg.narrow(x, 1, -3, 2), ((2, 5),), torch=lambda x: x[:, 2:4]),
    Case("concat", lambda a, b, c: tg.concat([a, b, c], 1), ((2, 3), (2, 1), (2, 4)),
         torch=lambda a, b, c: torch.cat([a, b, c], 1)),
    Case("concat_many", lambda x: tg.concat([x * float(k) for k in range(7)], -1), ((2, 3),),
         torch=lambda x: torch.cat([x * float(k) for k in range(7)], -1)),
    Case("concat_bools", lambda a, b: tg.concat([a, b]), bools=((2, 3), (1, 3)), grad=False,
         torch=lambda a, b: torch.cat([a, b])),
    Case("stack", lambda a, b: tg.stack([a, b], -1), ((2, 3), (2, 3)), torch=lambda a, b: torch.stack([a, b], -1)),
    Case("split", lambda x: tg.split(x, (1, 3), 1)[1], ((2, 4),), torch=lambda x: torch.split(x, (1, 3), 1)[1]),
    Case("split_equal", lambda x: tg.split(x, 2, -1)[1], ((2, 4),), torch=lambda x: torch.tensor_split(x, 2, -1)[1]),
    Case("pad", lambda x: tg.pad(x, ((1, 0), (2, 3))), ((2, 4),), torch=lambda x: F.pad(x, (2, 3, 1, 0))),
    Case("pad_value", lambda x: tg.pad(x, 1, 3.5), ((2, 4),), torch=lambda x: F.pad(x, (1, 1, 1, 1), value=3.5)),
    Case("flip", lambda x: tg.flip(x, (0, 2)), ((2, 3, 4),), torch=lambda x: torch.flip(x, (0, 2))),
    Case("repeat", lambda x: tg.repeat(x, 3, 1), ((2, 3),), torch=lambda x: torch.repeat_interleave(x, 3, 1)),
    # indexing
    Case("index_int", lambda x: x[-1, :, 2], ((3, 4, 5),), torch=lambda x: x[-1, :, 2]),
    Case("index_slices", lambda x: x[:, 1:, None, ::2], ((3, 4, 5),), torch=lambda x: x[:, 1:, None, ::2]),
    Case("index_negative_step", lambda x: x[::-1, ..., 3:0:-2], ((3, 4, 5),),
         torch=lambda x: x.flip(0)[..., [3, 1]]),
    Case("index_array", lambda x, i: x[:, i], ((3, 4, 5),), ints=(((2, 3), 4),), torch=lambda x, i: x[:, i.long()]),
    Case("one_hot", lambda i: tg.one_hot(i, 5), ints=(((2, 3), 5),), grad=False,
         torch=lambda i: F.one_hot(i.long(), 5).double()),
    Case("arange", lambda x: x * tg.arange(4, f32), ((3, 4),), torch=lambda x: x * torch.arange(4)),
    Case("embedding", tg.embedding, ((6, 4),), ints=(((2, 5), 6),), torch=lambda w, i: F.embedding(i.long(), w)),
    Case("take", lambda x, i: tg.take(x, i, 1), ((3, 4, 2),), ints=(((5,), 4),), torch=lambda x, i: x[:, i.long()]),
    Case("take_flat", tg.take, ((3, 4),), ints=(((5,), 12),), torch=lambda x, i: torch.take(x, i.long())),
    Case("index_by_arrays", lambda x, i, j: x[i, j], ((3, 4, 2),), ints=(((2, 5), 3), ((5,), 4)),
         torch=lambda x, i, j: x[i.long(), j.long()]),
    Case("index_by_arrays_apart", lambda x, i, j: x[i, :, j], ((3, 4, 2),), ints=(((5,), 3), ((5,), 2)),
         torch=lambda x, i, j: x[i.long(), :, j.long()]),
    Case("take_along_axis", lambda x, i: tg.take_along_axis(x, i, 1), ((3, 4),), ints=(((3, 2), 4),),
         torch=lambda x, i: torch.take_along_dim(x, i.long(), 1)),
    Case("take_along_axis_broadcast", lambda x, i: tg.take_along_axis(x, i, -1), ((3, 4, 5),), ints=(((3, 1, 2), 5),),
         torch=lambda x, i: torch.take_along_dim(x, i.long(), -1)),
    Case("take_along_axis_one_row", lambda x, i: tg.take_along_axis(x, i, 1), ((1, 4),), ints=(((3, 2), 4),),
         torch=lambda x, i: torch.take_along_dim(x, i.long(), 1)),
    Case("scatter_add", lambda x, u, i: tg.scatter_add(x, i, u, 1), ((3, 4), (3, 6)), ints=(((3, 6), 4),),
         torch=lambda x, u, i: x.scatter_add(1, i.long(), u)),
    Case("scatter_add_rows", lambda x, u, i: tg.scatter_add(x, i, u), ((4, 3), (6, 3)), ints=(((6,), 4),),
         torch=lambda x, u, i: x.index_add(0, i.long(), u)),
    # linear algebra
    *[
        Case(f"matmul_{a}_{b}".replace(" ", ""), tg.matmul, (a, b), torch=getattr(torch, "matmul", None))
        for a, b in (
            ((3, 4), (4, 5)),
            ((4,), (4,)),
            ((3, 4), (4,)),
            ((4,), (4, 5)),
            ((4,), (2, 4, 5)),
            ((2, 3, 4), (4,)),
            ((2, 3, 4), (4, 5)),
            ((2, 1, 3, 4), (6, 4, 5)),
            ((3, 4), (2, 4, 5)),
            ((2, 3, 4), (1, 4, 5)),
            ((3, 4), (1, 1, 4, 5)),
        )
    ],
    Case("outer", tg.outer, ((3,), (4,)), torch=getattr(torch, "outer", None)),
    *[
        Case(f"einsum_{spec}", lambda *xs, s=spec: tg.einsum(s, *xs), shapes,
             torch=lambda *xs, s=spec: torch.einsum(s, *xs))
        for spec, shapes in (
            ("ij->ji", ((2, 3),)),
            ("ij->", ((2, 3),)),
            ("ii->i", ((3, 3),)),
            ("ii", ((3, 3),)),
            ("ij,jk", ((2, 3), (3, 4))),
            ("bqd,bkd->bqk", ((2, 3, 4), (2, 5, 4))),
            ("bhqd,bhkd->bhqk", ((2, 2, 3, 4), (2, 2, 5, 4))),
            ("i,j->ji", ((2,), (3,))),
            ("ij,ij->i", ((2, 3), (2, 3))),
            ("ij,ij->ij", ((1, 3), (2, 3))),
            ("...ij,...jk->...ik", ((2, 3, 4), (4, 5))),
            ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))),
            ("ijk,il,jm->lmk", ((2, 3, 4), (2, 5), (3, 2))),
        )
    ],
    Case("einsum_attention", _attend, ((2, 3, 4), (2, 5, 4), (2, 5, 3)),
         torch=lambda q, k, v: q @ k.swapaxes(1, 2) @ v),
    # rows that other groups build on, directly
    Case("window", lambda x: views.window(x, 1, 3, stride=2, dilation=2), ((2, 9, 2),),
         torch=lambda x: torch.stack([x[:, k : k + 5 : 2][:, :3] for k in (0, 2, 4)], -1)),
    Case("unwindow", lambda x: views.unwindow(x, 1, 9, stride=2, dilation=2), ((2, 3, 2, 3),)),
    Case("pack", lambda a, b, c: folds.pack([a, b, c]), ((2, 3), (), (4,)),
         torch=lambda a, b, c: torch.cat([a.flatten(), b.flatten(), c])),
    Case("place", lambda x: views.place(x, 1, 5, 7, -2), ((2, 3),)),
    Case("copy", lambda x: bind(COPY, x) * 2.0, ((2, 3),), torch=lambda x: x * 2),
    Case("sum_of_one", lambda x: x.sum(1).sum(0), ((1, 1, 3),), torch=lambda x: x.flatten()),
    # constants
    Case("tril", lambda x: tg.tril(x, 1), ((2, 3, 4),), torch=lambda x: torch.tril(x, 1)),
    Case("eye", lambda x: x @ tg.eye(4, 3), ((2, 4),), torch=lambda x: x[:, :3]),
    Case("linspace", lambda x: x + tg.linspace(0.0, 1.0, 4), ((2, 4),), close=1e-6,
         torch=lambda x: x + torch.linspace(0, 1, 4, dtype=x.dtype)),
    Case("asarray", lambda x: x * np.arange(8.0).reshape(2, 4), ((2, 4),),
         torch=lambda x: x * torch.arange(8.0).reshape(2, 4)),
    Case("zeros_ones_full", lambda x: tg.zeros(4) + tg.ones((2, 1)) * tg.full((), 2.5) * x, ((2, 4),),
         torch=lambda x: 2.5 * x),
]  # fmt: skip
