"""Expressions in C. All loads are safe at any time, so selections need no branches, and loops become vector code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from tracegrad.dtypes import bool_
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernels.expr import Atom, Dynamic, Guard, Index, Value, Var, indices_of, variables_of, walk
from tracegrad.kernels.form import Axis, Fold, Kernel, Store
from tracegrad.kernels.triangles import CHOICE
from tracegrad.program import MARGIN
from tracegrad.render.c_text import as_c, helpers_in_form, in_form
from tracegrad.render.emit import Block, Emitter, Statement
from tracegrad.tuning import HELD_ROW, LANES, LONG_CALL, NEAR, SHORT_COLUMNS, SHORT_WINDOW

VECTOR = LANES // 2  # columns of the vectors that every processor has


class CEmitter(Emitter):
    """Writes values in C, with wide indices. A guarded value is always computed, then cleared by its bits.

    sizes: the elements of each slot. last: the axis of the innermost loop. form: of functions; see `in_form`.
    within: if not "", loads that vary in a loop count as 0 where this condition does not hold.
    """

    def __init__(
        self, load: Callable[[int, str], str], inner: Sequence[str], sizes: Sequence[int], last: str, form: str
    ) -> None:
        super().__init__(load, inner)
        self.sizes, self.last, self.form, self.within = sizes, last, form, ""

    def spelled(self, notation: str) -> str:
        return as_c(notation)

    def let(self, name: str, value: str) -> str:
        return f"const __auto_type {name} = {value};"

    def named(self, v: Value) -> bool:
        return v.op == "load" or super().named(v)  # a load on only one side of a selection would become a branch

    def _text(self, v: Value, loop: bool) -> str:
        coordinate = v.op == "index" and v not in self.loaded
        text = f"(int)({self.index(v.arg, loop)})" if coordinate else super()._text(v, loop)
        if v.op == "map" and v.dtype is bool_:  # comparisons are ints in C, and `select` chooses by the type
            text = f"(_Bool)({text})"
        return in_form(text, self.form)

    def _load(self, v: Value, index: str) -> str:
        text = super()._load(v, index)
        return self.chosen(v, text, self.within) if self.within and self.varies(v) else text

    def need(self, helper: str) -> None:
        super().need(helpers_in_form(helper, self.form))

    def _term(self, atom: object, loop: bool, c: int) -> str:
        """Hide an index that depends on a boolean: GCC treats it as a signed offset of one bit, so 1 becomes -1."""
        text = super()._term(atom, loop, c)
        return f"hidden({text})" if isinstance(atom, Dynamic) and decided(atom.value) else text

    def compared(self, x: Index, loop: bool) -> str:
        """Compare in 32 bits: GCC 12 mixes up halves when two vectors of longs choose between floats."""
        text = self.index(x, loop)
        return f"(int)({text})" if x.lo >= -(2**31) and x.hi < 2**31 else text

    def _inside(self, v: Value, loop: bool) -> str:
        (x,) = v.args
        name = f"g{self._count}{self.copy}"
        self._count += 1
        (self.inner if loop and self.varies(v) else self.outer).append(self.let(name, self._guards(v.arg, loop)))
        value = self._load(x, self.address(v.arg, name, x, loop)) if x.op == "load" else self._value(x, loop)
        return self.chosen(v, value, name)

    def address(self, guards: Sequence[Guard], held: str, load: Value, loop: bool) -> str:
        """Return an index that is safe to read at any time, and is the load's index where the guards hold.

        An index that stays within the margin around every array is used unchanged. If the guards are constant in the
        innermost loop, the constant part of the index is chosen before the loop. Any other index is clamped.
        """
        slot, index = cast("tuple[int, Index]", load.arg)
        if index.lo >= -MARGIN and index.hi < self.sizes[slot] + MARGIN:
            return self.index(index, loop)
        moving = index.space.index({a: c for a, c in index.terms if moves(a, self.last)}, 0)
        whole = moving.hi - moving.lo < self.sizes[slot]
        if whole and not any(moves(a, self.last) for g in guards for a, _ in g.index.terms):
            fixed = self.index(index - moving, loop)
            return f"({held} ? {fixed} : {-moving.lo}) + {self.index(moving, loop)}"
        return f"min(max((long)({self.index(index, loop)}), 0L), {self.sizes[slot] - 1}L)"


def decided(root: Value) -> bool:
    """Return whether an integer depends on a boolean that GCC recognises. A float with other operands hides one."""
    found: set[Value] = set()
    for v in walk([root]):
        some = [a in found for a in v.args if a.op != "const"]
        if v.dtype is bool_ or (any(some) and (all(some) or not v.dtype.is_float)):
            found.add(v)
    return root in found


def moves(a: Atom, axis: str) -> bool:
    """Return whether an atom changes along an axis. An atom read from memory counts as changing."""
    if isinstance(a, Var):
        return a.name == axis
    return isinstance(a, Dynamic) or any(moves(x, axis) for x, _ in a.index.terms)


def reorders(v: Value, axis: str) -> bool:
    """Return whether a value can read memory out of order along an axis: any use but by a load that moves forwards."""
    moving = [(a, c) for x in indices_of(v) for a, c in x.terms if moves(a, axis)]
    return any(v.op != "load" or c < 0 or not isinstance(a, Var) for a, c in moving)


def rounded(width: int | str) -> str:
    """Return code that rounds a number of columns up to whole vectors."""
    return f"({width} + {VECTOR - 1}) / {VECTOR} * {VECTOR}"


def computed_again(kernel: Kernel, folds: Sequence[Fold], inner: Sequence[Axis]) -> list[Value]:
    """Return costly values of folds along a row that its stores compute again, if arrays can hold them for a row."""
    if kernel.uniform or len(inner) != 1 or not inner[0].fixed or not LANES <= inner[0].size <= HELD_ROW:
        return []
    stored = set(walk([s.value for s in kernel.stores if s.inner]))
    values = [v for v in dict.fromkeys(walk([f.value for f in folds])) if v.op == "map" and v in stored]
    costly = [v for v in values if PRIMITIVES[v.arg[0]].cost >= LONG_CALL and inner[0].name in variables_of(v)]
    return costly[: HELD_ROW // int(inner[0].size)]  # a thread's stack is small


def ends_in_vector(kernel: Kernel, last: Axis, stores: Sequence[Store]) -> bool:
    """Return whether stores along a row call costly functions, and one vector can compute its last elements."""
    roots = [s.value for s in stores]
    long = any(v.op == "map" and PRIMITIVES[v.arg[0]].cost >= LONG_CALL for v in walk(roots))
    if not long or not all(s.index.linear for s in stores):
        return False
    return in_one_vector(last, LANES, roots, [s.size for s in kernel.slots])


def in_one_vector(last: Axis, lanes: int, roots: Sequence[Value], sizes: Sequence[int]) -> bool:
    """Return whether the last elements of a row, after whole vectors, are computed in one vector with padding.

    Otherwise compilers use a vector for each power of two in the number of these elements, and compute the last element
    alone if the number is odd.
    """
    rest = int(last.size) % lanes if last.fixed else 0
    return rest & (rest - 1) > 0 and overruns(last, [v.arg for v in walk(roots) if v.op == "load"], sizes, lanes)


def overruns(last: Axis, reads: Sequence[tuple[int, Index]], sizes: Sequence[int], vector: int = VECTOR) -> bool:
    """Return whether folds can run beyond the last column or element, so that loops consist of whole vectors.

    Such folds read meaningless elements, within the margin around every array, and their results are not stored. A
    single column after whole vectors is faster on its own.
    """
    if not last.fixed or last.size % vector < 2:
        return False
    far = [vector * abs(index.strides.get(last.name, 0)) for _, index in reads]
    return all(
        index.linear and index.lo - n >= -MARGIN and index.hi + n < sizes[slot] + MARGIN
        for (slot, index), n in zip(reads, far)
    )


def column_wise(kernel: Kernel) -> bool:
    """Return whether to fold column by column: rows are short, or neighbours in memory belong to different folds."""
    outer = [a for a in kernel.outer if a.size > 1]
    inner = [a for a in kernel.inner if a.size > 1]
    if not outer or not inner or outer[-1].size < SHORT_COLUMNS:
        return False
    loads = [i.strides for v in walk([s.value for s in kernel.body]) if v.op == "load" for i in indices_of(v)]
    return kernel.length < LANES or _along_columns(loads, outer[-1], inner[-1])


def _along_columns(loads: Sequence[Mapping[str, int]], column: Axis, row: Axis) -> bool:
    """Return whether vectors of columns suit the strides of loads better than vectors of a row."""
    if loads and not any(column.name in x for x in loads):  # as in running sums: the same loads serve all columns
        return True
    both = [x for x in loads if column.name in x and row.name in x]  # other loads are small, and repeat
    if both and row.size < SHORT_WINDOW and all(x[column.name] <= NEAR for x in both):  # short rows of windows
        return True
    columns, rows = (sum(x.get(axis.name) == 1 for x in both or loads) for axis in (column, row))
    pairs = not both and columns == rows > 0  # f(x[i], y[j]): vectors run along the longer axis
    return columns > rows or (pairs and column.size >= row.size)


class Partial(NamedTuple):
    """A partial result of a fold: name, type, first value, the combination of two such results, and an element."""

    name: str
    type: str
    start: str
    both: str
    value: str

    def step(self, to: str, value: str) -> str:
        """Return the line that combines a variable with a value."""
        return f"{to} = {self.both.format(to, value)};"


def needed(folds: Sequence[Fold], inner: Sequence[Axis], emit: Emitter) -> str:
    """Return a condition on a row, without which these folds have no elements; "" if a fold has no such condition."""
    found = [_condition(f, [a.name for a in inner]) for f in folds]
    known = list(dict.fromkeys(c for c in found if c is not None))
    if None in found:
        return ""
    texts = emit.values([v for v, _ in known], loop=False)
    return " || ".join(f"({text}) == {int(outcome)}" for text, (_, outcome) in zip(texts, known))


def _condition(f: Fold, inner: Sequence[str]) -> tuple[Value, bool] | None:
    v = f.value
    if f.product or f.scatter or v.op != "map" or v.arg[0] != CHOICE:
        return None
    condition, *chosen = v.args
    none = [x.op == "const" and x.arg == f.prim.identity for x in chosen]
    varies = any(moves(a, n) for part in walk([condition]) for x in indices_of(part) for a, _ in x.terms for n in inner)
    return None if varies or none[0] == none[1] else (condition, none[1])


def at_once(lanes: int | str, lines: Sequence[Statement]) -> Block:
    """Return a loop over lanes. The compiler sees that `l` fits 32 bits, but still computes addresses in 64."""
    return Block(f"for (int l = 0; l < {lanes}; l++)", lines)
