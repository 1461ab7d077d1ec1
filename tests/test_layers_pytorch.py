"""Layers against PyTorch with their weights: group and instance normalisation, sequences of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from oracle import torch
from tracegrad import nn, optim

RNG = np.random.default_rng(5)


class One(tg.Module):
    def __init__(self, layer: Any) -> None:
        self.layer = layer


NORMS = {
    "group": (lambda: nn.GroupNorm(2, 6), lambda: torch.nn.GroupNorm(2, 6), (3, 6, 4, 5)),
    "plain": (lambda: nn.GroupNorm(3, 6, affine=False), lambda: torch.nn.GroupNorm(3, 6, affine=False), (4, 6, 3)),
    "group_of_vectors": (lambda: nn.GroupNorm(2, 6), lambda: torch.nn.GroupNorm(2, 6), (4, 6)),
    "instance": (lambda: nn.InstanceNorm(6), lambda: torch.nn.InstanceNorm2d(6), (2, 6, 3, 4)),
    "affine": (lambda: nn.InstanceNorm(6, affine=True), lambda: torch.nn.InstanceNorm1d(6, affine=True), (2, 6, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_norms_and_their_gradients_are_pytorchs(device_name: str, name: str) -> None:
    ours, theirs, shape = NORMS[name]
    x = RNG.standard_normal(shape).astype(np.float32) * 3 + 1
    weights = RNG.standard_normal(shape).astype(np.float32)

    class Scaled(One):
        def __init__(self) -> None:
            super().__init__(ours())
            self.first = self.param(shape[1:], init=tg.init.ones())

    def loss(m: Scaled, x: Any) -> Any:
        y = m.layer(x * m.first)
        return tg.sum(y * weights), {"y": y}

    with tg.compile(model=Scaled(), loss=loss, inputs={"x": shape}, optimizer=optim.sgd(0.0), device=device_name,
                    keep_grads=True) as train:  # fmt: skip
        affine = [n for n in train.param_names if n != "first"]
        values = {n: RNG.standard_normal(6).astype(np.float32) for n in affine}
        train.upload_params(values)
        got, grads = train.step(x=x).aux["y"], train.download_grads()
    layer = theirs().double()
    if affine:
        layer.load_state_dict({"weight": torch.tensor(values["layer.g"]), "bias": torch.tensor(values["layer.b"])})
    first = torch.ones(shape[1:], dtype=torch.float64, requires_grad=True)
    y = layer(torch.tensor(x).double() * first)
    torch.sum(y * torch.tensor(weights)).backward()
    np.testing.assert_allclose(got, y.detach(), rtol=1e-5, atol=1e-5)
    want = {"first": first.grad} | ({"layer.g": layer.weight.grad, "layer.b": layer.bias.grad} if affine else {})
    for n, g in grads.items():
        np.testing.assert_allclose(g, want[n], rtol=1e-4, atol=1e-4, err_msg=n)


def test_a_sequence_passes_training_on_and_takes_functions() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm(8), tg.relu, nn.Dropout(0.5), nn.Linear(8, 2))
    assert list(nn.named_parameters(net)) == ["layers.0.W", "layers.0.b", "layers.1.g", "layers.1.b", "layers.4.W",
                                              "layers.4.b"]  # fmt: skip
    x = RNG.standard_normal((6, 3)).astype(np.float32)

    def forward(m: Any, x: Any) -> Any:
        return m(x), m[4](tg.relu(m[:2](x))), m(x, training=True)

    with tg.compile_forward(model=net, forward=forward, inputs={"x": (6, 3)}, seed=0, device="cpu", writes=True) as f:
        first, by_hand, training = f.run(x=x).output
        np.testing.assert_array_equal(first, by_hand)
        assert np.abs(training - first).max() > 0.01
        assert np.abs(f.states()["layers.1.mean"]).max() > 0
    m = tg.instantiate(net, seed=0)
    np.testing.assert_allclose(m(x).numpy(), first, rtol=1e-5, atol=1e-6)
    assert [*net] == net.layers and len(net[1:]) == 4 and net[:0]


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(tg.ShapeError, match="GroupNorm: groups=4 must divide dim=6"):
        nn.GroupNorm(4, 6)
    with pytest.raises(
        tg.TraceError, match="Sequential: entry 1 must be a layer or a function, got the class Linear: make"
    ):
        nn.Sequential(nn.Linear(3, 4), nn.Linear)
    with pytest.raises(tg.ShapeError, match=r"InstanceNorm: x must be \[B, 6, ...\], got f32\[2,5,3\]"):
        tg.trace(
            model=One(nn.InstanceNorm(6, affine=True)), loss=lambda m, x: tg.sum(m.layer(x)), inputs={"x": (2, 5, 3)}
        )
