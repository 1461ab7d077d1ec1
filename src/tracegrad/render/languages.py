"""The languages that kernels are rendered in. A new language is a file in this folder and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tracegrad.kernel_source import BoundLaunch
from tracegrad.render.c_calls import render_c
from tracegrad.render.numpy import render_numpy
from tracegrad.render.wgsl import render_serial_wgsl, render_wgsl


class Language(NamedTuple):
    """One language."""

    spell: Callable[[BoundLaunch], Any]  # gives what a runtime reads
    sized: bool = False  # does it spell extents that a run decides? Else only grids follow a run's size


LANGUAGES: Mapping[str, Language] = {
    "wgsl": Language(render_wgsl),
    "serial_wgsl": Language(render_serial_wgsl),
    "numpy": Language(render_numpy, sized=True),
    "c": Language(render_c, sized=True),
}
