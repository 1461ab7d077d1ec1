"""Move the axis whose size calls choose to the front of every value, so that memory holds its elements in order.

A program for many sizes computes the first elements of values that are as large as at its capacity. In f32[B,T,64] the
elements of a smaller T are not the first ones, unless T is the outermost axis in memory. Views undo each move for
readers, and cost nothing. The graph's meaning does not depend on the pass: what it does not move stays, and is refused
by `compiler.uniform` if it must be in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracegrad.dtypes import Shape, TensorType, axis_first
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind, rebind
from tracegrad.prims.folds import GATHER, MATMUL, SCATTER_ADD
from tracegrad.prims.leaves import LEAF, leaf
from tracegrad.prims.views import PERMUTE, RESHAPE, permute, reshape


class Form(NamedTuple):
    """How a value is kept: along `axis` it has `before` * size * `after` elements, and the size comes first.

    x[.., before, size, after, ..] is kept as u[size, .., before, after, ..].
    """

    axis: int
    before: int
    after: int

    def of(self, x: Tensor, n: int) -> Tensor:
        """Return `x` with the size `n` in front."""
        head, tail = x.shape[: self.axis], x.shape[self.axis + 1 :]
        k = self.axis
        split = reshape(x, (*head, self.before, n, self.after, *tail))
        return permute(split, (k + 1, *range(k), k, *range(k + 2, split.ndim)))

    def undone(self, u: Tensor) -> Tensor:
        """Return the value that is kept as `u`."""
        k, n = self.axis, u.shape[0]
        back = permute(u, (*range(1, k + 2), 0, *range(k + 2, u.ndim)))
        return reshape(back, (*u.shape[1 : k + 1], self.before * n * self.after, *u.shape[k + 3 :]))

    def axes(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Return where axes of the value are in what is kept."""
        k = self.axis
        return tuple(
            sorted([m for a in axes for m in ([a + 1] if a < k else [0, k + 1, k + 2] if a == k else [a + 2])])
        )

    def rows(self, u: Tensor) -> Tensor:
        """Return a value of form axis 0, or what is kept of it, as rows: the size, `before` and `after` as one axis."""
        return reshape(u, (math.prod(u.shape[:3]), *u.shape[3:]))


class Led(NamedTuple):
    """A graph with the size in front, and which axis it is of inputs and outputs; 0 is left out."""

    graph: Graph
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@ambient.restored
def lead_with_size(graph: Graph, n: int) -> Led:
    """Return the graph with the axis of size `n` in front of every value. No other axis is a multiple of `n`."""
    moved = _Moved(n)
    inputs: dict[str, int] = {}
    with ambient.rewriting() as here:
        for t in graph.nodes:
            here.site = t.site
            if t.prim is LEAF and t.attrs["role"] == "input" and (axis := _axis(t.shape, n)) and t.shape[axis] == n:
                inputs[t.attrs["name"]] = axis
                given = leaf("input", t.attrs["name"], TensorType(t.dtype, axis_first(t.shape, axis)))
                wide = (n, *t.shape[:axis], 1, 1, *t.shape[axis + 1 :])
                moved.keep(t, Form(axis, 1, 1), reshape(given, wide))
            else:
                moved.add(t)
        outputs: dict[str, int] = {}
        roots: list[Tensor] = []
        results = {id(t): name for name, t in graph.results.items()}
        for t in graph.roots:
            form = moved.forms.get(t.serial)
            if id(t) in results and form and form.axis and form.before == form.after == 1:
                outputs[results[id(t)]] = form.axis
                u = moved.kept[t.serial]
                roots.append(reshape(u, axis_first(t.shape, form.axis)))
            else:
                roots.append(moved.new[t.serial])
    return Led(graph.with_roots(roots), inputs, outputs)


def _axis(shape: Shape, n: int) -> int | None:
    """Return the only axis that grows with the size; None without one, or with several."""
    found = [k for k, size in enumerate(shape) if size and size % n == 0]
    return found[0] if len(found) == 1 else None


class _Moved:
    """The values of a graph, and how they are kept."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.new: dict[int, Tensor] = {}  # serial -> the value, by views of what is kept
        self.kept: dict[int, Tensor] = {}
        self.forms: dict[int, Form] = {}

    def keep(self, t: Tensor, form: Form, u: Tensor) -> None:
        """Keep `t` as `u`."""
        self.forms[t.serial], self.kept[t.serial] = form, u
        self.new[t.serial] = form.undone(u)

    def form(self, x: Tensor) -> Form | None:
        """Return how a value is kept, or could be if the size is in front anyway; None if the size does not occur."""
        natural = Form(0, 1, x.shape[0] // self.n) if _axis(x.shape, self.n) == 0 else None
        return self.forms.get(x.serial, natural)

    def in_form(self, x: Tensor, form: Form) -> Tensor:
        """Return a value of the graph in a form."""
        return self.kept[x.serial] if self.forms.get(x.serial) == form else form.of(self.new[x.serial], self.n)

    def add(self, t: Tensor) -> None:
        """Add the next node."""
        axis = _axis(t.shape, self.n)
        kept = [self.forms[x.serial] for x in t.inputs if x.serial in self.forms]
        forms = kept or [f for x in t.inputs if (f := self.form(x))]
        u = self.moved(t, forms[0]) if kept or (forms and axis) else None
        if u is None:
            value = self.new[t.serial] = rebind(t, [self.new[x.serial] for x in t.inputs])
            if axis:
                form = Form(axis, 1, t.shape[axis] // self.n)
                self.keep(t, form, form.of(value, self.n))
        elif isinstance(u, Tensor):
            self.new[t.serial] = u
        else:
            self.keep(t, *u)

    def moved(self, t: Tensor, form: Form) -> tuple[Form, Tensor] | Tensor | None:
        """Return a node as it is kept, or its value if that does not grow; None if it is left as it is.

        form: of an input.
        """
        axis, family = _axis(t.shape, self.n), t.prim.family
        if family == "view" and len(t.inputs) == 1 and axis is not None:
            there = self.of_view(t, form, axis)
            value = rebind(t, [self.new[t.inputs[0].serial]])
            return there, there.of(value, self.n)
        if family == "map" and axis == form.axis:
            return form, bind(t.prim, *[self.in_form(x, form) for x in t.inputs], **t.attrs)
        if family == "fold":
            u = bind(t.prim, self.in_form(t.inputs[0], form), axes=form.axes(t.axes))
            return reshape(u, t.shape) if axis is None else (form, u)
        if t.prim in (GATHER, SCATTER_ADD):
            return self.of_lookup(t, form, axis)
        return self.of_product(t, form, axis) if t.prim is MATMUL else None

    def of_view(self, t: Tensor, form: Form, axis: int) -> Form:
        """Return how a view of a value in a form is kept."""
        (x,) = t.inputs
        if t.prim is PERMUTE:
            return form._replace(axis=axis)
        before = form.before
        if t.prim is RESHAPE:
            outer, own = math.prod(x.shape[: form.axis]) * form.before, math.prod(t.shape[:axis])
            before = outer // own if outer % own == 0 else 1
        many = t.shape[axis] // self.n
        return Form(axis, before, many // before) if many % before == 0 else Form(axis, 1, many)

    def of_lookup(self, t: Tensor, form: Form, axis: int | None) -> tuple[Form, Tensor] | Tensor | None:
        """Return a gather or scatter; the size can be the axis of the indices or of rows that are apart."""
        if axis is not None and axis != t.axis:
            if any(_axis(x.shape, self.n) != axis for x in t.inputs) or axis != form.axis:
                return None
            (at,) = form.axes((t.axis,))
            return form, bind(t.prim, *[self.in_form(x, form) for x in t.inputs], **{**t.attrs, "axis": at})
        if form.axis != t.axis or t.axis:  # other indices would not be in order
            return None
        if t.prim is SCATTER_ADD:
            return bind(t.prim, *[form.rows(self.in_form(x, form)) for x in t.inputs], **t.attrs)
        x, indices = t.inputs
        if _axis(x.shape, self.n) is not None or form != self.form(indices):
            return None
        u = self.in_form(indices, form)
        return form, reshape(bind(t.prim, self.new[x.serial], form.rows(u), **t.attrs), u.shape)

    def of_product(self, t: Tensor, form: Form, axis: int | None) -> tuple[Form, Tensor] | Tensor | None:
        """Return a product; the size can be an axis of the batch, the rows, the columns or what is summed."""
        a, b = t.inputs
        grown = _axis(a.shape, self.n), _axis(b.shape, self.n)
        last = t.ndim - 1
        if axis is not None and axis < last - 1:
            if grown != (axis, axis) or form.axis != axis:
                return None
            return form, bind(t.prim, *[self.in_form(x, form) for x in t.inputs])
        if t.ndim != 2:
            return None
        if axis is None and grown == (1, 0):
            there = self.form(b) or form._replace(axis=0)
            left = self.in_form(a, there._replace(axis=1))
            wide = reshape(permute(left, (1, 0, 2, 3)), (a.shape[0], a.shape[1]))
            return bind(t.prim, wide, there.rows(self.in_form(b, there)))
        if axis == 0 and grown == (0, None) and form.axis == 0:
            u = self.in_form(a, form)
            return form, reshape(bind(t.prim, form.rows(u), self.new[b.serial]), (*u.shape[:3], t.shape[1]))
        if axis == 1 and grown == (None, 1) and form.axis == 1:
            u = permute(self.in_form(b, form), (0, 2, 3, 1))
            rows = bind(t.prim, form.rows(u), permute(self.new[a.serial], (1, 0)))
            return form, permute(reshape(rows, (*u.shape[:3], t.shape[0])), (0, 3, 1, 2))
        return None
