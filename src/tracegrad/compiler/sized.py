"""Compile one program for every batch size up to a capacity, if plans at two sizes prove that it serves all sizes.

`compiler/rooms.py` uses this module, and makes the program for each size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.build import Built, ProgramSource, TracedProgram
from tracegrad.compiler.inputtypes import input_ranges
from tracegrad.compiler.pipeline import optimize
from tracegrad.compiler.places import place_inputs, place_values, plan_kernels, share_launches
from tracegrad.compiler.uniform import Pair, sized_members
from tracegrad.dtypes import TensorType, axis_first
from tracegrad.errors import CompileError, ShapeError
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, graft
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.scans import everywhere
from tracegrad.prims.leaves import leaf
from tracegrad.prims.views import for_many_sizes, permute
from tracegrad.program import Field, Program, with_rows
from tracegrad.render.languages import LANGUAGES

Specs = Mapping[str, Mapping[str, Any]]  # by the name of an input
LEAST = 17  # the least capacity: larger than any axis that is unrolled, and rarely the size of another axis


class Whole(NamedTuple):
    """A trace of a whole step or forward, and its graph without composites."""

    traced: TracedProgram
    graph: Graph  # without composites

    def check_form(self, other: Whole) -> None:
        """Raise UnsizedError if the other trace has other defaults, or returns its results in another form."""
        one, two = self.traced, other.traced
        if (one.meta, one.structure) != (two.meta, two.structure):
            raise UnsizedError("defaults of hyperparameters, or the form of the results, follow the size of the batch")


def prime_from(n: int) -> int:
    """Return the first prime that is at least `n` and at least LEAST."""
    n = max(n, LEAST)
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def shared_program(traced: Sequence[TracedProgram], graphs: Sequence[Graph], sizes: Pair, gpu: bool) -> Built:
    """Return one program whose size each run sets. traced, graphs: at both sizes.

    Raises: UnsizedError without a proof that one program serves all sizes.
    """
    try:
        # found before losses are expanded, which hides the range of labels
        specs = [input_ranges(t.graph) for t in traced]
        led = [_led(g, n) for g, n in zip(graphs, sizes)]
        program = _program(traced, led, specs, sizes, gpu)
    except (CompileError, ShapeError) as e:
        raise UnsizedError(str(e)) from e
    return Built(program, led[0].graph, traced[0].structure, sites=traced[0].sites)


class Led(NamedTuple):
    """A graph whose inputs and results have the axis of the size first.

    inputs, outputs: for each that was changed, the axis where the size was.
    """

    graph: Graph
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    results: Mapping[str, TensorType]  # types before the change


@ambient.restored
def _led(graph: Graph, n: int) -> Led:
    """Return the graph with the axis of size `n` first in inputs and results. Inside, views move the axis back."""
    results = graph.results
    inputs = {t.attrs["name"]: t.shape.index(n) for t in graph.leaves("input") if n in t.shape[1:]}
    outputs = {name: t.shape.index(n) for name, t in results.items() if n in t.shape[1:]}
    new: dict[int, Tensor] = {}
    with ambient.rewriting():
        for t in graph.leaves("input"):
            if (k := inputs.get(t.attrs["name"])) is not None:
                given = leaf("input", t.attrs["name"], TensorType(t.dtype, axis_first(t.shape, k)))
                new[t.serial] = permute(given, (*range(1, k + 1), 0, *range(k + 1, t.ndim)))
        front = {name: (k, *range(k), *range(k + 1, results[name].ndim)) for name, k in outputs.items()}
        moved = {results[name].serial: permute(results[name], axes) for name, axes in front.items()}
        roots = graft([moved.get(t.serial, t) for t in graph.roots], new)
    return Led(graph.with_roots(roots), inputs, outputs, {name: t.type for name, t in results.items()})


def expanded(graph: Graph) -> Graph:
    """Return the graph without composites, which can hide numbers: a variance divides by the batch's size.

    Those with an identity hide none, and stay: how they expand depends on the length of their axis.
    """

    def expand(roots: Sequence[Tensor]) -> list[Tensor]:
        return expand_composites(roots, lambda t: t.prim.identity is not None)

    return graph.with_roots(everywhere(graph.roots, expand))


def whole_of(source: ProgramSource) -> Whole:
    """Trace a step or forward at its sizes. Raises UnsizedError if it refuses them."""
    before = for_many_sizes.set(True)
    try:
        traced = source.traced()
        return Whole(traced, expanded(traced.graph))
    except Exception as e:  # also errors of the user's code: no call has this size
        raise UnsizedError(f"a size is refused: {str(e).partition(chr(10))[0]}") from e
    finally:
        for_many_sizes.reset(before)


def _program(
    traced: Sequence[TracedProgram], graphs: Sequence[Led], specs: Sequence[Specs], sizes: Pair, gpu: bool
) -> Program:
    """Return the program. graphs: with the size in front. specs: the ranges of inputs, in both traces."""
    (one, other), axes = traced, graphs[0].inputs
    if _narrow(specs[0], one.inputs, axes) != _narrow(specs[1], other.inputs, axes):
        raise UnsizedError("which indices are valid depends on the batch")
    led = graphs[0]
    plan, witness = (plan_kernels(optimize(g.graph, open_size=n), {}, n) for g, n in zip(graphs, sizes))
    for p, t in zip((plan, witness), traced):
        place_inputs(p, t.persistent, t.inputs)
    outside = [math.prod(one.inputs[name].shape[:k]) for name, k in axes.items() if name in one.inputs]
    share_launches(plan, sized_members(plan, witness, sizes, max(outside, default=1)))
    place_values(plan, one.persistent)
    program = assemble(plan, one.persistent, specs[0], one.meta)
    inputs = _with_extents(program.inputs, plan.inputs.types, witness.inputs.types, sizes, led.inputs)
    outputs = _with_extents(program.outputs, graphs[0].results, graphs[1].results, sizes, led.outputs)
    for kernel in program.kernels:
        for name, language in LANGUAGES.items():
            if language.gpu is gpu:  # generate the texts now, to raise errors now
                _ = kernel.texts[name]
    return replace(program, inputs=inputs, outputs=outputs, capacity=sizes.a, size=sizes.a)


def _narrow(specs: Specs, types: Mapping[str, TensorType], axes: Mapping[str, int]) -> Any:
    """Return the ranges of indices for a single row. `Program.at` extends them along the axis of the size."""

    def narrow(name: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        axis, shape = axes.get(name, 0), types[name].shape
        return with_rows(spec, shape[axis] if shape else 0, 1, axis)

    return {name: narrow(name, spec) for name, spec in specs.items()}


def _with_extents(
    fields: Sequence[Field],
    one: Mapping[str, TensorType],
    other: Mapping[str, TensorType],
    sizes: Pair,
    axes: Mapping[str, int],
) -> tuple[Field, ...]:
    """Return fields whose size along one axis depends on the size of a run, given their types in both plans."""

    def with_extent(f: Field) -> Field:
        a, b, k = one[f.name].shape, other[f.name].shape, axes.get(f.name, 0)
        if a[:k] + a[k + 1 :] != b[:k] + b[k + 1 :]:
            raise UnsizedError(f"{one[f.name]} grows with the batch along another axis than the first")
        return replace(f, shape=a, per=sizes.per(a[k], b[k]) if a else 0, axis=k)

    return tuple(map(with_extent, fields))
