"""The reference of a training: the graph of each loss's step in float64, with the bounds.

What a step leaves in the parameters and the optimizer's state, with its error, is what the next one begins with. With
several losses each is traced alone, as a training of its own whose other parameters are frozen. How the compiled steps
share one array of parameters is not in the reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tracegrad as tg
from fuzzing.bounds import LARGEST, Known, U, certain
from fuzzing.exact import Exact, allowed, analysed, double
from fuzzing.program import Program
from fuzzing.training import Loss, function_of, losses_of, model_of, optimizer_of, order_of, parts, types_of_inputs
from tracegrad import optim
from tracegrad.compiler.build import StepSource
from tracegrad.compiler.layout import arena_of
from tracegrad.compiler.pipeline import optimize
from tracegrad.hypers import NORMAL, UNIT
from tracegrad.ir.evaluate import named_by_role
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.nn.module import named_parameters

STATES = ("state/mean", "state/count")


class UnstableError(Exception):
    """The program's gradients are not finite: there is no training to compare."""


@dataclass
class Steps:
    """The steps of one loss: their graph, and where it has each of the parameters that it trains."""

    graph: Graph
    optimizer: optim.Optimizer
    slots: Mapping[str, int]
    size: int
    states: dict[str, Known]  # of the optimizer, by name
    done: int = 0

    @staticmethod
    def of(program: Program, own: Loss, passed: bool) -> Steps:
        """Before the first step. `passed`: the graph as the compiler's passes leave it."""
        model, optimizer = model_of(program), optimizer_of(own.how)
        trained = {n: p for n, p in named_parameters(model).items() if n.removeprefix("held.") in own.trains}
        frozen = [n for n in named_parameters(model) if n not in trained] or None
        source = StepSource(model, function_of(program, own), types_of_inputs(program), optimizer, frozen=frozen)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*")
            graph = source.traced().graph
        slots = {slot.name: slot.offset for slot in arena_of(trained, optimizer).slots}
        dtypes = {n: np.float64 if t.dtype.is_float else np.int32 for n, t in graph.writes.items()}
        fills = {n: 0.0 if isinstance(x, str) else x for n, x in optimizer.transform.fills.items()}
        states = {n: np.full(graph.writes[n].shape, fills.get(n, 0.0), kind) for n, kind in dtypes.items()}
        states = {n: certain(x) for n, x in states.items() if n not in STATES}
        steps = Steps(optimize(graph).graph if passed else graph, optimizer, slots, graph.writes["params"].size, states)
        if "ema" in states:
            held = {f"held.{n}": certain(double(x)) for n, x in parts(program)[0].items()}
            states["ema"] = steps.flat(held)
        return steps

    def flat(self, params: Mapping[str, Known]) -> Known:
        """The parameters of the loss in one array."""
        whole = (np.zeros(self.size), np.zeros(self.size), np.zeros(self.size, np.int64))
        for n, at in self.slots.items():
            for array, part in zip(whole, (params[n].v, params[n].e, params[n].w)):
                array[at : at + part.size] = np.reshape(part, -1)
        return Known(*whole)

    def pieces(self, flat: Known, params: Mapping[str, Known]) -> dict[str, Known]:
        """Each parameter of the loss, of the array that holds all."""
        found: dict[str, Known] = {}
        for n, at in self.slots.items():
            shape, size = params[n].v.shape, params[n].v.size
            found[n] = Known(*(part[at : at + size].reshape(shape) for part in (flat.v, flat.e, flat.w)))
        return found

    def step(self, program: Program, params: dict[str, Known], shared: dict[str, Known]) -> Known:
        """One step; parameters and the model's states are replaced in place. The loss."""
        self.done += 1
        names = [*self.graph.writes, "loss"]
        roots = named_by_role([*self.graph.writes.values(), self.graph.outputs["loss"]])
        env = {f"input.{n}": certain(double(x)) for n, x in parts(program)[1].items()}
        env |= {f"state.{n}": x for n, x in {**self.states, **shared, "params": self.flat(params)}.items()}
        env |= {f"{role}.{n}": x for role in ("param", "frozen") for n, x in params.items()}
        hypers = [t for t in self.graph.nodes if t.prim.name == "leaf" and t.attrs["role"] == "hyper"]
        env |= {f"hyper.{t.name}": _hyper(t, self.done, self.optimizer) for t in hypers}
        results = dict(zip(names, analysed(roots, env)))
        largest = max(float(np.sum(results["grads"].v ** 2)), abs(float(results["loss"].v)))
        if np.any(results["halted"].v) or not largest < LARGEST:  # such a step fails: docs/numerics.md
            raise UnstableError
        shared.update({n: results[n] for n in STATES if n in results})
        self.states = {n: results[n] for n in self.states}
        params.update(self.pieces(results["params"], params))
        return results["loss"]


def expected_training(program: Program) -> dict[str, Exact]:
    """What a training gives; the larger bound of the graph as it is written and as the passes leave it."""
    written, passed = walked(program, passed=False), walked(program, passed=True)
    if not all(np.isfinite(x.value).all() for x in written.values()):
        raise UnstableError
    return {n: Exact(x.value, np.maximum(x.allowed, passed[n].allowed)) for n, x in written.items()}


def walked(program: Program, passed: bool) -> dict[str, Exact]:
    """The losses, and the parameters and states after the last step."""
    every = {one.name: Steps.of(program, one, passed) for one in losses_of(program)}
    params = {f"held.{n}": certain(double(x)) for n, x in parts(program)[0].items()}
    dtypes = {"state/mean": np.float64, "state/count": np.int32} if program.train.get("state") else {}
    shared = {n: certain(np.zeros((), dtype)) for n, dtype in dtypes.items()}
    found: dict[str, Known] = {}
    for k, name in enumerate(order_of(program)):
        found[f"loss{k}"] = every[name].step(program, params, shared)
    found |= {n.removeprefix("held."): x for n, x in params.items()}
    for steps in every.values():
        averages = steps.pieces(steps.states["ema"], params) if "ema" in steps.states else {}
        found |= {f"{n.removeprefix('held.')}.ema": x for n, x in averages.items()}
    found |= {n.removeprefix("state/"): x for n, x in shared.items()}
    return {n: Exact(x.v, allowed(x)) for n, x in found.items()}


def _hyper(t: Tensor, step: int, optimizer: optim.Optimizer) -> Known:
    """A hyperparameter as f32; PyTorch keeps it whole, so its rounding counts."""
    name = t.name
    if name in ("step", "seed"):
        return certain(np.uint32(step if name == "step" else 0))
    known: dict[str, Any] = {"lr": tg.lr.as_schedule(optimizer.lr).at(step), UNIT: NORMAL, **optimizer.hyper}
    value = 1 - known[name.removeprefix("1-")] if name.startswith("1-") else known[name]
    v = np.asarray(np.float64(np.float32(value)))
    return Known(v, np.asarray(2 * U * abs(value)), certain(v).w)
