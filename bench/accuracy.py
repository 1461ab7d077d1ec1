"""Largest error of every elementwise function, in units in the last place, against float64.

    python bench/accuracy.py                      the CPU, and a WebGPU adapter where there is one
    python bench/accuracy.py --device webgpu --points 4000000

Prints the table of docs/numerics.md. Points are spread over each range, evenly or by magnitude. Results that are
denormal in f32 are left out: a GPU may flush them to zero.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tracegrad as tg

Array = Any
TINY, HUGE = 1.1754944e-38, 3.4028235e38
erf: Any = np.vectorize(math.erf, otypes=[np.float64])


def rsqrt(x: Array) -> Array:
    """NumPy has none."""
    return 1 / np.sqrt(x)


@dataclass(frozen=True)
class Row:
    """One function over one range. `allowed` is the promise in ulp, on every runtime, that tests hold it to."""

    name: str
    low: float
    high: float
    exact: Callable[..., Array]
    allowed: float
    both: bool = False  # the range stands for magnitudes, spread by their logarithm, of both signs
    second: tuple[float, float] | None = None  # range of the second operand

    def points(self, n: int) -> list[Array]:
        """Operands."""
        rng = np.random.default_rng(0)
        if self.both:
            x = np.exp(rng.uniform(math.log(self.low), math.log(self.high), n)) * rng.choice([-1.0, 1.0], n)
        elif self.low > 0 and self.high > 1e3 * self.low:
            x = np.exp(rng.uniform(math.log(self.low), math.log(self.high), n))
        else:
            x = rng.uniform(self.low, self.high, n)
        out = [x.astype(np.float32)]
        if self.second is not None:
            out.append(rng.uniform(*self.second, n).astype(np.float32))
        return out

    @property
    def range(self) -> str:
        """For people."""
        sign = "±" if self.both else ""
        more = f", b {self.second[0]:g} … {self.second[1]:g}" if self.second else ""
        return f"{sign}{self.low:.3g} … {sign}{self.high:.3g}{more}"


ROWS = (
    Row("exp", -87.3, 88.7, np.exp, 3),
    Row("expm1", 1e-30, 1.0, np.expm1, 4, both=True),
    Row("expm1", -87.0, 88.7, np.expm1, 4),
    Row("log", 0.5, 2.0, np.log, 4),
    Row("log", TINY, HUGE, np.log, 4),
    Row("log1p", 1e-30, 0.999, np.log1p, 4, both=True),
    Row("log1p", 1e-3, HUGE, np.log1p, 4),
    Row("sin", -math.pi, math.pi, np.sin, 4),
    Row("sin", 1e-30, HUGE, np.sin, 4, both=True),
    Row("cos", -math.pi, math.pi, np.cos, 4),
    Row("cos", 1e-30, HUGE, np.cos, 4, both=True),
    Row("tanh", 1e-30, 20.0, np.tanh, 4, both=True),
    Row("erf", 1e-30, 5.0, erf, 4, both=True),
    Row("sqrt", TINY, HUGE, np.sqrt, 2.5),
    Row("rsqrt", TINY, HUGE, rsqrt, 5),
    Row("div", 1e-30, 1e30, np.divide, 2.5, both=True, second=(0.5, 2.0)),
    Row("pow", 1e-3, 1e3, np.power, 4, second=(-8.0, 8.0)),
    Row("pow", 0.9, 1.1, np.power, 4, second=(-800.0, 800.0)),
)


class Nothing(tg.Module):
    """A model must have a parameter."""

    def __init__(self) -> None:
        self.w = self.param((1,))


def computed(row: Row, operands: Sequence[Array], device: str) -> Array:
    """The function in f32 on a device."""
    names = "ab"[: len(operands)]

    def forward(m: Nothing, **xs: tg.Tensor) -> tg.Tensor:
        return getattr(tg, row.name)(*xs.values())

    types = {n: x.shape for n, x in zip(names, operands)}
    with tg.compile_forward(model=Nothing(), forward=forward, inputs=types, device=device) as f:
        return np.asarray(f.run(dict(zip(names, operands))).output)


def worst(row: Row, device: str, n: int) -> tuple[float, float]:
    """The largest error in ulp, and the first operand where it occurs."""
    operands = row.points(n)
    with np.errstate(all="ignore"):
        want = row.exact(*[x.astype(np.float64) for x in operands])
    normal = (np.abs(want) >= TINY) & (np.abs(want) <= HUGE)
    got, want = computed(row, operands, device).astype(np.float64)[normal], want[normal]
    error = np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    error = np.where(np.isfinite(error), error, np.inf)
    at = int(error.argmax())
    return float(error[at]), float(operands[0][normal][at])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "webgpu"), help="default: all there are")
    parser.add_argument("--points", type=int, default=1 << 19)
    args = parser.parse_args()
    devices = [args.device] if args.device else ["cpu", "webgpu"] if tg.check_webgpu().ok else ["cpu"]
    print("| function | operands | promised |", *(f"{d} | worst at |" for d in devices))
    print("|---|---|---|", *("---|---|" for _ in devices), sep="")
    for row in ROWS:
        cells = [f"{error:.2f} | {x:.6g}" for error, x in (worst(row, d, args.points) for d in devices)]
        print(f"| {row.name} | {row.range} | {row.allowed:g} |", *(f"{c} |" for c in cells))


if __name__ == "__main__":
    main()
