"""Compile one program for every batch size up to a capacity, if plans at two sizes prove that it serves all sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tracegrad import ambient
from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.build import Built, ProgramSource, TracedProgram, uncollected
from tracegrad.compiler.followed import (
    At,
    Followed,
    Number,
    counted,
    expanded,
    follow_sizes,
    numbers_of,
    pairs_of,
    values_at,
)
from tracegrad.compiler.inputtypes import input_ranges
from tracegrad.compiler.pipeline import optimize
from tracegrad.compiler.places import make_plan
from tracegrad.compiler.uniform import Pair, check_graphs, decide_extents, leading
from tracegrad.dtypes import TensorType, axis_first
from tracegrad.errors import CompileError, ShapeError
from tracegrad.graph import Graph
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.growth import Sizes
from tracegrad.passes.leading import Led, lead_with_size
from tracegrad.program import Field, Program, with_rows
from tracegrad.render.languages import LANGUAGES

Specs = Mapping[str, Mapping[str, Any]]  # by the name of an input
SourceAt = Callable[[int], ProgramSource]  # the source of a step or forward, at a size
LEAST = 17  # the least capacity: larger than any axis that is unrolled, and rarely the size of another axis


class Whole(NamedTuple):
    """A trace of a step or forward."""

    traced: TracedProgram
    graph: Graph  # without composites

    def check(self, other: Whole, sizes: Pair) -> None:
        """Raise UnsizedError where another trace differs in more than the size of the batch."""
        check_graphs(self.graph, other.graph, sizes)
        self.check_form(other)

    def check_form(self, other: Whole) -> None:
        """Raise UnsizedError if another trace has other defaults, or results in another form."""
        one, two = self.traced, other.traced
        if (one.meta, one.structure) != (two.meta, two.structure):
            raise UnsizedError("defaults of hyperparameters, or the form of the results, follow the size of the batch")


class Family(NamedTuple):
    """A program that serves all sizes up to its capacity."""

    built: Built
    sites: tuple[int, ...]  # for each site: elements of axis 0 per element of the batch
    source_at: SourceAt
    whole: Whole  # at the capacity
    constants: Sequence[At]  # the constants of `whole` at two sizes
    numbers: Sequence[Number]
    shown: dict[int, Mapping[str, Any] | None]  # size -> its numbers, or None if its trace differed
    followed: Followed | None  # how all follows from the size, if one trace tells

    def at(self, size: int) -> Built | None:
        """Return the program at a size; None if the program does not serve it.

        Unless `followed` knows the size, the user's functions are traced at it too. Python's own functions can read a
        size, so only a trace shows that `if math.gcd(x.shape[0], 16) == 16` changes nothing here. One row can be
        broadcast.
        """
        program = self.built.program
        if size > program.capacity:
            return None
        numbers = self.followed.at((size,)) if self.followed is not None else None
        if numbers is None:
            numbers = self._traced(size)
        if numbers is None:
            return None
        sites = tuple(
            [
                s._replace(type=s.type._replace(shape=(per * size, *s.type.shape[1:]))) if per else s
                for s, per in zip(self.built.sites, self.sites)
            ]
        )
        serves = f"at {size}, of a program for sizes up to {program.capacity}"
        return self.built._replace(program=program.at(size), sites=sites, numbers=numbers, serves=serves)

    def _traced(self, size: int) -> Mapping[str, Any] | None:
        """Return what a trace at a size tells of its numbers; None if it differs."""
        if size not in self.shown:
            try:
                self.shown[size] = self._numbers(size)
            except UnsizedError:
                self.shown[size] = None
        return self.shown[size]

    @uncollected
    @ambient.restored
    def _numbers(self, size: int) -> Mapping[str, Any]:
        whole = _whole(self.source_at, size)
        self.whole.check(whole, Pair(self.built.program.capacity, size))
        known = values_at(whole.graph, self.constants)
        return {n.field: (n.dtype.numpy, known[n.at]) for n in self.numbers}


def prime_from(n: int) -> int:
    """Return the first prime that is at least `n`."""
    n = max(n, LEAST)
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


@uncollected
@ambient.restored
def build_family(source_at: SourceAt, most: int, gpu: bool = False) -> Family:
    """Return the program that serves batches of up to `most` examples, or a few more.

    gpu:     it runs in the languages of GPUs.
    Raises:  UnsizedError with the reason why one program cannot serve all sizes.
    """
    sizes, one, other = _traced(source_at, most)
    one.check(other, sizes)
    constants = pairs_of(one.graph, other.graph)
    numbers, places = numbers_of(one.graph, other.graph)
    both = Sizes((sizes.a,), (sizes.b,))
    followed = follow_sizes(lambda n: _whole(source_at, n[0]).graph, both, numbers, len(places[0]))
    traced = one.traced, other.traced
    graphs = [counted(w.graph, place) for w, place in zip((one, other), places)]
    built = shared_program(traced, graphs, sizes, gpu)
    captured = tuple([leading(x.type, y.type, sizes) for x, y in zip(*[t.sites for t in traced], strict=True)])
    return Family(built, captured, source_at, one, constants, numbers, {}, followed)


def shared_program(traced: Sequence[TracedProgram], graphs: Sequence[Graph], sizes: Pair, gpu: bool) -> Built:
    """Return the program of which each run sets the size. graphs: at both sizes.

    Raises: UnsizedError without a proof that one program serves all sizes.
    """
    try:
        specs = [input_ranges(g) for g in graphs]
        led = [_led(g, n) for g, n in zip(graphs, sizes)]
        program = _program(traced, led, specs, sizes, gpu)
    except (CompileError, ShapeError) as e:
        raise UnsizedError(str(e)) from e
    return Built(program, led[0].graph, traced[0].structure, sites=traced[0].sites)


def _led(graph: Graph, n: int) -> Led:
    """Return the graph with the size in front, which it is already unless an input has it along another axis."""
    given = [t.shape[1:] for t in graph.leaves("input")]
    return lead_with_size(graph, n) if any(size and size % n == 0 for s in given for size in s) else Led(graph, {}, {})


def _traced(source_at: SourceAt, most: int) -> tuple[Pair, Whole, Whole]:
    """Both traces, at primes of which no fixed axis is a multiple: so the passes know what grows."""
    a = prime_from(most)
    while True:
        sizes = Pair(a, prime_from(a + 1))
        found = [_whole(source_at, n) for n in sizes]
        one, other = ({n for t in w.graph.nodes for n in t.shape if n} for w in found)
        if not any(n % p == 0 for n in one & other for p in sizes):
            return sizes, found[0], found[1]
        a = sizes.b


def whole_of(source: ProgramSource) -> Whole:
    """Trace a step or forward at its sizes. Raises UnsizedError if it refuses them."""
    try:
        traced = source.traced()
        return Whole(traced, expanded(traced.graph))
    except Exception as e:  # errors of the user's code, too: no call has this size
        raise UnsizedError(f"a size is refused: {str(e).partition(chr(10))[0]}") from e


def _whole(source_at: SourceAt, size: int) -> Whole:
    try:
        return whole_of(source_at(size))
    except UnsizedError as e:
        raise UnsizedError(f"at {size}, {e}") from e


def _program(
    traced: Sequence[TracedProgram], graphs: Sequence[Led], specs: Sequence[Specs], sizes: Pair, gpu: bool
) -> Program:
    """graphs: with the size in front. specs: the ranges of inputs, in both traces."""
    (one, other), axes = traced, graphs[0].inputs
    if _narrow(specs[0], one.inputs, axes) != _narrow(specs[1], other.inputs, axes):
        raise UnsizedError("which indices are valid depends on the batch")
    led = graphs[0]
    plan, witness = (
        make_plan(optimize(g.graph, open_size=n), t.persistent, _moved(t.inputs, g.inputs), n)
        for g, t, n in zip(graphs, traced, sizes)
    )
    decide_extents(plan, witness, sizes)
    program = assemble(plan, one.persistent, specs[0], one.meta, one.results)
    inputs = _with_extents(program.inputs, plan.inputs.types, witness.inputs.types, sizes, led.inputs)
    outputs = _with_extents(program.outputs, plan.outputs.types, witness.outputs.types, sizes, led.outputs)
    for kernel in program.kernels:
        for name, language in LANGUAGES.items():
            if language.gpu is gpu:  # generate the texts now, to raise errors now
                _ = kernel.texts[name]
    return replace(program, inputs=inputs, outputs=outputs, capacity=sizes.a, size=sizes.a)


def _narrow(specs: Specs, types: Mapping[str, TensorType], axes: Mapping[str, int]) -> Any:
    """Return the ranges of indices as of one row: `Program.at` adds that all of the axis of the size is used."""

    def narrow(name: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        axis, shape = axes.get(name, 0), types[name].shape
        return with_rows(spec, shape[axis] if shape else 0, 1, axis)

    return {name: narrow(name, spec) for name, spec in specs.items()}


def _moved(types: Mapping[str, TensorType], axes: Mapping[str, int]) -> dict[str, TensorType]:
    """Return types with an axis in front."""

    def moved(t: TensorType, k: int) -> TensorType:
        return t._replace(shape=axis_first(t.shape, k)) if k else t

    return {name: moved(t, axes.get(name, 0)) for name, t in types.items()}


def _with_extents(
    fields: tuple[Field, ...],
    one: Mapping[str, TensorType],
    other: Mapping[str, TensorType],
    sizes: Pair,
    axes: Mapping[str, int],
) -> tuple[Field, ...]:
    """Return fields that follow the size. axes: of the size, which is in front in the types `one` and `other`."""

    def with_extent(f: Field) -> Field:
        n, *rest = one[f.name].shape or (0,)
        k = axes.get(f.name, 0)
        per = leading(one[f.name], other[f.name], sizes)
        return replace(f, shape=(*rest[:k], n, *rest[k:]), per=per, axis=k) if k else replace(f, per=per)

    return tuple(map(with_extent, fields))
