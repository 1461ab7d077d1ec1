"""What `train.save` and `train.load` put into a safetensors file: all that a bit-exact resume needs.

Tensors:  param/<name>            a parameter
          opt/<state>/<name>      an optimizer array, one tensor for each parameter it belongs to
          opt/<state>             a state of another shape
Metadata: tracegrad (version of this layout), step, seed, lr and lr_start, the step at which it began, hyper, optimizer;
JSON texts. Python's JSON writes floats so that they are read back exactly.

U32 and booleans are stored as I32: safetensors readers elsewhere know F32 and I32 best.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tracegrad import lr as schedules
from tracegrad import safetensors
from tracegrad.arrays import np
from tracegrad.compiler.build import HALTED
from tracegrad.dtypes import DTYPES
from tracegrad.engine import params
from tracegrad.engine.inputs import Array, describe
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.steps import Stepper
from tracegrad.errors import InputError
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session
from tracegrad.runtime.storage import from_storage, to_storage

VERSION = "1"
PARAMETERS_ALONE = (
    "the parameters fit, the optimizer is another; for the parameters alone: upload_params({n[6:]: x for n, x in "
    "tracegrad.safetensors.read(path).tensors.items() if n.startswith('param/')})"
)


class Checkpoint(NamedTuple):
    """A training at one moment."""

    params: Mapping[str, Array]
    states: Mapping[str, Array]  # whole buffers, by the name of the state
    step: int
    seed: int
    lr: Mapping[str, Any]  # the schedule's spec
    lr_start: int | None  # the step at which its own step 1 fell; None: not yet
    hyper: Mapping[str, float]
    optimizer: Mapping[str, Any]
    program: Program


def take(session: Session, stepper: Stepper, knobs: Knobs, optimizer: Mapping[str, Any]) -> Checkpoint:
    """The state after the last step; on the worker's thread."""
    program = stepper.program
    return Checkpoint(
        params=params.download(session, program, program.params),
        states=params.download(session, program, states_of(program)),
        step=stepper.counter,
        seed=stepper.seed,
        lr=knobs.rate.schedule.spec(),
        lr_start=knobs.rate.start,
        hyper=knobs.values,
        optimizer=optimizer,
        program=program,
    )


def restore(session: Session, stepper: Stepper, state: Checkpoint) -> None:
    """Take over a checkpoint that `read` has checked; on the worker's thread."""
    program = stepper.program
    params.upload(session, program, program.params, state.params)
    params.upload(session, program, states_of(program), state.states)
    stepper.seed = state.seed
    stepper.restart(session, state.step)


def parts(state: Checkpoint) -> list[bytes]:
    """The bytes of the file, in order; `files.replace_file` writes it, whole or not at all."""
    program = state.program
    tensors = {f"param/{f.name}": storable(state.params[f.name], f.dtype) for f in program.params}
    for f in states_of(program):
        flat = state.states[f.name]
        for name, part in split_state(program, f):
            tensors[name] = storable(from_storage(flat.reshape(-1), part) if part else flat, f.dtype)
    metadata = {
        "tracegrad": VERSION,
        "step": json.dumps(state.step),
        "seed": json.dumps(state.seed),
        "lr": json.dumps(state.lr),
        "lr_start": json.dumps(state.lr_start),
        "hyper": json.dumps(dict(state.hyper)),
        "optimizer": json.dumps(state.optimizer),
    }
    return safetensors.parts(tensors, metadata)


def digest(state: Checkpoint, losses: Sequence[float]) -> str:
    """SHA-256 of losses as f32, parameters, optimizer state, step, seed, schedule and hyperparameters, in hexadecimal.

    Names are sorted, and floats count by their bits: nothing else of a process reaches the hash.
    """
    total = hashlib.sha256()

    def add(name: str, x: Array) -> None:
        little = x.astype(x.dtype.newbyteorder("<"), order="C")
        total.update(json.dumps([name, x.dtype.name, list(x.shape)]).encode() + little.tobytes())

    add("losses", np.asarray(losses, "float32"))
    for role, arrays in (("param", state.params), ("opt", state.states)):
        for name in sorted(arrays):
            add(f"{role}/{name}", np.asarray(arrays[name]))
    rest = [state.step, state.seed, state.lr, state.lr_start, state.hyper, state.optimizer]
    total.update(json.dumps(rest, sort_keys=True).encode())
    return total.hexdigest()


def read(path: str | os.PathLike[str], program: Program) -> Checkpoint:
    """A file that fits `program`; InputError naming everything that does not."""
    file = safetensors.read(path)
    where = os.fspath(path)
    if file.metadata.get("tracegrad") != VERSION:
        found = file.metadata.get("tracegrad")
        what = f"has layout {found!r}, this library reads {VERSION!r}" if found else "is no checkpoint of tracegrad"
        raise InputError.here(
            f"load: {where} {what}; for parameters alone use upload_params(tracegrad.safetensors.read(path).tensors)"
        )
    rest = dict(file.tensors)
    problems: list[str] = []
    values = {f.name: _taken(rest, f"param/{f.name}", f, problems) for f in program.params}
    states: dict[str, Array] = {}
    for f in states_of(program):
        whole = np.zeros(f.shape, DTYPES[f.dtype].numpy)
        for name, part in split_state(program, f):
            x = _taken(rest, name, part or f, problems)
            if part is None:
                whole = x
            else:
                whole.reshape(-1)[part.offset : part.offset + x.size] = x.reshape(-1)
        states[f.name] = whole
    problems += [f"{name}: not in this training" for name in rest]
    if problems:
        shown = [*problems[:12], *([f"and {len(problems) - 12} more"] if len(problems) > 12 else [])]
        alone = all(x.startswith("opt/") for x in problems)
        hint = [PARAMETERS_ALONE] if alone else []
        raise InputError.here("\n  ".join([f"load: {where} does not fit; nothing was changed", *shown, *hint]))
    return _with_metadata(file.metadata, where, values, states, program)


def knobs_of(state: Checkpoint, current: Knobs) -> Knobs:
    """The hot values of a checkpoint. A schedule that equals the current one is kept: it may be the user's own kind."""
    schedule = current.rate.schedule
    if json.loads(json.dumps(schedule.spec())) != dict(state.lr):
        schedule = schedules.from_spec(state.lr)
    return Knobs(Rate(schedule, state.lr_start), {**current.values, **state.hyper})


def states_of(program: Program) -> tuple[Field, ...]:
    """What a checkpoint holds besides parameters."""
    return tuple(f for f in program.states if f.name != HALTED)


def split_state(program: Program, state: Field) -> list[tuple[str, Field | None]]:
    """The tensors of one state: a slice for each trainable parameter if it has the parameters' layout, else itself."""
    trainable = [f for f in program.params if f.spec.get("trainable", True) and f.dtype == "f32"]
    size = sum(f.size for f in trainable)
    if state.dtype != "f32" or not trainable or state.size != size:
        return [(f"opt/{state.name}", None)]
    return [(f"opt/{state.name}/{f.name}", f) for f in trainable]


def fields_of(program: Program) -> list[Field]:
    """Every tensor of a checkpoint, as it is stored, and where it lies."""
    found = [(f"param/{f.name}", f, f.dtype) for f in program.params]
    for f in states_of(program):
        found += [(name, replace(part or f, buffer=f.buffer), f.dtype) for name, part in split_state(program, f)]
    return [replace(f, name=name, dtype=DTYPES[dtype].storage, spec={}) for name, f, dtype in found]


def storable(x: Array, dtype: str) -> Array:
    """`x` as float32 or int32."""
    return to_storage(x, dtype).reshape(x.shape)


def _taken(rest: dict[str, Array], name: str, field: Field, problems: list[str]) -> Array:
    """A tensor of the file, removed from `rest`, as the field's type."""
    x = rest.pop(name, None)
    wanted = Field(field.name, 0, 0, field.dtype, field.shape)
    if x is None:
        problems.append(f"{name}: missing, expected {wanted.type}")
    elif x.shape != field.shape or x.dtype.name != DTYPES[DTYPES[field.dtype].storage].numpy:
        problems.append(f"{name}: expected {wanted.type}, got {describe(x)}")
    else:
        return from_storage(x.reshape(-1), wanted)
    return np.zeros(field.shape, np.float32)


def _with_metadata(
    metadata: Mapping[str, str], where: str, values: dict[str, Array], states: dict[str, Array], program: Program
) -> Checkpoint:
    try:
        m = {name: json.loads(metadata[name]) for name in ("step", "seed", "lr", "lr_start", "hyper", "optimizer")}
        hyper = {str(k): float(v) for k, v in cast("dict[str, Any]", m["hyper"]).items()}
        step, seed = int(m["step"]), int(m["seed"])
        if step < 0 or not 0 <= seed < 2**32:
            raise ValueError(f"step {step}, seed {seed}")
        start = None if m["lr_start"] is None else int(m["lr_start"])
        rate = dict(cast("dict[str, Any]", m["lr"]))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InputError.here(f"load: the metadata of {where} are damaged: {e!r}") from None
    return Checkpoint(values, states, step, seed, rate, start, hyper, m["optimizer"], program)
