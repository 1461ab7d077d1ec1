"""The glossary of docs/architecture.md names each term once, with files that use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
TEXT = (
    (HOME / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Glossary\n")[2].partition("\n## ")[0]
)
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")][
    1:
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_term_occurs_in_each_of_its_files(row: list[str]):
    terms, _, where = row
    files = re.findall(r"`([^`]+)`", where)
    assert files
    words = [re.escape(term.partition(" (")[0]) for term in terms.split(", ")]
    for file in files:
        text = (HOME / "src" / "tracegrad" / file).read_text(encoding="utf-8")
        apart = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)  # ThreadDrive uses `drive`
        assert re.search(r"\b(" + "|".join(words) + ")", apart, re.IGNORECASE), f"{file} knows none of {words}"


def test_no_term_stands_twice():
    """A word with two meanings is followed by what it belongs to, as in `plan (of a program)`."""
    terms = [term for row in ROWS for term in row[0].split(", ")]
    assert len(terms) > 40
    assert sorted(set(terms)) == sorted(terms)
