"""C kernels as loaded libraries: the cache trusts nothing it did not make, and without a compiler all works too."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from models import SineMLP, sine_loss
from tracegrad import optim
from tracegrad.render.c_engine import ENGINE
from tracegrad.runtime import c_compiler as module, cpu
from tracegrad.runtime.c_calls import CallList
from tracegrad.runtime.c_compiler import VARIABLE, Compiler, compiler_named
from tracegrad.runtime.cache import cache_folder, digest, is_own

SOURCE = "int answer(void) { return 42; }"
SHAPES = {"x": (32, 1), "y": (32, 1)}


@pytest.fixture
def cc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """This machine's compiler, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = compiler_named("")
    if found is None:
        pytest.skip("no C compiler")
    return found


def answer(library: ctypes.CDLL | None) -> int:
    assert library is not None
    return library.answer()


def libraries() -> list[Path]:
    return list(cache_folder().rglob("*.so"))


def entries() -> list[Path]:
    return [p for p in cache_folder().rglob("*") if not p.is_dir()]


def test_a_library_is_compiled_once(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    assert answer(cc.library(SOURCE)) == 42
    assert len(libraries()) == 1
    assert entries() == libraries()
    monkeypatch.setattr(module.subprocess, "run", None)  # compiling again would fail
    assert answer(cc.library(SOURCE)) == 42


def test_another_source_compiler_or_processor_is_another_library(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    for changed in (SOURCE + "\n", SOURCE):
        cc.library(changed)
    Compiler(cc.path, "another version").library(SOURCE)
    monkeypatch.setattr(module, "processor", lambda: "another")
    cc.library(SOURCE)
    assert len(libraries()) == 4


def spoil_bytes(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()  # not in place: this process has the old one loaded
    path.write_bytes(data[: len(data) // 2])
    path.chmod(0o700)


def spoil_permissions(path: Path) -> None:
    path.chmod(0o777)


def spoil_kind(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("spoil", [spoil_bytes, spoil_permissions, spoil_kind])
def test_a_spoiled_library_is_made_anew(cc: Compiler, spoil: Callable[[Path], None]):
    cc.library(SOURCE)
    (path,) = libraries()
    spoil(path)
    assert answer(cc.library(SOURCE)) == 42
    (path,) = libraries()
    assert is_own(path)
    assert path.stem.endswith(digest(path.read_bytes()))


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_to_is_not_used(cc: Compiler, mode: int):
    folder = cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match="others may write to it"):
        assert answer(cc.library(SOURCE)) == 42
    assert not list(folder.iterdir())


def test_a_folder_of_another_user_is_not_used(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    cache_folder()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(RuntimeWarning, match="another user"):
        assert answer(cc.library(SOURCE)) == 42


def test_processes_at_the_same_time_do_not_disturb_each_other(cc: Compiler):
    code = (
        "from tracegrad.runtime.c_compiler import compiler_named\n"
        f"for k in range(5): assert compiler_named('').library({SOURCE!r} + f'int n{{k}};').answer() == 42"
    )
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", code]) for _ in range(4)]
    assert [p.wait(timeout=120) for p in running] == [0] * 4
    assert all(path.stem.endswith(digest(path.read_bytes())) for path in libraries())


def used(library: Path, seconds_ago: float) -> None:
    when = time.time() - seconds_ago
    os.utime(library, (when, when))


def test_the_libraries_used_longest_ago_make_room(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FOLDER_DIGITS", 0)
    cc.library(SOURCE)
    (first,) = libraries()
    size = first.stat().st_size
    monkeypatch.setattr(module, "MOST_BYTES", 3 * size + size // 2)
    used(first, 300)
    for k in range(2):
        cc.library(f"{SOURCE} int n{k};")
    second, third = [p for p in libraries() if p != first]
    used(second, 200)
    used(third, 100)
    other = cache_folder() / "verdicts-of-a-device"
    other.write_bytes(b"x" * 10 * size)  # small in truth, and of use to every program
    loaded = cc.library(SOURCE)  # a use, which compiles nothing and deletes nothing
    assert len(libraries()) == 3
    another = cc.library(f"{SOURCE} int another;")
    assert len(libraries()) == 3 and second not in libraries() and other.exists()
    monkeypatch.setattr(module, "MOST_BYTES", 0)
    last = cc.library(f"{SOURCE} int last;")
    assert not libraries() and [answer(x) for x in (loaded, another, last)] == [42] * 3  # open files stay


def test_each_folder_has_its_part_of_the_bytes_and_looks_through_itself_alone(
    cc: Compiler, monkeypatch: pytest.MonkeyPatch
):
    for k in range(40):
        cc.library(f"{SOURCE} int n{k};")
    folders = {p.parent.name for p in libraries()}
    assert folders <= set("0123456789abcdef") and len(folders) > 8
    assert all(p.name.startswith(p.parent.name) for p in libraries())
    size = max(p.stat().st_size for p in libraries())
    monkeypatch.setattr(module, "MOST_BYTES", 16 * (2 * size + size // 2))
    before = set(libraries())
    cc.library(f"{SOURCE} int last;")
    (new,) = set(libraries()) - before
    assert len(list(new.parent.iterdir())) <= 2
    assert {p for p in before if p.parent != new.parent} == {p for p in libraries() if p.parent != new.parent}


def test_a_library_that_another_process_deletes_is_made_anew(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    cc.library(SOURCE)
    find = module.find

    def found_too_late(folder: Path, key: str) -> Path | None:
        path = find(folder, key)
        assert path is not None
        path.unlink()
        return path

    monkeypatch.setattr(module, "find", found_too_late)
    assert answer(cc.library(SOURCE)) == 42
    assert len(libraries()) == 1


def test_processes_that_delete_each_others_libraries_go_on(cc: Compiler):
    code = (
        "from tracegrad.runtime import c_compiler\n"
        "c_compiler.FOLDER_DIGITS, c_compiler.MOST_BYTES = 0, 20_000\n"
        "for k in range(12):\n"
        f"    found = c_compiler.compiler_named('').library({SOURCE!r} + f'int n{{k % 4}};')\n"
        "    assert found.answer() == 42"
    )
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", code]) for _ in range(3)]
    assert [p.wait(timeout=120) for p in running] == [0] * 3
    assert sum(p.stat().st_size for p in libraries()) <= 20_000


def losses(monkeypatch: pytest.MonkeyPatch, cc: str) -> list[float]:
    """Five steps of a small network with that compiler."""
    monkeypatch.setenv(VARIABLE, cc)
    optimizer = optim.adamw(lr=1e-3)
    train = tg.compile(model=SineMLP(16), loss=sine_loss, inputs=SHAPES, optimizer=optimizer, seed=0, device="cpu")
    x = np.random.default_rng(0).uniform(-3, 3, (32, 1)).astype(np.float32)
    found = [float(train.step({"x": x, "y": np.sin(x)}).loss) for _ in range(5)]
    train.close()
    return found


def test_training_is_the_same_in_c_and_repeats_bit_for_bit(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    first, again, numpy = (losses(monkeypatch, how) for how in ("", "", "off"))
    assert first == again
    np.testing.assert_allclose(first, numpy, rtol=1e-5)


def test_the_number_of_a_programs_libraries_changes_no_bit(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    """Tests have one library a program, users up to four."""
    made: list[int] = []
    begun = cpu.CpuSession._begun
    monkeypatch.setattr(cpu, "C_SOURCE", 500)
    monkeypatch.setattr(cpu, "processors", lambda: 4)
    monkeypatch.setattr(cpu.CpuSession, "_begun", lambda *a: (x := begun(*a), made.append(len(x)))[0])
    one = losses(monkeypatch, "")
    monkeypatch.setattr(cpu, "C_SOURCES", 4)
    assert losses(monkeypatch, "") == one
    assert made[0] == 2 and made[-1] > 2  # with the engine


def test_a_failing_compiler_says_so_and_numpy_takes_over(cc: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\necho out of order >&2\nexit 1\n')
    broken.chmod(0o700)
    with pytest.warns(RuntimeWarning, match="out of order"):
        found = losses(monkeypatch, str(broken))
    assert found == losses(monkeypatch, "off")


def test_a_compiler_that_crashes_is_asked_for_less(cc: Compiler, tmp_path: Path):
    crashing = tmp_path / "crashing"
    crashing.write_text(
        f'#!/bin/sh\ncase " $* " in *" -O3 "*) echo "c.c:1: internal compiler error: in a pass" >&2; exit 1;; esac\n'
        f'exec {cc.path} "$@"\n'
    )
    crashing.chmod(0o700)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(replace(cc, path=str(crashing)).library(SOURCE)) == 42


def test_without_a_compiler_it_is_numpy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    compiler_named.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiler_named("") is None
    with pytest.warns(RuntimeWarning, match="is not a C compiler"):
        assert compiler_named("nonesuch") is None
    compiler_named.cache_clear()


def test_devices_say_what_compiles_their_kernels(cc: Compiler, monkeypatch: pytest.MonkeyPatch):
    describe = lambda: next(d.description for d in tg.devices() if d.name == "cpu")
    monkeypatch.setenv(VARIABLE, "")
    assert cc.version in describe()
    monkeypatch.setenv(VARIABLE, "off")
    assert describe() == "NumPy, without a C compiler, on this machine's CPU"


COUNTING = """
void mark(void **at, long part, long parts) {
  for (long *p = at[0], k = 700 * part / parts, end = 700 * (part + 1) / parts; k < end; k++)
    __atomic_add_fetch(p + k, 1 + (part >= parts), __ATOMIC_SEQ_CST);
}
"""


def test_each_part_of_a_call_is_done_once_by_any_number_of_threads(cc: Compiler):
    engine, library = cc.library(ENGINE, keep=True), cc.library(COUNTING)
    assert engine is not None and library is not None
    calls = CallList(engine, [library], np.zeros(1, np.int64))
    marks = [np.zeros(700, np.int64) for _ in range(140)]
    calls.add([calls.call("mark", parts, [(m, 0)]) for parts, m in enumerate(marks, start=1)])
    bound = calls.bound()
    for n, threads in enumerate((1, 2, 3, 5, 2, 9) * 20, start=1):
        engine.run_calls(*bound.given[:4], threads)
        assert all((m == n).all() for m in marks), threads


PRODUCTS = [*((m, n, 5) for m in range(1, 31) for n in (1, 15, 16, 17, 33)), (28, 1, 9), (40, 70, 600), (300, 600, 40),
          (17, 520, 1030)]  # fmt: skip
PADDED = 1024  # columns of a left operand whose rows fall into one set of a cache


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_all_shapes_are_the_same_in_any_number_of_parts(cc: Compiler, turned: tuple[bool, bool]):
    engine = cc.library(ENGINE)
    assert engine is not None
    rng, calls = np.random.default_rng(0), CallList(engine, [], np.zeros(1, np.int64))
    made: list[tuple[np.ndarray, np.ndarray, list[np.ndarray]]] = []
    for m, n, k in PRODUCTS:
        wide = rng.standard_normal((m, max(k, PADDED) if m == 28 else k), dtype=np.float32)[:, :k]
        a = wide.T.copy().T if turned[0] else wide
        b = rng.standard_normal((k, n), dtype=np.float32)
        b = b.T.copy().T if turned[1] else b
        outs = [np.full((m, n), np.nan, np.float32) for _ in range(3)]
        calls.add([calls.product(a, b, out)._replace(parts=parts) for parts, out in enumerate(outs, start=1)])
        made.append((a, b, outs))
    calls.bound().whole()
    for a, b, outs in made:
        # a sum of k products rounds at most k times, each by half a unit of the sum of their sizes
        bound = a.shape[1] * np.finfo(np.float32).eps * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
        assert (np.abs(outs[0] - a.astype(np.float64) @ b.astype(np.float64)) <= bound).all(), (a.shape, b.shape)
        assert all(np.array_equal(outs[0], out) for out in outs[1:]), (a.shape, b.shape)


def test_gcc_writes_gathers_for_processors_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch):
    intel = "x86_64 GenuineIntel 6 999 fpu avx512f avx512_fp16"
    for version, of, tuned in (
        ("cc (Debian 12.2.0-14+deb12u1) 12.2.0", intel, True),
        ("gcc (GCC) 15.1.1 20250425", intel, True),
        ("gcc (Ubuntu 9.4.0-1ubuntu1~20.04) 9.4.0", intel, False),
        ("Debian clang version 16.0.6", intel, False),
        ("gcc (GCC) 13.2.1 20230801", intel.replace("GenuineIntel", "AuthenticAMD"), False),
        ("gcc (GCC) 13.2.1 20230801", "aarch64 asimd", False),
    ):
        monkeypatch.setattr(module, "processor", lambda of=of: of)
        monkeypatch.delenv(module.OTHER_FLAGS, raising=False)
        assert ("-mtune=sapphirerapids" in Compiler("cc", version).flags) == tuned, (version, of)
