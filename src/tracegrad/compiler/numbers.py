"""Constants of a graph that depend on the sizes, such as the divisor of a mean: they become inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tracegrad.dtypes import DType, TensorType
from tracegrad.hypers import PREFIX
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind, rewrite
from tracegrad.kernels.form import UnsizedError
from tracegrad.prims.leaves import CONST, leaf
from tracegrad.transforms.loops import Body, graph_of, inner_leaf

NAME = "size {}"  # of such an input: no hyperparameter has a space in its name
At = tuple[str, str]  # the value of a constant at two sizes


class Number(NamedTuple):
    """An input whose value depends on the size: a constant in each trace."""

    field: str
    dtype: DType
    at: At


def constants_of(graph: Graph) -> list[Tensor]:
    """Return the constants of a graph and of its loops in order."""
    found: list[Tensor] = []
    for t in graph.nodes:
        if t.prim is CONST:
            found.append(t)
        elif t.prim.family == "scan":
            found += constants_of(graph_of(t.attrs["body"]))
    return found


def pairs_of(one: Graph, other: Graph) -> list[At]:
    """Return the value of each constant at two sizes. Raises UnsizedError if one graph has more constants."""
    found, others = ([repr(t.attrs["value"]) for t in constants_of(g)] for g in (one, other))
    if len(found) != len(others):
        raise UnsizedError(f"there are {len(found)} constants, and {len(others)} at other sizes")
    return list(zip(found, others))


def numbers_of(one: Graph, other: Graph) -> tuple[list[Number], list[dict[int, int]]]:
    """Return the inputs that depend on the size; and for both graphs, serial of a constant -> its input's index."""
    found: dict[tuple[DType, At], int] = {}
    place: list[dict[int, int]] = [{}, {}]
    for at, x, y in zip(pairs_of(one, other), constants_of(one), constants_of(other), strict=True):
        if at[0] != at[1]:
            place[0][x.serial] = place[1][y.serial] = found.setdefault((x.dtype, at), len(found))
    return [Number(PREFIX + NAME.format(k), dtype, at) for (dtype, at), k in found.items()], place


def counted(graph: Graph, place: Mapping[int, int]) -> Graph:
    """Return the graph with an input in place of some constants. place: number of the input, by serial."""

    def given(k: int, dtype: DType) -> Tensor:
        return leaf("hyper", NAME.format(k), TensorType(dtype, ()))

    return graph.with_roots(_counted(graph.roots, place, given))


def _counted(roots: Sequence[Tensor], place: Mapping[int, int], given: Callable[[int, DType], Tensor]) -> list[Tensor]:
    """Replace constants in a graph and its loops. given: returns the value of a number there."""

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim.family == "scan":
            body: Body = t.attrs["body"]
            inner: dict[int, Tensor] = {}

            def shared(k: int, dtype: DType) -> Tensor:
                if k not in inner:
                    inner[k] = inner_leaf("const", TensorType(dtype, ()))
                return inner[k]

            made = body.with_roots(_counted(body.roots, place, shared))
            made = replace(made, consts=(*body.consts, *inner.values()))
            more = [given(k, x.dtype) for k, x in inner.items()]
            return bind(t.prim, *inputs, *more, **{**t.attrs, "body": made}) if inner else None
        k = place.get(t.serial)
        return None if k is None else given(k, t.dtype)

    return rewrite(roots, rule)


def values_at(graph: Graph, pairs: Sequence[At]) -> dict[At, Any]:
    """Return the value of each number at a third size, keyed by its values at two sizes.

    Raises: UnsizedError if the number of constants differs, or if a value does not follow from those at two sizes.
    """
    values: dict[At, Any] = {}
    constants = constants_of(graph)
    if len(constants) != len(pairs):
        raise UnsizedError(f"there are {len(constants)} constants, not {len(pairs)}")
    for t, at in zip(constants, pairs):
        value = t.attrs["value"]
        if repr(values.setdefault(at, value)) != repr(value) or (at[0] == at[1] and at[0] != repr(value)):
            where = f"{t.site.short}: " if t.site else ""
            raise UnsizedError(f"{where}{value!r} depends on the size in a way that no rule here covers")
    return values
