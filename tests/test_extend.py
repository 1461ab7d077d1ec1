"""What tracegrad.extend offers is enough to write an op, an optimizer and a schedule outside the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import extend, nn, optim, testing

softsign = extend.elementwise(
    "test_softsign", array="{0} / (1 + xp.abs({0}))", wgsl="({0} / (1.0 + abs({0})))",
    vjp=lambda ct, y, x: (ct / tg.square(1.0 + tg.abs(x)),), cost=5,
)  # fmt: skip


written = extend.elementwise(
    "test_written", array=lambda xp, a, b: a / (1 + xp.abs(b)), wgsl="({0} / (1.0 + abs({1})))",
    vjp=lambda ct, y, a, b: (ct / (1.0 + tg.abs(b)), -ct * y * tg.sign(b) / (1.0 + tg.abs(b))), cost=5,
)  # fmt: skip


def sign_descent() -> extend.Transform:
    return extend.Transform({}, lambda g, p, state, host: (tg.sign(g), {}))


@dataclass(frozen=True)
class Halving(extend.Schedule):
    first: float
    start: int | None = None

    def value(self, s: int) -> float:
        return self.first * 0.5 ** (s - 1)


def test_a_row_a_transform_and_a_schedule_of_ones_own():
    def loss(m: Any, x: tg.Tensor) -> tg.Tensor:
        return tg.sum(softsign(m(x)))

    with tg.compile(
        model=nn.Linear(2, 1, bias=False, init=tg.init.ones()), loss=loss, inputs={"x": (1, 2)},
        optimizer=optim.custom(sign_descent(), lr=Halving(0.5)), seed=0, device="cpu",
    ) as train:  # fmt: skip
        x = np.array([[1.0, 2.0]], np.float32)
        assert train.step(x=x).loss == np.float32(0.75)
        train.step(x=x).result()
        np.testing.assert_allclose(train.download_params()["W"], [[0.25], [0.25]])


weighted = extend.composite(
    "test_weighted", type=lambda x, w, n: w, expand=lambda x, w, n: x * x * w * tg.cast(n, tg.f32)
)  # fmt: skip


def test_a_composite_without_a_vjp_is_differentiated_through_its_expansion() -> None:
    def fn(x: Any) -> tg.Tensor:
        x = extend.as_tensor(x)
        return extend.bind(weighted, x, 3.0 * x, extend.as_tensor(2))  # 6 x^3: one input depends on another

    assert float(tg.grad(fn)(2.0)) == 72.0
    assert float(tg.jvp(fn, (2.0,), (1.0,))[1]) == 72.0
    assert float(tg.grad(tg.grad(fn))(2.0)) == 72.0
    np.testing.assert_array_equal(tg.vmap(tg.grad(fn))(np.float32([1, 2])), [18, 72])
    with tg.compile(model=nn.Linear(1, 1, bias=False, init=tg.init.ones()), loss=lambda m: tg.sum(fn(m.W)),
                    inputs={}, optimizer=optim.sgd(lr=0.125), seed=0, device="cpu") as train:  # fmt: skip
        train.step().result()
        np.testing.assert_array_equal(train.params()["W"], [[1 - 18 / 8]])


def test_bind_of_what_is_no_tensor_or_no_primitive() -> None:
    for value in (2.0, [1.0, 2.0], np.float32(2.0), None):
        with pytest.raises(tg.TraceError, match=r"test_weighted: extend.bind takes tensors, got .*extend.as_tensor"):
            extend.bind(weighted, value, value, value)  # type: ignore[arg-type]
    for x in (extend.bind, lambda f, x: tg.grad(lambda x: extend.bind(f, x))(x)):
        with pytest.raises(tg.TraceError, match=r"takes a primitive, got the function test_softsign; call it"):
            x(softsign, tg.tensor(2.0))  # type: ignore[arg-type]


def test_the_docstring_names_only_functions_that_are_known() -> None:
    assert "torch" not in str(softsign.__doc__) and "numpy" not in str(softsign.__doc__)
    assert "As numpy.exp and torch.exp." in str(tg.exp.__doc__)


def test_checks_of_an_op_of_ones_own():
    torch = pytest.importorskip("torch")
    testing.check_op(softsign, (3, 4), torch=torch.nn.functional.softsign)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"vjp": lambda ct, y, x: (ct * x,)}, "the gradient differs from finite differences"),
        ({"wgsl": "({0} + {0})"}, "output on .* differs from the reference"),
    ],
    ids=["a wrong derivative", "a wrong spelling"],
)  # fmt: skip
@pytest.mark.usefixtures("c_compiler")  # NumPy computes the array rule itself
def test_a_wrong_row_is_found(row: dict[str, Any], message: str, request: pytest.FixtureRequest):
    name = f"test_{request.node.callspec.id}".replace(" ", "_")
    right = {"array": "{0} * {0}", "wgsl": "({0} * {0})", "vjp": lambda ct, y, x: (ct * 2.0 * x,)}
    with pytest.raises(AssertionError, match=message):
        testing.check_op(extend.elementwise(name, **(right | row), cost=1), (3, 4), low=0.5, on=["cpu"])


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.filterwarnings("error")  # a wrong kernel warns, and NumPy computes instead
def test_functions_of_wgsl_are_floats_in_c() -> None:
    """C's own functions are of double, which `select` took for integers: sin(x) / x became 0."""
    functions = {
        "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "sinh": "sinh",
        "cosh": "cosh", "tanh": "tanh", "asinh": "arcsinh", "atanh": "arctanh", "exp": "exp", "exp2": "exp2",
        "log": "log", "log2": "log2", "trunc": "trunc", "sqrt": "sqrt",
    }  # fmt: skip
    ops = [
        extend.elementwise(f"test_wgsl_{name}",
                           array=f"xp.maximum(xp.where({{0}} > 0.5, xp.{array}({{0}}), 0.25), 0.1)",
                           wgsl=f"max(select(0.25, {name}({{0}}), {{0}} > 0.5), 0.1)", cost=9)
        for name, array in functions.items()
    ]  # fmt: skip
    two = [
        extend.elementwise(f"test_wgsl_{name}", array=f"xp.maximum(xp.{array}({{0}}, {{1}}), 0.1)",
                           wgsl=f"max({name}({{0}}, {{1}}), 0.1)", cost=9)
        for name, array in (("pow", "power"), ("atan2", "arctan2"))
    ]  # fmt: skip
    jump = {"array": "xp.where({0} >= 0.5, 1.0, 0.0)", "wgsl": "step(0.5, {0})"}  # glibc has another `step`
    ops.append(extend.elementwise("test_wgsl_step", **jump, cost=1))
    x = np.linspace(0.05, 0.95, 19, dtype=np.float32)
    infer = tg.compile_forward(
        model={},
        forward=lambda m, x: (*[f(x) for f in ops], *[f(x, x) for f in two]),
        inputs={"x": (19,)},
        device="cpu",
    )
    with infer:
        for got, f in zip(infer.run(x=x).output, [*ops, *(lambda x, f=f: f(x, x) for f in two)], strict=True):
            np.testing.assert_allclose(got, f(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("cc", ["", "off"])
def test_an_array_rule_can_be_a_function_in_c_and_numpy(cc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGRAD_CC", cc)
    x = np.linspace(-2, 2, 15, dtype=np.float32).reshape(5, 3)
    with tg.compile(
        model=nn.Linear(3, 2), loss=lambda m, x: tg.mean(written(m(x), x[:, :2])), inputs={"x": (5, 3)},
        optimizer=optim.sgd(lr=0.5), seed=0, device="cpu",
    ) as train:  # fmt: skip
        p = train.params()
        value = float(np.mean((x @ p["W"] + p["b"]) / (1 + np.abs(x[:, :2]))))
        assert abs(train.step(x=x).loss - value) < 1e-6
        slope = 1 / (1 + np.abs(x[:, :2])) / 10
        np.testing.assert_allclose(train.params()["W"], p["W"] - 0.5 * x.T @ slope, atol=1e-6)
