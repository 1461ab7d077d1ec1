"""Programs of examples/ beside the same in PyTorch (tests/twins): equal losses and parameters, step by step."""

from __future__ import annotations

import functools
import importlib.util
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
NAMES = ["contrastive", "diffusion", "folds", "hamiltonian", "pinn", "recommender", "reinforce", "vqvae"]
Batches = Iterator[dict[str, Any]]


def example(name: str) -> ModuleType:
    """examples/`name`.py."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- programs that draw numbers inside of the step take them as inputs here ---


def noise(ours: ModuleType, rng: np.random.Generator) -> Batches:
    for batch in ours.batches(STEPS):
        n = len(batch["x"])
        drawn = rng.standard_normal((n, 2)).astype(np.float32)
        yield {**batch, "time": rng.integers(0, ours.TIMES, n).astype(np.int32), "noise": drawn}


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


BATCHES: dict[str, Callable[[ModuleType, np.random.Generator], Batches]] = {
    "diffusion": noise,
    "folds": digits,
    "reinforce": trials,
}


def compiled(name: str, ours: ModuleType, device: str) -> tg.CompiledTraining:
    if name == "diffusion":
        return ours.training(device, loss=ours.denoising, time=tg.i32[ours.BATCH], noise=(ours.BATCH, 2))
    return ours.training(device)


def tensors(batch: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, dtype=torch.int64 if v.dtype == np.int32 else dtype) for k, v in batch.items()}


def theirs(name: str, batches: list[dict[str, Any]], first: dict[str, torch.Tensor], dtype: torch.dtype) -> Any:
    """The losses of the twin, and its arrays at the end."""
    twin = importlib.import_module(f"twins.{name}")
    net = twin.Net()
    net.load_state_dict(first)
    net.to(dtype)
    optimizer = twin.optimizer(net)
    schedule = twin.schedule(optimizer) if hasattr(twin, "schedule") else None
    losses = list[float]()
    for batch in batches:
        optimizer.zero_grad()
        loss = twin.loss(net, **tensors(batch, dtype))
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
        losses.append(loss.item())
    return {**{k: v.numpy() for k, v in net.state_dict().items()}, "losses": np.array(losses)}


@functools.cache
def both(name: str) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor], Any, Any]:
    """Batches, first values, and what PyTorch makes of them in single and in double precision."""
    ours = example(name)
    torch.manual_seed(0)
    net = importlib.import_module(f"twins.{name}").Net()
    batches = list(BATCHES[name](ours, np.random.default_rng(0)) if name in BATCHES else ours.batches(STEPS))
    single, true = (theirs(name, batches, net.state_dict(), dtype) for dtype in (torch.float32, torch.float64))
    return batches, net.state_dict(), single, true


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_parameters_are_pytorchs(name: str, device_name: str) -> None:
    """PyTorch in double precision is the truth. We are as near to it as PyTorch in single precision.

    Adam divides a gradient by its own size. So one that is 0 but for rounding moves its parameter by the whole rate, to
    a side that rounding decides, and distances grow with the steps, in PyTorch as here. By SGD the losses of the
    contrastive features, the least steady of these, are PyTorch's to the last bit, and the gradients of the first step
    are as near to the truth as PyTorch's, 1e-6.
    """
    ours = example(name)
    batches, first, single, true = both(name)
    with compiled(name, ours, device_name) as train:
        assert tg.from_torch(first, train).complete
        losses = np.array([train.step(**batch).loss for batch in batches])
        found = {**{k: v.numpy() for k, v in tg.to_torch(train).items()}, "losses": losses}
    assert found.keys() == true.keys()
    for key, want in true.items():
        near = 8 * length(single[key] - want) + 2e-6 * length(want)
        assert length(found[key] - want) <= near, key


def length(x: Any) -> float:
    return float(np.linalg.norm(np.ravel(x)))
