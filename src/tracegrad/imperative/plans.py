"""Plans: one op for one choice of argument types, traced once as a graph, then replayed as straight-line Python.

The public function of the op is the only definition. Called on leaves, it gives a graph of rows: their array rules
compute the forward, and their VJPs, in `transforms.grad`, the backward. A replay runs no shape rule, no broadcast and
no check of types, because equal types have passed them already. It does check the values of indices.
"""

# The modules of imperative/ use the private slots of GradTensor. Users should not.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, cast

from tracegrad.arrays import np
from tracegrad.dtypes import f32
from tracegrad.errors import DTypeError, RangeError, TraceError
from tracegrad.imperative import streams, tape
from tracegrad.imperative.spell import Writer, is_fixed, reach
from tracegrad.imperative.tensors import GradTensor
from tracegrad.imperative.values import NUMBER, Array, Spec, f64, spec_of
from tracegrad.ir import ambient
from tracegrad.ir.graph import reached, unmoved
from tracegrad.ir.nodes import PRIMITIVES, Tensor, bind, rebind, toposort
from tracegrad.passes.expand import with_array_rules
from tracegrad.passes.indexed import indexed
from tracegrad.passes.simplify import simplify
from tracegrad.prims.elementwise import WHERE
from tracegrad.prims.leaves import constant, leaf
from tracegrad.prims.views import RESHAPE
from tracegrad.refusals import article, valid
from tracegrad.transforms.walks import arriving

# `tensors.wrap` and `tape.Record` inlined into the plan's function, because Python calls cost more than their work
RECORD = """\
r{k} = new(Record)
r{k}.pullback = pullback{k}
r{k}.saved = {saved}
r{k}.sources = ({owners})
r{k}.age = age()
r{k}.retained = None
"""
TENSOR = """\
t{k} = new(GradTensor)
t{k}._array = {value}
t{k}._spec = spec{k}
t{k}._record = {record}
t{k}._grad = None
"""


class Source(NamedTuple):
    """Where a plan's function gets one array from."""

    text: str  # an expression of the function's parameters
    take: Callable[[Any], Array] | None = None  # converts a user's array, which can change, to an operand
    owner: str = ""  # the tensor that needs the gradient


class Recorded(NamedTuple):
    """One result of a plan, and the inputs of its backward pass."""

    value: str  # the result's name in the plan's lines
    saved: str  # the pullback's inputs in the plan's lines, as a tuple
    pullback: Callable[[Array, tuple[Array, ...]], tuple[Array, ...]] | None  # None without a derivative
    sources: tuple[int, ...]  # inputs that the pullback's cotangents belong to


@dataclass(frozen=True)
class Plan:
    """An op on inputs of given types.

    inputs:  leaves in the order of the arrays; the last leaves are those of the random `streams`, which the plan fills
             itself
    roots:   the results; `many` is the type of what the op returns: a list, a tuple or a named one; None for one result
    double:  f32 stands for f64
    wrapped: serial of an index leaf -> (n, below): its numbers are in [-below, n); negative ones count from the end
    """

    inputs: Sequence[Tensor]
    roots: Sequence[Tensor]
    many: type[Any] | None
    double: bool
    streams: Sequence[str] = ()
    wrapped: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def function(self, parameters: Sequence[str], sources: Sequence[Source]) -> Callable[..., Any]:
        """Return the plan as a function of `parameters`, which reads its arrays from `sources`."""
        wrt = [k for k, source in enumerate(sources) if source.owner]
        writer, results, fresh = self.recorded(wrt)
        given = ", ".join(parameters)
        # If results are new memory, later changes of the user's arrays do no harm
        takes = [None if fresh and not wrt and s.take is np.ndarray.copy else s.take for s in sources]
        writer.lines[:0] = [
            f"x{k} = {s.text if take is None else f'take{k}({s.text})'}"
            for k, (s, take) in enumerate(zip(sources, takes))
        ]
        writer.scope |= {f"take{k}": take for k, take in enumerate(takes)}
        if wrt:
            plain = partial(self.function, parameters, [s._replace(owner="") for s in sources])
            writer.scope |= {"recording": tape.recording.get, "plain": cache(plain)}
            writer.lines.insert(0, f"if not recording(): return plain()({given})")
        for k, (y, result) in enumerate(zip(self.roots, results)):
            recorded = result.pullback is not None
            owners = "".join([f"{sources[n].owner}._record or {sources[n].owner}, " for n in result.sources])
            text = (RECORD if recorded else "") + TENSOR
            record = f"r{k}" if recorded else "None"
            text = text.format(k=k, value=result.value, saved=result.saved, owners=owners, record=record)
            writer.lines += text.splitlines()
            spec = spec_of(y.type, self.double and y.dtype is f32, recorded)
            writer.scope |= {f"pullback{k}": result.pullback, f"spec{k}": spec}
        made = ", ".join([f"t{k}" for k in range(len(results))])
        writer.scope["many"] = self.many
        made = {None: "{}", tuple: "({},)", list: "[{}]"}.get(self.many, "many({})").format(made)  # or a named tuple
        run: Any = writer.function(given, made)
        run.plan = self
        return run

    def recorded(self, wrt: Sequence[int]) -> tuple[Writer, list[Recorded], bool]:
        """Return a writer with the lines that compute the results; the results; and whether all are new memory.

        wrt: numbers of the inputs that need a gradient. The lines also compute what the backward pass reads.
        """
        cts = [leaf("input", f"ct{k}", t.type) for k, t in enumerate(self.roots)]
        found = [
            arriving([y], [ct], [self.inputs[k] for k in wrt]) if wrt and y.dtype.is_float else [None] * len(wrt)
            for y, ct in zip(self.roots, cts)
        ]
        sources = [tuple(k for k, g in zip(wrt, gs) if g is not None) for gs in found]
        grads = [[g for g in gs if g is not None] for gs in found]
        nodes = iter(self._simplified([*self.roots, *(g for gs in grads for g in gs)]))
        roots = [next(nodes) for _ in self.roots]
        grads = [[next(nodes) for _ in gs] for gs in grads]
        # inputs count too: the gradient of an empty result can read inputs that the result does not read
        forward = {t.serial for t in [*toposort(roots), *self.inputs]}
        saved = [_saved(gs, forward, ct) for gs, ct in zip(grads, cts)]
        writer = self._writer()
        writer.write([*roots, *(t for ts in saved for t in ts)])
        pullbacks = [self._pullback(gs, ts, ct) if gs else None for gs, ts, ct in zip(grads, saved, cts)]
        values = [writer.names[t.serial] for t in roots]
        fresh = all(unmoved(t).prim.family not in ("leaf", "scan", "item") for t in roots)  # else inputs share memory
        return writer, list(map(Recorded, values, map(writer.tuple, saved), pullbacks, sources)), fresh

    def _pullback(self, grads: Sequence[Tensor], saved: Sequence[Tensor], ct: Tensor) -> Callable[..., Any]:
        writer = Writer(self.double)
        writer.names = {ct.serial: "ct", **{t.serial: f"s{k}" for k, t in enumerate(saved)}}
        if saved:
            writer.lines.append(f"{writer.tuple(saved)} = saved")
        writer.write(grads)
        return writer.function("ct, saved", writer.tuple(grads))

    def _writer(self) -> Writer:
        """Return a writer that knows the inputs, draws random ones from the streams, and checks indices."""
        writer = Writer(self.double)
        writer.names = {t.serial: f"x{k}" for k, t in enumerate(self.inputs)}
        writer.scope |= {
            "new": object.__new__, "GradTensor": GradTensor, "Record": tape.Record, "age": tape.age, "array": np.array,
            "float_": np.dtype("float64" if self.double else "float32"), "indices": indices,
        }  # fmt: skip
        if self.streams:
            drawn = "".join([f"{writer.names[t.serial]}, " for t in self.inputs[-len(self.streams) :]])
            writer.lines.append(f"{drawn} = counters()")
            writer.scope["counters"] = partial(streams.values, self.streams)
        for serial, (n, below) in self.wrapped.items():
            name = writer.names[serial]
            writer.lines.append(f"{name} = indices({name}, {n}, None, {below})")
        for t, box, n, exempt in indexed(reach(self.roots, ()), {}):
            if t.serial not in self.wrapped:
                writer.lines.append(f"indices({writer.names[t.serial]}[{part(box)}], {n}, {exempt}, 0)")
        return writer

    def _simplified(self, roots: Sequence[Tensor]) -> list[Tensor]:
        expanded = with_array_rules(roots)
        return shorten(expanded if self.double else simplify(expanded))  # simplifying folds constants in f32


def _saved(grads: Sequence[Tensor], forward: set[int], ct: Tensor) -> list[Tensor]:
    """Return the values of the forward pass that the backward pass reads; it recomputes views of them."""

    def saved(t: Tensor) -> bool:
        return t.serial in forward and t.prim.family != "view"

    def computed(nodes: Iterable[Tensor]) -> list[Tensor]:
        return [t for t in nodes if t is not ct and not is_fixed(t)]

    nodes = reached(computed(grads), lambda t: () if saved(t) else computed(t.inputs))
    return sorted(filter(saved, nodes), key=attrgetter("serial"))


def part(box: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    """Return the NumPy index of a box, which has the first and last index along each axis."""
    return tuple([slice(first, last + 1) for first, last in box])


def indices(x: Array, n: int, exempt: int | None, below: int) -> Array:
    """Return `x`, negative indices counted from the end. Raise RangeError unless all are in [-below, n) or `exempt`."""
    if not x.size:
        return x
    least, most = int(x.min()), int(x.max())
    if -below <= least and most < n:
        return x if least >= 0 else x + (x < 0) * np.int32(n)
    bad = x[(x < -below) | (x >= n)]
    bad = bad if exempt is None else bad[bad != exempt]
    if bad.size:
        what = "index" if below else "value"  # classes, segments and lengths do not count from the end
        raise RangeError(f"{what} {bad.flat[0]} is out of range; {valid(below, n)}")
    return x


@ambient.restored
def traced(build: Callable[[Iterator[Tensor]], Any], specs: Sequence[Spec]) -> Plan:
    """Return the plan of the graph that `build` makes from leaves of the types `specs`.

    Raises DTypeError if float32 and float64 are mixed, and TraceError if a result is not a tensor.
    """
    floats = [s for s in specs if s is not NUMBER and s.type.dtype.is_float]
    double = any(s.double for s in floats)
    if double and not all(s.double for s in floats):
        shown = " and ".join(map(repr, floats))
        raise DTypeError(f"dtypes differ: {shown}; give both one dtype with tg.tensor(x, dtype=...)")
    with ambient.tracing(eager=True) as running, ambient.rewriting():
        running.double = f64 if double else None
        leaves = [leaf("input", f"x{k}", s.type) for k, s in enumerate(specs)]
        result = build(iter(leaves))
    many: type[Any] | None = None if isinstance(result, Tensor) else cast("type[Any]", type(result))
    roots = cast("Sequence[Any]", result if isinstance(result, (tuple, list)) else [result])
    if not all(isinstance(t, Tensor) for t in roots):
        got = article(type(cast("object", result)).__name__)
        raise TraceError(f"returned {got}; an op must return a tensor, or several")
    return Plan([*leaves, *running.counters.values()], roots, many, double, tuple(running.counters), running.wrapped)


# NumPy computes a rewritten graph in fewer calls: a call costs more than the arithmetic of small arrays
@ambient.restored
def shorten(roots: Sequence[Tensor]) -> list[Tensor]:
    """Return `roots` with limits written as `maximum` or `minimum`, and with reshapes merged into folds."""
    nodes = toposort(roots)
    readers = Counter([x.serial for t in nodes for x in t.inputs] + [t.serial for t in roots])
    new: dict[int, Tensor] = {}
    with ambient.rewriting():
        for t in nodes:
            inputs = tuple([new[x.serial] for x in t.inputs])
            if t.prim is RESHAPE and readers[t.inputs[0].serial] == 1 and _drops(t):
                (fold,) = inputs
                attrs = {"axes": fold.axes if t.ndim else None, "keepdims": False}  # None, for all axes, is the fastest
                new[t.serial] = Tensor(fold.prim, fold.inputs, attrs, t.type, t.site)
            else:
                limit = _limit(t)
                # The number is the second operand: of equal values NumPy returns the second, so -0.0 becomes 0.0
                new[t.serial] = (
                    bind(PRIMITIVES[limit[0]], inputs[2], inputs[1]) if limit else rebind(t, inputs) if inputs else t
                )
    return [new[t.serial] for t in roots]


def _drops(t: Tensor) -> bool:
    """Return whether a reshape only drops the axes that its input has folded."""
    x = t.inputs[0]
    return x.prim.family == "fold" and t.shape == tuple([n for d, n in enumerate(x.shape) if d not in x.axes])


def _limit(t: Tensor) -> tuple[str, Tensor, float] | None:
    """Read `where(x <= k, k, x)` of a number k as ("maximum", x, k), and `where(k <= x, k, x)` as ("minimum", x, k).

    The last x can also be a limit on the other side, if that limit is no nearer.
    """
    if t.prim is not WHERE or t.inputs[0].prim.name not in ("less", "less_equal"):
        return None
    (a, b), k, y = t.inputs[0].inputs, constant(t.inputs[1]), t.inputs[2]
    x, name = (a, "maximum") if constant(b) == k else (b, "minimum")
    if k is None or k != k or constant(b if x is a else a) != k:
        return None
    inner = _limit(y) if y is not x else None
    between = inner is not None and inner[1] is x and inner[0] != name and (inner[2] >= k) == (name == "maximum")
    return (name, x, k) if y is x or between else None
