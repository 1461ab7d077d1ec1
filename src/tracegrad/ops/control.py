"""`tg.capture` and `tg.patch`, by which calls read or replace values in a forward; and writes to states."""

from __future__ import annotations

from typing import Any

from tracegrad.dtypes import TensorType, bool_
from tracegrad.errors import DTypeError, ShapeError, TraceError, call_site, located
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor
from tracegrad.ir.states import STATE, StateTensor
from tracegrad.methods import method, op
from tracegrad.prims.elementwise import stop_gradient, where
from tracegrad.prims.leaves import as_tensor, leaf
from tracegrad.refusals import shown
from tracegrad.sites import MASK, VALUE, SiteInfo, patch_leaf

__all__ = ["capture", "patch"]


def _marked(kind: str, name: Any, x: Any) -> tuple[ambient.Trace, Tensor]:
    """Record a site, and return the running trace and `x`. Raises TraceError if `name` is empty, in use or second."""
    running = ambient.require(kind)
    if isinstance(x, str):
        raise TraceError(f"the name must come first, as in tg.{kind}({x!r}, x); got {shown(name)} and {x!r}")
    x, site = as_tensor(x), call_site()
    if not isinstance(name, str) or not name:
        raise TraceError(located(f"{kind}: the name must be a string that is not empty, got {name!r}", site))
    if running.scans:
        raise TraceError(
            located(
                f"{kind}: the site {name!r} is inside a scan, where {x.type} has a different value in each iteration; "
                "return it from fn as y, and use the stacked values after the scan",
                site,
            )
        )
    other = running.sites.get((kind, name))
    if other is not None:
        raise TraceError(
            located(
                f"{kind}: the name {name!r} is taken by another site of this trace; "
                f'number the layers, for example {kind}(f"attn.{{i}}", x), or call the model once only',
                other.site,
            )
        )
    running.sites[kind, name] = SiteInfo(kind, name, x.type, site)
    return running, x


@op
def capture(name: str, x: Any) -> Tensor:
    """Return `x` unchanged, and report its value as `captures[name]` in the results of `run` and `step`.

    name:     a string, unique among the captures of a forward or loss.
    x:        any dtype and shape.
    Returns:  `x`. Eager calls do nothing else. A program stores the value in each run and copies it to the host.
    Gradient: the result's gradient, unchanged.
    Raises:   TraceError if another capture has the name, for an empty name, and inside `tg.scan`.

    As a forward hook of PyTorch that stores an activation, and Flax's `sow` for JAX.

    >>> forward = lambda m, x: m(tg.capture("input", x))
    >>> infer = tg.compile_forward(model=nn.Linear(2, 1), forward=forward, inputs={"x": (1, 2)}, seed=0)
    >>> infer.run(x=[[1.0, 2.0]]).captures["input"]
    array([[1., 2.]], dtype=float32)
    """
    running, x = _marked("capture", name, x)
    running.captures[name] = x
    return x


@op
def patch(name: str, x: Any) -> Tensor:
    """Return `x`, or the value that a call of `run` passes to replace `x`.

    in run(..., patches={name: array}):           array, broadcast to the shape of x
    in run(..., patches={name: (mask, array)}):   where(mask, array, x)
    in all other calls, training steps and eager calls: x

    The first call with patches compiles a second program. Calls without patches run the first one, at no cost.

    name:     a string, unique among the patches of a forward or loss.
    x:        any dtype and shape.
    array:    given to `run`; its dtype is that of `x`, and its shape broadcasts to that of `x`.
    mask:     given to `run`; bool, True where `array` replaces `x`; its shape broadcasts to that of `x`.
    Returns:  dtype and shape of `x`.
    Gradient: the result's gradient where the result is `x`, else 0.
    Raises:   TraceError if another patch has the name, for an empty name, and inside `tg.scan`.

    As a forward hook of PyTorch that returns a value.

    >>> forward = lambda m, x: m(tg.patch("input", x))
    >>> infer = tg.compile_forward(model=nn.Linear(2, 1), forward=forward, inputs={"x": (1, 2)}, seed=0)
    >>> infer.run(x=[[1.0, 2.0]], patches={"input": 0.0}).output
    array([[0.]], dtype=float32)
    """
    running, x = _marked("patch", name, x)
    if not running.patching:  # a `where` in every call would take 38 % more time, for six dense layers of 256
        return x
    value = leaf("patch", patch_leaf(name, VALUE), x.type)
    mask = leaf("patch", patch_leaf(name, MASK), TensorType(bool_, x.shape))
    return where(mask, value, x)


@method
def assign(x: Any, value: Any) -> None:
    """Write a new value to a state of the model: `m.mean.assign(0.9 * m.mean + 0.1 * x.mean(0))`.

    Later reads in the same forward or loss give the new value, and the last of several writes is kept. A training step
    stores new states together with the new parameters; a step that fails stores neither. An eager write is immediate.

    x:        a state, made with `self.state` in a module's `__init__`.
    value:    dtype and shape of the state.
    Gradient: none, neither to `value` nor through later reads of the state.
    Raises:   ShapeError or DTypeError for a value of another type. TraceError if `x` is not a state, inside `tg.scan`
              and `tg.vmap`, and in a forward that was compiled or attached without writes=True.

    As assigning to a buffer of a torch.nn.Module in `forward`.

    >>> class Mean(nn.Module):
    ...     def __init__(self):
    ...         self.mean = self.state(())
    ...     def __call__(self, x):
    ...         self.mean.assign(0.5 * self.mean + 0.5 * x.mean())
    ...         return self.mean
    >>> tg.instantiate(Mean(), seed=0)(tg.tensor([1.0, 3.0]))
    tensor(1.)
    """
    running = ambient.require("assign")
    if not isinstance(x, StateTensor):
        got = x.type if isinstance(x, Tensor) else as_tensor(x).type
        raise TraceError(
            f"{got} is not a state of the model; only a state can be assigned. Make it with self.state(shape) in "
            "__init__. A model that is an argument of tg.vmap or tg.scan has plain values: close over the model instead"
        )
    if len(running.lanes) != (x.lanes or 0):
        inside = "tg.scan" if running.scans else "tg.vmap"
        raise TraceError(
            f"the state {x.name!r} is assigned inside {inside}, where it has no single value; return the value from "
            "the function, and assign it afterwards"
        )
    new = as_tensor(value, x.dtype)
    if new.type != x.type:
        kind = DTypeError if new.shape == x.shape else ShapeError
        raise kind(f"the state {x.name!r} is {x.type}, the value is {new.type}; an assignment must keep the type")
    x.now = stop_gradient(new)
    if x.lanes is None:
        running.writes[STATE + x.name] = x.now
