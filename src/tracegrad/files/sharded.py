"""Checkpoints in folders, for trainings whose arrays are split over devices: each process writes and reads its parts.

Tensors have the names, and metadata the entries, of the file that `checkpoints` describes. U32 and booleans keep their
type. Orbax writes the folder; see `runtime/jax_shards.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracegrad import safetensors
from tracegrad.arrays import Array, describe, dtype_of
from tracegrad.engine import bounds, params
from tracegrad.engine.stepper import Snapshot, Stepper, settings, settle, states_of
from tracegrad.engine.stores import TrainedParameters
from tracegrad.errors import InputError
from tracegrad.files import checkpoints
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session
from tracegrad.runtime.jax import on_jax

if TYPE_CHECKING:
    from tracegrad.runtime.jax_session import JaxSession

Folder = str | os.PathLike[str]


def save(session: Session, stepper: Stepper, folder: Folder, more: Mapping[str, str]) -> Callable[[], None]:
    """Copy the arrays to the hosts, and begin to write; on the worker's thread.

    Return a function that waits until the folder is complete.

    more: further metadata. Every process must call this.
    """
    from tracegrad.runtime.jax_shards import write

    own = on_jax(session, "save(sharded=True)")
    tensors: dict[str, Array] = {}
    for one in stepper.together:
        tensors |= own.tensors(one.program, checkpoints.fields_of(one.program))
    return write(folder, tensors, checkpoints.metadata_of_all([settings(one) for one in stepper.together], more))


def read(folder: Folder) -> safetensors.File:
    """Return the newest checkpoint of a folder, whole, on the host, as if it were a file."""
    from tracegrad.runtime.jax_shards import opened

    with opened(folder) as stored:
        tensors = stored.read()
    found = {name: checkpoints.storable(x, dtype_of(x)) for name, x in tensors.items()}
    return safetensors.File(found, stored.metadata)


def metadata(folder: Folder) -> Mapping[str, str]:
    """Return the metadata of the newest checkpoint of a folder."""
    from tracegrad.runtime.jax_shards import opened

    with opened(folder) as stored:
        return stored.metadata


def load(folder: Folder, store: TrainedParameters) -> None:
    """Load the newest checkpoint of a folder on JAX, where the arrays go straight to their devices.

    Every process must call this.
    Raises: InputError if it does not fit. Then nothing has changed.
    """
    from tracegrad.runtime.jax_shards import opened

    def resume(session: Session, _: Stepper) -> None:
        own = on_jax(session, "load")
        with opened(folder) as stored:
            checkpoints.check_version(folder, stored.metadata)
            loadings = checkpoints.loadings_of(folder, safetensors.File({}, stored.metadata), store)
            wanted: dict[str, Any] = {}
            for loading in loadings:
                wanted |= own.wanted(loading.built.program, checkpoints.fields_of(loading.built.program))
            checkpoints.refuse(folder, _problems(wanted, stored.types))
            snapshots = [
                checkpoints.settings(folder, p.file.metadata, p.built.program, p.stepper.knobs) for p in loadings
            ]
            tensors = stored.read(wanted)
        checkpoints.refuse(folder, [p for loading in loadings for p in _not_finite(loading.built.program, tensors)])
        checkpoints.take_over(session, loadings)
        for loading, snapshot in zip(loadings, snapshots, strict=True):
            _restore(own, loading, snapshot, tensors)

    try:
        store.call(resume)
    except InputError as e:
        raise InputError.here(str(e).partition("\n  at ")[0]) from None  # at the caller's line


def _restore(
    session: JaxSession, loading: checkpoints.Loading, snapshot: Snapshot, tensors: Mapping[str, Array]
) -> None:
    """Continue with the tensors and with the settings of a snapshot."""
    program = loading.built.program
    fields = checkpoints.fields_of(program)
    session.replace(program, fields, tensors)
    given = {f.name: tensors[f.name] for f in fields if f.name in tensors}
    bounds.tell(session, program, bounds.written(program, fields, given))
    settle(session, loading.stepper, snapshot)


def _problems(wanted: Mapping[str, Any], types: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the names, shapes and dtypes of a checkpoint."""
    found: list[str] = []
    for name, want in wanted.items():
        type = types.get(name)
        if type is None:
            found.append(f"{name}: missing, expected {describe(want)}")
        elif tuple(type.shape) != want.shape or type.dtype != want.dtype:
            found.append(f"{name}: expected {describe(want)}, got {describe(type)}")
    return found + [f"{name}: not in this training" for name in types if name not in wanted]


def _not_finite(program: Program, tensors: Mapping[str, Array]) -> list[str]:
    """Return the names of tensors with infinite or NaN values, from which no training can continue."""
    from tracegrad.runtime.jax_memory import jnp

    found: list[str] = []
    named: list[tuple[str, Field]] = [(f"param/{f.name}", f) for f in program.params]
    for name, f in named + [(f.name, f) for f in states_of(program)]:
        if reason := params.not_finite(f, tensors[name], jnp) if name in tensors else "":
            found.append(f"{name}: {reason}")
    return found
