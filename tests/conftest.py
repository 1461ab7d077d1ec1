"""Lets test modules import each other's tables, and refuses skips where nothing may be skipped."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# PyTorch's threads wait for each other by spinning. Two tests at once have more of them than cores, and small arrays.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy is imported, and PyTorch

from in_c import SessionInC
from tracegrad.runtime import cpu, remembered
from tracegrad.runtime.adapters import check_webgpu
from tracegrad.runtime.c_compiler import FLAGS, OTHER_FLAGS, VARIABLE, compiler_named
from tracegrad.runtime.cpu import CpuSession
from tracegrad.runtime.wgpu_session import NativeSession
from xla import quickly

# Without bytecode, each process that a test starts compiles the package anew, for half a second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Collecting makes hundreds of thousands of objects that stay: looking through them took a third of the time.
gc.disable()

# Set by tools/test in CI: a missing adapter or oracle fails the tests that want it, instead of hiding them.
NO_SKIP = os.environ.get("TRACEGRAD_NO_SKIP") == "1"

# Hundreds of small programs would each wait for the C compiler. Tests of what it makes ask for it.
os.environ.setdefault(VARIABLE, "off")
# All cores have tests to run, so a second compiler for half of a program's kernels would only cost its start.
cpu.C_SOURCES = 1
# What other processes found is no business of a test's.
os.environ.setdefault(remembered.VARIABLE, "always")
# Mesa's software adapter compiles thousands of shaders that run once or twice: without LLVM's passes this takes half of
# the time. tools/fuzz runs them with the passes.
os.environ.setdefault("GALLIVM_PERF", "nopt")
# On a GPU, JAX would take three quarters of the memory in each process of the tests, and WebGPU would get none.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# XLA compiles each program once in this process.
XLA_CACHE = tempfile.mkdtemp(prefix="tracegrad-tests-")
os.environ |= {"JAX_COMPILATION_CACHE_DIR": XLA_CACHE, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    shutil.rmtree(XLA_CACHE, ignore_errors=True)


@pytest.fixture(scope="module")
def c_compiler() -> Iterator[None]:
    """This machine's C compiler for all of a module: sessions on WebGPU submit by what it makes, if it has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        yield


@pytest.fixture
def quick_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """C with little optimisation, where a test compares trainings and not what the compiler makes of their kernels.

    Every row (test_kernels, test_shapes_that_matter) and random programs (test_fuzz) have the flags of users.
    """
    found = compiler_named("")
    if found is not None and OTHER_FLAGS not in os.environ:
        monkeypatch.setenv(OTHER_FLAGS, shlex.join([*found.flags[len(FLAGS) :], "-O1"]))


@pytest.fixture
def in_c_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results come from C even where C is wrong: a check would have NumPy compute them."""
    monkeypatch.setenv("TRACEGRAD_VERIFY", "off")
    if os.environ[VARIABLE] == "off":
        monkeypatch.setenv(VARIABLE, "")
    if compiler_named(os.environ[VARIABLE]) is None:
        pytest.skip("no C compiler")


@pytest.fixture(scope="module")
def c_session() -> Iterator[CpuSession]:
    """A session on the CPU whose kernels are C."""
    found = compiler_named("")
    if found is None:
        pytest.skip("no C compiler")
    session = SessionInC(found)
    yield session
    session.close()


@pytest.fixture(scope="session")
def webgpu() -> None:
    """Skips a test on machines without a WebGPU adapter; a software one will do."""
    support = check_webgpu()
    if not support.ok:
        pytest.skip(f"no WebGPU adapter: {support.message}")


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    """A session on this machine's WebGPU adapter; a software one will do."""
    support = check_webgpu()
    if support.adapter is None:
        pytest.skip(f"no WebGPU adapter: {support.message}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        session = NativeSession(support.adapter)
    yield session
    session.close()


@pytest.fixture
def quick_xla() -> Iterator[None]:
    """XLA with little optimisation, where a test compares what programs compute and not how XLA compiles them."""
    pytest.importorskip("jax", reason="JAX is not installed")
    with quickly():
        yield


@pytest.fixture(params=["numpy", "c", "webgpu", "jax"])
def device_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The `device` of a training, once for each runtime: NumPy kernels, C kernels, WebGPU, and JAX."""
    if request.param == "webgpu":
        request.getfixturevalue("webgpu")
    monkeypatch.setenv(VARIABLE, "off" if request.param == "numpy" else "")
    if request.param == "c":
        if compiler_named("") is None:
            pytest.skip("no C compiler")
        request.getfixturevalue("quick_c")
    if request.param == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    with quickly() if request.param == "jax" else nullcontext():
        yield request.param if request.param in ("webgpu", "jax") else "cpu"


def refuse_skip(report: Any) -> None:
    if NO_SKIP and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"TRACEGRAD_NO_SKIP=1, but this was skipped: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    outcome: Any = yield
    refuse_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    outcome: Any = yield
    refuse_skip(outcome.get_result())
