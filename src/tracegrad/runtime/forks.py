"""Forked processes: a child has a copy of its parent's objects, and none of its parent's threads."""

from __future__ import annotations

import os

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
    """How often the process was forked since Python started. An object of another generation has no threads here.

    drivers: the generation that loaded graphics drivers.
    """

    number = 0
    drivers: int | None = None


def load_drivers() -> None:
    """Graphics drivers are loaded now."""
    Generation.drivers = Generation.number


def inherited_drivers() -> bool:
    """Does the process have graphics drivers from before a fork? Their threads are gone, so a call would hang."""
    return Generation.drivers is not None and Generation.drivers != Generation.number


def forked_error() -> DeviceError:
    """What to raise for work that needs a thread of the parent."""
    return DeviceError.here(FORKED)


def _count() -> None:
    Generation.number += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
