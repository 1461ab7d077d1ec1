"""The table of runtimes. Each one is a module of this package, whose name is the runtime's name in `device=`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, cast

from tracegrad.runtime.base import DeviceInfo, Session

RUNTIMES = ("webgpu", "cpu", "jax")  # in the order in which "auto" tries them; add the name of a new runtime here
DEVICES = ("auto", *RUNTIMES)


class Runtime(Protocol):
    """The contents of a runtime's module."""

    def devices(self) -> list[DeviceInfo]:
        """Return the runtime's usable devices, the best first."""
        ...

    def begin(self, device: str) -> Callable[[], Session | None]:
        """Begin to look for a device and import its code; call the result, on another thread, to open the device.

        device: the runtime's own name, or "auto", for which the opened session can be None: no device.
        Raises: DeviceError, here or when opening.
        """
        ...


def runtime(name: str) -> Runtime:
    """Import and return the runtime of that name. Importing all would take a tenth of the time to import tracegrad."""
    return cast("Runtime", importlib.import_module(f"tracegrad.runtime.{name}"))
