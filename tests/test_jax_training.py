"""Trainings with device="jax": the same numbers, files, random streams and failures as on the CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim

pytest.importorskip("jax", reason="JAX is not installed")
NEAR = 1e-5  # relative: what the project promises of JAX beside the CPU


class Net(tg.Module):
    def __init__(self) -> None:
        self.l1, self.norm, self.l2 = nn.Linear(6, 10, bias=False), nn.BatchNorm(10), nn.Linear(10, 3)

    def __call__(self, x: tg.Tensor, training: bool = False) -> tg.Tensor:
        return self.l2(tg.dropout(tg.gelu(self.norm(self.l1(x), training=training)), 0.2 if training else 0.0))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> Any:
    logits = m(x, training=True)
    tg.capture("logits", logits)
    return tg.cross_entropy(logits, y), {"right": tg.mean(tg.cast(tg.argmax(logits, -1) == y, tg.f32))}


def batches(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.standard_normal((8, 6)).astype(np.float32), "y": rng.integers(0, 3, 8).astype(np.int32)}
        for _ in range(n)
    ]


def compiled(device: str, optimizer: Any = None, **more: Any) -> tg.CompiledTraining:
    made = optimizer or optim.adamw(lr=1e-2, weight_decay=0.1, clip_grad_norm=0.5, ema=0.9, accumulate=2)
    inputs = {"x": (8, 6), "y": tg.i32[8]}
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=made, seed=3, device=device, **more)


def near(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=NEAR, atol=NEAR * float(np.abs(want).max(initial=1e-30)))


OPTIMIZERS = {
    "adamw": lambda: None,
    "sgd": lambda: optim.sgd(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "lion": lambda: optim.lion(lr=1e-3),
    "adafactor": lambda: optim.adafactor(lr=1e-2),
    "muon": lambda: optim.muon(lr=1e-2),
    "lamb": lambda: optim.lamb(lr=1e-2),
    "normalized": lambda: optim.rmsprop(lr=1e-2, normalize_grads=True),
}


@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_cpu(name: str) -> None:
    """Losses, aux, captures, gradients, parameters, states and averages, step by step."""
    with (
        compiled("cpu", OPTIMIZERS[name](), keep_grads=True) as want,
        compiled("jax", OPTIMIZERS[name](), keep_grads=True) as got,
    ):
        for batch in batches(4):
            a, b = (train.step(batch).result() for train in (want, got))
            near(b.loss, a.loss)
            near(b.aux["right"], a.aux["right"])
            near(b.captures["logits"], a.captures["logits"])
            for n, x in want.download_grads().items():
                near(got.download_grads()[n], x)
        for read in (lambda t: t.states(), *((lambda t: t.download_params(ema=True),) if name == "adamw" else ())):
            for n, x in read(want).items():
                near(read(got)[n], x)
        assert want.download_params().keys() == got.download_params().keys()


def test_random_numbers_are_the_same_bits() -> None:
    class Empty(tg.Module):
        def __init__(self) -> None:
            self.w = self.param((1,))

    def forward(m: Empty, x: tg.Tensor) -> Any:
        return tg.uniform((1000,)) + x, tg.cast(tg.bernoulli((1000,), 0.3), tg.f32), tg.dropout(tg.ones((1000,)), 0.4)

    found: list[Any] = []
    for device in ("cpu", "jax"):
        with tg.compile_forward(model=Empty(), forward=forward, inputs={"x": ()}, seed=5, device=device) as run:
            found.append([run.run(x=np.float32(0)).output for _ in range(3)])
    for a, b in zip(*found, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.usefixtures("quick_xla")
def test_a_training_goes_to_jax_and_back(tmp_path: Path) -> None:
    """The file is the same, whichever device wrote it; and each goes on from it."""
    first, second, third = (tmp_path / f"{k}.safetensors" for k in range(3))
    data = batches(6)
    with compiled("cpu") as whole, compiled("cpu") as cpu, compiled("jax") as jax, compiled("cpu") as back:
        losses = [whole.step(b).loss for b in data]
        assert [cpu.step(b).loss for b in data[:2]] == losses[:2]
        cpu.save(first)
        jax.load(first)
        jax.save(second)
        assert first.read_bytes() == second.read_bytes()
        assert jax.digest() == cpu.digest()
        near([jax.step(b).loss for b in data[2:4]], losses[2:4])
        jax.save(third)
        back.load(third)
        back.save(second)
        assert third.read_bytes() == second.read_bytes()
        near([back.step(b).loss for b in data[4:]], losses[4:])


@pytest.mark.usefixtures("quick_xla")
def test_run_steps_freeze_and_several_sizes() -> None:
    data = batches(4)
    stacked = {n: np.stack([b[n] for b in data]) for n in data[0]}
    with compiled("jax") as one, compiled("jax") as other:
        losses = [one.step(b).loss for b in data]
        assert other.run_steps(4, stacked).result().losses.tolist() == losses
        other.freeze("l1.*")
        before = other.params()
        other.run_steps(4, stacked).result()
        after = other.params()
        assert np.array_equal(before["l1.W"], after["l1.W"]) and not np.array_equal(before["l2.W"], after["l2.W"])
        infer = other.attach(forward=lambda m, x: m(x), inputs={"x": (None, 6)})
        rows = infer.run(x=data[0]["x"]).output
        near(infer.run(x=data[0]["x"][:3]).output, rows[:3])


def test_short_steps_share_a_call_and_one_that_fails_among_them_changes_nothing() -> None:
    """The same bits as steps that are waited for one by one: those before the failure, and those behind it."""
    data = batches(40)
    data[17]["x"][0, 0] = np.nan
    with compiled("jax") as one, compiled("jax") as other:
        calls = other.worker.call(lambda s: s._loaded[1][1])  # pyright: ignore
        assert not other.step(data[0]).result().step - 1 and calls.most > 1, "a step this small is looped"
        one.step(data[0]).result()
        want = [one.step(b).result() for b in data[1:]]
        got = [p.result() for p in [other.step(b) for b in data[1:]]]
        assert isinstance(got[16], tg.Failed) and isinstance(got[16].error, tg.NonFiniteError)
        assert [getattr(r, "loss", None) for r in got] == [getattr(r, "loss", None) for r in want]
        assert one.digest() == other.digest() and one.step(data[0]).step == 40


def test_arrays_are_updated_without_a_copy() -> None:
    """XLA copies an array that it must still read after its successor was written over it."""
    with compiled("jax", optim.adamw(lr=1e-2, weight_decay=0.1, clip_grad_norm=0.5)) as train:
        train.step(batches(1)[0]).result()
        memory, calls = train.worker.call(lambda s: (s._memory, s._loaded[1][1]))  # pyright: ignore
        arrays = [[memory.arrays[key] for key in keys] for keys in (calls.function.written, calls.function.read)]
        words = np.zeros(len(calls._scalars.values), np.uint32)
        given = [calls._put(v, batches(1)[0][v.name]) for v in calls._batch]
        lowered = calls._once.lower(*arrays, given, words)
    text = lowered.compile().as_text()
    assert "f32[6,10]" in text and not re.findall(r"f32\[6,10\]\S* copy\(", text)


def test_gradients_take_no_memory_unless_they_are_kept() -> None:
    with compiled("jax") as train, compiled("jax", keep_grads=True) as kept:
        roles = [{b.role for b in t.program.buffers} for t in (train, kept)]
        assert "grad" not in roles[0] and "grad" in roles[1]


def test_two_losses_over_shared_parameters() -> None:
    class Pair(tg.Module):
        def __init__(self) -> None:
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def one(m: Pair, x: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.square(m.b(tg.tanh(m.a(x))) - 1.0))

    def two(m: Pair, x: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.square(m.c(tg.tanh(m.b(tg.tanh(m.a(x))))) - 2.0))

    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    found: list[dict[str, Any]] = []
    for device in ("cpu", "jax"):
        with tg.compile(
            model=Pair(), losses={"one": one, "two": two}, inputs={"x": (5, 3)}, seed=0, device=device,
            optimizer={"one": optim.adam(1e-2), "two": optim.sgd(1e-1, momentum=0.9)},
            params={"one": ["a.*", "b.*"], "two": ["b.*", "c.*"]},
        ) as train:  # fmt: skip
            for turn in ("one", "two", "two", "one"):
                train.step(turn, x=x).result()
            found.append(train.params())
    for n, want in found[0].items():
        near(found[1][n], want)


@pytest.mark.usefixtures("quick_xla")
def test_products_in_less_precision_are_near() -> None:
    data = batches(3)
    with compiled("jax") as full, compiled("jax", precision="bf16") as less, compiled("jax", precision="tf32") as tf32:
        for b in data:
            want = full.step(b).loss
            assert abs(less.step(b).loss - want) < 0.03 * abs(want)
            assert abs(tf32.step(b).loss - want) < 0.003 * abs(want)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_other_devices_refuse_the_precisions_of_xla(precision: str) -> None:
    with pytest.raises(tg.DeviceError, match='device="jax"'):
        compiled("cpu", precision=precision)
    inputs = {"x": (None, 2)}  # no size is compiled yet
    with pytest.raises(tg.DeviceError, match='device="jax"'):
        tg.compile(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs=inputs, optimizer=optim.sgd(),
                   device="cpu", precision=precision)  # fmt: skip
    with pytest.raises(tg.DeviceError, match='device="jax"'):
        tg.compile_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs=inputs, device="cpu",
                           precision=precision)  # fmt: skip


MISSING = """
import sys, json
sys.modules["jax"] = None
import tracegrad as tg
class M(tg.Module):
    def __init__(self): self.w = self.param((2,))
try:
    tg.compile_forward(model=M(), forward=lambda m, x: x * m.w, inputs={"x": (2,)}, device="jax")
except tg.DeviceError as e:
    print(json.dumps(str(e)))
"""


def test_without_jax_the_error_says_how_to_install_it() -> None:
    ran = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    message = json.loads(ran.stdout)
    assert 'pip install "tracegrad[jax]"' in message and "<string>" in message, "the extra, and the caller's line"


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_steps_have_the_same_bits_in_loops_and_outside_of_them(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: before a loop is compiled, and after. Full calls have another loop there, and few steps have none."""
    from tracegrad.runtime import jax_calls

    monkeypatch.setattr(jax_calls, "WORTH", 0.0)
    with compiled("jax") as one, compiled("jax") as other:
        loaded = lambda train: train.worker.call(lambda s: (s._memory.arrays, s._loaded[1][1]))  # pyright: ignore
        (arrays, calls), (wanted, single) = loaded(other), loaded(one)
        runs, run = list[Any](), calls.run
        keep = lambda given: runs.extend({name: np.array(x) for name, x in one.items()} for one in given)
        monkeypatch.setattr(calls, "run", lambda arrays, given: keep(given) or run(arrays, given))
        monkeypatch.setattr(calls, "_platform", platform)
        losses = [[train.step(b).loss for b in batches(32)] for train in (one, other)]
        assert losses[0] == losses[1] and calls.most == 32

        ran, call = list[Any](), calls._call
        monkeypatch.setattr(calls, "_call", lambda *given: ran.append(given[3]) or call(*given))
        for n in (32, 32, 5, 5, 3, 32):
            got = calls.outputs(run(arrays, runs[:n]))
            want = [out for r in runs[:n] for out in single.outputs(single.run(wanted, [r]))]
            assert all(np.array_equal(w[name], g[name]) for w, g in zip(want, got, strict=True) for name in w)
            calls.close()  # waits for the compilation
        assert all(np.array_equal(arrays[key], wanted[key]) for key in wanted)
        assert [n for n in ran if n] == ([32, 32, 5, 5, 3, 32] if platform == "cpu" else [32, 5, 32])


@pytest.mark.usefixtures("quick_xla")
def test_large_inputs_of_a_loop_are_passed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are not there need no transfer of their inputs; the steps are the same."""
    from tracegrad.runtime import jax_calls

    data = batches(12)
    with compiled("jax") as one:
        want = [one.step(b).loss for b in data]
    monkeypatch.setattr(jax_calls, "KEPT_BYTES", 100)
    with compiled("jax") as other:
        calls = other.worker.call(lambda s: s._loaded[1][1])  # pyright: ignore
        assert other.step(data[0]).loss == want[0]
        x, y = (calls._stacked([{**data[0], **blank_words(calls)}])[0][k] for k in (0, 1))
        assert isinstance(x, list) and len(x) == calls.most and not isinstance(y, list)
        assert [p.loss for p in [other.step(b) for b in data[1:]]] == want[1:]


def blank_words(calls: Any) -> dict[str, Any]:
    return {v.name: np.zeros(v.shape, tg.dtypes.DTYPES[v.dtype].numpy) for v in calls._scalars.values}
