"""Mode "train": the f32 inputs are parameters, and an optimizer takes a few steps down Σ mean(y²) over the f32 results.

The reference walks through the graph of the step in float64, with the bounds: what a step leaves in the parameters and
the optimizer's state, with its error, is what the next one begins with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tracegrad as tg
from fuzzing.apply import NoCounterpartError, called
from fuzzing.bounds import LARGEST, Known, U, certain
from fuzzing.differentiated import Outputs
from fuzzing.exact import Exact, allowed, analysed, double
from fuzzing.program import Array, Program
from tracegrad import optim
from tracegrad.compiler.persistent import arena_of
from tracegrad.compiler.pipeline import optimize
from tracegrad.dtypes import TensorType, as_dtype
from tracegrad.evaluate import named_by_role
from tracegrad.hypers import NORMAL, UNIT
from tracegrad.ir import Graph, Tensor
from tracegrad.nn.module import named_parameters

OURS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": optim.sgd,
    "momentum": lambda **how: optim.sgd(momentum=0.5, weight_decay=0.125, **how),
    "nesterov": lambda **how: optim.sgd(momentum=0.5, nesterov=True, **how),
    "adam": optim.adam,
    "adamw": lambda **how: optim.adamw(weight_decay=0.125, **how),
    "rmsprop": optim.rmsprop,
}
SCHEDULES = {
    "linear": lambda lr: tg.lr.linear(lr, 0.0, 3),
    "staircase": lambda lr: tg.lr.staircase(lr, 2, 0.5),
    "warmup": lambda lr: tg.lr.warmup(lr, 2, 0.5 * lr),
}


def optimizer_of(program: Program) -> optim.Optimizer:
    """With its options and its schedule."""
    how = program.train
    lr = SCHEDULES[how["schedule"]](how["lr"]) if how.get("schedule") else how["lr"]
    return OURS[how["optimizer"]](lr=lr, **how.get("options", {}))


class UnstableError(Exception):
    """The program's gradients are not finite: there is no training to compare."""


class Model(tg.Module):
    """The f32 inputs of a program as parameters; with states, a running mean of the losses, and their number."""

    def __init__(self, arrays: Mapping[str, Array], states: bool = False) -> None:
        self.held = {n: self.param(x.shape, init=tg.init.literal(x)) for n, x in arrays.items()}
        if states:
            self.mean = self.state(())
            self.count = self.state((), dtype=tg.i32)


def parts(program: Program) -> tuple[dict[str, Array], dict[str, Array]]:
    """The parameters and the inputs of a training."""
    arrays = program.arrays()
    held = {n: x for n, x in arrays.items() if x.dtype == np.float32}
    return held, {n: x for n, x in arrays.items() if n not in held}


def arguments(program: Program) -> dict[str, Any]:
    """Of `tg.compile` and `tg.trace`."""
    held, inputs = parts(program)

    def loss(m: Model, **tensors: Any) -> Tensor:
        every = {**m.held, **tensors}
        ys = called(program, "ours", tg, [every[f"x{k}"] for k in range(len(program.inputs))])
        total = sum((tg.mean(tg.square(y)) for y in ys if y.dtype.is_float and y.size), start=tg.zeros(()))
        if program.train.get("state"):
            m.mean.assign(0.5 * m.mean + 0.25 * total)
            m.count.assign(m.count + 1)
            total = total + 0.125 * total * tg.tanh(m.mean * tg.cast(m.count, tg.f32))
        return total

    scope: dict[str, Any] = {"loss": loss}
    named = "".join(f", {n}" for n in inputs)
    exec(f"def called(m{named}): return loss(m, {', '.join(f'{n}={n}' for n in inputs)})", scope)
    return {
        "model": Model(held, bool(program.train.get("state"))),
        "loss": scope["called"],
        "inputs": {n: TensorType(as_dtype(x.dtype), x.shape) for n, x in inputs.items()},
        "optimizer": optimizer_of(program),
    }


def trained(program: Program, device: str) -> Outputs:
    """The losses, and the parameters after the last step."""
    _, inputs = parts(program)
    with tg.compile(**arguments(program), seed=0, device=device) as train:
        results: Outputs = {}
        for step in range(program.train["steps"]):
            results[f"loss{step}"] = np.float32(train.step(**inputs).loss)
        results |= {n.removeprefix("held."): x for n, x in train.download_params().items()}
        if program.train.get("options", {}).get("ema"):
            averages = train.download_params(ema=True)
            results |= {f"{n.removeprefix('held.')}.ema": x for n, x in averages.items()}
        if program.train.get("state"):
            results |= {n: np.asarray(x) for n, x in train.states().items()}
    return results


def expected_training(program: Program) -> dict[str, Exact]:
    """The same by the reference; the larger bound of the graph as it is written and as the passes leave it."""
    given = arguments(program)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*")
        graph = tg.trace(**given)
    slots = arena_of(named_parameters(given["model"]), given["optimizer"]).slots
    offsets = {slot.name: slot.offset for slot in slots}
    written = _walk(program, graph, given["optimizer"], offsets)
    passed = _walk(program, optimize(graph).graph, given["optimizer"], offsets)
    if not all(np.isfinite(x.value).all() for x in written.values()):
        raise UnstableError
    return {n: Exact(x.value, np.maximum(x.allowed, passed[n].allowed)) for n, x in written.items()}


def _walk(program: Program, graph: Graph, optimizer: optim.Optimizer, offsets: Mapping[str, int]) -> dict[str, Exact]:
    held, inputs = parts(program)
    hypers = [t for t in graph.nodes if t.prim.name == "leaf" and t.attrs["role"] == "hyper"]
    dtypes = {n: np.float64 if t.dtype.is_float else np.int32 for n, t in graph.writes.items()}
    states = {n: certain(np.zeros(t.shape, dtypes[n])) for n, t in graph.writes.items()}
    flat = np.zeros(sum(x.size for x in held.values()))
    for n, x in held.items():
        flat[offsets[f"held.{n}"] :][: x.size] = double(x).reshape(-1)
    states["params"] = certain(flat)
    if "ema" in states:
        states["ema"] = certain(flat)
    names = [*graph.writes, "loss"]
    roots = named_by_role([*graph.writes.values(), graph.outputs["loss"]])
    found: dict[str, Exact] = {}
    for step in range(program.train["steps"]):
        env = {f"input.{n}": certain(double(x)) for n, x in inputs.items()}
        env |= {f"state.{n}": x for n, x in states.items()} | _pieces(states["params"], held, offsets)
        env |= {f"hyper.{t.name}": _hyper(t, step + 1, program, optimizer) for t in hypers}
        results = dict(zip(names, analysed(roots, env)))
        largest = max(float(np.sum(results["grads"].v ** 2)), abs(float(results["loss"].v)))
        if np.any(results["halted"].v) or not largest < LARGEST:  # such a step fails: docs/numerics.md
            raise UnstableError
        found[f"loss{step}"] = Exact(results["loss"].v, allowed(results["loss"]))
        states = {n: results[n] for n in graph.writes}
    for n, k in _pieces(states["params"], held, offsets).items():
        found[n.removeprefix("param.held.")] = Exact(k.v, allowed(k))
    for n, k in _pieces(states["ema"], held, offsets).items() if "ema" in states else ():
        found[f"{n.removeprefix('param.held.')}.ema"] = Exact(k.v, allowed(k))
    for n in ("mean", "count") if program.train.get("state") else ():
        found[n] = Exact(states[f"state/{n}"].v, allowed(states[f"state/{n}"]))
    return found


def _pieces(params: Known, held: Mapping[str, Array], offsets: Mapping[str, int]) -> dict[str, Known]:
    """Each parameter, of the array that holds all."""
    found: dict[str, Known] = {}
    for n, x in held.items():
        at = offsets[f"held.{n}"]
        cut = (part[at : at + x.size].reshape(x.shape) for part in (params.v, params.e, params.w))
        found[f"param.held.{n}"] = Known(*cut)
    return found


def _hyper(t: Tensor, step: int, program: Program, optimizer: optim.Optimizer) -> Known:
    """A hyperparameter as f32; PyTorch keeps it whole, so its rounding counts."""
    name = t.name
    if name in ("step", "seed"):
        return certain(np.uint32(step if name == "step" else 0))
    known = {"lr": tg.lr.as_schedule(optimizer.lr).at(step), UNIT: NORMAL, **optimizer.hyper}
    value = 1 - known[name.removeprefix("1-")] if name.startswith("1-") else known[name]
    v = np.asarray(np.float64(np.float32(value)))
    return Known(v, np.asarray(2 * U * abs(value)), certain(v).w)


def trained_by_torch(program: Program) -> Outputs:
    """The same in PyTorch, in float64."""
    import torch

    how, lr = program.train["optimizer"], program.train["lr"]
    if any(program.train.get(n) for n in ("options", "schedule", "state")):
        raise NoCounterpartError("options, schedules and states")
    held, _ = parts(program)
    every = [torch.tensor(double(x)).requires_grad_(n in held) for n, x in program.arrays().items()]
    wanted = [x for x in every if x.requires_grad]
    made = {
        "sgd": lambda: torch.optim.SGD(wanted, lr),
        "momentum": lambda: torch.optim.SGD(wanted, lr, momentum=0.5, weight_decay=0.125),
        "nesterov": lambda: torch.optim.SGD(wanted, lr, momentum=0.5, nesterov=True),
        "adam": lambda: torch.optim.Adam(wanted, lr),
        "adamw": lambda: torch.optim.AdamW(wanted, lr, weight_decay=0.125),
        "rmsprop": lambda: torch.optim.RMSprop(wanted, lr),
    }[how]()
    results: Outputs = {}
    for step in range(program.train["steps"]):
        made.zero_grad(set_to_none=False)
        ys = called(program, "torch", torch, every)
        loss: Any = sum(torch.mean(torch.square(y)) for y in ys if y.is_floating_point() and y.numel())
        loss.backward()
        for x in wanted:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
        made.step()
        results[f"loss{step}"] = loss.detach().numpy()
    return results | {n: x.detach().numpy() for n, x in zip(program.arrays(), every) if n in held}
