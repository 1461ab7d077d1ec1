"""The only ambient state: what is being traced, and which line of the user's code it stands for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, NamedTuple, ParamSpec, TypeVar

from tracegrad.errors import Site, TraceError, call_site
from tracegrad.sites import SiteInfo

if TYPE_CHECKING:
    from tracegrad.ir import Tensor


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Trace:
    """One run of a user's function: its leaves, captures, sites and random sites.

    patching: `tg.patch` makes leaves; else it gives its argument back
    eager:    of one op, which is run at once: streams and indices come with each call
    """

    def __init__(self, patching: bool = False, eager: bool = False) -> None:
        self.patching, self.eager = patching, eager
        self.leaves: set[int] = set()  # serials of this trace's own leaves
        self.captures: dict[str, Tensor] = {}
        self.sites: dict[tuple[str, str], SiteInfo] = {}  # by kind and name
        self.counters: dict[str, Tensor] = {}
        self.hypers: dict[str, float] = {}  # tg.hyper values and their defaults
        self.writes: dict[str, Tensor] = {}  # new values of the model's states, by `state/<path>`
        # by a metric's serial, how batches are joined and from what; None where it is not needed
        self.measured: dict[int, tuple[str, tuple[Tensor, ...]]] | None = None
        self.random_sites = 0
        # the place in each batch that `vmap` runs over, and the number of the iteration in each `scan`
        self.lanes: list[Tensor] = []
        self.scans = 0  # how many are open
        # eager tensors around a function that runs at once, by identity, and their leaves; None: they are constants
        self.closed: dict[int, tuple[object, Tensor]] | None = None
        self.wrapped: dict[int, int] = {}  # index leaves of an eager op: axis length by serial

    def next_salt(self) -> int:
        """The number of this random op in trace order; it keys its stream."""
        self.random_sites += 1
        return self.random_sites

    @contextmanager
    def inside(self, number: Tensor) -> Generator[None]:
        """The body of a scan is traced; `number` is that of the iteration, as u32."""
        self.lanes.append(number)
        self.scans += 1
        try:
            yield
        finally:
            self.lanes.pop()
            self.scans -= 1


class Here:
    """A fixed call site, for nodes that the library makes on behalf of one of the user's."""

    site: Site | None = None


class _State(NamedTuple):
    trace: Trace | None
    here: Here | None


_state: ContextVar[_State | None] = ContextVar("tracegrad_state", default=None)

# None where ops run at once. A public op asks this itself: `building` would be a call of Python more.
STATE = _state.get

NO_TRACE = (
    "there is no trace here. Traced tensors are used inside the loss or forward that tg.compile, tg.compile_forward, "
    "attach or tg.trace calls; elsewhere ops run at once, on arrays and eager tensors (tg.tensor)"
)


def active() -> Trace | None:
    """The trace that is running, if any."""
    state = STATE()
    return None if state is None else state.trace


def require(what: str) -> Trace:
    """The running trace; TraceError naming `what` if there is none."""
    t = active()
    if t is None:
        raise TraceError.here(f"{what}: {NO_TRACE}")
    return t


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
            _state.set(before)

    return call


class Block(Generic[T]):
    """A `with` block that has a state of its own, and what it is entered for."""

    def __init__(self, state: _State, given: T) -> None:
        self.state, self.given = state, given
        self.before = STATE()

    def __enter__(self) -> T:
        _state.set(self.state)
        return self.given

    def __exit__(self, *error: object) -> None:
        if STATE() is self.state:  # a generator ends its block late, when the exception that left it is let go
            _state.set(self.before)


def tracing(patching: bool = False, eager: bool = False) -> Block[Trace]:
    """Start a trace of its own; `patching`: its patch sites can overwrite their values; `eager`: of one op."""
    t, before = Trace(patching, eager), STATE()
    return Block(_State(t, None if before is None else before.here), t)


def rewriting() -> Block[Here]:
    """Inside, new nodes take the site set here instead of the caller's."""
    here, before = Here(), STATE()
    return Block(_State(None if before is None else before.trace, here), here)


def current_site() -> Site | None:
    """The line new nodes belong to: the user's, or that of the node being rewritten."""
    state = STATE()
    return call_site() if state is None or state.here is None else state.here.site


def is_rewriting() -> bool:
    """True while the library itself makes nodes, outside any user's function."""
    state = STATE()
    return state is not None and state.here is not None


def building() -> bool:
    """True inside a trace or a rewrite: ops make nodes. Elsewhere they run at once."""
    return STATE() is not None
