"""Run by tests/test_sharded.py with eight devices of the host: checkpoints in folders, by what they restore."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import tracegrad as tg
from tracegrad import nn, optim


class Net(tg.Module):
    def __init__(self, width: int = 32) -> None:
        self.l1, self.norm, self.l2 = nn.Linear(8, width), nn.BatchNorm(width), nn.Linear(width, 8)
        self.n = self.param((3,), dtype=tg.u32, init=tg.init.ones())
        self.seen = self.state((2,), dtype=tg.bool_)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        self.seen.assign(~self.seen)
        return self.l2(tg.dropout(tg.gelu(self.norm(self.l1(x), training=True)), 0.2))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m(x), y)


def small(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return loss(m, x, y) + tg.mean(m.l2.W**2)


MADE: dict[str, Any] = {
    "adamw": {"optimizer": lambda: optim.adamw(lr=1e-2, weight_decay=0.1, clip_grad_norm=0.5, ema=0.9, accumulate=2)},
    "adafactor": {"optimizer": lambda: optim.adafactor(lr=1e-2)},  # states of other shapes than parameters
    "two": {"losses": {"a": loss, "b": small}, "optimizer": lambda: optim.adam(1e-2)},
}


def compiled(name: str, device: str = "jax", width: int = 32, **how: Any) -> tg.CompiledTraining:
    made = {"loss": loss, **MADE[name]}
    if "losses" in made:
        del made["loss"]
    inputs = {"x": (16, 8), "y": tg.i32[16]}
    optimizer = made.pop("optimizer")()
    return tg.compile(model=Net(width), inputs=inputs, optimizer=optimizer, seed=3, device=device, **made, **how)


def batches(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, 16, 8)).astype(np.float32), rng.integers(0, 8, (n, 16)).astype(np.int32)
    return [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]


def trained(train: tg.CompiledTraining, name: str, given: list[dict[str, Any]]) -> None:
    for k, b in enumerate(given):
        train.step("ab"[k % 2], b) if name == "two" else train.step(b)


def restored(name: str, folder: Path) -> dict[str, Any]:
    """The hash of what an FSDP training saved, and of what others read from the folder."""
    data, two = jax.make_mesh((8,), ("data",)), jax.make_mesh((2, 4), ("data", "model"))
    split = {"l1.W": P(None, "model"), "l1.b": P("model"), "l2.W": P("model", None)}
    with compiled(name, mesh=data, layout="fsdp") as train:
        for _ in range(2):
            trained(train, name, batches(3))
            train.save(folder, sharded=True)
        saved, numbers = train.digest(), sorted(x.name for x in folder.iterdir())
    found: dict[str, str] = {}
    others: dict[str, dict[str, Any]] = {
        "tensor": {"mesh": two, "layout": split},
        "one": {},
        "cpu": {"device": "cpu"},
    }
    for where, how in others.items():
        with compiled(name, **how) as train:
            train.load(folder)
            found[where] = train.digest()
            trained(train, name, batches(1))  # the bounds fit what was loaded: the next step is applied
            found[where + " goes on"] = str(np.isfinite(train.params()["l1.W"]).all())
    return {"saved": saved, "numbers": numbers, "found": found}


def errors(folder: Path) -> list[str]:
    """What is told of folders that do not fit. Nothing changes."""
    found: list[str] = []
    good, bad, empty = folder / "good", folder / "bad", folder / "empty"
    empty.mkdir()
    with compiled("adamw") as train:
        train.save(good, sharded=True, wait=False).result()  # pyright: ignore[reportOptionalMemberAccess]
        train.worker.call(lambda s: s._memory.arrays.update({"params:l1.b": s._memory.arrays["params:l1.b"] * np.nan}))  # pyright: ignore
        train.save(bad, sharded=True)
    damaged = folder / "damaged"
    shutil.copytree(good, damaged)
    (described,) = damaged.rglob("array_metadatas/process_0")
    described.write_bytes(described.read_bytes()[:100])
    for name, width, path in (
        ("adamw", 32, bad), ("adamw", 16, good), ("adafactor", 32, good), ("adamw", 32, empty), ("adamw", 32, damaged),
    ):  # fmt: skip
        with compiled(name, width=width) as train:
            before = train.digest()
            try:
                train.load(path)
            except tg.InputError as e:
                found.append(str(e))
            assert train.digest() == before
    with compiled("adamw") as train:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        for most, wait in ((0, True), (2000, False)):  # bytes of a file: nothing can be written, or no large array
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            try:
                failed = train.save(good, sharded=True, wait=wait)
                found.append(str(failed.result().error))  # pyright: ignore
            except OSError as e:
                found.append(str(e))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        train.load(good)
        left = [good / f"{n}.orbax-checkpoint-tmp" for n in (7, 8)]  # threads of a failed save may still write there
        for folder in left:
            (folder / "tensors").mkdir(parents=True)
        train.save(good, sharded=True)
        assert [path.name for path in good.iterdir()] == ["9"]
    with compiled("adamw", device="cpu") as train:
        try:
            train.save(good, sharded=True)
        except tg.DeviceError as e:
            found.append(str(e))
    return found


if __name__ == "__main__":
    here = Path(sys.argv[1])
    result: dict[str, Any] = {name: restored(name, here / name) for name in MADE}
    print(json.dumps({**result, "errors": errors(here), "devices": jax.device_count(), "pid": os.getpid()}))
