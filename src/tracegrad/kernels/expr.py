"""Scalar expressions: integer indices in linear normal form, and the values computed with them.

An Index is `c0 + sum ci * atom`, an atom being a variable, `index // d`, `index % d`, or a value used as an index.
Bounds decide division: with 0 <= y < d, (q*d + y) // d is q and (q*d + y) % d is y; c*(y % d) + c*d*(y // d) becomes
c*y. That is enough to see through every chain of reshapes, and it makes "reads at its own point" an equality.
Both kinds are interned, so equality is identity.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Union

from tracegrad.dtypes import DType, i32
from tracegrad.ir.graph import postorder

MOST_WHOLE = 2**30  # no rule scales an index to a bound beyond this, because kernels count in 32 bits


class Var:
    """A loop variable in [0, size)."""

    __slots__ = ("lo", "hi", "name", "order", "size")

    def __init__(self, name: str, size: int, order: int) -> None:
        self.name, self.size, self.order = name, size, order
        self.lo, self.hi = 0, size - 1

    def __repr__(self) -> str:
        return self.name


class Quotient:
    """`index // d` or, if `mod`, `index % d`, which no rule could simplify."""

    __slots__ = ("d", "hi", "index", "lo", "mod", "order")

    def __init__(self, index: Index, d: int, mod: bool, order: int) -> None:
        self.index, self.d, self.mod, self.order = index, d, mod, order
        self.lo, self.hi = (0, d - 1) if mod else (index.lo // d, index.hi // d)

    def __repr__(self) -> str:
        inner = f"{self.index}" if len(self.index.terms) == 1 and not self.index.const else f"({self.index})"
        return f"({inner} {'%' if self.mod else '//'} {self.d})"


class Dynamic:
    """An integer value read from memory, clamped to [0, size), as an index."""

    __slots__ = ("hi", "lo", "order", "value")

    def __init__(self, value: Value, size: int, order: int) -> None:
        self.value, self.order = value, order
        self.lo, self.hi = 0, size - 1

    def __repr__(self) -> str:
        return f"clamp({self.value}, {self.hi})"


Atom = Var | Quotient | Dynamic
Operand = Union["Index", int]


class Index:
    """A linear combination of atoms; made only by a `Space`."""

    __slots__ = ("const", "hi", "lo", "space", "terms")

    def __init__(self, space: Space, terms: tuple[tuple[Atom, int], ...], const: int) -> None:
        self.space, self.terms, self.const = space, terms, const
        lo = hi = const
        for atom, c in terms:
            if c > 0:
                lo, hi = lo + c * atom.lo, hi + c * atom.hi
            else:
                lo, hi = lo + c * atom.hi, hi + c * atom.lo
        self.lo, self.hi = lo, hi

    @property
    def strides(self) -> dict[str, int]:
        """How far the index moves along each loop variable that is a term of its own."""
        return {a.name: c for a, c in self.terms if isinstance(a, Var)}

    @property
    def linear(self) -> bool:
        """Whether loop variables are the only terms."""
        return all(isinstance(a, Var) for a, _ in self.terms)

    def __add__(self, other: Operand) -> Index:
        if isinstance(other, int):
            return self.space.index(dict(self.terms), self.const + other) if other else self
        terms = dict(self.terms)
        for atom, c in other.terms:
            terms[atom] = terms.get(atom, 0) + c
        return self.space.index(terms, self.const + other.const)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Index:
        return self + other * -1

    def __mul__(self, c: int) -> Index:
        if c == 1:
            return self
        return self.space.index({a: k * c for a, k in self.terms}, self.const * c)

    __rmul__ = __mul__

    def __floordiv__(self, d: int) -> Index:
        return self.space.floordiv(self, d)

    def __mod__(self, d: int) -> Index:
        return self.space.mod(self, d)

    def __repr__(self) -> str:
        parts = [f"{a}" if c == 1 else f"{a}*{c}" for a, c in self.terms]
        return " + ".join(parts + ([str(self.const)] if self.const or not parts else []))


class Guard:
    """The condition `lo <= index < hi` and `index % step == 0`, where the bounds of `index` do not decide it."""

    __slots__ = ("hi", "index", "lo", "step")

    def __init__(self, index: Index, lo: int, hi: int, step: int) -> None:
        self.index, self.lo, self.hi, self.step = index, lo, hi, step


class Value:
    """A scalar computed at each point.

    op       arg                                     value
    const    a number                                the number
    index    an Index                                the coordinate
    load     (slot, Index)                           the element in memory
    inside   guards                                  args[0] inside them, else 0
    local    a name that the kernel has defined      the value of the name
    map      (primitive, attrs)                      the primitive of args
    """

    __slots__ = ("arg", "args", "dtype", "op", "order")

    def __init__(self, op: str, dtype: DType, arg: Any, args: tuple[Value, ...], order: int) -> None:
        self.op, self.dtype, self.arg, self.args, self.order = op, dtype, arg, args, order

    def __repr__(self) -> str:
        return f"{self.op}({self.arg}{''.join(f', {a}' for a in self.args)})"


class Space:
    """Interning tables of one kernel. Everything built in one space compares by identity."""

    def __init__(self) -> None:
        self._indices: dict[Any, Index] = {}
        self._atoms: dict[Any, Atom] = {}
        self._values: dict[Any, Value] = {}
        self._guards: dict[Any, Guard] = {}
        self._floordivs: dict[tuple[Index, int], Index] = {}  # chains of views divide the same again and again

    def var(self, name: str, size: int) -> Index:
        """Return the variable `name` in [0, size), or 0 if size is 1."""
        return self.number(0) if size == 1 else self._atom(name, Var, name, size)

    def _atom(self, key: Any, kind: Callable[..., Atom], *parts: Any) -> Index:
        """Return the interned atom of a key as an index."""
        atom = self._atoms.get(key)
        if atom is None:
            atom = self._atoms[key] = kind(*parts, len(self._atoms))
        return self.index({atom: 1}, 0)

    def number(self, n: int) -> Index:
        """Return a constant index."""
        return self.index({}, n)

    def index(self, terms: dict[Atom, int], const: int) -> Index:
        """Return the interned normal form of a linear combination."""
        terms = {a: c for a, c in terms.items() if c}
        for atom, c in terms.items():
            if isinstance(atom, Quotient) and atom.mod:  # c*(y % d) + c*d*(y // d)  ->  c*y
                q = self._whole(atom.index, atom.d)
                if q is not None and terms.get(q) == c * atom.d:
                    rest = {a: k for a, k in terms.items() if a is not atom and a is not q}
                    return self.index(rest, const) + atom.index * c
        ordered = tuple(sorted(terms.items(), key=lambda t: (-t[1], t[0].order)))
        key = (ordered, const)
        found = self._indices.get(key)
        if found is None:
            found = self._indices[key] = Index(self, ordered, const)
        return found

    def _whole(self, x: Index, d: int) -> Atom | None:
        """Return the atom that equals x // d, or None if no single atom does."""
        q = self.floordiv(x, d)
        return q.terms[0][0] if len(q.terms) == 1 and q.terms[0][1] == 1 and not q.const else None

    def dynamic(self, value: Value, size: int) -> Index:
        """Return a computed integer as an index into `size` elements."""
        return self._atom((value, size), Dynamic, value, size)

    def _split(self, x: Index, d: int) -> tuple[Index, Index]:
        """Return (q, r) with x = d*q + r, and r as small as the coefficients allow."""
        q = {a: c // d for a, c in x.terms if c % d == 0}
        r = {a: c for a, c in x.terms if c % d}
        return self.index(q, x.const // d), self.index(r, x.const % d)

    def _scaled(self, x: Index, d: int) -> tuple[int, Index, Index] | None:
        """Return (g, y, small) with x = g*y + small, 0 <= small < g and g dividing d; None if no such g exists."""
        for g in sorted({math.gcd(c, d) for _, c in x.terms} - {1}):
            small = self.index({a: c for a, c in x.terms if c % g}, x.const % g)
            if small.lo >= 0 and small.hi < g:
                return g, self.index({a: c // g for a, c in x.terms if c % g == 0}, x.const // g), small
        return None

    def floordiv(self, x: Index, d: int) -> Index:
        """Return x // d, rounded down."""
        if d == 1:
            return x
        found = self._floordivs.get((x, d))
        if found is None:
            found = self._floordivs[x, d] = self._floordiv(x, d)
        return found

    def _floordiv(self, x: Index, d: int) -> Index:
        q, r = self._split(x, d)
        if r.lo >= 0 and r.hi < d:
            return q
        scaled = self._scaled(r, d)
        if scaled is not None:
            g, y, _ = scaled
            return q + self.floordiv(y, d // g)
        for atom, c in r.terms:
            if c == 1 and isinstance(atom, Quotient) and not atom.mod:  # (y + x // g) // d  ->  (g*y + x) // (g*d)
                whole = self.index({a: k for a, k in r.terms if a is not atom}, r.const) * atom.d + atom.index
                if whole.hi < MOST_WHOLE:
                    return q + self.floordiv(whole, atom.d * d)
        return q + self._atom((r, d, False), Quotient, r, d, False)

    def mod(self, x: Index, d: int) -> Index:
        """Return x % d, which is never negative."""
        if d == 1:
            return self.number(0)
        _, r = self._split(x, d)
        if r.lo >= 0 and r.hi < d:
            return r
        scaled = self._scaled(r, d)
        if scaled is not None:
            g, y, small = scaled
            return self.mod(y, d // g) * g + small
        return self._atom((r, d, True), Quotient, r, d, True)

    def guard(self, index: Operand, lo: int, hi: int, step: int) -> Guard | bool:
        """Return the interned condition, or True or False if bounds decide it."""
        if isinstance(index, int):
            return lo <= index < hi and index % step == 0
        if index.hi < lo or index.lo >= hi:
            return False
        if all(c % step == 0 for _, c in index.terms):
            if index.const % step:
                return False
            step = 1
            if index.lo >= lo and index.hi < hi:
                return True
        key = (index, lo, hi, step)
        if key not in self._guards:
            self._guards[key] = Guard(index, lo, hi, step)
        return self._guards[key]

    def value(self, op: str, dtype: DType, arg: Any = None, args: tuple[Value, ...] = (), key: Any = None) -> Value:
        """Return the interned value of an op; equal arguments return the same object. key: in place of `arg`."""
        full = (op, dtype.name, key if key is not None else arg, args)
        found = self._values.get(full)
        if found is None:
            found = self._values[full] = Value(op, dtype, arg, args, len(self._values))
        return found

    def load(self, slot: int, index: Index, dtype: DType) -> Value:
        """Return the value of element `index` of a slot."""
        return self.value("load", dtype, (slot, index))

    def const(self, number: bool | int | float, dtype: DType) -> Value:
        """Return a literal. Its text is the key, so 0.0 differs from -0.0, and nan equals nan."""
        return self.value("const", dtype, number, key=repr(number))

    def of_index(self, index: Index) -> Value:
        """Return an index as an i32 value."""
        return self.const(index.const, i32) if not index.terms else self.value("index", i32, index)

    def inside(self, guards: Sequence[Guard], value: Value) -> Value:
        """Return `value` where all guards hold, else 0."""
        if not guards:
            return value
        return self.value("inside", value.dtype, tuple(dict.fromkeys(guards)), (value,))


def walk(roots: Iterable[Value]) -> Iterator[Value]:
    """Yield every value that `roots` are computed from, operands first, each once; also the values inside indices."""
    return postorder(roots, used_by)


def used_by(v: Value) -> Sequence[Value]:
    """Return the values that `v` is computed from directly: its operands, and those inside of its indices."""
    indices = indices_of(v)
    if not indices:
        return v.args
    return [*v.args, *[a.value for index in indices for a in atoms_of(index) if isinstance(a, Dynamic)]]


def uses_of(roots: Sequence[Value], used: Callable[[Value], Iterable[Value]] = used_by) -> dict[Value, int]:
    """Return how often each value is used, as a root or by another value. used: the values that one value uses."""
    found, stack = defaultdict[Value, int](int), list(roots)
    while stack:
        v = stack.pop()
        found[v] += 1
        if found[v] == 1:
            stack += used(v)
    return found


def indices_of(v: Value) -> list[Index]:
    """Return the indices that a value uses directly."""
    if v.op == "load":
        return [v.arg[1]]
    if v.op == "index":
        return [v.arg]
    if v.op == "inside":
        return [g.index for g in v.arg]
    return []


def quotients_of(indices: Iterable[Index]) -> list[Quotient]:
    """Return the quotients and remainders in some indices, also those inside of others."""
    return [a for index in indices for a in atoms_of(index) if isinstance(a, Quotient)]


def guards_of(values: Iterable[Value]) -> list[Guard]:
    """Return the guards of some values."""
    return [g for v in values if v.op == "inside" for g in v.arg]


def names_of(atoms: Iterable[Atom], loaded: bool = True) -> set[str]:
    """Return the variables that atoms depend on. loaded: also through values read from memory."""
    names: set[str] = set()
    for atom in atoms:
        if isinstance(atom, Var):
            names.add(atom.name)
        elif isinstance(atom, Quotient):
            names |= names_of((a for a, _ in atom.index.terms), loaded)
        elif loaded:
            names |= variables_of(atom.value)
    return names


def variables_of(v: Value) -> set[str]:
    """Return the names of the variables that a value depends on."""
    return names_of(a for x in walk([v]) for index in indices_of(x) for a, _ in index.terms)


def atoms_of(index: Index) -> Iterator[Atom]:
    """Yield all atoms of an index, also the atoms inside quotients."""
    for atom, _ in index.terms:
        yield atom
        if isinstance(atom, Quotient):
            yield from atoms_of(atom.index)
