"""The text of graphs, kernels and shaders of small models: a refactor of the compiler leaves every byte as it is.

After a change that is meant, look at the difference that this makes:

    TRACEGRAD_GOLDEN=1 python -m pytest tests/test_golden.py && git diff tests/golden
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracegrad as tg
from kept import assert_as_kept
from models import Training, build_forward, build_training, cnn, gpt, rnn, sine
from tracegrad import nn, optim
from tracegrad.ir.graph import Graph
from tracegrad.program import Program

FOLDER = Path(__file__).parent / "golden"


class One(tg.Module):
    """One matrix."""

    def __init__(self) -> None:
        self.w = self.param((6, 4))


class Table(tg.Module):
    """Rows to pick from."""

    def __init__(self) -> None:
        self.table = nn.Embedding(9, 4)


class Norms(tg.Module):
    """Two norms."""

    def __init__(self) -> None:
        self.a, self.b = nn.LayerNorm(40), nn.RMSNorm(40)


def forward(fn: Callable[..., Any], inputs: dict[str, Any], model: Callable[[], tg.Module] = One) -> Any:
    return lambda: build_forward(model(), fn, inputs)


def training(t: Training) -> Any:
    return lambda: build_training(**t.arguments())


def momentum() -> optim.Optimizer:
    return optim.sgd(lr=0.1, momentum=0.9)


MODELS = {
    "linear_relu": forward(lambda m, x: tg.relu(x @ m.w + 1), {"x": (5, 6)}),
    "softmax_masked": forward(lambda m, x: tg.softmax_causal(x * m.w[0, 0]), {"x": (2, 40, 40)}),
    "norms": forward(lambda m, x: m.b(m.a(x)), {"x": (3, 40)}, Norms),
    "views": forward(lambda m, x: tg.concat([x[:, ::-1], tg.pad(x.T, ((0, 0), (1, 1)))], 0) @ m.w, {"x": (4, 6)}),
    "gather": forward(lambda m, i: m.table(i).sum(1), {"i": tg.i32[3, 5]}, Table),
    "sine": training(sine(batch=16, width=8)),
    "sine_momentum": training(sine(batch=4, width=3, optimizer=momentum)),
    "cnn": training(cnn(batch=2, side=8, a=2, b=3)),
    "gpt": training(gpt(batch=2, vocabulary=7, context=4, width=8, layers=1)),
    "rnn": training(rnn(batch=2, length=7, width=3, optimizer=momentum)),
    "gpt_dropout": training(gpt(batch=2, vocabulary=7, context=4, width=8, layers=1, p=0.1, optimizer=momentum)),
}


def kernel_table(program: Program) -> str:
    """Buffers, and one line a dispatch: kernel, grid, and where each operand lies."""
    lines = [f"{b.role:7} {b.dtype}[{b.size}] {b.name}" for b in program.buffers]
    lines.append("")
    for d in program.dispatches:
        arrays = ", ".join(program.buffers[k].name for k in d.buffers)
        label = program.kernels[d.kernel].label
        moves = "".join(f", at[{slot}] += {m.step}*(t{m.depth} % {m.ring})" for slot, m in d.moves)
        lines.append(f"{d.kernel:3} {d.grid[0]}x{d.grid[1]} ({arrays}) at {list(d.offsets)}{moves}: {label}")
    lines += [f"dispatches {x.begin} to {x.end - 1} run {x.count} times" for x in program.loops]
    return "\n".join(lines)


def shaders(program: Program) -> str:
    """The WGSL of every kernel, and what software adapters run instead where that is another."""
    return "\n".join(
        f"// {number}: {k.label}\n{k.wgsl}"
        + (f"\n// without barriers, {k.serial_grid}\n{k.serial_wgsl}" * bool(k.serial_wgsl))
        for number, k in enumerate(program.kernels)
    )


def graph_text(graph: Graph) -> str:
    """Without line numbers: moving a line of a test changes no graph. Leaves of a scan are numbered by the process."""
    text, lines = re.subn(r"  # [\w.]+:\d+$", "", str(graph), flags=re.MULTILINE)
    assert lines > len(graph) / 2
    return re.sub(r"name=(carry|x|const)\.\d+", r"name=\1", text)


PARTS = {
    "graph.txt": lambda built: graph_text(built.graph),
    "kernels.txt": lambda built: kernel_table(built.program),
    "wgsl": lambda built: shaders(built.program),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_text_is_as_it_was(name: str, part: str) -> None:
    text = PARTS[part](MODELS[name]()).rstrip("\n") + "\n"
    assert_as_kept(FOLDER / f"{name}.{part}", text)


def test_no_text_is_left_over() -> None:
    assert {p.name for p in FOLDER.iterdir() if p.is_file()} == {f"{name}.{part}" for name in MODELS for part in PARTS}
