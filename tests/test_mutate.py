"""tools/mutate: what it changes, and that a change reaches functions that live already."""

from __future__ import annotations

import ast
import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import tool

SOURCE = '''
from __future__ import annotations
LIMIT = 3
RULE = lambda a, b: a * b + 1
def f(x: int, more: int = 5) -> int:
    """Doc."""
    if x < 3 and more:
        raise ValueError(f"{x + 1}")
    return [k for k in range(x) if k % 2] or -x or -7
'''


@pytest.fixture(scope="module")
def mutate() -> Any:
    return tool("mutate")


@pytest.fixture(scope="module")
def mutations(mutate: Any) -> Any:
    return sys.modules["mutations"]  # the tool puts its folder on the path


def test_every_change_of_behaviour_is_a_mutant(mutations: Any) -> None:
    """Operators, numbers, conditions; no annotation, default, message or constant of the module."""
    assert {m.what for m in mutations.mutants(SOURCE)} == {
        "a * b + 1 -> a * b - 1", "a * b -> a + b", "1 -> 2",
        "if x < 3 and more -> if not", "x < 3 and more -> x < 3 or more", "x < 3 -> x <= 3", "3 -> 4",
        "[k for k in range(x) if k % 2] or -x or -7 -> [k for k in range(x) if k % 2] and -x and -7",
        "if k % 2 -> always", "k % 2 -> k // 2", "2 -> 3", "-x -> x", "-7 -> 7",
    }  # fmt: skip


def test_each_mutant_compiles_and_differs(mutations: Any) -> None:
    for m in mutations.mutants(SOURCE):
        tree = mutations.changed(SOURCE, m)
        compile(tree, "<mutant>", "exec")
        assert ast.unparse(tree) != ast.unparse(ast.parse(SOURCE)), m


def test_living_functions_get_the_change(mutations: Any, tmp_path: Path) -> None:
    """Lambdas of tables, and closures that were made before, also those that the collector does not look at."""
    path = tmp_path / "live.py"
    path.write_text("make = lambda k: lambda x: x + k\nTABLE = {'a': lambda a, b: a - b, 'b': lambda a, b: a * b}\n")
    scope: dict[str, Any] = {}
    source = path.read_text()
    exec(compile(source, str(path), "exec", flags=annotations.compiler_flag), scope)
    add_two, table = scope["make"](2), scope["TABLE"]
    gc.freeze()  # as tests/conftest.py does
    assert (add_two(5), table["a"](5, 2), table["b"](5, 2)) == (7, 3, 10)
    for what, want in (("x + k -> x - k", (3, 3, 10)), ("a * b -> a + b", (7, 3, 7))):
        (mutant,) = [m for m in mutations.mutants(source) if m.what == what]
        undo = {f: f.__code__ for f in (add_two, *table.values())}
        assert mutations.put_in(str(path), source, mutant, mutations.living(str(path))) >= 3
        assert (add_two(5), table["a"](5, 2), table["b"](5, 2)) == want
        for f, code in undo.items():
            f.__code__ = code
    gc.freeze()


@pytest.mark.parametrize(
    ("fixtures", "own", "needs"),
    [
        (("device",), {}, True),
        (("webgpu",), {"n": 1}, True),
        (("device",), {"device": "cpu"}, False),
        (("device",), {"device": "webgpu"}, True),
        (("device_name",), {"device_name": "webgpu"}, True),
        (("device_name",), {"device_name": "c"}, False),
    ],
)
def test_a_test_whose_device_is_a_name_needs_no_gpu(mutate: Any, fixtures: Any, own: Any, needs: bool) -> None:
    item = SimpleNamespace(name="test_a", fixturenames=fixtures, callspec=SimpleNamespace(params=own))
    assert mutate.needs_gpu(item) is needs


def test_files_tests_and_kept_mutants_exist(mutate: Any) -> None:
    """Every file and test module of the tool exists, and every mutant kept as equivalent is still one."""
    assert all((mutate.HOME / mutate.SRC / name).is_file() for name in mutate.FILES)
    assert all((mutate.HOME / "tests" / f"{t}.py").is_file() for t in mutate.TESTS)
    for name, known in mutate.kept().items():
        there = {(m.line, m.what) for m in mutate.mutants((mutate.HOME / mutate.SRC / name).read_text())}
        assert known <= there, f"{name}: remove from tests/mutants.md: {known - there}"
