"""Turn numbers that follow a batch's size, such as the divisor of a mean, into inputs of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tracegrad.dtypes import DType, TensorType
from tracegrad.graph import Graph
from tracegrad.hypers import PREFIX
from tracegrad.ir import Tensor, rewrite
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.expand import expand_composites
from tracegrad.prims.leaves import CONST, leaf

NAME = "size {}"  # of such an input: no hyperparameter has a space in its name
At = tuple[str, str]  # the value of a constant at two sizes


class Number(NamedTuple):
    """An input that follows the size."""

    field: str
    dtype: DType
    at: At


def expanded(graph: Graph) -> Graph:
    """Return the graph without composites, which can hide such numbers: a variance divides by the batch's size."""
    return graph.with_roots(expand_composites(graph.roots))


def constants_of(graph: Graph) -> list[Tensor]:
    """Return the constants of a graph in order."""
    return [t for t in graph.nodes if t.prim is CONST]


def pairs_of(one: Graph, other: Graph) -> list[At]:
    """Return the value of each constant at two sizes."""
    both = zip(constants_of(one), constants_of(other), strict=True)
    return [(repr(x.attrs["value"]), repr(y.attrs["value"])) for x, y in both]


def numbers_of(one: Graph, other: Graph) -> tuple[list[Number], list[list[Tensor]]]:
    """Return the numbers that follow the size, and their constants in both graphs."""
    found: list[Number] = []
    constants: list[list[Tensor]] = [[], []]
    for x, y, at in zip(constants_of(one), constants_of(other), pairs_of(one, other), strict=True):
        if at[0] != at[1]:
            found.append(Number(PREFIX + NAME.format(len(found)), x.dtype, at))
            constants[0].append(x)
            constants[1].append(y)
    return found, constants


def counted(graph: Graph, constants: Sequence[Tensor]) -> Graph:
    """Return the graph with an input in place of each of some constants."""
    place = {t.serial: k for k, t in enumerate(constants)}

    def rule(t: Tensor, _: tuple[Tensor, ...]) -> Tensor | None:
        k = place.get(t.serial)
        return None if k is None else leaf("hyper", NAME.format(k), TensorType(t.dtype, ()))

    return graph.with_roots(rewrite(graph.roots, rule))


def values_at(graph: Graph, pairs: Sequence[At]) -> dict[At, Any]:
    """Return the value of each number at a third size, keyed by its values at two sizes.

    Raises: UnsizedError for a constant that is equal at the two sizes and differs at the third.
    """
    values: dict[At, Any] = {}
    constants = constants_of(graph)
    if len(constants) != len(pairs):
        raise UnsizedError(f"there are {len(constants)} constants, not {len(pairs)}")
    for t, at in zip(constants, pairs):
        value = t.attrs["value"]
        if repr(values.setdefault(at, value)) != repr(value) or (at[0] == at[1] and at[0] != repr(value)):
            where = f"{t.site.short}: " if t.site else ""
            raise UnsizedError(f"{where}{value!r} is decided by the size in a way of its own")
    return values
