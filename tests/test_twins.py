"""Programs of examples/ beside the same in PyTorch (tests/twins): equal losses and parameters, step by step."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import tracegrad as tg

FOLDER = Path(__file__).parents[1] / "examples"
STEPS = 4
SEED = 1  # with 0 a value of resnet's before a relu is 1.3e-7, so rounding decides one gradient of 65 536
NAMES = [
    "actor_critic", "backbone", "contrastive", "diffusion", "dqn", "finetune", "folds", "gan", "generate",
    "hamiltonian", "lora", "pinn", "recommender", "reinforce", "resnet", "tabular", "translate", "vae", "vqvae",
    "words",
]  # fmt: skip
Batches = Iterator[dict[str, Any]]


def example(name: str) -> ModuleType:
    """examples/`name`.py."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # one example may use another
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- programs that draw numbers inside of the step take them as inputs here ---


def noise(ours: ModuleType, rng: np.random.Generator) -> Batches:
    for batch in ours.batches(STEPS):
        yield {**batch, "noise": rng.standard_normal((len(batch["x"]), 2)).astype(np.float32)}


def noise_at_times(ours: ModuleType, rng: np.random.Generator) -> Batches:
    for batch in noise(ours, rng):
        yield {**batch, "time": rng.integers(0, ours.TIMES, len(batch["x"])).astype(np.int32)}


def digits(ours: ModuleType, rng: np.random.Generator) -> Batches:
    data = ours.load_digits()
    for _ in range(STEPS):
        picked = rng.integers(0, len(data.train_x), ours.BATCH)
        yield {"x": data.train_x[picked].reshape(-1, 64), "y": data.train_y[picked]}


def trials(ours: ModuleType, rng: np.random.Generator) -> Batches:
    size = (ours.LONGEST, ours.CARTS)
    for _ in range(STEPS):
        state = rng.standard_normal((*size, 4)).astype(np.float32)
        alive = (np.arange(ours.LONGEST)[:, None] < rng.integers(5, 200, ours.CARTS)).astype(np.float32)
        action = rng.integers(0, 2, size).astype(np.int32)
        yield {"state": state, "action": action, "advantage": ours.returns(alive).astype(np.float32)}


def replayed(ours: ModuleType, rng: np.random.Generator) -> Batches:
    n = ours.BATCH
    for _ in range(STEPS):
        state, then = rng.standard_normal((2, n, 4)).astype(np.float32)
        goes_on = (rng.random(n) < 0.9).astype(np.float32)
        action = rng.integers(0, 2, n).astype(np.int32)
        yield {"state": state, "action": action, "reward": np.ones(n, np.float32), "then": then, "goes_on": goes_on}


def judged(ours: ModuleType, rng: np.random.Generator) -> Batches:
    n = ours.CARTS * ours.STEPS
    for _ in range(STEPS):
        state, goal = rng.standard_normal((n, 4)).astype(np.float32), rng.uniform(0, 30, n).astype(np.float32)
        yield {"state": state, "goal": goal, "action": rng.integers(0, 2, n).astype(np.int32)}


BATCHES: dict[str, Callable[[ModuleType, np.random.Generator], Batches]] = {
    "actor_critic": judged,
    "diffusion": noise_at_times,
    "dqn": replayed,
    "folds": digits,
    "reinforce": trials,
    "vae": noise,
}


def compiled(name: str, ours: ModuleType, device: str) -> tg.CompiledTraining:
    if name == "vae":
        return ours.training(device, loss=ours.bound, noise=(ours.BATCH, ours.CODE))
    if name == "diffusion":
        return ours.training(device, loss=ours.denoising, time=tg.i32[ours.BATCH], noise=(ours.BATCH, 2))
    return ours.training(device)


def tensors(batch: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, dtype=torch.int64 if v.dtype == np.int32 else dtype) for k, v in batch.items()}


TURNS = {"gan": (("d", "xz"), ("g", "z")), "actor_critic": (("actor", ""), ("critic", ("state", "goal")))}


def turn_of(name: str, k: int, batch: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Of several losses, whose turn it is, and what it takes of a batch."""
    if name not in TURNS:
        return "", batch
    turn, names = TURNS[name][k % 2]
    return turn, {n: batch[n] for n in names or batch}


def theirs(name: str, batches: list[dict[str, Any]], first: dict[str, torch.Tensor], dtype: torch.dtype) -> Any:
    """The losses of the twin, and its arrays at the end."""
    twin = importlib.import_module(f"twins.{name}")
    net = twin.Net()
    net.load_state_dict(first)
    net.to(dtype)
    optimizers = twin.optimizers(net) if name in TURNS else {"": twin.optimizer(net)}
    schedule = twin.schedule(optimizers[""]) if hasattr(twin, "schedule") else None
    losses = list[float]()
    for k, batch in enumerate(batches):
        turn, given = turn_of(name, k, batch)
        optimizers[turn].zero_grad()
        loss = getattr(twin, f"{turn}_loss" if turn else "loss")(net, **tensors(given, dtype))
        loss.backward()
        optimizers[turn].step()
        if schedule:
            schedule.step()
        losses.append(loss.item())
    floats = {k: v.numpy() for k, v in net.state_dict().items() if v.is_floating_point()}  # no counters
    return {**floats, "losses": np.array(losses)}


@functools.cache
def both(name: str) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor], Any, Any]:
    """Batches, first values, and what PyTorch makes of them in single and in double precision."""
    ours = example(name)
    torch.manual_seed(SEED)
    net = importlib.import_module(f"twins.{name}").Net()
    batches = list(BATCHES[name](ours, np.random.default_rng(0)) if name in BATCHES else ours.batches(STEPS))
    single, true = (theirs(name, batches, net.state_dict(), dtype) for dtype in (torch.float32, torch.float64))
    return batches, net.state_dict(), single, true


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_parameters_are_pytorchs(name: str, device_name: str) -> None:
    """PyTorch in double precision is the truth. We are as near to it as PyTorch in single precision.

    Adam divides a gradient by its own size. So one that is 0 but for rounding moves its parameter by the whole rate, to
    a side that rounding decides, and distances grow with the steps, in PyTorch as here. The contrastive features are
    the least steady of these. By SGD their losses are PyTorch's to the last bit, and the gradients of the first step
    are as near to the truth as PyTorch's, 1e-6.
    """
    ours = example(name)
    batches, first, single, true = both(name)
    with compiled(name, ours, device_name) as train:
        assert tg.from_torch(first, train).complete
        turns = [turn_of(name, k, batch) for k, batch in enumerate(batches)]
        losses = np.array([train.step(*([turn] if turn else []), **given).loss for turn, given in turns])
        found = {**{k: v.numpy() for k, v in tg.to_torch(train).items()}, "losses": losses}
    assert found.keys() == true.keys()
    for key, want in true.items():
        # XLA adds up one by one, PyTorch in pairs: the 3 200 signed terms of reinforce's loss nearly cancel. Their mean
        # is off by about sqrt(3200) 6e-8 = 3.4e-6 of a term, at most by 3200 6e-8 = 1.9e-4. Measured: 1.7e-5
        steps = 48 if (name, device_name) == ("reinforce", "jax") else 8
        near = steps * length(single[key] - want) + 2e-6 * length(want)
        assert length(found[key] - want) <= near, key


def length(x: Any) -> float:
    return float(np.linalg.norm(np.ravel(x)))


def test_models_and_losses_are_no_longer_than_pytorchs() -> None:
    done = subprocess.run([sys.executable, str(FOLDER.parent / "tools" / "lines")], capture_output=True, text=True)
    table = {line.split()[0]: [int(n) for n in line.split()[1:3]] for line in done.stdout.splitlines()[1:-1]}
    assert done.returncode == 0, done.stdout
    assert [*table] == sorted([*NAMES, "sweep"]) and all(min(row) >= 5 for row in table.values())


def test_members_of_a_sweep_are_pytorchs(device_name: str) -> None:
    """Each member against a net and an optimizer of its own, as near to double precision as PyTorch in single."""
    ours, twin = example("sweep"), importlib.import_module("twins.sweep")
    torch.manual_seed(SEED)
    first = twin.Net().state_dict()
    batches = list(digits(ours, np.random.default_rng(0)))

    def alone(choice: tuple[float, float], dtype: torch.dtype) -> tuple[list[float], dict[str, Any]]:
        net = twin.Net().to(dtype)
        net.load_state_dict(first)
        optimizer, losses = twin.optimizer(net, *choice), list[float]()
        for batch in batches:
            optimizer.zero_grad()
            loss = twin.loss(net, **tensors(batch, dtype))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, {k: v.numpy() for k, v in net.state_dict().items()}

    start = {"l1.W": "l1.weight", "l1.b": "l1.bias", "l2.W": "l2.weight", "l2.b": "l2.bias"}
    with ours.training(device_name) as sweep:
        copies = {f"models.{n}": np.stack([first[m].numpy().T] * len(ours.CHOICES)) for n, m in start.items()}
        sweep.train.set_params(copies)
        losses = [sweep.step(batch).aux["losses"] for batch in batches]
        for k, choice in enumerate(ours.CHOICES):
            (single, arrays), (true, exact) = (alone(choice, dtype) for dtype in (torch.float32, torch.float64))
            apart = 8 * length(np.subtract(single, true)) + 2e-6 * length(true)
            assert length(np.subtract([each[k] for each in losses], true)) <= apart, choice
            for n, m in start.items():
                near = 8 * length(arrays[m] - exact[m]) + 2e-6 * length(exact[m])
                assert length(sweep.params(k)[n].T - exact[m]) <= near, (choice, n)
