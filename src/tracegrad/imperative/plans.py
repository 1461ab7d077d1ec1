"""What one op is for one choice of argument types: traced once as a graph, then replayed as straight-line Python.

The public function of the op is the only definition: it is called on leaves, and gives a graph of rows, whose array
rules compute the forward and whose VJPs, in `transforms.grad`, give the backward. Replaying costs no shape rule, no
broadcast and no check: equal types have passed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tracegrad import ambient
from tracegrad.arrays import np
from tracegrad.dtypes import TensorType, f32
from tracegrad.errors import DTypeError, RangeError, TraceError
from tracegrad.imperative.shorter import shorten
from tracegrad.imperative.spell import Writer, constant, f64, reach
from tracegrad.ir import Tensor, toposort
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.simplify import simplify
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.grad import arriving

Array = Any
Mask = tuple[bool, ...]


class Spec:
    """The type of an eager tensor, one object for each, so that plans are found by identity."""

    __slots__ = ("double", "dtype", "ones", "shape", "type")

    def __init__(self, type: TensorType, double: bool):
        self.type, self.double = type, double
        self.dtype, self.shape = f64 if double and type.dtype is f32 else type.dtype, type.shape
        # The seed of `backward`, of one number in memory
        self.ones = np.broadcast_to(np.ones((), self.dtype.numpy), self.shape)

    def __repr__(self) -> str:
        return repr(TensorType(self.dtype, self.shape))


_specs: dict[tuple[int, tuple[int, ...], bool], Spec] = {}


def spec_of(type: TensorType, double: bool = False) -> Spec:
    """The one Spec of a type."""
    key = (id(type.dtype), type.shape, double)  # there is one object for each dtype
    found = _specs.get(key)
    if found is None:
        found = _specs[key] = Spec(type, double)
    return found


@dataclass(frozen=True, slots=True)
class Number:
    """Stands in a signature for a Python number whose value the plan takes with each call."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A plan for calls whose gradient may be asked for; of each result:

    values, saved: the names that the lines of `writer` give it, and a tuple of what its pullback reads
    pullbacks:     (cotangent, saved) -> one cotangent per source; None without a derivative
    sources:       which inputs these belong to
    """

    writer: Writer
    values: list[str]
    saved: list[str]
    pullbacks: list[Callable[[Array, tuple[Array, ...]], tuple[Array, ...]] | None]
    sources: list[tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Plan:
    """An op on inputs of given types.

    inputs:   leaves in the order of the arrays; `streams` are further leaves, of the random streams
    roots:    the results; `pack` puts their values together as the op does
    """

    inputs: list[Tensor]
    roots: list[Tensor]
    pack: Callable[[list[Any]], Any] | None
    double: bool
    numbers: frozenset[int]
    streams: tuple[str, ...]
    wrapped: dict[int, int]  # serial of an index leaf -> the length of its axis; negative ones count from the end
    results: list[Tensor] = field(default_factory=list[Tensor])  # what is computed for the roots
    specs: tuple[Spec, ...] = ()
    spec: Spec | None = None  # of the one result
    run: Callable[..., Any] | None = None  # written by `running` when it is first asked for, as
    recorders: dict[Mask, Callable[..., Any]] = field(default_factory=dict[Mask, Callable[..., Any]])

    def __post_init__(self) -> None:
        self.results = self._simplified(self.roots)
        self.specs = tuple(spec_of(t.type, self.double and t.dtype is f32) for t in self.roots)
        self.spec = self.specs[0] if self.pack is None else None

    @property
    def parameters(self) -> str:
        """The arrays as a function's parameters."""
        return ", ".join([f"x{k}" for k in range(len(self.inputs))])

    def computed(self, before: Sequence[str] = ()) -> tuple[Writer, list[str]]:
        """The lines that compute the results, and their names. before: lines that make operands of what comes."""
        writer = self._writer()
        writer.lines[:0] = before
        writer.write(self.results)
        return writer, [writer.names[t.serial] for t in self.results]

    @property
    def fresh(self) -> bool:
        """Do the results have memory of their own, so that nobody minds what becomes of the arrays?"""
        return not any(map(_passed_on, self.results))

    def recorded(self, mask: Mask) -> Recorded:
        """The plan that also saves what the backward to the inputs of `mask` reads."""
        wrt = [k for k, wanted in enumerate(mask) if wanted]
        cts = [leaf("input", f"ct{k}", t.type) for k, t in enumerate(self.roots)]
        found = [
            arriving([y], [ct], [self.inputs[k] for k in wrt]) if y.dtype.is_float else [None] * len(wrt)
            for y, ct in zip(self.roots, cts)
        ]
        sources = [tuple(k for k, g in zip(wrt, gs) if g is not None) for gs in found]
        grads = [[g for g in gs if g is not None] for gs in found]
        nodes = iter(self._simplified([*self.roots, *(g for gs in grads for g in gs)]))
        roots = [next(nodes) for _ in self.roots]
        grads = [[next(nodes) for _ in gs] for gs in grads]
        forward = {t.serial for t in toposort(roots)}
        saved = [_saved(gs, forward, ct) for gs, ct in zip(grads, cts)]
        writer = self._writer()
        writer.write([*roots, *(t for ts in saved for t in ts)])
        pullbacks = [self._pullback(gs, ts, ct) if gs else None for gs, ts, ct in zip(grads, saved, cts)]
        return Recorded(
            writer, [writer.names[t.serial] for t in roots], list(map(writer.tuple, saved)), pullbacks, sources
        )

    def _pullback(self, grads: Sequence[Tensor], saved: Sequence[Tensor], ct: Tensor) -> Callable[..., Any]:
        writer = Writer(self.double)
        writer.names = {ct.serial: "ct", **{t.serial: f"s{k}" for k, t in enumerate(saved)}}
        if saved:
            writer.lines.append(f"{writer.tuple(saved)} = saved")
        writer.write(grads)
        return writer.function("ct, saved", writer.tuple(grads))

    def _writer(self) -> Writer:
        """A writer that knows the inputs, has made arrays of the numbers, and checked the indices among them."""
        writer = Writer(self.double)
        writer.names = {t.serial: f"x{k}" for k, t in enumerate(self.inputs)}
        limits = {**_limits(self.roots), **{serial: (n, None, n) for serial, n in self.wrapped.items()}}
        for t in self.inputs:
            name = writer.names[t.serial]
            if t.serial in self.numbers:
                writer.scope |= {"array": np.array, "float_": np.dtype("float64" if self.double else "float32")}
                writer.lines.append(f"{name} = array({name}, float_)")
            if t.serial in limits:
                n, exempt, below = limits[t.serial]
                writer.scope["indices"] = indices
                writer.lines.append(f"{name} = indices({name}, {n}, {exempt}, {below})")
        return writer

    def _simplified(self, roots: Sequence[Tensor]) -> list[Tensor]:
        expanded = expand_composites(roots)
        return shorten(expanded if self.double else simplify(expanded))  # simplifying folds constants in f32


def _passed_on(t: Tensor) -> bool:
    """May the value of `t` be an input's memory?"""
    while t.prim.family == "view" or t.prim.passes:
        t = t.inputs[0]
    return t.prim.family in ("leaf", "scan", "item")


def _saved(grads: Sequence[Tensor], forward: set[int], ct: Tensor) -> list[Tensor]:
    """The values of the forward that the backward reads; views of such values are made again."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    stack = list(grads)
    while stack:
        t = stack.pop()
        if t.serial in seen or t is ct or constant(t):
            continue
        seen.add(t.serial)
        if t.serial in forward and t.prim.family != "view":
            found[t.serial] = t
        else:
            stack.extend(t.inputs)
    return [found[serial] for serial in sorted(found)]


def _limits(roots: Sequence[Tensor]) -> dict[int, tuple[int, int | None, int]]:
    """Leaves that are indices, seen through views: the length of their axis, an exempt value, and how far below 0."""
    found: dict[int, tuple[int, int | None, int]] = {}
    for t in reach(roots, ()):
        if t.prim.indexes is not None:
            which, n, exempt = t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
            x = t.inputs[which]
            while x.prim.family == "view":
                x = x.inputs[0]
            found[x.serial] = n, exempt, 0
    return found


def indices(x: Array, n: int, exempt: int | None, below: int) -> Array:
    """`x`, negative ones counted from the end; RangeError unless all are in [-below, n) or `exempt`."""
    if not x.size:
        return x
    least, most = int(x.min()), int(x.max())
    if -below <= least and most < n:
        return x if least >= 0 else x + (x < 0) * np.int32(n)
    bad = x[(x < -below) | (x >= n)]
    bad = bad if exempt is None else bad[bad != exempt]
    if bad.size:
        raise RangeError(f"index {bad.flat[0]} is out of range; valid are {-below} to {n - 1}")
    return x


def traced(
    f: Callable[..., Any], call: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
    specs: Sequence[Spec | Number],
) -> Plan:  # fmt: skip
    """The plan of `f`; `call` puts leaves, in the order of `specs`, in the places of its array arguments."""
    floats = [s for s in specs if isinstance(s, Spec) and s.type.dtype.is_float]
    double = any(s.double for s in floats)
    if double and not all(s.double for s in floats):
        shown = " and ".join(map(repr, floats))
        raise DTypeError(f"dtypes differ: {shown}; make one of the other's with tg.tensor(x, dtype=...)")
    with ambient.tracing(eager=True) as running, ambient.rewriting():
        leaves = [leaf("input", f"x{k}", s.type if isinstance(s, Spec) else TensorType(f32, ()))
                  for k, s in enumerate(specs)]  # fmt: skip
        args, kwargs = call(leaves)
        result = f(*args, **kwargs)
    roots, pack = _parts(result)
    streams = tuple(running.counters)
    numbers = frozenset(t.serial for t, s in zip(leaves, specs) if isinstance(s, Number))
    inputs = [*leaves, *running.counters.values()]
    return Plan(inputs, roots, pack, double, numbers, streams, dict(running.wrapped))


def _parts(result: Any) -> tuple[list[Tensor], Callable[[list[Any]], Any] | None]:
    """The tensors of a result, and how to put their values in their places; None for one tensor."""
    if isinstance(result, Tensor):
        return [result], None
    if isinstance(result, (list, tuple)):
        parts = list(cast("Sequence[Any]", result))
        if all(isinstance(x, Tensor) for x in parts):
            return parts, tuple if isinstance(result, tuple) else list
    raise TraceError(
        f"gives a {type(cast('object', result)).__name__}; an op that runs at once gives a tensor, or several"
    )
