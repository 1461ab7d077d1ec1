"""`np`: NumPy, or `tracegrad.bare` where there is none, as in a browser's Python."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from tracegrad import bare
from tracegrad.errors import DeviceError

HAVE_NUMPY = importlib.util.find_spec("numpy") is not None

if TYPE_CHECKING or HAVE_NUMPY:
    import numpy as np
else:
    np = bare


def need_numpy(device: str) -> None:
    """Refuse a device that computes on NumPy's arrays where there is no NumPy."""
    if not HAVE_NUMPY:
        raise DeviceError.here(f"device={device!r} needs NumPy, which is not installed")


def handed_out(x: Any) -> Any:
    """Return `x` as users get it: a NumPy array where NumPy is loaded by now, else a memoryview with its shape."""
    if not isinstance(x, bare.Array):
        return x
    numpy: Any = sys.modules.get("numpy")
    return x.shaped() if numpy is None else numpy.asarray(x.shaped()).reshape(x.shape)


__all__ = ["HAVE_NUMPY", "handed_out", "need_numpy", "np"]
