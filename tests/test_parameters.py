"""Parameters of every dtype, what may be uploaded into them, and what cannot be set on them."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.engine import bounds

X = np.array([1.0, -2.0, 3.0], np.float32)
DTYPES = {"i32": np.int32, "u32": np.uint32, "bool": np.bool_}
INITS = {"default": None, "zeros": tg.init.zeros(), "ones": tg.init.ones()}


class Mixed(tg.Module):
    """A trained vector beside a parameter of each other dtype and initialiser."""

    def __init__(self, **more):
        self.w = self.param((3,), init=tg.init.ones())
        for dtype in DTYPES:
            for name, init in INITS.items():
                setattr(self, f"{dtype}_{name}", self.param((3,), init=init, dtype=dtype, **more))
            setattr(self, f"{dtype}_scalar", self.param((), init=tg.init.ones(), dtype=dtype, **more))


def others(m):
    return {name: getattr(m, name) for name in vars(m) if name != "w"}


def loss(m, x):
    total = tg.sum(tg.square(m.w * x))
    for value in others(m).values():
        total = total + tg.sum(tg.cast(value, tg.f32) * m.w)
    return total


def forward(m, x):
    return {"y": tg.cast(m.i32_ones, tg.f32) * x, **others(m)}


def expected(name):
    dtype, _, kind = name.partition("_")
    return np.full(() if kind == "scalar" else 3, kind in ("ones", "scalar"), DTYPES[dtype])


@pytest.mark.parametrize("more", [{}, {"trainable": False}], ids=["default", "fixed"])
def test_integers_and_booleans_start_at_zeros_or_ones_and_are_not_trained(device_name, more, tmp_path):
    optimizer = optim.adamw(0.1, weight_decay=0.5, ema=0.5, clip_grad_norm=1.0)
    uploaded = {
        "i32_ones": np.array([-(2**31), 2**31 - 1, 7], np.int32),
        "u32_zeros": np.array([2**32 - 1, 0, 7], np.uint32),
        "bool_default": np.array([True, False, True]),
    }
    with tg.compile(model=Mixed(**more), loss=loss, inputs={"x": (3,)}, optimizer=optimizer, seed=0,
                    device=device_name) as train:  # fmt: skip
        infer = train.attach(forward=forward, inputs={"x": (3,)})
        for values in (train.download_params(), infer.run(x=X).output):
            for name in others(Mixed()):
                np.testing.assert_array_equal(values[name], expected(name), strict=True)
        train.upload_params(uploaded)
        before = train.download_params()
        assert all(isinstance(train.step(x=X).result(), tg.Completed) for _ in range(2))
        train.save(tmp_path / "mixed.safetensors")
        after = train.download_params()
        assert not np.array_equal(after["w"], before["w"])
        for name in others(Mixed()):
            np.testing.assert_array_equal(after[name], uploaded.get(name, expected(name)), strict=True)
        sizes = {b.name: b.size for b in train.program.buffers if b.role in ("state", "grad")}
        assert sizes.pop(bounds.array_of(train.program)) == len(bounds.bounded(train.program)) > 1
        assert set(sizes.values()) <= {1, 3} and sizes.get("grads", 3) == 3  # of w alone; JAX keeps none
        train.reset()
        np.testing.assert_array_equal(train.download_params()["i32_ones"], np.ones(3, np.int32), strict=True)
        train.load(tmp_path / "mixed.safetensors")
        for name, value in infer.run(x=X).output.items():
            if name != "y":
                np.testing.assert_array_equal(value, after[name], strict=True)
    with tg.compile_forward(model=Mixed(**more), forward=forward, inputs={"x": (3,)}, device=device_name) as alone:
        np.testing.assert_array_equal(alone.run(x=X).output["u32_scalar"], np.uint32(1), strict=True)
        np.testing.assert_array_equal(alone.run(x=X).output["y"], X)


@pytest.mark.parametrize("init", [tg.init.randn(), tg.init.kaiming(), tg.init.uniform(0, 1)])
def test_random_numbers_are_no_initialiser_of_integers(init):
    class Bad(tg.Module):
        def __init__(self):
            self.n = self.param((3,), dtype=tg.i32, init=init)

    with pytest.raises(tg.DTypeError, match="init must be zeros, ones or literal for i32"):
        Bad()


class Masked(tg.Module):
    def __init__(self):
        self.l = nn.Linear(3, 2)
        self.mask = self.param((2,), init=tg.init.zeros(), trainable=False)


def masked(m, x):
    return tg.mean(tg.square(m.l(x)) * tg.exp(m.mask))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_uploaded(bad):
    with tg.compile(model=Masked(), loss=masked, inputs={"x": (3,)}, optimizer=optim.adam(0.1), device="cpu",
                    seed=0) as train:  # fmt: skip
        before = train.download_params()
        good, wrong = np.ones(2, np.float32), before["l.W"].copy()
        wrong[1, 1] = bad
        for target in (train, train.attach(forward=lambda m, x: m.l(x), inputs={"x": (3,)})):
            with pytest.raises(tg.InputError, match=r"nothing was written\n.*l\.W: 1 (NaN|infinite) of 6 values") as e:
                target.upload_params({"l.b": good, "l.W": wrong})
            assert "test_parameters" in str(e.value)
        assert all(np.array_equal(x, before[n]) for n, x in train.download_params().items())
        with pytest.raises(tg.InputError, match=r"l\.b: 1 NaN"):
            train.upload_params({"l.b": [np.nan, bad]} if not np.isnan(bad) else {"l.b": [bad, 0.0]})
        if np.isnan(bad):
            with pytest.raises(tg.InputError, match="mask: 1 NaN"):
                train.upload_params({"mask": [0.0, bad]})
        else:
            train.upload_params({"mask": [0.0, bad]})  # not trained: as of a mask that is added to scores
    with (
        tg.compile_forward(model=Masked(), forward=masked, inputs={"x": (3,)}, device="cpu") as alone,
        pytest.raises(tg.InputError, match=r"l\.W"),
    ):
        alone.upload_params({"l.W": wrong})


def test_a_parameter_is_fixed_and_says_how_not_to_train_it():
    layer = nn.Linear(2, 3)
    for name in ("requires_grad", "trainable"):
        with pytest.raises(tg.TraceError, match=rf"{name} cannot be set; .*trainable=False.*train\.freeze") as e:
            setattr(layer.W, name, False)
        assert "test_parameters" in str(e.value)
    with pytest.raises(tg.TraceError, match=r"data cannot be set; .*tg\.init\.literal"):
        layer.W.data = np.ones((2, 3))
    assert layer.W.requires_grad

    def freezing(m, x):
        m.W.requires_grad = False
        return tg.sum(m(x))

    with pytest.raises(tg.TraceError, match=r"requires_grad cannot be set; tg\.stop_gradient"):
        tg.trace(model=layer, loss=freezing, inputs={"x": (4, 2)})


def test_what_the_message_advises_works():
    class Half(tg.Module):
        def __init__(self):
            self.a = nn.Linear(3, 3, decay=False)
            self.b = nn.Linear(3, 1)

    def frozen(m, x):
        return tg.mean(m.b(tg.tanh(x @ tg.stop_gradient(m.a.W) + tg.stop_gradient(m.a.b))))

    with tg.compile(model=Half(), loss=frozen, inputs={"x": (4, 3)}, optimizer=optim.adamw(0.1, weight_decay=0.5),
                    device="cpu") as train:  # fmt: skip
        before = train.download_params()
        train.step(x=np.ones((4, 3))).result()
        after = train.download_params()
        assert [np.array_equal(before[n], after[n]) for n in ("a.W", "a.b", "b.W")] == [True, True, False]
