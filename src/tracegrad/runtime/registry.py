"""Which runtimes there are. Each is a module of this package that is named as `device=` names the runtime."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, cast

from tracegrad.runtime.base import DeviceInfo, Session

RUNTIMES = ("webgpu", "cpu", "jax")  # in the order in which "auto" tries them; a new one adds its name here
DEVICES = ("auto", *RUNTIMES)


class Runtime(Protocol):
    """What a runtime's module has."""

    def devices(self) -> list[DeviceInfo]:
        """Its usable devices, the best first."""
        ...

    def begin(self, device: str) -> Callable[[], Session | None]:
        """Begin to look for a device, and import what will open it; what this returns opens it, on another thread.

        device: what the user asked for: the runtime's own name, or "auto", for which None means no device.
        Raises: DeviceError, here or at opening.
        """
        ...


def runtime(name: str) -> Runtime:
    """The runtime of that name, imported when it is wanted: together they would be a tenth of `import tracegrad`."""
    return cast("Runtime", importlib.import_module(f"tracegrad.runtime.{name}"))
