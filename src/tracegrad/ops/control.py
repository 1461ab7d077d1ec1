"""Sites in a forward where a call can look at a value, or put another in its place."""

from __future__ import annotations

from typing import Any

from tracegrad import ambient
from tracegrad.dtypes import TensorType, bool_, f32
from tracegrad.errors import TraceError, call_site, located
from tracegrad.ir import Tensor
from tracegrad.prims.elementwise import where
from tracegrad.prims.leaves import as_tensor, leaf


def _claim(op: str, name: str, taken: dict[str, Tensor]) -> None:
    """TraceError if `name` is no name or is in use."""
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TraceError(located(f"{op}: the name must be a string, got {name!r}", call_site()))
    if name in taken:
        raise TraceError(
            located(
                f"{op}: the name {name!r} is taken by another site of this trace; "
                f'number the layers, e.g. {op}(f"attn.{{i}}", x)',
                taken[name].site,
            )
        )


def capture(name: str, x: Any) -> Tensor:
    """Give the value of `x` back with the result, as `r.captures[name]`.

    name:     unique within the forward or loss.
    x:        any dtype and shape.
    Returns:  `x`.
    Gradient: that of `x`.
    Raises:   TraceError if the name is taken, or outside a trace.
    """
    running, x = ambient.require("capture"), as_tensor(x)
    _claim("capture", name, running.captures)
    running.captures[name] = x
    return x


def patch(name: str, x: Any) -> Tensor:
    """Mark `x` as a value that a call may overwrite: `run(..., patches={name: array})` or `{name: (mask, array)}`.

    out = active and mask ? value : x

    Adds three leaves: role "hyper" `patch.<name>`, an f32 scalar that is 1 in calls that patch and 0 in others; role
    "patch" `patch.<name>.value` of the type of `x` and `patch.<name>.mask`, a bool of its shape. Their contents do
    not matter while the scalar is 0.

    name:     unique among the patches of the forward or loss.
    x:        any dtype and shape.
    Returns:  dtype and shape of `x`.
    Gradient: to `x` where it was not overwritten.
    Raises:   TraceError if the name is taken, or outside a trace.
    """
    running, x = ambient.require("patch"), as_tensor(x)
    _claim("patch", name, running.patches)
    running.patches[name] = x
    active = leaf("hyper", f"patch.{name}", TensorType(f32, ()))
    value = leaf("patch", f"patch.{name}.value", x.type)
    mask = leaf("patch", f"patch.{name}.mask", TensorType(bool_, x.shape))
    return where(active != 0.0, where(mask, value, x), x)
