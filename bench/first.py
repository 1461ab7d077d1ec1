"""Where the time to a first step goes, thread by thread.

Kernels are listed with the time to write their text, and the time that the driver takes to compile it.

    python bench/first.py gpt256                                       the default device
    __GL_SHADER_DISK_CACHE_PATH=$(mktemp -d) python bench/first.py gpt256 --device webgpu      NVIDIA's cache empty

A process has one first step, so this measures one model. Times are seconds from the call of `tg.compile`.
"""

from __future__ import annotations

import argparse
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from steps import WORKLOADS, machine, tracegrad_training, workload

from tracegrad.compiler import build
from tracegrad.engine import params
from tracegrad.runtime import adapters, cpu, wgpu_session, wgpu_shared

PHASES: list[tuple[Any, str, str]] = [  # where a function is looked up, its name there, and what it does
    (build.StepSource, "traced", "trace"),
    (build.TracedProgram, "compiled", "gradients, passes, kernels, memory"),
    (params, "drawn", "draw the parameters"),
    (adapters, "load_wgpu", "import wgpu"),
    (wgpu_session, "open_device", "open the device"),
    (wgpu_session.NativeSession, "_pick_calls", "test the device"),
    (wgpu_session.NativeSession, "load", "load the program"),
    (wgpu_session.NativeSession, "write", "upload an array"),
    (cpu.CpuSession, "load", "load the program"),
]
LEAST = 0.002  # seconds: shorter ones are not told


@dataclass(frozen=True)
class Span:
    """One call."""

    begin: float
    end: float
    thread: str
    what: str


def timed(owner: Any, name: str, what: Callable[..., str], spans: list[Span]) -> None:
    """Note every call of `owner.name` from now on."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spans.append(Span(begin, time.perf_counter(), threading.current_thread().name, what(*args)))

    setattr(owner, name, noted)


def main() -> None:
    """Two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=WORKLOADS)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    phases, pipelines = list[Span](), list[Span]()
    for owner, name, what in PHASES:
        timed(owner, name, lambda *_, what=what: what, phases)
    timed(wgpu_shared.Shared, "pipeline", lambda _, kernel, *__: kernel.label, pipelines)
    w = workload(args.model)
    batch = w.batch(np.random.default_rng(0))
    start = time.perf_counter()
    train = tracegrad_training(w, args.device)
    compiled = time.perf_counter()
    _ = train.step(batch).loss
    end = time.perf_counter()
    print(machine(), train.device, sep="\n")
    print("\n| from | to | thread | what |\n|---|---|---|---|")
    for s in sorted(phases, key=lambda s: s.begin):
        if s.end - s.begin >= LEAST:
            print(f"| {s.begin - start:.3f} | {s.end - start:.3f} | {s.thread} | {s.what} |")
    print(f"| 0.000 | {compiled - start:.3f} | | `tg.compile` |")
    print(f"| {compiled - start:.3f} | {end - start:.3f} | | a step |")
    found = sorted((s for s in pipelines if s.end - s.begin >= LEAST), key=lambda s: s.begin - s.end)
    if found:
        print(f"\n{len(found)} pipelines, {sum(s.end - s.begin for s in found):.2f} s together, each waiting included:")
        print("\n| from | to | seconds | kernel |\n|---|---|---|---|")
    for s in found:
        print(f"| {s.begin - start:.3f} | {s.end - start:.3f} | {s.end - s.begin:.3f} | {s.what} |")


if __name__ == "__main__":
    main()
