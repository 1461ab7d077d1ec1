"""Run all iterations of a loop in one launch, if blocks of its batch are independent. On GPUs, launches cost most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tracegrad.kernel_source import Binding, BoundLoop, KernelSource, Texts, Turn
from tracegrad.kernels.blocks import Span, blocks_of, with_mirrors
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import MAX_BUFFERS
from tracegrad.kernels.tiling import grid_of, workgroup_bytes
from tracegrad.loops import BY_SIZE, Loop, Move
from tracegrad.program import Dispatch, Program
from tracegrad.render.languages import loop_in_wgsl
from tracegrad.tuning import MOST_LOOP_TURNS


def joined(program: Program) -> Program:
    """Return the program with one dispatch in place of each innermost loop whose blocks are independent."""
    for number in reversed(range(len(program.loops))):
        loop = program.loops[number]
        inside = program.dispatches[loop.begin : loop.end]
        if loop.per or any(move.depth == BY_SIZE for d in inside for _, move in d.moves):
            continue  # such a launch is made for one size
        if not all(program.kernels[d.kernel].forms for d in inside):
            continue  # a loop inside is one launch already
        if any(loop.begin <= x.begin < loop.end for x in program.loops[number + 1 :]):
            continue  # another loop is inside
        made = _in_one_launch(program, loop, sum(x.end >= loop.end for x in program.loops[:number]))
        if made is not None:
            program = _with(program, number, *made)
    return program


class _Member(NamedTuple):
    """A kernel of an iteration. slots: the numbers of its slots in its dispatch."""

    source: KernelSource
    launch: int  # the number of its dispatch in an iteration
    dispatch: Dispatch
    form: Kernel
    slots: range

    def moves(self, slot: int) -> list[Move]:
        """Return how the offset of a slot moves in each loop around the kernel."""
        return [move for k, move in self.dispatch.moves if k == slot]

    def span(self, slot: int, depth: int) -> Span:
        """Return the memory of a slot in all iterations of the loop at `depth`."""
        own, moves = self.form.slots[slot - self.slots.start], self.moves(slot)
        (move,) = [(m.step, m.ring) for m in moves if m.depth == depth] or [(0, 1)]
        outer = tuple((m.depth, m.step, m.ring) for m in moves if m.depth != depth)
        dtype = self.source.bindings[self.source.binding_of[slot]].dtype
        return Span(self.array(slot), dtype, self.dispatch.offsets[slot], own.size, own.written, move, outer)

    def array(self, slot: int) -> int:
        """Return the number of the array that holds a slot."""
        return self.dispatch.buffers[self.source.binding_of[slot]]


def _members(program: Program, loop: Loop) -> list[_Member]:
    """Return the kernels of an iteration in order. Kernels of one dispatch are independent of each other."""
    found: list[_Member] = []
    for launch, d in enumerate(program.dispatches[loop.begin : loop.end]):
        source, first = program.kernels[d.kernel], 0
        for form in source.forms:
            found.append(_Member(source, launch, d, form, range(first, first + len(form.slots))))
            first += len(form.slots)
    return found


def _in_one_launch(program: Program, loop: Loop, depth: int) -> tuple[KernelSource, Dispatch] | None:
    """Return the kernel and the dispatch of a loop inside of `depth` others; None if it must stay a loop."""
    members = _members(program, loop)
    runs = len(members) * loop.count
    arrays = tuple(dict.fromkeys(m.array(s) for m in members for s in m.slots))
    if len(arrays) > MAX_BUFFERS or runs > MOST_LOOP_TURNS:
        return None
    spans = [[m.span(s, depth) for s in m.slots] for m in members]
    blocks = blocks_of([m.form for m in members], spans)
    if blocks is None:
        return None
    slots = [(m, s) for m in members for s in m.slots]
    moves = [(k, move) for k, (m, s) in enumerate(slots) for move in m.moves(s)]
    own = {k: (x.step, x.ring) for k, x in moves if x.depth == depth}
    blocks, mirrors = with_mirrors(blocks, spans, loop.count)
    kernel = _source(members, BoundLoop(blocks, mirrors, *_bound(members, arrays), own))
    offsets = [m.dispatch.offsets[s] for m, s in slots]
    outer = tuple((k, move) for k, move in moves if move.depth < depth)
    return kernel, Dispatch(0, arrays, (*offsets, 0, runs), grid_of(blocks.number), outer)


def _bound(members: Sequence[_Member], arrays: Sequence[int]) -> tuple[list[int], tuple[Binding, ...]]:
    """Return the binding of each slot, and the bindings."""
    return [arrays.index(m.array(s)) for m in members for s in m.slots], tuple(_binding(members, a) for a in arrays)


def _source(members: Sequence[_Member], bound: BoundLoop) -> KernelSource:
    """Return the source of the one kernel that runs all iterations of a loop."""
    copied = sum(bound.mirrors.sizes.values()) if bound.mirrors else 0
    whole = KernelSource(
        label=f"loop of {', '.join(m.form.label for m in members)}",
        bindings=bound.bindings,
        slots=len(bound.binding_of) + 2,
        workgroup_memory=workgroup_bytes(bound.blocks.tilings) + 4 * copied,
        texts=Texts(lambda _: loop_in_wgsl(bound), serial_wgsl=None),
        own=True,
    )
    turns: list[Turn] = []
    first = 0
    for m in members:
        end = first + len(m.slots)
        own = replace(whole, label=m.form.label, forms=(m.form,), binding_of=tuple(bound.binding_of[first:end]))
        moved = [step * (1 % ring) for step, ring in (bound.moves.get(k, (0, 1)) for k in range(first, end))]
        turns.append(Turn(own, first, tuple(moved), m.dispatch.kernel, m.launch))
        first = end
    return replace(whole, turns=tuple(turns))


def _binding(members: Sequence[_Member], array: int) -> Binding:
    """Return how the whole loop uses an array."""
    found = [
        b for m in members for number, b in zip(m.dispatch.buffers, m.source.bindings, strict=True) if number == array
    ]
    return Binding(found[0].dtype, any(b.written for b in found), min(b.size for b in found))


def _with(program: Program, number: int, kernel: KernelSource, dispatch: Dispatch) -> Program:
    """Return the program with a kernel and its dispatch in place of a loop."""
    loop = program.loops[number]
    fewer = loop.end - loop.begin - 1
    own = replace(dispatch, kernel=len(program.kernels))
    dispatches = (*program.dispatches[: loop.begin], own, *program.dispatches[loop.end :])
    loops = [
        Loop(x.begin - fewer * (x.begin >= loop.end), x.end - fewer * (x.end >= loop.end), x.count)
        for x in program.loops
        if x is not loop
    ]
    return replace(program, kernels=(*program.kernels, kernel), dispatches=dispatches, loops=tuple(loops))
