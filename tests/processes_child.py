"""One of several processes that train together, as SLURM would start them; run by tests/test_jax_processes.py.

    python tests/processes_child.py PORT PROCESSES PROCESS FOLDER WHAT

WHAT:
    train                       train to the end
    die                         the last process ends as if killed, behind step 4
    resume                      go on from the last checkpoint
    die folder, resume folder   the same with folders that are written meanwhile
    model, seed                 what the processes shall disagree about
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import tracegrad as tg
from tracegrad import nn, optim

BATCH, STEPS = 16, 6


class Net(tg.Module):
    def __init__(self, width: int = 32) -> None:
        self.l1, self.norm, self.l2 = nn.Linear(8, width), nn.LayerNorm(width), nn.Linear(width, 8)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.dropout(tg.gelu(self.norm(self.l1(x))), 0.2))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m(x), y)


def compiled(width: int = 32, seed: int = 3, **how: Any) -> tg.CompiledTraining:
    made = optim.adamw(lr=1e-2, weight_decay=0.1, clip_grad_norm=0.5)
    inputs = {"x": (BATCH, 8), "y": tg.i32[BATCH]}
    return tg.compile(model=Net(width), loss=loss, inputs=inputs, optimizer=made, seed=seed, device="jax", **how)


def batches() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((STEPS, BATCH, 8)).astype(np.float32), rng.integers(0, 8, (STEPS, BATCH), np.int32)
    return [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]


def layouts(n: int) -> dict[str, dict[str, Any]]:
    """Over `n` processes of two devices each."""
    data, two = jax.make_mesh((2 * n,), ("data",)), jax.make_mesh((n, 2), ("data", "model"))
    across = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 2 * n), ("data", "model"))
    split = {"l1.W": P(None, "model"), "l1.b": P("model"), "l2.W": P("model", None)}
    return {
        "data": {"mesh": data},
        "fsdp": {"mesh": data, "layout": "fsdp"},
        "tensor": {"mesh": two, "layout": split},
        "tensor across": {"mesh": across, "layout": split},
    }


def trained(process: int, n: int, folder: Path) -> dict[str, Any]:
    """All layouts, of four processes two; whole batches and this process's rows in turns."""
    found: dict[str, Any] = {}
    for name, how in layouts(n).items():
        if n > 2 and name not in ("fsdp", "tensor across"):
            continue
        with compiled(**how) as train:
            index, parts = train.device.share
            rows = slice(index * BATCH // parts, (index + 1) * BATCH // parts)
            given = [b if k % 2 else {i: x[rows] for i, x in b.items()} for k, b in enumerate(batches())]
            losses = [train.step(b).loss for b in given]
            bad = train.step({**batches()[0], "x": np.full((BATCH, 8), np.nan)}).result()
            assert isinstance(bad, tg.Failed) and isinstance(bad.error, tg.NonFiniteError), bad
            size = train.worker.call(lambda s: int(s._memory.arrays["params:l1.W"].addressable_shards[0].data.size))  # pyright: ignore
            params = {k: x.tolist() for k, x in train.params().items()}
            train.save(folder / f"{name}.safetensors")
            found[name] = {"losses": losses, "params": params, "held": size, "device": str(train.device)}
    return found


def resumable(n: int, folder: Path, last: bool, what: str) -> dict[str, Any]:
    """FSDP with a checkpoint behind each second step; from a folder it goes on with another layout."""
    dies, sharded = what.startswith("die"), what.endswith("folder")
    path = folder / ("resume" if sharded else "resume.safetensors")
    with compiled(**layouts(n)["tensor" if sharded and not dies else "fsdp"]) as train:
        if path.exists():
            train.load(path)
        done = train.store.call(lambda _, stepper: stepper.counter)
        losses: dict[int, float] = {}
        for k, b in enumerate(batches()):
            step = k + 1
            if step <= done:
                continue
            losses[step] = train.step(b).loss
            if step % 2 == 0 and step < STEPS:
                train.save(path, wait=not sharded, sharded=sharded)
            if dies and last and step == 5:
                os.kill(os.getpid(), 9)
    return {"losses": losses}


def main() -> None:
    port, n, process, folder, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
    jax.distributed.initialize(f"127.0.0.1:{port}", n, process)
    found: dict[str, Any] = {}
    if what == "train":
        found = trained(process, n, folder)
    elif what.startswith(("die", "resume")):
        found = resumable(n, folder, process == n - 1, what)
    else:
        how = {"model": {"width": 32 + process}, "seed": {"seed": process}}[what]
        try:
            compiled(**how, **layouts(n)["data"])
        except tg.DeviceError as e:
            found = {"error": str(e)}
    (folder / f"{what}-{process}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
