"""Dispatches, compile time and time a training step of the models in examples/, beside PyTorch where it is installed.

    python bench/steps.py                    the default device
    python bench/steps.py --device webgpu --models sine cnn --seconds 5

AdamW and clipping by the global norm in all of them, a batch from the host for every step. The loss is read once after
every block of steps. Blocks of both libraries take turns, so that both see the same machine; the median block counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import cnn
import gpt
import sine

ALPHABET = 72
MLP_BATCH = 128
CLIP, RATE, DECAY = 1.0, 1e-3, 1e-2
BLOCKS = 9
KEPT = 512 << 20  # bytes of batches: more than caches hold
# On a machine that others use too, the processor time of one thread can be compared, and the clock on the wall cannot.
CLOCK = time.process_time if os.environ.get("BENCH_CLOCK") == "processor" else time.perf_counter
CONTEXT = multiprocessing.get_context("spawn")
HEAD = (
    "model",
    "dispatches",
    "compile s",
    "first step s",
    "persistent / parameters",
    "temporaries MiB",
    "ms a step",
    "PyTorch ms",
    "PyTorch / tracegrad",
)


@dataclass(frozen=True)
class Workload:
    """One model: the arguments of `tg.compile`, and the same model in PyTorch."""

    model: Callable[[], tg.Module]
    loss: Callable[..., Any]
    inputs: dict[str, Any]
    batch: Callable[[np.random.Generator], dict[str, Any]]
    torch: Callable[[Any], tuple[Any, Callable[..., Any]]]  # the torch module -> (network, loss(network, **inputs))


class MLP(tg.Module):
    """784-512-512-10."""

    def __init__(self) -> None:
        self.l1, self.l2, self.l3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)


def mlp_loss(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m.l3(tg.relu(m.l2(tg.relu(m.l1(x))))), y)


def mlp_batch(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((MLP_BATCH, 784), np.float32), "y": rng.integers(0, 10, MLP_BATCH, np.int32)}


def torch_mlp(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return net, lambda net, x, y: nn.functional.cross_entropy(net(x), y.long())


def sine_batch(rng: np.random.Generator) -> dict[str, Any]:
    x = rng.uniform(-3, 3, (sine.BATCH, 1)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


def cnn_batch(rng: np.random.Generator) -> dict[str, Any]:
    x = rng.standard_normal((cnn.BATCH, 1, 28, 28), np.float32)
    return {"x": x, "y": rng.integers(0, 10, cnn.BATCH, np.int32)}


def gpt_batch(rng: np.random.Generator) -> dict[str, Any]:
    numbers = rng.integers(0, ALPHABET, (gpt.BATCH, gpt.CONTEXT + 1), np.int32)
    return {"tokens": numbers[:, :-1].copy(), "following": numbers[:, 1:].copy()}


def torch_sine(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return net, lambda net, x, y: nn.functional.mse_loss(net(x), y)


def torch_cnn(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip
    return net, lambda net, x, y: nn.functional.cross_entropy(net(x), y.long())


def torch_gpt(torch: Any) -> tuple[Any, Any]:
    nn, F = torch.nn, torch.nn.functional
    width, heads = gpt.WIDTH, gpt.HEADS

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            h = self.norm1(x)
            q, k, v = (p(h).unflatten(-1, (heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + self.out(mixed)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(ALPHABET, width)
            self.position = nn.Parameter(0.02 * torch.randn(gpt.CONTEXT, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(gpt.LAYERS)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, ALPHABET)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.norm(self.blocks(self.token(tokens) + self.position)))

    def loss(net: Any, tokens: Any, following: Any) -> Any:
        return F.cross_entropy(net(tokens).flatten(0, 1), following.flatten().long())

    return GPT(), loss


WORKLOADS = {
    "sine": Workload(sine.MLP, sine.loss, {"x": (sine.BATCH, 1), "y": (sine.BATCH, 1)}, sine_batch, torch_sine),
    "mlp": Workload(MLP, mlp_loss, {"x": (MLP_BATCH, 784), "y": tg.i32[MLP_BATCH]}, mlp_batch, torch_mlp),
    "cnn": Workload(cnn.CNN, cnn.loss, {"x": (cnn.BATCH, 1, 28, 28), "y": tg.i32[cnn.BATCH]}, cnn_batch, torch_cnn),
    "gpt": Workload(lambda: gpt.GPT(ALPHABET), gpt.loss, {}, gpt_batch, torch_gpt),
    "gpt256": Workload(lambda: gpt.GPT(ALPHABET), gpt.loss, {}, gpt_batch, torch_gpt),
}
LARGE = {"gpt256": {"BATCH": 64, "CONTEXT": 256, "WIDTH": 384, "HEADS": 6, "LAYERS": 6}}


def workload(name: str) -> Workload:
    """Return the model of that name.

    The sizes of a GPT are constants of the example, and this function sets them: a process measures one model.
    """
    for constant, value in LARGE.get(name, {}).items():
        setattr(gpt, constant, value)
    if not name.startswith("gpt"):
        return WORKLOADS[name]
    tokens = tg.i32[gpt.BATCH, gpt.CONTEXT]
    return replace(WORKLOADS[name], inputs={"tokens": tokens, "following": tokens})


def batches_of(w: Workload) -> Callable[[int], list[dict[str, Any]]]:
    """A function that gives n batches: the same ones every time, and from the first on again behind KEPT bytes.

    To draw them anew for each block would leave a GPU without work for as long as the block takes, or longer.
    """
    rng = np.random.default_rng(0)
    made = [w.batch(rng)]
    most = max(1, KEPT // sum(x.nbytes for x in made[0].values()))

    def batches(n: int) -> list[dict[str, Any]]:
        made.extend(w.batch(rng) for _ in range(min(n, most) - len(made)))
        return [made[k % len(made)] for k in range(n)]

    return batches


def torch_block(w: Workload, device: str) -> Callable[[int], float]:
    """A function that runs n steps in PyTorch (eager) and gives the seconds."""
    import torch

    place = "cuda" if device == "webgpu" and torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    net, loss = w.torch(torch)
    net.to(place)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    batches = batches_of(w)

    def block(n: int) -> float:
        given = batches(n)
        began = CLOCK()
        for batch in given:
            value = loss(net, **{k: torch.from_numpy(v).to(place) for k, v in batch.items()})
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
        value.item()
        return CLOCK() - began

    return block


def compiled(w: Workload) -> Workload:
    """With torch.compile around the loss."""
    import torch

    def made(module: Any) -> tuple[Any, Any]:
        net, loss = w.torch(module)
        return net, torch.compile(loss)

    return replace(w, torch=made)


def tracegrad_training(w: Workload, device: str) -> Any:
    """The training in tracegrad, compiled: AdamW and clipping by the global norm, as in all libraries."""
    optimizer = optim.adamw(lr=RATE, weight_decay=DECAY, clip_grad_norm=CLIP)
    return tg.compile(model=w.model(), loss=w.loss, inputs=w.inputs, optimizer=optimizer, seed=0, device=device)


def tracegrad_block(w: Workload, train: Any) -> Callable[[int], float]:
    """The same in tracegrad."""
    batches = batches_of(w)

    def block(n: int) -> float:
        given = batches(n)
        began = CLOCK()
        for batch in given:
            pending = train.step(batch)
        _ = pending.loss
        return CLOCK() - began

    return block


def serve(pipe: Any, library: str, name: str, device: str) -> None:
    """The child process: send facts about the program; then run as many steps as requested, and send the seconds.

    Each library has a process of its own: in one process their thread pools spin against each other.
    """
    w = workload(name)
    if library == "torch":
        pipe.send({})
        block = torch_block(w, device)
    else:
        began = time.perf_counter()
        train = tracegrad_training(w, device)
        compiled = time.perf_counter() - began
        _ = train.step(w.batch(np.random.default_rng(1))).loss
        pipe.send(facts(train.program) | {"compile": compiled, "first": time.perf_counter() - began})
        block = tracegrad_block(w, train)
    while n := pipe.recv():
        pipe.send(block(n))


def facts(program: tg.Program) -> dict[str, float]:
    """Return facts about a program that can be counted, such as its kernels."""
    size = lambda *roles: sum(b.bytes for b in program.buffers if b.role in roles)
    return {
        "dispatches": len(program.dispatches),
        "persistent": size("param", "grad", "state") / size("param"),
        "temporaries": size("temp") / 2**20,
    }


class Child:
    """One library in a process of its own."""

    def __init__(
        self,
        library: str,
        name: str,
        device: str,
        serve: Callable[..., None] = serve,
        patience: float | None = None,
    ):
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(theirs, library, name, device), daemon=True)
        self.process.start()
        self.facts: dict[str, Any] = self.pipe.recv() if self.pipe.poll(patience) else {}

    def block(self, n: int) -> float:
        """Seconds of n steps."""
        self.pipe.send(n)
        return self.pipe.recv()

    def close(self) -> None:
        """End it."""
        if self.facts and self.process.is_alive():
            self.pipe.send(0)
        else:
            self.process.terminate()
        self.process.join()


class Stopped(Child):
    """A child process that is stopped between its blocks: idle threads of some libraries spin, which slows others."""

    def block(self, n: int) -> float:
        """Seconds of n steps."""
        os.kill(self.process.pid or 0, signal.SIGCONT)
        seconds = super().block(n)
        os.kill(self.process.pid or 0, signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        """End it."""
        if self.process.is_alive():  # one that failed is gone
            os.kill(self.process.pid or 0, signal.SIGCONT)
        super().close()


class Blocks(Protocol):
    """A function that runs so many steps, and returns the seconds."""

    def block(self, n: int) -> float: ...


def steps_in(block: Callable[[int], float], seconds: float) -> int:
    """How many steps take so long: three at least, but fewer where one takes more than a second.

    A few of them say little: those wait for the way to the device and back, which others hide.
    """
    block(1)  # a library may load and compile whatever it needs
    n, took = 1, block(1)
    if took > 1:
        return max(1, int(seconds / took))
    while took < seconds / 2:
        n *= 4
        took = block(n)
    return max(3, int(n * seconds / took))


def median_ms(children: Sequence[Blocks], seconds: float, warm: int = 0) -> list[float]:
    """Milliseconds a step of each; their blocks of steps take turns.

    warm: blocks that do not count before each that does. A GPU that stood still, or whose last user left it waiting,
          needs 0.2 s to come back to its clock.
    """
    sizes = [steps_in(child.block, seconds / BLOCKS) for child in children]
    times: list[list[float]] = [[] for _ in children]
    for _ in range(BLOCKS):
        for k, child in enumerate(children):
            *_, counted = [child.block(sizes[k]) for _ in range(warm + 1)]
            times[k].append(counted / sizes[k])
    return [1000 * statistics.median(t) for t in times]


def medians(children: Mapping[str, Child], seconds: float, warm: int = 0) -> dict[str, float]:
    """Return `median_ms` by name, of the children that work. All are ended, whatever happens."""
    able = {x: child for x, child in children.items() if "first" in child.facts}
    try:
        return dict(zip(able, median_ms([*able.values()], seconds, warm)))
    finally:
        for child in children.values():
            child.close()


def measure(name: str, device: str, seconds: float, with_torch: bool) -> str:
    """Return one row of the table."""
    children = [Child("tracegrad", name, device)] + ([Child("torch", name, device)] if with_torch else [])
    own, *other = median_ms(children, seconds)
    for child in children:
        child.close()
    f = children[0].facts
    row = [name, f"{f['dispatches']}", f"{f['compile']:.2f}", f"{f['first']:.2f}"]
    row += [f"{f['persistent']:.1f}", f"{f['temporaries']:.1f}", f"{own:.3g}"]
    row += [f"{other[0]:.3g}", f"{other[0] / own:.2f}"] if other else ["–", "–"]
    return "| " + " | ".join(row) + " |"


def machine() -> str:
    """Return a description of the machine: the line above every table."""
    return f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"


def installed(libraries: list[str], packages: dict[str, str]) -> tuple[list[str], str]:
    """Return the installed libraries, and a text about the others."""
    found = [x for x in libraries if importlib.util.find_spec(packages[x]) is not None]
    missing = sorted({packages[x] for x in libraries if x not in found})
    return found, "".join(f"; {x} is not installed" for x in missing)


def print_table(head: tuple[str, ...], models: list[str], rows: Callable[[str], list[str]]) -> None:
    """A table of Markdown, as its rows come."""
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name in models:
        for row in rows(name):
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=5.0, help="measuring time a model and library")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    with_torch = not args.no_torch and importlib.util.find_spec("torch") is not None
    print(machine())
    print(f"device: {args.device}; devices here: {', '.join(d.description for d in tg.devices())}")
    print_table(HEAD, args.models, lambda name: [measure(name, args.device, args.seconds, with_torch)])


if __name__ == "__main__":
    main()
