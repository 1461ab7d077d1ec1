"""What the checks of kernels cost of a first step, where nothing is known of any kernel: python bench/checks.py

    python bench/checks.py --devices cpu webgpu --models sine cnn gpt --runs 5

Each first step has a process of its own, with empty caches of tracegrad and of the driver, as on a new machine. Those
with and without checks (TRACEGRAD_VERIFY=off) take turns. Of seconds on the wall the median counts. Of processors' the
least counts, to which other work adds nothing. Seconds go from the call of `tg.compile` to the first loss, and those of
C compilers are included. The share is what checks add, over the first step without them. "within" are the seconds on
the wall inside of the checks. C compilers are waited for there, and a driver that compiles a pipeline when it is first
launched does so there, not in the step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
from steps import WORKLOADS, machine, print_table, tracegrad_training, workload

import tracegrad as tg
from tracegrad.runtime import cpu, verify, wgpu_verify

CACHES = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
HEAD = ("model", "kernels checked", "first step s", "with checks", "share", "processor s", "with checks", "share",
        "within s")  # fmt: skip


def processor() -> float:
    """Seconds of this process and its children so far."""
    times = os.times()
    return sum(times[:4])


def first_step(name: str, device: str) -> dict[str, float]:
    """The first step of this process, in seconds."""
    within = [0.0]

    def timed(owner: Any, check: str) -> None:
        function = getattr(owner, check)

        def checked(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                within[0] += time.perf_counter() - began

        setattr(owner, check, checked)

    timed(cpu.CpuSession, "_is_wrong")
    timed(wgpu_verify.Unchecked, "begin")
    timed(wgpu_verify.Unchecked, "refuse_wrong")
    w = workload(name)
    batch = w.batch(np.random.default_rng(0))
    wall, used = time.perf_counter(), processor()
    train = tracegrad_training(w, device)
    _ = train.step(batch).loss
    wall, used = time.perf_counter() - wall, processor() - used
    train.close()
    return {"wall": wall, "processor": used, "within": within[0], "kernels": len(train.program.kernels)}


def measured(name: str, device: str, checks: bool) -> dict[str, float]:
    """`first_step` in a new process, with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | dict.fromkeys(CACHES, folder) | {verify.SWITCH: "on" if checks else "off"}
        command = [sys.executable, "-W", "ignore", __file__, "--first", name, "--devices", device]
        ran = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
        return json.loads(ran.stdout)


def row(name: str, device: str, runs: int) -> str:
    """One row of the table."""
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for _ in range(runs):
        for checks, those in found.items():
            those.append(measured(name, device, checks))

    def of(checks: bool, what: str) -> float:
        return (min if what == "processor" else median)([x[what] for x in found[checks]])

    cells = [name, f"{of(True, 'kernels'):.0f}"]
    for what in ("wall", "processor"):
        off, on = of(False, what), of(True, what)
        cells += [f"{off:.2f}", f"{on:.2f}", f"{(on - off) / off:.1%}"]
    return f"| {' | '.join([*cells, format(of(True, 'within'), '.3f')])} |"


def main() -> None:
    """A table for each device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=["cpu", "webgpu"])
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=["sine", "mlp", "cnn", "gpt"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first", choices=WORKLOADS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first:
        print(json.dumps(first_step(args.first, args.devices[0])))
        return
    print(machine())
    for device in args.devices:
        print(f"\n{next((d.description for d in tg.devices() if d.name == device), device)}")
        print_table(HEAD, args.models, lambda name, device=device: [row(name, device, args.runs)])


if __name__ == "__main__":
    main()
