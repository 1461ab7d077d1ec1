"""Tables as text and as HTML, self-contained HTML pages, and the table of a model's parameters. All text is escaped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tracegrad.dtypes import show
from tracegrad.files.atomic import replace_file
from tracegrad.nn.module import named_parameters
from tracegrad.nn.parameters import Parameter
from tracegrad.wrong_calls import helpful

STYLE = """
.tracegrad { font: 14px/1.5 system-ui, sans-serif; }
.tracegrad table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.5em 0; }
.tracegrad th, .tracegrad td { padding: 0.15em 0.8em 0.15em 0; text-align: right; border-bottom: 1px solid #8884; }
.tracegrad .l { text-align: left; }
.tracegrad pre { font: 12px/1.45 ui-monospace, monospace; overflow-x: auto; padding: 0.8em; border: 1px solid #8884; }
.tracegrad summary { cursor: pointer; }
"""
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}


def escape(text: str) -> str:
    """Escape `text` for HTML, also within quotes. `html.escape` would import a table of 2000 names."""
    return "".join([ESCAPES.get(c, c) for c in text])


class Table(NamedTuple):
    """Rows below a head. Columns named in `left` are aligned to the left, all others to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str] = ()
    total: bool = False  # is the last row a total?

    def text(self, widest: int = 48) -> str:
        """Return the table as lines of text. Cells wider than `widest` are cut."""
        cut = [[x if len(x) <= widest else x[: widest - 3] + "..." for x in row] for row in (self.head, *self.rows)]
        widths = [max(len(row[k]) for row in cut) for k in range(len(self.head))]
        sides = ["<" if name in self.left else ">" for name in self.head]
        lines = ["  ".join(f"{x:{s}{w}}" for x, s, w in zip(row, sides, widths)).rstrip() for row in cut]
        rule = "-" * max(map(len, lines))
        if self.total:
            lines.insert(-1, rule)
        return "\n".join([lines[0], rule, *lines[1:]])

    def html(self) -> str:
        """Return the table as an HTML element."""
        parts = ["<table>", self._row(self.head, "th"), *(self._row(row, "td") for row in self.rows), "</table>"]
        return "\n".join(parts)

    def _row(self, cells: Iterable[str], tag: str) -> str:
        side = ['class="l"' if name in self.left else "" for name in self.head]
        return "<tr>" + "".join(f"<{tag} {s}>{escape(x)}</{tag}>" for x, s in zip(cells, side)) + "</tr>"


def amount(n: float, unit: str = "") -> str:
    """Return a number as text, with three digits and a scale: `1.23 MB`."""
    for scale, prefix in SCALES:
        if abs(n) >= scale:
            return f"{n / scale:.3g} {prefix}{unit}"
    return f"{n:.3g} {unit}".rstrip()


def fragment(*parts: str) -> str:
    """Join HTML `parts` into one element for a notebook's cell."""
    return "\n".join([f'<style>{STYLE}</style><div class="tracegrad">', *parts, "</div>"])


def page(title: str, body: str) -> str:
    """Return a whole HTML document. It loads no files and runs no scripts."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)}</title></head><body>{body}</body></html>",
        ]
    )


def written(path: str | os.PathLike[str], text: str) -> Path:
    """Replace the file by `text` as a whole, and return its path."""
    replace_file(path, [text.encode()])
    return Path(path)


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Parameters by name; prints as a table. `total` and `trainable` count elements."""

    parameters: dict[str, Parameter]

    @property
    def total(self) -> int:
        """Elements of all parameters."""
        return sum(p.size for p in self.parameters.values())

    @property
    def trainable(self) -> int:
        """Elements of the parameters that steps change."""
        return sum(p.size for p in self.parameters.values() if p.trainable)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = []
        for name, p in self.parameters.items():
            kind = p.init.spec()["kind"] if p.trainable else f"{p.init.spec()['kind']}, fixed"
            rows.append((name, f"{p.dtype}{show(p.shape)}", f"{p.size:,}", kind))
        rows.append(("total", "", f"{self.total:,}", f"{4 * self.total / 1e6:.2f} MB"))
        table = Table(("name", "type", "count", "init"), rows, left=("name", "type", "init"), total=True)
        rest = f"\nof which trainable: {self.trainable:,}" if self.trainable != self.total else ""
        return table.text(widest=max(len(x) for row in rows for x in row)) + rest

    __repr__ = __str__


@helpful
def summary(model: Any) -> Summary:
    """Return a table of a model's parameters, to print: name, type, number of elements, initialiser and total size.

    model: a tree of modules. A parameter in two places counts once.
    Raises TraceError if `model` is not a tree of modules. As `summary` of Keras and of torchinfo for PyTorch.

    >>> print(tg.summary(nn.Linear(2, 1)))
    name   type      count  init
    -------------------------------
    W      f32[2,1]      2  kaiming
    b      f32[1]        1  zeros
    -------------------------------
    total                3  0.00 MB
    """
    return Summary(named_parameters(model))
