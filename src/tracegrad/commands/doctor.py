"""`tracegrad doctor`: list the devices of this machine, and check that they compute correctly."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import textwrap
import warnings
from collections.abc import Iterator, Mapping

import tracegrad as tg
from tracegrad.commands.selftest import Outcome, run_all
from tracegrad.runtime.adapters import AdapterInfo, adapters
from tracegrad.runtime.c_compiler import VARIABLE, compiler

SHOWN_LIMITS = {
    "max-storage-buffers-per-shader-stage": "storage buffers in a kernel",
    "max-storage-buffer-binding-size": "largest binding",
    "max-buffer-size": "largest buffer",
    "max-compute-invocations-per-workgroup": "threads in a workgroup",
    "max-compute-workgroup-storage-size": "workgroup memory",
    "max-compute-workgroups-per-dimension": "workgroups a dimension",
}


def run(device: str | None = None) -> int:
    """Print all results. Returns 0 if every check passes on every device (or on the given one), else 1."""
    print("\n".join([*_versions(), "", *_adapters(), "", *_devices(), ""]))
    names = [device] if device else list(dict.fromkeys(d.name for d in tg.devices()))
    outcomes: dict[str, dict[str, Outcome]] = {}
    for name in names:
        print(f"Checking every kernel family on {name} ...", flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the list above already marks software adapters
            outcomes[name] = run_all(name)
    print("\n".join(_table(outcomes)))
    failures = sum(bool(o.message) for checks in outcomes.values() for o in checks.values())
    print(f"{failures} checks failed" if failures else "All checks passed.")
    return 1 if failures else 0


def _versions() -> Iterator[str]:
    yield ", ".join(f"{package} {_version(package)}" for package in ("tracegrad", "numpy", "wgpu"))
    yield f"Python {platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _adapters() -> Iterator[str]:
    found = adapters()
    yield "WebGPU adapters" if found else f"WebGPU adapters: none. {tg.check_webgpu().message}"
    for k, adapter in enumerate(found):
        yield f"  {k}  {adapter.description}, {'software' if adapter.software else adapter.type}; {adapter.driver}"
        yield from (f"       {line}" for line in _limits(adapter))
        features = f"features: {', '.join(adapter.features) or 'none'}"
        yield from textwrap.wrap(
            features, 112, initial_indent=" " * 7, subsequent_indent=" " * 9, break_on_hyphens=False
        )


def _limits(adapter: AdapterInfo) -> Iterator[str]:
    for key, label in SHOWN_LIMITS.items():
        if key in adapter.limits:
            value = adapter.limits[key]
            bytes_ = f"{value / 2**20:,.0f} MiB" if value >= 2**20 else f"{value / 2**10:,.0f} KiB"
            yield f"{label}: {bytes_ if 'size' in key else f'{value:,}'}"


def _devices() -> Iterator[str]:
    yield 'Devices, in the order device="auto" tries them'
    yield from (f"  {d.name:8} {d.description}" for d in tg.devices())
    if compiler() is None and os.environ.get(VARIABLE) != "off":
        yield "  A C compiler (cc, gcc or clang; not on Windows) makes the CPU two to four times as fast,"
        yield "  and makes short steps on a GPU cost the host less."
    if os.environ.get("TRACEGRAD_DEVICE"):
        yield f'  TRACEGRAD_DEVICE={os.environ["TRACEGRAD_DEVICE"]} overrides what "auto" means'


def _table(outcomes: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    """Yield one line per check, with one column per device: the verdict and the seconds."""
    names = list(next(iter(outcomes.values())))
    width = max(map(len, names)) + 2
    yield ""
    yield "check".ljust(width) + "".join(f"{device:18}" for device in outcomes).rstrip()
    for name in names:
        yield name.ljust(width) + "".join(f"{_cell(checks[name]):18}" for checks in outcomes.values()).rstrip()
    for device, checks in outcomes.items():
        for name, o in checks.items():
            if o.message:
                yield f"{device}, {name}: {o.message}"


def _cell(o: Outcome) -> str:
    return f"{'FAILED' if o.message else 'ok':6} {o.seconds:6.2f} s"
