"""tools/count: its figures for a small package whose figures are known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import tool

TOOL = Path(__file__).parents[1] / "tools" / "count"
FILES = {
    "__init__.py": '"""A package."""\nfrom p.users.table import Table as Rows\n\n__all__ = ["Rows", "back"]\n',
    "roots.py": '''"""Roots."""

from __future__ import annotations

__all__ = ["cbrt", "sqrt"]


def sqrt(x: float) -> float:
    """The square root.

    Raises: ValueError if x < 0. As numpy.sqrt.
    """
    # Heron would be slower
    if x < 0 or x != x:
        raise ValueError(x)  # with the value
    return x**0.5


def cbrt(x: float) -> float:
    def inner() -> float:
        return x if x else 0.0

    text = """not a
    docstring"""
    return [inner() for _ in text if _][0]
''',
    "users/__init__.py": "",
    "users/calls.py": "from p.roots import sqrt\n\nTWO = sqrt(4)\n",
    "users/table.py": '''from typing import TYPE_CHECKING

from p.roots import cbrt, sqrt

if TYPE_CHECKING:
    from p.users.ring import Ring

TABLE = {"sqrt": sqrt}  # "sqrt"


class Table:
    """Of sqrt."""

    sqrt: float

    def get(self, ring: "Ring") -> float:
        if not ring:
            raise KeyError(ring)
        return cbrt(8)

    def _own(self) -> None: ...
''',
    "users/ring.py": "from .. import roots\nfrom . import back\nfrom .table import Table\n\n\nclass Ring(Table): ...\n",
    "users/back.py": "def back():\n    import p.users.ring\n",
    "page.js": "// no name\nconst ROWS = ['sqrt', 'cbrt']\nMath.sqrt(2)\n",
}


@pytest.fixture(scope="module")
def count() -> Any:
    return tool("count")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("count") / "p"
    for name, text in FILES.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return top


@pytest.fixture(scope="module")
def files(count: Any, root: Path) -> Any:
    return count.files_of(root)


def test_lines_of_code_are_without_comments_docstrings_and_blanks(files: Any) -> None:
    """A string that is no docstring counts."""
    assert {file.name: len(file.code_lines) for file in files} == {
        "__init__.py": 2, "roots.py": 12, "users/__init__.py": 0, "users/calls.py": 2, "users/table.py": 12,
        "users/ring.py": 4, "users/back.py": 2,
    }  # fmt: skip


def test_complexity_counts_decisions_of_the_function_itself(count: Any, files: Any) -> None:
    """`if` and `or`; in `cbrt` a comprehension and its condition, but not the choice of the function inside."""
    found = {f.name: (f.lines, f.complexity) for file in files for f in count.functions(file)}
    assert found == {
        "sqrt": (9, 3), "cbrt": (7, 3), "cbrt.inner": (2, 2), "Table.get": (4, 2), "Table._own": (1, 1), "back": (2, 1),
    }  # fmt: skip


def test_cycles_are_those_at_run_time(count: Any, files: Any) -> None:
    """An import inside a function counts, one under TYPE_CHECKING does not."""
    assert count.cycles_of(files) == [["p.users.back", "p.users.ring"]]
    assert count.cycles_of(files, for_types=True) == [["p.users.back", "p.users.ring", "p.users.table"]]


def test_places_are_lists_and_tables_but_no_calls(count: Any, root: Path, files: Any) -> None:
    op = count.Example("op", "sqrt", ("roots.py",), ("sqrt",), ("sqrt",))
    assert [(file, line) for file, line, _ in count.places(root, files, op)] == [
        ("users/table.py", 3), ("users/table.py", 8), ("users/table.py", 14), ("page.js", 2),
    ]  # fmt: skip


def test_a_call_is_a_place_where_the_example_says_so(count: Any, root: Path, files: Any) -> None:
    runtime = count.Example("runtime", "sqrt", ("roots.py", "users/t*.py"), ("sqrt",), (), calls=True)
    assert [(file, line) for file, line, _ in count.places(root, files, runtime)] == [
        ("users/calls.py", 1), ("users/calls.py", 3),
    ]  # fmt: skip


def test_docstrings_of_public_functions_and_methods(count: Any, files: Any) -> None:
    """Of sqrt, cbrt, Table.get and back one has a docstring, and of the two that raise it alone says so.

    `__init__` lists Table under another name, and a `back` that is not the function of that name.
    """
    rows = [line.split("  ") for line in count.docstrings(files).splitlines()[1:]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["all without an underscore", "1 of 4 (25 %)", "1 of 2 (50 %)", "1 of 4 (25 %)"],
        ["in an __all__", "1 of 3 (33 %)", "1 of 2 (50 %)", "1 of 3 (33 %)"],
    ]


def test_every_example_is_where_the_tool_looks(count: Any) -> None:
    """A renamed file or name must not make a count of places 0 without a word."""
    files = count.files_of(count.PACKAGE)
    texts = {file.name: file.text for file in files}
    for example in count.EXAMPLES:
        own = [path for pattern in example.files for path in count.PACKAGE.glob(pattern)]
        assert len(own) >= len(example.files), example
        assert all(any(word in text for text in texts.values()) for word in (*example.words, *example.texts)), example
        assert all(any(count.PACKAGE.glob(pattern)) for pattern in example.elsewhere), example
        own_texts = [path.read_text(encoding="utf-8") for path in own]
        assert any(word in text for text in own_texts for word in example.words), example


def test_the_command_prints_all_tables(root: Path) -> None:
    out = subprocess.run([sys.executable, TOOL, root], check=True, capture_output=True, text=True).stdout
    assert ["in", "all", "7", "61", "34"] in [line.split() for line in out.splitlines()]
    for line in ("files of less than 40 lines of code: 7", "functions: 6, of mean complexity 2.00",
                 "cycles of imports: 1", "  p.users.back p.users.ring"):  # fmt: skip
        assert line in out.splitlines()
    assert "places to touch" not in out
