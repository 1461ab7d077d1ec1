"""The layout of checkpoints, the safetensors files of `train.save`: everything that a bit-exact resume needs.

Tensors:  param/<name>            a parameter
          opt/<state>/<name>      an optimizer array, one tensor for each parameter it belongs to
          opt/<state>             a state of another shape
          state/<name>            a state of the model
Metadata are JSON texts: tracegrad (version of this layout), step, seed, lr, lr_start (the step at which lr began),
hyper, optimizer, and frozen once `train.freeze` was called. With several losses, "losses" has these entries for
each loss by name, and optimizer arrays are opt/<loss>/<state>. Python's JSON writes floats exactly. Another entry,
tracegrad_crc32, is a checksum of all else.

U32 and booleans are stored as I32: other safetensors readers support F32 and I32 best.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tracegrad import lr as schedules, safetensors
from tracegrad.arrays import Array, describe, np
from tracegrad.compiler.build import Built, StepSource
from tracegrad.dtypes import DTYPES
from tracegrad.engine import params
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.stepper import Snapshot, Stepper, restore, states_of
from tracegrad.engine.stores import TrainedParameters
from tracegrad.errors import InputError
from tracegrad.files.atomic import replace_file
from tracegrad.files.jsontext import cut, dumped, parse, printable, shown
from tracegrad.hypers import GROUP, OFF, RANGES, UNIT, checked, checked_all, ranges_of, settable
from tracegrad.optim.freezing import MISSED
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session
from tracegrad.runtime.memory import from_storage, to_storage

VERSION = "1"
ENTRIES = ("step", "seed", "lr", "lr_start", "hyper", "optimizer")  # entries of the metadata, JSON texts
ALONE = "for parameters and states alone write train.load(path, optimizer=False)"
PARAMETERS_ALONE = f"the parameters fit, the optimizer is another; {ALONE}"


def save(snapshots: Sequence[Snapshot], path: str | os.PathLike[str], more: Mapping[str, str] | None = None) -> None:
    """Replace the file, completely or not at all. snapshots: one for each loss. more: further metadata."""
    replace_file(path, parts(*snapshots, more=more))


def load(path: str | os.PathLike[str], whole: safetensors.File, store: TrainedParameters) -> None:
    """Continue from a checkpoint, read from `path`. Options that are on only in the file are compiled first."""
    loadings = loadings_of(path, whole, store)
    snapshots = [read(path, loading.file, loading.built.program, loading.stepper.knobs) for loading in loadings]

    def resume(session: Session, _: Stepper) -> None:
        take_over(session, loadings)
        for loading, snapshot in zip(loadings, snapshots, strict=True):
            restore(session, loading.stepper, snapshot)

    store.call(resume, loadings[0].stepper)


def check_version(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    """Raise InputError unless this is a checkpoint in the layout of this library."""
    found = metadata.get("tracegrad")
    if found != VERSION:
        other = f"has layout {shown(found)}, this library reads {VERSION!r}"
        what = other if found else "is not a checkpoint of tracegrad"
        raise InputError.here(f"load: {os.fspath(path)} {what}; {ALONE}")


class Loading:
    """The data to load into the stepper of one loss: its part of the file, and a source with the file's options."""

    def __init__(self, stepper: Stepper, source: StepSource, built: Built, file: safetensors.File) -> None:
        self.stepper, self.source, self.built, self.file = stepper, source, built, file


def loadings_of(path: str | os.PathLike[str], whole: safetensors.File, store: TrainedParameters) -> list[Loading]:
    """Return the loading for each loss. If the file has options that a step lacks, compile the step with them."""
    loadings: list[Loading] = []
    for name, stepper in store.steppers.items():
        file = of_loss(path, whole, name, store.steppers) if name else whole
        source, optimizer = stepper.source, stepper.source.optimizer.switched_on(first_hyper(file))
        missed = f"opt/{name}/{MISSED}" if name else f"opt/{MISSED}"
        froze = file.metadata.get("frozen") is not None or any(x.startswith(missed) for x in file.tensors)
        if optimizer is not source.optimizer or (froze and not source.freezable):
            source = source._replace(optimizer=optimizer, freezable=froze or source.freezable)
        built = stepper.built if source is stepper.source else source.main()
        loadings.append(Loading(stepper, source, built, file))
    return loadings


def take_over(session: Session, loadings: Sequence[Loading]) -> None:
    """Continue with the programs of the loadings; on the worker's thread."""
    for loading in loadings:
        if loading.source is not loading.stepper.source:
            loading.stepper.take_over(session, loading.source, loading.built)


def of_loss(path: str | os.PathLike[str], file: safetensors.File, name: str, names: Iterable[str]) -> safetensors.File:
    """Return the part of a checkpoint that belongs to one of several losses, with its own metadata.

    Raises InputError if the file has other losses."""
    with _metadata(path):
        if "losses" not in file.metadata:
            said = f"losses: the file has one loss, this training has {shown([*names])}"
            raise InputError(f"{said}; {ALONE}")
        losses = _object(_entry(file.metadata, "losses"), "losses")
        if losses.keys() != {*names}:
            raise InputError(f"losses: the file has {shown([*losses])}, this training has {shown([*names])}")
        own = _object(losses[name], f"losses.{name}")
    others = tuple(f"opt/{other}/" for other in names if other != name)
    tensors = {n: x for n, x in file.tensors.items() if not n.startswith(others)}
    texts = {n: x for n, x in own.items() if isinstance(x, str)}
    return safetensors.File(tensors, {**{n: x for n, x in file.metadata.items() if n == "tracegrad"}, **texts})


def parts(*snapshots: Snapshot, more: Mapping[str, str] | None = None) -> list[bytes]:
    """Return the bytes of the file, in order. snapshots: one for each loss."""
    tensors: dict[str, Array] = {}
    for snapshot in snapshots:
        tensors |= tensors_of(snapshot)
    return safetensors.parts(tensors, metadata_of_all(snapshots, more) | {safetensors.SUM: ""})


def metadata_of_all(snapshots: Sequence[Snapshot], more: Mapping[str, str] | None) -> dict[str, str]:
    """Return the metadata of the file."""
    metadata = metadata_of(snapshots[0])
    if snapshots[0].program.part:
        metadata = {"losses": dumped({s.program.part: metadata_of(s) for s in snapshots})}
    return {"tracegrad": VERSION, **metadata, **(more or {})}


def tensors_of(snapshot: Snapshot) -> dict[str, Array]:
    """Return parameters, states and optimizer arrays, by their names in the file."""
    program = snapshot.program
    tensors = {f"param/{f.name}": storable(snapshot.params[f.name], f.dtype) for f in program.params}
    for f in states_of(program):
        flat = snapshot.states[f.name]
        for name, part in split_state(program, f):
            tensors[name] = storable(from_storage(flat.reshape(-1), part) if part else flat, f.dtype)
    return tensors


def metadata_of(snapshot: Snapshot) -> dict[str, str]:
    """Return the metadata of the training of one loss, as JSON texts."""
    rate = snapshot.knobs.rate
    metadata = {
        "step": dumped(snapshot.step),
        "seed": dumped(snapshot.seed),
        "lr": dumped(rate.schedule.spec()),
        "lr_start": dumped(rate.start),
        "hyper": dumped(_without_unit(snapshot.knobs.values)),
        "optimizer": dumped(snapshot.optimizer),
    }
    if snapshot.frozen or any(f.name.endswith(MISSED) for f in snapshot.program.states):
        metadata["frozen"] = dumped(snapshot.frozen)
    return metadata


def digest(snapshots: Sequence[Snapshot], losses: Sequence[float]) -> str:
    """Return the SHA-256 of losses, parameters, all states, step, seed, schedule and hyperparameters, in hex.

    Names are sorted, and the bits of floats are hashed (losses as f32). So the hash is the same in every process.
    """
    total = hashlib.sha256()

    def add(name: str, x: Array) -> None:
        little = x.astype(x.dtype.newbyteorder("<"), order="C")
        total.update(dumped([name, x.dtype.name, list(x.shape)]).encode() + little.tobytes())

    try:
        add("losses", np.asarray(losses, "float32"))
    except (TypeError, ValueError):
        raise InputError.here(f"digest: losses must be numbers, got {shown(losses)}; pass history.loss") from None
    states = {name: x for snapshot in snapshots for name, x in snapshot.states.items()}
    for role, arrays in (("param", snapshots[0].params), ("opt", states)):
        for name in sorted(arrays):
            add(f"{role}/{name}", np.asarray(arrays[name]))
    for snapshot in snapshots:
        rate, hyper = snapshot.knobs.rate, snapshot.knobs.values
        rest = [snapshot.step, snapshot.seed, rate.schedule.spec(), rate.start, hyper, snapshot.optimizer]
        rest += [list(snapshot.frozen)] if snapshot.frozen else []
        rest += [snapshot.program.part] if snapshot.program.part else []
        total.update(dumped(rest, sort_keys=True).encode())
    return total.hexdigest()


def first_hyper(file: safetensors.File) -> dict[str, float]:
    """Return the initial values of the optimizer's options in the file. Invalid ones are left out; `read` reports them.

    The initial values show which options the saved program has, because switching an option off does not remove it.
    """
    try:
        given = _object(_object(_entry(file.metadata, "optimizer"), "optimizer").get("hyper"), "hyper")
    except InputError:
        return {}
    return {name: x for name, x in given.items() if name in OFF and _usable(name, x)}


def _usable(name: str, value: Any) -> bool:
    try:
        checked(name, value, RANGES[name])
    except InputError:
        return False
    return True


def read(path: str | os.PathLike[str], file: safetensors.File, program: Program, current: Knobs) -> Snapshot:
    """Return the snapshot in the file at `path`, checked against `program`. Its hyperparameters replace `current`'s.

    Everything is checked before a training changes: the format, the names, shapes, dtypes and values of tensors, and
    each entry of the metadata.
    Raises: InputError for another format. Otherwise it names up to 12 problems with tensors, or if there are none, the
            first wrong entry of the metadata.
    """
    check_version(path, file.metadata)
    problems: list[str] = []
    values, states = _arrays(file.tensors, program, problems)
    refuse(path, problems)
    return settings(path, file.metadata, program, current)._replace(params=values, states=states)


def refuse(path: str | os.PathLike[str], problems: Sequence[str]) -> None:
    """Raise InputError if there are problems with the tensors."""
    if problems:
        some = [*problems[:12], *([f"and {len(problems) - 12} more"] if len(problems) > 12 else [])]
        alone = all(x.startswith("opt/") for x in problems)
        hint = [PARAMETERS_ALONE] if alone else []
        raise InputError.here("\n  ".join([f"load: {os.fspath(path)} does not fit; nothing was changed", *some, *hint]))


def settings(path: str | os.PathLike[str], metadata: Mapping[str, str], program: Program, current: Knobs) -> Snapshot:
    """Return the snapshot of a checkpoint's metadata, without arrays. Raise InputError for an entry that is wrong."""
    with _metadata(path):
        if "losses" in metadata:
            raise InputError(f"losses: the file has several losses, this training has one; {ALONE}")
        m = {name: _entry(metadata, name) for name in ENTRIES}
        step, seed = _u32(m["step"], "step"), _u32(m["seed"], "seed")
        start = None if m["lr_start"] is None else _u32(m["lr_start"], "lr_start", 1)
        rate, hyper = _object(m["lr"], "lr"), _hyper(_without_unit(_object(m["hyper"], "hyper")), program, current)
        optimizer = _optimizer(_object(m["optimizer"], "optimizer"), program)
        schedule = _schedule(rate, current.rate.schedule)
        frozen = _frozen(metadata, program)
    knobs = Knobs(Rate(schedule, start), {**current.values, **hyper})
    return Snapshot({}, {}, step, seed, knobs, optimizer, program, frozen)


def _arrays(
    tensors: Mapping[str, Array], program: Program, problems: list[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return parameters and whole states by name. Tensors that do not fit are added to `problems`."""
    rest = dict(tensors)
    values: dict[str, Array] = {}
    for f in program.params:
        values[f.name] = _taken(rest, f"param/{f.name}", f, problems)
        if reason := params.not_finite(f, values[f.name]):
            problems.append(f"param/{f.name}: {reason}")
    states: dict[str, Array] = {}
    for f in states_of(program):
        whole = np.zeros(f.shape, DTYPES[f.dtype].numpy)
        places = split_state(program, f)
        if f.name.endswith(MISSED) and not any(name in rest for name, _ in places):
            places = []  # a file from before any parameter was frozen: no parameter has missed a step
        for name, part in places:
            x = _taken(rest, name, part or f, problems)
            if part is None:
                whole = x
                if reason := params.not_finite(f, whole) if f.name == name else "":
                    problems.append(f"{name}: {reason}")
            else:
                if nan := int((x != x).sum()):
                    problems.append(f"{name}: {nan} NaN of {x.size} values: every step from them on would fail")
                whole.reshape(-1)[part.offset : part.offset + x.size] = x.reshape(-1)
        states[f.name] = whole
    problems += [f"{cut(printable(name))}: not in this training" for name in rest]
    return values, states


@contextlib.contextmanager
def _metadata(path: str | os.PathLike[str]) -> Generator[None]:
    """Raise an InputError about an entry of the metadata with the file's path."""
    try:
        yield
    except InputError as e:
        why = str(e).partition("\n  at ")[0]
        raise InputError.here(f"load: {os.fspath(path)} does not fit; nothing was changed\n  metadata {why}") from None


def _entry(metadata: Mapping[str, str], name: str) -> Any:
    if name not in metadata:
        raise InputError(f"{name}: missing")
    try:
        return parse(metadata[name])
    except InputError as e:
        raise InputError(f"{name}: {e}") from None


def _u32(value: Any, name: str, lowest: int = 0) -> int:
    if type(value) is not int or not lowest <= value < 2**32:
        raise InputError(f"{name}: expected an integer from {lowest} to 2**32 - 1, got {shown(value)}")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name}: expected an object, got {shown(value)}")
    return cast("dict[str, Any]", value)


def _without_unit(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters without the unit of squares, which the host chooses. Older files can have it."""
    return {name: x for name, x in values.items() if name != UNIT}


def _hyper(given: Mapping[str, Any], program: Program, current: Knobs) -> dict[str, float]:
    """Return the hyperparameters. Raises InputError for an unknown name, or a value out of range."""
    known = {*settable(f.name for f in program.inputs), *current.values}
    given = {name: x for name, x in given.items() if name in known or OFF.get(name) != x}
    unknown = [name for name in given if name not in known]
    if unknown:
        names = ", ".join(sorted(known - {UNIT}))
        groups = "; compile with the groups= of the file" if GROUP in unknown[0] else ""
        raise InputError(f"hyper: {shown(unknown[0])} is not a value of this training; its values are {names}{groups}")
    return checked_all(given, ranges_of(program.meta), "hyper")


def _optimizer(given: dict[str, Any], program: Program) -> dict[str, Any]:
    """Return the data of the optimizer. Raises InputError if its kind or state differs from this program's."""
    own: Mapping[str, Any] = program.meta.get("optimizer", {})
    for name in ("kind", "state"):
        theirs, ours = given.get(name), own.get(name)
        if theirs != ours:
            what = f"the {name} is {shown(theirs)}, here it is {shown(ours)}"
            raise InputError(f"optimizer: {what}\n  {PARAMETERS_ALONE}")
    return given


def _frozen(metadata: Mapping[str, str], program: Program) -> tuple[str, ...]:
    """Return the parameters that `train.freeze` named; () if there is no entry. Raises InputError for other names."""
    given: object = _entry(metadata, "frozen") if "frozen" in metadata else []
    names = [f.name for f in program.trained]
    if not isinstance(given, list) or any(name not in names for name in cast("list[object]", given)):
        raise InputError(f"frozen: expected names of trained parameters, got {shown(given)}")
    return tuple(cast("list[str]", given))


def _schedule(spec: Mapping[str, Any], current: schedules.Schedule) -> schedules.Schedule:
    """Return the schedule of a checkpoint; the current one if equal, because it can be of the user's own kind."""
    import json

    if json.loads(json.dumps(current.spec())) == spec:
        return current
    try:
        return schedules.from_spec(spec)
    except (InputError, TypeError, ValueError) as e:
        raise InputError(f"lr: {cut(printable(str(e).partition(chr(10))[0]), 200)}") from None


def split_state(program: Program, state: Field) -> list[tuple[str, Field | None]]:
    """Return the tensors of a state: one per trainable parameter if it has the parameters' layout, else itself."""
    if state in program.model_states:
        return [(state.name, None)]
    trainable = [f for f in program.trained if f.dtype == "f32"]
    size = program.meta.get("part", {}).get("size", sum(f.size for f in trainable))
    if state.dtype != "f32" or not trainable or state.size != size:
        return [(f"opt/{state.name}", None)]
    return [(f"opt/{state.name}/{f.name}", f) for f in trainable]


def fields_of(program: Program) -> list[Field]:
    """Return every tensor of a checkpoint: its stored type, and its place on the device."""
    found = [(f"param/{f.name}", f, f.dtype) for f in program.params]
    for f in states_of(program):
        found += [(name, replace(part or f, buffer=f.buffer), f.dtype) for name, part in split_state(program, f)]
    return [replace(f, name=name, dtype=DTYPES[dtype].storage, spec={}) for name, f, dtype in found]


def storable(x: Array, dtype: str) -> Array:
    """Return `x` as float32 or int32."""
    return to_storage(x, dtype).reshape(x.shape)


def _taken(rest: dict[str, Array], name: str, field: Field, problems: list[str]) -> Array:
    """Remove a tensor from `rest`, and return it in the type of the field; zeros and a problem if it does not fit."""
    x = rest.pop(name, None)
    wanted = Field(field.name, 0, 0, field.dtype, field.shape)
    if x is None:
        problems.append(f"{name}: missing, expected {wanted.type}")
    elif x.shape != field.shape or x.dtype.name != DTYPES[DTYPES[field.dtype].storage].numpy:
        problems.append(f"{name}: expected {wanted.type}, got {describe(x)}")
    else:
        return from_storage(x.reshape(-1), wanted)
    return np.zeros(field.shape, np.float32)
