"""What one op is for one choice of argument types: traced once as a graph, then replayed as straight-line Python.

The public function of the op is the only definition: it is called on leaves, and gives a graph of rows, whose array
rules compute the forward and whose VJPs, in `transforms.grad`, give the backward. Replaying costs no shape rule, no
broadcast and no check: equal types have passed them.
"""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

from tracegrad import ambient
from tracegrad.arrays import np
from tracegrad.dtypes import f32
from tracegrad.errors import DTypeError, RangeError, TraceError
from tracegrad.imperative import streams, tape
from tracegrad.imperative.shorter import shorten
from tracegrad.imperative.spell import Writer, constant, reach
from tracegrad.imperative.tensors import GradTensor
from tracegrad.imperative.values import NUMBER, Array, Spec, spec_of
from tracegrad.ir import Tensor, toposort
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.simplify import simplify
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.grad import arriving

Mask = tuple[bool, ...]
Take = Callable[[Any], Any]  # a user's array as an operand

# What `tensors.wrap` and `tape.Record` do, in the plan's own function: calls of Python cost more than all of it
WRAPPED = """\
t{k} = new(GradTensor)
t{k}._array = {value}
t{k}._spec = spec{k}
t{k}._grad = None
"""
PLAIN = """\
t{k}._record = None
t{k}._requires = False
"""
RECORDED = """\
t{k}._record = r{k} = new(Record)
t{k}._requires = True
r{k}.pullback = pullback{k}
r{k}.saved = {saved}
r{k}.sources = ({owners})
r{k}.serial = serial()
r{k}.retained = None
"""


class Recorded(NamedTuple):
    """One result of a plan that remembers what a backward needs."""

    value: str  # its name in the plan's lines
    saved: str  # what its pullback reads, there: a tuple
    pullback: Callable[[Array, tuple[Array, ...]], tuple[Array, ...]] | None  # None without a derivative
    sources: tuple[int, ...]  # which inputs the cotangents that the pullback gives belong to


class OpPlan:
    """An op on inputs of given types.

    inputs:   leaves in the order of the arrays; the last are those of the random `streams`, whose values come by
              themselves
    roots:    the results; `pack` puts them together as the op does, None for a single one
    double:   f32 stands for f64
    numbers:  serials of inputs that are Python numbers
    wrapped:  serial of an index leaf -> the length of its axis; negative ones count from the end
    """

    def __init__(
        self,
        inputs: list[Tensor],
        roots: list[Tensor],
        pack: Callable[[list[Any]], Any] | None,
        double: bool,
        numbers: frozenset[int] = frozenset(),
        streams: tuple[str, ...] = (),
        wrapped: dict[int, int] | None = None,
    ):
        self.inputs, self.roots, self.pack, self.double = inputs, roots, pack, double
        self.numbers, self.streams, self.wrapped = numbers, streams, wrapped or {}
        self.results = self._simplified(roots)  # what is computed for the roots
        self._recorders: dict[Mask, Callable[..., Any]] = {}

    @cached_property
    def run(self) -> Callable[..., Any]:
        """The plan without gradients, as one function of arrays."""
        return self.written(())

    def written(self, takes: Sequence[Take | None]) -> Callable[..., Any]:
        """As `run`. takes: what makes an operand of each array as it comes."""
        writer, values = self.computed()
        for k, value in enumerate(values):
            writer.lines += (WRAPPED + PLAIN).format(k=k, value=value).splitlines()
        writer.lines[:0] = [f"x{k} = take{k}(x{k})" for k, take in enumerate(takes) if take is not None]
        writer.scope |= {f"take{k}": take for k, take in enumerate(takes)}
        return self._function(writer, "")

    def recorder(self, mask: Mask) -> Callable[..., Any]:
        """The plan that also remembers what the backward to the inputs of `mask` needs, as one function.

        Of the arrays, and then of the tensors that they are from, or None.
        """
        if mask not in self._recorders:
            writer, found = self.recorded(mask)
            writer.scope |= {"Record": tape.Record, "serial": tape.serial}
            for k, (value, saved, pullback, sources) in enumerate(found):
                owners = "".join([f"o{n}._record or o{n}, " for n in sources])
                text = WRAPPED + (PLAIN if pullback is None else RECORDED)
                writer.lines += text.format(k=k, value=value, saved=saved, owners=owners).splitlines()
                writer.scope[f"pullback{k}"] = pullback
            self._recorders[mask] = self._function(writer, "o")
        return self._recorders[mask]

    @property
    def fresh(self) -> bool:
        """Do the results have memory of their own, so that nobody minds what becomes of the arrays?"""
        return not any(map(_passed_on, self.results))

    def computed(self) -> tuple[Writer, list[str]]:
        """The lines that compute the results, and their names."""
        writer = self._writer()
        writer.write(self.results)
        return writer, [writer.names[t.serial] for t in self.results]

    def recorded(self, mask: Mask) -> tuple[Writer, list[Recorded]]:
        """The lines that also save what the backward to the inputs of `mask` reads."""
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
        values = [writer.names[t.serial] for t in roots]
        return writer, list(map(Recorded, values, map(writer.tuple, saved), pullbacks, sources))

    def _pullback(self, grads: Sequence[Tensor], saved: Sequence[Tensor], ct: Tensor) -> Callable[..., Any]:
        writer = Writer(self.double)
        writer.names = {ct.serial: "ct", **{t.serial: f"s{k}" for k, t in enumerate(saved)}}
        if saved:
            writer.lines.append(f"{writer.tuple(saved)} = saved")
        writer.write(grads)
        return writer.function("ct, saved", writer.tuple(grads))

    def _function(self, writer: Writer, owners: str) -> Callable[..., Any]:
        """Lines that make the tensors t0, t1, ... as a function. owners: "o" if it takes o0, o1, ... too."""
        given = len(self.inputs) - len(self.streams)
        if self.streams:
            drawn = "".join([f"x{k}, " for k in range(given, len(self.inputs))])
            writer.lines.insert(0, f"{drawn} = counters()")
            writer.scope["counters"] = partial(streams.values, self.streams)
        specs = [spec_of(t.type, self.double and t.dtype is f32) for t in self.roots]
        writer.scope |= {"new": object.__new__, "GradTensor": GradTensor, "pack": self.pack}
        writer.scope |= {f"spec{k}": spec for k, spec in enumerate(specs)}
        made = ", ".join([f"t{k}" for k in range(len(specs))])
        parameters = [f"{letter}{k}" for letter in f"x{owners}" for k in range(given)]
        return writer.function(", ".join(parameters), made if self.pack is None else f"pack([{made}])")

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


def ran(plan: OpPlan, arrays: Sequence[Any], tensors: Sequence[Any]) -> Any:
    """The result of a plan. `tensors`: whose gradients it passes on, in the order of `arrays`."""
    mask = tuple([type(t) is GradTensor and t._requires for t in tensors])
    if True in mask and tape.recording.get():
        return plan.recorder(mask)(*arrays, *tensors)
    return plan.run(*arrays)


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
    specs: Sequence[Spec],
) -> OpPlan:  # fmt: skip
    """The plan of `f`; `call` puts leaves, in the order of `specs`, in the places of its array arguments."""
    floats = [s for s in specs if s is not NUMBER and s.type.dtype.is_float]
    double = any(s.double for s in floats)
    if double and not all(s.double for s in floats):
        shown = " and ".join(map(repr, floats))
        raise DTypeError(f"dtypes differ: {shown}; make one of the other's with tg.tensor(x, dtype=...)")
    with ambient.tracing(eager=True) as running, ambient.rewriting():
        leaves = [leaf("input", f"x{k}", s.type) for k, s in enumerate(specs)]
        args, kwargs = call(leaves)
        result = f(*args, **kwargs)
    roots, pack = _parts(result)
    numbers = frozenset(t.serial for t, s in zip(leaves, specs) if s is NUMBER)
    inputs = [*leaves, *running.counters.values()]
    return OpPlan(inputs, roots, pack, double, numbers, tuple(running.counters), dict(running.wrapped))


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
