"""Weak scaling: a GPT on one GPU and on all GPUs of the host, by device="jax" with a mesh and by PyTorch.

    python bench/mesh.py                            10.7 million parameters, 64 rows of 256 tokens for each GPU
    python bench/mesh.py --large --precision bf16   and 85 million
    python bench/mesh.py --tiny                     a small model on two CPU devices: does the script run?
    python bench/mesh.py --arithmetic               no device: what larger models and more GPUs would cost

tracegrad runs in one process, with `mesh=` over "data" (data parallel) and with `layout="fsdp"`. PyTorch runs in one
process a GPU, eager or with `--compile`: DistributedDataParallel and fully_shard, over NCCL (Gloo on CPUs). Both train
with AdamW, clip by the global norm and take another batch from the host for each step. A step is the minimum over the
blocks of steps; the loss is read at the end of a block. Each row is a process of its own, which ends before the next
begins. The efficiency is the time of a step on one GPU over that on n GPUs, which compute n times as much.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from mesh_arithmetic import report
from steps import ALPHABET, CLIP, DECAY, LARGE, RATE, batches_of, gpt, machine, tracegrad_block, workload

import tracegrad as tg
from tracegrad import optim

BATCH = 64  # rows for each GPU
MODELS = {
    "gpt256": LARGE["gpt256"],
    "large": {"CONTEXT": 256, "WIDTH": 768, "HEADS": 12, "LAYERS": 12},
    "tiny": {"CONTEXT": 16, "WIDTH": 32, "HEADS": 2, "LAYERS": 2},
}
ROWS = (("tracegrad", "one"), ("tracegrad", "data"), ("tracegrad", "fsdp"),
        ("torch", "one"), ("torch", "data"), ("torch", "fsdp"))  # fmt: skip
HEAD = ("model", "library", "layout", "devices", "ms a step", "tokens/s", "efficiency", "device")
MATMUL = {"f32": "highest", "tf32": "high", "bf16": "highest"}  # what PyTorch calls them; bf16 is autocast's
BLOCKS = 3


def sized(model: str, batch: int) -> Any:
    """The workload of a GPT of these sizes."""
    LARGE["gpt"] = {**MODELS[model], "BATCH": batch}
    return workload("gpt")


def fastest(block: Callable[[int], float], steps: int) -> float:
    """Return milliseconds a step: the fastest block."""
    block(2)  # compiles
    block(steps)
    return min(block(steps) for _ in range(BLOCKS)) / steps * 1e3


def tracegrad_row(row: dict[str, Any]) -> dict[str, Any]:
    """A training in this process, on the first device or on a mesh of all."""
    import jax

    n = len(jax.devices()) if row["layout"] != "one" else 1
    w = sized(row["model"], n * row["batch"])
    how: dict[str, Any] = {}
    if row["layout"] != "one":
        how = {"mesh": jax.make_mesh((n,), ("data",)), "layout": "fsdp" if row["layout"] == "fsdp" else None}
    optimizer = optim.adamw(lr=RATE, weight_decay=DECAY, clip_grad_norm=CLIP)
    with tg.compile(model=w.model(), loss=w.loss, inputs=w.inputs, optimizer=optimizer, seed=0, device="jax",
                    precision=row["precision"], **how) as train:  # fmt: skip
        ms = fastest(tracegrad_block(w, train), row["steps"])
    return {"ms": ms, "devices": n, "device": f"JAX {jax.__version__}, {jax.devices()[0].device_kind}"}


def torch_row(row: dict[str, Any]) -> dict[str, Any]:
    """A training in as many processes as there are GPUs."""
    import torch

    n = 1 if row["layout"] == "one" else torch.cuda.device_count() or row["devices"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    context: Any = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    torch.multiprocessing.spawn(torch_rank, (n, row, answers), nprocs=n)  # pyright: ignore
    kind = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {"ms": answers.get(), "devices": n, "device": f"PyTorch {torch.__version__}, {kind}"}


def torch_rank(rank: int, n: int, row: dict[str, Any], answers: Any) -> None:
    """One process of a training in PyTorch. All wait for each other at the ends of blocks."""
    import torch

    cuda = torch.cuda.is_available()
    place = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    distributed: Any = torch.distributed
    if n > 1:
        distributed.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=n)
    torch.set_float32_matmul_precision(MATMUL[row["precision"]])
    w = sized(row["model"], row["batch"])
    net, loss = w.torch(torch)
    net = spread(torch, net.to(place), row["layout"], place)
    inner = torch_block(w, net, torch.compile(loss) if row["compile"] else loss, place, row["precision"] == "bf16")

    def block(steps: int) -> float:
        if n > 1:
            distributed.barrier()
        return inner(steps)

    ms = fastest(block, row["steps"])
    if rank == 0:
        answers.put(ms)
    if n > 1:
        distributed.destroy_process_group()


def spread(torch: Any, net: Any, layout: str, place: Any) -> Any:
    """The network as PyTorch trains it on more than one device."""
    if layout == "data":
        return torch.nn.parallel.DistributedDataParallel(
            net, device_ids=[place.index] if place.type == "cuda" else None
        )
    if layout == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for one in net.blocks:
            fully_shard(one)
        fully_shard(net)
    return net


def torch_block(w: Any, net: Any, loss: Callable[..., Any], place: Any, half: bool) -> Callable[[int], float]:
    """A function that runs n steps and gives the seconds."""
    import torch

    batches, cuda = batches_of(w), place.type == "cuda"
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY, fused=True)

    def block(n: int) -> float:
        given = batches(n)
        began, value = time.perf_counter(), torch.zeros(())
        for batch in given:
            made = {name: torch.from_numpy(x) for name, x in batch.items()}
            made = {name: x.pin_memory().to(place, non_blocking=True) if cuda else x for name, x in made.items()}
            with torch.autocast(place.type, torch.bfloat16, enabled=half):
                value = loss(net, **made)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
        value.item()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return block


def run_row(row: dict[str, Any], patience: float) -> dict[str, Any]:
    """Measure a row in a process of its own. If the process fails, return the text of its error."""
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    if row["model"] == "tiny":
        count = f"--xla_force_host_platform_device_count={row['devices']}"
        environment |= {"XLA_FLAGS": count, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--row", json.dumps(row)]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                           start_new_session=True)  # fmt: skip
    try:
        out, err = ran.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(ran.pid, signal.SIGKILL)
        ran.communicate()
        return {"error": f"no answer within {patience:.0f} s"}
    if ran.returncode == 0:
        return json.loads(out.splitlines()[-1])
    lines = [line for line in err.splitlines() if line.strip()] or [f"exit status {ran.returncode}"]
    told = [line for line in lines if "Error" in line] or lines
    return {"error": told[-1].replace("|", "/")[:200]}


def table(models: list[str], options: argparse.Namespace, devices: int) -> None:
    """Print the rows as they come."""
    end = time.monotonic() + options.seconds
    print(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for model in models:
        batch = 4 if model == "tiny" else BATCH
        steps = {"tiny": 4, "large": 8}.get(model, 20)
        single: dict[str, float] = {}
        for library, layout in ROWS:
            if library not in options.libraries:
                continue
            row = {"model": model, "library": library, "layout": layout, "batch": batch, "steps": steps,
                   "devices": devices, "precision": options.precision, "compile": options.compile}  # fmt: skip
            left = end - time.monotonic()
            got = run_row(row, min(left, options.patience)) if left > 5 else {"error": "no time was left for it"}
            if "error" in got:
                print(f"| {model} | {library} | {layout} | | failed: {got['error']} |", flush=True)
                continue
            ms, n = got["ms"], got["devices"]
            single.setdefault(library, ms if layout == "one" else float("nan"))
            tokens = n * batch * MODELS[model]["CONTEXT"] / ms * 1e3
            cells = (model, library, layout, f"{n}", f"{ms:.2f}", f"{tokens:,.0f}", f"{single[library] / ms:.2f}")
            print(f"| {' | '.join(cells)} | {got['device']} |", flush=True)


def parameters(model: str) -> int:
    """How many parameters a model has."""
    sized(model, 1)
    return sum(int(np.prod(p.shape)) for p in tg.nn.named_parameters(gpt.GPT(ALPHABET)).values())


def gpus() -> int:
    """How many NVIDIA GPUs this process may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([x for x in chosen.split(",") if x.strip()])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also a model of 85 million parameters")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on two devices of the CPU instead")
    parser.add_argument("--arithmetic", action="store_true", help="predict, for 10 million to 10 billion parameters")
    parser.add_argument("--precision", choices=MATMUL, default="f32")
    parser.add_argument("--compile", action="store_true", help="torch.compile around PyTorch's loss")
    parser.add_argument("--libraries", nargs="*", choices=("tracegrad", "torch"), default=["tracegrad", "torch"])
    parser.add_argument("--patience", type=float, default=90, help="seconds for a row")
    parser.add_argument("--seconds", type=float, default=235, help="for all rows; what does not fit is not measured")
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        made = tracegrad_row if options.row["library"] == "tracegrad" else torch_row
        print(json.dumps(made(options.row)))
        return
    if options.arithmetic:
        print(report())
        return
    devices = 2 if options.tiny else gpus()
    if not devices:
        sys.exit("there is no NVIDIA GPU here; --tiny runs on the CPU")
    models = ["tiny"] if options.tiny else ["gpt256", "large"] if options.large else ["gpt256"]
    sizes = ", ".join(f"{model} {parameters(model) / 1e6:.3g} million parameters" for model in models)
    print(f"{machine()}\n{sizes}; products in {options.precision}; rows of a batch for each device: "
          f"{4 if options.tiny else BATCH}")  # fmt: skip
    table(models, options, devices)


if __name__ == "__main__":
    main()
