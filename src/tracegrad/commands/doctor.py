"""`tracegrad doctor`: list the devices of this machine, and check that they compute correctly.

Small programs of every kernel family run on a device and are compared with the reference, as TRACEGRAD_CHECK=1 does.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.dtypes import InputType
from tracegrad.engine.reference import SWITCH
from tracegrad.runtime import verify
from tracegrad.runtime.adapters import adapters
from tracegrad.runtime.c_compiler import VARIABLE, compiler
from tracegrad.runtime.wgpu_adapter import ADAPTER, AdapterInfo
from tracegrad.testing import Case, switched

Array = npt.NDArray[Any]
SEED = 7
STEPS = 3


class Outcome(NamedTuple):
    """The result of a check on a device. message: the failure, or an empty string."""

    message: str
    seconds: float


class Probe(tg.Module):
    """One matrix, so that the forwards have a parameter too."""

    def __init__(self) -> None:
        self.w = self.param((24, 24), init=tg.init.randn(0.2))


def elementwise(m: Probe, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Compute arithmetic, comparisons, and functions that some drivers get wrong."""
    bell = tg.exp(-tg.square(x)) * tg.sin(3.0 * y) + tg.tanh(20.0 * x)
    return tg.where(x > y, bell, tg.sqrt(tg.abs(y)) + tg.erf(x) + tg.log1p(tg.abs(x)))


def views(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Slice, pad, permute and join: all of it becomes index expressions."""
    turned = tg.pad(tg.permute(x, (2, 0, 1))[1:, :, ::2], [(1, 0), (2, 1), (0, 3)])
    return tg.concat([turned, tg.flip(turned, 1)], axis=2).reshape(-1, 12) * 2.0


def row_folds(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Compute normalisation, softmax and a sum of exponentials along the last axis."""
    return tg.softmax(tg.layer_norm(x)) + tg.logsumexp(x, axis=-1, keepdims=True)


def column_folds(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Sum the columns, with an epilogue."""
    return tg.sum(x, axis=0) / (1.0 + tg.var(x, axis=0))


def long_folds(m: Probe, x: tg.Tensor) -> Any:
    """Reduce axes so long, with so few results, that each reduction is split in two."""
    return tg.mean(tg.square(x)), tg.max(x, axis=1)


def cumulative(m: Probe, x: tg.Tensor) -> Any:
    """Return running sums, and the positions of the largest elements."""
    return tg.cumsum(x, axis=1), tg.argmax(x, axis=0)


def products(m: Probe, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Compute a tiled matmul with a prologue and an epilogue."""
    return tg.relu(tg.tanh(x) @ y + 0.5)


def plain_product(m: Probe, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Compute a single matmul."""
    return x @ y


def small_products(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Compute a batched matmul, one smaller than a tile in every direction, and one with a parameter."""
    return (x @ tg.swapaxes(x, -1, -2)).sum(axis=0) + (x[0] @ m.w[:5])[:, :3]


def images(m: Probe, x: tg.Tensor, k: tg.Tensor) -> tg.Tensor:
    """Compute a convolution and a pool."""
    return tg.max_pool2d(tg.relu(tg.conv2d(x, k, padding=1)), 2)


def gather(m: Probe, i: tg.Tensor, j: tg.Tensor) -> Any:
    """Read rows by index, and one element of each row."""
    rows = tg.embedding(m.w, i)
    return rows, tg.take_along_axis(rows, j, axis=1)


def scatter(m: Probe, x: tg.Tensor, i: tg.Tensor) -> tg.Tensor:
    """Sum rows with repeated indices."""
    return tg.scatter_add(tg.zeros((9, 6)), i, x)


def random(m: Probe, x: tg.Tensor) -> Any:
    """Draw random numbers, which are the same on every device."""
    return tg.uniform((37, 5)), tg.dropout(x, 0.3)


def short_rows(m: Probe, x: tg.Tensor, y: tg.Tensor) -> Any:
    """Pad, join and shift short rows, with gradients. Compilers can put several short rows into one vector."""
    joined, twice = tg.concat([y, x], 0), tg.concat([y, x, tg.flip(y, 0)], 0)
    below, around = tg.pad(x, [(1, 2), (0, 0)]), tg.pad(x, [(1, 2), (1, 0)])
    rolled = tg.concat([x[-1:], x[:-1]], 0)

    def part(v: tg.Tensor) -> tg.Tensor:
        return tg.sum(tg.square(v[1:-1, :-1] if v.shape[1] > 1 else v[1:-1])) + tg.sum(tg.exp(v[::2]))

    def pooled(v: tg.Tensor) -> tg.Tensor:
        image = v.reshape(1, 1, *v.shape)
        size = (2, min(2, v.shape[1]))
        return tg.sum(tg.square(tg.avg_pool2d(image, size, 1)) + tg.max_pool2d(image, size, 1))

    views = (joined, twice, below, around, rolled, tg.sum(around, axis=1), tg.max(joined, axis=0))
    return *views, tg.grad(part)(x), tg.grad(pooled)(x)


def convolved(m: Probe, x: tg.Tensor, k: tg.Tensor, t: tg.Tensor) -> Any:
    """Return gradients of convolutions with strides, dilation and padding, and of a transposed one."""

    def value(x: tg.Tensor, k: tg.Tensor, t: tg.Tensor) -> tg.Tensor:
        strided = tg.conv2d(x, k, stride=2, padding=1)
        dilated = tg.conv2d(x, k, dilation=2, padding=2)
        return (
            tg.sum(tg.square(strided)) + tg.sum(dilated) + tg.sum(tg.square(tg.conv_transpose2d(strided, t, stride=2)))
        )

    return tg.grad(value, argnums=(0, 1, 2))(x, k, t)


TILES = {16: 80, 32: 330, 64: 650}  # tile size -> side of a result that gets tiles of this size
SHORT = ((1, 40), (2, 33), (3, 64), (4, 17), (5, 16), (6, 31), (7, 5), (8, 33), (9, 20), (16, 7), (17, 6), (33, 3))
CHECKS: tuple[Case, ...] = (
    Case("elementwise", elementwise, ((33, 17), (17,))),
    Case("views and padding", views, ((4, 6, 8),)),
    *(Case(f"row folds of {n}", row_folds, ((9, n),)) for n in (20, 77, 300, 700)),
    *(Case(f"column folds of {n}", column_folds, ((n, 33),)) for n in (150, 1500)),
    Case("long folds, split", long_folds, ((3, 40_000),)),
    Case("cumulative and arg", cumulative, ((12, 40),)),
    *(Case(f"products, tile of {t}", products, ((n, 40), (40, n - 8))) for t, n in TILES.items()),
    Case("products, small", small_products, ((4, 3, 5),)),
    Case("products, long", plain_product, ((2, 9000), (9000, 3))),
    Case("convolution and pool", images, ((2, 3, 10, 10), (8, 3, 3, 3))),
    *(Case(f"short rows of {n}", short_rows, ((rows, n), (1, n))) for n, rows in SHORT),
    *(Case(f"convolutions of {n}", convolved, ((2, 3, n, n + 1), (4, 3, 3, 3), (4, 3, 2, 2))) for n in (5, 6, 7)),
    Case("gather", gather, ints=(((13,), 24), ((13, 1), 24))),
    Case("scatter", scatter, ((40, 6),), ints=(((40,), 9),)),
    Case("random", random, ((40, 30),)),
)  # fmt: skip


def run_check(check: Case, device: str) -> None:
    """Compile and run the function. Raises DeviceError if the result differs from the reference."""
    types = {name: InputType(t.dtype, t.shape) for name, t in check.types().items()}

    def forward(m: Probe, **inputs: tg.Tensor) -> Any:
        return check.fn(m, *(inputs[name] for name in types))

    with tg.compile_forward(model=Probe(), forward=forward, inputs=types, seed=SEED, device=device) as compiled:
        _ = compiled.run(check.arrays(SEED, "float32")).output


class Classifier(tg.Module):
    """A table, a dense layer and a norm, which together need every kind of gradient."""

    def __init__(self) -> None:
        self.table = nn.Embedding(11, 16)
        self.dense = nn.Linear(16, 5)
        self.norm = nn.LayerNorm(16)


def classifier_loss(m: Classifier, tokens: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Return the cross-entropy after a dropout."""
    return tg.cross_entropy(m.dense(tg.dropout(m.norm(m.table(tokens)), 0.1)), y)


def run_training_check(device: str) -> None:
    """Run three steps of AdamW with clipping. Raises DeviceError if a value of a step differs from the reference."""
    rng = np.random.default_rng(SEED)
    batch = {"tokens": rng.integers(0, 11, (6,), np.int32), "y": rng.integers(0, 5, (6,), np.int32)}
    with tg.compile(
        model=Classifier(),
        loss=classifier_loss,
        inputs={"tokens": tg.i32[6], "y": tg.i32[6]},
        optimizer=optim.adamw(lr=1e-2, weight_decay=1e-2, clip_grad_norm=0.5),
        seed=SEED,
        device=device,
    ) as train:
        for _ in range(STEPS):
            _ = train.step(batch).loss


def run_all(device: str) -> dict[str, Outcome]:
    """Run every check on one device. A check that raises has failed, and its outcome has the message."""
    jobs: dict[str, Callable[[], None]] = {c.name: partial(run_check, c, device) for c in CHECKS}
    jobs["optimizer steps"] = partial(run_training_check, device)
    with switched({SWITCH: "1", verify.SWITCH: "off"}):  # a failure must show, and not be worked around
        return {name: _timed(job) for name, job in jobs.items()}


def _timed(job: Callable[[], None]) -> Outcome:
    began, message = time.perf_counter(), ""
    try:
        job()
    except Exception as e:  # a self-test reports whatever a driver does
        message = f"{type(e).__name__}: {e}"
    return Outcome(message, time.perf_counter() - began)


SHOWN_LIMITS = {
    "max-storage-buffers-per-shader-stage": "storage buffers in a kernel",
    "max-storage-buffer-binding-size": "largest binding",
    "max-buffer-size": "largest buffer",
    "max-compute-invocations-per-workgroup": "threads in a workgroup",
    "max-compute-workgroup-storage-size": "workgroup memory",
    "max-compute-workgroups-per-dimension": "workgroups a dimension",
}


def run(device: str | None = None) -> int:
    """Print all results. Returns 0 if every check passes on every device (or on the given one), else 1."""
    print("\n".join([*_versions(), "", *_adapters(), "", *_devices(), ""]))
    names = [device] if device else list(dict.fromkeys(d.name for d in tg.devices()))
    outcomes: dict[str, dict[str, Outcome]] = {}
    for name in names:
        print(f"Checking every kernel family on {name} ...", flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the list above already marks software adapters
            outcomes[name] = run_all(name)
    print("\n".join(_table(outcomes)))
    failures = sum(bool(o.message) for checks in outcomes.values() for o in checks.values())
    print(f"{failures} checks failed" if failures else "All checks passed.")
    return 1 if failures else 0


def _versions() -> Iterator[str]:
    yield ", ".join(f"{package} {_version(package)}" for package in ("tracegrad", "numpy", "wgpu"))
    yield f"Python {platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _adapters() -> Iterator[str]:
    found = adapters()
    yield "WebGPU adapters" if found else f"WebGPU adapters: none. {tg.check_webgpu().message}"
    for k, adapter in enumerate(found):
        yield f"  {k}  {adapter.description}, {'software' if adapter.software else adapter.type}; {adapter.driver}"
        yield from (f"       {line}" for line in _limits(adapter))
        features = f"features: {', '.join(adapter.features) or 'none'}"
        yield from textwrap.wrap(
            features, 112, initial_indent=" " * 7, subsequent_indent=" " * 9, break_on_hyphens=False
        )


def _limits(adapter: AdapterInfo) -> Iterator[str]:
    for key, label in SHOWN_LIMITS.items():
        if key in adapter.limits:
            value = adapter.limits[key]
            bytes_ = f"{value / 2**20:,.0f} MiB" if value >= 2**20 else f"{value / 2**10:,.0f} KiB"
            yield f"{label}: {bytes_ if 'size' in key else f'{value:,}'}"


def _devices() -> Iterator[str]:
    yield 'Devices, in the order device="auto" tries them'
    yield from (f"  {d.name:8} {d.description}" for d in tg.devices())
    if compiler() is None and os.environ.get(VARIABLE) != "off":
        yield "  A C compiler (cc, gcc or clang; not on Windows) makes the CPU three to four times as fast,"
        yield "  and makes short steps on a GPU cost the host less."
    if os.environ.get(ADAPTER):
        support = tg.check_webgpu()
        yield f"  {ADAPTER}={os.environ[ADAPTER]}: {support.message}"
    if os.environ.get("TRACEGRAD_DEVICE"):
        yield f'  TRACEGRAD_DEVICE={os.environ["TRACEGRAD_DEVICE"]} overrides what "auto" means'


def _table(outcomes: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    """Yield one line per check, with one column per device: the verdict and the seconds."""
    names = list(next(iter(outcomes.values())))
    width = max(map(len, names)) + 2
    yield ""
    yield "check".ljust(width) + "".join(f"{device:18}" for device in outcomes).rstrip()
    for name in names:
        yield name.ljust(width) + "".join(f"{_cell(checks[name]):18}" for checks in outcomes.values()).rstrip()
    for device, checks in outcomes.items():
        for name, o in checks.items():
            if o.message:
                yield f"{device}, {name}: {o.message}"


def _cell(o: Outcome) -> str:
    return f"{'FAILED' if o.message else 'ok':6} {o.seconds:6.2f} s"
