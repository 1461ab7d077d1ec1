"""Forked processes: a child has a copy of its parent's objects, but none of its parent's threads."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

from tracegrad.errors import DeviceError

FORKED = (
    "this process was forked from the one that opened the device, which stays with its parent. Compile in this "
    "process. For a GPU, start the process by multiprocessing.get_context('spawn')"
)


FORKED_DRIVERS = (
    "this process was forked from one that uses a GPU, whose driver does not survive a fork; start it by "
    "multiprocessing.get_context('spawn')"
)


class Generation:
    """Counts the forks of the process since Python started. An object of another generation has no threads here.

    drivers: the generation that loaded graphics drivers.
    """

    number = 0
    drivers: int | None = None


def load_drivers() -> None:
    """Note that graphics drivers are loaded now."""
    Generation.drivers = Generation.number


def inherited_drivers() -> bool:
    """Return whether graphics drivers were loaded before a fork: their threads are gone, so calls would hang."""
    return Generation.drivers is not None and Generation.drivers != Generation.number


def forked_error() -> DeviceError:
    """Return the error for work that needs a thread of the parent."""
    return DeviceError.here(FORKED)


def _begin() -> None:
    Generation.number += 1
    if inherited_drivers():
        _keep_objects_of_drivers()


def _keep_objects_of_drivers() -> None:
    """Keep the parent's GPU objects, garbage included, as long as this process lives.

    Python would release them with their last reference, and each release calls the driver, which would hang.
    """
    wgpu = sys.modules["wgpu"]
    classes = (wgpu.GPUAdapter, wgpu.GPUObjectBase)
    kept = [thing for thing in gc.get_objects() if isinstance(thing, classes)]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # never undone: the end of the process releases nothing either


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
