"""What the case table cannot show of the ops that joined it: ties, NaN, edges, ranges, streams, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tracegrad as tg
from tracegrad import nn, tuning
from tracegrad.errors import CallError

NAN, INF = float("nan"), float("inf")


class Nothing(tg.Module):
    """One number, because a program has parameters."""

    def __init__(self) -> None:
        self.one = self.param((), init=tg.init.ones())


@pytest.mark.parametrize(
    "axis, n", [*((-1, n) for n in (2, 64, 127, 128, 129, 300, 600, 1025, 4500)), (0, 256), (0, 700)]
)
def test_sorting_is_stable_and_puts_nan_last_as_in_pytorch(device_name: str, axis: int, n: int) -> None:
    """Of computed values, which a kernel must not compute twice.

    A direction changes only the keys. Of long rows, whose networks take seconds to compile, each front is taken in one:
    the one in which the other long rows do not take it.
    """
    rng = np.random.default_rng(n)
    x = rng.integers(0, max(n // 3, 2), (3 if axis else 14, n)).astype(np.float32)
    x[0, ::3], x[1, ::4], x[2, ::5], x[-1, ::2] = NAN, INF, -INF, -0.0
    x = x if axis else np.ascontiguousarray(x.T)
    fronts = [(k, down) for k in (min(n, 3), n // 5, n // 2) for down in (False, True)]
    if n > 600:
        fronts = [fronts[j] for j in ((0, 3, 4) if n == 1025 else (1, 2, 5))]

    def forward(m: Any, x: Any) -> Any:
        y = x * m.one
        few = [tg.topk(y, k, axis, largest=down)[1] for k, down in fronts]
        return (*tg.sort(y, axis), *tg.sort(y, axis, descending=True), *few)

    with tg.compile_forward(model=Nothing(), forward=forward, inputs={"x": x.shape}, device=device_name) as f:
        found = f.run(x=x).output
    for j, down in enumerate((False, True)):
        values, indices = torch.sort(torch.tensor(x), dim=axis, stable=True, descending=down)
        np.testing.assert_array_equal(found[2 * j], values)
        np.testing.assert_array_equal(found[2 * j + 1], indices)
        for few, (k, how) in zip(found[4:], fronts, strict=True):
            if how == down:
                np.testing.assert_array_equal(few, indices[:, :k] if axis else indices[:k])


@pytest.mark.parametrize("scattered", [2, 1000])
def test_gradients_of_a_sort_go_back_by_a_scatter_or_a_sort(scattered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SORT_SCATTERED", scattered)
    rng = np.random.default_rng(0)
    x, ct = rng.integers(0, 40, (3, 150)).astype(np.float32), rng.standard_normal((3, 150)).astype(np.float32)
    want = np.empty_like(ct)
    np.put_along_axis(want, np.argsort(x, 1, kind="stable"), ct, 1)
    np.testing.assert_array_equal(tg.grad(lambda x: tg.sum(tg.sort(x)[0] * ct))(x), want)


@pytest.mark.parametrize(
    "dtype, shape", [(d, s) for d in (np.int32, np.uint32) for s in ((144, 13), (290, 13), (130, 2, 3))]
)
def test_sorting_integers_at_the_ends_of_their_range(device_name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    """By counting, by a network, and by selection, where the highest values look like the padding."""
    ends = np.array([2**31 - 1, -(2**31), 0, 2**31 - 1, 1, -1], np.int32).astype(dtype)
    x = np.resize(ends, shape)

    def forward(m: Any, x: Any) -> Any:
        sorts = [tg.argsort(x, 0, down) for down in (False, True)]
        return *sorts, *(tg.topk(x, k, 0, down)[1] for k in (1, 2, 17) for down in (False, True))

    types = {"x": tg.i32[x.shape] if dtype is np.int32 else tg.u32[x.shape]}
    with tg.compile_forward(model=Nothing(), forward=forward, inputs=types, device=device_name) as f:
        found = f.run(x=x).output
    for j, y in enumerate(found):
        want = torch.argsort(torch.tensor(x.astype(np.int64)), dim=0, descending=j % 2 > 0, stable=True)
        np.testing.assert_array_equal(y, want[: (shape[0], 1, 2, 17)[j // 2]])
        np.testing.assert_array_equal(tg.argsort(x, 0, j % 2 > 0).numpy(), want)


@pytest.mark.parametrize(
    "shape, k, axis",
    [
        ((2, 0), 0, 1),
        ((0, 5), 5, 1),
        ((0, 5), 3, 1),
        ((3,), 0, 0),
        ((4, 300), 0, 1),
        ((3000, 20), 0, 0),
        ((0, 3000), 7, 1),
    ],
)
def test_sorting_nothing_gives_nothing(shape: tuple[int, ...], k: int, axis: int, device_name: str) -> None:
    want = tuple(k if d == axis else n for d, n in enumerate(shape))
    for down in (False, True):
        assert [y.shape for y in tg.topk(np.zeros(shape, np.float32), k, axis, largest=down)] == [want] * 2

        def forward(m: Any, x: Any, down: bool = down) -> Any:
            return tg.topk(tg.broadcast_to(x, shape), k, axis, largest=down)

        with tg.compile_forward(model=Nothing(), forward=forward, inputs={"x": (1,)}, device=device_name) as f:
            assert [y.shape for y in f.run(x=np.ones(1, np.float32)).output] == [want] * 2


def test_gradients_of_a_norm_and_a_deviation_are_0_where_they_have_none() -> None:
    assert tg.std([3.0, 3.0]).item() == tg.norm([0.0, 0.0]).item() == tg.norm([0.0, 0.0], ord=3).item() == 0.0
    for f in (tg.norm, tg.std):
        np.testing.assert_array_equal(tg.grad(lambda x, f=f: tg.sum(f(x, 1)))(np.zeros((2, 3), np.float32)), 0)


def test_random_numbers_stay_in_their_ranges() -> None:
    tg.manual_seed(7)
    u = tg.uniform((100_000,), -3.0, 5.0).numpy()
    assert -3.0 <= u.min() < -2.99 and 4.99 < u.max() < 5.0 and abs(u.mean() - 1.0) < 0.03
    assert tg.uniform((1000,), 1.0, 1.0000001).numpy().max() < np.float32(1.0000001)
    k = tg.randint((100_000,), -2, 5).numpy()
    np.testing.assert_allclose(np.bincount(k + 2) / k.size, 1 / 7, atol=0.006)
    assert set(tg.randint((500,), 3).numpy()) == {0, 1, 2}
    orders = np.stack([tg.permutation(4).numpy() for _ in range(4000)])
    assert (np.sort(orders) == np.arange(4)).all()
    np.testing.assert_allclose([np.mean(orders == k, axis=0) for k in range(4)], 0.25, atol=0.04)
    wide = tg.randint((1000,), -(2**30), 2**30 - 1).numpy()
    assert wide.min() < -(2**29) and wide.max() > 2**29
    z = tg.normal((100_000,), 2.0, 0.5).numpy()
    assert abs(z.mean() - 2.0) < 0.01 and abs(z.std() - 0.5) < 0.01
    hard = tg.gumbel_softmax(np.zeros((1000, 4), np.float32), hard=True).numpy()
    np.testing.assert_allclose(hard.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(hard.mean(0), 0.25, atol=0.06)


def test_arange_as_numpy() -> None:
    for arguments in ((5,), (2, 9), (9, 2, -3), (0, 1, 0.1), (1.5, 4), (3, 3), (5, 2)):
        want = np.arange(*arguments)
        found = tg.arange(*arguments).numpy()
        np.testing.assert_allclose(found, want.astype(found.dtype))
        assert (found.dtype == np.int32) == (want.dtype.kind == "i")
    assert tg.arange(4, tg.f32).numpy().dtype == np.float32


@pytest.mark.parametrize(
    "lengths, sizes", [((12, 9, 7, 5), (4, 3, 0, 1)), ((12, 9, 7, 3), (4, 3, 0, 4))], ids=["fit", "too long"]
)
def test_the_loss_of_unaligned_labels_is_pytorch_s(device_name: str, lengths: Any, sizes: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 4, 5)).astype(np.float32)
    t = rng.integers(1, 5, (4, 4)).astype(np.int32)
    t[0] = 2, 2, 3, 3
    inputs, targets = np.array(lengths, np.int32), np.array(sizes, np.int32)

    class Scores(tg.Module):
        def __init__(self) -> None:
            self.x = self.param(x.shape, init=tg.init.literal(x))

    def loss(m: Any, t: Any, inputs: Any, targets: Any) -> Any:
        each = tg.ctc_loss(tg.log_softmax(m.x), t, inputs, targets, reduction="none", zero_infinity=True)
        return tg.sum(each), {"each": each}

    with tg.compile(model=Scores(), loss=loss, inputs={"t": tg.i32[4, 4], "inputs": tg.i32[4], "targets": tg.i32[4]},
                    optimizer=tg.optim.sgd(lr=0.0), device=device_name, keep_grads=True) as train:  # fmt: skip
        each = train.step(t=t, inputs=inputs, targets=targets).aux["each"]
        grad = train.download_grads()["x"]
    scores = torch.tensor(x, requires_grad=True)
    want = torch.nn.functional.ctc_loss(
        torch.log_softmax(scores, -1), torch.tensor(t).long(), torch.tensor(inputs).long(),
        torch.tensor(targets).long(), reduction="none", zero_infinity=True,
    )  # fmt: skip
    want.sum().backward()
    np.testing.assert_allclose(each, want.detach(), rtol=1e-5)
    assert scores.grad is not None
    np.testing.assert_allclose(grad, scores.grad, atol=1e-5)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda x: tg.topk(x, 9), tg.ShapeError, "k = 9 elements of axis 1 of f32"),
        (lambda x: tg.norm(x, ord=-2), tg.InputError, "ord must be"),
        (lambda x: tg.roll(x, (1, 2), 0), tg.ShapeError, "2 shifts for 1 axes"),
        (lambda x: tg.roll(x, (1, 2)), tg.ShapeError, "2 shifts for 1 axes"),
        (lambda x: tg.diag(x, 9), tg.ShapeError, "outside"),
        (lambda x: tg.triu(x[0]), tg.ShapeError, "triu"),
        (lambda x: tg.meshgrid(x), tg.ShapeError, "takes vectors"),
        (lambda x: tg.meshgrid(x[0], indexing="yx"), tg.InputError, "'xy' or 'ij'"),
        (lambda x: tg.uniform((2,), 3.0, 1.0), tg.InputError, "must be less"),
        (lambda x: tg.randint((2,), 3, 3), tg.InputError, "must be less"),
        (lambda x: tg.arange(0, 1, 0), tg.InputError, "step not 0"),
        (lambda x: tg.gumbel_softmax(x, 0), tg.InputError, "tau"),
        (lambda x: tg.huber_loss(x, x, delta=0), tg.InputError, "delta"),
        (lambda x: tg.kl_div(x, x, "batch"), tg.InputError, "batchmean"),
        (lambda x: tg.l1_loss(x, x[0]), tg.ShapeError, "shapes differ"),
        (lambda x: tg.interpolate(x[None], size=3, mode="bilinear"), tg.ShapeError, "or mode='linear'"),
        (lambda x: tg.interpolate(x, size=3), tg.ShapeError, r"x must be \[B,C,L\]"),
        (lambda x: tg.interpolate(x[None], mode="linear"), tg.InputError, "either size= or"),
        (lambda x: tg.interpolate(x[None], size=3, mode="cubic"), tg.InputError, "mode must be"),
        (lambda x: tg.pixel_shuffle(x[None], 2), tg.ShapeError, "cannot be divided"),
        (lambda x: tg.segment_sum(x, [0, 1, 2], 3), tg.ShapeError, "one for each slice"),
        (lambda x: tg.segment_softmax(x, [0, 1, 2], 3), tg.ShapeError, "one for each slice"),
        (lambda x: tg.segment_max(tg.cast(x, tg.i32), [0, 1], 3), tg.DTypeError, "f32"),
        (lambda x: tg.reciprocal(tg.cast(x, tg.i32)), tg.DTypeError, r"takes f32, got i32\[2,3\]"),
        (lambda x: tg.one_hot([0], 0), IndexError, "for 0 classes, none is valid"),
        (lambda x: tg.capture("", x), tg.TraceError, "a string that is not empty, got ''"),
        (lambda x: tg.linalg.cholesky(x), tg.ShapeError, r"square matrix .* got f32\[2,3\]"),
        (lambda x: tg.linalg.det(x), tg.ShapeError, r"det: A must be a square matrix"),
        (lambda x: tg.linalg.slogdet(x), tg.ShapeError, r"slogdet: A must be a square matrix"),
        (lambda x: tg.linalg.solve_triangular(x[:, :2], x[0], upper=True), tg.ShapeError, "matrix of one column"),
        (lambda x: tg.linalg.solve_triangular(x[:, :2], x, lower=True), CallError, "write upper=False for a lower"),
        (lambda x: tg.linalg.solve_triangular(x[:, :2], x), CallError, "missing upper="),
        (lambda x: tg.linalg.solve(x[:, :2], np.ones((3, 1))), tg.ShapeError, r"B must be \[..., 2, k\]"),
        (lambda x: tg.grid_sample(x, x), tg.ShapeError, "B,H',W',2"),
        (lambda x: tg.grid_sample(x, x, "bicubic"), tg.InputError, "'bilinear' or 'nearest'"),
        (lambda x: tg.grid_sample(x, x, padding_mode="reflection"), tg.InputError, "'zeros' or 'border'"),
        (lambda x: tg.affine_grid(x, (1, 1, 2, 2)), tg.ShapeError, "theta must be"),
        (lambda x: tg.ctc_loss(x[None], [[1], [1]], [1], [1, 1]), tg.ShapeError, "input_lengths"),
        (lambda x: tg.ctc_loss(x[None], [[1], [1]], [1, 2], [1, 1]), IndexError, "value 2 is out of range; .* 0 to 1"),
        (lambda x: tg.ctc_loss(x[None], [[1], [1]], [1, 1], [1, 2]), IndexError, "value 2 is out of range; .* 0 to 1"),
    ],
)
def test_mistakes_name_the_rule(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call(np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    "name, text",
    [("median", "tg.sort"), ("arcsin", "tg.asin"), ("fold", "tg.col2im"), ("tile", "tg.concat"), ("eq", "tg.less"),
     ("randperm", "tg.permutation"), ("BCELoss", "with_logits"), ("trunc", "tg.floor"),
     ("accuracy", "tg.metrics.accuracy"), ("log2", "tg.log"), ("index_add", "tg.scatter_add")],
)  # fmt: skip
def test_names_of_pytorch_and_numpy_get_a_remedy_and_not_the_nearest_spelling(name: str, text: str) -> None:
    with pytest.raises(AttributeError, match=text):
        getattr(tg, name)


@pytest.mark.parametrize("other", [1.0, 1e-6, 2e10, None])
def test_derivatives_of_atan2_at_any_size(other: float | None, device_name: str) -> None:
    """x / r^2, -y / r^2 and 2 x y / r^4 in float64, wherever f32 has them. other: of y, or None for |x|."""
    powers = (-20, -15, -10, -6, -4.5, -3, 0, 3, 4.5, 6, 10, 13, 15, 18, 25, 37)
    x = np.array([sign * 10.0**p for p in powers for sign in (1, -1)], np.float32)
    y = np.abs(x) if other is None else np.full_like(x, other)

    def derivatives(m: Nothing, y: tg.Tensor, x: tg.Tensor) -> tuple[tg.Tensor, ...]:
        by_y = tg.grad(lambda y: tg.sum(tg.atan2(y, x)))(y)
        once = tg.grad(lambda x: tg.sum(tg.atan2(y, x)))
        return by_y, once(x), tg.grad(lambda x: tg.sum(once(x)))(x)

    with tg.compile_forward(
        model=Nothing(), forward=derivatives, inputs={"y": y.shape, "x": x.shape}, device=device_name
    ) as f:
        got = f.run(y=y, x=x).output
    a, b = x.astype(np.float64), y.astype(np.float64)
    square = a * a + b * b
    for g, want in zip(got, (a / square, -b / square, 2 * a * b / square**2), strict=True):
        held = (np.abs(want) > 2.0**-126) & (np.abs(want) < 3e38)
        np.testing.assert_allclose(np.asarray(g)[held], want[held], rtol=2e-5)


def _pairs(values: Any) -> tuple[Any, Any]:
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def test_remainders_and_quotients_are_exact(device_name: str) -> None:
    """Of numbers of any size, where a / b rounds and overflows; of all integers, 0 and the lowest too."""
    rng = np.random.default_rng(0)
    ends = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3e38, -3e38, 7, 0.1, -0.1, 2.0**24, 1e10, 3], np.float32)
    sizes = np.ldexp(rng.uniform(0.5, 1, 500), rng.integers(-90, 126, 500)) * rng.choice([-1, 1], 500)
    near, small = rng.integers(-50, 50, 500) / 8, rng.integers(-7, 8, 500) / 4
    x, y = (np.concatenate(z).astype(np.float32) for z in zip(_pairs(ends), (sizes, sizes[::-1]), (near, small)))
    ends = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 2, 7, -7, 3, -3, 2**24 + 1], np.int32)
    some = rng.integers(-(2**31), 2**31, 500)
    i, j = (np.concatenate(z).astype(np.int32) for z in zip(_pairs(ends), (some, some[::-1]), (some, small * 4)))

    def forward(m: Nothing, x: Any, y: Any, i: Any, j: Any) -> tuple[Any, ...]:
        u, v = tg.cast(i, tg.u32) * 2 + 1, tg.cast(j, tg.u32) * 3  # beyond 2^31 too
        return x % y, x // y, i % j, i // j, u % v, u // v, u, v

    inputs = {"x": x.shape, "y": y.shape, "i": tg.i32[i.shape], "j": tg.i32[j.shape]}
    with tg.compile_forward(model=Nothing(), forward=forward, inputs=inputs, device=device_name) as f:
        got = [np.asarray(z) for z in f.run(x=x, y=y, i=i, j=j).output]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got[0], np.remainder(x, y))
        close = np.abs(x / y) < 2.0**22
        np.testing.assert_array_equal(got[1][close], np.floor_divide(x, y)[close])
        np.testing.assert_array_equal(np.signbit(got[1][close]), np.signbit(np.floor_divide(x, y)[close]))
        np.testing.assert_allclose(got[1], np.floor_divide(x, y), rtol=2e-7)
    for a, b, rest, whole in ((i, j, *got[2:4]), (*got[6:], *got[4:6])):
        a, b, zero = a.astype(np.int64) % 2**32 if a is got[6] else a.astype(np.int64), b.astype(np.int64), b == 0
        b = b % 2**32 if whole is got[5] else b
        want = np.where(zero, 0, a // np.where(zero, 1, b))
        np.testing.assert_array_equal((whole - want) % 2**32, 0)
        np.testing.assert_array_equal((rest - (a - want * b)) % 2**32, 0)


def test_a_forward_returns_the_named_results_of_a_sort() -> None:
    x = np.array([[3.0, 1.0, 2.0]], np.float32)
    with tg.compile_forward(model=nn.Linear(3, 3), forward=lambda m, x: tg.sort(x), inputs={"x": (None, 3)}, seed=0,
                            device="cpu") as infer:  # fmt: skip
        for _ in range(2):
            found = infer.run(x=x).output
            assert found.values.tolist() == [[1, 2, 3]] and found.indices.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("n", [0, 33, 49, 98])  # the last two by parts, the third with padding
def test_a_factor_by_blocks_and_parts_reads_only_the_lower_triangle(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((2, n, n))
    a = x @ x.swapaxes(-1, -2) + n * np.eye(n)
    got = tg.linalg.cholesky(np.where(np.tri(n, dtype=bool), a, np.nan).astype(np.float32))
    expected = np.linalg.cholesky(a)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=1e-6 * np.abs(expected).max(initial=0))


def test_roll_without_an_axis_takes_a_sequence_of_one_shift() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(tg.roll(x, (1,)), np.roll(x, (1,)))


def test_clip_is_nan_where_a_limit_is_as_in_numpy(device_name: str) -> None:
    x, limit = np.float32([1, 3, NAN]), np.float32([NAN, 2, 2])

    def forward(m: Nothing, x: tg.Tensor, limit: tg.Tensor) -> list[tg.Tensor]:
        return [tg.clip(x, limit, 2.5), tg.clip(x, 0.0, limit), tg.clip(x, NAN, 2.0), tg.clip(x, 0.0, NAN)]

    infer = tg.compile_forward(model=Nothing(), forward=forward, inputs={"x": (3,), "limit": (3,)}, device=device_name)
    want = [[NAN, 2.5, NAN], [NAN, 2.0, NAN], [NAN] * 3, [NAN] * 3]
    np.testing.assert_array_equal(np.clip(x, limit, 2.5), want[0])
    np.testing.assert_array_equal(infer.run(x=x, limit=limit).output, want)
    np.testing.assert_array_equal([tg.clip(x, limit, 2.5), tg.clip(x, 0.0, limit)], want[:2])
    np.testing.assert_array_equal([tg.clip(x, NAN, 2.0), tg.clip(x, 0.0, NAN)], want[2:])
    into = tg.grad(lambda x, lo: tg.clip(x, lo, 9.0).sum(), argnums=(0, 1))(x, limit)
    np.testing.assert_array_equal(into, [[0, 1, 1], [1, 0, 0]])


def test_padding_can_be_a_tensor() -> None:
    x, v = tg.tensor([1.0, 2.0]), tg.tensor(3.0)
    assert tg.pad(x, (1, 2), v).tolist() == [3, 1, 2, 3, 3]
    assert tg.grad(lambda x, v: tg.sum(tg.pad(x, (1, 2), v)), argnums=(0, 1))(x, v)[1].item() == 3
    with pytest.raises(tg.ShapeError, match=r"value must be a number or have rank 0, got f32\[1\]"):
        tg.pad(x, 1, v[None])


@pytest.mark.parametrize("n", [1, 4, 33, 70])
def test_determinants_have_the_sign_of_the_exchanges(n: int) -> None:
    a = np.random.default_rng(n).normal(size=(3, n, n)).astype(np.float32)
    a[2, 0] = a[2, -1] if n > 1 else 0.0  # singular, with two equal rows
    forward = lambda m, a: (*tg.linalg.slogdet(a), tg.linalg.det(a / 4))
    with tg.compile_forward(model=Nothing(), forward=forward, inputs={"a": a.shape}, device="cpu", seed=0) as infer:
        sign, size, value = infer.run(a=a).output
    want = np.linalg.slogdet(a[:2].astype(np.float64))
    np.testing.assert_array_equal(sign[:2], want.sign)
    np.testing.assert_allclose(size[:2], want.logabsdet, atol=2e-6 * n)
    np.testing.assert_allclose(value[:2], want.sign * np.exp(want.logabsdet - n * np.log(4)), rtol=1e-6 * n * n)
    assert size[2] < size[:2].min() - 10 and abs(value[2]) < 1e-6 * abs(value[:2]).max()


def test_a_determinant_of_zero() -> None:
    for a in (np.zeros((2, 2)), [[0.0, 1.0], [0.0, 2.0]], [[1.0, 2.0], [2.0, 4.0]]):
        assert tg.linalg.det(a).item() == 0.0
        sign, size = tg.linalg.slogdet(a)
        assert (sign.item(), size.item()) == (0.0, -np.inf)
