"""Lines of the user's code: which one new nodes stand for, and the sites of `tg.capture` and `tg.patch`.

The only ambient state is here: the trace that runs, and the line that the library makes nodes for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, NamedTuple, ParamSpec, TypeVar

from tracegrad.dtypes import TensorType
from tracegrad.errors import Site, call_site

PATCH = "patch."  # program inputs that belong to patch sites; no input of a user can have a dot in its name
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
    """The name of a patch site's leaf, and of the program's input: `patch.attn.0.value` or `patch.attn.0.mask`."""
    return f"{PATCH}{name}.{part}"


class Here:
    """A fixed call site, for nodes that the library makes on behalf of one of the user's."""

    site: Site | None = None


class State(NamedTuple):
    """What runs: a trace, and a rewrite of nodes."""

    trace: object  # an `ambient.Trace`, or None
    here: Here | None


_STATE: ContextVar[State | None] = ContextVar("tracegrad_state", default=None)

# None where ops run at once. A public op asks this itself: `building` would be a call of Python more.
STATE = _STATE.get
enter = _STATE.set


def restored(fn: Callable[P, R]) -> Callable[P, R]:
    """`fn`; behind it the state is what it was before, whenever an interrupt comes.

    A `with` block alone is not enough: an interrupt right behind its beginning, or right before its end, skips the
    end, and a trace would stay open. Whatever is called from outside a trace, and begins one, is decorated with this.
    """

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = STATE()
        try:
            return fn(*args, **kwargs)
        finally:
            enter(before)

    return call


class Block(Generic[T]):
    """A `with` block that has a state of its own, and what it is entered for."""

    def __init__(self, state: State, given: T) -> None:
        self.state, self.given = state, given
        self.before = STATE()

    def __enter__(self) -> T:
        enter(self.state)
        return self.given

    def __exit__(self, *error: object) -> None:
        if STATE() is self.state:  # a generator ends its block late, when the exception that left it is let go
            enter(self.before)


def rewriting() -> Block[Here]:
    """Inside, new nodes take the site set here instead of the caller's."""
    here, before = Here(), STATE()
    return Block(State(None if before is None else before.trace, here), here)


def current_site() -> Site | None:
    """Return the line new nodes belong to: the user's, or that of the node being rewritten."""
    state = STATE()
    return call_site() if state is None or state.here is None else state.here.site


def is_rewriting() -> bool:
    """Return True while the library itself makes nodes, outside any user's function."""
    state = STATE()
    return state is not None and state.here is not None


def building() -> bool:
    """Return True inside a trace or a rewrite: ops make nodes. Elsewhere they run at once."""
    return STATE() is not None
