"""Recurrent layers against PyTorch with its weights: outputs, states, gradients, lengths, both directions, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from oracle import torch
from tracegrad import nn, optim

KINDS = ("RNN", "GRU", "LSTM")
RNG = np.random.default_rng(7)
B, T, IN, H = 3, 5, 4, 6
X = RNG.standard_normal((B, T, IN)).astype(np.float32)
LENGTHS = np.array([5, 2, 4], np.int32)


class Model(tg.Module):
    def __init__(self, kind: str, **more: Any) -> None:
        self.layer = getattr(nn, kind)(IN, H, **more)


def oracle(kind: str, params: dict[str, Any], layers: int, bidirectional: bool) -> Any:
    """PyTorch's layer with our weights, in double precision."""
    layer = getattr(torch.nn, kind)(IN, H, layers, batch_first=True, bidirectional=bidirectional).double()
    directions = 1 + bidirectional
    named = {"W_ih": "weight_ih", "W_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
    state = {
        f"{theirs}_l{k // directions}{'_reverse' * (k % directions)}": torch.tensor(
            params[f"layer.cells.{k}.{ours}"], dtype=torch.float64
        )
        for k in range(layers * directions)
        for ours, theirs in named.items()
    }
    layer.load_state_dict(state)
    return layer, {f"layer.cells.{k}.{ours}": f"{theirs}_l{k // directions}{'_reverse' * (k % directions)}"
                   for k in range(layers * directions) for ours, theirs in named.items()}  # fmt: skip


def flat(kind: str, state: Any) -> list[Any]:
    return list(state) if kind == "LSTM" else [state]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize("given", ["zeros", "state", "lengths", "one row"])
def test_outputs_states_and_gradients_are_pytorchs(
    device_name: str, kind: str, layers: int, bidirectional: bool, given: str
) -> None:
    rows = X[:1] if given == "one row" else X  # of one, a sum over the batch is none
    shape = (layers * (1 + bidirectional), B, H)
    first = [RNG.standard_normal(shape).astype(np.float32) for _ in range(2 if kind == "LSTM" else 1)]
    inputs: dict[str, Any] = {"x": rows.shape}
    batch: dict[str, Any] = {"x": rows}
    if given == "state":
        inputs |= {f"s{k}": shape for k in range(len(first))}
        batch |= {f"s{k}": s for k, s in enumerate(first)}
    if given == "lengths":
        inputs["n"], batch["n"] = tg.i32[B], LENGTHS
    weights = np.linspace(-1, 1, T * H * (1 + bidirectional)).reshape(T, -1).astype(np.float32)

    def run(m: Model, x: Any, s0: Any = None, s1: Any = None, n: Any = None) -> Any:
        state = None if s0 is None else (s0, s1) if kind == "LSTM" else s0
        return m.layer(x, state=state, lengths=n)

    def loss(m: Model, **values: Any) -> Any:
        y, state = run(m, **values)
        parts = flat(kind, state)
        aux = {"y": y, **{f"s{k}": s for k, s in enumerate(parts)}}
        return tg.sum(y * weights) + tg.sum(tg.square(parts[0])), aux

    names = ", ".join(inputs)
    wrapped = eval(f"lambda m, {names}: loss(m, {', '.join(f'{n}={n}' for n in inputs)})", {"loss": loss})
    model = Model(kind, layers=layers, bidirectional=bidirectional)
    with tg.compile(model=model, loss=wrapped, inputs=inputs, optimizer=optim.sgd(0.0), seed=2, device=device_name,
                    keep_grads=True) as train:  # fmt: skip
        params = train.download_params()
        r = train.step(batch)
        got, grads = r.aux, train.download_grads()
    layer, theirs = oracle(kind, params, layers, bidirectional)
    x = torch.tensor(rows).double()
    start = [torch.tensor(s).double() for s in first]
    start = None if given != "state" else tuple(start) if kind == "LSTM" else start[0]
    if given == "lengths":
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), True, enforce_sorted=False)
        y, state = layer(packed, start)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=T)
    else:
        y, state = layer(x, start)
    parts = flat(kind, state)
    (torch.sum(y * torch.tensor(weights)) + torch.sum(parts[0] ** 2)).backward()
    # five steps of sums of at most 12 products of size 1: some hundred roundings of 6e-8
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(got["y"], y.detach(), **close)
    for k, s in enumerate(parts):
        np.testing.assert_allclose(got[f"s{k}"], s.detach(), **close)
    found = dict(layer.named_parameters())
    for name, g in grads.items():
        want = found[theirs[name]].grad.numpy()
        np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(want).max()), err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_eager_gives_what_is_compiled(kind: str) -> None:
    def forward(m: Model, x: Any, n: Any) -> Any:
        y, state = m.layer(x, lengths=n)
        return (y, *flat(kind, state))

    model = Model(kind, layers=2, bidirectional=True)
    with tg.compile_forward(model=model, forward=forward, inputs={"x": (B, T, IN), "n": tg.i32[B]}, seed=3,
                            device="cpu") as infer:  # fmt: skip
        want = infer.run(x=X, n=LENGTHS).output
        for a, b in zip(tg.eager(forward, infer, x=X, n=LENGTHS), want, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)


def test_dropout_lies_between_layers_in_training_only() -> None:
    def forward(m: Model, x: Any) -> Any:
        return m.layer(x)[0], m.layer(x, training=True)[0]

    for layers, same in ((1, True), (2, False)):
        with tg.compile_forward(model=Model("GRU", layers=layers, dropout=0.5), forward=forward,
                                inputs={"x": (B, T, IN)}, seed=3, device="cpu") as infer:  # fmt: skip
            a, b = infer.run(x=X).output
            assert np.array_equal(a, b) == same


def test_what_does_not_fit_is_an_error() -> None:
    def of(**given: Any) -> Any:
        return lambda m, x: tg.sum(m.layer(x, **given)[0])

    wrong = [
        (of(), (B, T, 5), r"LSTM: x must be \[B, T, 4\], got f32\[3,5,5\]"),
        (of(state=np.zeros((1, B, H), np.float32)), (B, T, IN), r"LSTM: the state must be \(h, c\), each f32\[1,3,6\]"),
        (of(lengths=np.array([1, 2], np.int32)), (B, T, IN), r"LSTM: lengths must be i32\[3\], one for each of x"),
    ]
    for loss, shape, text in wrong:
        with pytest.raises(tg.ShapeError, match=text):
            tg.trace(model=Model("LSTM"), loss=loss, inputs={"x": shape})
    with pytest.raises(tg.ShapeError, match="GRU: input_dim=4, hidden_dim=6 and layers=0 must be integers"):
        Model("GRU", layers=0)


@pytest.mark.parametrize("lengths", [[0, 6, 1], [-1, 2, 3]])
def test_known_lengths_are_within_the_sequence(lengths: list[int]) -> None:
    n, layer = np.array(lengths, np.int32), nn.GRU(IN, H)
    with pytest.raises(tg.InputError, match="GRU: lengths must be from 0 to 5"):
        tg.instantiate(layer, seed=0)(X, lengths=n)
    with pytest.raises(tg.InputError, match="GRU: lengths must be from 0 to 5"):
        tg.trace(model=layer, loss=lambda m, x: tg.sum(m(x, lengths=n)[0]), inputs={"x": X.shape})


@pytest.mark.parametrize("size", [T, "T"])
def test_lengths_that_a_run_gets_are_within_the_sequence(size: Any) -> None:
    layer, inputs = nn.GRU(IN, H), {"x": (B, size, IN), "n": tg.i32[B]}
    net = tg.compile_forward(
        model=layer, forward=lambda m, x, n: m(x, lengths=n)[0], inputs=inputs, device="cpu", seed=0
    )
    assert net.run(x=X, n=[T, 0, 2]).output.shape == (B, T, H)
    for wrong in (T + 1, -1):
        with pytest.raises(
            tg.InputError, match=rf"n: value {wrong} at \[1\] is out of range; valid values are 0 to {T}"
        ):
            _ = net.run(x=X, n=[T, wrong, 2]).output


def test_errors_name_the_layer_for_empty_sequences_and_lengths_of_another_dtype() -> None:
    for layer in (nn.RNN, nn.GRU, nn.LSTM):
        m, name = tg.instantiate(layer(IN, H), seed=0), layer.__name__
        with pytest.raises(tg.ShapeError, match=f"{name}: axis 1 of x, the sequence, must have at least 1 element"):
            m(X[:, :0])
        with pytest.raises(tg.DTypeError, match=rf"{name}: lengths must be i32.*got u32.*tg.cast\(lengths, tg.i32\)"):
            m(X, lengths=np.ones(B, np.uint32))


def test_a_length_of_0_keeps_the_state() -> None:
    state = np.ones((1, B, H), np.float32)
    layer = tg.instantiate(nn.GRU(IN, H), seed=0)
    y, last = layer(X, state=state, lengths=np.array([0, 5, 2], np.int32))
    assert not y.numpy()[0].any() and np.array_equal(last.numpy()[:, 0], state[:, 0])
