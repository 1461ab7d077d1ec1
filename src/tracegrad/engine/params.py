"""Parameters on the host: draw them, check them, move them between arrays and buffers, and freeze them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracegrad import init
from tracegrad.arrays import Array, np
from tracegrad.dtypes import DTYPES
from tracegrad.engine.inputs import fit_value, fitted
from tracegrad.errors import InputError
from tracegrad.ir.states import STATE
from tracegrad.nn.module import named_parameters, named_states, state_specs
from tracegrad.nn.parameters import COPY
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session
from tracegrad.runtime.draw import draw
from tracegrad.runtime.memory import check_memory, from_storage, to_storage

PARAM = "param/"  # the prefix of parameters' names in checkpoints


def declared(model: Any) -> list[Field]:
    """Return the parameters of a model, then its states by path, in declaration order, without a place."""
    parameters, states = named_parameters(model), named_states(model)
    specs = [*(p.init.spec() for p in parameters.values()), *state_specs(model)]
    arrays = [*parameters.items(), *states.items()]
    return [
        Field(n, 0, 0, p.dtype.name, p.shape, {"init": spec, "trainable": p.trainable})
        for (n, p), spec in zip(arrays, specs, strict=True)
    ]


def drawable(program: Program) -> list[Field]:
    """Return the fields that initialisers draw, in the order of the stream: parameters, then states."""
    return [*program.params, *program.model_states]


def states_in(program: Program) -> list[Field]:
    """Return the places of the model's states, by path."""
    return [replace(f, name=f.name.removeprefix(STATE)) for f in program.model_states]


def drawn(fields: Sequence[Field], seed: int) -> dict[str, Array]:
    """Draw first values of parameters, in declaration order, from `seed`. Raise DeviceError if too large."""
    check_memory({f.name: 4 * f.size for f in fields}, "drawing the parameters")
    own = [f for f in fields if f.spec["init"]["kind"] != COPY]
    specs = [(f.shape, init.from_spec(f.spec["init"])) for f in own]
    found = {f.name: fit_value(f, _cast(f, x)) for f, x in zip(own, draw(specs, seed), strict=True)}
    return {f.name: found[f.name] if f.name in found else found[f.spec["init"]["of"]].copy() for f in fields}


def _cast(field: Field, x: Array) -> Array:
    """Cast zeros and ones, drawn as f32, to the dtype of an integer or boolean parameter."""
    return x if DTYPES[field.dtype].is_float else x.astype(DTYPES[field.dtype].numpy)


def not_finite(field: Field, x: Array, xp: Any = np) -> str:
    """Return why the parameter `field` cannot have the values `x`; "" if it can.

    An infinity is valid if no step changes it, as in a mask.
    xp: the module of the array: NumPy or jax.numpy.
    """
    if not DTYPES[field.dtype].is_float or bool(xp.isfinite(x).all()):
        return ""
    nan = int((x != x).sum())
    if not nan and not field.spec.get("trainable", True):
        return ""
    bad = f"{nan} NaN" if nan else f"{int(xp.isinf(x).sum())} infinite"
    return f"{bad} of {x.size} values: every step from them on would fail"


def check_record(
    fields: Sequence[Field], record: Mapping[str, Any], strict: bool, what: str, kind: str = "parameter"
) -> dict[str, Array]:
    """Return the arrays of `record` for `fields`, cast without loss. Raise InputError with every problem.

    strict: whether a parameter missing from `record` is an error too.
    what:   the call, for errors.
    kind:   "parameter" or "state", for errors.
    """
    if not isinstance(record, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError.here(f"{what}: pass the {kind}s as a dict of arrays by name; got {type(record).__name__}")
    known = {f.name: f for f in fields}
    unknown = [name for name in record if name not in known]
    problems = [f"{name}: no such {kind}" for name in unknown]
    if strict:
        problems += [f"{f.name}: missing, expected {f.type}" for f in fields if f.name not in record]

    def fit(name: str, value: Any) -> Array:
        x = fit_value(known[name], value)
        if reason := not_finite(known[name], x):
            raise InputError(reason)
        return x

    arrays = fitted({name: x for name, x in record.items() if name in known}, fit, problems)
    if problems:
        names = f"{kind}s are {', '.join(known) or 'none'}" if unknown else ""
        if any(name.rpartition(".")[2].startswith(("weight", "bias")) for name in unknown):
            names += "; tg.from_torch(record, train) takes PyTorch's names"
        message = "\n  ".join([f"{what}: nothing was written", *problems, *([names] if names else [])])
        raise InputError.here(message)
    return arrays


def of_file(tensors: Mapping[str, Array], fields: Sequence[Field], states: Sequence[Field]) -> list[dict[str, Array]]:
    """Return the parameters and the states in a safetensors file, by name. The file need not be a checkpoint.

    States that the model lacks are left out, and so are the optimizer's.
    """
    saved = any(name.startswith(PARAM) for name in tensors)
    known = {f.name for f in states}
    kept = {n.removeprefix(STATE): x for n, x in tensors.items() if n.startswith(STATE) or not saved}
    found = {n: x for n, x in kept.items() if n in known}
    own = {n.removeprefix(PARAM): x for n, x in tensors.items() if n.startswith(PARAM) or not saved}
    own = {n: x for n, x in own.items() if saved or n.removeprefix(STATE) not in found}
    return [_restored(own, fields), _restored(found, states)]


def _restored(tensors: Mapping[str, Array], fields: Sequence[Field]) -> dict[str, Array]:
    """Cast integers and booleans, which files hold as i32, to their own dtype."""
    types = {f.name: f for f in fields}
    return {
        n: from_storage(x.reshape(-1), replace(types[n], offset=0))
        if n in types and x.dtype == np.int32 and x.shape == types[n].shape
        else x
        for n, x in tensors.items()
    }


def upload(session: Session, program: Program, fields: Sequence[Field], arrays: Mapping[str, Array]) -> None:
    """Write `arrays`, by field name, to the places of `fields`."""
    for f in fields:
        if f.name in arrays:
            session.write(program.buffers[f.buffer].name, to_storage(arrays[f.name], f.dtype), f.offset)


def download(session: Session, program: Program, fields: Sequence[Field]) -> dict[str, Array]:
    """Return the values of `fields`, by name; each buffer is read once."""
    flats = {k: session.read(program.buffers[k].name) for k in dict.fromkeys(f.buffer for f in fields)}
    return {f.name: from_storage(flats[f.buffer], f) for f in fields}


def masks(program: Program) -> dict[str, list[tuple[str, int, int]]]:
    """Return (parameter, offset, elements) of each mask, by the mask's name; empty if the program has none."""
    return program.meta.get("freeze", {})


def write_masks(session: Session, program: Program, frozen: Collection[str]) -> None:
    """Freeze the parameters `frozen` on the device, and no other that the program trains; see `optim/freezing.py`."""
    trained = {f.name for f in program.trained}
    sizes = {b.name: b.size for b in program.buffers}
    for name, found in masks(program).items():
        mask = np.zeros(sizes[name], np.float32)
        for parameter, offset, size in found:
            if parameter in frozen or parameter not in trained:
                mask[offset : offset + size] = 1.0
        session.write(name, mask)
