"""Long runs: is memory flat, is speed flat, is a run of two halves the same to the last bit, and what stays behind?

    python bench/soak.py steps                        100 000 steps on the CPU, about a minute
    python bench/soak.py steps --device webgpu        10 000 steps
    python bench/soak.py models                       compile, run and close 500 models

Prints a table and exits with 1 if a limit is exceeded. Needs Linux: figures are read from /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.runtime.cache import cache_folder

BATCH, BATCHES, WIDTH = 32, 64, 32
PARTS = 10  # of a run, each with figures of its own; the first warms up
STEPS = {"cpu": 100_000, "webgpu": 10_000}
MOST_GROWTH = 4 << 20  # bytes, from the second part of a run to the last
MOST_GROWTH_A_MODEL = 16 << 10  # bytes, beside MOST_GROWTH for all of them
SLOWEST = 1.5  # processor time a step, of the last third to the first


class Model(tg.Module):
    """Three layers and dropout, so that the random stream counts too."""

    def __init__(self, width: int) -> None:
        self.a, self.b, self.c = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, 1)


def predict(m: Model, x: tg.Tensor) -> tg.Tensor:
    """The forward."""
    return m.c(tg.tanh(m.b(tg.relu(m.a(x)))))


def loss(m: Model, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Mean square, with dropout."""
    return tg.mse_loss(m.c(tg.dropout(tg.tanh(m.b(tg.relu(m.a(x)))), 0.1)), y)


@dataclass(frozen=True)
class Usage:
    """The memory, threads and files that the process holds."""

    bytes: int
    threads: int
    descriptors: int
    libraries: int  # of kernels, mapped
    files: int  # of compilers at work, in the cache
    objects: int  # of Python

    def __str__(self) -> str:
        return (
            f"{self.bytes / 2**20:8.1f} MiB {self.threads:3} threads {self.descriptors:3} descriptors "
            f"{self.libraries:3} libraries {self.files:3} unfinished files {self.objects} objects"
        )


def usage() -> Usage:
    """Now, garbage collected and free memory given back."""
    gc.collect()
    objects = len(gc.get_objects())
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    maps = set(re.findall(r"/\S*/tracegrad/\w+-\w+\.so", Path("/proc/self/maps").read_text()))
    threads, descriptors = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd"))
    return Usage(resident, threads, descriptors, len(maps), sum(p.name.startswith("new-") for p in _cached()), objects)


def _cached() -> Iterator[Path]:
    return cache_folder().iterdir()


def compiled(device: str, width: int, steps: int) -> tg.CompiledTraining:
    """A training with all that a checkpoint holds."""
    optimizer = optim.adamw(lr=lr.cosine_annealing(peak=1e-3, final=1e-5, steps=steps), weight_decay=0.01)
    inputs = {"x": (BATCH, 1), "y": (BATCH, 1)}
    return tg.compile(model=Model(width), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches() -> list[dict[str, np.ndarray]]:
    """The data; step k takes the k-th, in turn."""
    rng = np.random.default_rng(0)
    return [{"x": (x := rng.uniform(-3, 3, (BATCH, 1)).astype(np.float32)), "y": np.sin(x)} for _ in range(BATCHES)]


def train_on(train: tg.CompiledTraining, begin: int, end: int, data: list[dict[str, np.ndarray]]) -> None:
    """Steps `begin` to `end`; each hundredth is waited for."""
    for k in range(begin, end):
        pending = train.step(data[k % BATCHES])
        if k % 100 == 99:
            pending.loss  # noqa: B018
    train.download_params()  # what is under way ends, and its errors are raised


def soak_steps(device: str, steps: int, speed: bool) -> list[str]:
    """Do one run, and the same in two halves. Return a list of problems. speed: also compare the times of steps."""
    data, problems = batches(), list[str]()
    bounds = [steps * k // PARTS for k in range(PARTS + 1)]
    seen: list[tuple[Usage, float, float]] = []
    with compiled(device, WIDTH, steps) as train:
        print(f"{steps} steps on {train.device}")
        for begin, end in itertools.pairwise(bounds):
            wall, processor = time.perf_counter(), time.process_time()
            train_on(train, begin, end, data)
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            seen.append((usage(), (end - begin) / wall, processor / (end - begin)))
            found, rate, each = seen[-1]
            print(f"{end:8} {found} {rate:8.0f} steps/s {1e6 * each:7.1f} us of processors a step", flush=True)
        whole = train.digest()
    growth = seen[-1][0].bytes - seen[1][0].bytes
    third = (PARTS - 1) // 3
    slower = np.median([x[2] for x in seen[-third:]]) / np.median([x[2] for x in seen[1 : 1 + third]])
    print(f"memory grew by {growth / 2**10:.0f} KiB from part 2 on; the last third took {slower:.2f} times the first's")
    if growth > MOST_GROWTH:
        problems.append(f"memory grew by {growth} bytes")
    if speed and slower > SLOWEST:
        problems.append(f"steps became {slower:.2f} times as long")
    with tempfile.TemporaryDirectory() as folder:
        path, middle = Path(folder, "half.safetensors"), steps // 2 + 1
        with compiled(device, WIDTH, steps) as first:
            train_on(first, 0, middle, data)
            first.save(path)
        with compiled(device, WIDTH, steps) as second:
            second.load(path)
            train_on(second, middle, steps, data)
            halves = second.digest()
    print(f"digest of one run:    {whole}\ndigest of two halves: {halves}")
    if whole != halves:
        problems.append("two halves gave other bits than one run")
    return problems


def soak_models(device: str, count: int, variants: int) -> list[str]:
    """Compile, run and close so many models, of so many kinds. Return a list of resources that were not freed."""
    data = batches()
    first: Usage | None = None
    problems: list[str] = []
    warm = max(variants, count // 4)
    for k in range(count):
        with compiled(device, 4 + k % variants, 100) as train:
            train.step(data[0]).loss  # noqa: B018
            infer = train.attach(forward=predict, inputs={"x": (None, 1)})
            infer.run(x=data[k % BATCHES]["x"][: 1 + k % 5]).output  # noqa: B018
            if k % 3 == 0:
                train.replace_model(Model(4 + (k + 1) % variants))
                train.step(data[0])
        del train, infer
        if k + 1 == warm:
            first = usage()
            print(f"{k + 1:6} {first}", flush=True)
    assert first is not None
    last = usage()
    for _ in range(20):  # what loads in the background while its model is closed ends a moment later
        if last.threads <= first.threads:
            break
        time.sleep(0.1)
        last = usage()
    print(f"{count:6} {last}")
    more, models = last.bytes - first.bytes, max(count - warm, 1)
    print(f"memory grew by {more / models / 2**10:.1f} KiB a model; {sum(1 for _ in _cached())} files in the cache")
    if more > MOST_GROWTH + models * MOST_GROWTH_A_MODEL:
        problems.append(f"memory grew by {more / models:.0f} bytes a model")
    if last.objects > first.objects + 200 + models:  # one training has thousands
        problems.append(f"objects of Python went from {first.objects} to {last.objects}")
    for name in ("threads", "descriptors", "libraries", "files"):
        if getattr(last, name) > getattr(first, name):
            problems.append(f"{name} went from {getattr(first, name)} to {getattr(last, name)}")
    return problems


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "models"])
    parser.add_argument("--device", choices=[*STEPS], default="cpu")
    parser.add_argument("--steps", type=int, help="of a run")
    parser.add_argument("--no-speed", action="store_true", help="for a busy machine: ignore how fast steps are")
    parser.add_argument("--count", type=int, default=500, help="of models")
    parser.add_argument("--variants", type=int, default=25, help="how many of the models differ")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", ".*is a software adapter")
    if arguments.what == "steps":
        problems = soak_steps(arguments.device, arguments.steps or STEPS[arguments.device], not arguments.no_speed)
    else:
        problems = soak_models(arguments.device, arguments.count, arguments.variants)
    for problem in problems:
        print(f"FAILED: {problem}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
