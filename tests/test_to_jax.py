"""`train.to_jax()`: a step as a pure function, under jax.jit and exported as StableHLO, is what `train.step` does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim

pytest.importorskip("jax", reason="JAX is not installed")
import jax
import jax.export


class Net(tg.Module):
    def __init__(self) -> None:
        self.l1, self.norm, self.l2 = nn.Linear(6, 10), nn.BatchNorm(10), nn.Linear(10, 3)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.dropout(tg.gelu(self.norm(self.l1(x), training=True)), 0.2))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> Any:
    logits = m(x)
    return tg.cross_entropy(logits, y), {"right": tg.mean(tg.cast(tg.argmax(logits, -1) == y, tg.f32))}


def compiled(device: str = "jax", batch: int | None = 8, **more: Any) -> tg.CompiledTraining:
    made = optim.adamw(lr=1e-2, weight_decay=0.1, clip_grad_norm=0.5, ema=0.9, accumulate=2)
    inputs = {"x": (batch, 6), "y": tg.i32[batch]}
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=made, seed=3, device=device, **more)


def batches(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.standard_normal((8, 6)).astype(np.float32), "y": rng.integers(0, 3, 8).astype(np.int32)}
        for _ in range(n)
    ]


def ways(step: Any, state: Any, batch: Any) -> dict[str, Any]:
    exported = jax.export.export(jax.jit(step))(state, batch)
    assert "stablehlo" in exported.mlir_module()
    return {"jit": jax.jit(step, donate_argnums=0), "export": exported.call}


@pytest.mark.parametrize("way", ["jit", "export"])
@pytest.mark.parametrize("batch", [8, None])
def test_three_steps_are_those_of_the_training(way: str, batch: int | None) -> None:
    """From the second step on: with random numbers, an average, gradients that are added up, and a layer's state."""
    first, *rest = batches(4)
    with compiled(batch=batch) as train:
        train.step(first).result()
        step, state = train.to_jax()
        run = ways(step, state, rest[0])[way]
        for given in rest:
            state, outputs = run(state, given)
            want = train.step(given).result()
            np.testing.assert_allclose(outputs["loss"], want.loss, rtol=1e-5)
            np.testing.assert_allclose(outputs["aux.right"], want.aux["right"], rtol=1e-5)
            assert outputs["applied"] and int(state["step"]) == want.step
        for name, x in train.download_params().items():
            np.testing.assert_allclose(state["arrays"][f"params:{name}"], x, rtol=1e-5, atol=1e-6)
        for name, x in train.states().items():
            np.testing.assert_allclose(state["arrays"][f"state.f32:state/{name}"], x, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("quick_xla")
def test_a_step_that_is_not_finite_changes_nothing_and_the_next_goes_on() -> None:
    bad, good = batches(2)
    bad["x"][0, 0] = np.nan
    with compiled() as train:
        step, state = train.to_jax()
        run = jax.jit(step)
        after, outputs = run(state, bad)
        assert not outputs["applied"] and int(after["step"]) == 0
        for key, x in state["arrays"].items():
            np.testing.assert_array_equal(after["arrays"][key], x, err_msg=key)
        after, outputs = run(after, good)
        assert outputs["applied"] and int(after["step"]) == 1
        np.testing.assert_allclose(outputs["loss"], train.step(good).result().loss, rtol=1e-5)


@pytest.mark.parametrize("made", [optim.adam, optim.muon, optim.adafactor])
def test_state_that_is_given_away_is_updated_in_place(made: Any) -> None:
    """XLA copies an array that it must still read after its successor was written over it."""
    with tg.compile(model=Net(), loss=loss, inputs={"x": (8, 6), "y": tg.i32[8]}, optimizer=made(lr=1e-3), seed=0,
                    device="jax") as train:  # fmt: skip
        step, state = train.to_jax()
        run = jax.jit(step, donate_argnums=0).lower(state, batches(1)[0]).compile()
        assert "f32[6,10]" in run.as_text() and not re.findall(r"f32\[6,10\]\S* copy\(", run.as_text())
        bad = batches(1)[0]
        bad["x"][0, 0] = np.nan
        after, outputs = jax.jit(step)(state, bad)
        assert not outputs["applied"]
        for key, x in state["arrays"].items():
            np.testing.assert_array_equal(after["arrays"][key], x, err_msg=key)


@pytest.mark.usefixtures("quick_xla")
def test_other_jax_code_goes_through_it() -> None:
    """A scan over batches, and another learning rate."""
    data = batches(3)
    with compiled() as train:
        step, state = train.to_jax()
        state["hyper"]["lr"] = jax.numpy.float32(0.02)
        stacked = {name: np.stack([b[name] for b in data]) for name in data[0]}
        _, outputs = jax.jit(lambda s, xs: jax.lax.scan(step, s, xs))(state, stacked)
        train.set_lr(0.02)
        np.testing.assert_allclose(outputs["loss"], train.run_steps(3, stacked).result().losses, rtol=1e-5)


def test_the_program_of_xla_grows_with_the_model_and_not_with_its_square() -> None:
    """One number over all parameters says whether a step is applied. The update of each parameter reads it."""

    def instructions(layers: int) -> int:
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
        with tg.compile(
            model=model, loss=lambda m, x: tg.mean(tg.square(m(x))), inputs={"x": (8, 4)}, optimizer=optim.adam(),
            seed=0, device="jax",
        ) as train:  # fmt: skip
            step, state = train.to_jax()
            text = jax.jit(step).lower(state, {"x": np.ones((8, 4), np.float32)}).compile().as_text()
        return text.count(" = ")

    few, many = instructions(20), instructions(40)
    assert many < 2.3 * few, (few, many)


def test_errors_say_what_to_do() -> None:
    with compiled("cpu") as train, pytest.raises(tg.DeviceError, match=r"on 'cpu'; compile with device=\"jax\""):
        train.to_jax()
    with compiled(batch=None) as train, pytest.raises(tg.InputError, match="take a step first"):
        train.to_jax()
    with compiled() as train:
        step, state = train.to_jax()
        with pytest.raises(tg.InputError, match="takes a dict of x, y; got x"):
            step(state, {"x": np.zeros((8, 6))})
        with pytest.raises(tg.InputError, match=r"'x' has shape \(4, 6\)"):
            jax.jit(step)(state, {"x": np.zeros((4, 6)), "y": np.zeros(8)})
