"""TRACEGRAD_CHECK=1: compare a device's results with the reference, and name the first op that differs.

`runtime.inexact` defines how far apart results can be. Under precision="f16" the reference in f32 also rounds
wherever the device does. Some elements can then differ more. For example, Adam's first step depends on the signs of
gradients, and rounding can change the sign of a gradient near 0.

Indices that the device computes, and would clamp, are reported if they are out of range. Indices that come straight
from an input are always checked, see `inputs`; only computed ones need the reference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.arrays import HAVE_NUMPY, Array, np
from tracegrad.compiler.build import Built
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program, optimize, rounded
from tracegrad.errors import InputError, located
from tracegrad.ir.evaluate import evaluate, iterations, named_by_role, run
from tracegrad.ir.graph import Graph, reached
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.optim.guard import PARAMS
from tracegrad.passes.expand import with_array_rules
from tracegrad.passes.place import COMPUTING
from tracegrad.prims.elementwise import HALF
from tracegrad.program import Program
from tracegrad.refusals import valid
from tracegrad.runtime.base import Session
from tracegrad.runtime.memory import from_storage
from tracegrad.transforms.loops import Body, item

DECIDED = 1 / 500  # share of elements that roundings to half precision can decide
PROBE = "check."
Parts = tuple[tuple[str, slice], ...]


class Difference(NamedTuple):
    """A value that differs between a device and the reference."""

    name: str
    device: Array
    expected: Array
    at: tuple[int, ...]

    def __str__(self) -> str:
        where = f" at [{','.join(map(str, self.at))}]" if self.at else ""
        return f"{self.name} is {self.device[self.at]}{where}, the reference has {self.expected[self.at]}"


def compare(
    nodes: Mapping[str, Tensor],
    env: Mapping[str, Array],
    found: Mapping[str, Array],
    parts: Parts = (),
    halved: Mapping[str, Tensor] | None = None,
) -> list[Difference]:
    """Return the nodes whose value in `found` differs from the reference's, in order.

    env:    a leaf's array by role and name.
    parts:  each parameter's range in arrays that have one element per parameter element; each is compared alone.
    halved: the same nodes rounded as the device rounds them, if it does not compute in f32 only.
    """
    from tracegrad.runtime.inexact import wrong

    roots = named_by_role(list(nodes.values()))
    double = {n: np.asarray(x, np.float64) if np.asarray(x).dtype == np.float32 else x for n, x in env.items()}
    with np.errstate(all="ignore"):
        doubles = evaluate(roots, double, np)
        singles = evaluate(named_by_role([halved[n] for n in nodes]) if halved else roots, env, np)
    out: list[Difference] = []
    for name, single, exact in zip(nodes, map(np.asarray, singles), map(np.asarray, doubles)):
        x = np.asarray(found[name]).reshape(single.shape)
        whole = not parts or x.shape != (parts[-1][1].stop,)
        for part, at in [("", slice(None))] if whole else parts:
            bad = wrong(x[at], single[at], exact[at]) if x.ndim else wrong(x, single, exact)
            if bad.sum() > (DECIDED * bad.size if halved else 0):
                where = tuple(int(k) for k in np.argwhere(bad)[0])
                shown = f"{name} of {part}" if part else name
                out.append(Difference(shown, x[at] if x.ndim else x, exact[at] if x.ndim else exact, where))
    return out


class Checked(NamedTuple):
    """A run whose results are compared: its inputs, and the arrays it writes, before and after."""

    graph: Graph
    program: Program
    inputs: Mapping[str, Array]
    env: Mapping[str, Array]
    before: Mapping[str, Array]

    def differs(self, session: Session, outputs: Mapping[str, Array]) -> str:
        """Describe the first result that differs from the reference's, or "". No later run must be under way."""
        arrays = written(session, self.program, self.graph)
        values = {**outputs, **{name: _value(self.program, name, arrays) for name in self.graph.writes}}
        named = {n: t for n, t in {**self.graph.results, **self.graph.writes}.items() if n in values}
        half = rounded(self.graph) if self.graph.precision == "f16" else None
        halved = {**half.results, **half.writes} if half else None
        found = compare(named, self.env, values, _parts(self.program), halved)
        return str(found[0]) if found else ""

    def blame(self, session: Session) -> str:
        """Undo the run's writes, and describe the first op whose result on the device differs from the reference's.

        A second program is compiled, which outputs every value that the first one stores, and writes nothing. Its
        kernels are the same except for the places of their results.
        """
        for name, values in self.before.items():
            session.write(name, values)
        nodes = _stored(self.graph)
        probe = make_program(Graph({}, nodes), Persistent.of(self.program), {}, {"kind": "check"})
        handle = session.load(probe)
        try:
            (results,) = session.run(handle, [{f.name: self.inputs[f.name] for f in probe.inputs}]).outputs()
        finally:
            session.unload(handle)
        found = compare(nodes, self.env, {n: results[f"capture.{n}"] for n in nodes})
        if not found:
            return "no op differs when the program returns all values: the error depends on how kernels join ops"
        t = nodes[found[0].name]
        shown = str(found[0]).removeprefix(f"{found[0].name} ")
        return located(f"first op that differs: {t.prim.name}, {t.type}: it {shown}", t.site)


def checked(session: Session, built: Built, inputs: Mapping[str, Array], env: Mapping[str, Array]) -> Checked:
    """Record the arrays before a run on `inputs`, to check the run later. Raise InputError for indices out of range."""
    check_indices(built.graph, env)
    return Checked(built.graph, built.program, inputs, env, written(session, built.program, built.graph))


def written(session: Session, program: Program, graph: Graph) -> dict[str, Array]:
    """Return the persistent arrays that a graph writes, whole."""
    return {name: session.read(name) for name in dict.fromkeys(_array(program, name) for name in graph.writes)}


def _array(program: Program, name: str) -> str:
    """Return the array that the write of this name changes."""
    return next((program.buffers[f.buffer].name for f in program.model_states if f.name == name), name)


def _value(program: Program, name: str, arrays: Mapping[str, Array]) -> Array:
    """Return what the write of this name left in `arrays`."""
    whole = arrays[_array(program, name)]
    if name == PARAMS:
        return own_run(program, whole)
    return next((from_storage(whole, f) for f in program.model_states if f.name == name), whole)


def _stored(graph: Graph) -> dict[str, Tensor]:
    """Return every value that the graph's program stores, by number."""
    found = [t for t in optimize(graph).members if t.prim.family in COMPUTING]
    return {f"{PROBE}{k}": t for k, t in enumerate(found)}


def _parts(program: Program) -> Parts:
    """Return each trainable parameter's name, and its range in arrays with one element per parameter element."""
    return tuple((f.name, slice(f.offset, f.offset + f.size)) for f in sorted(program.trained, key=lambda f: f.offset))


def own_run(program: Program, params: Array) -> Array:
    """Return the range of the parameter array that the program's optimizer updates."""
    size = program.meta.get("part", {}).get("size", params.size)
    return params[program.first : program.first + size]


SWITCH = "TRACEGRAD_CHECK"


# Each step and run reads the variable, which is mostly unset. os.environ then raises and catches an error, in 0.8 us.
# CPython's table behind it, which has encoded names, takes a tenth of that. Other Pythons read os.environ itself.
_TABLE: Any = getattr(os.environ, "_data", os.environ)
_NAME: Any = os.environ.encodekey(SWITCH) if _TABLE is not os.environ else SWITCH


def enabled() -> bool:
    """Return whether TRACEGRAD_CHECK is set."""
    return _NAME in _TABLE and os.environ[SWITCH] not in ("", "0")


def check_indices(graph: Graph, env: Mapping[str, Any]) -> None:
    """Raise InputError for the first op with an index out of range, with the index, its range and the user's line.

    env: an array for each leaf, by role and name, as for `blame`.
    """
    nodes, indices = _indexed(named_by_role(graph.roots))
    with np.errstate(all="ignore"):
        values = [np.asarray(x) for x in evaluate(indices, env, np)]
    for t, x in zip(nodes, values, strict=True):
        _, size, exempt = _rule(t)
        bad = x[((x < 0) | (x >= size)) & (x != exempt)]
        if bad.size:
            raise InputError(
                located(f"{t.prim.name}: computed index {bad[0]} is out of range; {valid(0, size)}", t.site)
            )


def _indexed(roots: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return nodes with an index among their inputs, and the index; in a scan, the indices of all iterations."""
    nodes: list[Tensor] = []
    indices: list[Tensor] = []
    for t in toposort(roots):
        if t.prim.indexes is not None:
            nodes.append(t)
            indices.append(t.inputs[_rule(t)[0]])
        elif t.prim.family == "scan":
            body: Body = t.attrs["body"]
            place = {node.serial: len(body.new) + k for k, node in enumerate(body.each)}
            inner = [node for node in body.each if node.prim.indexes is not None]
            nodes += inner
            indices += [item(t, place[node.inputs[_rule(node)[0]].serial]) for node in inner]
    return nodes, indices


def _rule(t: Tensor) -> tuple[int, int, int | None]:
    assert t.prim.indexes is not None
    return t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)


ROLES = {"param": "parameter", "frozen": "parameter", "input": "input", "state": "state", "hyper": "hyperparameter"}
FINITE, MEANT, BAD = range(3)  # MEANT: infinite because of a constant, such as the fill of a mask
CONSTANTS = ("const", "literal")


def blame(graph: Graph, env: Mapping[str, Any]) -> str:
    """Describe the first node with a non-finite value whose inputs were all finite, with the user's line.

    env: an array for each leaf of the graph, by role and name: "param.l1.W", "input.x", "hyper.lr". A leaf that is not
         finite itself is named.
    """
    if not HAVE_NUMPY:
        return "Load NumPy before tracegrad, and the first op with a non-finite value is named here"
    roots = with_array_rules(named_by_role(graph.roots))
    culprit = _first(roots, env)
    if culprit is None and graph.precision == "f16":  # a stored value can overflow
        culprit = _first(named_by_role(rounded(graph).roots), env)
    culprit = culprit or _first(roots, env, constants=True)
    if culprit is None:
        return (
            "The reference computes only finite values from the same parameters and inputs, so the device's own "
            "rounding or overflow decided; no op can be named"
        )
    t, value = culprit
    if t.prim.name in CONSTANTS:
        return located(f"an infinite constant reaches the result: {t.name}, {t.type}", t.site)
    nan, infinite = int(np.isnan(value).sum()), int(np.isinf(value).sum())
    kinds = " and ".join(f"{n} {kind}" for n, kind in ((nan, "NaN"), (infinite, "infinite")) if n)
    if t.prim.name == "leaf":
        role, _, name = t.name.partition(".")
        return f"{ROLES[role]} {name!r}, {t.type}, is not finite itself: {kinds} of {value.size} values"
    if t.prim is HALF:
        what = f"{t.inputs[0].name}, {t.type}: {kinds} of {value.size} values"
        return located(f'first value too large for precision="f16", which stores up to 65504: {what}', t.site)
    return located(f"first non-finite value: {t.name}, {t.type}, {kinds} of {value.size} values", t.site)


def _first(roots: Sequence[Tensor], env: Mapping[str, Any], constants: bool = False) -> tuple[Tensor, Any] | None:
    """Return the first node that made a root non-finite, and its value. constants: return an infinite constant."""
    state: dict[int, int] = {}
    suspects: list[tuple[Tensor, Any]] = []
    with np.errstate(all="ignore"):
        for t, value in run(roots, env, np):
            x = np.concatenate([np.ravel(v) for v in value]) if t.prim.family == "scan" else np.asarray(value)
            state[t.serial] = _judge(t, x, state)
            first = t.prim.name in CONSTANTS if constants else not any(state[i.serial] == BAD for i in t.inputs)
            if first and state[t.serial] == (MEANT if constants else BAD):
                suspects.append((t, x))
    paths = _not_finite_paths(roots, state, through_integers=not constants)
    found = next(((t, x) for t, x in suspects if t.serial in paths), None)
    return found if found is None or found[0].prim.family != "scan" else _inside(found[0], env) or found


def _inside(scan: Tensor, env: Mapping[str, Any]) -> tuple[Tensor, Any] | None:
    """Return the first node to blame in a scan, with its value, in the first iteration that has one; else None."""
    roots = scan.attrs["body"].roots
    with np.errstate(all="ignore"):
        steps = iterations(scan, evaluate(scan.inputs, env, np), np)
        return next(filter(None, (_first(roots, given) for given, _ in steps)), None)


def _judge(t: Tensor, x: Any, state: Mapping[int, int]) -> int:
    if x.dtype.kind != "f" or bool(np.isfinite(x).all()):
        return FINITE
    if bool(np.isnan(x).any()):
        return BAD
    # exp(-inf) is a valid 0: a constant infinity is not to blame until it makes a NaN.
    return MEANT if t.prim.name in CONSTANTS or any(state[i.serial] == MEANT for i in t.inputs) else BAD


def _not_finite_paths(roots: Sequence[Tensor], state: Mapping[int, int], through_integers: bool) -> set[int]:
    """Return the serials of nodes with a path to a root on which no value is a finite float."""

    def odd(nodes: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in nodes if (state[t.serial] != FINITE if t.dtype.is_float else through_integers)]

    return {t.serial for t in reached(odd(roots), lambda t: odd(t.inputs))}
