"""All iterations of a loop as one shader: a workgroup runs every kernel of every iteration for its block."""

from __future__ import annotations

from tracegrad.kernel_source import BoundLoop, Nest, Shader
from tracegrad.kernels.blocks import ARRAYS, BLOCK
from tracegrad.kernels.tiling import GRID_X, Tiling, workgroup_arrays
from tracegrad.render.emit import Block, Loop, Statement, spelled, when
from tracegrad.render.wgsl import Function, Writer, declared, variables
from tracegrad.render.wgsl_loads import XYZW
from tracegrad.tuning import KEPT_IN_REGISTERS

COPIED = {array: dtype for dtype, array in ARRAYS.items()}  # workgroup array of values that kernels pass on -> type


def render_loop(launch: BoundLoop) -> Shader:
    """Return the shader of a loop."""
    tilings, elements = launch.blocks.tilings, [b.dtype for b in launch.bindings]
    helpers: dict[str, None] = {}
    texts: list[str] = []
    before: list[Statement] = []
    turns: list[Block] = []
    writers = _writers(launch, elements)
    for number, writer in enumerate(writers):
        texts += writer.function()
        registers, prepared = _prepared(writer)
        if prepared:
            head = f"fn before{number}({writer.arguments})"
            texts += [*registers, *spelled([Block(head, [*writer.offsets(), *prepared])], "var")]
            call = f"before{number}(0, i32(lid), {BLOCK}, begin / turns, 0);"
            before.append(when(f"end > begin + 1 || turn_of(begin).x == {number}", [call]))
        helpers.update(writer.emit.helpers)
        turns.append(Block(f"case {number}:", _turn(number, tilings[number])))
    copied = launch.blocks.mirrored
    if copied:
        before.append("workgroupBarrier();")
    barrier = "workgroupBarrier();" if copied else "storageBarrier();"
    first = len(launch.binding_of)
    main = _main(tilings[0].threads, before, launch.nest.turns, turns, barrier, first)
    text = "\n".join([*helpers, *texts, *_turn_of(launch.nest), *main])
    arrays = [f"var<workgroup> {name}: array<{COPIED[name]}, {size}>;" for name, size in copied.items()]
    head, body = declared(launch.bindings, elements), [*variables(tilings, text), *arrays, text]
    start, rest = ("".join(f"{line}\n" for line in lines) for lines in (head, body))
    return Shader(start, rest, first + 2)


def _writers(launch: BoundLoop, elements: list[str]) -> list[Writer]:
    """Return a `Writer` for the function of each kernel. elements: the element type of each binding's array."""
    out: list[Writer] = []
    first = 0
    kept = KEPT_IN_REGISTERS // max(1, sum(t.kind == "block" for t in launch.blocks.tilings))
    for number, part in enumerate(launch.blocks.parts):
        slots = range(len(part.kernel.slots))
        function = Function(
            part.kernel, part.tiling, first, [False for _ in slots], [False for _ in slots],
            bound=[launch.binding_of[first : first + len(slots)]],
            moves={s: launch.moves[first + s] for s in slots if first + s in launch.moves},
            fixed=part.fixed,
            room=kept,
            copies=part.copies,
        )  # fmt: skip
        out.append(Writer(function, f"k{number}", elements))
        first += len(slots)
    return out


def _prepared(writer: Writer) -> tuple[list[str], list[Statement]]:
    """Return the registers of a kernel, and the statements that fill them and workgroup memory in advance."""
    registers: list[str] = []
    lines: list[Statement] = []
    for slot, copy in writer.of.copies.items():
        if not writer.kernel.slots[slot].written:
            source = f"{writer.memory(slot)}[o{slot} + {BLOCK} * {copy.size} + i]"
            lines.append(Loop("i", copy.size, [f"{copy.array}[c{slot} + i] = {source};"], "lid", writer.tiling.threads))
    if writer.tiling.kind == "block" and (fold := writer.block_fold()).terms:
        registers, lines = fold.registers(), [*lines, *fold.reading()]
    return registers, lines


def _turn(number: int, tiling: Tiling) -> list[Statement]:
    """Return a loop that calls a kernel's function for a block, once for each workgroup of the kernel's tiling."""
    shared = ["workgroupBarrier();"] if workgroup_arrays([tiling]) else []
    call = f"k{number}(w, i32(lid), {BLOCK}, s / turns, turn.y);"
    return [Loop("w", tiling.workgroups, [call, *shared])]


def _turn_of(nest: Nest) -> list[str]:
    """Return the function that gives the kernel of turn `s`, and its iteration of the loop inside, or 0."""
    lines: list[Statement] = [f"var k = s % {nest.turns};", "var u = 0;"]
    for x in nest.inside:
        width, more = x.end - x.begin, (x.count - 1) * (x.end - x.begin)
        inside = [f"u = (k - {x.begin}) / {width};", f"k = {x.begin} + (k - {x.begin}) % {width};"]
        behind = f"if (k >= {x.end + more}) {{ k -= {more}; }}"
        lines.append(f"{behind} else if (k >= {x.begin}) {{ {' '.join(inside)} }}")
    return spelled([Block("fn turn_of(s: i32) -> vec2<i32>", [*lines, "return vec2<i32>(k, u);"])], "var")


def _main(
    threads: int, before: list[Statement], turns: int, kernels: list[Block], barrier: str, first: int
) -> list[str]:
    """Return the entry point. `at` holds, behind the offsets, the first turn and the end of the turns."""
    begin, end = (f"at[{k // 4}].{XYZW[k % 4]}" for k in (first, first + 1))
    arguments = "@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32"
    turn = ["let turn = turn_of(s);", Block("switch turn.x", [*kernels, "default: {}"]), barrier]
    lines: list[Statement] = [
        f"let {BLOCK} = i32(wid.x + wid.y * {GRID_X}u);",
        f"let turns = {turns};",
        f"let begin = {begin};",
        f"let end = {end};",
        *before,
        Loop("s", "end", turn, "begin"),
    ]
    return [f"@compute @workgroup_size({threads})", *spelled([Block(f"fn main({arguments})", lines)], "var")]
