"""Parameters on the host: drawn, checked, and moved to and from the buffers they live in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracegrad import init
from tracegrad.dtypes import DTYPES
from tracegrad.errors import InputError, call_site, located
from tracegrad.inputs import fit_value, typed
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session
from tracegrad.runtime.draw import draw

Array = Any


def drawn(fields: Sequence[Field], seed: int) -> dict[str, Array]:
    """The first values of parameters, in declaration order, from `seed`."""
    specs = [(f.shape, init.from_spec(f.spec["init"])) for f in fields]
    return {f.name: fit_value(f, x) for f, x in zip(fields, draw(specs, seed), strict=True)}


def check_record(fields: Sequence[Field], record: Mapping[str, Any], strict: bool, what: str) -> dict[str, Array]:
    """The arrays of `record`, cast without loss. InputError naming every problem: nothing was written then.

    strict: a parameter that `record` lacks is an error too.
    """
    known = {f.name: f for f in fields}
    problems = [f"{name}: no such parameter" for name in record if name not in known]
    if strict:
        problems += [f"{f.name}: missing, expected {typed(f)}" for f in fields if f.name not in record]
    arrays: dict[str, Array] = {}
    for name, value in record.items():
        if name in known:
            try:
                arrays[name] = fit_value(known[name], value)
            except InputError as e:
                problems.append(f"{name}: {e}")
    if problems:
        names = f"parameters are {', '.join(known)}" if any("no such" in p for p in problems) else ""
        message = "\n  ".join([f"{what}: nothing was written", *problems, *([names] if names else [])])
        raise InputError(located(message, call_site()))
    return arrays


def to_storage(x: Array, dtype: str) -> Array:
    """`x` as its buffer stores it: f32, or i32 for everything else."""
    flat = np.ascontiguousarray(x).reshape(-1)
    if dtype == "u32":
        return flat.view(np.int32)
    return flat.astype(np.int32) if dtype == "bool" else flat


def from_storage(flat: Array, field: Field) -> Array:
    """The values of `field` out of its whole buffer, as an array of their own."""
    size = int(np.prod(field.shape, dtype=np.int64))
    part = np.asarray(flat)[field.offset : field.offset + size]
    if field.dtype == "bool":
        part = part != 0
    elif field.dtype == "u32":
        part = part.view(np.uint32)
    return np.array(part, dtype=DTYPES[field.dtype].numpy).reshape(field.shape)


def upload(session: Session, program: Program, fields: Sequence[Field], arrays: Mapping[str, Array]) -> None:
    """Write `arrays`, by field name, to where `fields` lie."""
    for f in fields:
        if f.name in arrays:
            session.write(program.buffers[f.buffer].name, to_storage(arrays[f.name], f.dtype), f.offset)


def download(session: Session, program: Program, fields: Sequence[Field]) -> dict[str, Array]:
    """The values of `fields`, by name; each buffer is read once."""
    flats = {k: session.read(program.buffers[k].name) for k in dict.fromkeys(f.buffer for f in fields)}
    return {f.name: from_storage(flats[f.buffer], f) for f in fields}
