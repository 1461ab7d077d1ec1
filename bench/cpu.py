"""A training step on the CPU: tracegrad in C and in NumPy, PyTorch eager and compiled, JAX jitted, in one run.

    python bench/cpu.py                                 every model and library that is installed
    python bench/cpu.py --models sine mlp --libraries c torch --seconds 5

AdamW and clipping by the global norm in all of them; inputs come from the host each step, the loss is read at the end
of a block. With BENCH_CLOCK=processor and --threads 1 it is the processor's time that counts: for machines that
others use too. Every library has a process of its own, blocks take turns, and the median block counts. Without
--threads each uses as many as it likes.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from steps import CLIP, CLOCK, DECAY, RATE, WORKLOADS, Child, Workload, median_ms, torch_block, tracegrad_block

import tracegrad as tg
from tracegrad import nn, optim

BATCH = 128


class MLP(tg.Module):
    """784-512-512-10."""

    def __init__(self) -> None:
        self.l1, self.l2, self.l3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)


def mlp_loss(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m.l3(tg.relu(m.l2(tg.relu(m.l1(x))))), y)


def mlp_batch(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((BATCH, 784), np.float32), "y": rng.integers(0, 10, BATCH, np.int32)}


def torch_mlp(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return net, lambda net, x, y: nn.functional.cross_entropy(net(x), y.long())


MODELS = {
    "sine": WORKLOADS["sine"],
    "mlp": Workload(MLP, mlp_loss, {"x": (BATCH, 784), "y": tg.i32[BATCH]}, mlp_batch, torch_mlp),
    "cnn": WORKLOADS["cnn"],
    "gpt": WORKLOADS["gpt"],
}
DENSE = {"sine": (1, 64, 64, 1), "mlp": (784, 512, 512, 10), "cnn": (1568, 10)}
LIBRARIES = {"c": "tracegrad", "numpy": "tracegrad", "torch": "torch", "torch.compile": "torch", "jax": "jax"}


def jax_model(name: str, jax: Any, rng: np.random.Generator) -> tuple[list[Any], Callable[..., Any]]:
    """Parameters and the loss of the same model."""
    jnp = jax.numpy
    weight = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:])))
    widths = DENSE[name]
    params = [p for a, b in itertools.pairwise(widths) for p in (weight(b, a).T, jnp.zeros(b))]
    if name == "cnn":
        params += [weight(16, 1, 3, 3), jnp.zeros((16, 1, 1)), weight(32, 16, 3, 3), jnp.zeros((32, 1, 1))]

    def block(x: Any, kernel: Any, bias: Any) -> Any:
        x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME") + bias)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss(params: list[Any], x: Any, y: Any) -> Any:
        if name == "cnn":
            x = block(block(x, *params[2:4]), *params[4:6]).reshape(x.shape[0], -1)
        dense = params[: 2 * len(widths) - 2]
        for k in range(0, len(dense), 2):
            x = (jax.nn.relu(x) if k else x) @ dense[k] + dense[k + 1]
        if name == "sine":
            return jnp.mean((x - y) ** 2)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1))

    return params, loss


def jax_block(name: str, w: Workload) -> Callable[[int], float]:
    """A function that runs n jitted steps, with donated state, and gives the seconds."""
    import jax

    jnp, each = jax.numpy, jax.tree.map
    rng = np.random.default_rng(0)
    params, loss = jax_model(name, jax, rng)

    def step(state: Any, x: Any, y: Any) -> Any:
        params, m, v, t = state
        value, g = jax.value_and_grad(loss)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(one * one) for one in g))
        g = [one * jnp.minimum(1.0, CLIP / (norm + 1e-6)) for one in g]
        t = t + 1
        m = each(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = each(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        update = lambda p, m, v: p * (1 - RATE * DECAY) - RATE * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)
        return (each(update, params, m, v), m, v, t), value

    jitted = jax.jit(step, donate_argnums=0)
    state = (params, each(jnp.zeros_like, params), each(jnp.zeros_like, params), jnp.zeros(()))

    def block(n: int) -> float:
        nonlocal state
        batches = [w.batch(rng) for _ in range(n)]
        began = CLOCK()
        for batch in batches:
            state, value = jitted(state, **batch)
        float(value)
        return CLOCK() - began

    return block


def block_of(library: str, name: str) -> Callable[[int], float]:
    """What runs n steps and gives the seconds."""
    w = MODELS[name]
    if library == "jax":
        return jax_block(name, w)
    if library == "torch.compile":
        import torch

        def compiled(module: Any) -> tuple[Any, Any]:
            net, loss = w.torch(module)
            return net, torch.compile(loss)

        return torch_block(replace(w, torch=compiled), "cpu")
    if library == "torch":
        return torch_block(w, "cpu")
    if library == "numpy":
        os.environ["TRACEGRAD_CC"] = "off"
    optimizer = optim.adamw(lr=RATE, weight_decay=DECAY, clip_grad_norm=CLIP)
    train = tg.compile(model=w.model(), loss=w.loss, inputs=w.inputs, optimizer=optimizer, seed=0, device="cpu")
    return tracegrad_block(w, train)


def serve(pipe: Any, library: str, name: str, device: str) -> None:
    """A child: runs as many steps as it is told and answers with the seconds; first how long the first step took."""
    began = time.perf_counter()
    block = block_of(library, name)
    block(1)
    pipe.send({"first": time.perf_counter() - began})
    while n := pipe.recv():
        pipe.send(block(n))


def measure(name: str, libraries: list[str], seconds: float) -> list[str]:
    """One row for each library."""
    able = [x for x in libraries if x != "jax" or name in DENSE]
    children = [Child(x, name, "cpu", serve) for x in able]
    times = median_ms(children, seconds)
    for child in children:
        child.close()
    return [
        f"| {name} | {x} | {ms:.3f} | {ms / times[0]:.2f} | {child.facts['first']:.2f} |"
        for x, ms, child in zip(able, times, children)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time a model and library")
    parser.add_argument("--threads", type=int, help="processors each process may use")
    args = parser.parse_args()
    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    libraries = [x for x in args.libraries if importlib.util.find_spec(LIBRARIES[x]) is not None]
    cpu = next(d.description for d in tg.devices() if d.name == "cpu")
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"{cpu}\n\n| model | library | ms a step | times {libraries[0]} | first step s |\n|---|---|---|---|---|")
    for name in args.models:
        for row in measure(name, libraries, args.seconds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
