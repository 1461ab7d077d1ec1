"""The recipes of docs/cookbook: both programs of each page run, and neither is longer than a page."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from pages import DOCS, NAV, blocks, run

PAGES = sorted(p for p in (DOCS / "cookbook").glob("*.md") if p.name != "index.md")
LONGEST = 35  # lines of a program


def programs(page: Path) -> dict[str, str]:
    """The program of each tab."""
    parts = re.split(r'^=== "(\w+)"\n', page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {name: blocks(textwrap.dedent(body))[0].code for name, body in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_program_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(programs(page)["tracegrad"], page.stem, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_pytorchs_program_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    run(programs(page)["PyTorch"], page.stem, tmp_path, monkeypatch)


def test_there_are_thirty_recipes_of_a_page_each() -> None:
    assert len(PAGES) >= 30
    for page in PAGES:
        for name, program in programs(page).items():
            assert len(program.splitlines()) <= LONGEST, f"{page.name}: {name}"


def test_the_index_lists_every_recipe() -> None:
    text = (DOCS / "cookbook" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        question = page.read_text(encoding="utf-8").splitlines()[0][2:]
        assert f"[{question}]({page.name})" in text, f"add '{question}' to docs/cookbook/index.md"
    assert "cookbook/index.md" in NAV
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"{len(PAGES)} questions" in readme, f"README.md counts the recipes: there are {len(PAGES)}"
