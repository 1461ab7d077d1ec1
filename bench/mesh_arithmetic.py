"""What data, tensor and pipeline parallelism cost for GPTs of 10 million to 10 billion parameters: arithmetic.

    python bench/mesh.py --arithmetic

A step is bound by FLOPs: 6 for each parameter and token, and 12 T D a layer and token for attention. Their rate is
measured for the two smaller models (`MEASURED`); the two larger ones get that of the second. A collective takes its
bytes over the bandwidth of the slowest link. Neither overlap nor the latency of a collective is counted. Memory counts
16 bytes a parameter in f32 (the parameter, Adam's two means, and the gradient inside of a step), and what the backward
pass reads of each layer. The two large models compute their blocks again there (`tg.remat`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tracegrad.tuning import GATHERED_TOGETHER

GB, MS = 1e9, 1e-3
HBM = 80 * GB
NVLINK, NETWORK = 450 * GB, 50 * GB  # bytes a second and GPU, one direction: inside of a host of 8, and between hosts
HOST = 8
WORD = 4  # bytes of an element: gradients and activations are f32
STATE = 16  # bytes a parameter of parameters, gradients and Adam's means
KEPT = 18  # activations of T x D elements that the backward pass reads of a layer, beside attention's T x T
TOKENS = 16384  # of a step, for each GPU: 64 rows of 256, or 16 of 1024
STAGES = 8  # micro-batches of a pipeline, for each of its stages


class Model(NamedTuple):
    """A GPT."""

    name: str
    layers: int
    width: int
    context: int
    alphabet: int
    heads: int
    remat: bool  # each block is computed again in the backward pass (`tg.remat`), a fourth forward of three

    @property
    def parameters(self) -> int:
        """Elements of all parameters, with biases and norms, positions, and a head that is not tied."""
        d, v = self.width, self.alphabet
        block = 12 * d * d + 9 * d + 4 * d
        return self.layers * block + (v + self.context) * d + 2 * d + d * v + v

    @property
    def flops(self) -> float:
        """Of a step, for each token: forward and backward."""
        looked_up = (self.alphabet + self.context) * self.width
        plain = 6.0 * (self.parameters - looked_up) + 12.0 * self.layers * self.context * self.width
        return plain * (4 / 3 if self.remat else 1)

    @property
    def kept(self) -> float:
        """Bytes for each token that the backward pass reads."""
        block = KEPT * self.width + 2 * self.heads * self.context
        return WORD * (self.layers * self.width + block if self.remat else self.layers * block)


MODELS = (
    Model("10 M", 6, 384, 256, 72, 6, False),
    Model("85 M", 12, 768, 256, 72, 12, False),
    Model("1.3 B", 24, 2048, 1024, 32768, 16, True),
    Model("10 B", 40, 4480, 1024, 32768, 35, True),
)


class Measured(NamedTuple):
    """Milliseconds of a step by `python bench/mesh.py --large` on H100s of one host: alone, and on `gpus` of them."""

    model: int  # of MODELS
    products: str
    gpus: int
    alone: float
    data: float
    fsdp: float

    @property
    def rate(self) -> float:
        """FLOP a second of one GPU."""
        return MODELS[self.model].flops * TOKENS / (self.alone * MS)


MEASURED = (
    Measured(0, "f32", 2, 36.9, 37.5, 37.5),
    Measured(0, "TF32", 2, 15.0, 15.6, 16.0),
    Measured(1, "TF32", 2, 69.2, 71.6, 72.0),
    Measured(0, "TF32", 4, 14.9, 15.7, 16.4),
    Measured(1, "TF32", 4, 69.2, 72.8, 72.6),
)
SMALL, LARGE = MEASURED[3].rate, MEASURED[4].rate


class Way(NamedTuple):
    """A way to train on `n` GPUs, and the cost of a step for each GPU."""

    name: str
    seconds: float  # of communication, and of waiting
    memory: float  # bytes


def link(n: int) -> float:
    """The slowest bandwidth among so many GPUs."""
    return NVLINK if n <= HOST else NETWORK


def ways(m: Model, n: int, computing: float) -> Iterator[Way]:
    """Yield each way with its cost on `n` GPUs. A GPU computes TOKENS tokens in `computing` seconds."""
    around, state, kept = (n - 1) / n, STATE * m.parameters, m.kept * TOKENS
    yield Way("data", 2 * around * WORD * m.parameters / link(n), state + kept)
    # gathered once, whole during a step; in a large model a layer at a time, for each pass; gradients are scattered
    apart = m.parameters > GATHERED_TOGETHER
    whole = m.parameters * WORD / (m.layers if apart else 1)
    yield Way("FSDP", (3 if apart else 2) * around * WORD * m.parameters / link(n), state / n + whole + kept)
    # two sums of activations a layer in each pass, of the tokens of all
    group = min(n, HOST)
    sums = 4 * m.layers * 2 * (group - 1) / group * TOKENS * group * m.width * WORD
    rest = 2 * (n // group - 1) / max(n // group, 1) * WORD * m.parameters / group / NETWORK
    yield Way("tensor in a host, data between", sums / NVLINK + rest, state / group + kept)
    stages = min(n, m.layers)
    bubble = computing * (stages - 1) / (STAGES * stages)
    moved = 2 * TOKENS * n / max(n // stages, 1) * m.width * WORD / link(n)
    more = 2 * (n // stages - 1) / max(n // stages, 1) * WORD * m.parameters / stages / link(n)
    yield Way("pipeline", bubble + moved + more, state / stages + kept)


def report() -> str:
    """Tables, as docs/scaling.md has them."""
    lines = [f"TF32: {SMALL / 1e12:.0f} TFLOP/s in the first model, {LARGE / 1e12:.0f} in the others. {TOKENS} tokens a"
             " step and GPU. Each cell: efficiency, GiB a GPU", ""]  # fmt: skip
    counts = (2, 8, 64)
    lines += [
        f"| parameters | way | ms alone | {' | '.join(f'{n} GPUs' for n in counts)} |",
        "|---|---|---|---|---|---|",
    ]
    for k, m in enumerate(MODELS):
        alone = m.flops * TOKENS / (LARGE if k else SMALL)
        every = [list(ways(m, n, alone)) for n in counts]
        for row in zip(*every, strict=True):
            cells = [
                f"{alone / (alone + w.seconds):.2f}, {w.memory / 2**30:.1f}{'' if w.memory < HBM else ' (too much)'}"
                for w in row
            ]
            lines.append(f"| {m.parameters / 1e6:,.0f} M | {row[0].name} | {alone / MS:.1f} | {' | '.join(cells)} |")
    lines += [
        "",
        "| parameters | products in | GPUs | layout | ms predicted | measured | alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for point in MEASURED:
        for predicted, got, name in checked(point):
            size = f"{MODELS[point.model].parameters / 1e6:,.0f} M"
            lines.append(
                f"| {size} | {point.products} | {point.gpus} | {name} | {predicted:.1f} | {got} | {point.alone} |"
            )
    return "\n".join(lines)


def checked(point: Measured) -> list[tuple[float, float, str]]:
    """Predicted and measured ms of a step, for each layout."""
    found = {w.name: w.seconds / MS for w in ways(MODELS[point.model], point.gpus, point.alone * MS)}
    return [(point.alone + found["data"], point.data, "data"), (point.alone + found["FSDP"], point.fsdp, "FSDP")]
