"""tools/prose: its figures for a text whose figures are known, and that no sentence of the project is long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import tool

PAGE = """# A heading of five words

One two three. Four five six seven, `a b c`! [Eight nine](x.md) ten?

- An item is a sentence
- Another item. With two sentences

```python
never = "read these words"
```

| a table | is not |
"""
MODULE = '''"""The first sentence. The second one is longer."""

LIMIT = 3  # what a comment says
# A comment of
# two lines.


def f(x: int) -> None:
    """Do it now.

    >>> f(1) + what is not read
    """
    if x:
        raise ValueError(f"x is {x}, which whoever called must change")
'''


@pytest.fixture(scope="module")
def prose() -> Any:
    return tool("prose")


def test_sentences_of_a_page_are_counted_without_code_tables_and_headings(prose: Any) -> None:
    assert [s.words for s in prose.of_markdown(PAGE)] == [3, 5, 3, 5, 3]


def test_docstrings_comments_and_messages_are_read(prose: Any) -> None:
    found = prose.of_python(MODULE)
    assert [s.text for s in found] == [
        "The first sentence.", "The second one is longer.", "Do it now.", "x is , which whoever called must change",
        "what a comment says", "A comment of two lines.",
    ]  # fmt: skip
    assert len(prose.DOUBTFUL.findall(found[3].text)) == 1


SCRIPT = """// One two three.
/** Four five
 * six seven. */
const url = "http://never.read/these/words"; // eight nine ten
throw inputError(`eleven is ${x}, not twelve`);
"""


def test_comments_and_messages_of_javascript_are_read(prose: Any) -> None:
    found = [s.text for s in prose.of_javascript(SCRIPT)]
    assert found == ["One two three.", "Four five six seven.", "eight nine ten", "eleven is ${x}, not twelve"]


def test_no_sentence_of_the_project_is_long(prose: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["prose", "--check"])
    assert prose.main() == 0, capsys.readouterr().out


def test_a_long_sentence_is_found(prose: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A sentence of " + "many " * 28 + "words.")
    monkeypatch.setattr("sys.argv", ["prose", "--check", str(page)])
    assert prose.main() == 1
