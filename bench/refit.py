"""Measure the constants of `tracegrad/tuning.py` again, on the machine at hand, and print what would change.

    python bench/refit.py --device cpu --models mlp gpt            all that change a kernel of these models, or the host
    python bench/refit.py LANES COLUMNS --device cpu --seconds 5

Each constant is tried at half and at twice its value, or at --values. The states of a model are processes whose blocks
of steps take turns, as in compare.py. A value that leaves all kernels' texts as they are is not timed, unless the host
reads the constant while a program runs. Two processes run today's values: their ratio is the noise. A cell is the time
of a step relative to today's, the geometric mean over the models. A constant would change if its best value gains more
than the noise and 2 %.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from compare import ROOT, State
from steps import WORKLOADS, machine, median_ms

SOURCE = ROOT / "src/tracegrad"
ROW = re.compile(r"^([A-Z_]+) = (.+?)  # (.+?) \| (.+?) \| (.+)$", re.MULTILINE)
LEAST = 0.02  # a gain that is worth a change
HEAD = ("constant", "unit", "measured on", "today", "noise", "time of a step at other values", "best")


class Constant(NamedTuple):
    """One row of tuning.py."""

    name: str
    value: float
    unit: str
    meaning: str
    measured: str

    def around(self) -> list[float]:
        """Return half and twice the value. For a factor a little above 1, halve and double its excess over 1."""
        if isinstance(self.value, float) and 1 < self.value < 2:
            return [round(1 + (self.value - 1) * x, 4) for x in (0.5, 2)]
        whole = isinstance(self.value, int)
        return [x for x in ((self.value // 2, self.value * 2) if whole else (self.value / 2, self.value * 2)) if x > 0]


def constants() -> list[Constant]:
    """The table."""
    text = (SOURCE / "tuning.py").read_text(encoding="utf-8")
    return [Constant(m[1], eval(m[2], {}), *m.groups()[2:]) for m in ROW.finditer(text)]


def read_at_run_time(name: str) -> bool:
    """Return whether the host reads a constant when it loads or runs a program: no kernel's text depends on it then."""
    files = [*(SOURCE / "runtime").glob("*.py"), *(SOURCE / "engine").glob("*.py")]
    return any(re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) for file in files)


class Model:
    """A workload under today's values, twice."""

    def __init__(self, name: str, device: str, stack: ExitStack):
        self.name, self.device = name, device
        self.today = [stack.enter_context(closing(State(SOURCE.parent, name, device))) for _ in range(2)]

    def ratios(self, c: Constant, values: Sequence[float], seconds: float) -> tuple[float, list[float | None]]:
        """The noise, and the time of a step at each value relative to today's; None where nothing can differ."""
        host = read_at_run_time(c.name)
        with ExitStack() as stack:
            tried: list[State | None] = []
            for value in values:
                state = State(SOURCE.parent, self.name, self.device, (f"{c.name}={value!r}",))
                stack.enter_context(closing(state))
                differs = host or state.facts["texts"] != self.today[0].facts["texts"]
                tried.append(state if differs else None)
            timed = [state for state in tried if state is not None]
            if not timed:
                return 1.0, [None for _ in values]
            first, second, *rest = median_ms([*self.today, *timed], seconds, warm=int(self.device == "webgpu"))
        found = iter(rest)
        now = math.sqrt(first * second)
        return max(first, second) / min(first, second), [None if s is None else next(found) / now for s in tried]


def measured(c: Constant, values: Sequence[float], models: Sequence[Model], seconds: float) -> tuple[str, str]:
    """The row of a constant, and the line of tuning.py that would replace its own; empty if none would."""
    each = [model.ratios(c, values, seconds) for model in models]
    noise = max(n for n, _ in each)
    shown, means = list[str](), dict[float, float]()
    for value, *ratios in zip(values, *(ratios for _, ratios in each)):
        counted = [r for r in ratios if r is not None]
        if counted:
            means[value] = statistics.geometric_mean(counted)
        shown.append(f"{value}: {means[value]:.3f}" if counted else f"{value}: same kernels")
    best = min(means, key=lambda v: means[v], default=c.value)
    change = f"{c.name} = {best}  # {means[best]:.3f} of the time" if means and 1 / means[best] > noise + LEAST else ""
    cells = (
        c.name,
        c.unit,
        c.measured,
        f"{c.value}",
        f"{noise:.3f}",
        ", ".join(shown),
        f"{best}" if change else "today",
    )
    return "| " + " | ".join(cells) + " |", change


def chosen(names: Sequence[str]) -> Iterator[Constant]:
    """The constants of these names; all for none."""
    table = {c.name: c for c in constants()}
    for name in names or table:
        if name not in table:
            raise SystemExit(f"{Path('src/tracegrad/tuning.py')} has no {name}")
        yield table[name]


def main() -> None:
    """Print the table, and which constants would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="constants; all without any")
    parser.add_argument("--values", nargs="+", type=float, help="instead of half and twice today's")
    parser.add_argument("--models", nargs="+", default=["mlp", "gpt"], choices=WORKLOADS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each value and model")
    args = parser.parse_args()
    rows = list(chosen(args.names))
    print(machine())
    print(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    changes: list[str] = []
    with ExitStack() as stack:
        models = [Model(name, args.device, stack) for name in args.models]
        for c in rows:
            values = [int(v) if isinstance(c.value, int) else v for v in args.values] if args.values else c.around()
            row, change = measured(c, values, models, args.seconds)
            print(row, flush=True)
            changes += [change] if change else []
    print("\nwould change:", "\n".join(["", *changes]) if changes else "nothing")


if __name__ == "__main__":
    main()
