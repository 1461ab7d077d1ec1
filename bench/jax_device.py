"""A training step with device="jax" beside the same step by hand in JAX, and in Equinox and Optax, in turns.

Run: python bench/jax_device.py [--models sine mlp cnn gpt gpt256] [--precision f32|tf32|bf16] [--repeats 15]

The peers are bench/peers_jax.py, a jitted step of plain JAX with donated state, and bench/peers_equinox.py, where
Equinox and Optax are installed: the same model and optimizer, jitted by `eqx.filter_jit(donate="all")`. All read the
loss after the last of `--steps` steps, which `--steps 1` makes each. Minima over the repeats. Needs JAX and nothing
else: a GPU if JAX finds one.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax
from peers_jax import jax_block
from steps import Workload, tracegrad_block, workload

import tracegrad as tg
from tracegrad import optim

PEER = {"f32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}  # what JAX calls them


def peers(name: str, w: Workload) -> list[Callable[[int], float]]:
    """Blocks of steps in plain JAX and, where they are installed, in Equinox and Optax."""
    found = [jax_block(name, w)]
    if all(importlib.util.find_spec(package) for package in ("equinox", "optax")):
        from peers_equinox import equinox_block

        found.append(equinox_block(name, w))
    return found


def compared(name: str, o: argparse.Namespace) -> str:
    """A row: ms a step of each, and the ratios."""
    w = workload(name)
    jax.config.update("jax_default_matmul_precision", PEER[o.precision])
    others = peers(name, w)
    made = optim.adamw(lr=1e-3, weight_decay=0.1, clip_grad_norm=1.0)
    with tg.compile(model=w.model(), loss=w.loss, inputs=w.inputs, optimizer=made, seed=0, device="jax",
                    precision=o.precision) as train:  # fmt: skip
        blocks = [tracegrad_block(w, train), *others]
        steps = max(2, int(o.seconds / max(min(others[0](2), others[0](2)) / 2, 1e-5)))
        read = min(o.steps, steps) or steps
        turns = max(1, steps // read)
        until = time.perf_counter() + o.warm
        while time.perf_counter() < until:  # loops of many steps are compiled while single steps run
            blocks[0](steps)
        best = [float("inf")] * len(blocks)
        for turn in range(o.repeats + 1):  # the first warms up
            for k, block in enumerate(blocks):
                took = sum(block(read) for _ in range(turns)) / (turns * read)
                best[k] = min(best[k], took) if turn else best[k]
    columns = [f"{best[0] * 1e3:.3f}", *(x for b in best[1:] for x in (f"{b * 1e3:.3f}", f"{best[0] / b:.2f}"))]
    return f"| {' | '.join([name, *columns, *(['', ''] if len(best) < 3 else [])])} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["sine", "mlp", "cnn", "gpt"])
    parser.add_argument("--precision", choices=PEER, default="f32")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each library in a turn")
    parser.add_argument("--steps", type=int, default=0, help="until the loss is read; 0: as many as take these seconds")
    parser.add_argument("--warm", type=float, default=10, help="seconds of steps before any are timed")
    options = parser.parse_args()
    often = f"the loss read every {options.steps} steps" if options.steps else "the loss read at the end"
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}, products in {options.precision}, {often}")
    print(
        '| model | device="jax", ms a step | JAX by hand | ratio | Equinox, Optax | ratio |\n|---|---|---|---|---|---|'
    )
    for name in options.models:
        print(compared(name, options), flush=True)


if __name__ == "__main__":
    main()
