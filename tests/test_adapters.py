"""Finding WebGPU adapters: the choice, and plain words where there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracegrad.commands import doctor
from tracegrad.errors import DeviceError
from tracegrad.runtime import adapter_probe, adapters as finding
from tracegrad.runtime.wgpu_adapter import ADAPTER, AdapterInfo

SUPPORT = finding.check_webgpu()
SRC = str(Path(__file__).parent.parent / "src")


@pytest.mark.skipif(not SUPPORT.ok, reason=f"no WebGPU adapter: {SUPPORT.message}")
def test_adapters_are_listed_best_first_with_limits_and_features() -> None:
    found = finding.adapters()
    assert found[0] == SUPPORT.adapter
    assert [a.software for a in found] == sorted(a.software for a in found)
    assert all(a.limits["max-storage-buffers-per-shader-stage"] >= 8 and a.backend in a.description for a in found)


def fake(name: str, kind: str, backend: str = "Vulkan") -> dict[str, object]:
    info = {"device": name, "description": "driver 1", "vendor": "v", "adapter_type": kind, "backend_type": backend}
    return {"info": info, "limits": {"max-buffer-size": 1}, "features": ["subgroup"]}


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The child's answer can be set by monkeypatching adapter_probe.PROBE; caches are cleared around it."""
    adapter_probe.ANSWERS.clear()
    monkeypatch.setattr(finding, "may_have_gpu", lambda: True)
    yield monkeypatch
    monkeypatch.undo()
    adapter_probe.ANSWERS.clear()


def chosen(device: str) -> AdapterInfo | None:
    """The adapter that `device` means."""
    return finding.opened(finding.search(device), lambda adapter: adapter)


def says(*rows: dict[str, object]) -> str:
    return f"import json\nprint('\\nTRACEGRAD' + json.dumps({{'rows': {list(rows)!r}}}))"


def test_a_real_adapter_is_taken_before_software_and_opengl(answer: pytest.MonkeyPatch) -> None:
    rows = [
        fake("llvmpipe", "CPU"),
        fake("Arc", "IntegratedGPU"),
        fake("RTX", "DiscreteGPU", "OpenGL"),
        fake("RTX", "DiscreteGPU"),
    ]
    answer.setattr(adapter_probe, "PROBE", says(*rows))
    assert [a.description for a in finding.adapters()] == ["RTX (Vulkan)", "Arc (Vulkan)", "llvmpipe (Vulkan)"]
    assert finding.check_webgpu().reason == "ok"
    found = chosen("auto")
    assert found is not None and found.name == "RTX" and chosen("webgpu") == found


def test_an_environment_variable_names_the_adapter(answer: pytest.MonkeyPatch) -> None:
    rows = [
        fake("Radeon RX", "DiscreteGPU"),
        fake("Radeon RX", "DiscreteGPU", "D3D12"),
        fake("Iris Xe", "IntegratedGPU"),
    ]
    answer.setattr(adapter_probe, "PROBE", says(*rows))
    for wanted, name in (("", "Radeon RX (Vulkan)"), ("iris", "Iris Xe (Vulkan)"), ("d3d12", "Radeon RX (D3D12)")):
        answer.setenv(ADAPTER, wanted)
        for device in ("auto", "webgpu"):
            found = chosen(device)
            assert found is not None and found.description == name, (wanted, device)
    answer.setenv(ADAPTER, "Arc")
    with pytest.raises(
        DeviceError, match=r"TRACEGRAD_ADAPTER is 'Arc', which is in no name of Radeon RX \(Vulkan\), Radeon"
    ):
        chosen("auto")
    support = finding.check_webgpu()
    assert not support and support.reason == "no-such-adapter" and "'Arc', which is in no name" in support.message
    assert "TRACEGRAD_ADAPTER=Arc: TRACEGRAD_ADAPTER is 'Arc'" in "\n".join(doctor._devices())  # pyright: ignore[reportPrivateUsage]


def test_a_software_adapter_is_taken_only_by_hand(answer: pytest.MonkeyPatch) -> None:
    answer.setattr(adapter_probe, "PROBE", says(fake("SwiftShader Device", "Unknown")))
    support = finding.check_webgpu()
    assert support.ok and support.reason == "software" and "software adapter" in support.message
    assert chosen("auto") is None
    assert chosen("webgpu") == support.adapter


@pytest.mark.parametrize(
    ("probe", "reason", "words"),
    [
        ("import os; os.abort()", "driver-crashed", "driver crashed"),
        ("import sys; sys.stderr.write('boom'); sys.exit(3)", "driver-crashed", "boom"),
        ('print(\'\\nTRACEGRAD{"error": "ImportError: libc"}\')', "broken-wgpu", "ImportError: libc"),
        ("import time; time.sleep(60)", "driver-hangs", "did not answer"),
        (says(fake("RTX", "DiscreteGPU", "OpenGL")), "no-", "(?i)driver|loader"),
    ],
    ids=["abort", "exit", "import error", "hang", "opengl only"],
)
def test_why_there_is_no_webgpu_in_plain_words(answer: pytest.MonkeyPatch, probe: str, reason: str, words: str) -> None:
    answer.setattr(adapter_probe, "PROBE", probe)
    answer.setattr(adapter_probe, "PROBE_SECONDS", 2)
    support = finding.check_webgpu()
    assert not support and support.adapter is None and support.reason.startswith(reason)
    with pytest.raises(DeviceError, match=words):
        chosen("webgpu")
    assert chosen("auto") is None and finding.adapters() == []


def test_without_the_wgpu_package_the_message_says_how_to_get_it(answer: pytest.MonkeyPatch) -> None:
    answer.setattr(importlib.util, "find_spec", lambda name: None)
    support = finding.check_webgpu()
    assert support.reason == "no-wgpu" and "pip install" in support.message


def test_asking_for_adapters_prints_nothing_and_loads_no_wgpu() -> None:
    code = "import sys; from tracegrad.runtime import adapters as a; a.check_webgpu(); assert 'wgpu' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONPATH": SRC}, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(("gpu", "loaded"), [(False, []), (True, ["wgpu", "tracegrad.runtime.wgpu_session"])])
def test_what_opens_a_device_is_imported_where_there_may_be_one(gpu: bool, loaded: list[str]) -> None:
    """And before `session_factory` returns: its caller compiles next, and the imports would wait for that."""
    code = (
        "import sys, tracegrad.entrypoints as e; from tracegrad.runtime import adapter_probe as p, adapters as a\n"
        f"a.may_have_gpu = lambda: {gpu}; a.remembered.take = lambda: None; p.started_child = lambda: None\n"
        "e.session_factory('auto')(); "
        "print([m for m in ('wgpu', 'tracegrad.runtime.wgpu_session') if m in sys.modules])"
    )
    if gpu:
        pytest.importorskip("wgpu")
    environment = {**os.environ, "PYTHONPATH": SRC}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert said.stdout.strip() == str(loaded)
