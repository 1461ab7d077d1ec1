"""Largest error of every op, in units in the last place, against float64.

    python bench/accuracy.py                       every runtime of this machine
    python bench/accuracy.py --device webgpu       one runtime (repeat the option for more)
    python bench/accuracy.py --check               exit code 1 if an error is beyond its promise
    python bench/accuracy.py --write               put the columns measured into docs/numerics.md, keep the others
    python bench/accuracy.py --only sin --where    some ops, and the operands of the largest error

Needs NumPy only. Runtimes:

    reference   the rules of the table in f32 NumPy, op by op
    eager       eager tensors on the CPU
    numpy       compiled kernels as NumPy
    c           compiled kernels as C
    webgpu      compiled kernels on a WebGPU adapter, a software one too

A GPU may flush denormal operands and results to zero. Such a result is no error there, and an `f` marks the row.
An infinite or NaN result that float64 does not have, or the reverse, is an error of `inf`.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_rows import ROWS, TINY, Row

import tracegrad as tg
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.prims.leaves import leaf

Array = Any
RUNTIMES = ("reference", "eager", "numpy", "c", "webgpu")
DOCS = Path(__file__).parents[1] / "docs" / "numerics.md"
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
BAR = r"\|"  # a bar inside a cell
KEYS = ("op", "operands", "in ulp of", "promised")
TOGETHER = 12  # rows in one program: a compiler's start costs more than a kernel
INFINITE = 2.0**128  # what an infinity counts as beside a finite number


@dataclass(frozen=True)
class Error:
    """The largest error of a row on a runtime."""

    ulp: float
    operands: tuple[float, ...]  # where it occurs; of a matrix, its first element
    flushed: bool = False

    def __str__(self) -> str:
        return f"{self.ulp:.3g}{' f' if self.flushed else ''}"

    def beyond(self, row: Row) -> bool:
        """Whether the promise of `row` is broken. Truths are rounded, too: half an ulp may seem a little more."""
        return self.ulp > row.allowed + 1e-6


class Nothing(tg.Module):
    """A model must have a parameter."""

    def __init__(self) -> None:
        self.w = self.param((1,))


def compiled(rows: Sequence[Row], operands: Sequence[Sequence[Array]], device: str) -> list[Array]:
    """The results of rows, computed by one program on a device."""
    fields = {f"x{k}_{j}": x for k, xs in enumerate(operands) for j, x in enumerate(xs)}

    def forward(m: Nothing, **given: tg.Tensor) -> dict[str, tg.Tensor]:
        return {
            f"y{k}": row.fn(*[given[f"x{k}_{j}"] for j in range(len(xs))])
            for k, (row, xs) in enumerate(zip(rows, operands))
        }

    types = {name: x.shape for name, x in fields.items()}
    with tg.compile_forward(model=Nothing(), forward=forward, inputs=types, device=device) as f:
        output = f.run(fields).output
        return [np.asarray(output[f"y{k}"]) for k in range(len(rows))]


def referred(row: Row, operands: Sequence[Array]) -> Array:
    """The result of a row by the table's rules, in f32."""
    with tracing():
        y = row.fn(*[leaf("input", f"x{j}", TensorType(f32, x.shape)) for j, x in enumerate(operands)])
    return np.asarray(evaluate([y], {f"x{j}": x for j, x in enumerate(operands)}, np)[0])


def computed(rows: Sequence[Row], operands: Sequence[Sequence[Array]], runtime: str) -> Iterator[Array]:
    """The result of each row on a runtime, in f32."""
    if runtime == "reference":
        yield from (referred(row, xs) for row, xs in zip(rows, operands))
    elif runtime == "eager":
        yield from (row.fn(*map(tg.tensor, xs)).numpy() for row, xs in zip(rows, operands))
    else:
        before = os.environ.get("TRACEGRAD_CC")
        os.environ["TRACEGRAD_CC"] = "off" if runtime == "numpy" else ""
        try:
            device = "webgpu" if runtime == "webgpu" else "cpu"
            for k in range(0, len(rows), TOGETHER):
                yield from compiled(rows[k : k + TOGETHER], operands[k : k + TOGETHER], device)
        finally:
            os.environ.pop("TRACEGRAD_CC")
            if before is not None:
                os.environ["TRACEGRAD_CC"] = before


def spacing(x: Array) -> Array:
    """The distance of f32 numbers at |x|, a float64."""
    _, exponent = np.frexp(np.maximum(np.nan_to_num(np.abs(x), nan=1.0, posinf=2.0**127), TINY))
    return np.ldexp(1.0, np.minimum(exponent - 1, 127) - 23)


def difference(got: Array, want: Array, scale: Array) -> Array:
    """Errors in ulp of the scale. NaN agrees with NaN alone; an infinity counts as the number after the largest."""
    gap = np.abs(np.clip(got, -INFINITE, INFINITE) - np.clip(want, -INFINITE, INFINITE)) / spacing(scale)
    return np.where(np.isnan(got) & np.isnan(want), 0.0, np.where(np.isnan(got) | np.isnan(want), np.inf, gap))


def flush(x: Array) -> Array:
    """`x` with denormal numbers as zeros."""
    return np.where(np.abs(x) < TINY, np.copysign(0.0, x), x)


def error_of(row: Row, operands: Sequence[Array], got: Array, flushes: bool) -> Error:
    """The largest error of results; `flushes`: whether the device may flush denormals."""
    got = np.asarray(got, np.float64)
    wide = [x.astype(np.float64) for x in operands]

    def errors(xs: Sequence[Array]) -> tuple[Array, Array]:
        want = np.asarray(row.exact(*xs), np.float64)
        scale = want if row.scale is None else row.scale(*xs)
        assert want.shape == got.shape, f"{row.op}: {got.shape}, expected {want.shape}"
        return difference(got, want, scale), want

    with np.errstate(all="ignore"):
        found, want = errors(wide)
        kept = found
        if flushes:
            zeroed, zeroed_want = errors([flush(x) for x in wide])
            found = np.minimum(found, zeroed)
            found = np.where((got == 0) & ((np.abs(want) < TINY) | (np.abs(zeroed_want) < TINY)), 0.0, found)
    at = np.unravel_index(int(found.argmax()), found.shape)
    where = tuple(float(x[at] if x.shape == found.shape else x.flat[0]) for x in operands)
    return Error(float(found[at]), where, bool((kept > found).any() and kept.max() > row.allowed))


def measured(rows: Sequence[Row], runtime: str, points: int) -> list[Error]:
    """The largest error of each row on a runtime."""
    operands = [row.points(np.random.default_rng(k), points) for k, row in enumerate(rows)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a software adapter was asked for by name
        results = computed(rows, operands, runtime)
        return [error_of(row, xs, y, runtime == "webgpu") for row, xs, y in zip(rows, operands, results)]


def column(runtime: str) -> str:
    """The heading of a runtime's column."""
    if runtime != "webgpu":
        return {"reference": "reference", "eager": "eager", "numpy": "NumPy", "c": "C"}[runtime]
    adapter = tg.check_webgpu().adapter
    return adapter.name.partition(" (")[0] if adapter else "WebGPU"


Table = dict[tuple[str, ...], dict[str, str]]


def key(row: Row) -> tuple[str, ...]:
    """The cells that name a row."""
    return row.op, row.operands, row.unit, f"{row.allowed:g}"


def parsed(text: str) -> Table:
    """The table between the markers of a document, by row and column."""
    lines = [line for line in text.partition(BEGIN)[2].partition(END)[0].splitlines() if line.startswith("|")]
    cells = [[c.replace(BAR, "|") for c in line[2:-2].split(" | ")] for line in lines]
    found: Table = {}
    for line in cells[2:]:
        named = dict(zip(cells[0], line, strict=True))
        found[tuple(named.pop(k) for k in KEYS)] = named
    return found


def markdown(table: Table) -> str:
    """The table as Markdown."""
    columns = list(dict.fromkeys(name for cells in table.values() for name in cells))
    lines = [[*KEYS, *columns], ["---"] * (len(KEYS) + len(columns))]
    lines += [[*names, *(cells.get(c, "–") for c in columns)] for names, cells in table.items()]
    return "\n".join(f"| {' | '.join(c.replace('|', BAR) for c in line)} |" for line in lines)


def write(table: Table, path: Path) -> None:
    """Put the columns measured into a document; columns of other runtimes stay, for rows with the same key."""
    text = path.read_text(encoding="utf-8")
    before = parsed(text)
    merged = {names: {**before.get(names, {}), **cells} for names, cells in table.items()}
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    path.write_text(f"{head}{BEGIN}\n\n{markdown(merged)}\n\n{END}{tail}", encoding="utf-8")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog=(__doc__ or "").partition("\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", choices=(*RUNTIMES, "cpu"), action="append", help="default: all; cpu: all but webgpu"
    )
    parser.add_argument("--points", type=int, default=1 << 17, help="operands of an elementwise row (%(default)s)")
    parser.add_argument("--only", action="append", help="only rows of this op; repeat for more")
    parser.add_argument("--check", action="store_true", help="fail if an error is beyond its promise")
    parser.add_argument("--where", action="store_true", help="show the operands of each largest error")
    parser.add_argument("--write", action="store_true", help="update the table of docs/numerics.md")
    args = parser.parse_args()
    named = args.device or (RUNTIMES if tg.check_webgpu().ok else RUNTIMES[:-1])
    args.device = list(dict.fromkeys(d for name in named for d in (RUNTIMES[:-1] if name == "cpu" else (name,))))
    if args.write and args.only:
        parser.error("--write needs all rows: leave out --only")
    return args


def main() -> int:
    """Measure, print, check and write; the exit code."""
    args = arguments()
    rows = [row for row in ROWS if not args.only or row.op in args.only]
    table: Table = {key(row): {} for row in rows}
    broken: list[str] = []
    for runtime in args.device:
        name = column(runtime)
        for row, error in zip(rows, measured(rows, runtime, args.points)):
            at = f" at {', '.join(f'{x:.9g}' for x in error.operands)}" if args.where else ""
            table[key(row)][name] = f"{error}{at}"
            if error.beyond(row):
                broken.append(f"{row.op}, {row.operands}, {name}: {error} ulp, promised {row.allowed:g}")
    print(markdown(table))
    if args.write:
        write(table, DOCS)
    if args.check and broken:
        print("\nBeyond the promise:", *broken, sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
