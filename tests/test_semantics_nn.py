"""The semantics page, line by line: softmax, losses, normalisation, attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from oracle import call, check, classes, oracle, rand, typed
from tracegrad import ops
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.errors import DTypeError, InputError, RangeError, ShapeError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import toposort
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.walks import gradients

INF, NAN = np.inf, np.nan


# softmax
@pytest.mark.parametrize("axis", [-1, 0, 1, -3])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_along_any_axis(name, axis):
    check(lambda x: getattr(ops, name)(x, axis), lambda x: getattr(torch, name)(x, axis), rand(3, 4, 5))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_is_shifted_by_the_maximum(name):
    check(lambda x: getattr(ops, name)(x), lambda x: getattr(torch, name)(x, -1), np.array([[1e4, 1e4 - 1, -1e4]]))


def test_a_row_of_minus_infinity_is_nan_as_in_pytorch():
    x = np.array([[-INF, -INF], [0.0, -INF]])
    np.testing.assert_array_equal(call(ops.softmax, x)[0], [[NAN, NAN], [1, 0]])
    np.testing.assert_array_equal(call(ops.log_softmax, x)[0], [[NAN, NAN], [0, -INF]])
    np.testing.assert_array_equal(call(ops.softmax, x)[1][0][1], [0, 0])


def test_softmax_causal():
    def masked(x):
        return torch.softmax(x.masked_fill(torch.ones(5, 5).triu(1).bool(), -INF), -1)

    x = rand(2, 3, 5, 5, scale=5.0)
    check(ops.softmax_causal, masked, x)
    y, (g,) = call(ops.softmax_causal, x, ct=rand(2, 3, 5, 5))
    above = np.triu(np.ones((5, 5), bool), 1)
    assert (y[..., above] == 0).all()
    assert (g[..., above] == 0).all()
    assert (y[..., 0, 0] == 1).all()


@pytest.mark.parametrize("hidden", [NAN, INF, -INF, 1e30])
def test_softmax_causal_does_not_see_above_the_diagonal(hidden):
    x = rand(4, 4)
    poisoned = np.where(np.triu(np.ones((4, 4), bool), 1), hidden, x)
    (y, (g,)), (y2, (g2,)) = call(ops.softmax_causal, x), call(ops.softmax_causal, poisoned)
    np.testing.assert_array_equal(y, y2)
    np.testing.assert_array_equal(g, g2)


def test_where_causal():
    y, (g,) = call(lambda x: ops.where_causal(x, -7.0), np.ones((2, 3, 4)))
    np.testing.assert_array_equal(y, np.broadcast_to(np.where(np.tri(3, 4), 1, -7), (2, 3, 4)))
    np.testing.assert_array_equal(g, np.broadcast_to(np.tri(3, 4), (2, 3, 4)))
    assert call(lambda x: ops.where_causal(x, -INF), np.ones((2, 2)))[0][0, 1] == -INF
    np.testing.assert_array_equal(call(lambda x: ops.where_causal(x, 0), np.ones((2, 2), np.int32))[0], np.tri(2))


# losses
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignore", [None, -100, 2])
def test_cross_entropy(reduction, smoothing, ignore):
    t = classes(5, 4, 3)
    t[0, 0], t[1, 2] = (2, 2) if ignore is None else (ignore, ignore)
    check(
        lambda x, t: ops.cross_entropy(x, t, reduction, smoothing, ignore),
        lambda x, t: F.cross_entropy(
            x.permute(0, 2, 1), t, reduction=reduction, label_smoothing=smoothing,
            ignore_index=-1000 if ignore is None else ignore,
        ),
        rand(4, 3, 5), t,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore", [None, -100])
def test_nll_loss_of_log_softmax_is_cross_entropy(reduction, ignore):
    x, t = rand(6, 4), classes(4, 6)
    if ignore is not None:
        t[2] = ignore
    ct = rand(6) if reduction == "none" else 1.0
    a = call(lambda x, t: ops.cross_entropy(x, t, reduction, ignore_index=ignore), x, t, ct=ct)
    b = call(lambda x, t: ops.nll_loss(ops.log_softmax(x), t, reduction, ignore), x, t, ct=ct)
    np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
    np.testing.assert_allclose(a[1][0], b[1][0], rtol=1e-6, atol=1e-12)
    check(lambda x, t: ops.nll_loss(x, t, reduction, ignore), lambda x, t: F.nll_loss(x, t, reduction=reduction), x, t)


def test_an_ignored_position_costs_nothing_even_if_its_logits_are_nan():
    x, t = rand(3, 4), np.array([1, -1, 3], np.int32)
    x[1] = NAN
    y, (g,) = call(lambda x, t: ops.cross_entropy(x, t, "none", 0.1, -1), x, t)
    assert np.isfinite(y).all()
    assert y[1] == 0
    assert (g[1] == 0).all()
    assert np.isfinite(g).all()


def test_constant_targets_are_checked_at_once():
    """All but the ignored ones; a device would clamp them."""
    with ambient.tracing():
        x = leaf("input", "x", TensorType(f32, (3, 4)))
        for good, ignore in (([0, 1, 3], None), ([0, -100, 3], -100), ([0, 4, 3], 4)):
            ops.cross_entropy(x, np.array(good, np.int32), ignore_index=ignore)
        for bad, ignore in (([0, 1, 4], None), ([0, -1, 3], None), ([0, -100, 4], -100)):
            with pytest.raises(RangeError, match="0 to 3"):
                ops.cross_entropy(x, np.array(bad, np.int32), ignore_index=ignore)


def test_the_mean_of_only_ignored_positions_is_nan_as_in_pytorch():
    t = np.full(3, -100, np.int32)
    assert np.isnan(call(lambda x, t: ops.cross_entropy(x, t, ignore_index=-100), rand(3, 4), t)[0])


def test_cross_entropy_of_extreme_logits():
    x = np.array([[1e4, 0.0, -1e4], [0.0, -INF, 1.0], [-1e30, 1e30, 0.0]])
    t = np.array([2, 2, 1], np.int32)
    check(lambda x, t: ops.cross_entropy(x, t, "none"), lambda x, t: F.cross_entropy(x, t, reduction="none"), x, t)
    # torch cannot be asked for a NaN row with a gradient: it is the row of softmax
    y, _ = call(lambda x, t: ops.cross_entropy(x, t, "none"), np.full((1, 3), -INF), np.zeros(1, np.int32))
    assert np.isnan(y).all()


def test_cross_entropy_keeps_large_equal_logits_exact():
    x = np.full((1, 4), 1e6, np.float32) + np.array([0, 1, 2, 3], np.float32)
    y, _ = call(lambda x, t: ops.cross_entropy(x, t), x, np.zeros(1, np.int32))
    np.testing.assert_allclose(y, np.log(np.exp([0, 1, 2, 3]).sum()), rtol=1e-6)


def test_computed_targets_are_clamped():
    x = rand(2, 3)
    t = np.array([-5, 99], np.int32)
    y, _ = call(lambda x, t: ops.cross_entropy(x, t, "none"), x, t)
    np.testing.assert_allclose(y, call(lambda x, t: ops.cross_entropy(x, t, "none"), x, np.array([0, 2], np.int32))[0])


def test_cross_entropy_gradients_never_gather_or_store_a_one_hot():
    with ambient.tracing():
        x, t = leaf("input", "x", TensorType(f32, (8, 5))), leaf("input", "t", TensorType(i32, (8,)))
        loss = ops.cross_entropy(x, t)
        nodes = toposort([loss, *gradients(loss, [x])])
    assert not {"gather", "scatter_add", "cast"} & {n.prim.name for n in nodes}
    (row,) = [n for n in nodes if n.prim.name == "cross_entropy"]
    assert row.inputs == (x, t)  # the host finds the targets, and so their range, right here


def test_loss_errors():
    with ambient.tracing():
        x, t = leaf("input", "x", TensorType(f32, (4, 3))), leaf("input", "t", TensorType(i32, (4,)))
        col, vec = leaf("input", "c", TensorType(f32, (4, 1))), leaf("input", "v", TensorType(f32, (4,)))
        with pytest.raises(ShapeError, match=r"logits are f32\[4,3\], targets are i32\[4,3\](.|\n)*test_semantics_nn"):
            ops.cross_entropy(x, leaf("input", "t2", TensorType(i32, (4, 3))))
        with pytest.raises(DTypeError, match=r"cross_entropy: targets must be class numbers, i32, got f32\[4\]"):
            ops.cross_entropy(x, vec)
        with pytest.raises(InputError, match="reduction must be one of 'mean', 'sum', 'none', got 'avg'"):
            ops.cross_entropy(x, t, "avg")
        with pytest.raises(InputError, match="label_smoothing"):
            ops.cross_entropy(x, t, label_smoothing=1.5)
        with pytest.raises(ShapeError, match=r"mse_loss: shapes differ: f32\[4,1\] and f32\[4\]"):
            ops.mse_loss(col, vec)
        with pytest.raises(DTypeError, match="takes f32"):
            ops.binary_cross_entropy_with_logits(vec, t)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_and_bce(reduction):
    check(
        lambda x, t: ops.mse_loss(x, t, reduction),
        lambda x, t: F.mse_loss(x, t, reduction=reduction),
        rand(3, 4), rand(3, 4),
    )  # fmt: skip
    check(
        lambda x, t: ops.binary_cross_entropy_with_logits(x, t, reduction),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=reduction),
        rand(3, 4, scale=4), np.random.default_rng(0).uniform(size=(3, 4)),
    )  # fmt: skip


def test_bce_is_finite_for_large_logits_and_smooth_at_0():
    x = np.array([-1e4, -100.0, 0.0, 100.0, 1e4], np.float32)
    y, (g,) = call(lambda x: ops.binary_cross_entropy_with_logits(x, 1.0, "none"), x)
    np.testing.assert_allclose(y, [1e4, 100, np.log(2), 0, 0], rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(g, [-1, -1, -0.5, 0, 0], atol=1e-30)


# normalisation
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine):
    extra = (rand(6), rand(6)) if affine else ()
    check(
        lambda x, *gb: ops.layer_norm(x, *gb, eps=1e-3), lambda x, *gb: F.layer_norm(x, (6,), *gb, eps=1e-3),
        rand(2, 3, 6) * 4 + 2, *extra,
    )  # fmt: skip


@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm(affine):
    extra = (rand(6),) if affine else ()
    check(lambda x, *g: ops.rms_norm(x, *g), lambda x, *g: F.rms_norm(x, (6,), *g, eps=1e-6), rand(2, 3, 6), *extra)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 7), (2, 3, 4, 5)])
def test_batch_norm(shape):
    check(
        lambda x, g, b: ops.batch_norm(x, g, b),
        lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True),
        rand(*shape) + 3, rand(3), rand(3),
    )  # fmt: skip
    mean, var = rand(3), rand(3) ** 2 + 0.1
    check(
        lambda x, g, b: ops.batch_norm(x, g, b, mean=mean.tolist(), var=var.tolist()),
        lambda x, g, b: F.batch_norm(x, torch.tensor(mean), torch.tensor(var), g, b),
        rand(*shape), rand(3), rand(3),
    )  # fmt: skip


def test_norms_of_constant_rows_are_0_with_finite_gradients():
    for fn in (ops.layer_norm, lambda x: ops.batch_norm(x)):
        y, (g,) = call(fn, np.full((3, 4), 5.0, np.float32), ct=rand(3, 4))
        np.testing.assert_array_equal(y, 0)
        assert np.isfinite(g).all()


def test_layer_norm_variance_is_of_centred_values():
    x = np.array([[1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3]], np.float32)
    y, _ = call(ops.layer_norm, x)
    np.testing.assert_allclose(y, [np.array([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(1.25 + 1e-5)], rtol=1e-6)


def test_norm_errors():
    with ambient.tracing():
        x, g = leaf("input", "x", TensorType(f32, (2, 3, 6))), leaf("input", "g", TensorType(f32, (3,)))
        with pytest.raises(ShapeError, match=r"layer_norm: g must be \[6\] to fit x f32\[2,3,6\], got f32\[3\]"):
            ops.layer_norm(x, g)
        with pytest.raises(ShapeError, match=r"rms_norm: g must be \[6\]"):
            ops.rms_norm(x, g)
        ops.batch_norm(x, g)
        with pytest.raises(ShapeError, match="both mean and var"):
            ops.batch_norm(x, mean=g)
        with pytest.raises(ShapeError, match="softmax: axis 3 is out of range"):
            ops.softmax(x, 3)
        with pytest.raises(ShapeError, match=r"softmax_causal: the last two axes must be equal.*f32\[2,3,6\]"):
            ops.softmax_causal(x)
        with pytest.raises(DTypeError, match=r"softmax: takes f32, got i32\[2\]"):
            ops.softmax(leaf("input", "n", TensorType(i32, (2,))))


# attention
def test_heads_split_and_merge():
    x = rand(2, 5, 12)
    y, _ = call(lambda x: ops.split_heads(x, 3), x)
    np.testing.assert_array_equal(y, x.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(call(lambda x: ops.merge_heads(ops.split_heads(x, 3)), x)[0], x)
    with ambient.tracing(), pytest.raises(ShapeError, match="D divisible by 5 heads"):
        ops.split_heads(typed("x", x), 5)
    with ambient.tracing(), pytest.raises(ShapeError, match=r"x must be \(..., H, T, d\), got f32\[5,12\]"):
        ops.merge_heads(typed("x", x[0]))


def rotated(x, base=10000.0):
    """Rotate-half, spelled as the published code of Llama does."""
    t, d = x.shape[-2:]
    inverse = 1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.arange(t, dtype=torch.float64)[:, None] * inverse
    angles = torch.cat([angles, angles], -1)
    half = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return x * angles.cos() + half * angles.sin()


@pytest.mark.parametrize("base", [10000, 500.0])
def test_rope(base):
    for k in range(2):
        check(lambda q, p: ops.rope(q, p, base)[k], lambda q, p: (rotated(q, base) + 0 * p.sum(), rotated(p, base) + 0 * q.sum())[k], rand(2, 3, 7, 6), rand(2, 1, 5, 6))  # noqa: B023, E501  # fmt: skip


def test_rope_is_exact_at_far_positions_and_keeps_lengths():
    x = np.ones((4000, 8), np.float32)
    y, _ = call(lambda x: ops.rope(x, x)[0], x)
    np.testing.assert_allclose(y, rotated(torch.tensor(x, dtype=torch.float64)).numpy(), atol=3e-7)
    np.testing.assert_allclose((y.astype(np.float64) ** 2).sum(-1), 8.0, rtol=1e-6)
    np.testing.assert_array_equal(y[0], x[0])


def test_rope_needs_an_even_width():
    with (
        ambient.tracing(),
        pytest.raises(ShapeError, match=r"rope: takes \(..., T, D\) with an even D, got f32\[4,5\]"),
    ):
        ops.rope(leaf("input", "x", TensorType(f32, (4, 5))), leaf("input", "y", TensorType(f32, (4, 6))))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    tk = 6 if causal else 4
    check(
        lambda q, k, v: ops.attention(q, k, v, causal),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        rand(2, 3, 6, 8), rand(2, 3, tk, 8), rand(2, 3, tk, 5),
    )  # fmt: skip


def test_causal_attention_does_not_see_the_future():
    q, k, v = rand(1, 4, 3), rand(1, 4, 3), rand(1, 4, 3)
    before, _ = call(lambda *x: ops.attention(*x, causal=True), q, k, v)
    k[:, 2:], v[:, 2:] = 9.0, -9.0
    np.testing.assert_array_equal(call(lambda *x: ops.attention(*x, causal=True), q, k, v)[0][:, :2], before[:, :2])


def test_attention_errors():
    with ambient.tracing():
        q, k = (leaf("input", n, TensorType(f32, (2, t, 8))) for n, t in (("q", 4), ("k", 6)))
        with pytest.raises(ShapeError, match=r"as many queries as keys: q is f32\[2,4,8\], k is f32\[2,6,8\]"):
            ops.attention(q, k, k, causal=True)
        with pytest.raises(ShapeError, match=r"k \(..., Tk, D\) and v \(..., Tk, Dv\)"):
            ops.attention(q, k, q)
        with pytest.raises(ShapeError, match=r"q must be \(..., Tq, D\)"):
            ops.attention(
                leaf("input", "one", TensorType(f32, (8,))), *[leaf("input", "x", TensorType(f32, (4, 8)))] * 2
            )
        with pytest.raises(ShapeError, match="leading axes"):
            ops.attention(q, leaf("input", "b", TensorType(f32, (3, 4, 8))), q)


def test_probabilities_are_targets_and_one_may_be_zero_where_a_logit_is_masked():
    x, q = np.array([[-np.inf, 1, 2], [0, 1, 2]], np.float32), np.array([[0, 0.5, 0.5], [1, 0, 0]], np.float32)
    np.testing.assert_allclose(ops.cross_entropy(x, q, "none").numpy(), [0.8132617, 2.407606], rtol=1e-6)
    classes = ops.cross_entropy(x[1:], np.array([0]), label_smoothing=0.1)
    assert ops.cross_entropy(x[1:], q[1:], label_smoothing=0.1).item() == pytest.approx(classes.item(), rel=1e-6)
    with pytest.raises(InputError, match="targets of class numbers; these are probabilities: leave it out"):
        ops.cross_entropy(x, q, ignore_index=0)


@pytest.mark.parametrize("weight", [[1.0, 2.0], 2.0, [[1.0, 2.0, 3.0]], np.array([1, 2, 3])])
def test_a_weight_is_one_number_for_each_class(weight):
    with pytest.raises((ShapeError, DTypeError), match=r"weight must be f32\[3\]|takes f32"):
        ops.cross_entropy(np.zeros((2, 3), np.float32), np.array([0, 1]), weight=weight)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, np.array([0.5, 2.0, 1.0])])
def test_a_cross_entropy_without_targets_has_pytorchs_gradient_of_zero(weight, reduction, smoothing):
    x, none = rand(4, 3), np.full(4, -100)
    how = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": -100}
    their_weight = None if weight is None else torch.tensor(weight)
    y, (g,) = call(lambda x, t: ops.cross_entropy(x, t, weight=weight, **how), x, none.astype(np.int32))
    ty, (theirs,) = oracle(lambda x, t: F.cross_entropy(x, t, weight=their_weight, **how), x, none)
    np.testing.assert_array_equal(y, ty)
    np.testing.assert_array_equal(g, theirs)
