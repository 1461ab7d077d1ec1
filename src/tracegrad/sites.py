"""Lines of the user's code: the line that new nodes get, and the sites of `tg.capture` and `tg.patch`.

This module has the package's only ambient (context-local) state: the running trace, and the line for which the library
builds nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, NamedTuple, ParamSpec, TypeVar

from tracegrad.dtypes import TensorType
from tracegrad.errors import Site, call_site, shortened

PATCH = "patch."  # prefix of program inputs for patch sites; names of a user's inputs have no dots
VALUE, MASK = "value", "mask"
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SiteInfo(NamedTuple):
    """One site; prints as `patch attn.0: f32[2,4,8]  # model.py:14`."""

    kind: str  # "capture" or "patch"
    name: str
    type: TensorType
    site: Site | None  # the user's line

    def __repr__(self) -> str:
        where = f"  # {self.site.short}" if self.site else ""
        return f"{self.kind} {self.name}: {self.type}{where}"

    __str__ = __repr__


def patch_leaf(name: str, part: str) -> str:
    """Return the name of a patch site's leaf and program input: `patch.attn.0.value` or `patch.attn.0.mask`."""
    return f"{PATCH}{name}.{part}"


class Here:
    """A fixed call site, for nodes that the library builds in place of a node of the user."""

    site: Site | None = None


class State(NamedTuple):
    """The ambient state: the running trace, and the running rewrite of nodes."""

    trace: object  # an `ambient.Trace`, or None
    here: Here | None


_STATE: ContextVar[State | None] = ContextVar("tracegrad_state", default=None)

# None if ops run at once. Public ops call this directly, which saves a Python call over `building`.
STATE = _STATE.get
enter = _STATE.set


def restored(fn: Callable[P, R]) -> Callable[P, R]:
    """Wrap `fn`, so that the ambient state is restored after it, even after an interrupt at any point.

    A `with` block alone is not enough: an interrupt just after it begins or just before it ends can skip its exit, so
    that a trace stays open. Decorate every function that starts a trace and is called from outside of one.
    """

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = STATE()
        try:
            with shortened:
                return fn(*args, **kwargs)
        finally:
            enter(before)

    return call


class Block(Generic[T]):
    """A `with` block with an ambient state of its own. Entering it returns `given`."""

    def __init__(self, state: State, given: T) -> None:
        self.state, self.given = state, given
        self.before = STATE()

    def __enter__(self) -> T:
        enter(self.state)
        return self.given

    def __exit__(self, *error: object) -> None:
        if STATE() is self.state:  # a generator can end its block late, when its exception is freed
            enter(self.before)


def rewriting() -> Block[Here]:
    """Return a block in which new nodes get the site of the returned `Here` instead of the caller's."""
    here, before = Here(), STATE()
    return Block(State(None if before is None else before.trace, here), here)


def current_site() -> Site | None:
    """Return the line for new nodes: the user's line, or in a rewrite the line of the node that is rewritten."""
    state = STATE()
    return call_site() if state is None or state.here is None else state.here.site


def is_rewriting() -> bool:
    """Return whether the library itself is building nodes, outside of a user's function."""
    state = STATE()
    return state is not None and state.here is not None


def building() -> bool:
    """Return whether ops build nodes, as inside a trace or a rewrite. Elsewhere they run at once.

    As torch.compiler.is_compiling.
    """
    return STATE() is not None
