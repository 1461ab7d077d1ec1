"""`np`: NumPy, or `tracegrad.bare` without NumPy, as in Pyodide."""

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
    """Check that NumPy is installed for `device`. Raises DeviceError otherwise."""
    if not HAVE_NUMPY:
        raise DeviceError.here(f"device={device!r} needs NumPy, which is not installed")


def handed_out(x: Any) -> Any:
    """Return `x` for the user: a NumPy array if NumPy is loaded, else a memoryview of the same shape."""
    if not isinstance(x, bare.Array):
        return x
    numpy: Any = sys.modules.get("numpy")
    return x.shaped() if numpy is None else numpy.asarray(x.shaped()).reshape(x.shape)


__all__ = ["HAVE_NUMPY", "handed_out", "need_numpy", "np"]
