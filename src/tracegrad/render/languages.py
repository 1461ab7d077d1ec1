"""The languages in which kernels are spelled. A new one is a file beside this one, and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracegrad.kernel_source import BoundLaunch
from tracegrad.render.c_calls import render_c
from tracegrad.render.numpy import render_numpy
from tracegrad.render.wgsl import render_serial_wgsl, render_wgsl

LANGUAGES: Mapping[str, Callable[[BoundLaunch], Any]] = {
    "wgsl": render_wgsl,
    "serial_wgsl": render_serial_wgsl,
    "numpy": render_numpy,
    "c": render_c,
}
