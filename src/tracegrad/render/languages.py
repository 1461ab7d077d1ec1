"""The languages that kernels are rendered in. A new language is a file in this folder and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from tracegrad.kernel_source import BoundLaunch, BoundLoop, Shader


class Language(NamedTuple):
    """One language. Its module is imported when a kernel is first spelled: most processes need one of several."""

    module: str  # in this folder
    function: str  # returns the text that a runtime reads
    gpu: bool = False  # True if grids depend on the size of a run; otherwise loops do

    def spell(self, launch: BoundLaunch) -> Any:
        """Return the launch in this language."""
        return getattr(import_module(f"tracegrad.render.{self.module}"), self.function)(launch)


LANGUAGES: Mapping[str, Language] = {
    "wgsl": Language("wgsl", "render_wgsl", gpu=True),
    "serial_wgsl": Language("wgsl", "render_serial_wgsl", gpu=True),
    "numpy": Language("numpy", "render_numpy"),
    "c": Language("c_launch", "render_c"),
}


def loop_in_wgsl(loop: BoundLoop) -> Shader:
    """Return the shader that runs all iterations of a loop in one launch."""
    return import_module("tracegrad.render.wgsl_loop").render_loop(loop)
