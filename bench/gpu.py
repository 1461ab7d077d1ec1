"""A training step on an NVIDIA GPU: tracegrad through WebGPU, PyTorch and JAX through CUDA, in one run.

    python bench/gpu.py                                 every model and library that is installed
    python bench/gpu.py --models sine mlp --libraries tracegrad jax --seconds 5
    python bench/gpu.py --models gpt gpt256 --libraries tracegrad "torch graph" "torch graph tf32" "torch graph bf16"

AdamW and clipping by the global norm in all of them, float32 without TF32 unless the name says so. Inputs come
from the host each step, the loss is read at the end of a block. "torch graph" is PyTorch's best: forward and backward
by torch.compile, and the whole step with the optimizer in one CUDA graph. Its "tf32" and "bf16" use matrix units:
products round their operands to 10 bits of mantissa, or run in bfloat16 by autocast with float32 parameters. Every
library has a process of its own, blocks take turns, and the median block counts; processes without a turn stand still.
Before each block runs one that does not count, in which the GPU comes to its clock. The first step is timed from before
the model is made, without importing the library.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

from steps import (
    CLIP,
    CLOCK,
    DECAY,
    RATE,
    WORKLOADS,
    Stopped,
    Workload,
    batches_of,
    compiled,
    installed,
    machine,
    medians,
    print_table,
    torch_block,
    tracegrad_block,
    tracegrad_training,
    workload,
)

import tracegrad as tg

PACKAGES = {"tracegrad": "tracegrad", "torch": "torch", "torch.compile": "torch", "torch graph": "torch", "jax": "jax"}
HALVED = {"torch graph tf32": "torch", "torch graph bf16": "torch"}  # less exact: only on request
HEAD = ("model", "library", "ms a step", "times tracegrad", "first step s")


def block_of(library: str, name: str) -> Callable[[int], float]:
    """Return a function that runs n steps and returns the seconds."""
    w = workload(name)
    if library == "jax":
        from peers_jax import jax_block

        return jax_block(name, w)
    if library.startswith("torch graph"):
        return graph_block(w, half=library.endswith("bf16"))
    if library.startswith("torch"):
        return torch_block(compiled(w) if library == "torch.compile" else w, "webgpu")
    return tracegrad_block(w, tracegrad_training(w, "webgpu"))


def graph_block(w: Workload, half: bool = False) -> Callable[[int], float]:
    """PyTorch's whole step as one CUDA graph, whose inputs are overwritten before each replay. half: by autocast."""
    import torch

    torch.manual_seed(0)
    net, loss = compiled(w).torch(torch)
    net.to("cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY, fused=True, capturable=True)
    batches = batches_of(w)
    given = {k: torch.from_numpy(v).cuda() for k, v in batches(1)[0].items()}

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            value = loss(net, **given)
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        return value

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles, and allocates the optimizer's state
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()

    def block(n: int) -> float:
        following = batches(n)
        began = CLOCK()
        for batch in following:
            for k, v in batch.items():
                given[k].copy_(torch.from_numpy(v), non_blocking=True)
            graph.replay()
        value.item()
        return CLOCK() - began

    return block


def serve(pipe: Any, library: str, name: str, device: str) -> None:
    """The child process: send the seconds of the first step; then run as many as requested, and send their seconds."""
    os.environ |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    name_of_package = (PACKAGES | HALVED)[library]
    package = importlib.import_module(name_of_package)
    if name_of_package == "torch":
        package.backends.cudnn.allow_tf32 = package.backends.cuda.matmul.allow_tf32 = library.endswith("tf32")
    began = time.perf_counter()
    try:
        block = block_of(library, name)
        block(1)
    except Exception as e:
        pipe.send({"failed": f"{type(e).__name__}: {e}".splitlines()[0][:120]})
        return
    pipe.send({"first": time.perf_counter() - began})
    while n := pipe.recv():
        pipe.send(block(n))


def measure(name: str, libraries: list[str], seconds: float, patience: float) -> list[str]:
    """One row for each library."""
    children = {x: Stopped(x, name, "webgpu", serve, patience) for x in libraries}
    times = medians(children, seconds, warm=1)
    rows: list[str] = []
    for x, child in children.items():
        if x in times:
            row = f"{times[x]:.4g} | {times[x] / next(iter(times.values())):.2f} | {child.facts['first']:.2f}"
        else:
            row = f"{child.facts.get('failed', f'no step in {patience:.0f} s')} | – | –"
        rows.append(f"| {name} | {x} | {row} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--libraries", nargs="+", choices=[*PACKAGES, *HALVED], default=list(PACKAGES))
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time a model and library")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds until a library's first step is done")
    args = parser.parse_args()
    libraries, missing = installed(args.libraries, PACKAGES | HALVED)
    print(machine())
    print(", ".join(d.description for d in tg.devices()) + missing)
    print_table(HEAD, args.models, lambda name: measure(name, libraries, args.seconds, args.patience))


if __name__ == "__main__":
    main()
