"""Programs with a batch whose size each call chooses: the program of a seed for each row, at several sizes in turn.

Every second row has the program's own inputs, and so its results; the rows between have other numbers. A value that one
row reads of another one, or of memory behind the last row, shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

import tracegrad as tg
from fuzzing.differentiated import Outputs, traced
from fuzzing.program import Array, Program
from fuzzing.table import NoCounterpartError
from fuzzing.training import Loss, Model, arguments, naming, parts, stepped, total_of, with_states
from tracegrad.dtypes import TensorType, as_dtype, f32
from tracegrad.engine import stepper

SIZES = (3, 1, 6, 2, 5)
PAIRS = ((3, 2), (1, 5), (4, 1), (2, 3))  # of two names
INNER = "inner"


class Empty(tg.Module):
    """A forward must have a model, and that a parameter."""

    def __init__(self) -> None:
        self.none = self.param((1,), init=tg.init.zeros())


def mapped(env: Mapping[str, Array]) -> list[str]:
    """The arguments that differ from row to row."""
    return [n for n, x in env.items() if x.dtype == np.float32]


def rows(x: Array, size: int, rng: np.random.Generator) -> Array:
    """The array itself, and others between."""
    other = lambda: np.float32(0.5) * rng.permutation(x.reshape(-1)).reshape(x.shape)
    return np.stack([x if k % 2 == 0 else other() for k in range(size)])


def with_open_sizes(program: Program, env: Mapping[str, Array], device: str) -> Outputs:
    """Of each element of the results, the value that is farthest from that of the first call.

    Programs of odd seeds have a second name, for an axis of their first argument that the others do not have.
    """
    differing = mapped(env)
    if not differing:
        raise NoCounterpartError("no argument that may differ")
    named = INNER if program.seed % 2 else ""
    function = traced(program)

    def forward(m: Empty, **given: Any) -> Any:
        def one(*some: Any) -> Any:
            return function(**{**given, **dict(zip(differing, some))})

        inner = (0, *(None for _ in differing[1:]))
        return tg.vmap(tg.vmap(one, inner) if named else one)(*(given[n] for n in differing))

    types: dict[str, Any] = {n: TensorType(as_dtype(x.dtype), x.shape) for n, x in env.items()}
    types |= {n: f32[("batch", *env[n].shape)] for n in differing}
    if named:
        types[differing[0]] = f32[("batch", INNER, *env[differing[0]].shape)]
    with tg.compile_forward(
        model=Empty(), forward=naming(forward, env), inputs=types, device=device, seed=0
    ) as compiled:
        found: list[Outputs] = []
        for size in PAIRS if named else [(n,) for n in SIZES]:
            rng = np.random.default_rng(size)
            given = {n: rows(x, size[0], rng) if n in differing else x for n, x in env.items()}
            if named:
                x = env[differing[0]]
                given[differing[0]] = np.stack([rows(x, size[1], rng) for _ in range(size[0])])
            results: Outputs = compiled.run(**given).output
            for at in np.ndindex(*size):
                if all(k % 2 == 0 for k in at):
                    found.append({n: y[at] for n, y in results.items()})
    return {n: farthest([np.asarray(f[n]) for f in found]) for n in found[0]}


def farthest(values: Sequence[Array]) -> Array:
    """Element by element, what differs most from the first array."""
    worst = values[0].copy()
    off = np.zeros(worst.shape)
    for x in values[1:]:
        with np.errstate(all="ignore"):
            apart = np.abs(x.astype(np.float64) - values[0].astype(np.float64))
        apart = np.where((x == values[0]) | (np.isnan(x) & np.isnan(values[0])), 0.0, np.nan_to_num(apart, nan=np.inf))
        worst, off = np.where(apart > off, x, worst), np.maximum(apart, off)
    return worst


def trained_at_open_sizes(program: Program, device: str) -> Outputs:
    """A training whose steps have batches of other sizes. One row alone has a weight, so its loss is the program's.

    The other rows have other parameters. Where these have no finite loss, all rows have the same.
    """
    for apart in (0.0625, 0.0):
        try:
            return _trained(program, device, apart)
        except tg.NonFiniteError:
            if not apart:
                raise
    raise AssertionError


def _trained(program: Program, device: str, apart: float) -> Outputs:
    _, inputs = parts(program)

    def function(program: Program, own: Loss) -> Any:
        def loss(m: Model, weight: Any, scale: Any, **tensors: Any) -> Any:
            def one(weight: Any, scale: Any, some: Mapping[str, Any]) -> Any:
                return weight * total_of(program, own, {**{n: scale * x for n, x in m.held.items()}, **some})

            return with_states(program, m, tg.sum(tg.vmap(one)(weight, scale, tensors)))

        return naming(loss, ("weight", "scale", *inputs))

    def rows_of(step: int) -> dict[str, Array]:
        size = SIZES[(program.seed + step) % len(SIZES)]
        weight = np.float32(np.arange(size) == (3 * step + program.seed) % size)
        scale = np.float32(1 + apart * (1 - weight))
        return {"weight": weight, "scale": scale, **{n: np.stack([x] * size) for n, x in inputs.items()}}

    types: dict[str, Any] = {n: as_dtype(x.dtype)[("batch", *x.shape)] for n, x in inputs.items()}
    types |= {"weight": ("batch",), "scale": ("batch",)}
    with (
        patch.multiple(stepper, OWN_SIZES=0, OWN_SIZES_ON_GPU=0),  # one program serves all sizes
        tg.compile(**arguments(program, function, types), seed=0, device=device) as train,
    ):
        return stepped(program, train, rows_of)
