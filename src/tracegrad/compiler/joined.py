"""Run all iterations of a loop in one launch, if blocks of its batch are independent. On GPUs, launches cost most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from tracegrad.kernel_source import Binding, BoundLoop, KernelSource, Nest, Texts, Turn
from tracegrad.kernels.blocks import Span, blocks_of, with_mirrors
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import MAX_BUFFERS
from tracegrad.kernels.tiling import grid_of, workgroup_bytes
from tracegrad.loops import BY_SIZE, Loop, Move
from tracegrad.program import Dispatch, Program
from tracegrad.render.languages import loop_in_wgsl
from tracegrad.tuning import MOST_LOOP_TURNS


def joined(program: Program) -> Program:
    """Return the program with one dispatch in place of each loop whose blocks are independent, with loops inside."""
    number = 0
    while number < len(program.loops):
        inside = [x for x in program.loops[number + 1 :] if x.begin < program.loops[number].end]
        made = _in_one_launch(program, number, inside)
        if made is None:
            number += 1
        else:
            program = _with(program, number, len(inside), *made)
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
        """Return the memory of a slot in all iterations of the loop at `depth`, and of other loops."""
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


def _in_one_launch(program: Program, number: int, inside: Sequence[Loop]) -> tuple[KernelSource, Dispatch] | None:
    """Return the kernel and the dispatch of a loop with those inside of it; None if it must stay a loop."""
    loop, depth = program.loops[number], sum(x.end >= program.loops[number].end for x in program.loops[:number])
    if not _has_forms(program, loop, inside):
        return None
    members = _members(program, loop)
    nest = _nest(members, loop, inside)
    arrays = tuple(dict.fromkeys(m.array(s) for m in members for s in m.slots))
    if len(arrays) > MAX_BUFFERS or nest.turns * loop.count > MOST_LOOP_TURNS:
        return None
    spans = [[m.span(s, depth) for s in m.slots] for m in members]
    blocks = blocks_of([m.form for m in members], spans, [nest.count(k) for k in range(len(members))])
    if blocks is None:
        return None
    if not inside:
        blocks = with_mirrors(blocks, spans, loop.count)
    own, outer = _moves(members, depth)
    kernel = _source(members, BoundLoop(blocks, *_bound(members, arrays), own, nest))
    offsets = [m.dispatch.offsets[s] for m in members for s in m.slots]
    begin, end = 0, nest.turns * loop.count
    if loop.per:  # the first turn, or the end, follows the size of a run
        begin = end = end * loop.reverse
        step = loop.per * nest.turns * (-1 if loop.reverse else 1)
        outer.append((len(offsets) + (not loop.reverse), Move(BY_SIZE, step, loop.count + 1)))
    return kernel, Dispatch(0, arrays, (*offsets, begin, end), grid_of(blocks.number), tuple(outer))


def _has_forms(program: Program, loop: Loop, inside: Sequence[Loop]) -> bool:
    """Return whether the kernels of a loop have forms, for all sizes of a run, and no loop inside has another inside.

    A file has only texts.
    """
    kernels = [program.kernels[d.kernel] for d in program.dispatches[loop.begin : loop.end]]
    sized = any(x.per for x in inside) or any(k.follows for k in kernels)  # one launch is made for one size
    return not sized and all(k.forms for k in kernels) and all(a.end <= b.begin for a, b in pairwise(inside))


def _moves(members: Sequence[_Member], depth: int) -> tuple[dict[int, list[Move]], list[tuple[int, Move]]]:
    """Return how offsets move in the loop at `depth` and inside of it, by slot, and in the loops around it."""
    own: dict[int, list[Move]] = {}
    outer: list[tuple[int, Move]] = []
    for k, moves in enumerate([m.moves(s) for m in members for s in m.slots]):
        outer += [(k, move) for move in moves if move.depth < depth]
        if inner := [replace(move, depth=move.depth - depth) for move in moves if move.depth >= depth]:
            own[k] = inner
    return own, outer


def _nest(members: Sequence[_Member], loop: Loop, inside: Sequence[Loop]) -> Nest:
    """Return the turns of a loop over dispatches, with the loops inside of it."""
    first = [sum(m.launch < launch for m in members) for launch in range(members[-1].launch + 2)]
    loops = [Loop(first[x.begin - loop.begin], first[x.end - loop.begin], x.count) for x in inside]
    return Nest(loop.count, len(members), tuple(loops))


def _bound(members: Sequence[_Member], arrays: Sequence[int]) -> tuple[list[int], tuple[Binding, ...]]:
    """Return the binding of each slot, and the bindings."""
    return [arrays.index(m.array(s)) for m in members for s in m.slots], tuple(_binding(members, a) for a in arrays)


def _source(members: Sequence[_Member], bound: BoundLoop) -> KernelSource:
    """Return the source of the one kernel that runs all iterations of a loop."""
    copied = sum(bound.blocks.mirrored.values())
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
    for k, m in enumerate(members):
        end = first + len(m.slots)
        own = replace(whole, label=m.form.label, forms=(m.form,), binding_of=tuple(bound.binding_of[first:end]))
        moves = tuple(bound.moves.get(s, ()) for s in range(first, end))
        turns.append(Turn(own, first, moves, bound.nest, k, m.dispatch.kernel, m.launch))
        first = end
    return replace(whole, turns=tuple(turns))


def _binding(members: Sequence[_Member], array: int) -> Binding:
    """Return how the whole loop uses an array."""
    found = [
        b for m in members for number, b in zip(m.dispatch.buffers, m.source.bindings, strict=True) if number == array
    ]
    return Binding(found[0].dtype, any(b.written for b in found), found[0].size)


def _with(program: Program, number: int, inside: int, kernel: KernelSource, dispatch: Dispatch) -> Program:
    """Return the program with a kernel and its dispatch in place of a loop and the loops `inside` of it."""
    loop = program.loops[number]
    fewer = loop.end - loop.begin - 1
    own = replace(dispatch, kernel=len(program.kernels))
    dispatches = (*program.dispatches[: loop.begin], own, *program.dispatches[loop.end :])
    loops = [
        replace(x, begin=x.begin - fewer * (x.begin >= loop.end), end=x.end - fewer * (x.end >= loop.end))
        for x in (*program.loops[:number], *program.loops[number + inside + 1 :])
    ]
    return replace(program, kernels=(*program.kernels, kernel), dispatches=dispatches, loops=tuple(loops))
