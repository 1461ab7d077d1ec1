"""One WebGPU adapter: what wgpu says about it, its rank among others, and how it opens in this process."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracegrad.errors import DeviceError
from tracegrad.runtime import process, remembered, wgpu_types
from tracegrad.runtime.process import quiet_stderr

INSTALL = 'pip install "wgpu>=0.32,<0.33"'
PINNED = "0.32."  # the wgpu-py whose private handles wgpu_calls.py knows
BACKENDS = ("Vulkan", "Metal", "D3D12")  # OpenGL computes too, but aborts and prints on many machines
ADAPTER = "TRACEGRAD_ADAPTER"  # an environment variable: a part of the name of the adapter to use
SOFTWARE = ("llvmpipe", "swiftshader", "lavapipe", "basic render")
KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")  # best first
FEATURES = ("shader-f16", "subgroup", "timestamp-query")  # requested where offered


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """One adapter: a GPU, or a CPU that acts as one, seen through one graphics interface."""

    name: str
    backend: str  # "Vulkan", "Metal" or "D3D12"
    type: str  # "DiscreteGPU", "IntegratedGPU", "CPU" or "Unknown"
    driver: str
    software: bool
    limits: Mapping[str, int] = field(repr=False)
    features: tuple[str, ...] = field(repr=False)

    @property
    def description(self) -> str:
        """The adapter's name and graphics interface, such as `NVIDIA H200 (Vulkan)`."""
        return f"{self.name} ({self.backend})"


def described(adapter: Any) -> dict[str, Any]:
    """Return wgpu's description of one of its adapters, as plain data."""
    return {"info": dict(adapter.info), "limits": dict(adapter.limits), "features": sorted(adapter.features)}


def info_of(raw: Mapping[str, Any]) -> AdapterInfo:
    """Return an adapter from wgpu's description."""
    info = raw["info"]
    name = str(info["device"] or info["description"] or info["vendor"] or "unnamed adapter")
    kind = str(info["adapter_type"])
    return AdapterInfo(
        name=name,
        backend=str(info["backend_type"]),
        type=kind,
        driver=str(info["description"]),
        software=kind == "CPU" or is_software(name),
        limits={str(k): int(v) for k, v in raw["limits"].items()},
        features=tuple(sorted(raw["features"])),
    )


def is_software(name: str) -> bool:
    """Return whether an adapter of this name is a CPU that acts as a GPU."""
    return any(word in name.lower() for word in SOFTWARE)


def ranked(rows: remembered.Rows) -> tuple[AdapterInfo, ...]:
    """Return the adapters that can compute, the best first."""
    return tuple(sorted((a for a in map(info_of, rows) if a.backend in BACKENDS), key=_rank))


def _rank(a: AdapterInfo) -> tuple[bool, bool, int, int]:
    """Return a sort key: the wanted first, GPUs before software, discrete before integrated, the platform's own API."""
    kind = KINDS.index(a.type) if a.type in KINDS else KINDS.index("Unknown")
    other = os.environ.get(ADAPTER, "").lower() not in a.description.lower()
    return other, a.software, kind, BACKENDS.index(a.backend)


def open_device(adapter: AdapterInfo) -> Any:
    """Return a new `wgpu.GPUDevice` with the adapter's limits and its FEATURES. Raises DeviceError if it refuses."""
    load_wgpu()
    with quiet_stderr():
        try:
            for found in enumerate_here():
                info = info_of(described(found))
                if (info.name, info.backend, info.type) == (adapter.name, adapter.backend, adapter.type):
                    wanted = [f for f in FEATURES if f in info.features]
                    return found.request_device_sync(label="tracegrad", required_features=wanted)
        except Exception as e:
            raise DeviceError(f"{adapter.description} cannot be opened: {e}") from e
    raise DeviceError(f"{adapter.description} is no longer available")


def load_wgpu() -> Any:
    """Return the wgpu module, without loading a driver. Raises DeviceError if the package cannot be loaded."""
    try:
        with wgpu_types.known(remembered.types()):
            importlib.import_module("wgpu.backends.wgpu_native")
        wgpu: Any = importlib.import_module("wgpu")
        if not wgpu.__version__.startswith(PINNED):
            raise ImportError(f"this is wgpu {wgpu.__version__}, tracegrad needs {PINNED}x")
        return wgpu
    except Exception as e:
        raise DeviceError(f"the Python package wgpu cannot be loaded ({e}); {INSTALL}") from e


def enumerate_here() -> list[Any]:
    """Return wgpu's adapters, without its OpenGL backend unless the program uses wgpu already. This loads drivers."""
    extras: Any = importlib.import_module("wgpu.backends.wgpu_native.extras")
    process.load_drivers()
    with contextlib.suppress(Exception):  # a RuntimeError if the instance exists: then it is the user's
        extras.set_instance_extras(backends=["Primary"])
    return importlib.import_module("wgpu").gpu.enumerate_adapters_sync()
