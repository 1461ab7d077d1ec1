"""A training step of many kinds of models: tracegrad beside PyTorch and JAX, in turns, with equal losses.

    python bench/zoo.py --quick                            on the CPU, in some minutes
    python bench/zoo.py --models lstm gru --compile        torch.compile too, which takes long to compile
    python bench/zoo.py --device webgpu                    PyTorch and JAX on CUDA
    python bench/zoo.py --profile lstm                     where tracegrad's time goes

Each step is forward, backward and Adam in float32 without TF32; its batch comes from the host. All libraries begin with
the same parameters, and their first losses are compared. Each has a process of its own, which stands still while
others have their turn; the fastest of some blocks of steps counts. "eager" is PyTorch's faster layout where a model is
tried with channels_last too. With --compile the last column of PyTorch is torch.compile, on a GPU as one CUDA graph.
Without it, on a GPU, the last column is the eager step as one CUDA graph. "to eager" and "to best" say how many
times as long PyTorch eager and the best of all others take. On a machine that others use too, threads that wait for
each other cost the most: compare with --threads 1 there, and BENCH_CLOCK=processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from steps import CLOCK, CONTEXT, machine, steps_in
from zoo_attention import ATTENTION
from zoo_images import IMAGES
from zoo_parts import Batch, Model, inputs_of
from zoo_sequences import SEQUENCES
from zoo_tables import TABLES

import tracegrad as tg
from tracegrad import optim

ZOO: dict[str, Model] = {**IMAGES, **SEQUENCES, **ATTENTION, **TABLES}
RATE = 1e-3
BATCHES = 4  # different ones, which take turns
CHECKED = 4  # losses
CLOSE = 2e-3  # how far they may be apart, relative to the first
Block = Callable[[int], float]


def batches_of(name: str) -> list[Batch]:
    rng = np.random.default_rng(0)
    return [ZOO[name].batch(rng) for _ in range(BATCHES)]


def stepped(step: Callable[[Batch], Any], batches: list[Batch], read: Callable[[Any], float]) -> tuple[Block, Any]:
    """Return a function that runs n steps and returns the seconds, and the first losses."""

    def block(n: int) -> float:
        began = CLOCK()
        for k in range(n):
            value = step(batches[k % BATCHES])
        read(value)
        return CLOCK() - began

    return block, [read(step(batches[k])) for k in range(CHECKED)]


def training(name: str, device: str) -> Any:
    model, loss = ZOO[name].ours()
    inputs = inputs_of(batches_of(name)[0])
    return tg.compile(model=model, loss=loss, inputs=inputs, optimizer=optim.adam(lr=RATE), seed=0, device=device)


def ours(name: str, device: str, given: Any) -> tuple[Block, Any, Any]:
    train = training(name, device)
    as_arrays = lambda record: {n: np.asarray(x) for n, x in record.items()}
    start = {"ours": as_arrays(train.params()), "torch": as_arrays(tg.to_torch(train))}
    return *stepped(train.step, batches_of(name), lambda r: r.loss), start


def torch_steps(name: str, device: str, given: Any, how: str = "") -> tuple[Block, Any, Any]:
    """how: "", "channels_last", "compiled" or "graph"."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    place = "cuda" if device == "webgpu" else "cpu"
    net, loss = ZOO[name].torch()
    missing, unexpected = net.load_state_dict({n: torch.from_numpy(x) for n, x in given["torch"].items()}, strict=False)
    wrong = [n for n in [*missing, *unexpected] if not n.endswith("num_batches_tracked")]
    assert not wrong, f"parameters without a partner: {wrong}"
    net.to(place)
    if "channels_last" in how:
        net.to(memory_format=torch.channels_last)
    if "compiled" in how:
        loss = torch.compile(loss)
    graphed = "graph" in how
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True, capturable=graphed)
    batches = batches_of(name)

    def moved(x: Any) -> Any:
        x = torch.from_numpy(x).to(place, non_blocking=True)
        return x.to(memory_format=torch.channels_last) if "channels_last" in how and x.ndim == 4 else x

    def on_device(inputs: dict[str, Any]) -> Any:
        optimizer.zero_grad()
        value = loss(net, **inputs)
        value.backward()
        optimizer.step()
        return value.detach()

    def step(batch: Batch) -> Any:
        return on_device({n: moved(x) for n, x in batch.items()})

    if not graphed:
        return *stepped(step, batches, lambda v: v.item()), None
    held = {n: moved(x) for n, x in batches[0].items()}
    start = {n: x.clone() for n, x in net.state_dict().items()}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            on_device(held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = on_device(held)
    net.load_state_dict(start)
    for state in optimizer.state.values():
        for x in state.values():
            x.zero_()

    def replay(batch: Batch) -> Any:
        for n, x in batch.items():
            held[n].copy_(torch.from_numpy(x), non_blocking=True)
        graph.replay()
        return value

    return *stepped(replay, batches, lambda v: v.item()), None


def jax_steps(name: str, device: str, given: Any) -> tuple[Block, Any, Any]:
    import jax

    jnp, each = jax.numpy, jax.tree.map
    loss = ZOO[name].jax
    p = {n: jnp.asarray(x) for n, x in given["ours"].items()}

    def step(state: Any, batch: Any) -> Any:
        p, m, v, t = state
        value, g = jax.value_and_grad(loss)(p, **batch)
        t = t + 1
        m = each(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = each(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        a, b = 1 - 0.9**t, 1 - 0.999**t
        return (each(lambda p, m, v: p - RATE * (m / a) / (jnp.sqrt(v / b) + 1e-8), p, m, v), m, v, t), value

    jitted = jax.jit(step, donate_argnums=0)
    state = (p, each(jnp.zeros_like, p), each(jnp.zeros_like, p), jnp.zeros(()))

    def next_step(batch: Batch) -> Any:
        nonlocal state
        state, value = jitted(state, batch)
        return value

    return *stepped(next_step, batches_of(name), float), None


MAKERS: dict[str, tuple[str, Any]] = {
    "tracegrad": ("tracegrad", ours),
    "eager": ("torch", torch_steps),
    "channels_last": ("torch", lambda *a: torch_steps(*a, "channels_last")),
    "compiled": ("torch", lambda *a: torch_steps(*a, "compiled")),
    "graph": ("torch", lambda *a: torch_steps(*a, "graph")),
    "compiled graph": ("torch", lambda *a: torch_steps(*a, "compiled graph")),
    "jax": ("jax", jax_steps),
}  # fmt: skip


def serve(pipe: Any, library: str, device: str) -> None:
    """The child process: make one model after the other, and run as many steps as each message says."""
    os.environ |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    package, make = MAKERS[library]
    importlib.import_module(package)
    block: Any = None
    pipe.send(None)
    while (told := pipe.recv()) is not None:
        if isinstance(told, int):
            pipe.send(block(told))
            continue
        block = None
        began = time.perf_counter()
        try:
            block, losses, start = make(*told)
            pipe.send({"losses": losses, "first": time.perf_counter() - began, "start": start})
        except Exception as e:
            pipe.send({"failed": f"{library}: {type(e).__name__}: {e}".splitlines()[0][:160]})


class Library:
    """A library in a process of its own, which is stopped between its turns."""

    def __init__(self, name: str, device: str) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(theirs, name, device), daemon=True)
        self.process.start()
        self.pipe.recv()
        self.wake(signal.SIGSTOP)

    def wake(self, how: signal.Signals = signal.SIGCONT) -> None:
        os.kill(self.process.pid or 0, how)

    def ask(self, what: Any) -> Any:
        """Send a message, return the answer, and stop the process again."""
        self.wake()
        self.pipe.send(what)
        answer = self.pipe.recv()
        self.wake(signal.SIGSTOP)
        return answer

    def block(self, n: int) -> float:
        """Seconds of n steps."""
        return self.ask(n)

    def close(self) -> None:
        """Kill the process. A stopped process reacts to no other signal."""
        self.process.kill()


def measure(name: str, libraries: dict[str, Library], device: str, seconds: float, blocks: int) -> dict[str, Any]:
    """Return, for each library, milliseconds a step, the seconds until its first steps ended, and errors."""
    facts: dict[str, Any] = {"tracegrad": libraries["tracegrad"].ask((name, device, None))}
    start = facts["tracegrad"].get("start")
    others = [x for x in libraries if x != "tracegrad" and (x != "channels_last" or ZOO[name].channels_last)]
    facts |= {x: libraries[x].ask((name, device, start)) for x in (others if start else [])}
    wanted = facts["tracegrad"].get("losses", [math.nan])
    for x, f in facts.items():
        far = max((abs(a - b) for a, b in zip(f.get("losses", ()), wanted)), default=0.0)
        if not far <= CLOSE * max(abs(wanted[0]), 1e-2):
            f["failed"] = f"{x}: losses {f['losses']} are not {wanted}"
    able = [x for x, f in facts.items() if "failed" not in f]
    sizes = {x: steps_in(libraries[x].block, seconds / blocks) for x in able}
    times: dict[str, list[float]] = {x: [] for x in able}
    for _ in range(blocks):
        for x in able:
            times[x].append(libraries[x].block(sizes[x]) / sizes[x])
    for x in able:
        facts[x]["ms"] = 1000 * min(times[x])
    return facts


def row(name: str, facts: dict[str, Any], columns: list[str]) -> tuple[str, float, float]:
    """A row of the table, and both ratios."""
    ms = {x: f["ms"] for x, f in facts.items() if "ms" in f}
    if "channels_last" in ms:
        ms["eager"] = min(ms.get("eager", math.inf), ms.pop("channels_last"))
    own = ms.get("tracegrad", math.nan)
    to_eager = ms.get("eager", math.nan) / own
    to_best = min((t for x, t in ms.items() if x != "tracegrad"), default=math.nan) / own
    cells = [f"{ms[x]:.3f}" if x in ms else "–" for x in columns]
    first = " / ".join(f"{facts[x]['first']:.1f}" for x in columns if "first" in facts.get(x, {}))
    return f"| {' | '.join([name, *cells, f'{to_eager:.2f}', f'{to_best:.2f}', first])} |", to_eager, to_best


def profiled(name: str, device: str) -> None:
    """Print where tracegrad's time goes."""
    with training(name, device) as train:
        print(train.profile(mapping=batches_of(name)[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "webgpu"), default="cpu")
    parser.add_argument("--models", nargs="+", choices=ZOO, default=list(ZOO))
    parser.add_argument("--libraries", nargs="+", choices=MAKERS, help="besides tracegrad")
    parser.add_argument("--seconds", type=float, default=1.5, help="measuring time a model and library")
    parser.add_argument("--quick", action="store_true", help="--seconds 0.4, in three blocks")
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--threads", type=int, help="processors each process may use")
    parser.add_argument("--profile", choices=ZOO, help="show the kernels of this model instead")
    args = parser.parse_args()
    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    if args.profile:
        profiled(args.profile, args.device)
        return
    extra = ["compiled"] * args.compile if args.device == "cpu" else ["compiled graph" if args.compile else "graph"]
    chosen = args.libraries or ["eager", "channels_last", *extra, "jax"]
    known = [x for x in MAKERS if x in chosen and importlib.util.find_spec(MAKERS[x][0])]
    libraries = {x: Library(x, args.device) for x in ("tracegrad", *[x for x in known if x != "tracegrad"])}
    columns = [x for x in libraries if x != "channels_last"]
    print(machine())
    print(", ".join(d.description for d in tg.devices()) + "; milliseconds a step")
    head = ["model", *columns, "to eager", "to best", "first steps s"]
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    ratios: list[tuple[float, float]] = []
    problems: list[str] = []
    for name in args.models:
        seconds, blocks = (0.4, 3) if args.quick else (args.seconds, 7)
        facts = measure(name, libraries, args.device, seconds, blocks)
        text, *both = row(name, facts, columns)
        print(text, flush=True)
        ratios.append((both[0], both[1]))
        problems += [f"{name}: {f['failed']}" for f in facts.values() if "failed" in f]
    for what, column in zip(("eager", "the best other"), zip(*ratios)):
        known_ratios = [x for x in column if x == x]
        if known_ratios:
            mean, least = statistics.geometric_mean(known_ratios), min(known_ratios)
            ahead = sum(x >= 1 for x in known_ratios)
            print(f"\nto {what}: geometric mean {mean:.2f}, least {least:.2f}, ahead on {ahead} of {len(known_ratios)}")
    print("\n".join(problems))
    for library in libraries.values():
        library.close()


if __name__ == "__main__":
    main()
