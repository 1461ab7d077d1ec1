"""A browser compiles WGSL by other rules than wgpu: every row's shaders must pass both, those with barriers too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from all_cases import ALL_CASES
from browser import browser, open_page, served, shader_messages
from test_kernels import program_of

__all__ = ["browser", "served"]  # fixtures
AT_A_TIME = 100


def test_browsers_accept_the_shaders_of_every_row(browser: Any, served: tuple[str, Path]) -> None:
    """SwiftShader takes the form without barriers, so no page of the other tests compiles the form for GPUs."""
    kernels = [k for case in ALL_CASES for k in program_of(case).kernels]
    texts = sorted({text for k in kernels for text in (k.wgsl, k.serial_wgsl or k.wgsl)})
    assert len(texts) > len(ALL_CASES) and any("workgroupBarrier" in text for text in texts)
    page = open_page(browser, f"{served[0]}/blank.html")
    for first in range(0, len(texts), AT_A_TIME):
        assert shader_messages(page, texts[first : first + AT_A_TIME]) == []
