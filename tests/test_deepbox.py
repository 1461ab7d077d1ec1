"""What Deepbox documents of its autograd module, in our spelling and with its results.

Its release 1.0.0 prints these numbers for the same calls; where it computes in double precision inside, they agree to
f32. Where we differ on purpose docs/eager.md says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn

D = [[1, -2, 3], [-4, 5, -6]]
IMAGE = [[[[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]]]
nan = float("nan")

# name: the call, its value, and the gradient of sum(y * y), or of y where it is one number
METHODS: dict[str, tuple[Callable[[tg.GradTensor], Any], Any, Any]] = {
    "neg": (lambda x: x.neg(), [[-1, 2, -3], [4, -5, 6]], [[2, -4, 6], [-8, 10, -12]]),
    "sqrt": (
        lambda x: x.sqrt(),
        [[1, nan, 1.7320507764816284], [nan, 2.2360680103302, nan]],
        [[1, nan, 0.9999999403953552], [nan, 1, nan]],
    ),
    "exp": (
        lambda x: x.exp(),
        [[2.7182817459106445, 0.1353352814912796, 20.08553695678711],
         [0.018315639346837997, 148.4131622314453, 0.0024787522852420807]],
        [[14.778111457824707, 0.036631278693675995, 806.8576049804688],
         [0.0006709253066219389, 44052.93359375, 0.000012288425750739407]],
    ),
    "relu": (lambda x: x.relu(), [[1, 0, 3], [0, 5, 0]], [[2, 0, 6], [0, 10, 0]]),
    "sigmoid": (
        lambda x: x.sigmoid(),
        [[0.7310585975646973, 0.11920291930437088, 0.9525741338729858],
         [0.01798621006309986, 0.9933071732521057, 0.0024726232513785362]],
        [[0.28746968507766724, 0.025031082332134247, 0.08606822788715363],
         [0.0006353702628985047, 0.013207077980041504, 0.000012197497198940255]],
    ),
    "square": (lambda x: x.square(), [[1, 4, 9], [16, 25, 36]], [[4, -32, 108], [-256, 500, -864]]),
    "tanh": (
        lambda x: x.tanh(),
        [[0.7615941762924194, -0.9640275835990906, 0.9950547814369202],
         [-0.9993293285369873, 0.9999092221260071, -0.9999877214431763]],
        [[0.6396999955177307, -0.13621866703033447, 0.019634420052170753],
         [-0.002679933561012149, 0.0003630785213317722, -0.0000491136233904399]],
    ),
    "abs": (lambda x: x.abs(), [[1, 2, 3], [4, 5, 6]], [[2, -4, 6], [-8, 10, -12]]),
    "leaky_relu": (
        lambda x: x.leaky_relu(),
        [[1, -0.02, 3], [-0.04, 5, -0.06]],
        [[2, -0.0004, 6], [-0.0008, 10, -0.0012]],
    ),
    "leaky_relu_slope": (
        lambda x: x.leaky_relu(0.2), [[1, -0.4, 3], [-0.8, 5, -1.2]], [[2, -0.16, 6], [-0.32, 10, -0.48]]
    ),
    "elu": (
        lambda x: x.elu(),
        [[1, -0.8646647167633873, 3], [-0.9816843611112658, 5, -0.9975212478233336]],
        [[2, -0.23403928869575705, 6], [-0.035960352521663415, 10, -0.004945215928626097]],
    ),
    "gelu": (
        lambda x: x.gelu("tanh"),
        [[0.8411919906082768, -0.04540230591222494, 2.996362607918227],
         [-0.00007024594819227126, 4.999999770820381, -8.43964897967453e-11]],
        [[1.821961426895005, 0.00781820957608135, 6.062145943310316],
         [4.708209348614318e-8, 10.000015005259929, 1.3013898238196242e-19]],
    ),
    "sum": (lambda x: x.sum(), -3, [[1, 1, 1], [1, 1, 1]]),
    "sum_axis": (lambda x: x.sum(1, True), [[2], [-5]], [[4, 4, 4], [-10, -10, -10]]),
    "mean": (lambda x: x.mean(), -0.5, [[1 / 6] * 3] * 2),
    "mean_axis": (lambda x: x.mean(0), [-1.5, 1.5, -1.5], [[-1.5, 1.5, -1.5]] * 2),
    "flatten": (lambda x: x.flatten(0), [1, -2, 3, -4, 5, -6], [[2, -4, 6], [-8, 10, -12]]),
    "hardtanh": (lambda x: x.hardtanh(), [[1, -1, 1], [-1, 1, -1]], [[0, 0, 0], [0, 0, 0]]),
    "tanhshrink": (
        lambda x: x.tanhshrink(),
        [[0.23840584404423515, -1.035972419924183, 2.0049452463132695],
         [-3.000670700260933, 4.000090795737405, -5.000012288349204]],
        [[0.2765630133096426, -1.925560227862821, 3.970328763996941],
         [-5.993293897671767, 7.9987288926532925, -9.999778810620345]],
    ),
    "pow": (lambda x: x.pow(3), [[1, -8, 27], [-64, 125, -216]], [[6, -192, 1458], [-6144, 18750, -46656]]),
    "clip": (lambda x: x.clip(-2, 3), [[1, -2, 3], [-2, 3, -2]], [[2, -4, 6], [0, 0, 0]]),
    "slice": (lambda x: x.slice((0, 2), (1, None)), [[-2, 3], [5, -6]], [[0, -4, 6], [0, 10, -12]]),
    "slice_row": (lambda x: x.slice(1), [-4, 5, -6], [[0, 0, 0], [-8, 10, -12]]),
    "gather": (lambda x: x.gather(tg.tensor([0, 0]), 0), [[1, -2, 3], [1, -2, 3]], [[4, -8, 12], [0, 0, 0]]),
    "gather_i32": (lambda x: x.gather(np.array([2, 0]), 1), [[3, 1], [-6, -4]], [[2, 0, 6], [-8, 0, -12]]),
    "reshape": (lambda x: x.reshape([3, 2]), [[1, -2], [3, -4], [5, -6]], [[2, -4, 6], [-8, 10, -12]]),
    "view": (lambda x: x.view([3, 2]), [[1, -2], [3, -4], [5, -6]], [[2, -4, 6], [-8, 10, -12]]),
    "transpose": (lambda x: x.transpose(), [[1, -4], [-2, 5], [3, -6]], [[2, -4, 6], [-8, 10, -12]]),
    "max": (lambda x: x.max(1), [3, 5], [[0, 0, 6], [0, 10, 0]]),
    "min": (lambda x: x.min(0), [-4, -2, -6], [[0, -4, 0], [-8, 0, -12]]),
    "matmul": (
        lambda x: x.matmul(tg.parameter([[1, 0], [0, 1], [1, 1]])), [[4, 1], [-10, -1]], [[8, 2, 10], [-20, -2, -22]]
    ),
    "add_sub_mul_div": (lambda x: x.add(1).sub(2).mul(3).div(6), [[0, -1.5, 1], [-2.5, 2, -3.5]],
                        [[0, -1.5, 1], [-2.5, 2, -3.5]]),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_documented_values_and_gradients(name: str) -> None:
    call, value, grad = METHODS[name]
    x = tg.parameter(D)
    with np.errstate(all="ignore"):
        y = call(x)
        (y if y.size == 1 else y.mul(y).sum()).backward()
    assert x.grad is not None and x.grad.dtype is tg.f32 and y.dtype is tg.f32
    np.testing.assert_allclose(y.numpy(), value, rtol=3e-6, atol=2e-7)
    np.testing.assert_allclose(x.grad.numpy(), grad, rtol=2e-4 if name in ("tanh", "gelu") else 3e-6, atol=3e-7)


def test_free_functions_have_the_documented_values() -> None:
    x = tg.parameter(D)
    documented = [
        (tg.softmax(x, 1), [[0.11849965453500959, 0.005899750401902781, 0.8756005950630876],
                            [0.00012339251537565974, 0.9998599081236067, 0.000016699361017642993]]),
        (tg.log_softmax(x, 1), [[-2.1328452337275756, -5.132845233727576, -0.13284523372757562],
                                [-9.000140101690178, -0.00014010169017719676, -11.000140101690178]]),
        (tg.variance(x, 1), [4.222222222222222 * 1.5, 22.88888888888889 * 1.5]),  # its documented default: n - 1
        (x.variance(1, correction=0), [4.222222222222222, 22.88888888888889]),
        (tg.variance(x, 0, correction=0), [6.25, 12.25, 20.25]),
        (tg.variance(x, correction=0), 14.916666666666666),
        (tg.dropout(x, 0.5, False), D),
        (tg.im2col(IMAGE, (2, 2), (1, 1), (0, 0)), [[[1, 2, 4, 5], [2, 3, 5, 6], [4, 5, 7, 8], [5, 6, 8, 9]]]),
        (tg.stack([x, x]), [D, D]),
        (tg.concat([x, x], 1), [row + row for row in D]),
    ]  # fmt: skip
    for y, value in documented:
        np.testing.assert_allclose(y.numpy(), value, rtol=2e-6, atol=2e-6)
    columns = tg.im2col(tg.tensor(IMAGE), 2)
    image = tg.col2im(columns, (1, 1, 3, 3), 2)
    assert image.tolist() == [[[[1, 4, 3], [8, 20, 12], [7, 16, 9]]]]


def test_the_example_of_its_documentation_part_by_part() -> None:
    """docs/examples/14-autograd of its repository."""
    x = tg.parameter([2, 3, 4])
    y = x.mul(x).sum()
    y.backward()
    assert (y.item(), x.grad.tolist()) == (29.0, [4.0, 6.0, 8.0])

    a, w = tg.parameter([[1, 2], [3, 4]]), tg.parameter([[0.5], [0.5]])
    z = a.matmul(w).sum()
    z.backward()
    assert (z.item(), a.grad.tolist(), w.grad.tolist()) == (5.0, [[0.5, 0.5], [0.5, 0.5]], [[4.0], [6.0]])

    p = tg.parameter([1, 2, 3, 4])
    p.mul(2).sub(3).relu().sum().backward()
    assert p.grad.tolist() == [0.0, 2.0, 2.0, 2.0]

    q = tg.parameter([1, 2, 3])
    result = tg.no_grad(lambda: q.mul(q))
    assert result.tolist() == [1.0, 4.0, 9.0] and not result.requires_grad

    v = tg.parameter([1, 2, 3])
    v.mul(v).sum().backward()
    assert v.grad.tolist() == [2.0, 4.0, 6.0]
    v.mul(3).sum().backward()
    assert v.grad.tolist() == [5.0, 7.0, 9.0]
    v.zero_grad()
    v.mul(3).sum().backward()
    assert v.grad.tolist() == [3.0, 3.0, 3.0]

    layer = tg.instantiate(nn.Linear(2, 1), seed=0)
    out = layer(tg.tensor([[1, 2], [3, 4]]))
    out.sum().backward()
    assert out.requires_grad
    assert (layer.W.grad.tolist(), layer.b.grad.tolist()) == ([[4.0], [6.0]], [2.0])  # type: ignore[union-attr]


def test_async_functions_are_refused() -> None:
    async def late() -> int:
        return 1

    with pytest.raises(tg.TracegradError, match="async"):
        tg.no_grad(late)
