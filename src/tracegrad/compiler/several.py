"""Compile several losses of one model: a step for each, over the same parameters and states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from tracegrad.compiler.build import StepSource
from tracegrad.compiler.inputtypes import declared
from tracegrad.compiler.tracing import check_function
from tracegrad.errors import CallError, InputError
from tracegrad.ir.states import STATE
from tracegrad.nn.module import decays, named_parameters
from tracegrad.nn.parameters import Parameter
from tracegrad.optim.arena import parts_of
from tracegrad.optim.optimizer import Optimizer
from tracegrad.patterns import Selection, chosen
from tracegrad.refusals import shown

EXAMPLE = 'losses={"d": d_loss, "g": g_loss}'


def step_sources(
    model: Any,
    loss: Any,
    losses: Any,
    inputs: Any,
    optimizer: Any,
    params: Any,
    precision: str,
    frozen: Selection | None,
) -> list[StepSource]:
    """Return the source of each loss's step.

    Raises CallError without `losses`, and InputError if another argument does not fit the losses.
    """
    if loss is not None:
        raise InputError.here("tg.compile: loss= and losses= are both given; leave out one")
    if losses is None:
        raise CallError.here(f"tg.compile: missing loss=, a function, or losses=, a dict of several such as {EXAMPLE}")
    functions = _by_name("losses", losses, EXAMPLE)
    for name, fn in functions.items():
        if not name.isidentifier() or name == STATE.rstrip("/"):
            raise InputError.here(f"losses: {name!r} cannot name a loss; a name is one word, such as {_word(name)!r}")
        check_function(fn, f"losses[{name!r}]")
    if isinstance(optimizer, Optimizer):  # each loss has optimizer state of its own
        optimizer = dict.fromkeys(functions, optimizer)
    optimizers = _by_name("optimizer", optimizer, 'optimizer={"d": optim.adam(1e-4), "g": optim.adam(1e-4)}')
    _check_names("optimizer", functions, optimizers, complete=True)
    selections = {} if params is None else _by_name("params", params, 'params={"d": "D.*", "g": "G.*"}')
    _check_names("params", functions, selections, complete=False)
    types = declared(inputs)
    taken = {name: named_by(fn, types) for name, fn in functions.items()}
    unused = [repr(n) for n in types if not any(n in own for own in taken.values())]
    if unused:
        raise InputError.here(f"inputs declares {', '.join(unused)}, which no loss takes; leave it out")
    sources = {name: StepSource(model, fn, taken[name], optimizers[name], precision) for name, fn in functions.items()}
    return [*shared(sources, frozen, selections).values()]


def shared(
    sources: Mapping[str, StepSource], frozen: Selection | None, selections: Mapping[str, Selection]
) -> dict[str, StepSource]:
    """Return the same sources, each with its part of the model's parameters."""
    model = next(iter(sources.values())).model
    parameters = {n: p for n, p in named_parameters(model).items() if p.trainable}
    if frozen:
        for n in chosen(named_parameters(model), frozen, "frozen"):
            parameters.pop(n, None)
    trains = {
        name: _trained(parameters, selections.get(name, "*"), source.optimizer, f"params[{name!r}]")
        for name, source in sources.items()
    }
    parts = parts_of({n: p.shape for n, p in parameters.items()}, trains)
    moved = {slot.name for part in parts.values() for slot in part.whole.slots}
    fixed = [n for n in named_parameters(model) if n not in moved] or None
    return {
        name: source._replace(frozen=fixed, part=parts[name], chosen=(frozen, selections))
        for name, source in sources.items()
    }


def _trained(parameters: Mapping[str, Parameter], chosen_: Selection, optimizer: Any, what: str) -> dict[str, bool]:
    """Return the parameters that a loss trains, and whether weight decay applies to them."""
    by_name = optimizer.decay_filter if isinstance(optimizer, Optimizer) else None
    return {n: decays(n, parameters[n], by_name) for n in chosen(parameters, chosen_, what)}


def _by_name(what: str, given: Any, example: str) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not given:
        raise InputError.here(
            f"{what}: with several losses, give one for each by name, as in {example}; got {shown(given)}"
        )
    return {str(name): value for name, value in cast("Mapping[Any, Any]", given).items()}


def _check_names(what: str, losses: Mapping[str, Any], given: Mapping[str, Any], complete: bool) -> None:
    names = ", ".join(map(repr, losses))
    for name in given:
        if name not in losses:
            raise InputError.here(f"{what}: there is no loss {name!r}; there are {names}")
    missing = [repr(name) for name in losses if complete and name not in given]
    if missing:
        raise InputError.here(f"{what}: missing for the loss {', '.join(missing)}; give one for each of {names}")


def named_by(fn: Callable[..., Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `types` that `fn` takes; all if it takes **options, or if its signature is unknown."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return dict(types)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(types)
    names = [p.name for p in parameters[1:]]
    return {n: t for n, t in types.items() if n in names}


def _word(name: str) -> str:
    word = "".join(c if c.isalnum() else "_" for c in name)
    return f"{word}_loss" if not word.isidentifier() or word == name else word
