"""Adapters that an earlier process found: used only where nothing changed, and never by one that may crash twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from test_adapters import chosen, fake, says
from tracegrad.errors import DeviceError
from tracegrad.runtime import adapter_probe, adapters as finding, remembered
from tracegrad.runtime.wgpu_adapter import AdapterInfo

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kept on POSIX systems only")
ROWS = [fake("RTX", "DiscreteGPU")]
SRC = str(Path(__file__).parent.parent / "src")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache directory of its own, and a child that says ROWS."""
    for name in (remembered.VARIABLE, "VK_DRIVER_FILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(finding, "may_have_gpu", lambda: True)
    monkeypatch.setattr(adapter_probe, "PROBE", says(*ROWS))
    adapter_probe.ANSWERS.clear()
    yield tmp_path / "tracegrad"
    adapter_probe.ANSWERS.clear()


def another_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Act as if this process had just begun, and return the list of later questions to a child."""
    adapter_probe.ANSWERS.clear()
    asked: list[str] = []
    start = adapter_probe.started_child

    def counted() -> subprocess.Popen[bytes] | None:
        asked.append("child")
        return start()

    monkeypatch.setattr(adapter_probe, "started_child", counted)
    return asked


def test_the_second_process_asks_no_child(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = chosen("webgpu")
    asked = another_process(monkeypatch)
    assert chosen("webgpu") == first and chosen("auto") == first
    assert asked == [] and len(list(cache.glob("adapters-*.json"))) == 1
    assert finding.check_webgpu().adapter == first and asked == ["child"]  # who asks in words hears what is so now


def test_what_may_crash_is_not_remembered_until_it_has_not(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen("webgpu")
    another_process(monkeypatch)

    def crashing(adapter: AdapterInfo) -> None:
        assert not list(cache.glob("adapters-*.json"))  # a crash here leaves nothing behind
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finding.opened(finding.search("webgpu"), crashing)
    asked = another_process(monkeypatch)
    chosen("webgpu")
    assert asked == ["child"]


def test_an_adapter_that_does_not_open_is_asked_for_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered.keep([fake("gone", "DiscreteGPU")])
    asked = another_process(monkeypatch)

    def picky(adapter: AdapterInfo) -> str:
        if adapter.name == "gone":
            raise DeviceError("gone (Vulkan) is no longer available")
        return adapter.name

    assert finding.opened(finding.search("webgpu"), picky) == "RTX" and asked == ["child"]
    another_process(monkeypatch)
    assert finding.opened(finding.search("webgpu"), picky) == "RTX"


@pytest.mark.parametrize("change", ["variable", "manifest", "library", "boot", "switched off"])
def test_a_change_forgets(change: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest, library = tmp_path / "icd.json", tmp_path / "lib.so"
    library.write_text("1")
    manifest.write_text(json.dumps({"ICD": {"library_path": str(library)}}))
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(manifest))
    chosen("webgpu")
    asked = another_process(monkeypatch)
    chosen("webgpu")
    assert asked == []
    if change == "variable":
        monkeypatch.setenv("MESA_VK_DEVICE_SELECT", "1")
    elif change == "manifest":
        os.utime(manifest, (1, 1))
    elif change == "library":
        library.write_text("another")
    elif change == "boot":
        monkeypatch.setattr(remembered, "FACTS", (str(library),))
    else:
        monkeypatch.setenv(remembered.VARIABLE, "always")
    asked = another_process(monkeypatch)
    chosen("webgpu")
    assert asked == ["child"]


@pytest.mark.parametrize("junk", ["", "{", "[]", "[" * 100_000, '{"rows": 2}', None])
def test_damaged_files_are_not_believed(junk: str | None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen("webgpu")
    (path,) = cache.glob("adapters-*.json")
    if junk is None:
        path.write_text(json.dumps({"rows": [{"info": 3}]}))
    else:
        path.write_text(junk)
    asked = another_process(monkeypatch)
    assert chosen("webgpu") is not None and asked == ["child"]


def test_a_file_that_others_could_have_written_is_not_believed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen("webgpu")
    (path,) = cache.glob("adapters-*.json")
    path.chmod(0o666)
    asked = another_process(monkeypatch)
    chosen("webgpu")
    assert asked == ["child"]


def test_many_at_once_see_all_of_it_or_nothing(cache: Path) -> None:
    seen: list[object] = []

    def work() -> None:
        for _ in range(20):
            remembered.keep([*ROWS])
            seen.append(remembered.take())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(rows in (None, ROWS) for rows in seen) and ROWS in seen
    assert not list(cache.glob("new-*"))


def test_no_answer_is_kept_of_a_machine_without_adapters(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_probe, "PROBE", "import os; os.abort()")
    with pytest.raises(DeviceError, match="crashed"):
        chosen("webgpu")
    assert chosen("auto") is None and not list(cache.glob("*"))


def test_a_process_that_trains_leaves_what_the_next_one_uses(webgpu: None, tmp_path: Path) -> None:
    code = """
import sys, warnings; warnings.simplefilter("ignore")
import tracegrad as tg
from tracegrad.runtime import adapter_probe
if sys.argv[1] == "trust":
    adapter_probe.started_child = None  # asking would raise
from models import sine
train = tg.compile(**sine(8, 4).arguments(), seed=1, device="webgpu")
print(train.step(x=[[0.5]] * 8, y=[[0.1]] * 8).loss)
"""
    path = os.pathsep.join([SRC, str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path), remembered.VARIABLE: ""}
    run = lambda mode: subprocess.run(
        [sys.executable, "-c", code, mode], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    first, second = run("ask"), run("trust")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout and first.stderr == second.stderr == ""


def test_where_only_software_is_remembered_auto_loads_no_wgpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_probe, "PROBE", says(fake("llvmpipe", "CPU")))
    assert chosen("auto") is None
    asked = another_process(monkeypatch)
    loaded: list[str] = []
    monkeypatch.setattr(finding, "load_wgpu", lambda: loaded.append("wgpu"))
    assert chosen("auto") is None and asked == loaded == []
    assert chosen("webgpu") is not None and loaded == ["wgpu"]


TYPES = """
import cffi.cparser, sys
from tracegrad.runtime.wgpu_adapter import load_wgpu
parsed, parse = [], cffi.cparser.Parser._parse
cffi.cparser.Parser._parse = lambda self, source: parsed.append(len(source)) or parse(self, source)
if sys.argv[1] == "known":
    load_wgpu()
import wgpu
from wgpu.backends.wgpu_native import ffi, lib
print(sum(n > 50_000 for n in parsed))
typedefs, structs, unions = ffi.list_types()
print(typedefs, structs, unions)
def told(t):  # the ways to read a header name a type with or without const
    return t.kind, t.cname.rstrip("*") == "void " or t.kind == "void" or ffi.sizeof(t)
for n in dir(lib):
    if n.startswith("wgpu"):
        t = ffi.typeof(getattr(lib, n))
        print(n, told(t.result), [told(x) for x in t.args])
def constant(name):
    try:
        return getattr(lib, name)
    except Exception:  # one that is no integer
        return None
print([(n, constant(n)) for n in dir(lib) if n.startswith("WGPU")])
for t in (ffi.typeof(n) for n in typedefs if ffi.typeof(n).kind == "struct" and ffi.typeof(n).fields):
    print(t.cname.split()[-1], ffi.sizeof(t), [(n, told(f.type), f.offset) for n, f in t.fields])
"""


def types_of(cache: Path, how: str = "known") -> tuple[int, str]:
    """How often a new process parses wgpu's header, and what it knows of C's types, functions and constants."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent), "PYTHONPATH": SRC}
    command = [sys.executable, "-c", TYPES, how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    parsed, _, known = done.stdout.partition("\n")
    return int(parsed), known


@pytest.mark.skipif(find_spec("wgpu") is None, reason="needs wgpu")
def test_the_header_is_parsed_by_one_process_only(cache: Path) -> None:
    parsed, known = types_of(cache, "parsed")
    assert parsed == 1 and len(known) > 50_000
    assert types_of(cache) == (1, known)
    assert types_of(cache) == (0, known)
    (path,) = cache.glob("types-*")
    assert remembered.types_file() == path
    text = path.read_bytes()
    for spoil in (lambda: path.chmod(0o666), lambda: path.write_bytes(text[:-9]),
                  lambda: path.write_bytes(text.replace(b"_version", b"_versions"))):  # fmt: skip
        spoil()
        assert types_of(cache) == (1, known)  # others could have written it; it is damaged
        assert types_of(cache) == (0, known)


@pytest.mark.skipif(find_spec("wgpu") is None, reason="needs wgpu")
def test_without_a_place_to_keep_them_types_are_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "wgpu", raising=False)
    assert len(remembered.types()) > 50_000 and not list(tmp_path.glob("tracegrad/*"))
