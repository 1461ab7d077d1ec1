"""Two or more states of tracegrad side by side: what a change did to a training step.

    python bench/compare.py HEAD~3 . --models gpt mlp                  commits, and the files as they are
    python bench/compare.py /tmp/before/src src --device webgpu        folders that hold the package

Each has a process of its own for each model; blocks of steps take turns, so that all see the same machine, and the
median block counts. "kernels" is the time of a step's dispatches together, by `train.profile`. "first step" is timed
from before `tg.compile`, in a process that has imported the library. It includes what the driver compiles unless its
cache has it (an NVIDIA driver looks for one in __GL_SHADER_DISK_CACHE_PATH).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from steps import WORKLOADS, facts, machine, median_ms, print_table, tracegrad_block, tracegrad_training, workload

from tracegrad.runtime.c_compiler import compiler

ROOT = Path(__file__).parents[1]
HEAD = ("model", "state", "dispatches", "temporaries MiB", "first step s", "kernels ms", "ms a step", "times the first")


def serve(name: str, device: str) -> None:
    """The child process: send facts about the program; then run as many steps as requested, and send the seconds."""
    w = workload(name)
    began = time.perf_counter()
    train = tracegrad_training(w, device)
    _ = train.step(w.batch(np.random.default_rng(1))).loss
    first = time.perf_counter() - began
    own = {"first": first, "kernels": 1000 * train.profile(5).seconds, "texts": texts(train)}
    print(json.dumps(facts(train.program) | own), flush=True)
    block = tracegrad_block(w, train)
    for line in sys.stdin:
        print(block(int(line)), flush=True)


def texts(train: Any) -> str:
    """Return a hash of the program of a training, and of its kernels in the language that the device runs."""
    program, cpu = train.program, train.device.name == "cpu"
    total = hashlib.sha256(repr(program.buffers).encode())
    for k in program.kernels:
        language = "wgsl" if not cpu else "c" if compiler() else "numpy"
        total.update(repr(k.texts[language] if hasattr(k, "texts") else getattr(k, language)).encode())
    for d in program.dispatches:
        total.update(repr((d.kernel, d.buffers, d.offsets, None if cpu else d.grid)).encode())
    return total.hexdigest()


class State:
    """One state's process for one model. It says and hears lines."""

    def __init__(self, folder: Path, name: str, device: str, settings: Sequence[str] = ()) -> None:
        """settings: other tuning constants, each NAME=VALUE, as tuned.py takes them."""
        paths = os.pathsep.join(map(str, (folder, ROOT / "bench", ROOT / "examples")))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (paths, os.environ.get("PYTHONPATH"))))}
        tuned = [str(ROOT / "bench/tuned.py"), *settings, "--"] if settings else []
        command = [sys.executable, *tuned, __file__, "--serve", name, "--device", device]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts: dict[str, Any] = json.loads(self.said())

    def said(self) -> str:
        """The next line; if the process has ended there is none, and it has said why."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended with exit code {self.process.wait()}")
        return line

    def block(self, n: int) -> float:
        """Seconds of n steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return float(self.said())

    def close(self) -> None:
        """End it."""
        self.process.communicate()


@contextmanager
def source(state: str) -> Iterator[Path]:
    """The folder that holds the package of a state: of a commit, in a worktree for so long."""
    if state == ".":
        yield ROOT / "src"
    elif (Path(state) / "tracegrad").is_dir():
        yield Path(state).resolve()
    else:
        git = ["git", "-C", str(ROOT), "worktree"]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*git, "add", "-q", "--detach", folder, state], check=True)
            try:
                yield Path(folder) / "src"
            finally:
                subprocess.run([*git, "remove", "--force", folder], check=True)


def measure(name: str, folders: list[tuple[str, Path]], device: str, seconds: float) -> list[str]:
    """The rows of one model."""
    with ExitStack() as stack:
        states = [stack.enter_context(closing(State(folder, name, device))) for _, folder in folders]
        times = median_ms(states, seconds, warm=int(device == "webgpu"))
    rows: list[str] = []
    for (label, _), state, ms in zip(folders, states, times, strict=True):
        f = state.facts
        row = [name, label, f"{f['dispatches']}", f"{f['temporaries']:.1f}", f"{f['first']:.2f}", f"{f['kernels']:.3g}"]
        rows.append("| " + " | ".join([*row, f"{ms:.4g}", f"{ms / times[0]:.3f}"]) + " |")
    return rows


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("states", nargs="*", help="commits, folders that hold the package, or . for the files here")
    parser.add_argument("--models", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each state and model")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.device)
        return
    print(machine())
    with ExitStack() as stack:
        folders = [(state, stack.enter_context(source(state))) for state in args.states]
        print_table(HEAD, args.models, lambda name: measure(name, folders, args.device, args.seconds))


if __name__ == "__main__":
    main()
