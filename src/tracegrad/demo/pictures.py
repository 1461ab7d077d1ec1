"""Pictures without dependencies: PNG from arrays, SVG line charts, and a sheet of small images with captions."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """Return a PNG file of `pixels`: u8[h, w] is grey, u8[h, w, 3] is RGB."""
    height, width = pixels.shape[:2]
    colour_type = 2 if pixels.ndim == 3 else 0
    rows = np.ascontiguousarray(pixels, np.uint8).reshape(height, -1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # filter 0 in front of each row

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def smooth(y: Sequence[float] | Array, window: int) -> Array:
    """Return the trailing mean over `window` values, over fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(y, np.float64))])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
) -> str:
    """Return an SVG of `series` over common axes. `log` makes the y axis logarithmic, and leaves out y <= 0."""
    frame = _Frame.around(series, log, CHART)
    parts = [_open(CHART), _text(frame.left, 26, title, size=15, weight=600)]
    parts += frame.axes(x_label, y_label)
    parts += [frame.draw(s, COLOURS[k % len(COLOURS)]) for k, s in enumerate(series)]
    parts += _legend(series, frame)
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True, slots=True)
class _Frame:
    """The map from data to positions on the page."""

    size: tuple[int, int]
    log: bool
    x_range: tuple[float, float]
    y_range: tuple[float, float]  # exponents of 10 if `log`
    left: float = 64.0
    right: float = 20.0
    top: float = 44.0
    bottom: float = 48.0

    @staticmethod
    def around(series: Sequence[Series], log: bool, size: tuple[int, int]) -> _Frame:
        xs = np.concatenate([np.asarray(s.x, np.float64) for s in series])
        ys = np.concatenate([np.asarray(s.y, np.float64) for s in series])
        ys = ys[np.isfinite(ys) & ((ys > 0) | (not log))]
        ys = np.log10(ys) if log else ys
        x_range, y_range = _spread(xs), _spread(ys)
        pad = 0.04 * (y_range[1] - y_range[0])
        return _Frame(size, log, x_range, (y_range[0] - pad, y_range[1] + pad))

    def at_x(self, x: float) -> float:
        lo, hi = self.x_range
        return self.left + (x - lo) / (hi - lo) * (self.size[0] - self.left - self.right)

    def at_y(self, y: float) -> float:
        lo, hi = self.y_range
        return self.size[1] - self.bottom - (y - lo) / (hi - lo) * (self.size[1] - self.top - self.bottom)

    def axes(self, x_label: str, y_label: str) -> Iterator[str]:
        (width, height), base = self.size, self.size[1] - self.bottom
        for y, label in self.y_ticks():
            at = self.at_y(y)
            yield f'<line x1="{self.left}" x2="{width - self.right}" y1="{at:.1f}" y2="{at:.1f}" stroke="{GRID}"/>'
            yield _text(self.left - 8, at + 4, label, anchor="end", colour=FAINT)
        for x in ticks(*self.x_range):
            yield _text(self.at_x(x), base + 18, f"{x:g}", anchor="middle", colour=FAINT)
        yield f'<line x1="{self.left}" x2="{width - self.right}" y1="{base}" y2="{base}" stroke="{FAINT}"/>'
        yield _text((self.left + width - self.right) / 2, height - 10, x_label, anchor="middle", colour=FAINT)
        yield _text(16, (self.top + base) / 2, y_label, anchor="middle", colour=FAINT, turned=True)

    def y_ticks(self) -> list[tuple[float, str]]:
        lo, hi = self.y_range
        if not self.log:
            return [(y, f"{y:g}") for y in ticks(lo, hi)]
        if hi - lo < 1:  # within one power of ten, round numbers of the range are better ticks
            return [(math.log10(v), f"{v:g}") for v in ticks(10**lo, 10**hi, 10)]
        steps = (1, 2, 5) if hi - lo < 3 else (1,)
        values = [m * 10.0**e for e in range(math.floor(lo), math.ceil(hi) + 1) for m in steps]
        return [(math.log10(v), f"{v:g}") for v in values if lo <= math.log10(v) <= hi]

    def draw(self, s: Series, colour: str) -> str:
        points = [
            (self.at_x(float(x)), self.at_y(math.log10(y) if self.log else float(y)))
            for x, y in zip(s.x, s.y, strict=True)
            if math.isfinite(y) and (y > 0 or not self.log)
        ]
        if s.dots:
            return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        look = 'stroke-width="1" opacity="0.35"' if s.faint else 'stroke-width="2"'
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-linejoin="round" {look}/>'


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


def _spread(values: Array) -> tuple[float, float]:
    """Return the range of `values`, widened if it is empty."""
    if not len(values):
        return 0.0, 1.0
    lo, hi = float(values.min()), float(values.max())
    return (lo, hi) if hi > lo else (lo - 0.5, hi + 0.5)


def _legend(series: Sequence[Series], frame: _Frame) -> Iterator[str]:
    x = frame.size[0] - frame.right
    for k in reversed(range(len(series))):
        yield _text(x, 26, series[k].name, anchor="end", colour=COLOURS[k % len(COLOURS)], weight=600)
        x -= 7.2 * len(series[k].name) + 20


def _open(size: tuple[int, int]) -> str:
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'{FONT} font-size="12"><rect width="{width}" height="{height}" fill="{PAPER}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = INK,
    size: int = 12,
    weight: int = 400,
    turned: bool = False,
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}{turn}>{escape(text)}</text>'
