"""The axes of a kernel: taken from the value it computes, then split and merged until its indices are simple."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.kernels.expr import Index, Quotient, Var, atoms_of, indices_of, walk
from tracegrad.kernels.form import Kernel, Store
from tracegrad.kernels.fuse import Cluster

# The axes of a kernel in groups, each with the factors of its natural axes: parts of k, batch, m, n, k for products;
# outer and inner for all others.
Domain = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]


def natural_domain(c: Cluster) -> Domain:
    """Return one axis per dimension of the node that gives the cluster its form."""
    t = c.main

    def axes(shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple((n,) for n in shape)

    if c.kind == "product":
        k = t.inputs[0].shape[-1]
        m, n = t.shape[-2:]
        first = t.ndim - t.inputs[0].ndim  # after the axis of parts
        groups = (("part", t.shape[:first]), ("b", t.shape[first:-2]), ("m", (m,)), ("n", (n,)), ("k", (k,)))
        return tuple([(g, axes(n)) for g, n in groups])
    if c.kind == "scatter":
        a = t.axis
        groups = (("b", t.shape[:a]), ("m", t.shape[a : a + 1]), ("n", t.shape[a + 1 :]))
        return (*((g, axes(n)) for g, n in groups), ("k", axes((t.inputs[0].shape[a],))))
    if c.kind == "points":
        folded = next((s.inputs[0].shape for s in c.scalars if s.prim.family == "fold"), ())
        return ("i", axes(t.shape)), ("j", axes(folded))
    shape, folded = t.inputs[0].shape, t.axes
    if c.kind == "rows":
        first = min((d for d in folded if shape[d] > 1), default=len(shape))
        return ("i", axes(shape[:first])), ("j", axes(shape[first:]))
    kept = [n for d, n in enumerate(shape) if d not in folded]
    return ("i", axes(kept)), ("j", axes([shape[d] for d in sorted(folded)]))


def all_indices(kernel: Kernel) -> list[Index]:
    """Return every index that the kernel uses."""
    stored = [s.index for s in kernel.body if isinstance(s, Store)]
    return [*stored, *(index for v in walk([s.value for s in kernel.body]) for index in indices_of(v))]


def split_axes(kernel: Kernel, domain: Domain) -> Domain | None:
    """Split axes whose variable, plus any number, is divided by a divisor of its size; None if there are none."""
    sizes = {a.name: a.size for a in (*kernel.outer, *kernel.inner)}
    cuts: dict[str, int] = {}
    for index in all_indices(kernel):
        for atom in atoms_of(index):
            if isinstance(atom, Quotient) and len(atom.index.terms) == 1:
                ((var, c),) = atom.index.terms
                if c == 1 and isinstance(var, Var) and sizes[var.name] % atom.d == 0 and sizes[var.name] > atom.d > 1:
                    cuts[var.name] = min(atom.d, cuts.get(var.name, atom.d))
    if not cuts:
        return None

    def cut(group: str, factors: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        out: list[tuple[int, ...]] = []
        at = 0
        for natural in factors:
            new: list[int] = []
            for n in natural:
                d = cuts.get(f"{group}{at}")
                new += [n] if d is None else [n // d, d]
                at += 1
            out.append(tuple(new))
        return tuple(out)

    return tuple((group, cut(group, factors)) for group, factors in domain)


def merge_axes(kernel: Kernel, domain: Domain) -> Domain | None:
    """Merge neighbouring axes that every index treats as one; return None if there are none."""
    indices = all_indices(kernel)
    nested = [atom.index for index in indices for atom in atoms_of(index) if isinstance(atom, Quotient)]
    coefficients = [x.strides for x in (*indices, *nested)]
    changed = False
    groups: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    for group, factors in domain:
        flat = [n for natural in factors for n in natural]
        merged: list[int] = []
        names: list[str] = []
        for k, n in enumerate(flat):
            name = f"{group}{k}"
            if n == 1:
                changed = changed or len(flat) > 1
                continue
            # the last axis kept so far has the coefficient n * (this one's) in every index
            if merged and all(c.get(names[-1], 0) == n * c.get(name, 0) for c in coefficients):
                merged[-1] *= n
                names[-1] = name
                changed = True
            else:
                merged.append(n)
                names.append(name)
        groups.append((group, (tuple(merged),) if factors else ()))
    return tuple(groups) if changed else None
