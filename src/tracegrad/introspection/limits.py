"""The limits of a device, measured by two programs: a large matmul and a large copy."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tracegrad.arrays import np
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.graph import Graph
from tracegrad.introspection.tables import amount
from tracegrad.ir import Tensor
from tracegrad.ops.linalg import matmul
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer, Program
from tracegrad.runtime.base import Session

GPU = 4096, 2**25  # side of the matmul, elements copied: 3 ms and 0.1 ms on an NVIDIA H200; neither fits its cache
CPU = 512, 2**24  # for a CPU and for a software adapter: tens of milliseconds
RUNS, SECONDS = 50, 0.3  # the fastest of RUNS runs counts, or of the runs within SECONDS
A, B, RESULT = "profile.a", "profile.b", "profile.result"  # no array of a user's program has a dot in its name


class Limits(NamedTuple):
    """The highest rates reached, per second."""

    flops: float
    bytes: float
    side: int  # of the product's matrices
    copied: int  # elements

    def share(self, flops: int, bytes: int, seconds: float) -> tuple[float, str]:
        """Return the share of the device's limit that this work reaches, and the limit: "compute" or "memory"."""
        compute, memory = flops / self.flops, bytes / self.bytes
        return max(compute, memory) / seconds if seconds else 0.0, "compute" if compute > memory else "memory"

    def __str__(self) -> str:
        side, copied = f"{self.side} x {self.side}", amount(8 * self.copied, "B")
        return (
            f"limits, measured here: {amount(self.flops, 'FLOP/s')} (a product of {side} matrices), "
            f"{amount(self.bytes, 'B/s')} (a copy, {copied} read and written)"
        )


class Holder(Protocol):
    """The owner of a session, who keeps the limits of its device."""

    limits: Limits | None


def limits_of(holder: Holder, session: Session) -> Limits:
    """Return the limits of the session's device, measured at the first call. On the worker's thread."""
    if holder.limits is None:
        holder.limits = measure_limits(session)
    return holder.limits


def measure_limits(session: Session) -> Limits:
    """Run both programs on the session's device, and unload them."""
    info = session.info
    side, copied = GPU if info.gpu and not info.software else CPU
    return Limits(
        2 * side**3 / _fastest(session, _product(side)), 8 * copied / _fastest(session, _copy(copied)), side, copied
    )


def _fastest(session: Session, program: Program) -> float:
    """Return the seconds of the fastest run, on random numbers: zeros are faster on some devices."""
    handle = session.load(program)
    try:
        numbers: Any = np.random.default_rng(0)
        for b in program.buffers:
            if b.name in (A, B):
                session.write(b.name, numbers.random(b.size, np.float32))
        first = session.timings(handle, {}, 1).quickest
        return session.timings(handle, {}, min(RUNS, 3 + int(SECONDS / first))).quickest
    finally:
        session.unload(handle)


def _product(side: int) -> Program:
    a, b = (_array(name, side * side) for name in (A, B))
    return _program(matmul(a.reshape(side, side), b.reshape(side, side)).reshape(side * side), A, B)


def _copy(size: int) -> Program:
    return _program(-_array(A, size), A)


def _array(name: str, size: int) -> Tensor:
    return leaf("state", name, TensorType(f32, (size,)))


def _program(result: Tensor, *names: str) -> Program:
    buffers = tuple(Buffer(name, "f32", result.size, "state") for name in (*names, RESULT))
    return make_program(Graph({}, {}, {RESULT: result}), Persistent(buffers, (), {}), {}, {})
