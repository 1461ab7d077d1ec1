"""Folders of checkpoints by Orbax: each process writes and reads only the parts of arrays that its devices hold."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.errors import DeviceError, InputError
from tracegrad.files.atomic import naming
from tracegrad.files.jsontext import cut, printable
from tracegrad.program import Field, Program
from tracegrad.runtime.jax_memory import Memory, Part, jax, multihost, parts_of

Folder = str | os.PathLike[str]
TENSORS, METADATA = "tensors", "metadata"  # the two items of a checkpoint
INSTALL = 'pip install "tracegrad[orbax]"'  # quoted, because zsh expands brackets


class Held(NamedTuple):
    """The place of a checkpoint's tensor: elements of a part from `begin` on."""

    part: Part
    begin: int
    shape: tuple[int, ...]
    size: int

    @property
    def whole(self) -> bool:
        """Whether the tensor is the part itself."""
        return self.shape == self.part.shape and self.size == self.part.size

    def read(self, memory: Memory) -> Array:
        """Return the tensor."""
        x = memory.arrays[self.part.key]
        return x if self.whole else x.reshape(-1)[self.begin : self.begin + self.size].reshape(self.shape)

    def write(self, memory: Memory, x: Array) -> None:
        """Replace the tensor. A whole part must have the placement that it is to keep."""
        if not self.whole:
            old = memory.arrays[self.part.key]
            flat = old.reshape(-1).at[self.begin : self.begin + self.size].set(x.reshape(-1))
            x = jax.device_put(flat.reshape(self.part.shape), old.sharding)
        memory.arrays[self.part.key] = x


def held_by(program: Program, fields: Sequence[Field]) -> dict[str, Held]:
    """Return the place of each tensor of a checkpoint except empty ones, which Orbax does not write."""
    parts, found = parts_of(program), dict[str, Held]()
    for f in fields:
        within = [p for p in parts[program.buffers[f.buffer].name] if 0 <= f.offset - p.offset <= p.size - f.size]
        if f.size:
            found[f.name] = Held(within[0], f.offset - within[0].offset, f.shape, f.size)
    return found


def write(
    folder: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str]
) -> Callable[[], None]:
    """Copy the arrays to the hosts and begin to write a checkpoint. Return a function that waits until it is complete.

    The folder gets one numbered folder for each call. Only when the new one is complete does Orbax delete the old one.
    Raises: OSError naming the folder.
    """
    with _naming(folder), contextlib.ExitStack() as closing:  # a manager that is open can still write after an error
        manager = _manager(folder, create=True)
        closing.callback(manager.close)
        args, names = _orbax().args, os.listdir(folder)
        number = np.int32(1 + max([int(found[0]) for n in names if (found := re.match(r"\d+", n))], default=0))
        if jax.process_count() > 1:  # a process can still see the folder as it was
            number = multihost.broadcast_one_to_all(number)
        items = {TENSORS: args.PyTreeSave(dict(tensors)), METADATA: args.JsonSave(dict(metadata))}
        manager.save(int(number), args=args.Composite(**items))
        closing.pop_all()

    def wait() -> None:
        with _naming(folder), contextlib.closing(manager):
            manager.wait_until_finished()
        for name in names:  # what failed saves left: their threads can still write there, so its number is not reused
            if ".orbax-checkpoint-tmp" in name:
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)

    return wait


class Stored:
    """The newest checkpoint in a folder, open for reading."""

    def __init__(self, manager: Any, number: int, folder: Folder):
        self._manager, self._number, self._folder, self._orbax = manager, number, folder, _orbax()
        restored = manager.restore(number, args=self._orbax.args.Composite(metadata=self._orbax.args.JsonRestore()))
        self.metadata: dict[str, str] = restored.metadata
        self.types: dict[str, Any] = dict(manager.item_metadata(number)[TENSORS])

    def read(self, wanted: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Return the tensors of `wanted`, placed as its `jax.ShapeDtypeStruct` say; or all tensors as NumPy arrays."""
        args, whole = self._orbax.args, None if wanted is None else dict(wanted)
        each = {name: self._orbax.RestoreArgs(restore_type=np.ndarray) for name in self.types}
        if whole is not None:
            each = self._orbax.checkpoint_utils.construct_restore_args(whole)
        how = args.Composite(tensors=args.PyTreeRestore(whole, restore_args=each))
        with _refusing(self._folder):
            return self._manager.restore(self._number, args=how).tensors


@contextlib.contextmanager
def opened(folder: Folder) -> Generator[Stored]:
    """Open the newest complete checkpoint of a folder. Raise InputError if there is none, or if it is damaged."""
    manager = _manager(folder, create=False)
    try:
        with _refusing(folder):
            number = manager.latest_step()
            if number is None:
                raise ValueError("it has no complete one")
            stored = Stored(manager, number, folder)
        yield stored
    finally:
        manager.close()


@contextlib.contextmanager
def _refusing(folder: Folder) -> Generator[None]:
    """Raise InputError, in one sentence, for any error that Orbax raises for a damaged folder."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as e:
        what = f"{os.fspath(folder)} is no folder of checkpoints by tracegrad, or is damaged"
        raise InputError.here(f"load: {what}: {cut(printable(str(e).partition(chr(10))[0]), 200)}") from e


@contextlib.contextmanager
def _naming(folder: Folder) -> Generator[None]:
    """Make errors of the system name the folder. Orbax raises some as ValueError, with the number in its text."""
    with naming(folder, "; an older checkpoint is unchanged"):
        try:
            yield
        except ValueError as e:
            if (found := re.search(r"os_error_code='([1-9]\d*)'", str(e))) is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from e


def _manager(folder: Folder, create: bool) -> Any:
    orbax = _orbax()
    options = orbax.CheckpointManagerOptions(max_to_keep=1 if create else None, create=create)
    handlers = {TENSORS: orbax.PyTreeCheckpointHandler(), METADATA: orbax.JsonCheckpointHandler()}
    return orbax.CheckpointManager(os.path.abspath(folder), options=options, item_handlers=handlers)


def _orbax() -> Any:
    try:
        return importlib.import_module("orbax.checkpoint")
    except ImportError as e:
        raise DeviceError(f"checkpoints in folders need Orbax, which cannot be imported ({e}): {INSTALL}") from e
