"""The values that a program is to give: its results and, of mode "gradient", the gradients of its f32 inputs.

The gradients are those of Σ sum(y * c) over the f32 results y with elements; the weights c are inputs too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tracegrad as tg
from fuzzing.apply import called
from fuzzing.exact import Exact, references
from fuzzing.halves import F16, Format
from fuzzing.program import Array, Input, Program
from tracegrad.compiler.pipeline import optimize
from tracegrad.dtypes import TensorType, as_dtype
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf

Outputs = dict[str, Any]


def weights(program: Program, types: Sequence[Any]) -> dict[str, Array]:
    """The weights of the results, by name; `types` has dtype and shape of each."""
    if program.mode != "gradient":
        return {}
    made: dict[str, Array] = {}
    for k, t in enumerate(types):
        if t.dtype.name == "f32" and 0 not in t.shape:
            made[f"c{k}"] = weight(program, k, t.shape).array()
    return made


def weight(program: Program, k: int, shape: tuple[int, ...]) -> Input:
    """The weights of one result."""
    return Input("f32", shape, program.ct, program.seed % 2**31 + k + 1)


def types_of(program: Program) -> list[TensorType]:
    """Of the results, from a trace of the forward pass."""
    with tracing():
        return [t.type for t in called(program, "ours", tg, list(leaves_of(program.arrays()).values()))]


def leaves_of(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """A leaf for each array; call it inside a trace."""
    return {n: leaf("input", n, TensorType(as_dtype(x.dtype), x.shape)) for n, x in arrays.items()}


def environment(program: Program) -> dict[str, Array]:
    """Everything the program is given, by name."""
    return {**program.arrays(), **weights(program, types_of(program))}


def traced(program: Program) -> Callable[..., Outputs]:
    """The function of named tensors that tracegrad compiles."""

    def forward(**given: Any) -> Outputs:
        xs = [given[f"x{k}"] for k in range(len(program.inputs))]
        floats = [k for k, x in enumerate(program.inputs) if x.dtype == "f32"]
        weighted = sorted(int(n[1:]) for n in given if n.startswith("c"))
        if not weighted or not floats:
            return {f"y{k}": y for k, y in enumerate(called(program, "ours", tg, xs))}

        def of_floats(*some: Any) -> Any:
            every = list(xs)
            for k, x in zip(floats, some):
                every[k] = x
            ys = called(program, "ours", tg, every)
            return tuple(ys[k] for k in weighted), tuple(ys)

        _, pull, ys = tg.vjp(of_floats, *(xs[k] for k in floats), has_aux=True)
        gradients = pull(tuple(given[f"c{k}"] for k in weighted))
        named = {f"y{k}": y for k, y in enumerate(ys)}
        return named | {f"g{k}": g for k, g in zip(floats, gradients)}

    return forward


def in_any_order(program: Program, env: Mapping[str, Array]) -> dict[str, Exact]:
    """The reference for a tape, which adds up the gradients that meet at a value in an order of its own."""
    graph = graph_of(program, env)
    return dict(zip(graph.outputs, references(list(graph.outputs.values()), env, any_order=True)))


def graph_of(program: Program, env: Mapping[str, Array]) -> Graph:
    """The graph of the same function."""
    with tracing():
        return Graph(traced(program)(**leaves_of(env)))


def expected(program: Program, env: Mapping[str, Array], half: Format | None = None) -> dict[str, Exact]:
    """The reference, with the bound of the graph as it is written and as the compiler's passes leave it.

    The larger of the two bounds holds for eager tensors, which run the first, and for kernels, which run the second.
    `half`: each value may be stored in this format.
    """
    graph = graph_of(program, env)
    written = dict(zip(graph.outputs, references(list(graph.outputs.values()), env, half=half)))
    passed = optimize(replace(graph, precision="f16" if half is F16 else "f32")).graph
    compiled = dict(zip(passed.outputs, references(list(passed.outputs.values()), env, half=half)))
    return {n: Exact(x.value, np.maximum(x.allowed, compiled[n].allowed)) for n, x in written.items()}
