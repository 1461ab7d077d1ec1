"""The JAX runtime: XLA compiles the graph, for the devices that JAX finds. "auto" never chooses it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from tracegrad.arrays import need_numpy
from tracegrad.errors import DeviceError
from tracegrad.runtime.base import DeviceInfo, Session

if TYPE_CHECKING:
    from tracegrad.runtime.jax_session import JaxSession

INSTALL = 'pip install "tracegrad[jax]"'  # quoted, because zsh expands brackets


def devices() -> list[DeviceInfo]:
    """Return one device if JAX is installed, without importing JAX, which would take most of a GPU's memory."""
    info = DeviceInfo("jax", "JAX, on the devices that it finds", precisions=("f32", "f16", "bf16", "tf32"))
    return [info] if importlib.util.find_spec("jax") else []


def begin(device: str) -> type[JaxSession]:
    """Import JAX, which takes about a second, and return what makes a session. Raise DeviceError without JAX."""
    need_numpy(device)
    try:
        from tracegrad.runtime.jax_session import JaxSession
    except ImportError as e:
        raise DeviceError(f'device="jax" needs JAX, which cannot be imported ({e}): {INSTALL}') from e
    return JaxSession


def begin_on_mesh(mesh: Any, layout: Mapping[str, Any] | str | None) -> Callable[[], JaxSession]:
    """Do the same as `begin` for all devices of a mesh. Raise InputError for an invalid layout."""
    session = begin("jax")
    from tracegrad.runtime.jax_mesh import Layout

    made = Layout(mesh, layout)
    return lambda: session(made)


def function_of(session: Session, handle: int, hyper: Mapping[str, Any], step: int) -> tuple[Any, dict[str, Any]]:
    """Return a program as a pure function, and its state. Raise DeviceError for a session on another device."""
    return on_jax(session, "to_jax").function(handle, hyper, step)


def on_jax(session: Session, what: str) -> JaxSession:
    """Return the session. Raise DeviceError if it is on another device."""
    if session.info.name != "jax":
        raise DeviceError(
            f'{what}: this training is on {session.info.name!r}; compile with device="jax" ({INSTALL}). A checkpoint '
            "of this training loads there"
        )
    return cast("JaxSession", session)
