"""The nodes of graphs: primitives, tensors, `bind`, which adds every node, and how graphs are built again.

A Tensor is an immutable node: primitive, inputs, attributes, type, call site. A graph consists of the nodes that its
outputs reach, so there is no dead code to remove, and there are no ids to remap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

from tracegrad import foreign
from tracegrad.dtypes import TensorType
from tracegrad.errors import CallError, DTypeError, InputError, ShapeError, Site, TraceError, placed
from tracegrad.methods import AT_ONCE, Op, TensorMethods, with_types
from tracegrad.refusals import branching, shown
from tracegrad.sites import current_site, restored, rewriting

_serial = itertools.count()

# How the compiler treats a primitive. Everything else is in the row of the primitive.
FAMILIES = ("leaf", "formula", "map", "view", "fold", "product", "gather", "scatter", "pack", "scan", "item",
            "composite")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One row of the table of primitives: the complete definition of an op.

    name:   a name that no other row has
    family: how compilers handle the row: "map" (elementwise), "view", "fold", "composite" or another of `FAMILIES`
    type:   (*input types, **attrs) -> TensorType; raises ShapeError or DTypeError
    array:  the computation on arrays of the namespace `xp` (NumPy, jax.numpy). It is the name of a function of xp, an
            expression such as "~xp.isfinite({0})", or a function (xp, *arrays, **attrs) -> array. In the expression of
            a fold, {keepdims} is True (axes stay with size 1) unless the attributes have keepdims=False
    xla:    (x, node, *arrays) -> array: the computation in JAX, if better for XLA than `array` or the expansion; `x` is
            a `runtime.jax_graph.Xla`
    xla_if: (x, node) -> whether `xla` serves this node; without the rule, always (family "composite")
    vjp:    (ct, y, *inputs, **attrs) -> one cotangent (or None) per input
    jvp:    (ts, y, *inputs, **attrs) -> the tangent of `y`; `ts` has a tangent, or None for zero, per input. Needed
            only if the default, the transpose of `vjp`, costs more
    batch:  (n, y, *inputs, **attrs) -> `n` values of `y` along a new axis 0. Each input has this axis too, of size n,
            or of size 1 if the input is shared. (prims.rules has the common rules for `jvp` and `batch`; a composite
            without `batch` uses its expansion, and so does one without `vjp` for derivatives)
    wgsl:   template of the value, with `{0}` for the first input, `{t}` for the type of the result, and `{of}` for the
            type of the first input (family "map")
    helper: WGSL functions that the template calls, if any, separated by blank lines
    index:  (coordinates, input type, **attrs) -> (input coordinates, guards) (family "view");
            (coordinates, **attrs) -> the element there, a number or an index (family "formula")
    repeats: (input type, result type) -> number of adjacent copies in the result of each input element. None if the
            result has another order (family "view"; without the rule, always None)
    expand: (*inputs, **attrs) -> Tensor (family "composite")
    indexes: (*input types, **attrs) -> (number of the input with indices, size of the axis, exempt). The last is a
            value that is valid although it is no index, such as an `ignore_index`, or None
    combine: name of the elementwise row that joins two partial results
    identity: result of a fold of no elements (`combine` and `identity`: families "fold", "product", "scatter"). Of a
            composite along an axis, such as running sums: more elements of this value at the end change no other result
    cost:   cost of computing one element; a load from memory costs 4
    """

    name: str
    family: str
    type: Callable[..., TensorType]
    array: Callable[..., Any] | str | None = None
    vjp: Callable[..., Sequence[Tensor | None]] | None = None
    jvp: Callable[..., Tensor | None] | None = None
    batch: Callable[..., Tensor] | None = None
    wgsl: str = ""
    helper: str = ""
    index: Callable[..., Any] | None = None
    repeats: Callable[[TensorType, TensorType], int | None] | None = None
    expand: Callable[..., Tensor] | None = None
    indexes: Callable[..., tuple[int, int, int | None]] | None = None
    combine: str = ""
    identity: float | None = None
    cost: int = 1
    xla: Callable[..., Any] | None = None
    xla_if: Callable[..., bool] | None = None

    @property
    def passes(self) -> bool:
        """Whether each element of the result is an unchanged element of the first input."""
        return self.wgsl == "{0}"

    @property
    def chooses(self) -> bool:
        """Whether each result of a fold is one of the folded elements, as for max and min."""
        return self.identity in (float("inf"), float("-inf"))

    def __repr__(self) -> str:
        return self.name


PRIMITIVES: dict[str, Primitive] = {}


def register(p: Primitive) -> Primitive:
    """Add `p` to the table of primitives, and return `p`.

    Raises InputError if the name of `p` is taken, or its family is unknown.

    As a new jax.extend.core.Primitive with its rules.
    """
    if p.name in PRIMITIVES:
        raise InputError.here(f"primitive {p.name!r} exists; choose another name")
    if p.family not in FAMILIES:
        raise InputError.here(f"primitive {p.name!r}: family must be one of {', '.join(FAMILIES)}; got {p.family!r}")
    PRIMITIVES[p.name] = p
    return p


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor(TensorMethods):
    """A value in a traced graph: a node with a type, but no numbers.

    Ops in a traced loss or forward make it. Elsewhere ops return a `GradTensor`, which has numbers.

    prim:   the primitive op that computes it.
    inputs: the nodes that it depends on.
    attrs:  settings of the primitive, such as the axes of a sum.
    type:   element type and shape.
    site:   your line of code that made it.
    serial: a number that no other node has.
    As a tracer of JAX, and torch.fx.Proxy.

    >>> graph = tg.trace_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (4, 2)})
    >>> y = graph.outputs["output"]
    >>> y.name, y.type, len(y.inputs)
    ('add', f32[4,1], 2)
    """

    prim: Primitive
    inputs: tuple[Tensor, ...]
    attrs: Mapping[str, Any]
    type: TensorType  # pyright: ignore[reportIncompatibleMethodOverride]
    site: Site | None
    serial: int = field(default_factory=_serial.__next__)

    if not TYPE_CHECKING:

        def __new__(cls, prim: Any = None, *_: Any, **__: Any) -> Tensor:
            if isinstance(prim, Primitive):
                return object.__new__(cls)
            raise CallError.here(
                "tg.Tensor is the type of values in a trace, which ops make: write tg.tensor(x) for a tensor of "
                "numbers, or tg.asarray(x) in a loss"
            )

    @property
    def name(self) -> str:
        """The name of the node's primitive, such as "add"; for a leaf, its own name, such as "layers.0.W"."""
        return str(self.attrs["name"]) if "name" in self.attrs else self.prim.name

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The inputs whose elements the node reads.

        A view, such as reshape, reads only its first input. All other inputs are there only so that they are computed
        before the view.
        """
        return self.inputs[:1] if self.prim.family == "view" else self.inputs

    @property
    def axis(self) -> int:
        """The axis along which the node works, such as the axis of a concat. Raises KeyError if there is none."""
        return self.attrs["axis"]

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of its input along which this node's op works, such as the axes of a sum.

        Raises KeyError if the op has no axes.
        """
        return self.attrs["axes"]

    def __repr__(self) -> str:
        return f"<{self.type} {self.name}>"

    def __bool__(self) -> bool:
        raise TraceError.here(
            f"the value of {self!r} is not known while tracing, so it cannot decide a Python branch: {branching()}"
        )

    def __float__(self) -> float:
        raise TraceError.here(
            f"the value of {self!r} is not known while tracing, so it cannot become a Python number. Compute with "
            "functions of tg., such as tg.exp. To read the value, return it beside the loss, as aux"
        )

    def __int__(self) -> int:
        raise TraceError.here(
            f"the value of {self!r} is not known while tracing, so int() cannot read it: sizes are in x.shape, and "
            "a computed integer is tg.cast(x, tg.i32)"
        )

    def __index__(self) -> int:
        raise TraceError.here(
            f"the value of {self!r} is not known while tracing, so it cannot be a size, an index of a list, a range "
            "or a slice. Sizes are in x.shape. To pick elements by a tensor, write tg.take(x, i, axis), with x = "
            "tg.stack(list) for a list"
        )

    def __format__(self, spec: str) -> str:
        return str(float(self)) if spec else repr(self)  # a number format needs a number; float() raises the error

    def __len__(self) -> int:
        if not self.shape:
            raise TraceError.here(
                f"{self!r} has rank 0: it has no length, and you cannot iterate over it; a reduction with axis= "
                "keeps the other axes"
            )
        return self.shape[0]

    if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise foreign.missing(self, name)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TraceError.here(f"{self!r} cannot be changed in place; make a new tensor, with tg.where or tg.concat")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return foreign.ufunc(function, method, inputs, options)

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise foreign.unknown("numpy", function)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        raise foreign.unknown("torch", function)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TraceError.here(
            f"{self!r} has no values while tracing, so it cannot become a NumPy array or index one. Write "
            "tg.stack([a, b]) for np.array([a, b]), and tg.take(tg.asarray(array), i, 0) for array[i]"
        )


def _fixed(tensor: Tensor, name: str, value: object) -> None:
    hint = "; tg.stop_gradient(x) passes no gradient on" if name == "requires_grad" else ""
    raise TraceError.here(f"{tensor!r} is a value of a trace and cannot change; {name} cannot be set{hint}")


if not TYPE_CHECKING:
    Tensor.__setattr__ = _fixed  # the dataclass's own fails internally for a class with slots


def bind(p: Primitive, *inputs: Tensor, **attrs: Any) -> Tensor:
    """Apply primitive `p` to tensors, and return the result. Every op goes through `bind`.

    p:      a primitive, which `extend.composite` and `extend.register` return. `extend.elementwise` returns a function,
            which you call without `bind`.
    inputs: tensors, as many as `p` takes, all eager or all of one trace. Convert numbers and arrays in a trace with
            `extend.as_tensor`. On eager tensors, `p` runs at once, and the result is an eager tensor. In a trace, the
            result is a new node, with the line of the caller for error messages.
    attrs:  the settings of `p` by name, such as `axes` of a sum.
    Raises: errors of the type rule of `p`, with the line of the caller; TraceError for eager tensors mixed with tensors
            of a trace.

    As the bind of JAX's primitives.
    """
    for x in inputs:
        if type(x) is not Tensor:
            return _run(p, inputs, attrs)
    site = current_site()
    try:
        type_ = p.type(*(x.type for x in inputs), **attrs)
    except (ShapeError, DTypeError) as e:
        raise placed(with_types(e, inputs), p.name, site) from None
    except AttributeError:
        _check_primitive(p)
        raise
    return Tensor(p, inputs, attrs, type_, site)


_bind = Op(bind)


def _run(p: Primitive, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Run `p` on eager tensors. Raises TraceError for other values, and for a mix of nodes and eager tensors."""
    _check_primitive(p)
    for x in inputs:
        if not isinstance(x, TensorMethods) and not getattr(x, "shape", ()):
            raise TraceError.here(
                f"{p.name}: extend.bind takes tensors, got {shown(x)}; convert it with extend.as_tensor(x) in an op or "
                "loss, and with tg.tensor(x) elsewhere"
            )
    if not AT_ONCE or any(type(x) is Tensor for x in inputs):
        raise TraceError.here(f"{p.name}: takes nodes of a trace or eager tensors, not both; see tg.asarray")
    return AT_ONCE[0].run(_bind, (p, inputs, attrs))


def _check_primitive(p: object) -> None:
    """Raise TraceError unless `p` is a primitive."""
    if not isinstance(p, Primitive):
        name = getattr(p, "__name__", "f")
        hint = f"call it, as in {name}(x)" if callable(p) else "extend.composite returns one"
        raise TraceError.here(f"extend.bind takes a primitive, got {shown(p)}; {hint}")


def rebind(t: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return `t` with other inputs of the same types; `t` itself if the inputs are the same."""
    if len(inputs) == len(t.inputs) and all(map(is_, inputs, t.inputs)):
        return t
    return Tensor(t.prim, tuple(inputs), t.attrs, t.type, t.site)


def toposort(roots: Iterable[Tensor], since: int = 0, known: Iterable[int] = ()) -> list[Tensor]:
    """Return every node that `roots` reach, inputs before their readers.

    since, known: skip nodes with serials below `since` or in `known`, and nodes that only these reach.
    As the order of nodes in torch.fx.Graph.

    >>> graph = tg.trace_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (4, 2)})
    >>> len(extend.toposort(graph.outputs.values())) >= 4
    True
    """
    seen: set[int] = set(known)
    nodes: list[Tensor] = []
    inputs: Iterable[Tensor] = roots
    stack: list[Tensor] = []
    while True:
        for x in inputs:
            serial = x.serial
            if serial not in seen and serial >= since:
                seen.add(serial)
                stack.append(x)
        if not stack:
            break
        t = stack.pop()
        nodes.append(t)
        inputs = t.inputs
    nodes.sort(key=attrgetter("serial"))  # a node is made after its inputs
    return nodes


Rule = Callable[[Tensor, tuple[Tensor, ...]], "Tensor | None"]


@restored
def rewrite(roots: Sequence[Tensor], rule: Rule) -> list[Tensor]:
    """Rebuild the graph of `roots`, and return the new roots.

    `rule(t, inputs)` gets each tensor `t` and its rebuilt inputs. It returns a replacement, or None to keep `t`.
    As a transformation of torch.fx.

    >>> graph = tg.trace_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (4, 2)})
    >>> roots = list(graph.outputs.values())
    >>> extend.rewrite(roots, lambda tensor, inputs: None) == roots
    True
    """
    new: dict[int, Tensor] = {}
    with rewriting() as here:
        for t in toposort(roots):
            inputs = tuple([new[x.serial] for x in t.inputs])
            here.site = t.site
            kept = rebind(t, inputs)
            replaced = rule(kept, inputs)
            new[t.serial] = kept if replaced is None else replaced
    return [new[r.serial] for r in roots]


def graft(roots: Sequence[Tensor], new: Mapping[int, Tensor]) -> list[Tensor]:
    """Return `roots` after some nodes are replaced. The inputs of a replaced node are not visited.

    new: serial of a replaced node -> the node in its place.
    """
    done = dict(new)
    for t in toposort(roots, known=new):
        done[t.serial] = rebind(t, [done[x.serial] for x in t.inputs])
    return [done[t.serial] for t in roots]
