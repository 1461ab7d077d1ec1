"""One program for every size of a batch up to a capacity, where two sizes can be shown to give the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.build import Built, TracedForward, uncollected
from tracegrad.compiler.pipeline import optimize
from tracegrad.compiler.places import make_plan
from tracegrad.compiler.ranges import input_ranges
from tracegrad.compiler.uniform import Pair, check_graphs, decide_extents, leading
from tracegrad.compiler.watched import Watched
from tracegrad.dtypes import TensorType
from tracegrad.errors import CompileError, ShapeError, Site
from tracegrad.kernels.form import UnsizedError
from tracegrad.program import Field, Program

LEAST = 17  # a capacity: more than any axis that is written out, and no common size of anything else
SAMPLES = (2, 3)  # sizes at which the forward must be the same, besides a capacity and the prime behind it


class Family(NamedTuple):
    """A program that serves all sizes from `least` to its capacity."""

    built: Built
    least: int
    sites: tuple[int, ...]  # how much of axis 0 of each site there is for each of the batch
    traced_at: Callable[[int], TracedForward]
    shown: set[int]  # sizes at which a trace has told the same

    def at(self, size: int) -> Built | None:
        """It, at a size; None for one that it does not serve.

        The forward is traced at that size, too. Python's own functions read a size unseen: only so is it known that
        `if math.gcd(x.shape[0], 16) == 16` decides nothing there.
        """
        program = self.built.program
        if not self.least <= size <= program.capacity:
            return None
        if size not in self.shown:
            try:
                with uncollected():
                    check_graphs(self.built.graph, _traced(self.traced_at, size).graph, Pair(program.capacity, size))
            except UnsizedError:
                return None
            self.shown.add(size)
        sites = tuple(
            [
                s._replace(type=s.type._replace(shape=(per * size, *s.type.shape[1:]))) if per else s
                for s, per in zip(self.built.sites, self.sites)
            ]
        )
        return self.built._replace(program=program.at(size), sites=sites)


def prime_from(n: int) -> int:
    """The first prime that is not less."""
    n = max(n, LEAST)
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def build_family(
    traced_at: Callable[[int], TracedForward], most: int, languages: Sequence[str] = ("c", "numpy")
) -> Family:
    """The program that serves batches of up to `most`, or some more.

    traced_at: the forward at a size.
    languages: in which extents are spelled out, and it may be run.
    Raises:    UnsizedError, saying why one program cannot serve them.
    """
    seen: list[Site] = []
    a = prime_from(most)
    sizes = Pair(a, prime_from(a + 1))
    with uncollected():
        _traced(traced_at, Watched.of(sizes.a, "n", seen))
        if seen:
            raise UnsizedError(f"{seen[0].short} uses the size of the batch as a number")
        one, other = _traced(traced_at, sizes.a), _traced(traced_at, sizes.b)
        for t, n in ((other, sizes.b), *((_traced(traced_at, n), n) for n in SAMPLES)):
            check_graphs(one.graph, t.graph, Pair(sizes.a, n))
        try:
            check_graphs(one.graph, _traced(traced_at, 1).graph, Pair(sizes.a, 1))
            least = 1
        except UnsizedError:  # one row is broadcast: it gets a program of its own
            least = 2
        try:
            program = _program(one, other, sizes, languages)
        except (CompileError, ShapeError) as e:
            raise UnsizedError(str(e)) from e
        captured = tuple([leading(x.type, y.type, sizes) for x, y in zip(one.sites, other.sites, strict=True)])
    return Family(Built(program, one.graph, one.structure, sites=one.sites), least, captured, traced_at, set())


def _traced(traced_at: Callable[[int], TracedForward], size: int) -> TracedForward:
    try:
        return traced_at(size)
    except Exception as e:  # also those of the user's code: no call has this size
        raise UnsizedError(f"a batch of {size} is refused: {str(e).partition(chr(10))[0]}") from e


def _program(one: TracedForward, other: TracedForward, sizes: Pair, languages: Sequence[str]) -> Program:
    specs = input_ranges(one.graph)
    if specs != input_ranges(other.graph):
        raise UnsizedError("which indices are valid depends on the batch")
    plan, witness = (make_plan(optimize(t.graph, whole=True), t.persistent, t.inputs, apart=True) for t in (one, other))
    decide_extents(plan, witness, sizes)
    program = assemble(plan, one.persistent, specs, one.meta)
    inputs = _with_extents(program.inputs, plan.inputs.types, witness.inputs.types, sizes)
    outputs = _with_extents(program.outputs, plan.outputs.types, witness.outputs.types, sizes)
    for kernel in program.kernels:
        for language in languages:  # what these cannot say is found out now
            _ = kernel.texts[language]
    return replace(program, inputs=inputs, outputs=outputs, capacity=sizes.a, size=sizes.a)


def _with_extents(
    fields: tuple[Field, ...], one: Mapping[str, TensorType], other: Mapping[str, TensorType], sizes: Pair
) -> tuple[Field, ...]:
    return tuple([replace(f, per=leading(one[f.name], other[f.name], sizes)) for f in fields])
