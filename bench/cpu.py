"""A training step on the CPU: tracegrad in C and in NumPy, PyTorch eager and compiled, JAX and tinygrad, in one run.

    python bench/cpu.py                                 every model and library that is installed
    python bench/cpu.py --models sine mlp --libraries c torch --seconds 5
    python bench/cpu.py --cold                          importing it; processes that compile and do one step

AdamW and clipping by the global norm in all of them; inputs come from the host each step, the loss is read at the end
of a block. With BENCH_CLOCK=processor and --threads 1 it is the processor's time that counts: for machines that
others use too. Every library has a process of its own, blocks take turns, and the median block counts. Without
--threads each uses as many as it likes. Memory is the most that was resident during a block, less what importing the
library took. tinygrad needs clang. What takes longer than --patience to its first step is left out, and named.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steps import (
    LARGE,
    WORKLOADS,
    Stopped,
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

PACKAGES = {
    "c": "tracegrad", "numpy": "tracegrad", "torch": "torch", "torch.compile": "torch", "jax": "jax",
    "tinygrad": "tinygrad",
}  # fmt: skip
HEAD = ("model", "library", "ms a step", "times {}", "first step s", "memory MiB")


def block_of(library: str, name: str) -> Callable[[int], float]:
    """Return a function that runs n steps and returns the seconds."""
    w = workload(name)
    if library == "jax":
        from peers_jax import jax_block

        return jax_block(name, w)
    if library == "tinygrad":
        from peers_tinygrad import tinygrad_block

        return tinygrad_block(name, w)
    if library.startswith("torch"):
        return torch_block(compiled(w) if library == "torch.compile" else w, "cpu")
    if library == "numpy":
        os.environ["TRACEGRAD_CC"] = "off"
    return tracegrad_block(w, tracegrad_training(w, "cpu"))


def resident(what: str) -> float:
    """MiB of this process in memory: VmRSS now, VmHWM at most since the kernel was told to begin anew."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+)", text)[1]) / 1024  # pyright: ignore[reportOptionalSubscript]


def serve(pipe: Any, library: str, name: str, device: str) -> None:
    """The child process: send the seconds of the first steps; then run as many as requested, and send their seconds."""
    importlib.import_module(PACKAGES[library])
    before = resident("VmRSS")
    began = time.perf_counter()
    try:
        block = block_of(library, name)
        block(1)
        first = time.perf_counter() - began
        block(1)
        Path("/proc/self/clear_refs").write_text("5")
        block(1)
    except Exception as e:
        pipe.send({"failed": f"{type(e).__name__}: {e}".splitlines()[0][:120]})
        return
    pipe.send({"first": first, "memory": resident("VmHWM") - before})
    while n := pipe.recv():
        pipe.send(block(n))


def measure(name: str, libraries: list[str], seconds: float, patience: float) -> list[str]:
    """One row for each library. Large models are measured one library after the other: memory has to do."""
    rows: list[tuple[str, float, dict[str, Any]]] = []
    for together in [[x] for x in libraries] if name in LARGE else [libraries]:
        children = {x: Stopped(x, name, "cpu", serve, patience) for x in together}
        times = medians(children, seconds)
        rows += [(x, times.get(x, 0.0), children[x].facts) for x in together]
    return [
        f"| {name} | {x} | {ms:.3f} | {ms / rows[0][1]:.2f} | {facts['first']:.2f} | {facts['memory']:.0f} |"
        if ms
        else f"| {name} | {x} | {facts.get('failed', f'no step in {patience:.0f} s')} | – | – | – |"
        for x, ms, facts in rows
    ]


def cold(name: str) -> str:
    """Seconds of a whole process that does one step: in C with an empty cache and with a full one, and in NumPy."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        times: list[float] = []
        for library in ("c", "c", "numpy"):
            command = [sys.executable, "-c", f"import cpu; cpu.block_of({library!r}, {name!r})(1)"]
            began = time.perf_counter()
            subprocess.run(command, env=environment, cwd=Path(__file__).parent, check=True)
            times.append(time.perf_counter() - began)
    return f"| {name} | {' | '.join(f'{t:.2f}' for t in times)} |"


def importing() -> float:
    """Processor seconds of `import tracegrad` beyond NumPy's, with bytecode: the best of fifteen processes."""
    code = "import time, numpy; t = time.process_time(); import tracegrad; print(time.process_time() - t)"
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        command = [sys.executable, "-c", code]
        runs = [subprocess.run(command, env=environment, capture_output=True, check=True) for _ in range(16)]
    return min(float(run.stdout) for run in runs[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--libraries", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time a model and library")
    parser.add_argument("--threads", type=int, help="processors each process may use")
    parser.add_argument("--cold", action="store_true", help="time whole processes that do one step")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds until a library's first steps are done")
    args = parser.parse_args()
    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    libraries, missing = installed(args.libraries, PACKAGES)
    cpu = next(d.description for d in tg.devices() if d.name == "cpu")
    print(machine())
    if args.cold:
        print(f"{cpu}\nimport tracegrad takes {importing():.3f} s beyond NumPy")
        print_table(("model", "C, empty cache", "C", "NumPy"), args.models, lambda name: [cold(name)])
        return
    print(cpu + missing)
    head = tuple(x.format(libraries[0]) for x in HEAD)
    print_table(head, args.models, lambda name: measure(name, libraries, args.seconds, args.patience))


if __name__ == "__main__":
    main()
