"""What comes into the package and goes out of it: no code from files, no network, wheels of the same bytes."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[1]
ROOT = HERE / "src" / "tracegrad"
CODE_FROM_FILES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "runpy", "imp"}
NETWORK = {
    "urllib.request", "urllib.robotparser", "urllib3", "http.client", "ftplib", "imaplib", "nntplib", "poplib",
    "smtplib", "telnetlib", "xmlrpc", "socket", "socketserver", "ssl", "requests", "httpx", "aiohttp", "websockets",
}  # fmt: skip
LISTENS = {"commands/site.py"}  # tracegrad serve, to this computer only
# Every use of exec, eval and compile as a builtin, and whose text it is.
WRITTEN_HERE = {
    ("ir/evaluate.py", "function_of"): "the array rule of a row of the table, with operands named by number",
    ("ir/evaluate.py", "_compiled"): "the same",
    ("methods.py", "write"): "the entry of a public function, written from its signature",
    ("methods.py", "compiled"): "text written by this package: these entries, and plans of eager calls",
    ("imperative/spell.py", "defined"): "plans of eager calls, written from the table",
    ("runtime/cpu.py", "_bound"): "kernels that render/numpy.py wrote",
}


@cache
def sources() -> list[tuple[str, ast.Module]]:
    paths = sorted(ROOT.rglob("*.py"))
    return [(p.relative_to(ROOT).as_posix(), ast.parse(p.read_text(encoding="utf-8"))) for p in paths]


def uses(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Every call, and the innermost named function around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield inside, node
        name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else inside
        yield from uses(node, name)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of every import: of a name from a module, both."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((node.lineno, str(a.value)) for a in node.args[:1] if isinstance(a, ast.Constant))


def forbidden(tree: ast.AST, modules: Set[str]) -> list[tuple[int, str]]:
    """Imports of `modules` and of what lies in them."""
    return [(line, name) for line, name in imported(tree) if any(f"{name}.".startswith(f"{m}.") for m in modules)]


def test_no_module_that_makes_code_of_files_or_opens_connections_is_imported() -> None:
    for name, tree in sources():
        others = NETWORK if name in LISTENS else NETWORK | {"http"}
        assert not forbidden(tree, CODE_FROM_FILES | others), name


IMPORTS = (
    "import urllib.request", "from urllib import request", "from urllib.request import urlopen as o",
    "import http.client", "from http import client", "import ftplib as f", "def f():\n  import xmlrpc.client",
    "import_module('socket')",
)  # fmt: skip


@pytest.mark.parametrize("text", IMPORTS)
def test_an_import_of_a_module_that_opens_connections_is_found(text: str) -> None:
    assert forbidden(ast.parse(text), NETWORK)
    assert not forbidden(ast.parse("import urllib.parse, http.server\nfrom . import socket"), NETWORK)


def test_exec_and_eval_see_only_text_of_this_process() -> None:
    seen: set[tuple[str, str]] = set()
    for name, tree in sources():
        for inside, call in uses(tree):
            if isinstance(call.func, ast.Name) and call.func.id in ("exec", "eval", "compile", "__import__"):
                seen.add((name, inside))
    assert seen == set(WRITTEN_HERE), "say in WRITTEN_HERE whose text it is"


def test_no_call_lets_data_choose_code() -> None:
    """Modules are imported by constant names, shells are never used, numpy.load is never allowed to unpickle."""
    for name, tree in sources():
        for _, call in uses(tree):
            called = ast.unparse(call.func)
            where = f"{name}:{call.lineno}: {ast.unparse(call)}"
            if called.endswith("import_module"):
                constant = isinstance(call.args[0], ast.Constant)
                of_constants = tuple(
                    f"f'{x}'"
                    for x in (
                        "pyodide.{name}",
                        "tracegrad.{module}",
                        "tracegrad.{name}",
                        "tracegrad.nn.{module}",
                        "tracegrad.render.{self.module}",
                        "tracegrad.runtime.{name}",
                    )
                )
                assert constant or ast.unparse(call.args[0]) in of_constants, where
            assert called not in ("os.system", "os.popen", "ctypes.PyDLL"), where
            for keyword in call.keywords:
                assert keyword.arg not in ("shell", "allow_pickle") or ast.unparse(keyword.value) == "False", where


# In every Python process that a test starts: what opens a connection is refused and written down.
GUARD = """
import os, sys
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.bind", "urllib.Request"):
        open(os.environ["GUARDED"], "a").write(f"{event} {args[1:]}\\n")
        raise OSError(f"{event} is refused by the test")
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        open(os.environ["GUARDED"], "a").write(f"ran {os.path.basename(os.fsdecode(args[0]))}\\n")
sys.addaudithook(hook)
"""
EVERYTHING = """
import sys
import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.commands import cli
with tg.compile(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(tg.square(m(x))), inputs={"x": (4, 2)},
                optimizer=optim.adam(lr=0.1), device="cpu") as train:
    assert train.step(x=[[1.0, 2.0]] * 4).loss >= 0
    train.save("c.safetensors")
    train.load("c.safetensors")
    train.export("page", single_file=False)
assert cli.main(["inspect", "c.safetensors"]) == 0
assert cli.main(["demo", "sine", "--steps", "2", "--device", "cpu"]) == 0
tg.devices()
"""


def guarded(code: str, folder: Path) -> tuple[int, str, str]:
    """Exit code, errors and what was refused or run, of Python with the guard in it and in its children."""
    (folder / "sitecustomize.py").write_text(GUARD)
    log = folder / "log"
    log.touch()
    env = os.environ | {
        "PYTHONPATH": f"{folder}{os.pathsep}{HERE / 'src'}",
        "GUARDED": str(log),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TRACEGRAD_CC": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr, log.read_text()


def test_nothing_is_fetched_at_import_or_run_time(tmp_path: Path) -> None:
    """Compile, train, save, export, inspect, a demo, a look for devices: in this process and its children."""
    code, errors, log = guarded(EVERYTHING, tmp_path)
    assert code == 0, errors
    lines = set(log.splitlines())
    assert all(line.startswith("ran ") for line in lines), lines
    assert not {line.split()[1] for line in lines} & {"curl", "wget", "git", "pip", "npm", "ssh", "sh", "bash"}


def test_the_guard_sees_connections(tmp_path: Path) -> None:
    """Also those of children."""
    reach = "import socket; socket.create_connection(('127.0.0.1', 9))"
    code, errors, log = guarded(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {reach!r}])", tmp_path)
    assert code == 0 and "is refused by the test" in errors
    assert "socket." in log and f"ran {os.path.basename(sys.executable)}" in log


# Wheel and sdist
PARTS = ("src", "tests", "examples", "bench", "docs", "tools", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md",
         "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml", ".gitignore")  # fmt: skip
STRAY = shutil.ignore_patterns("__pycache__", ".pytest_cache", ".hypothesis", "*.pyc")
SHIPPED = {".py", ".js", ".ts", ".css", ".html", ".txt", ".npz", ".md", ".typed", ".pyi", ".toml"}


def copied(to: Path, when: int, mode: int) -> Path:
    """A copy of the source, with other times and permissions, and with caches in it."""
    to.mkdir(parents=True)
    for part in PARTS:
        if (HERE / part).is_dir():
            shutil.copytree(HERE / part, to / part, ignore=STRAY)
        else:
            shutil.copy(HERE / part, to / part)
    for path in to.rglob("*"):
        path.chmod(path.stat().st_mode & ~0o077 | mode | (mode if path.is_dir() else 0) >> 2)
        os.utime(path, (when, when))
    stray = to / "src" / "tracegrad" / "__pycache__" / "ir.cpython-311.pyc"
    stray.parent.mkdir()
    stray.write_bytes(str(when).encode())
    return to


def built(source: Path, umask: int, **more: str) -> dict[str, bytes]:
    """The files that tools/build makes, by name."""
    done = subprocess.run(
        [source / "tools" / "build"],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | more,
        umask=umask, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = {p.name: p.read_bytes() for p in (source / "dist").iterdir()}
    for name, data in made.items():
        assert f"{hashlib.sha256(data).hexdigest()}  {name}" in done.stdout
    return made


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source whose wheel and sdist are in dist/."""
    pytest.importorskip("hatchling", reason="tools/build needs it: pip install 'tracegrad[check]'")
    source = copied(tmp_path_factory.mktemp("first") / "tracegrad", 1_000_000_000, 0o044)
    built(source, 0o022, TZ="UTC")
    return source


def archive(source: Path, ending: str) -> Path:
    (path,) = (source / "dist").glob(f"*{ending}")
    return path


def test_builds_have_the_same_bytes(first: Path, tmp_path: Path) -> None:
    """In another folder, with another umask, time zone, date, hash seed, and from the sdist."""
    want = {p.name: p.read_bytes() for p in (first / "dist").iterdir()}
    assert len(want) == 2
    other = copied(tmp_path / "elsewhere" / "tg", 1_700_000_000, 0)
    change = {"TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": "5", "LC_ALL": "C"}
    assert built(other, 0o077, **change) == want
    with tarfile.open(archive(first, ".tar.gz")) as sdist:
        how: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.2 has no filters
        sdist.extractall(tmp_path, **how)
    (unpacked,) = tmp_path.glob("tracegrad-*")
    assert built(unpacked, 0o022) == want


def test_pypi_would_show_the_archives(first: Path) -> None:
    """The description is Markdown that PyPI renders, and the metadata are whole."""
    pytest.importorskip("twine", reason="tools/test installs it")
    files = [archive(first, ".whl"), archive(first, ".tar.gz")]
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout


def test_the_description_has_no_links_that_pypi_cannot_follow(first: Path) -> None:
    """PyPI shows no files of the repository. Links become absolute, and plain text without an address in pyproject."""
    with zipfile.ZipFile(archive(first, ".whl")) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith("/METADATA"))
        text = wheel.read(name).decode()
    assert "## Documentation" in text and not re.search(r"\]\((?!https://)", text)
    code = runpy.run_path(str(HERE / "tools" / "pypi_readme.py"))["rewritten"]
    given = "![A page](docs/a.gif) [FAQ](docs/faq.md#one) [here](#top) [other](https://example.org/x)"
    assert code(given, None, "v1") == " FAQ [here](#top) [other](https://example.org/x)"
    assert code(given, "https://example.org/me/tg/", "v1") == (
        "![A page](https://example.org/me/tg/raw/v1/docs/a.gif) "
        "[FAQ](https://example.org/me/tg/blob/v1/docs/faq.md#one) [here](#top) [other](https://example.org/x)"
    )


def test_the_wheel_holds_the_package_and_nothing_else(first: Path) -> None:
    with zipfile.ZipFile(archive(first, ".whl")) as wheel:
        names = set(wheel.namelist())
        (info,) = {n.partition("/")[0] for n in names if ".dist-info/" in n}
        metadata = wheel.read(f"{info}/METADATA").decode()
        modes = {i.external_attr >> 16 & 0o777 for i in wheel.infolist()}
    want = {p.relative_to(ROOT.parent).as_posix() for p in ROOT.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert {Path(n).suffix for n in want} <= SHIPPED
    assert {"tracegrad/py.typed", "tracegrad/js/tracegrad.js", "tracegrad/data/digits.npz"} < want
    about = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE",
             "licenses/src/tracegrad/data/README.md")  # fmt: skip
    assert names == want | {f"{info}/{name}" for name in about}
    assert modes == {0o644}
    assert "License-Expression: MIT AND CC-BY-4.0" in metadata


def test_the_data_and_their_licences_are_described() -> None:
    """Every file of data has a row with its source and licence."""
    said = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "data").iterdir():
        if path.name != "README.md":
            (row,) = [line for line in said.splitlines() if line.startswith(f"| `{path.name}`")]
            assert row.count("|") == 5 and row.split("|")[-2].strip()


def test_the_sdist_holds_what_tests_need_and_no_more(first: Path) -> None:
    with tarfile.open(archive(first, ".tar.gz")) as sdist:
        files = {Path(*Path(m.name).parts[1:]) for m in sdist.getmembers() if m.isfile()}
        owners = {(m.uid, m.gid, m.uname, m.gname) for m in sdist.getmembers()}
        assert not [m.name for m in sdist.getmembers() if m.name.endswith(".pyc") or "/dist/" in m.name]
    assert {f.parts[0] for f in files} == {*PARTS, "PKG-INFO"}
    assert {f for f in files if f.suffix == ".safetensors"} == {
        f.relative_to(HERE) for f in (HERE / "tests/corpus").rglob("*.safetensors")
    }, "what .gitignore leaves out"
    assert owners == {(0, 0, "", "")}


def test_dependencies_have_bounds() -> None:
    """A lower bound each; an exact version for what is compared with or stands in the wheel."""
    text = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("numpy>=", "wgpu>=0.32,<0.33", "jax>=", "torch==", "hatchling==", "hypothesis>=", "playwright>="):
        assert f'"{name}' in text, name
