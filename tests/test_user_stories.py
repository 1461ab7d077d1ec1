"""Whole programs as a newcomer writes them from the interface's page, and the mistakes that newcomers make."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.errors import CallError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 3)).astype(np.float32)
Y = RNG.standard_normal((8, 2)).astype(np.float32)
INPUTS = {"x": (8, 3), "y": (8, 2)}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGRAD_DEVICE", "cpu")


class Line(tg.Module):
    def __init__(self) -> None:
        self.l = nn.Linear(3, 2)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l(x)


def mse(m: Line, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(m(x), y)


def line(**changes: Any) -> tg.CompiledTraining:
    arguments = {"model": Line(), "loss": mse, "inputs": INPUTS, "optimizer": optim.sgd(0.1), "seed": 0}
    return tg.compile(**{**arguments, **changes})


def torch_parameters(train: tg.CompiledTraining) -> dict[str, torch.Tensor]:
    return {n: torch.tensor(v, requires_grad=True) for n, v in train.download_params().items()}


def test_an_empty_device_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGRAD_DEVICE", "")
    with line() as train:
        assert np.isfinite(train.step(x=X, y=Y).loss)
    monkeypatch.setenv("TRACEGRAD_DEVICE", "gpu")
    with pytest.raises(tg.DeviceError, match="TRACEGRAD_DEVICE is 'gpu'; it must be one of 'auto'"):
        line()


# --- programs ---


def test_an_autoencoder_follows_pytorch():
    class Auto(tg.Module):
        def __init__(self) -> None:
            self.encoder = [nn.Linear(20, 10), nn.Linear(10, 3)]
            self.decoder = [nn.Linear(3, 10), nn.Linear(10, 20)]

    def loss(m: Auto, x: tg.Tensor) -> tg.Tensor:
        h = x
        for layer in m.encoder + m.decoder:
            h = tg.tanh(layer(h))
        return tg.mse_loss(h, x)

    x = RNG.standard_normal((32, 20)).astype(np.float32)
    with tg.compile(model=Auto(), loss=loss, inputs={"x": (32, 20)}, optimizer=optim.adam(1e-2), seed=1) as train:
        p = torch_parameters(train)
        ours = [train.step(x=x).loss for _ in range(30)]
    optimizer, theirs = torch.optim.Adam(p.values(), 1e-2), []
    for _ in range(30):
        h = torch.tensor(x)
        for name in ("encoder.0", "encoder.1", "decoder.0", "decoder.1"):
            h = torch.tanh(h @ p[f"{name}.W"] + p[f"{name}.b"])
        value = ((h - torch.tensor(x)) ** 2).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        theirs.append(value.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_an_unrolled_rnn_with_tied_weights_follows_pytorch():
    class RNN(tg.Module):
        def __init__(self) -> None:
            self.emb, self.w, self.u = nn.Embedding(11, 16), nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
            self.head = self.emb  # tied

        def __call__(self, tokens: tg.Tensor) -> tg.Tensor:
            h, states = tg.zeros((tokens.shape[0], 16)), []
            for t in range(tokens.shape[1]):
                h = tg.tanh(self.w(self.emb(tokens[:, t])) + self.u(h))
                states.append(h)
            return tg.stack(states, axis=1) @ self.head.W.T

    tokens = RNG.integers(0, 11, (4, 9))
    train = tg.compile(
        model=RNN(), loss=lambda m, tokens: tg.cross_entropy(m(tokens[:, :-1]), tokens[:, 1:]),
        inputs={"tokens": tg.i32[4, 9]}, optimizer=optim.adamw(1e-2, weight_decay=0.1, clip_grad_norm=1.0), seed=2,
    )  # fmt: skip
    assert train.param_names == ["emb.W", "w.W", "w.b", "u.W"]
    p = torch_parameters(train)
    ours = [train.step(tokens=tokens).loss for _ in range(10)]
    decayed = {"params": [p["emb.W"], p["w.W"], p["u.W"]], "weight_decay": 0.1}
    optimizer = torch.optim.AdamW([decayed, {"params": [p["w.b"]], "weight_decay": 0.0}], 1e-2)
    seen, theirs = torch.tensor(tokens), []
    for _ in range(10):
        h, states = torch.zeros(4, 16), []
        for t in range(8):
            h = torch.tanh(p["emb.W"][seen[:, t]] @ p["w.W"] + p["w.b"] + h @ p["u.W"])
            states.append(h)
        logits = torch.stack(states, 1) @ p["emb.W"].T
        value = torch.nn.functional.cross_entropy(logits.reshape(-1, 11), seen[:, 1:].reshape(-1))
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        optimizer.step()
        theirs.append(value.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_gan_is_two_trainings_and_a_frozen_copy():
    def critic(a: tg.Tensor, b: tg.Tensor, x: tg.Tensor) -> tg.Tensor:
        return tg.leaky_relu(x @ a, 0.2) @ b

    class Critic(tg.Module):
        def __init__(self, trainable: bool) -> None:
            self.a = self.param((2, 16), init=tg.init.kaiming(), trainable=trainable)
            self.b = self.param((16, 1), init=tg.init.kaiming(), trainable=trainable)

    class Generator(tg.Module):
        def __init__(self) -> None:
            self.a, self.b, self.critic = nn.Linear(4, 16), nn.Linear(16, 2), Critic(trainable=False)

    def make(m: Generator, z: tg.Tensor) -> tg.Tensor:
        return m.b(tg.relu(m.a(z)))

    def fool(m: Generator) -> tg.Tensor:
        scores = critic(m.critic.a, m.critic.b, make(m, tg.randn((32, 4))))
        return tg.binary_cross_entropy_with_logits(scores, tg.ones((32, 1)))

    def tell(m: Critic, real: tg.Tensor, fake: tg.Tensor) -> tg.Tensor:
        scores = tg.concat([critic(m.a, m.b, real), critic(m.a, m.b, fake)])
        return tg.binary_cross_entropy_with_logits(scores, tg.concat([tg.ones((32, 1)), tg.zeros((32, 1))]))

    g = tg.compile(model=Generator(), loss=fool, inputs={}, optimizer=optim.adam(1e-3), seed=0)
    d = tg.compile(
        model=Critic(trainable=True), loss=tell, inputs={"real": (32, 2), "fake": (32, 2)},
        optimizer=optim.adam(1e-2), seed=0,
    )  # fmt: skip
    generate = g.attach(forward=make, inputs={"z": (None, 4)})
    losses = []
    for _ in range(20):
        fake = generate.run(z=RNG.standard_normal((32, 4)).astype(np.float32)).output
        real = (RNG.standard_normal((32, 2)) + 3).astype(np.float32)
        losses.append(d.step(real=real, fake=fake).loss)
        g.upload_params({f"critic.{n}": x for n, x in d.download_params().items()})
        frozen = g.download_params()["critic.a"]
        assert np.isfinite(g.step().loss)
        np.testing.assert_array_equal(g.download_params()["critic.a"], frozen)
    assert losses[-1] < losses[0]


def test_a_vae_draws_the_same_numbers_after_reset():
    class VAE(tg.Module):
        def __init__(self) -> None:
            self.mu, self.log_var, self.decoder = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(2, 3)

    def loss(m: VAE, x: tg.Tensor) -> Any:
        mu, log_var = m.mu(x), m.log_var(x)
        z = mu + tg.exp(0.5 * log_var) * tg.randn(mu.shape)
        kl = -0.5 * tg.mean(1 + log_var - mu**2 - tg.exp(log_var))
        return tg.mse_loss(m.decoder(z), x) + 0.1 * kl, {"z": z, "kl": kl}

    train = tg.compile(model=VAE(), loss=loss, inputs={"x": (8, 3)}, optimizer=optim.rmsprop(1e-3), seed=4)
    first, second = train.step(x=X).aux["z"], train.step(x=X).aux["z"]
    train.reset()
    np.testing.assert_array_equal(train.step(x=X).aux["z"], first)
    assert not np.array_equal(first, second)


def test_an_average_of_the_parameters_can_be_read_and_used():
    train = line(optimizer=optim.adam(1e-2, ema=0.9))
    expected = train.download_params()
    for _ in range(10):
        train.step(x=X, y=Y)
        expected = {n: 0.9 * expected[n] + 0.1 * v for n, v in train.download_params().items()}
    averages = train.download_params(ema=True)
    assert averages.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(averages[name], value, atol=1e-6)
    shadow = tg.compile_forward(model=Line(), forward=lambda m, x: m(x), inputs={"x": (None, 3)})
    shadow.upload_params(averages, strict=True)
    np.testing.assert_allclose(shadow.run(x=X).output, X @ averages["l.W"] + averages["l.b"], rtol=1e-5, atol=1e-6)
    with pytest.raises(tg.InputError, match="ema"):
        line().download_params(ema=True)


def test_an_average_begins_at_the_parameters_that_fine_tuning_starts_from():
    train = line(optimizer=optim.sgd(0.0, ema=0.9))
    start = {"l.W": np.full((3, 2), 5, np.float32), "l.b": np.ones(2, np.float32)}
    train.upload_params(start)
    train.step(x=X, y=Y)
    for name, value in train.download_params(ema=True).items():
        np.testing.assert_allclose(value, start[name], rtol=1e-6)


def test_a_torch_loader_with_evaluation_and_early_stop():
    data = TensorDataset(torch.tensor(X.repeat(8, 0)), torch.tensor(Y.repeat(8, 0)))
    train = line(optimizer=optim.adam(1e-2))
    infer = train.attach(forward=lambda m, x: m(x), inputs={"x": (None, 3)})

    def evaluate(_: tg.CompiledTraining) -> dict[str, float]:
        return {"error": float(np.mean((infer.run(x=X).output - Y) ** 2))}

    def stop(state: Any) -> None:
        state.stop = state.step == 12

    loader: Any = DataLoader(data, batch_size=8, shuffle=True)
    history = train.fit(loader, epochs=3, evaluate=evaluate, every=4, callbacks=[stop], progress=False)
    assert history.step == list(range(1, 13)) and [m["step"] for m in history.metrics] == [4, 8, 12]
    assert "12 steps" in repr(history) and len(repr(history)) < 120


def test_asyncio_with_a_queue_a_failure_and_a_match():
    async def main() -> list[str]:
        train = line()
        results = await asyncio.gather(*[train.step(x=X, y=Y) for _ in range(20)], train.step(x=X[:2], y=Y))
        await train.step(x=X, y=Y)
        train.close()
        seen: list[str] = []
        for r in (*results, await train.step(x=X, y=Y)):
            match r:
                case tg.Completed(loss=value):
                    seen.append("completed" if value > 0 else "?")
                case tg.Failed(error=tg.InputError()):
                    seen.append("failed")
                case tg.Aborted(reason=why):
                    seen.append(why)
        return seen

    assert asyncio.run(main()) == ["completed"] * 20 + ["failed", "closed"]


def test_resuming_in_another_process(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, numpy as np, tracegrad as tg\n"
        "from tracegrad import lr, nn, optim\n"
        "x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)\n"
        "schedule = lr.warmup(peak=0.1, steps=3, after=lr.linear(peak=0.1, final=0.0, steps=10))\n"
        "train = tg.compile(model=nn.Linear(3, 2), loss=lambda m, x: tg.mean(tg.dropout(m(x), 0.5) ** 2 + m(x)),\n"
        "                   inputs={'x': (8, 3)}, optimizer=optim.adam(schedule),\n"
        "                   seed=int(sys.argv[1]), device='cpu')\n"
        "if sys.argv[2:]: train.load(sys.argv[2])\n"
        "else: train.run_steps(5, x=x).result(); train.save('half.safetensors')\n"
        "print([train.step(x=x).loss for _ in range(5)])\n"
    )
    run = [sys.executable, str(program)]
    first = subprocess.run([*run, "7"], cwd=tmp_path, capture_output=True, text=True, check=True)
    second = subprocess.run([*run, "8", "half.safetensors"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert first.stdout == second.stdout


def test_a_notebook_shows_short_reprs():
    train = line()
    shown: list[Any] = [
        train, train.graph, train.program, train.kernels[0], train.memory, train.step(x=X, y=Y), optim.adamw(1e-3),
        Line(), lr.linear(peak=1.0, final=0.0, steps=3), tg.check_webgpu(), train.device, tg.f32[2, 3],
    ]  # fmt: skip
    for value in shown:
        assert len(repr(value)) < 700 and " object at 0x" not in repr(value) and "<function" not in repr(value)
    assert repr(Line()) == "<Line: 8 parameters in l.W f32[3,2], l.b f32[2]>"
    assert repr(optim.sgd(0.1)) == "optim.sgd(lr=0.1, nesterov=False)"


def test_parameters_that_the_loss_forgets_are_named_at_compile():
    class Forgetful(Line):
        def __init__(self) -> None:
            super().__init__()
            self.forgotten = nn.Linear(3, 3)

    with pytest.warns(UserWarning, match=r"does not use forgotten\.W, forgotten\.b") as found:
        tg.compile(model=Forgetful(), loss=mse, inputs=INPUTS, optimizer=optim.sgd(0.1))
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        line()


# --- mistakes ---


def traced(forward: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: tg.trace_forward(model=Line(), forward=forward, inputs=INPUTS)


TORCH_X: Any = torch.ones(3)
NAMELESS: Any = object()  # and others that type checkers would refuse
WRONG_METRICS: Any = lambda train: 3
NOT_DATA: Any = 3
NOT_A_NUMBER: Any = 2.5
OWN_ADAM = optim.custom(optim.scale_by_adam(), lr=0.1)
NOT_A_LIST: Any = print
NOT_A_FILTER: Any = 3
NO_SHAPE: Any = (None, 2)
MODULE: Any = tg.Module()
NOT_A_DTYPE: Any = 3
PYTORCH: Any = tg  # read by PyTorch's names
MODEL: Any = Line()
TORCH_LINEAR: Any = torch.nn.Linear(3, 2)


class WithParam(tg.Module):
    def __init__(self, shape: Any, init: Any = None) -> None:
        self.w = self.param(shape, init=init)


class NoModule:
    def __init__(self) -> None:
        self.l = nn.Linear(3, 2)


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "item": (traced(lambda m, x, y: tg.mean(x).item()), tg.TraceError, r"f32\[\].*'item'.*aux"),
    "view": (traced(lambda m, x, y: x.view(-1)), tg.TraceError, r"write x\.reshape"),
    "backward": (traced(lambda m, x, y: tg.mean(x).backward()), tg.TraceError, "derives the gradient"),
    "detach": (traced(lambda m, x, y: x.detach()), tg.TraceError, r"tg\.stop_gradient"),
    "typo": (traced(lambda m, x, y: x.reshpae(24)), tg.TraceError, r"did you mean x\.reshape"),
    "float": (traced(lambda m, x, y: float(tg.mean(x))), tg.TraceError, "not known while tracing"),
    "assignment": (traced(lambda m, x, y: x.__setitem__(0, 1.0)), tg.TraceError, r"changed in place.*tg\.where"),
    "numpy": (traced(lambda m, x, y: np.square(x)), tg.TraceError, r"numpy\.square.*tg\.square"),
    "numpy mean": (traced(lambda m, x, y: np.mean(x)), tg.TraceError, r"numpy\.mean.*tg\.mean"),
    "torch": (traced(lambda m, x, y: torch.relu(x)), tg.TraceError, r"torch\.relu.*tg\.relu"),
    "torch constant": (traced(lambda m, x, y: x + TORCH_X), tg.DTypeError, r"array torch\.float32\[3\].*\.numpy\(\)"),
    "concat": (traced(lambda m, x, y: tg.concat(x, x)), tg.ShapeError, "tensors in one list"),
    "randn": (traced(lambda m, x, y: tg.randn(NO_SHAPE)), tg.ShapeError, r"a size must be an integer, got None"),
    "twice": (traced(lambda m, x, y: [tg.capture("a", x) for _ in "ab"]), tg.TraceError, "'a' is taken.*once only"),
    "a part": (traced(lambda m, x, y: {"a": x, "b": 3}), tg.CompileError, "dict, where 'b' is an int"),
    "no return": (lambda: line(loss=lambda m, x, y: None), tg.CompileError, "is the return missing"),
    "no model": (lambda: line(loss=lambda x, y: tg.mean(x)), tg.InputError, r"the model, as in loss\(m, x, y\)"),
    "outside": (lambda: tg.relu(nn.Linear(2, 2).W), tg.DTypeError, "relu: .*of a model outside its forward"),
    "forward": (traced(lambda m, x, y: MODULE(x)), tg.TraceError, "PyTorch's forward"),
    "optimizer": (lambda: line(optimizer="adam"), tg.InputError, r"optim\.adam\(lr=1e-3\); got 'adam'"),
    "not called": (lambda: line(optimizer=optim.adam), tg.InputError, "call it"),
    "filter": (lambda: optim.adamw(0.1, decay_filter=NOT_A_FILTER), tg.InputError, "decay_filter must be a function"),
    "rate": (lambda: optim.adam(-1.0), tg.InputError, r"lr must be at least 0, got -1\.0"),
    "schedule": (lambda: lr.linear(peak=1.0, final=0.0, steps=0), tg.InputError, r"lr\.linear: steps must be above 0"),
    "array": (lambda: line(inputs={"x": X, "y": (8, 2)}), tg.InputError, r"shape \(8, 3\); pass values to step"),
    "attach": (lambda: line().attach(forward=lambda m, z: z, inputs={"x": (8, 3)}), tg.InputError, "'z', which is not"),
    "set": (lambda: line().set(learning_rate=0.01), tg.InputError, r"learning_rate is not .*; write lr=0\.01; .*: lr"),
    "decay": (lambda: line(optimizer=OWN_ADAM).set(weight_decay=0.1), tg.InputError, r"not .* as optim\.adamw\(lr="),
    "in place": (traced(lambda m, x, y: PYTORCH.relu(x, inplace=True)), CallError, "'inplace': .* use the result"),
    "module": (lambda: line().upload_params(NAMELESS), tg.InputError, "a dict of arrays by name; got object"),
    "steps": (lambda: line().run_steps(NOT_A_NUMBER, x=X, y=Y).loss, tg.InputError, r"an integer .* got 2\.5"),
    "callback": (lambda: line().fit([(X, Y)], callbacks=NOT_A_LIST), tg.InputError, "callbacks.*put it in a list"),
    "data": (lambda: line().fit(NOT_DATA, progress=False), tg.InputError, "data must be an iterable of batches"),
    "a layer": (lambda: PYTORCH.nn.ReLU, tg.TraceError, r"no 'ReLU': did you mean tg\.relu"),
    "a loss": (lambda: PYTORCH.nn.MSELoss, tg.TraceError, r"did you mean tg\.mse_loss"),
    "adam": (lambda: PYTORCH.optim.Adam, tg.TraceError, r"did you mean optim\.adam"),
    "cat": (lambda: PYTORCH.cat, tg.TraceError, r"write tg\.concat"),
    "dtype": (lambda: PYTORCH.int64, tg.TraceError, r"write tg\.i32"),
    "format": (traced(lambda m, x, y: f"{tg.mean(x):.3f}"), tg.TraceError, "not known while tracing"),
    "torch layer": (traced(lambda m, x, y: TORCH_LINEAR(x)), tg.TraceError, r"torch\.linear cannot compute"),
    "values": (lambda: MODEL.l.W.data, tg.TraceError, r"has no 'data', because it has no values: .*init\.literal"),
    "array as shape": (lambda: WithParam(X[0]), tg.ShapeError, r"must be integers.*init=tg\.init\.literal"),
    "init": (lambda: WithParam((2,), "zeros"), tg.DTypeError, r"write tg\.init\.zeros\(\)"),
    "no module": (lambda: tg.summary(NoModule()), tg.TraceError, r"derive it: class NoModule\(tg\.Module\)"),
    "two shapes": (lambda: tg.zeros(2, NOT_A_DTYPE), tg.DTypeError, "a shape goes in one tuple"),
    "transposed": (lambda: line().step(x=X.T, y=Y).loss, tg.InputError, r"f32\[3,8\].*another order: transpose"),
    "constant class": (traced(lambda m, x, y: tg.cross_entropy(x, [3] * 8)), tg.InputError, "class 3 is out of range"),
    "metrics": (lambda: line().fit([(X, Y)], evaluate=WRONG_METRICS, progress=False), tg.InputError, "return a dict"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_explained_at_the_users_line(name: str):
    call, error, message = MISTAKES[name]
    with pytest.raises(error) as e:
        call()
    assert re.search(message, str(e.value)), str(e.value)
    assert isinstance(e.value, tg.TracegradError) and "at " + __file__ in str(e.value)


def test_wrong_names_on_results_say_what_there_is(tmp_path: Path):
    train = line()
    p = train.step(x=X, y=Y)
    with pytest.raises(AttributeError, match="the result of step has no output; it has loss"):
        _ = p.output
    with pytest.raises(KeyError, match="there is no"):
        _ = p.aux["accuracy"]
    said = f"there is no folder {tmp_path / 'missing'} to write to: '{tmp_path / 'missing' / 'file'}'"
    with pytest.raises(FileNotFoundError, match=re.escape(said)):
        train.save(tmp_path / "missing" / "file")


def test_what_tensors_lack_is_still_an_attribute_error():
    def forward(m: Line, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        assert not hasattr(x, "cuda") and getattr(x, "grad", None) is None
        return np.ones((8, 3), np.float32) * x + np.float64(2) * x  # NumPy on the left of an operator

    assert tg.trace_forward(model=Line(), forward=forward, inputs=INPUTS).outputs["output"].shape == (8, 3)
