"""Write expressions: each value once, and as far outside of loops as possible.

Rows write their ops in the notation of WGSL. `Emitter` writes WGSL; subclasses translate the notation.

The statements of a kernel are data for every language until the end: lines, loops, and blocks in braces. A line is a
statement that an Emitter has written. The extents of loops are integers, or expressions whose value is known only when
a step runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tracegrad.dtypes import LARGEST_F32, DType, nearest_f32
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernels.expr import Atom, Dynamic, Guard, Index, Quotient, Value, Var, atoms_of, indices_of, uses_of
from tracegrad.kernels.form import Axis, Fold


class Loop(NamedTuple):
    """A loop that runs `body` with `name` = `first`, `first + step` and so on, while `name` is less than `end`."""

    name: str
    end: int | str
    body: Sequence[Statement]
    first: int | str = 0
    step: int = 1


class Block(NamedTuple):
    """Statements in braces, with text such as a condition before them."""

    head: str
    body: Sequence[Statement]


Statement = str | Loop | Block


def when(condition: str, body: Sequence[Statement]) -> Block:
    """Return an `if` statement with this condition and body."""
    return Block(f"if ({condition})", body)


def spelled(statements: Iterable[Statement], counter: str) -> list[str]:
    """Return the lines of some statements. counter: the word that declares a loop variable, such as "long" in C."""
    lines: list[str] = []
    for s in statements:
        if isinstance(s, str):
            lines.append(s)
            continue
        if isinstance(s, Loop):
            head = f"for ({counter} {s.name} = {s.first}; {s.name} < {s.end}; {s.name} += {s.step}) {{"
        else:
            head = f"{s.head} {{" if s.head else "{"
        lines += [head, *(f"  {line}" for line in spelled(s.body, counter)), "}"]
    return lines


ZERO = {"f32": "0.0", "i32": "0", "u32": "0u", "bool": "false"}
LIMITS = {"i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1)}


def f32_literal(x: float) -> str:
    """Return WGSL for the nearest f32. WGSL rejects constant infinities and NaNs: variables hold their bits."""
    x = nearest_f32(x)
    if math.isnan(x):
        return "bitcast<f32>(nan_bits)"
    if math.isinf(x):
        return "bitcast<f32>(inf_bits)" if x > 0 else "(-bitcast<f32>(inf_bits))"
    text = f"{x:.17g}f" if abs(x) == LARGEST_F32 else f"{x:.9g}f"  # nine digits of the largest f32 are out of range
    return text if x >= 0 and math.copysign(1.0, x) > 0 else f"({text})"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return WGSL for a constant of any dtype."""
    if dtype.name == "f32":
        return f32_literal(float(value))
    if dtype.name == "bool":
        return "true" if value else "false"
    n = int(value)
    if dtype.name == "u32":
        return f"{n & 0xFFFFFFFF}u"
    return str(n) if n >= 0 else f"({n})" if n > -(2**31) else "(-2147483647 - 1)"


@lru_cache(4096)  # bounded, because `attrs` can hold constants of any value
def row(wgsl: str, count: int, dtype: str, of: str, attrs: tuple[tuple[str, object], ...] = ()) -> str:
    """Return the WGSL of a primitive's row, in which `{0}`, `{1}` and so on stand for its `count` operands.

    dtype: the type of the result. of: the type of the first operand. attrs: the node's attributes, which the row names.
    """
    return wgsl.format(*(f"{{{k}}}" for k in range(count)), t=dtype, of=of, **{k: str(x) for k, x in attrs})


# Conversions of values that memory holds as another type: before a store, and after a load
STORED = {"bool": "select(0, 1, {0})", "u32": "bitcast<i32>({0})", "f16": "f16({0})"}
LOADED = {"bool": "({0} != 0)", "u32": "bitcast<u32>({0})"}


class Emitter:
    """Writes the values of one kernel. `inner` collects lines while a loop over the folded axes is being written.

    copy: a suffix of names, if the same statements are written several times side by side. The `copied` axes and folds
          have this suffix, and so do all values that this copy names.
    step: a folded axis whose own variable is outside the loop, and the loop variable that is added to it.
    loaded: value that has been loaded or computed already -> the code that reads it.
    """

    def __init__(
        self, load: Callable[[int, str], str], inner_axes: Iterable[str] = (), copied: Iterable[str] = ()
    ) -> None:
        self.load = load
        self.inner_axes, self.copied = frozenset(inner_axes), frozenset(copied)
        self.copy, self.step = "", ("", "")
        self.loaded: Mapping[Value, str] = {}
        self.outer: list[str] = []  # statements outside loops, in order
        self.inner: list[str] = []  # statements of the loop being written
        self.helpers: dict[str, None] = {}
        self._outer_names: dict[Value, str] = {}
        self._inner_names: dict[Value, str] = {}
        self._outer_sums: dict[str, str] = {}
        self._is_inner: dict[Value | Index, bool] = {}
        self._held: dict[str, dict[Value, str]] | None = None  # copy -> names of values inside of loops
        self._uses: dict[Value, int] = {}
        self._count = 0

    def beside(
        self,
        inner_axes: Iterable[str] = (),
        copied: Iterable[str] = (),
        copy: str = "",
        step: tuple[str, str] = ("", ""),
        loaded: Mapping[Value, str] | None = None,
    ) -> Emitter:
        """Return an emitter of the same kernel, which has written nothing yet and shares `helpers`."""
        made = Emitter(self.load, inner_axes, copied)
        made.copy, made.step, made.loaded, made.helpers = copy, step, loaded or {}, self.helpers
        return made

    def spelled(self, notation: str) -> str:
        """Translate a piece of WGSL to the language of the emitter."""
        return notation

    def let(self, name: str, value: str) -> str:
        """Give a value a name."""
        return f"let {name} = {value};"

    def combine(self, f: Fold, a: str, b: str) -> str:
        """Return two partial results combined."""
        combine, dtype = PRIMITIVES[f.prim.combine], f.value.dtype.name
        self.need(combine.helper)
        return self.spelled(row(combine.wgsl, 2, dtype, dtype)).format(a, b)

    def identity(self, f: Fold) -> str:
        """Return the initial value of a fold."""
        value, dtype = f.prim.identity, f.value.dtype
        assert value is not None
        if math.isinf(value) and not dtype.is_float:
            value = LIMITS[dtype.name][value > 0]
        return self.spelled(literal(value, dtype))

    def stored(self, dtype: str, value: str) -> str:
        """Return a value in the form that memory holds."""
        return self.spelled(STORED.get(dtype, "{0}")).format(value)

    def values(self, roots: Sequence[Value], loop: bool) -> list[str]:
        """Return expressions of `roots`; shared parts become `let`s. Values constant in a loop move out of it."""
        self.inner = []
        if self._held is None:
            self._inner_names, self._uses = {}, uses_of(roots)
        else:
            self._inner_names = self._held.setdefault(self.copy, {})
        return [self._value(r, loop) for r in roots]

    def hold(self, roots: Sequence[Value]) -> None:
        """Let later calls of `values` reuse names, in the same scope. roots: all values still to be written."""
        self._held, self._uses = {}, uses_of(roots)

    def flush(self) -> list[str]:
        """Return the statements outside of loops since the last call."""
        lines, self.outer[:] = list(self.outer), []
        return lines

    def vector(self, v: Value, read: Callable[[int, str], str], loop: bool) -> str:
        """Load four neighbours in memory as a vector and return its name. v: the load of the first neighbour."""
        varies = loop and self.varies(v)
        name = f"w{self._count}{self.copy}"
        self._count += 1
        text = read(v.arg[0], self.index(v.arg[1], varies))
        (self.inner if varies else self.outer).append(self.let(name, text))
        return name

    def need(self, helper: str) -> None:
        """Add the functions of a primitive's helper, each once."""
        self.helpers.update(dict.fromkeys(filter(None, helper.split("\n\n"))))

    def varies(self, v: Value | Index) -> bool:
        """Return whether a value or index depends on a folded axis."""
        found = self._is_inner.get(v)
        if found is None:
            if isinstance(v, Index):
                found = any(map(self._atom_varies, atoms_of(v)))
            else:
                found = any(self.varies(a) for a in v.args) or any(self.varies(i) for i in indices_of(v))
            self._is_inner[v] = found
        return found

    def _atom_varies(self, a: Atom) -> bool:
        if isinstance(a, Var):
            return a.name in self.inner_axes
        return self.varies(a.index if isinstance(a, Quotient) else a.value)

    def named(self, v: Value) -> bool:
        """Return whether a value gets a name, instead of being written where it is used."""
        return self._uses.get(v, 0) > 1

    def _value(self, v: Value, loop: bool) -> str:
        if v.op == "const":
            return self.spelled(literal(v.arg, v.dtype))
        if v.op == "local":
            return f"{v.arg}{self.copy if v.arg in self.copied else ''}"
        hoist = loop and not self.varies(v)
        names = self._outer_names if hoist or not loop else self._inner_names
        found = names.get(v) or (self._outer_names.get(v) if loop else None)
        if found is not None:
            return found
        text = self._text(v, loop and not hoist)
        if hoist or self.named(v):
            name = f"v{self._count}{self.copy}"
            self._count += 1
            (self.inner if loop and not hoist else self.outer).append(self.let(name, text))
            names[v] = name
            return name
        return text

    def _text(self, v: Value, loop: bool) -> str:
        if v in self.loaded:
            return self.loaded[v]
        if v.op == "index":
            return self.index(v.arg, loop)
        if v.op == "load":
            return self._load(v, self.index(v.arg[1], loop))
        if v.op == "inside":
            return self._inside(v, loop)
        name, attrs = v.arg
        p = PRIMITIVES[name]
        self.need(p.helper)
        args = [self._value(a, loop) for a in v.args]
        return self.spelled(row(p.wgsl, len(args), v.dtype.name, v.args[0].dtype.name, attrs)).format(*args)

    def _load(self, v: Value, index: str) -> str:
        text = self.load(v.arg[0], index)
        return self.spelled(LOADED.get(v.dtype.name, "{0}")).format(text)

    def _inside(self, v: Value, loop: bool) -> str:
        """Return a value where guards hold, else 0. Elsewhere a load reads element 0, so every load is in bounds."""
        (x,) = v.args
        guards = self._guards(v.arg, loop)
        if x.op != "load":
            return self.chosen(v, self._value(x, loop), guards)
        name = f"g{self._count}{self.copy}"
        self._count += 1
        (self.inner if loop and self.varies(v) else self.outer).append(self.let(name, guards))
        return self.chosen(v, self._load(x, f"select(0, {self.index(x.arg[1], loop)}, {name})"), name)

    def chosen(self, v: Value, text: str, condition: str) -> str:
        """Return the value `v` where a condition holds, else 0."""
        return f"select({self.spelled(ZERO[v.dtype.name])}, {text}, {condition})"

    def _guards(self, guards: Sequence[Guard], loop: bool) -> str:
        """Join guards by `&`: the branches of `&&` cost more than they save, most of all in compile time."""
        parts: list[str] = []
        for g in guards:
            text = self.compared(g.index, loop)
            if g.index.lo < g.lo:
                parts.append(f"({text} >= {g.lo})")
            if g.index.hi >= g.hi:
                parts.append(f"({text} < {g.hi})")
            if g.step > 1:
                parts.append(f"({text} % {g.step} == 0)")
        return " & ".join(parts)

    def compared(self, x: Index, loop: bool) -> str:
        """Return an index in the form for comparison with guards."""
        return self.index(x, loop)

    def index(self, x: Index, loop: bool) -> str:
        """Return an index as i32 arithmetic. The sum of terms that do not vary in a loop is computed outside of it."""
        fixed: list[str] = []
        moving: list[str] = []
        for a, c in x.terms:
            axis, added = self.step
            if loop and isinstance(a, Var) and a.name == axis:
                fixed.append(self._term(a, loop, c))
                moving.append(_times(added, c))
            else:
                (moving if loop and self._atom_varies(a) else fixed).append(self._term(a, loop, c))
        if x.const or not (fixed or moving):
            fixed.append(str(x.const) if x.const >= 0 else f"({x.const})")
        if moving and len(fixed) > 1:
            fixed = [self._hoisted(" + ".join(fixed))]
        parts = fixed + moving
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"

    def _hoisted(self, text: str) -> str:
        """Return the name of a sum that is computed outside of the loop."""
        name = self._outer_sums.get(text)
        if name is None:
            name = self._outer_sums[text] = f"h{self._count}{self.copy}"
            self._count += 1
            self.outer.append(self.let(name, text))
        return name

    def _quotient(self, atom: Quotient, loop: bool) -> str:
        """Return a quotient or remainder. WGSL rounds to zero, so a multiple of `d` makes dividends positive first."""
        turns = max(0, -(atom.index.lo // atom.d))
        text = self.index(atom.index + turns * atom.d, loop)
        if atom.mod:
            return f"({text} % {atom.d})"
        return f"({text} / {atom.d} - {turns})" if turns else f"({text} / {atom.d})"

    def _term(self, atom: object, loop: bool, c: int) -> str:
        if isinstance(atom, Var):
            text = atom.name + self.copy if atom.name in self.copied else atom.name
        elif isinstance(atom, Quotient):
            text = self._quotient(atom, loop)
        else:
            assert isinstance(atom, Dynamic)
            text = f"clamp({self._value(atom.value, loop)}, 0, {atom.hi})"
        return _times(text, c)


def _times(text: str, c: int) -> str:
    return text if c == 1 else f"{text} * {c}" if c > 0 else f"{text} * ({c})"


def decode(flat: str, axes: Sequence[Axis]) -> list[str]:
    """Return lines that compute the variables of some axes from one flat index."""
    lines: list[str] = []
    stride = 1
    for k, a in reversed(list(enumerate(axes))):
        whole = flat if stride == 1 else f"({flat} / {stride})"
        lines.append(f"let {a.name} = {whole if k == 0 else f'{whole} % {a.size}'};")
        stride *= a.size
    return lines[::-1]


def copied(axes: Sequence[Axis], copy: str) -> list[Axis]:
    """Return the axes with the names that an Emitter gives their copies."""
    return [Axis(a.name + copy, a.size) for a in axes]
