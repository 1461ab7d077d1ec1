"""How a training step's time, compile time, memory and dispatches grow with width, depth, batch and sequence length.

    python bench/scaling.py --device cpu                           every sweep: tables
    python bench/scaling.py --sweeps depth odd --json scaling.json
    python bench/scaling_plot.py docs/scaling.svg scaling.json     drawn, with matplotlib

Sweeps change one size of examples/gpt.py (4 layers, width 128, 64 tokens, batch 32) or of a network 784-W-W-10. "odd"
asks what sizes cost that are no multiples of 16, against the next that is. "memory" is a step's peak beside PyTorch's:
on a CPU what was resident beyond the imports, on a GPU what was allocated there. AdamW and clipping in all. Every
measurement has a process of its own; in "odd" a group of sizes has one, and they take turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from steps import CONTEXT, WORKLOADS, Workload, gpt, machine, steps_in, torch_block, tracegrad_block, tracegrad_training

import tracegrad as tg
from tracegrad import nn

Facts = dict[str, Any]
DENSE = SimpleNamespace(WIDTH=512, BATCH=128)
EXAMPLE = {"WIDTH": 128, "LAYERS": 4, "CONTEXT": 64, "BATCH": 32}
LARGE = "gpt BATCH=64 CONTEXT=256 WIDTH=384 HEADS=6 LAYERS=6"
MEMORY = ("sine", "dense", "cnn", "gpt", LARGE)
MULTIPLE, ALLOWED = 16, 1.3  # an odd size may take this many times what the next multiple takes
ROUNDS = 9  # of sizes that take turns
HEAD = ("compile s", "first step s", "ms a step", "GFLOP/s", "dispatches", "kernels", "persistent MB", "temporaries MB")


@dataclass(frozen=True)
class Sweep:
    """One size of a model that changes; `more` are for GPUs."""

    model: str
    size: str
    sizes: tuple[int, ...]
    more: tuple[int, ...] = ()
    others: str = ""

    def points(self, device: str) -> list[str]:
        """The workloads, as `workload` takes them."""
        sizes = (*self.sizes, *(self.more if device == "webgpu" else ()))
        return [f"{self.model} {self.size}={n} {self.others}".strip() for n in sizes]


SWEEPS = {
    "width": Sweep("gpt", "WIDTH", (16, 32, 64, 128, 256, 512), (1024,)),
    "depth": Sweep("gpt", "LAYERS", (1, 2, 4, 8, 16, 24), (48,)),
    "batch": Sweep("gpt", "BATCH", (1, 2, 4, 8, 16, 32, 64, 128), (256, 512, 1024)),
    "sequence": Sweep("gpt", "CONTEXT", (8, 16, 32, 64, 128, 256, 512), (1024, 2048), "BATCH=8"),
    "dense": Sweep("dense", "WIDTH", (16, 32, 64, 128, 256, 512, 1024, 2048), (4096, 8192)),
}
ODD = {
    "width": Sweep(
        "dense", "WIDTH", (127, 128, 129, 144, 500, 504, 509, 512, 513, 516, 520, 523, 524, 527, 528), (), "BATCH=512"
    ),
    "large width": Sweep("dense", "WIDTH", (1000, 1008, 1023, 1024, 1025, 1040), (2047, 2048, 2049, 2064), "BATCH=512"),
    "batch": Sweep("dense", "BATCH", (31, 32, 33, 48, 100, 112, 127, 128, 129, 144, 500, 511, 512, 513, 528)),
    "long batch": Sweep("dense", "BATCH", (4093, 4095, 4096, 4097, 4112, 8191, 8192), (), "WIDTH=128"),
    "sequence": Sweep("gpt", "CONTEXT", (15, 16, 17, 32, 63, 64, 65, 80, 100, 112), (255, 256, 257, 272), "BATCH=16"),
    "GPT width": Sweep("gpt", "WIDTH", (60, 64, 68, 80, 124, 128, 132, 144), (500, 512, 516, 528)),
}


class Dense(tg.Module):
    """784-W-W-10."""

    def __init__(self) -> None:
        w = DENSE.WIDTH
        self.l1, self.l2, self.l3 = nn.Linear(784, w), nn.Linear(w, w), nn.Linear(w, 10)


def dense_loss(m: Dense, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m.l3(tg.relu(m.l2(tg.relu(m.l1(x))))), y)


def dense_batch(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((DENSE.BATCH, 784), np.float32), "y": rng.integers(0, 10, DENSE.BATCH, np.int32)}


def torch_dense(torch: Any) -> tuple[Any, Any]:
    layers, w = torch.nn, DENSE.WIDTH
    net = layers.Sequential(
        layers.Linear(784, w), layers.ReLU(), layers.Linear(w, w), layers.ReLU(), layers.Linear(w, 10)
    )
    return net, lambda net, x, y: layers.functional.cross_entropy(net(x), y.long())


def workload(point: str) -> Workload:
    """`gpt LAYERS=8 BATCH=4`: a model with some of its sizes. They are constants of a module, so one at a time."""
    name, *sizes = point.split()
    place, usual = (gpt, EXAMPLE) if name == "gpt" else (DENSE, {"WIDTH": 512, "BATCH": 128})
    for constant, value in {**usual, **{k: int(v) for k, v in (s.split("=") for s in sizes)}}.items():
        setattr(place, constant, value)
    if name == "gpt":
        tokens = tg.i32[gpt.BATCH, gpt.CONTEXT]
        return replace(WORKLOADS["gpt"], inputs={"tokens": tokens, "following": tokens})
    if name == "dense":
        inputs = {"x": (DENSE.BATCH, 784), "y": tg.i32[DENSE.BATCH]}
        return Workload(Dense, dense_loss, inputs, dense_batch, torch_dense)
    return WORKLOADS[name]


def steady(block: Callable[[int], float], seconds: float) -> float:
    """Return milliseconds a step: the best of at least five blocks of steps, because other work only adds time."""
    n = steps_in(block, seconds / 10)
    times: list[float] = []
    while len(times) < 5 or sum(times) * n < seconds:
        times.append(block(n) / n)
    return 1000 * min(times)


def measured(point: str, device: str, seconds: float) -> Facts:
    """One point of a sweep."""
    w = workload(point)
    began = time.perf_counter()
    train = tracegrad_training(w, device)
    compile_s = time.perf_counter() - began
    _ = train.step(w.batch(np.random.default_rng(1))).loss
    first = time.perf_counter() - began
    ms = steady(tracegrad_block(w, train), seconds)
    flops = sum(d.cost.flops for d in train.explain().dispatches)
    memory = train.memory
    kept = sum(memory[role] for role in ("param", "grad", "state"))
    return {
        "compile s": compile_s, "first step s": first, "ms a step": ms, "GFLOP/s": flops / ms / 1e6,
        "dispatches": len(train.program.dispatches), "kernels": len(train.kernels),
        "persistent MB": kept / 1e6, "temporaries MB": memory["temp"] / 1e6,
    }  # fmt: skip


def taking_turns(points: Sequence[str], device: str, seconds: float) -> list[Facts]:
    """Milliseconds a step of several sizes, on the same machine in the same minute."""
    rng = np.random.default_rng(0)
    blocks: list[Callable[[int], float]] = []
    for point in points:
        w = workload(point)
        batch = w.batch(rng)  # drawn while the sizes are this point's
        blocks.append(tracegrad_block(replace(w, batch=lambda _, drawn=batch: drawn), tracegrad_training(w, device)))
    counts = [steps_in(block, seconds / ROUNDS) for block in blocks]
    times = [[block(n) / n for block, n in zip(blocks, counts)] for _ in range(ROUNDS)]
    return [{"ms a step": 1000 * min(column)} for column in zip(*times)]


def resident(what: str) -> float:
    """Bytes of this process in memory: VmRSS now, VmHWM at most since the kernel was told to begin anew."""
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else math.nan


def peak_memory(point: str, library: str, device: str) -> Facts:
    """MB at most during the third step."""
    if library == "PyTorch":
        import torch

        on_gpu = device == "webgpu" and torch.cuda.is_available()
    before, w = resident("VmRSS"), workload(point)
    train = tracegrad_training(w, device) if library == "tracegrad" else None
    block = tracegrad_block(w, train) if train is not None else torch_block(w, device)
    block(2)
    if train is not None and device == "webgpu":
        block(1)
        return {"MB": train.memory["total"] / 1e6}
    if library == "PyTorch" and on_gpu:
        torch.cuda.reset_peak_memory_stats()
        block(1)
        return {"MB": torch.cuda.max_memory_allocated() / 1e6}
    Path("/proc/self/clear_refs").write_text("5")
    block(1)
    return {"MB": (resident("VmHWM") - before) / 1e6}


def alone(fn: Callable[..., Any], *arguments: Any) -> Any:
    """Return `fn(*arguments)`, called in a fresh process; the text of the error if the process died or raised."""
    try:
        with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
            return pool.submit(fn, *arguments).result()
    except (tg.TracegradError, MemoryError, RuntimeError, BrokenProcessPool) as e:
        return f"{type(e).__name__}: {e}".splitlines()[0]


def row(*cells: Any) -> str:
    """A line of a markdown table."""
    shown = [c if isinstance(c, str) else f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells]
    return f"| {' | '.join(shown)} |"


def head(*cells: str) -> None:
    print("\n" + row(*cells) + f"\n|{'---|' * len(cells)}", flush=True)


def sweep(name: str, device: str, seconds: float) -> Iterator[Facts]:
    """Measure and print one sweep."""
    one = SWEEPS[name]
    head(f"{name}: {one.model} {one.size} {one.others}".strip(), *HEAD)
    for point in one.points(device):
        facts = alone(measured, point, device, seconds)
        size = point.split()[1].partition("=")[2]
        print(row(size, facts) if isinstance(facts, str) else row(size, *(facts[k] for k in HEAD)), flush=True)
        if not isinstance(facts, str):
            yield {"sweep": name, "size": int(size), **facts}


def odd(device: str, seconds: float) -> Iterator[Facts]:
    """Measure and print sizes that are no multiples of 16, each beside the next multiple."""
    head("odd sizes", "size", "ms a step", "next multiple", "ratio", f"over {ALLOWED}")
    for name, one in ODD.items():
        points = one.points(device)
        sizes = [int(p.split()[1].partition("=")[2]) for p in points]
        facts = alone(taking_turns, points, device, seconds)
        if isinstance(facts, str):
            print(row(name, facts), flush=True)
            continue
        times = dict(zip(sizes, [f["ms a step"] for f in facts]))
        for n, ms in times.items():
            following = -(-n // MULTIPLE) * MULTIPLE
            if following != n:
                ratio = ms / times[following]
                print(row(name, n, ms, following, ratio, "yes" * (ratio > ALLOWED)), flush=True)
                yield {"odd": name, "size": n, "ms a step": ms, "next multiple": following, "ratio": ratio}


def memory(device: str) -> Iterator[Facts]:
    """Measure and print a step's memory beside PyTorch's."""
    libraries = ["tracegrad"] + ["PyTorch"] * (importlib.util.find_spec("torch") is not None)
    head("memory of a step", *(f"{x} MB" for x in libraries))
    for point in MEMORY:
        found = {x: alone(peak_memory, point, x, device) for x in libraries}
        print(row(point, *(f if isinstance(f, str) else f["MB"] for f in found.values())), flush=True)
        yield {"memory": point, **{x: f["MB"] for x, f in found.items() if not isinstance(f, str)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "webgpu"))
    parser.add_argument("--sweeps", nargs="+", choices=(*SWEEPS, "odd", "memory"), default=[*SWEEPS, "odd", "memory"])
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time a point")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    args = parser.parse_args()
    description = next(d.description for d in tg.devices() if d.name == args.device)
    about = machine()
    print(f"{about}\n{args.device}: {description}", flush=True)
    rows: list[Facts] = []
    for name in args.sweeps:
        if name == "odd":
            rows += odd(args.device, args.seconds)
        else:
            rows += memory(args.device) if name == "memory" else sweep(name, args.device, args.seconds)
        if args.json:
            found = {"name": args.device, "device": description, "about": about, "rows": rows}
            args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
