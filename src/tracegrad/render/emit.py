"""Expressions as WGSL, each value once and as far outside of loops as it can stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from tracegrad.dtypes import DType, nearest_f32
from tracegrad.ir import PRIMITIVES, Primitive
from tracegrad.kernels.expr import Atom, Dynamic, Guard, Index, Quotient, Value, Var, atoms_of, indices_of
from tracegrad.kernels.form import Axis

ZERO = {"f32": "0.0", "i32": "0", "u32": "0u", "bool": "false"}
LOWEST = {"i32": "(-2147483647 - 1)", "u32": "0u"}
HIGHEST = {"i32": "2147483647", "u32": "4294967295u"}


def f32_literal(x: float) -> str:
    """A WGSL literal of the nearest f32. Infinities and NaN come from a variable: constants of them are errors."""
    x = nearest_f32(x)
    if math.isnan(x):
        return "bitcast<f32>(nan_bits)"
    if math.isinf(x):
        return "bitcast<f32>(inf_bits)" if x > 0 else "(-bitcast<f32>(inf_bits))"
    return f"{x:.9g}f" if x >= 0 and math.copysign(1.0, x) > 0 else f"({x:.9g}f)"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant of any dtype."""
    if dtype.name == "f32":
        return f32_literal(float(value))
    if dtype.name == "bool":
        return "true" if value else "false"
    n = int(value)
    if dtype.name == "u32":
        return f"{n & 0xFFFFFFFF}u"
    return str(n) if n >= 0 else f"({n})" if n > -(2**31) else "(-2147483647 - 1)"


def identity(p: Primitive, dtype: str) -> str:
    """What a fold starts from."""
    assert p.identity is not None
    if dtype == "f32":
        return f32_literal(p.identity)
    if p.identity in (float("inf"), float("-inf")):
        return (HIGHEST if p.identity > 0 else LOWEST)[dtype]
    return f"{dtype}({int(p.identity)})"


class Emitter:
    """Writes the values of one kernel. `inner` is open while a loop over the folded axes is being written.

    copy: where values are written several times side by side, what ends the names of this time: those of `copied`
          axes and folds, and of all that is named here.
    step: a folded axis whose own variable stands outside the loop, and the variable in it that is added to that.
    loaded: what has been loaded already, and what it is called.
    """

    def __init__(
        self,
        load: Callable[[int, str], str],
        inner_axes: Iterable[str],
        copied: Iterable[str] = (),
        copy: str = "",
        step: tuple[str, str] = ("", ""),
        loaded: Mapping[Value, str] | None = None,
    ) -> None:
        self.load = load
        self.inner_axes = frozenset(inner_axes)
        self.copied, self.copy, self.step = frozenset(copied), copy, step
        self.loaded = loaded or {}
        self.outer: list[str] = []  # statements outside loops, in order
        self.inner: list[str] = []  # statements of the loop being written
        self.helpers: dict[str, None] = {}
        self._outer_names: dict[Value, str] = {}
        self._inner_names: dict[Value, str] = {}
        self._outer_sums: dict[str, str] = {}
        self._is_inner: dict[Value | Index, bool] = {}
        self._held: dict[str, dict[Value, str]] | None = None  # of every copy, what was named inside of loops
        self._uses: dict[Value, int] = {}
        self._count = 0

    def values(self, roots: Sequence[Value], loop: bool) -> list[str]:
        """Expressions of `roots`; shared parts become `let`s. Inside a loop what does not vary there is hoisted."""
        self.inner = []
        if self._held is None:
            self._inner_names, self._uses = {}, {}
            self._count_uses(roots)
        else:
            self._inner_names = self._held.setdefault(self.copy, {})
        return [self._value(r, loop) for r in roots]

    def hold(self, roots: Sequence[Value]) -> None:
        """From now on what is named stays: `roots` are all that will be written, in lines without blocks."""
        self._held = {}
        self._count_uses(roots)

    def flush(self) -> list[str]:
        """The statements outside of loops since the last call."""
        lines, self.outer[:] = list(self.outer), []
        return lines

    def vector(self, v: Value, read: Callable[[int, str], str], loop: bool) -> str:
        """The name of four neighbours in memory, of which `v` is the first."""
        varies = loop and self.varies(v)
        name = f"w{self._count}{self.copy}"
        self._count += 1
        text = read(v.arg[0], self.index(v.arg[1], varies))
        (self.inner if varies else self.outer).append(f"let {name} = {text};")
        return name

    def need(self, helper: str) -> None:
        """The functions of a primitive's helper, each once."""
        self.helpers.update(dict.fromkeys(filter(None, helper.split("\n\n"))))

    def varies(self, v: Value | Index) -> bool:
        """Does it depend on a folded axis?"""
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

    def _count_uses(self, roots: Sequence[Value]) -> None:
        stack = list(roots)
        while stack:
            v = stack.pop()
            self._uses[v] = self._uses.get(v, 0) + 1
            if self._uses[v] == 1:
                stack += v.args
                for index in indices_of(v):
                    stack += [a.value for a in atoms_of(index) if isinstance(a, Dynamic)]

    def named(self, v: Value) -> bool:
        """Does it get a name, or is it written where it is used?"""
        return self._uses.get(v, 0) > 1

    def _value(self, v: Value, loop: bool) -> str:
        if v.op == "const":
            return literal(v.arg, v.dtype)
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
            (self.inner if loop and not hoist else self.outer).append(f"let {name} = {text};")
            names[v] = name
            return name
        return text

    def _text(self, v: Value, loop: bool) -> str:
        if v.op == "index":
            return self.index(v.arg, loop)
        if v.op == "load":
            return self.loaded.get(v) or self._load(v, self.index(v.arg[1], loop))
        if v.op == "inside":
            return self._inside(v, loop)
        name, attrs = v.arg
        p = PRIMITIVES[name]
        self.need(p.helper)
        args = [self._value(a, loop) for a in v.args]
        return p.wgsl.format(*args, t=v.dtype.name, of=v.args[0].dtype.name, **{k: str(x) for k, x in attrs})

    def _load(self, v: Value, index: str) -> str:
        text = self.load(v.arg[0], index)
        return {"bool": f"({text} != 0)", "u32": f"bitcast<u32>({text})"}.get(v.dtype.name, text)

    def _inside(self, v: Value, loop: bool) -> str:
        """A value where guards hold, else 0. A load elsewhere reads element 0 instead: none ever strays."""
        (x,) = v.args
        guards = self._guards(v.arg, loop)
        if x.op != "load":
            return f"select({ZERO[v.dtype.name]}, {self._value(x, loop)}, {guards})"
        name = f"g{self._count}{self.copy}"
        self._count += 1
        (self.inner if loop and self.varies(v) else self.outer).append(f"let {name} = {guards};")
        load = self._load(x, f"select(0, {self.index(x.arg[1], loop)}, {name})")
        return f"select({ZERO[v.dtype.name]}, {load}, {name})"

    def _guards(self, guards: Sequence[Guard], loop: bool) -> str:
        """All of them by `&`: the branches of `&&` cost more than they spare, to compilers above all."""
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
        """An index as guards compare it."""
        return self.index(x, loop)

    def index(self, x: Index, loop: bool) -> str:
        """An index as i32 arithmetic. Inside a loop, the terms that do not vary there are added up outside."""
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
        """The name of a sum that stands outside of the loop."""
        name = self._outer_sums.get(text)
        if name is None:
            name = self._outer_sums[text] = f"h{self._count}{self.copy}"
            self._count += 1
            self.outer.append(f"let {name} = {text};")
        return name

    def _quotient(self, atom: Quotient, loop: bool) -> str:
        """Rounding down. WGSL rounds towards zero, so what may be negative is moved up by a multiple of the divisor."""
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
    """Loop variables from one flat index."""
    lines: list[str] = []
    stride = 1
    for k, a in reversed(list(enumerate(axes))):
        whole = flat if stride == 1 else f"({flat} / {stride})"
        lines.append(f"let {a.name} = {whole if k == 0 else f'{whole} % {a.size}'};")
        stride *= a.size
    return lines[::-1]


def copied(axes: Sequence[Axis], copy: str) -> list[Axis]:
    """The axes under the names that an Emitter gives their copies."""
    return [Axis(a.name + copy, a.size) for a in axes]


def indented(lines: Sequence[str]) -> list[str]:
    """One level deeper."""
    return [f"  {line}" for line in lines]
