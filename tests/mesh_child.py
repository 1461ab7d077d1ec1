"""Run by tests/test_jax_mesh.py with eight devices of the host: trainings on meshes beside one on a single device."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import PartitionSpec as P

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.runtime import jax_graph


class Net(tg.Module):
    def __init__(self) -> None:
        self.l1, self.norm, self.l2 = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.dropout(tg.gelu(self.norm(self.l1(x))), 0.2))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m(x), y)


def compiled(**how: Any) -> tg.CompiledTraining:
    inputs = {"x": (16, 8), "y": tg.i32[16]}
    made = optim.adamw(lr=1e-2, weight_decay=0.1, clip_grad_norm=0.5, ema=0.9, accumulate=2)
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=made, seed=3, device="jax", **how)


def batches(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, 16, 8)).astype(np.float32), rng.integers(0, 8, (n, 16)).astype(np.int32)
    return [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]


class Grouped(tg.Module):
    """Convolutions in groups, whose gradients XLA computes wrongly if it divides them over two of eight devices."""

    def __init__(self) -> None:
        self.depthwise, self.grouped = nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 3, stride=2, groups=4)
        self.back = nn.ConvTranspose2d(16, 8, 3, groups=2)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.back(tg.gelu(self.grouped(tg.gelu(self.depthwise(x)))))


class Attending(tg.Module):
    """Attention that JAX computes as one op, if operands are bf16."""

    def __init__(self) -> None:
        self.project = nn.Linear(16, 48)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        q, k, v = tg.split(self.project(x).reshape(*x.shape[:2], 6, 8).swapaxes(1, 2), 3, 1)
        return tg.attention(q, k, v, causal=True) + tg.attention(q, k, v)


def trained(model: Any, shape: tuple[int, ...], **how: Any) -> dict[str, Any]:
    """Parameters after two steps."""
    x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    with tg.compile(model=model(), loss=lambda m, x: tg.mean(tg.square(m(x) - 1.0)), inputs={"x": shape},
                    optimizer=optim.sgd(lr=0.5), seed=3, device="jax", **how) as train:  # fmt: skip
        for batch in x:
            train.step(x=batch).result()
        return train.params()


def on_a_mesh(model: Any, shape: tuple[int, ...], **how: Any) -> dict[str, float]:
    """How far parameters are from those of one device, relative to the largest of each."""
    want, mesh, found = trained(model, shape, **how), jax.make_mesh((2, 4), ("data", "model")), dict[str, float]()
    for layout in (None, "fsdp", {"*.W": P("model")}):
        got = trained(model, shape, mesh=mesh, layout=layout, **how)
        found[str(layout)] = max(float(np.abs(got[n] - x).max() / np.abs(x).max()) for n, x in want.items())
    return found


def layouts() -> dict[str, dict[str, Any]]:
    all_data, two = jax.make_mesh((8,), ("data",)), jax.make_mesh((2, 4), ("data", "model"))
    split = {"l1.W": P(None, "model"), "l1.b": P("model"), "l2.W": P("model", None)}
    return {
        "data": {"mesh": all_data},
        "fsdp": {"mesh": all_data, "layout": "fsdp"},
        "tensor": {"mesh": two, "layout": split},
    }


def exported(train: tg.CompiledTraining, mesh: Any, data: list[dict[str, Any]]) -> list[float]:
    """Losses of steps by `to_jax`, exported as StableHLO for all devices of the mesh."""
    step, state = train.to_jax()
    rows = jax.sharding.NamedSharding(mesh, P("data"))
    placed = [{name: jax.device_put(x, rows) for name, x in batch.items()} for batch in data]
    made = jax.export.export(jax.jit(step))(state, placed[0])
    assert made.nr_devices == 8 and "stablehlo" in made.mlir_module()
    run = jax.jit(made.call)
    losses: list[float] = []
    for batch in placed:
        state, outputs = run(state, batch)
        losses.append(float(outputs["loss"]))
    return losses


def traffic(train: tg.CompiledTraining, batch: dict[str, Any]) -> dict[str, float]:
    """Elements that XLA exchanges in a step, by what for, as multiples of the parameters'."""
    step, state = train.to_jax()
    text = jax.jit(step).lower(state, batch).compile().as_text()
    found = {"all-gather": 0.0, "all-reduce": 0.0, "reduce-scatter": 0.0, "all-to-all": 0.0}
    count = sum(x.size for x in train.params().values())
    for result, kind in re.findall(r"= (.*?) ([a-z-]+?)(?:-start)?\(", text):
        if kind in found:
            shapes = re.findall(r"[a-z0-9]+\[([\d,]*)\]", result)
            found[kind] += sum(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes) / count
    return found


def held(train: tg.CompiledTraining, key: str) -> int:
    """Elements of an array on the first device."""
    return train.worker.call(lambda s: int(s._memory.arrays[key].addressable_shards[0].data.size))  # pyright: ignore


def main() -> None:
    data = batches(6)
    with compiled() as one:
        losses, params = [one.step(b).loss for b in data], one.params()
    found: dict[str, Any] = {"devices": jax.device_count()}
    with tempfile.TemporaryDirectory() as folder:
        half = Path(folder) / "half.safetensors"
        for name, how in layouts().items():
            with compiled(**how) as train:
                got = [train.step(b).loss for b in data[:4]]
                train.save(half)
                pure = exported(train, how["mesh"], data[4:])
                got += [train.step(b).loss for b in data[4:]]
                far = max(float(np.abs(train.params()[n] - x).max()) for n, x in params.items())
                moved = traffic(train, data[0])
                sizes = [held(train, "params:l1.W"), held(train, "m:l1.W")]
            other = layouts()["tensor" if name == "fsdp" else "fsdp"]
            with compiled(**other) as train:  # on another mesh
                train.load(half)
                resumed = [train.step(b).loss for b in data[4:]]
            found[name] = {"losses": got, "far": far, "held": sizes, "resumed": resumed, "pure": pure, "moved": moved}
    found["grouped"] = on_a_mesh(Grouped, (16, 8, 7, 7))
    found["attending"] = on_a_mesh(Attending, (8, 128, 16), precision="bf16")
    jax_graph.GATHERED_TOGETHER = jax_graph.GATHERED_APART = 0  # as in a large model
    with compiled(**layouts()["fsdp"]) as train:
        found["apart"] = {"losses": [train.step(b).loss for b in data], "moved": traffic(train, data[0])}
    errors: list[str] = []
    mesh = jax.make_mesh((8,), ("data",))
    for how in ({"layout": {"nothing.*": P("data")}}, {"layout": {"l1.W": P("model")}}, {"layout": "zero"}):
        try:
            compiled(mesh=mesh, **how)
        except tg.InputError as e:
            errors.append(str(e))
    try:
        tg.compile(
            model=Net(), loss=loss, inputs={"x": (12, 8), "y": tg.i32[12]}, optimizer=optim.adam(1e-3), mesh=mesh
        )
    except tg.DeviceError as e:
        errors.append(str(e))
    json.dump({"one": losses, "errors": errors, **found}, sys.stdout)


if __name__ == "__main__":
    main()
