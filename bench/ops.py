"""Every op, forward and backward, beside PyTorch eager and JAX (jit), in turns in one run: a table sorted by ratio.

    python bench/ops.py                                     all rows on the CPU
    python bench/ops.py --quick                             one shape an op
    python bench/ops.py --ops softmax sum "cumsum axis 0"   rows whose op or group contains one of these
    python bench/ops.py --device webgpu --budget 400        on a GPU; stops when 400 seconds are over
    python bench/ops.py --json ops.json --svg ops.svg       and the rows as JSON, and a heat map (needs matplotlib)

"forward" is the result. "backward" is the gradients of all inputs for a given cotangent, the forward included. Inputs
are on the device already and results stay there. A time is the least of all repetitions. tracegrad's is the sum of a
run's kernels, by `profile`. PyTorch's and JAX's is a call of the function; on a GPU, a call among many, waited for at
the end. On the CPU, each call of PyTorch has other numbers, because a processor remembers the branches of a small sort.
A ratio above 1 says that tracegrad is faster. On a machine that others use, `--one-thread` measures the time that the
processor spends on one thread of each library; JAX has threads of its own, and is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ops_rows import Row, rows
from steps import machine

import tracegrad as tg

GOOD, BAD = 1.0, 0.7
REMEMBERED = 2**16  # elements: a sort of more has more branches than a processor remembers
HEAD = ("op and shapes", "pass", "tracegrad us", "PyTorch us", "JAX us", "PyTorch / tracegrad", "JAX / tracegrad")
clock = time.perf_counter
Timer = Callable[[float], float]  # for so many seconds; the least of a call


class Model(tg.Module):
    """A model has a parameter; these ops use none."""

    def __init__(self) -> None:
        self.unused = self.param((1,), init=tg.init.zeros())


def drawn(row: Row, backward: bool, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The inputs by name; of a backward pass, with the cotangent."""
    rng = np.random.default_rng(0)
    out = {f"x{k}": rng.uniform(row.low, row.high, s).astype(np.float32) for k, s in enumerate(row.shapes)}
    out |= {f"i{k}": rng.integers(0, n, s).astype(np.int32) for k, (s, n) in enumerate(row.ints)}
    return out | ({"ct": rng.standard_normal(shape).astype(np.float32)} if backward else {})


def ours(row: Row, backward: bool, arrays: dict[str, np.ndarray], device: str) -> Timer:
    """tracegrad's kernels."""
    count = len(row.shapes)

    def forward(m: Any, **given: Any) -> Any:
        xs = [x for name, x in given.items() if name != "ct"]
        if not backward:
            return row.ours(*xs)
        _, pull = tg.vjp(lambda *floats: row.ours(*floats, *xs[count:]), *xs[:count])
        return tuple(pull(given["ct"]))

    types: dict[str, Any] = {n: (tg.i32[x.shape] if x.dtype == np.int32 else x.shape) for n, x in arrays.items()}
    compiled = tg.compile_forward(model=Model(), forward=forward, inputs=types, device=device, seed=0)
    _ = compiled.run(arrays).output
    once = compiled.profile(1, arrays).timings.quickest

    def timed(seconds: float) -> float:
        return compiled.profile(max(3, min(2000, int(seconds / max(once, 1e-6)))), arrays).timings.quickest

    return timed


def one_thread(torch: Any) -> None:
    """Measure the time that the processor spends on one thread of each library."""
    global clock
    from tracegrad.render import c_engine
    from tracegrad.runtime import cpu

    clock, os.sched_getaffinity = time.thread_time, lambda _: {0}
    read = "clock_gettime(CLOCK_MONOTONIC"
    assert read in c_engine.ENGINE
    # only at the ends of a run: the kernel of the system reads this clock, which takes longer than a small dispatch
    cpu.ENGINE = c_engine.ENGINE.replace(read, "if (k % n == 0) clock_gettime(CLOCK_THREAD_CPUTIME_ID")
    torch.set_num_threads(1)


def repeated(call: Callable[[], Any], wait: Callable[[], Any] | None, renew: Callable[[], Any] | None = None) -> Timer:
    """A function's calls. wait: for the device, which computes while Python goes on. renew: is not timed."""
    call()
    call()

    def timed(seconds: float) -> float:
        best, end = float("inf"), clock() + seconds
        while True:
            if renew is not None:
                renew()
            began = clock()
            if wait is None:
                call()
                best = min(best, clock() - began)
            else:
                for _ in range(20):
                    call()
                wait()
                best = min(best, (clock() - began) / 20)
            if clock() > end:
                return best

    return timed


def of_torch(torch: Any, row: Row, arrays: dict[str, np.ndarray], place: str) -> Timer:
    """PyTorch, eager."""
    wait = torch.cuda.synchronize if place == "cuda" else None
    given = {n: torch.tensor(x, device=place) for n, x in arrays.items()}
    given = {n: x.long() if n[0] == "i" else x for n, x in given.items()}
    ct, xs = given.pop("ct", None), list(given.values())
    floats = xs[: len(row.shapes)]
    few = [(x.detach(), n) for x, n in zip(xs, [0] * len(floats) + [n for _, n in row.ints]) if x.numel() <= REMEMBERED]
    renew = None if wait else lambda: [x.random_(n) if n else x.uniform_(row.low, row.high) for x, n in few]
    if ct is None:
        return repeated(lambda: row.torch(*xs), wait, renew)
    floats = [x.requires_grad_() for x in floats]
    return repeated(lambda: torch.autograd.grad(row.torch(*xs), floats, ct, allow_unused=True), wait, renew)


def of_jax(jax: Any, row: Row, arrays: dict[str, np.ndarray]) -> Timer:
    """JAX, under jit."""
    given = {n: jax.numpy.asarray(x) for n, x in arrays.items()}
    ct, xs = given.pop("ct", None), list(given.values())
    count = len(row.shapes)
    assert row.jax is not None
    if ct is None:
        compiled = jax.jit(row.jax)
        return repeated(lambda: jax.block_until_ready(compiled(*xs)), None)

    def pulled(ct: Any, *xs: Any) -> Any:
        return jax.vjp(lambda *floats: row.jax(*floats, *xs[count:]), *xs[:count])[1](ct)  # pyright: ignore[reportOptionalCall]

    compiled = jax.jit(pulled)
    return repeated(lambda: jax.block_until_ready(compiled(ct, *xs)), None)


def measured(row: Row, backward: bool, args: argparse.Namespace, torch: Any, jax: Any) -> dict[str, Any]:
    """One row: each library in turns."""
    place = "cuda" if args.device == "webgpu" and torch.cuda.is_available() else "cpu"
    blank = [torch.from_numpy(x) for x in drawn(row, False, ()).values()]
    shape = tuple(row.torch(*[x.long() if x.dtype == torch.int32 else x for x in blank]).shape)
    arrays = drawn(row, backward, shape)
    timers = {"tracegrad": ours(row, backward, arrays, args.device), "torch": of_torch(torch, row, arrays, place)}
    if jax is not None and row.jax is not None:
        timers["jax"] = of_jax(jax, row, arrays)
    best = dict.fromkeys(timers, float("inf"))
    for _ in range(3):
        for name, timed in timers.items():
            best[name] = min(best[name], timed(args.seconds / 3))
    which = "backward" if backward else "forward"
    return {"group": row.group, "op": row.op, "name": row.name, "pass": which, **best}


def chosen(args: argparse.Namespace, torch: Any, jax: Any) -> list[Row]:
    """The rows that the command asks for; of --quick, the largest shapes of each op."""
    found = [r for r in rows(torch, jax) if not args.ops or any(x == r.group or x in r.name for x in args.ops)]
    if not args.quick:
        return found
    size = lambda r: sum(int(np.prod(s)) for s in r.shapes)
    largest: dict[str, Row] = {}
    for r in found:
        if r.op not in largest or size(r) > size(largest[r.op]):
            largest[r.op] = r
    return list(largest.values())


def line(r: dict[str, Any]) -> str:
    """A row of the table."""
    us = lambda name: f"{r[name] * 1e6:.4g}" if name in r else "–"
    ratio = lambda name: f"{r[name] / r['tracegrad']:.2f}" if name in r else "–"
    cells = (r["name"], r["pass"], us("tracegrad"), us("torch"), us("jax"), ratio("torch"), ratio("jax"))
    return f"| {' | '.join(cells)} |"


def heat_map(results: list[dict[str, Any]], path: str) -> None:
    """One square a row: red where PyTorch is faster, blue where tracegrad is."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import colors, pyplot

    ops: dict[str, list[dict[str, Any]]] = {}
    for r in results:
        ops.setdefault(f"{r['group']}: {r['op']}, {r['pass']}", []).append(r)
    width = max(map(len, ops.values()))
    grid = np.full((len(ops), width), np.nan)
    for y, found in enumerate(ops.values()):
        for x, r in enumerate(found):
            grid[y, x] = np.log2(r["torch"] / r["tracegrad"])
    figure, axes = pyplot.subplots(figsize=(6 + 0.7 * width, 1 + 0.17 * len(ops)))
    image = axes.imshow(grid, cmap="RdBu", norm=colors.CenteredNorm(0, 3), aspect="auto")
    for (y, x), value in np.ndenumerate(grid):
        if value == value:
            axes.text(x, y, f"{2**value:.2g}", ha="center", va="center", fontsize=5)
    axes.set_yticks(range(len(ops)), list(ops), fontsize=5)
    axes.set_xticks([])
    figure.colorbar(image, label="log2 of PyTorch's time by tracegrad's")
    figure.savefig(path, bbox_inches="tight", dpi=150)


def summary(results: list[dict[str, Any]]) -> str:
    """Return the goal beside the measured times."""
    ratios = sorted(r["torch"] / r["tracegrad"] for r in results)
    level, under = sum(x >= GOOD for x in ratios), sum(x < BAD for x in ratios)
    mean = float(np.exp(np.mean(np.log(ratios))))
    return (
        f"{len(ratios)} rows: {level / len(ratios):.1%} at least level with PyTorch eager, {under} under {BAD}, "
        f"least {ratios[0]:.2f}, geometric mean {mean:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "webgpu"))
    parser.add_argument("--ops", nargs="+", help="rows whose name contains one of these, or whose group is one")
    parser.add_argument("--passes", nargs="+", choices=("forward", "backward"), default=["forward", "backward"])
    parser.add_argument("--quick", action="store_true", help="one shape an op")
    parser.add_argument("--seconds", type=float, default=0.15, help="measuring time a row and library")
    parser.add_argument("--budget", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--one-thread", action="store_true", help="of each library, by the processor's clock; no JAX")
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--svg", help="draw the heat map here, as SVG or PNG")
    args = parser.parse_args()
    import torch

    jax = None
    if not args.no_jax and not args.one_thread and importlib.util.find_spec("jax") is not None:
        import jax
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.one_thread:
        one_thread(torch)
    print(f"{machine()}; PyTorch {torch.__version__}; device: {args.device}", flush=True)
    todo = [(r, p == "backward") for r in chosen(args, torch, jax) for p in args.passes if p == "forward" or r.grad]
    results: list[dict[str, Any]] = []
    end = time.perf_counter() + args.budget
    for row, backward in todo:
        if time.perf_counter() > end:
            print(f"stopped by --budget: {len(todo) - len(results)} rows were not measured")
            break
        results.append(measured(row, backward, args, torch, jax))
    results.sort(key=lambda r: r["torch"] / r["tracegrad"])
    print(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for r in results:
        print(line(r))
    print(f"\n{summary(results)}")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))
    if args.svg:
        heat_map(results, args.svg)


if __name__ == "__main__":
    main()
