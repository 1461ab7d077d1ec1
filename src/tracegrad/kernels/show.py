"""Print a kernel form as text, one line a value, as `TRACEGRAD_DEBUG=3` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tracegrad.kernels.expr import Dynamic, Guard, Index, Quotient, Value, Var, walk
from tracegrad.kernels.form import Axis, Kernel, Statement, Store, operands_of

INLINE = ("const", "index", "local")  # printed inside the line that uses them


def _axes(axes: Iterable[Axis]) -> str:
    return ", ".join(f"{a.name} < {a.size}" for a in axes) or "one"


def show_kernel(kernel: Kernel) -> str:
    """Return the text of a kernel. `3[i0]` is element i0 of slot 3, `%5` a computed value, and `a0` a fold's result."""
    who = "every workgroup" if kernel.uniform else "each"
    folds = f", {who} folds {kernel.length} ({_axes(kernel.inner)})" if kernel.inner else ""
    return "\n".join([f"{kernel.label}: {kernel.rows} points ({_axes(kernel.outer)}){folds}", *body_of(kernel)])


def body_of(kernel: Kernel, axes: Callable[[Sequence[Axis]], str] = _axes) -> list[str]:
    """Return the lines of a kernel's slots and statements. axes: spells some axes."""
    lines: list[str] = []
    for k, s in enumerate(kernel.slots):
        role = "written" if s.written else "read"
        lines.append(f"  slot {k}: {s.dtype} {role}" + (f", over slot {s.replaces}" if s.replaces >= 0 else ""))
    names: dict[Value, str] = {}
    for statement in kernel.body:
        for v in walk(_values(statement)):
            if v.op not in INLINE and v not in names:
                text = _value(v, names)
                names[v] = f"%{len(names)}"
                lines.append(f"  {names[v]} = {text}")
        lines.append(f"  {_statement(statement, axes, kernel.inner, names)}")
    return lines


def _values(s: Statement) -> list[Value]:
    """Return the values that a statement uses, the value of its index included."""
    atoms = [atom for atom, _ in s.index.terms] if isinstance(s, Store) else []
    return [*operands_of(s), *(atom.value for atom in atoms if isinstance(atom, Dynamic))]


def _statement(
    s: Statement, axes: Callable[[Sequence[Axis]], str], inner: Sequence[Axis], names: dict[Value, str]
) -> str:
    if isinstance(s, Store):
        return f"{s.slot}[{_index(s.index, names)}] = {_ref(s.value, names)}" + (" each" if s.inner else "")
    over = f"over {axes(inner)}"
    if s.scatter is not None:
        c = s.scatter
        where = f"{_ref(c.target, names)} == {_index(c.row, names)}"
        shape = f"rows {axes(c.m)}, columns {axes(c.n)}, batch {axes(c.batch)}"
        return f"{s.local} = sum {_ref(c.update, names)} where {where} {over}; {shape}"
    if s.product is not None:
        p = s.product
        a, b = _ref(p.a, names), _ref(p.b, names)
        limits = "".join(f", {x.low} <= {x.high}" for x in p.limits)
        shape = f"rows {axes(p.m)}, columns {axes(p.n)}, batch {axes(p.batch)}{limits}"
        return f"{s.local} = sum {a} * {b} {over}; {shape}"
    return f"{s.local} = {s.prim.name} {_ref(s.value, names)} {over}"


def _ref(v: Value, names: dict[Value, str]) -> str:
    if v.op == "index":
        return _index(v.arg, names)
    if v in names:
        return names[v]
    return f"{v.arg}u" if v.op == "const" and v.dtype.name == "u32" else str(v.arg)


def _value(v: Value, names: dict[Value, str]) -> str:
    args = [_ref(a, names) for a in v.args]
    if v.op == "load":
        slot, index = v.arg
        return f"{slot}[{_index(index, names)}]"
    if v.op == "inside":
        return f"{args[0]} if {' and '.join(_guard(g, names) for g in v.arg)} else 0"
    name, attrs = v.arg
    shown = [*args, *(f"{k}={x}" for k, x in dict(attrs).items())]
    return f"{name}({', '.join(shown)})"


def _guard(g: Guard, names: dict[Value, str]) -> str:
    index = _index(g.index, names)
    return f"{g.lo} <= {index} < {g.hi}" + (f" and ({index}) % {g.step} == 0" if g.step != 1 else "")


def _index(index: Index, names: dict[Value, str]) -> str:
    parts = [_atom(a, names) + (f"*{c}" if c != 1 else "") for a, c in index.terms]
    return " + ".join(parts + ([str(index.const)] if index.const or not parts else []))


def _atom(a: Var | Quotient | Dynamic, names: dict[Value, str]) -> str:
    if isinstance(a, Var):
        return a.name
    if isinstance(a, Quotient):
        return f"(({_index(a.index, names)}) {'%' if a.mod else '//'} {a.d})"
    return f"clamp({_ref(a.value, names)}, 0, {a.hi})"
