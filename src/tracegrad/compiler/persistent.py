"""Lay out what outlives a step: arrays for parameters, gradients and states, and each parameter's place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tracegrad.compiler.layout import Filling, Persistent, Place
from tracegrad.dtypes import TensorType
from tracegrad.errors import CompileError, InputError
from tracegrad.nn.module import decays
from tracegrad.nn.parameters import Parameter
from tracegrad.optim import freezing
from tracegrad.optim.arena import Arena
from tracegrad.optim.guard import array_name, bounded_arrays
from tracegrad.optim.loss_scale import STATE as SCALE_STATE
from tracegrad.optim.optimizer import Optimizer
from tracegrad.optim.parts import Part
from tracegrad.optim.transform import Transform
from tracegrad.program import DRAWN, Buffer

HALTED = "halted"  # the state and output by which the device skips steps queued after a step that was not applied
States = Mapping[str, tuple[TensorType, Mapping[str, Any]]]  # of a model, by `state/<path>`: type, and how it begins
NONE: States = {}


def arena_of(parameters: Mapping[str, Parameter], optimizer: Optimizer | None = None) -> Arena:
    """Return the layout of the trainable parameters."""
    by_name = optimizer.decay_filter if optimizer else None
    return Arena.of((n, p.shape, decays(n, p, by_name)) for n, p in parameters.items() if p.trainable)


def persistent_of(
    parameters: Mapping[str, Parameter],
    part: Part,
    optimizer: Optimizer | None = None,
    precision: str = "f32",
    states: States = NONE,
    freeze: Mapping[str, freezing.Mask] = freezing.NONE,
    grads: bool = True,
) -> Persistent:
    """Return arrays for parameters and states; with an optimizer, also for its state and, if kept, gradients.

    Raises CompileError if no parameter is trainable.
    """
    arena = part.whole
    places = {slot.name: Place("params", slot.offset) for slot in arena.slots}
    decay = {slot.name: slot.decay for slot in arena.slots}
    frozen, kept = Filling(), Filling()
    for n, p in parameters.items():
        if not p.trainable:
            places[n] = frozen.add("frozen", n, p.type)
    buffers = [Buffer("params", "f32", arena.size, "param")] if arena.size else []
    buffers += [Buffer(a, a.rpartition(".")[2], size, "param") for a, size in frozen.sizes.items()]
    for n, (type_, _) in states.items():
        kept.add("state", n, type_)
    buffers += [Buffer(a, a.rpartition(".")[2], size, "state", DRAWN) for a, size in kept.sizes.items()]
    if optimizer is not None:
        if not arena.size:
            raise CompileError.here(
                "no parameter of the model is trainable: leave out trainable=False for some, or use tg.compile_forward"
            )
        buffers += [Buffer(part.at + "grads", "f32", part.own.size, "grad")] if grads else []
        buffers += _state(part, optimizer.transform, precision, freeze.values())
    specs = {
        n: {"init": p.init.spec(), "decay": decay.get(n, False), "trainable": p.trainable}
        for n, p in parameters.items()
    }
    return Persistent(
        tuple(buffers),
        tuple((n, places[n], specs[n]) for n in parameters),
        {**{n: p.type for n, p in parameters.items()}, **kept.types},
        tuple((n, kept.places[n], {"init": first, "trainable": False}) for n, (_, first) in states.items()),
        part.first,
    )


def _state(part: Part, transform: Transform, precision: str, masks: Collection[freezing.Mask]) -> list[Buffer]:
    """Return the arrays of an optimizer's state, and those by which a step decides what it changes."""
    at, sizes = part.at, transform.sizes(part.own)
    buffers = [Buffer(at + n, "f32", sizes[n], "state", fill) for n, fill in transform.fills.items()]
    if precision == "f16":
        if taken := sorted(SCALE_STATE.keys() & transform.state):
            raise InputError.here(
                f"the loss scale already uses the state names {', '.join(taken)}: rename those of the optimizer"
            )
        buffers += [Buffer(at + n, "f32", 1, "state", fill) for n, fill in SCALE_STATE.items()]
    buffers.append(Buffer(HALTED, "i32", 1, "state"))
    buffers += [Buffer(mask.name, "f32", mask.size, "state") for mask in masks]
    if masks and transform.counts:
        buffers.append(Buffer(at + freezing.MISSED, "f32", part.own.size, "state"))
    if bounded := bounded_arrays(transform):
        buffers.append(Buffer(at + array_name(bounded), "f32", len(bounded), "state"))
    return buffers
