"""Random ops: exact bits against a plain-Python reference, streams, distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tracegrad import ops
from tracegrad.dtypes import TensorType, bool_, f32, i32
from tracegrad.errors import DTypeError, InputError, ShapeError
from tracegrad.ir import ambient
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import toposort
from tracegrad.ops import random as random_ops
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.walks import gradients

MASK = 0xFFFFFFFF


# The specification of the stream, in plain Python
def pcg(v: int) -> int:
    state = (v * 747796405 + 2891336453) & MASK
    word = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & MASK
    return (word >> 22) ^ word


def bits(seed: int, step: int, salt: int, i: int) -> int:
    key = pcg((pcg((pcg(seed) + step) & MASK) + salt) & MASK)
    return pcg(pcg(i) ^ key)


def unit(seed: int, step: int, salt: int, i: int) -> float:
    return (bits(seed, step, salt, i) >> 8) * 2.0**-24


def draw(fn: Any, seed: int = 7, step: int = 3, **env: Any) -> np.ndarray:
    """The value of `fn()` traced alone, its leaves taken from `env`."""
    with ambient.tracing(), np.errstate(over="raise"):
        out = fn()
        (value,) = evaluate([out], {"seed": np.uint32(seed), "step": np.uint32(step), **env}, np)
    assert value.dtype == out.dtype.numpy
    assert value.shape == out.shape
    return value


@pytest.mark.parametrize("seed", [0, 1, 12345, MASK])
@pytest.mark.parametrize("step", [1, 2, MASK])
def test_bits_are_those_of_the_reference(seed, step):
    got = draw(lambda: random_ops._bits((5, 7), random_ops._key("test")), seed, step)
    expected = [bits(seed, step, 1, i) for i in range(35)]
    np.testing.assert_array_equal(got.ravel(), np.array(expected, np.uint32))


def test_known_values_of_the_hash():
    # pinned, so that reference and library cannot drift together
    assert [pcg(i) for i in range(4)] == [129708002, 2831084092, 2055130248, 2131687100]


def test_uniform_is_24_bits():
    got = draw(lambda: ops.uniform((4, 3)))
    np.testing.assert_array_equal(got.ravel(), np.array([unit(7, 3, 1, i) for i in range(12)], np.float32))


def test_uniform_covers_the_half_open_interval():
    u = draw(lambda: ops.uniform(100_000))
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert abs(u.mean() - 0.5) < 4e-3
    assert abs(u.var() - 1 / 12) < 2e-3
    counts = np.histogram(u, 64, (0, 1))[0]
    assert ((counts - 100_000 / 64) ** 2 / (100_000 / 64)).sum() < 110  # chi-squared, 63 degrees, p = 0.0002


def test_randn_is_box_muller():
    got = draw(lambda: ops.randn((3, 5)))
    expected = [
        math.sqrt(-2 * math.log(1 - unit(7, 3, 1, 2 * i))) * math.cos(2 * math.pi * unit(7, 3, 1, 2 * i + 1))
        for i in range(15)
    ]
    np.testing.assert_allclose(got.ravel(), expected, rtol=1e-5, atol=1e-6)


def test_randn_is_standard_normal():
    z = draw(lambda: ops.randn(100_000))
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 0.013
    assert abs(z.var() - 1) < 0.018
    assert abs((z**3).mean()) < 0.04
    assert abs((z**4).mean() - 3) < 0.15


def test_rank_0_and_empty_shapes():
    assert draw(lambda: ops.uniform(())) == np.float32(unit(7, 3, 1, 0))
    assert draw(lambda: ops.uniform((2, 0))).shape == (2, 0)


def test_streams_differ_by_seed_step_and_site_and_repeat_otherwise():
    def two():
        return ops.stack([ops.uniform(50), ops.uniform(50)])

    a = draw(two)
    np.testing.assert_array_equal(a, draw(two))
    assert (a[0] != a[1]).any()
    for other in (draw(two, seed=8), draw(two, step=4)):
        assert (a != other).any()
        # the original's defect: the numbers of one step were a permutation of the last step's
        assert len(np.intersect1d(a, other)) < 5


def test_one_site_does_not_disturb_the_next():
    x = np.ones(100, np.float32)

    def after(p):
        t = leaf("input", "x", TensorType(f32, (100,)))
        ops.dropout(t, p)
        return ops.uniform(10)

    np.testing.assert_array_equal(draw(lambda: after(0.0), x=x), draw(lambda: after(0.5), x=x))


def test_bernoulli():
    got = draw(lambda: ops.bernoulli((4, 4), 0.3))
    expected = [unit(7, 3, 1, i) < np.float32(0.3) for i in range(16)]
    np.testing.assert_array_equal(got.ravel(), expected)
    assert got.dtype == bool
    assert not draw(lambda: ops.bernoulli(1000, 0.0)).any()
    assert draw(lambda: ops.bernoulli(1000, 1)).all()
    assert abs(draw(lambda: ops.bernoulli(20_000, 0.3, dtype=f32)).mean() - 0.3) < 0.015


def test_bernoulli_of_a_probability_for_each_element():
    p = np.array([0.0, 0.3, 1.0], np.float32)
    got = draw(lambda: ops.bernoulli((5000, 3), p))
    assert got[:, 2].all() and not got[:, 0].any() and abs(got[:, 1].mean() - 0.3) < 0.03
    same = draw(lambda: ops.bernoulli((5000, 3), np.float32(0.3)))
    assert (got[:, 1] == same[:, 1]).all()  # the same numbers, whatever the kind of p
    for wrong in (np.ones(4, np.float32), np.ones(3, np.int32), "half"):
        with pytest.raises((ShapeError, DTypeError)):
            draw(lambda wrong=wrong: ops.bernoulli((5000, 3), wrong))


def test_categorical_is_gumbel_max():
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    x = np.broadcast_to(logits, (20_000, 4))
    got = draw(lambda: ops.categorical(leaf("input", "x", TensorType(f32, x.shape))), x=x)
    assert got.dtype == np.int32
    np.testing.assert_allclose(np.bincount(got, minlength=4) / len(got), [0.1, 0.2, 0.3, 0.4], atol=0.012)

    def gumbel(i):
        return -math.log(-math.log1p(-((bits(7, 3, 1, i) >> 9) + 0.5) * 2.0**-23))

    expected = [int(np.argmax([logits[c] + gumbel(4 * r + c) for c in range(4)])) for r in range(200)]
    np.testing.assert_array_equal(got[:200], expected)


def test_categorical_axis_and_impossible_classes():
    x = np.zeros((3, 500), np.float32)
    x[1] = -np.inf
    got = draw(lambda: ops.categorical(leaf("input", "x", TensorType(f32, x.shape)), axis=0), x=x)
    assert got.shape == (500,)
    assert set(got) == {0, 2}


@pytest.mark.parametrize("k", [0, 1, 2**22, 2**23 - 1])
def test_the_open_interval_holds_for_every_hash_value(k):
    got = draw(
        lambda: random_ops._open(leaf("input", "b", TensorType(random_ops.u32, ()))), b=np.uint32(k << 9 | 0x1FF)
    )
    assert got == (k + 0.5) * 2.0**-23
    assert np.isfinite(-np.log(-np.log1p(-got)))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_zeroes_and_scales(p):
    x = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
    got = draw(lambda: ops.dropout(leaf("input", "x", TensorType(f32, x.shape)), p), x=x)
    keep = np.array([unit(7, 3, 1, i) >= np.float32(p) for i in range(24)]).reshape(4, 6)
    np.testing.assert_array_equal(got, np.where(keep, x * np.float32(1 / (1 - p)), 0))


def test_dropout_backward_recomputes_the_same_mask():
    x, ct = np.ones((8, 9), np.float32), np.random.default_rng(0).standard_normal((8, 9)).astype(np.float32)
    with ambient.tracing():
        t = leaf("input", "x", TensorType(f32, x.shape))
        y = ops.dropout(t, 0.4)
        (g,) = gradients((y * ct).sum(), [t])
        env = {"seed": np.uint32(1), "step": np.uint32(2), "x": x}
        value, grad = evaluate([y, g], env, np)
    np.testing.assert_allclose(grad, ct * value, rtol=1e-6)
    assert 0 < (value == 0).mean() < 1


def test_dropout_limits():
    x = np.array([1.0, np.inf, -2.0], np.float32)

    def of(p, **kw):
        return lambda: ops.dropout(leaf("input", "x", TensorType(f32, (3,))), p, **kw)

    np.testing.assert_array_equal(draw(of(0), x=x), x)
    np.testing.assert_array_equal(draw(of(0.5, training=False), x=x), x)
    np.testing.assert_array_equal(draw(of(1.0), x=x), [0, 0, 0])


def test_seed_and_step_are_one_leaf_each():
    with ambient.tracing() as running:
        y = ops.dropout(ops.randn((3,)), 0.5) + ops.uniform((3,))
        names = [t.name for t in toposort([y]) if t.prim.name == "leaf"]
    assert sorted(names) == ["seed", "step"]
    assert set(running.counters) == {"seed", "step"}


def test_errors():
    with ambient.tracing():
        x = leaf("input", "x", TensorType(f32, (3,)))
        n = leaf("input", "n", TensorType(i32, (3,)))
        for p in (-0.1, 1.5, math.nan, x):
            with pytest.raises(InputError, match=r"dropout: p must be a Python number in \[0, 1\]"):
                ops.dropout(x, p)
        with pytest.raises(DTypeError, match=r"dropout: takes f32, got i32\[3\]"):
            ops.dropout(n, 0.5)
        with pytest.raises(InputError, match="bernoulli: p"):
            ops.bernoulli((3,), 2)
        with pytest.raises(ShapeError, match="uniform: a size must not be negative"):
            ops.uniform((2, -1))
        with pytest.raises(ShapeError, match="categorical: axis 1 is out of range"):
            ops.categorical(x, axis=1)
        assert ops.bernoulli((2,)).dtype is bool_
    assert ops.randn((2,)).tolist() != ops.randn((2,)).tolist()
