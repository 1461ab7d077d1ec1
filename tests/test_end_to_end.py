"""Whole trainings, step by step: CPU against PyTorch, WebGPU against the CPU, and every run against itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import Training, cnn, cnn_logits, gpt, sine, sine_predict
from tracegrad import lr, optim
from tracegrad.demo.data import load_digits, load_text

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # on the systems of tests/portable.txt; `torch_run` skips
    torch = F = None

STEPS = 50
LOSS = 1e-4  # relative, at every step: what the project promises
RATE, DECAY, CLIP = 3e-3, 0.1, 0.5
# No parameter moves by much more than the rate a step: two runs must agree on all but a hundredth of the way.
WAY = 0.01 * RATE * STEPS

TEXT = load_text()
CONTEXT, HEADS = 16, 4


def adamw(**more: Any) -> optim.Optimizer:
    return optim.adamw(lr=RATE, weight_decay=DECAY, clip_grad_norm=CLIP, **more)


def sine_batches() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(1)
    while True:
        x = rng.uniform(-3, 3, (64, 1)).astype(np.float32)
        yield {"x": x, "y": np.sin(x)}


def digit_batches() -> Iterator[dict[str, Any]]:
    data, rng = load_digits(), np.random.default_rng(2)
    while True:
        picked = rng.integers(0, len(data.train_y), 16)
        yield {"x": data.train_x[picked], "y": data.train_y[picked]}


def text_batches() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(3)
    while True:
        at = rng.integers(0, len(TEXT.train) - CONTEXT - 1, 4)[:, None] + np.arange(CONTEXT)
        yield {"tokens": TEXT.train[at], "following": TEXT.train[at + 1]}


# --- the same models in PyTorch, on parameters by name ---

Params = dict[str, Any]


def torch_sine(p: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    h = torch.relu(x @ p["l1.W"] + p["l1.b"])
    h = torch.relu(h @ p["l2.W"] + p["l2.b"])
    return F.mse_loss(h @ p["l3.W"] + p["l3.b"], y)


def torch_cnn(p: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for name in ("conv1", "conv2"):
        x = F.max_pool2d(torch.relu(F.conv2d(x, p[f"{name}.W"], p[f"{name}.b"], padding=1)), 2)
    return F.cross_entropy(x.flatten(1) @ p["dense.W"] + p["dense.b"], y)


def torch_gpt(p: Params, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ p[f"{name}.W"] + p[f"{name}.b"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{name}.g"], p[f"{name}.b"])

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    x = p["token.W"][tokens] + p["position"]
    for k in range(2):
        b = f"blocks.{k}"
        h = norm(f"{b}.norm1", x)
        q, key, v = (heads(linear(f"{b}.{n}", h)) for n in "qkv")
        a = F.scaled_dot_product_attention(q, key, v, is_causal=True)
        x = x + linear(f"{b}.out", a.transpose(1, 2).flatten(2))
        x = x + linear(f"{b}.down", F.gelu(linear(f"{b}.up", norm(f"{b}.norm2", x))))
    logits = linear("head", norm("norm", x))
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


@dataclass(frozen=True)
class Job:
    """One training here and in PyTorch."""

    training: Training
    batches: Callable[[], Iterator[dict[str, Any]]]
    torch_loss: Callable[..., torch.Tensor]

    def __repr__(self) -> str:
        return self.training.name


JOBS = {
    "sine": Job(sine(batch=64, width=32, optimizer=adamw), sine_batches, torch_sine),
    "cnn": Job(cnn(batch=16, side=8, a=4, b=8, optimizer=adamw), digit_batches, torch_cnn),
    "gpt": Job(
        gpt(batch=4, vocabulary=len(TEXT.alphabet), context=CONTEXT, width=16, layers=2, optimizer=adamw),
        text_batches,
        torch_gpt,
    ),
}


@dataclass(frozen=True)
class Run:
    """What a training did."""

    losses: list[float]
    first: dict[str, np.ndarray]
    last: dict[str, np.ndarray]


def compiled(training: Training, device: str = "cpu", seed: int = 0, **more: Any) -> tg.CompiledTraining:
    if device == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    return tg.compile(**training.arguments(), device=device, seed=seed, **more)


def run(job: Job, device: str, seed: int = 0) -> Run:
    with compiled(job.training, device, seed) as train:
        first = train.download_params()
        pending = [train.step(batch) for batch, _ in zip(job.batches(), range(STEPS))]
        return Run([p.loss for p in pending], first, train.download_params())


@functools.cache
def cpu_run(name: str) -> Run:
    return run(JOBS[name], "cpu")


def decays(name: str) -> bool:
    """Weights do; biases, gains and the positions, which say so, do not."""
    return name.rsplit(".", 1)[-1] == "W"


def torch_run(job: Job, first: dict[str, np.ndarray], make: Callable[[list[Any]], torch.optim.Optimizer], clip: float,
              rate: Callable[[int], float] | None = None) -> Run:  # fmt: skip
    pytest.importorskip("torch")
    torch.manual_seed(0)
    params = {n: torch.tensor(x, requires_grad=True) for n, x in first.items()}
    groups = [
        {"params": [p for n, p in params.items() if decays(n)]},
        {"params": [p for n, p in params.items() if not decays(n)], "weight_decay": 0.0},
    ]
    optimizer = make(groups)
    losses: list[float] = []
    for step, (batch, _) in enumerate(zip(job.batches(), range(STEPS)), 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step) if rate else group["lr"]
        optimizer.zero_grad()
        tensors = {n: torch.from_numpy(x if x.dtype != np.int32 else x.astype(np.int64)) for n, x in batch.items()}
        loss = job.torch_loss(params, **tensors)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(params.values(), clip)
        optimizer.step()
        losses.append(loss.item())
    return Run(losses, first, {n: p.detach().numpy() for n, p in params.items()})


def torch_adamw(groups: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY)


def determined(name: str) -> bool:
    """The loss does not depend on the bias of the keys: its gradient is rounding, of which Adam makes full steps."""
    return not name.endswith(".k.b")


def assert_alike(got: Run, want: Run, way: float = WAY) -> None:
    np.testing.assert_allclose(got.losses, want.losses, rtol=LOSS, atol=0)
    for n in want.last:
        if determined(n):
            np.testing.assert_allclose(got.last[n], want.last[n], rtol=0, atol=way, err_msg=n)


# --- the three trainings ---


@pytest.mark.parametrize("name", JOBS)
def test_the_cpu_trains_as_pytorch_does(name: str) -> None:
    got = cpu_run(name)
    assert got.losses[-1] < 0.9 * got.losses[0]
    assert_alike(got, torch_run(JOBS[name], got.first, torch_adamw, CLIP))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_webgpu_trains_as_the_cpu_does(name: str, webgpu: None) -> None:
    got, want = run(JOBS[name], "webgpu"), cpu_run(name)
    assert all(np.array_equal(got.first[n], want.first[n]) for n in want.first)
    assert_alike(got, want)


@pytest.mark.usefixtures("quick_xla")
@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_jax_trains_as_the_cpu_does(name: str) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    got, want = run(JOBS[name], "jax"), cpu_run(name)
    assert same(got.first, want.first)
    assert_alike(got, want)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_with_l2(nesterov: bool) -> None:
    job = JOBS["cnn"]
    ours = optim.sgd(lr=0.05, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    job = replace(job, training=replace(job.training, optimizer=lambda: ours))
    got = run(job, "cpu")

    def theirs(groups: list[Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=nesterov, weight_decay=0.01)

    want = torch_run(job, got.first, theirs, 0.0)
    # Far from a minimum a trajectory of f32 steps multiplies each rounding, 6e-8, by some 10 to 100 over 50 steps.
    assert_alike(got, want, way=1e-4)


def test_a_schedule_follows_pytorchs() -> None:
    job = JOBS["sine"]
    schedule = lr.warmup(peak=5e-3, steps=10, after=lr.cosine_annealing(peak=5e-3, final=1e-4, steps=30))
    ours = optim.adamw(lr=schedule, weight_decay=DECAY)
    job = replace(job, training=replace(job.training, optimizer=lambda: ours))

    def rate(step: int) -> float:
        if step <= 10:
            return 5e-3 * step / 10
        share = min(step - 11, 30) / 30
        return 1e-4 + (5e-3 - 1e-4) * (1 + math.cos(math.pi * share)) / 2

    got = run(job, "cpu")
    assert_alike(got, torch_run(job, got.first, torch_adamw, 0.0, rate))


# --- the same again, bit by bit ---


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("name", JOBS)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name: str) -> None:
    once, again, other = cpu_run(name), run(JOBS[name], "cpu"), run(JOBS[name], "cpu", seed=1)
    assert again.losses == once.losses and same(again.last, once.last)
    assert other.losses != once.losses and not same(other.first, once.first)


NOISY = gpt(batch=2, vocabulary=len(TEXT.alphabet), context=CONTEXT, width=16, layers=1, p=0.2, optimizer=adamw)


def noisy_batches() -> Iterator[dict[str, Any]]:
    return ({n: x[:2] for n, x in batch.items()} for batch in text_batches())


def test_dropout_depends_on_the_seed_and_the_step_only() -> None:
    batch = next(noisy_batches())
    with compiled(NOISY, seed=5) as a, compiled(NOISY, seed=5) as b, compiled(NOISY, seed=6) as c:
        c.upload_params(a.download_params())
        for train in (a, b, c):
            train.set_lr(0.0)
        first, second, other = ([t.step(batch).loss for _ in range(4)] for t in (a, b, c))
    assert first == second
    assert len(set(first)) == 4, "the mask must change from step to step"
    assert not set(first) & set(other)


@pytest.mark.slow
def test_dropout_is_the_same_on_every_device(webgpu: None) -> None:
    job = Job(NOISY, noisy_batches, torch_gpt)
    assert_alike(run(job, "webgpu", seed=7), run(job, "cpu", seed=7))


@pytest.mark.parametrize("device", ["cpu", *(pytest.param(d, marks=pytest.mark.slow) for d in ("webgpu", "jax"))])
def test_a_checkpoint_resumes_bit_by_bit(device: str, tmp_path: Any, request: Any) -> None:
    if device == "webgpu":
        request.getfixturevalue("webgpu")
    batches = [b for b, _ in zip(noisy_batches(), range(8))]
    schedule = lr.cosine_annealing(peak=1e-2, final=1e-4, steps=8)
    ours = optim.adamw(lr=schedule, weight_decay=DECAY, clip_grad_norm=CLIP, ema=0.9)
    training = replace(NOISY, optimizer=lambda: ours)
    path = tmp_path / "half.safetensors"
    with compiled(training, device, seed=3) as whole:
        losses = [whole.step(b).loss for b in batches[:4]]
        whole.save(path)
        losses += [whole.step(b).loss for b in batches[4:]]
        last = whole.download_params()
    with compiled(training, device, seed=99) as other:
        other.step(batches[0]).result()
        other.load(path)
        assert [other.step(b).loss for b in batches[4:]] == losses[4:]
        assert same(other.download_params(), last)


def everything(train: tg.CompiledTraining, path: Any) -> tuple[bytes, int]:
    """Parameters, state, step and schedule, as a file; and the step."""
    train.save(path)
    return path.read_bytes(), train.store.stepper.counter


@pytest.mark.parametrize("device", ["cpu", *(pytest.param(d, marks=pytest.mark.slow) for d in ("webgpu", "jax"))])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_no_bit(device: str, what: str, tmp_path: Any, request: Any) -> None:
    if device == "webgpu":
        request.getfixturevalue("webgpu")

    def loss(m: Any, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        noise = tg.dropout(sine_predict(m, x), 0.3)
        # sqrt has an infinite slope at 0: with y = 0 the loss is finite and its gradient is not
        return tg.mean(tg.square(noise - y)) + tg.mean(tg.sqrt(tg.abs(y * m.l3.b)))

    training = Training("risky", sine(width=8).model, loss, {"x": (16, 1), "y": (16, 1)}, lambda: adamw(ema=0.9))
    x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
    good = {"x": x, "y": x + 2}
    bad = {"x": x * np.float32(np.nan), "y": x + 2} if what == "loss" else {"x": x, "y": 0 * x}
    start = {"l3.b": np.ones(1, np.float32)}
    with compiled(training, device, seed=4) as a, compiled(training, device, seed=4) as b:
        for train in (a, b):
            train.upload_params(start)
            assert [train.step(good).result().step for _ in range(3)] == [1, 2, 3]
        before = everything(a, tmp_path / "a")
        failed = [a.step(bad).result() for _ in range(2)]
        assert all(isinstance(r, tg.Failed) and isinstance(r.error, tg.NonFiniteError) for r in failed)
        assert ("the loss is nan" if what == "loss" else "a gradient is not finite") in str(failed[0].error)
        assert everything(a, tmp_path / "a") == before
        queued = [a.step(batch) for batch in (good, bad, good, bad, good)]  # also with others behind them
        assert [p.result().step for p in (queued[0], queued[2], queued[4])] == [4, 5, 6]
        assert isinstance(queued[1].result(), tg.Failed) and isinstance(queued[3].result(), tg.Failed)
        assert [queued[k].loss for k in (0, 2, 4)] == [b.step(good).loss for _ in range(3)]
        assert everything(a, tmp_path / "a") == everything(b, tmp_path / "b")


# --- what optimizers keep ---

DEVICES = ["cpu", pytest.param("webgpu", marks=pytest.mark.slow)]


def array(train: tg.CompiledTraining, name: str) -> np.ndarray:
    return train.worker.call(lambda session: session.read(name))


@pytest.mark.parametrize("device", DEVICES)
def test_a_running_average_starts_at_the_parameters(device: str, request: Any) -> None:
    if device == "webgpu":
        request.getfixturevalue("webgpu")
    training = sine(batch=64, width=8, optimizer=lambda: adamw(ema=0.9))
    batches = sine_batches()
    with compiled(training, device) as train:
        mean = array(train, "params")
        assert np.array_equal(array(train, "ema"), mean) and mean.any()
        for _ in range(3):
            train.step(next(batches)).result()
            mean = 0.9 * mean + 0.1 * array(train, "params")
            # three roundings to f32 of values below 2, each of at most 1.2e-7, and the same again in `mean`
            np.testing.assert_allclose(array(train, "ema"), mean, rtol=0, atol=1e-6)
        train.reset()
        assert np.array_equal(array(train, "ema"), array(train, "params"))


def entangled() -> optim.Optimizer:
    """Two states that need each other's old value, one of them back to front, and no learning worth the name."""

    def update(g: tg.Tensor, p: tg.Tensor, state: Any, host: Any) -> Any:
        return g, {"a": state["b"] + g, "b": tg.flip(state["a"], 0) * 0.5, "c": tg.flip(state["c"], 0) + 1.0}

    return optim.custom(optim.Transform({"a": 1.0, "b": 2.0, "c": 0.0}, update), lr=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_states_may_need_each_others_old_values(device: str, request: Any) -> None:
    if device == "webgpu":
        request.getfixturevalue("webgpu")
    batches = sine_batches()
    with compiled(sine(batch=64, width=40, optimizer=entangled), device) as train:
        a, b, c = (array(train, n) for n in "abc")
        for _ in range(4):
            train.step(next(batches)).result()
            a, b, c = b + array(train, "grads"), a[::-1] * np.float32(0.5), c[::-1] + 1
            for name, want in (("a", a), ("b", b), ("c", c)):
                np.testing.assert_array_equal(array(train, name), want, err_msg=name)


# --- forwards that share the parameters ---


def test_attached_forwards_see_every_step_and_take_any_batch() -> None:
    pytest.importorskip("torch")
    job = JOBS["cnn"]
    data = load_digits()
    with compiled(job.training) as train:
        infer = train.attach(forward=cnn_logits, inputs={"x": (None, 1, 8, 8)})
        batches = job.batches()
        for size in (1, 7, 16, 3):
            train.step(next(batches))
            got = infer.run(x=data.test_x[:size]).output
            p = {n: torch.tensor(v) for n, v in train.download_params().items()}
            x = torch.from_numpy(data.test_x[:size])
            for name in ("conv1", "conv2"):
                x = F.max_pool2d(torch.relu(F.conv2d(x, p[f"{name}.W"], p[f"{name}.b"], padding=1)), 2)
            want = x.flatten(1) @ p["dense.W"] + p["dense.b"]
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
        infer.upload_params({"dense.b": np.full(10, 3, np.float32)})
        assert np.array_equal(train.download_params()["dense.b"], np.full(10, 3, np.float32))
