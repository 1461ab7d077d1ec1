"""Draw what bench/scaling.py measured: one column a sweep; time, compile time, memory and dispatches below each other.

    python bench/scaling_plot.py docs/scaling.svg cpu.json gpu.json

A line for each file, named after its device. Grey lines grow as the size does, and as its square. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SWEEPS = {
    "width": "GPT: width",
    "depth": "GPT: layers",
    "batch": "GPT: batch",
    "sequence": "GPT, batch 8: tokens",
    "dense": "784-W-W-10: W",
}
MEASURES = {
    "ms a step": "ms a step",
    "compile s": "compile, s",
    "memory": "memory on the device, MB",
    "dispatches": "dispatches",
}
COLOURS = ("#0b7285", "#d9480f", "#5f3dc4")


def value(row: dict[str, Any], measure: str) -> float:
    """Return the number that a point shows."""
    return row["persistent MB"] + row["temporaries MB"] if measure == "memory" else row[measure]


def guides(axes: Any, sizes: list[int], end: float) -> None:
    """Lines of slope 1 and 2 that end where the measured one does."""
    for power in (1, 2):
        axes.plot(sizes, [end * (n / sizes[-1]) ** power for n in sizes], color="#ccc", linewidth=0.8, zorder=0)


def panel(axes: Any, measured: list[dict[str, Any]], sweep: str, measure: str) -> None:
    """One sweep, one measure, a line a device."""
    from matplotlib import ticker

    shown: list[float] = []
    for data, colour in zip(measured, COLOURS):
        rows = [r for r in data["rows"] if r.get("sweep") == sweep]
        sizes, values = [r["size"] for r in rows], [value(r, measure) for r in rows]
        if rows:
            shown += values
            axes.plot(sizes, values, "o-", color=colour, markersize=3, linewidth=1.2, label=data["name"])
            if measure in ("ms a step", "memory"):
                guides(axes, sizes, values[-1])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(min(shown, default=1) / 1.6, max(shown, default=1) * 1.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}"))
        axis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 3), numticks=20))
    axes.grid(visible=True, color="#eee", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def draw(out: Path, files: list[Path]) -> None:
    """Write the SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    measured = [json.loads(f.read_text()) for f in files]
    pyplot.rcParams.update(
        {"font.size": 8, "font.sans-serif": ["DejaVu Sans"], "svg.fonttype": "none", "svg.hashsalt": "tracegrad"}
    )
    figure, grid = pyplot.subplots(len(MEASURES), len(SWEEPS), figsize=(12, 9), squeeze=False)
    for column, (sweep, title) in enumerate(SWEEPS.items()):
        grid[0][column].set_title(title)
        for line, measure in enumerate(MEASURES):
            panel(grid[line][column], measured, sweep, measure)
    for line, name in enumerate(MEASURES.values()):
        grid[line][0].set_ylabel(name)
    grid[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("files", type=Path, nargs="+", metavar="MEASURED.json", help="of bench/scaling.py --json")
    options = parser.parse_args()
    draw(options.out, options.files)
