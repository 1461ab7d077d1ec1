"""The current trace: the run of a user's function to which ops add their nodes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from tracegrad.dtypes import DType
from tracegrad.errors import TraceError
from tracegrad.ir.nodes import Tensor
from tracegrad.sites import STATE, Block, SiteInfo, State, building, is_rewriting, restored, rewriting

__all__ = ["NO_TRACE", "Trace", "active", "building", "is_rewriting", "require", "restored", "rewriting", "tracing"]


class Trace:
    """One run of a user's function: its leaves, captures, sites and random sites.

    patching: True if `tg.patch` makes leaves; else it returns its argument.
    eager:    True for the trace of one eager op: random streams and indices are inputs of each call.
    """

    def __init__(self, patching: bool = False, eager: bool = False) -> None:
        self.patching, self.eager = patching, eager
        self.leaves: set[int] = set()  # serials of this trace's own leaves
        self.captures: dict[str, Tensor] = {}
        self.sites: dict[tuple[str, str], SiteInfo] = {}  # by kind and name
        self.counters: dict[str, Tensor] = {}
        self.hypers: dict[str, float] = {}  # tg.hyper values and their defaults
        self.writes: dict[str, Tensor] = {}  # new values of the model's states, by `state/<path>`
        # serial of a metric -> how batches are joined, and the parts; None outside of validation
        self.measured: dict[int, tuple[str, tuple[Tensor, ...]]] | None = None
        # calls of dropout and BatchNorm: a name for users, the argument `training`, and a parameter of the layer
        self.switched: list[tuple[str, bool, Tensor]] = []
        self.random_sites = 0
        # for each open `vmap` the index of the element, for each open `scan` the number of the iteration
        self.lanes: list[Tensor] = []
        self.scans = 0  # number of open scans
        # eager tensors that the function closes over, by identity, with their leaves; None: they are constants
        self.closed: dict[int, tuple[object, Tensor]] | None = None
        self.wrapped: dict[int, tuple[int, int]] = {}  # index leaves of an eager op, as in `imperative.plans.Plan`
        self.double: DType | None = None  # f64, if f32 stands for it here, as in a call of eager tensors of f64
        self.rounded = False  # whether a list was rounded to f32

    def next_salt(self) -> int:
        """Return the number of the next random op in trace order, which keys its stream."""
        self.random_sites += 1
        return self.random_sites

    @contextmanager
    def inside(self, number: Tensor) -> Generator[None]:
        """Mark, while the context is open, that the body of a scan is traced. `number`: the iteration, u32."""
        self.lanes.append(number)
        self.scans += 1
        try:
            yield
        finally:
            self.lanes.pop()
            self.scans -= 1


NO_TRACE = (
    "there is no trace here. Traced tensors are used inside the loss or forward that tg.compile, tg.compile_forward, "
    "attach or tg.trace calls; elsewhere ops run at once, on arrays and eager tensors (tg.tensor)"
)


def active() -> Trace | None:
    """Return the running trace, or None."""
    state = STATE()
    return None if state is None else cast("Trace | None", state.trace)


def require(what: str) -> Trace:
    """Return the running trace. Raises TraceError naming `what` if there is none."""
    t = active()
    if t is None:
        raise TraceError.here(f"{what}: {NO_TRACE}")
    return t


def tracing(patching: bool = False, eager: bool = False) -> Block[Trace]:
    """Return a context manager that runs its block in a new trace. Arguments: as for `Trace`."""
    t, before = Trace(patching, eager), STATE()
    return Block(State(t, None if before is None else before.here), t)
