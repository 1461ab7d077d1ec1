"""Mode "train": the f32 inputs are parameters, and an optimizer takes a few steps down Σ mean(y²) over the f32 results.

With several losses each takes its share of the results, and trains parameters of its own or those of others too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tracegrad as tg
from fuzzing.apply import called
from fuzzing.differentiated import Outputs
from fuzzing.exact import double
from fuzzing.program import Array, Program
from fuzzing.table import NoCounterpartError
from tracegrad import optim
from tracegrad.dtypes import TensorType, as_dtype
from tracegrad.ir.nodes import Tensor

OURS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": optim.sgd,
    "momentum": lambda **how: optim.sgd(momentum=0.5, weight_decay=0.125, **how),
    "nesterov": lambda **how: optim.sgd(momentum=0.5, nesterov=True, **how),
    "adam": optim.adam,
    "adamw": lambda **how: optim.adamw(weight_decay=0.125, **how),
    "rmsprop": optim.rmsprop,
    "centered": lambda **how: optim.rmsprop(centered=True, momentum=0.5, **how),
    "decayed": lambda **how: optim.adam(weight_decay=0.125, **how),
    "adagrad": optim.adagrad,
    "adadelta": optim.adadelta,
    "nadam": optim.nadam,
    "radam": optim.radam,
    "lion": optim.lion,
    "lamb": optim.lamb,
}
SCHEDULES = {
    "linear": lambda lr: tg.lr.linear(lr, 0.0, 3),
    "staircase": lambda lr: tg.lr.staircase(lr, 2, 0.5),
    "warmup": lambda lr: tg.lr.warmup(lr, 2, 0.5 * lr),
    "cosine_annealing": lambda lr: tg.lr.cosine_annealing(lr, 0.25 * lr, 3),
    "cosine_restarts": lambda lr: tg.lr.cosine_restarts(lr, 0.25 * lr, 2),
    "multi_step": lambda lr: tg.lr.multi_step(lr, (1, 2), 0.5),
    "exponential": lambda lr: tg.lr.exponential(lr, 0.5),
    "one_cycle": lambda lr: tg.lr.one_cycle(lr, 4),
}


def optimizer_of(how: Mapping[str, Any]) -> optim.Optimizer:
    """With its options and its schedule."""
    lr = SCHEDULES[how["schedule"]](how["lr"]) if how.get("schedule") else how["lr"]
    return OURS[how["optimizer"]](lr=lr, **how.get("options", {}))


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


@dataclass(frozen=True)
class Loss:
    """One loss of a training: the results that it is made of, the parameters that it trains, and how.

    every, first: of the f32 results it takes each `every`-th, from the `first` on
    """

    name: str
    trains: Sequence[str]
    how: Mapping[str, Any]
    every: int = 1
    first: int = 0


def losses_of(program: Program) -> list[Loss]:
    """The losses of a training; one without a name, where it has one alone."""
    how, held = program.train, [n for n, x in program.arrays().items() if x.dtype == np.float32]
    some = how.get("losses", {})
    known = [
        Loss(n, [x for x in own["trains"] if x in held] or held, {**how, **own}, len(some), k)
        for k, (n, own) in enumerate(some.items())
    ]
    return known or [Loss("", held, how)]


def order_of(program: Program) -> Sequence[str]:
    """The name of the loss of each step."""
    return program.train.get("order") or [""] * program.train["steps"]


def total_of(program: Program, own: Loss, every: Mapping[str, Any]) -> Tensor:
    """What a loss adds up of the results, whose arguments are all given by name."""
    ys = called(program, "ours", tg, [every[f"x{k}"] for k in range(len(program.inputs))])
    ys = [y for y in ys if y.dtype.is_float and y.size]
    ys = ys[own.first :: own.every] or ys
    return sum((tg.mean(tg.square(y)) for y in ys), start=tg.zeros(()))


def with_states(program: Program, m: Model, total: Tensor) -> Tensor:
    """A loss that depends on the states of the model, where the program has some."""
    if not program.train.get("state"):
        return total
    m.mean.assign(0.5 * m.mean + 0.25 * total)
    m.count.assign(m.count + 1)
    return total + 0.125 * total * tg.tanh(m.mean * tg.cast(m.count, tg.f32))


def naming(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """A function of a model m and of arguments with these names."""
    scope: dict[str, Any] = {"function": function}
    taken = ", ".join(["m", *names])
    exec(f"def called({taken}): return function(**locals())", scope)
    return scope["called"]


def function_of(program: Program, own: Loss) -> Callable[..., Any]:
    """The function of a loss, which names the inputs of the program."""

    def loss(m: Model, **tensors: Any) -> Tensor:
        return with_states(program, m, total_of(program, own, {**m.held, **tensors}))

    return naming(loss, parts(program)[1])


def types_of_inputs(program: Program) -> dict[str, TensorType]:
    """Of everything that is no parameter."""
    return {n: TensorType(as_dtype(x.dtype), x.shape) for n, x in parts(program)[1].items()}


def model_of(program: Program) -> Model:
    """With the parameters of a training."""
    return Model(parts(program)[0], bool(program.train.get("state")))


def arguments(program: Program, function: Callable[[Program, Loss], Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Of `tg.compile`. `function` makes the function of a loss, which takes these inputs."""
    losses = losses_of(program)
    given: dict[str, Any] = {"model": model_of(program), "inputs": inputs}
    if len(losses) == 1:
        return given | {"loss": function(program, losses[0]), "optimizer": optimizer_of(losses[0].how)}
    return given | {
        "losses": {one.name: function(program, one) for one in losses},
        "optimizer": {one.name: optimizer_of(one.how) for one in losses},
        "params": {one.name: [f"held.{n}" for n in one.trains] for one in losses},
    }


def trained(program: Program, device: str) -> Outputs:
    """The losses, and the parameters after the last step."""
    _, inputs = parts(program)
    given = arguments(program, function_of, types_of_inputs(program))
    with tg.compile(**given, seed=0, device=device) as train:
        return stepped(program, train, lambda _: inputs)


def stepped(program: Program, train: tg.CompiledTraining, inputs: Callable[[int], Mapping[str, Array]]) -> Outputs:
    """What all steps of a compiled training give; `inputs` are those of a step by its number."""
    results: Outputs = {}
    for step, name in enumerate(order_of(program)):
        if step and step == program.train.get("reload"):
            reloaded(train)
        pending = train.step(name, inputs(step)) if name else train.step(inputs(step))
        results[f"loss{step}"] = np.float32(pending.loss)
    results |= {n.removeprefix("held."): x for n, x in train.download_params().items()}
    if program.train.get("options", {}).get("ema"):
        averages = train.download_params(ema=True)
        results |= {f"{n.removeprefix('held.')}.ema": x for n, x in averages.items()}
    if program.train.get("state"):
        results |= {n: np.asarray(x) for n, x in train.states().items()}
    return results


def reloaded(train: tg.CompiledTraining) -> None:
    """A checkpoint of the run so far, loaded into a training that began anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.safetensors"
        train.save(path)
        train.reset()
        train.load(path)


def trained_by_torch(program: Program) -> Outputs:
    """The same in PyTorch, in float64."""
    import torch

    how, lr = program.train["optimizer"], program.train["lr"]
    if any(program.train.get(n) for n in ("options", "schedule", "state", "losses")):
        raise NoCounterpartError("options, schedules, states and several losses")
    if how in ("lion", "lamb"):
        raise NoCounterpartError(how)
    held, _ = parts(program)
    every = [torch.tensor(double(x)).requires_grad_(n in held) for n, x in program.arrays().items()]
    wanted = [x for x in every if x.requires_grad]
    made = {
        "adagrad": lambda: torch.optim.Adagrad(wanted, lr),
        "adadelta": lambda: torch.optim.Adadelta(wanted, lr),
        "nadam": lambda: torch.optim.NAdam(wanted, lr),
        "radam": lambda: torch.optim.RAdam(wanted, lr),
        "decayed": lambda: torch.optim.Adam(wanted, lr, weight_decay=0.125),
        "centered": lambda: torch.optim.RMSprop(wanted, lr, centered=True, momentum=0.5),
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
        if loss.requires_grad:  # else no step depends on a parameter
            loss.backward()
        for x in wanted:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
        made.step()
        results[f"loss{step}"] = loss.detach().numpy()
    return results | {n: x.detach().numpy() for n, x in zip(program.arrays(), every) if n in held}
