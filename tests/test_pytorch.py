"""Every layer with PyTorch's weights: `from_torch`, equal outputs and gradients, and `to_torch` as its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from oracle import torch
from tracegrad import nn, optim

RNG = np.random.default_rng(5)
EVEN = {"kernel_size": 3, "stride": 2, "padding": 1}


def attention(**more: Any) -> Any:
    return torch.nn.MultiheadAttention(8, 2, batch_first=True, **more)


def encoder(**more: Any) -> Any:
    return torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu", **more)


CAUSAL = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if torch else None
# ours, PyTorch's, shape of x, how PyTorch's is called where that is not layer(x)
LAYERS: dict[str, tuple[Any, Any, tuple[int, ...], Any]] = {
    "linear": (lambda: nn.Linear(4, 6), lambda: torch.nn.Linear(4, 6), (3, 4), None),
    "conv1d": (lambda: nn.Conv1d(4, 6, groups=2, **EVEN), lambda:
               torch.nn.Conv1d(4, 6, groups=2, **EVEN), (2, 4, 9), None),
    "conv2d": (lambda: nn.Conv2d(4, 6, **EVEN), lambda: torch.nn.Conv2d(4, 6, **EVEN), (2, 4, 7, 6), None),
    "conv3d": (lambda: nn.Conv3d(2, 3, (2, 3, 1), padding=(1, 0, 0)),
               lambda: torch.nn.Conv3d(2, 3, (2, 3, 1), padding=(1, 0, 0)), (2, 2, 3, 5, 4), None),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
                         lambda: torch.nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2),
                         (2, 4, 3, 4), None),
    "dilated": (lambda: nn.Conv1d(4, 6, 3, dilation=4, padding=4), lambda:
                torch.nn.Conv1d(4, 6, 3, dilation=4, padding=4), (2, 4, 9), None),
    "same": (lambda: nn.Conv2d(4, 6, (3, 5), dilation=(2, 1), padding="same"), lambda:
             torch.nn.Conv2d(4, 6, (3, 5), dilation=(2, 1), padding="same"), (2, 4, 7, 6), None),
    "dilated_2d": (lambda: nn.Conv2d(4, 6, 3, dilation=(1, 2), padding=1), lambda:
                   torch.nn.Conv2d(4, 6, 3, dilation=(1, 2), padding=1), (2, 4, 7, 6), None),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1, groups=2, dilation=2),
                         lambda: torch.nn.ConvTranspose1d(4, 6, 4, 2, 1, groups=2, dilation=2), (2, 4, 5), None),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 3, (2, 3, 1), stride=(1, 2, 2), output_padding=(0, 1, 1)),
                         lambda: torch.nn.ConvTranspose3d(2, 3, (2, 3, 1), (1, 2, 2), output_padding=(0, 1, 1)),
                         (2, 2, 3, 2, 4), None),
    "layer_norm": (lambda: nn.LayerNorm(6), lambda: torch.nn.LayerNorm(6), (3, 6), None),
    "group_norm": (lambda: nn.GroupNorm(2, 6), lambda: torch.nn.GroupNorm(2, 6), (3, 6, 4), None),
    "batch_norm": (lambda: nn.BatchNorm(6), lambda: torch.nn.BatchNorm2d(6).eval(), (3, 6, 2, 2), None),
    "lstm": (lambda: nn.LSTM(4, 5, layers=2, bidirectional=True),
             lambda: torch.nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), (2, 3, 4), None),
    "gru": (lambda: nn.GRU(4, 5), lambda: torch.nn.GRU(4, 5, batch_first=True), (2, 3, 4), None),
    "attention": (lambda: nn.MultiheadAttention(8, 2), attention, (2, 5, 8), lambda layer, x: layer(x, x, x)),
    "causal": (lambda: nn.MultiheadAttention(8, 2, causal=True, bias=False), lambda: attention(bias=False), (2, 5, 8),
               lambda layer, x: layer(x, x, x, attn_mask=CAUSAL)),
    "block": (lambda: nn.TransformerBlock(8, 2, hidden=16), lambda: encoder(norm_first=True), (2, 5, 8), None),
    "block_post_norm": (lambda: nn.TransformerBlock(8, 2, hidden=16, norm_first=False, causal=True), encoder, (2, 5, 8),
                        lambda layer, x: layer(x, src_mask=CAUSAL)),
}  # fmt: skip


class Wrapped(tg.Module):
    """The layer behind a parameter, whose gradient is that of the layer's input."""

    def __init__(self, layer: Any, shape: tuple[int, ...]) -> None:
        self.net = nn.Sequential(layer)
        self.x = self.param(shape)


def first(y: Any) -> Any:
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_pytorchs_with_its_weights(device_name: str, name: str) -> None:
    ours, theirs, shape, call = LAYERS[name]
    torch.manual_seed(3)
    layer = theirs()
    for b in layer.buffers():
        b.data = torch.rand_like(b.float()) + 0.5 if b.is_floating_point() else b
    layer.double()
    x = torch.tensor(RNG.standard_normal(shape), requires_grad=True)
    y = first(call(layer, x) if call else layer(x))
    weights = np.linspace(-1, 1, y.numel()).reshape(y.shape).astype(np.float32)
    torch.sum(y * torch.tensor(weights)).backward()

    def loss(m: Wrapped) -> Any:
        y = first(m.net(m.x))
        return tg.sum(y * weights), {"y": y}

    net = torch.nn.Sequential(layer)
    with tg.compile(model=Wrapped(ours(), shape), loss=loss, inputs={}, optimizer=optim.sgd(0.0), device=device_name,
                    keep_grads=True) as train:  # fmt: skip
        report = tg.from_torch(
            {"x": x.detach(), **net.state_dict()}, train, rename=lambda n: n if n == "x" else f"net.{n}"
        )
        assert report.complete, report
        got, grads = train.step().aux["y"], train.download_grads()
        back = tg.to_torch(train)
        np.testing.assert_allclose(got, y.detach(), rtol=2e-5, atol=2e-5)
        for key, value in net.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                np.testing.assert_array_equal(back.pop(f"net.{key}"), value.float())
        assert list(back) == ["x"]
        # gradients take the way of the weights: as a record of PyTorch's
        named = {f"net.0.{n}": p.grad for n, p in layer.named_parameters()}
        tg.from_torch({"x": x.grad, **named}, train)
        for key, g in train.download_params().items():
            np.testing.assert_allclose(grads[key], g, rtol=2e-4, atol=2e-5 * max(1, np.abs(g).max()), err_msg=key)


class Tied(tg.Module):
    def __init__(self) -> None:
        self.embed, self.blocks = nn.Embedding(7, 4), [nn.Linear(4, 4), nn.RMSNorm(4)]
        self.head = nn.Linear(4, 7, bias=False)
        self.gate = self.param(4)
        self.seen = self.state(3)


def forward(m: Tied, t: Any) -> Any:
    return m.head(m.blocks[1](m.blocks[0](m.embed(t))) * m.gate)


def test_what_matches_what_is_left_and_what_is_renamed() -> None:
    rng = np.random.default_rng(1)
    state = {"transformer.embed.weight": rng.random((7, 4)), "transformer.blocks.0.weight": rng.random((4, 4)),
             "transformer.blocks.0.bias": rng.random(4), "transformer.blocks.1.weight": rng.random(4),
             "lm.weight": rng.random((7, 4)), "extra": rng.random(2)}  # fmt: skip
    state = {name: x.astype(np.float32) for name, x in state.items()}
    with tg.compile_forward(model=Tied(), forward=forward, inputs={"t": tg.i32[3]}, device="cpu") as infer:
        with pytest.raises(tg.InputError, match=r"no name fits.*rename=\{'transformer': ''\}"):
            tg.from_torch(state, infer)
        report = tg.from_torch(state, infer, rename={"transformer": "", "lm": "head"})
        assert report.missing == ("gate", "seen") and report.unused == ("extra",) and not report.complete
        assert report.matched["head.W"] == "head.weight" and "5 matched, 2 missing here, 1 unused" in str(report)
        np.testing.assert_array_equal(infer.download_params()["head.W"], state["lm.weight"].T)
        wrong = {**state, "transformer.blocks.0.weight": np.zeros((5, 4), np.float32)}
        with pytest.raises(tg.InputError, match=r"is float32\[5, 4\]; blocks.0.W transposed is \[4, 4\]"):
            tg.from_torch(wrong, infer, rename={"transformer": "", "lm": "head"})
        with pytest.raises(tg.InputError, match=r"write net.state_dict\(\)"):
            tg.from_torch([1], infer)
        assert list(tg.to_torch(infer)) == ["embed.weight", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight",
                                            "head.weight", "gate", "seen"]  # fmt: skip


def test_tied_weights_must_agree() -> None:
    class Model(tg.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(2, 2)
            self.b = self.a

    one, other = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)
    bias = {"a.bias": one[0], "b.bias": one[0]}
    with tg.compile_forward(model=Model(), forward=lambda m, x: m.b(x), inputs={"x": (1, 2)}, device="cpu") as infer:
        assert tg.from_torch({"a.weight": one, "b.weight": one, **bias}, infer).complete
        assert sorted(tg.to_torch(infer)) == ["a.bias", "a.weight", "b.bias", "b.weight"]
        with pytest.raises(tg.InputError, match=r"a\.W is both a\.weight and b\.weight, which differ"):
            tg.from_torch({"a.weight": one, "b.weight": other}, infer)
