"""Pictures without dependencies: PNG from arrays, SVG line charts, and a sheet of small images with captions."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

INK, FAINT, GRID, PAPER = "#1f2933", "#7b8794", "#e4e7eb", "#ffffff"
COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea")
RIGHT, WRONG = "#059669", "#dc2626"
CHART = 640, 360  # the size of a chart
COLUMNS = 12  # of an image sheet
FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. `dots` draws marks instead of a line."""

    name: str
    x: Sequence[float] | Array
    y: Sequence[float] | Array
    faint: bool = False
    dots: bool = False


def png(pixels: Array) -> bytes:
    """Return a PNG file of grey `pixels`, u8[h, w]."""
    height, width = pixels.shape
    filtered = np.pad(pixels, ((0, 0), (1, 0)))  # filter 0 in front of each row

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def smooth(y: Sequence[float] | Array, window: int) -> Array:
    """Return the trailing mean over `window` values, over fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(y, np.float64))])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def line_chart(series: Sequence[Series], *, title: str, x_label: str, y_label: str, log: bool = False) -> str:
    """Return an SVG of `series` over common axes. `log` makes the y axis logarithmic, and leaves out y <= 0."""
    place = math.log10 if log else float
    points = [
        [(float(x), place(y)) for x, y in zip(s.x, s.y, strict=True) if math.isfinite(y) and (y > 0 or not log)]
        for s in series
    ]
    (left, right), (top, bottom) = (64.0, CHART[0] - 20.0), (44.0, CHART[1] - 48.0)
    x_low, x_high = _spread([float(x) for s in series for x in s.x])
    y_low, y_high = _spread([y for row in points for _, y in row])
    pad = 0.04 * (y_high - y_low)
    y_low, y_high = y_low - pad, y_high + pad

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = (x - x_low) / (x_high - x_low), (y - y_low) / (y_high - y_low)
        return left + across * (right - left), bottom - up * (bottom - top)

    def level(y: str, colour: str) -> str:
        return f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" stroke="{colour}"/>'

    parts = [_open(CHART), _text(left, 26, title, size=15, weight=600)]
    for value, label in _y_ticks(y_low, y_high, log):
        y = at(x_low, value)[1]
        parts += [level(f"{y:.1f}", GRID), _text(left - 8, y + 4, label, "end", FAINT)]
    parts += [_text(at(x, y_low)[0], bottom + 18, f"{x:g}", "middle", FAINT) for x in ticks(x_low, x_high)]
    parts.append(level(f"{bottom}", FAINT))
    parts.append(_text((left + right) / 2, CHART[1] - 10, x_label, "middle", FAINT))
    parts.append(_text(16, (top + bottom) / 2, y_label, "middle", FAINT, turned=True))
    parts += [_drawn(s, [at(*p) for p in row], colour) for s, row, colour in zip(series, points, cycle(COLOURS))]
    for s, colour in reversed([*zip(series, cycle(COLOURS))]):
        parts.append(_text(right, 26, s.name, "end", colour, weight=600))
        right -= 7.2 * len(s.name) + 20
    return "\n".join([*parts, "</svg>\n"])


def _drawn(s: Series, points: Sequence[tuple[float, float]], colour: str) -> str:
    if s.dots:
        return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    look = 'stroke-width="1" opacity="0.35"' if s.faint else 'stroke-width="2"'
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-linejoin="round" {look}/>'


def _y_ticks(low: float, high: float, log: bool) -> list[tuple[float, str]]:
    """Return places and labels of round numbers; low and high are exponents of 10 if `log`."""
    if not log:
        return [(y, f"{y:g}") for y in ticks(low, high)]
    if high - low < 1:  # within one power of ten, round numbers of the range are better ticks
        return [(math.log10(v), f"{v:g}") for v in ticks(10**low, 10**high, 10)]
    steps = (1, 2, 5) if high - low < 3 else (1,)
    values = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in steps]
    return [(math.log10(v), f"{v:g}") for v in values if low <= math.log10(v) <= high]


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return round numbers in [low, high], about `about` of them."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def image_sheet(images: Array, captions: Sequence[str], wrong: Sequence[bool], *, title: str) -> str:
    """Return an SVG of grey images u8[n, h, w], each with a caption below. Captions marked `wrong` are red."""
    cell, gap, head = 56, 30, 48
    rows = -(-len(images) // COLUMNS)
    size = (COLUMNS * (cell + 8) + 24, head + rows * (cell + gap) + 8)
    parts = [_open(size), _text(16, 28, title, size=15, weight=600)]
    for k, image in enumerate(images):
        x, y = 16 + k % COLUMNS * (cell + 8), head + k // COLUMNS * (cell + gap)
        colour = WRONG if wrong[k] else RIGHT
        # magnified here, because viewers blur small images
        data = base64.b64encode(png(image.repeat(4, axis=0).repeat(4, axis=1))).decode()
        parts.append(f'<image x="{x}" y="{y}" width="{cell}" height="{cell}" href="data:image/png;base64,{data}"/>')
        parts.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="none" stroke="{GRID}"/>')
        weight = 700 if wrong[k] else 400
        parts.append(_text(x + cell / 2, y + cell + 15, captions[k], anchor="middle", colour=colour, weight=weight))
    return "\n".join([*parts, "</svg>\n"])


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of `values`, widened if it is empty."""
    if not values:
        return 0.0, 1.0
    lo, hi = min(values), max(values)
    return (lo, hi) if hi > lo else (lo - 0.5, hi + 0.5)


def _open(size: tuple[int, int]) -> str:
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'{FONT} font-size="12"><rect width="{width}" height="{height}" fill="{PAPER}"/>'
    )


def _text(
    x: float, y: float, text: str, anchor: str = "start", colour: str = INK, *, size: int = 12, weight: int = 400,
    turned: bool = False,
) -> str:  # fmt: skip
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}{turn}>{escape(text)}</text>'
