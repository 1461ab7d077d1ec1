"""Graph: named outputs, captures and writes, and all nodes that they reach; and walks over nodes.

Some values must be computed once, because they are compared with themselves, such as x in x == max(x). A second
computation can give another number: compilers round a * b + c once in one loop and twice in another. Then no element
equals the largest, so argmax is out of range, and the gradient of max is 0 / 0. Subtracting the largest, as softmax
does, is not a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

from tracegrad.dtypes import bool_
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.refusals import Value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Graph(Value):
    """A traced loss, forward or training step: the values that it computes, by name. Print it to see all nodes.

    outputs:   what the loss or forward returns, such as "loss" or "output".
    captures:  the values of `tg.capture`.
    writes:    what a run stores: new states of the model, and with an optimizer new parameters and optimizer state.
    precision: "f32" or "f16". With "f16", kernels store intermediate values in half precision.
    ends:      names of inputs with a size of at least 1, where loops end: elements from this size on are masked, and
               get no memory. None on a GPU, where no loop ends.

    As a jaxpr of JAX, and torch.fx.Graph.

    >>> graph = tg.trace_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (4, 2)})
    >>> graph
    <Graph of 7 nodes: output f32[4,1]; print it for all of them>
    """

    outputs: dict[str, Tensor]
    captures: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    writes: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    precision: str = "f32"
    ends: tuple[str, ...] | None = ()

    @property
    def roots(self) -> list[Tensor]:
        """All values that a run computes and keeps: outputs, captures and writes, in this order.

        As the outvars of a jaxpr of JAX.
        """
        return [*self.outputs.values(), *self.captures.values(), *self.writes.values()]

    @property
    def results(self) -> dict[str, Tensor]:
        """The values that a run returns, by name: the outputs, and each capture as "capture.NAME"."""
        return {**self.outputs, **{f"capture.{name}": t for name, t in self.captures.items()}}

    def with_roots(self, roots: Sequence[Tensor]) -> Graph:
        """Return a graph whose outputs, captures and writes keep their names, but are the tensors `roots`.

        roots: in the order of `self.roots`: outputs, then captures, then writes.
        """
        it = iter(roots)
        outputs, captures, writes = (
            {name: next(it) for name in part} for part in (self.outputs, self.captures, self.writes)
        )
        return Graph(outputs, captures, writes, self.precision, self.ends)

    @property
    def nodes(self) -> list[Tensor]:
        """All values that a run computes, each after its inputs. As the equations of a jaxpr of JAX."""
        return toposort(self.roots)

    def leaves(self, *roles: str) -> list[Tensor]:
        """Return the leaves (nodes without inputs) that have one of `roles`.

        roles: "param" for trained parameters, "frozen" for the others, "input" for the inputs of a call, and
               "hyper" for hyperparameters. "state" is for optimizer arrays and states of the model, "patch" for values
               and masks of `tg.patch`.

        >>> graph = tg.trace_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (4, 2)})
        >>> graph.leaves("input")
        [<f32[4,2] x>]
        """
        return [t for t in self.nodes if t.attrs.get("role") in roles]

    @property
    def params(self) -> list[Tensor]:
        """All parameters, trained or not, in order of first use. As torch.nn.Module.parameters."""
        return self.leaves("param", "frozen")

    @property
    def inputs(self) -> list[Tensor]:
        """The leaf of each named input of the loss or forward. As the placeholders of torch.fx.Graph."""
        return self.leaves("input")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {t.type}" for name, t in self.outputs.items())
        return f"<Graph of {len(self)} nodes: {shown}; print it for all of them>"

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        nodes = self.nodes
        number = {t.serial: k for k, t in enumerate(nodes)}
        lines: list[str] = []
        for t in nodes:
            lines.append(_line(t, number))
            if "body" in t.attrs:
                lines += [f"    {line}" for line in str(t.attrs["body"]).splitlines()]
        for kind, part in (("return", self.outputs), ("capture", self.captures), ("write", self.writes)):
            lines += [f"{kind} {name} = %{number[t.serial]}" for name, t in part.items()]
        return "\n".join(lines)


def _line(t: Tensor, number: Mapping[int, int]) -> str:
    """Return a node as text, such as `%12 f32[256,64] = matmul(%3, %7)  # model.py:14`."""
    shown = [f"%{number[x.serial]}" for x in t.inputs]
    shown += [f"{k}={_show(v)}" for k, v in t.attrs.items() if k != "body"]
    where = f"  # {t.site.short}" if t.site else ""
    return f"%{number[t.serial]} {t.type} = {t.prim.name}({', '.join(shown)}){where}"


def _show(value: Any) -> str:
    text = str(value) if not isinstance(value, bytes) else f"<{len(value)} bytes>"
    return text if len(text) <= 60 else text[:57] + "..."


INLINED = ("map", "view", "gather")  # families whose values each reader computes itself, unless they are stored


def reached(roots: Iterable[Tensor], beyond: Callable[[Tensor], Iterable[Tensor]]) -> Iterator[Tensor]:
    """Yield `roots` and all nodes reached from them, each once. `beyond(t)` returns the nodes to go on to from `t`."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        t = stack.pop()
        if t.serial not in seen:
            seen.add(t.serial)
            yield t
            stack.extend(beyond(t))


def beside(roots: Sequence[Tensor], own: Callable[[Tensor], bool]) -> list[Tensor]:
    """Return the nodes that `roots` read, directly or through nodes for which `own` is true, and that are not `own`."""
    return [t for t in reached(roots, lambda t: t.inputs if own(t) else ()) if not own(t)]


def depending(order: Iterable[Tensor], on: Iterable[Tensor], floats: bool = False) -> set[int]:
    """Return the serials of the nodes `on`, and of all nodes that depend on them. order: inputs before their readers.

    floats: follow only nodes of float type.
    """
    found = {t.serial for t in on}
    for t in order:
        if (t.dtype.is_float or not floats) and any(x.serial in found for x in t.inputs):
            found.add(t.serial)
    return found


def unmoved(t: Tensor) -> Tensor:
    """Return the tensor of which `t` is a view or a copy; `t` itself if it is neither."""
    while t.prim.family == "view" or t.prim.passes:
        t = t.inputs[0]
    return t


def computed_once(order: Sequence[Tensor], delivered: Iterable[Tensor] = ()) -> set[int]:
    """Return the serials of the elementwise values that must be computed once, and then be loaded by all readers.

    A fold such as max selects an element of these values. Then a comparison reads the values and the selected element,
    or the values are among `delivered`, which the user gets. A composite that is not expanded counts as such a fold.

    order: the nodes, inputs before their readers.
    """
    chosen: dict[int, int] = {}  # serial of a value read by selecting folds -> these folds, a bit each
    behind: dict[int, int] = {}  # serial of a node -> the selecting folds that it depends on
    seen: dict[int, set[int]] = {}  # selecting folds -> what is inlined into the comparisons that depend on them
    found: set[int] = set()
    bit = 1
    for t in order:
        folds = reduce(int.__or__, [behind[x.serial] for x in t.inputs], 0)
        if (t.prim.chooses and t.dtype.is_float) or t.prim.family == "composite":
            folds |= bit
            for x in inlined(t.inputs):
                if x.prim.family == "map" and x.dtype.is_float:
                    chosen[x.serial] = chosen.get(x.serial, 0) | bit
            bit <<= 1
        elif folds and t.prim.family == "map" and t.dtype is bool_:
            met = {s for s, by in chosen.items() if by & folds}
            ends = seen.setdefault(folds, set(met))
            values = {x.serial for x in inlined(t.inputs, ends)}
            found |= values & met
            ends |= values
        behind[t.serial] = folds
    return found.union(t.serial for t in map(unmoved, delivered) if t.serial in chosen)


def inlined(roots: Sequence[Tensor], until: Set[int] = frozenset()) -> Iterator[Tensor]:
    """Yield those of `roots` that readers compute themselves, and all values that are inlined into them.

    until: serials of values that are yielded, but whose inputs are not visited.
    """

    def inside(values: Iterable[Tensor]) -> list[Tensor]:
        return [x for x in values if x.prim.family in INLINED]

    return reached(inside(roots), lambda x: () if x.serial in until else inside(x.operands))


class CycleError(ValueError):
    """Raised by `postorder` where an item has to come before itself."""


def postorder(roots: Iterable[T], before: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield each item once, after all that come before it. Of several roots or items before one, the last is first.

    A loop, because expressions can be deep. Raises CycleError; but `before(x)` must not give `x` itself.
    """
    done = object()
    waiting: dict[T, Any] = {}  # item under way -> the one for which it was begun; or `done`
    stack, latest = list(roots), None
    while stack:
        x = stack[-1]
        if x not in waiting:
            waiting[x], latest = latest, x
            stack += before(x)
            continue
        stack.pop()
        if x is latest:
            latest, waiting[x] = waiting[x], done
            yield x
        elif waiting[x] is not done:
            raise CycleError
