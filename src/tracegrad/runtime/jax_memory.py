"""Persistent arrays on JAX's devices. Each buffer of a program is split into one array for each value in it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.dtypes import DTYPES, Shape
from tracegrad.errors import DeviceError
from tracegrad.optim.guard import PARAMS
from tracegrad.passes.pieces import Piece
from tracegrad.program import DRAWN, PERSISTENT, Buffer, Field, Program
from tracegrad.runtime.base import check_within, persistent
from tracegrad.runtime.memory import from_storage, to_storage

jax: Any = importlib.import_module("jax")  # to a type checker, `import jax` would mean the module beside this one
jnp: Any = importlib.import_module("jax.numpy")
multihost: Any = importlib.import_module("jax.experimental.multihost_utils")
JaxError: type[Exception] = jax.errors.JaxRuntimeError


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a buffer. `name` is the parameter or model state that the piece holds or belongs to, or ""."""

    key: str
    name: str
    offset: int
    dtype: str
    shape: Shape

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.field.size

    @property
    def field(self) -> Field:
        """Return the field of this part in a buffer of its own."""
        return Field(self.key, 0, 0, self.dtype, self.shape)

    @property
    def piece(self) -> Piece:
        """Return this part in the form that `passes/pieces.py` takes."""
        return Piece(self.key, self.offset, self.shape, self.size)


def parts_of(program: Program) -> dict[str, tuple[Part, ...]]:
    """Return the parts of each persistent buffer, in order. They cover the buffer.

    Parameters and states are parts of their buffers. A buffer with one element for each of the optimizer's parameters
    has the same parts as the parameters.
    """
    own: dict[int, list[Field]] = {}  # by buffer
    for f in (*program.params, *program.model_states):
        own.setdefault(f.buffer, []).append(f)
    found: dict[str, tuple[Part, ...]] = {}
    for k, b in enumerate(program.buffers):
        if b.role in PERSISTENT:
            found[b.name] = _covering(b, own.get(k, [])) or (Part(b.name, "", 0, b.dtype, (b.size,)),)
    run = run_of_optimizer(program, found)
    for b in program.buffers:
        if follows(b, run):
            begin = run[0].offset
            found[b.name] = tuple([Part(f"{b.name}:{p.name}", p.name, p.offset - begin, "f32", p.shape) for p in run])
    return found


def follows(b: Buffer, run: Sequence[Part]) -> bool:
    """Return whether an array of gradients or optimizer state has one element for each element of `run`."""
    kept = b.role == "grad" or (b.role == "state" and b.fill != DRAWN)
    return bool(run) and kept and b.dtype == "f32" and b.size == sum(p.size for p in run)


def _covering(b: Buffer, fields: Sequence[Field]) -> tuple[Part, ...]:
    """Return the fields as parts of the buffer if they cover it, each element once; else ()."""
    ordered = sorted(fields, key=lambda f: (f.offset, f.size))
    at = 0
    for f in ordered:
        if f.offset != at:
            return ()
        at += f.size
    parts = [Part(f"{b.name}:{f.name}", f.name, f.offset, f.dtype, f.shape) for f in ordered]
    return tuple(parts) if at == b.size else ()


def run_of_optimizer(program: Program, parts: Mapping[str, Sequence[Part]]) -> tuple[Part, ...]:
    """Return the parts of the parameter array that this program's optimizer updates; empty without an optimizer."""
    params = parts.get(PARAMS, ())
    size = program.meta.get("part", {}).get("size", sum(p.size for p in params))
    run = [p for p in params if program.first <= p.offset < program.first + size]
    fits = bool(run) and run[0].offset == program.first and sum(p.size for p in run) == size
    return tuple(run) if fits else ()


class Memory:
    """The arrays by key, and the parts of each buffer."""

    def __init__(
        self,
        put: Callable[[Part, Array], Array] = lambda part, x: jax.device_put(x),
        fetch: Callable[[Array], Array] = np.asarray,
    ) -> None:
        """put, fetch: move a part to the devices, and back."""
        self.arrays: dict[str, Array] = {}
        self.parts: dict[str, tuple[Part, ...]] = {}
        self._to_device, self._fetch = put, fetch

    def allocate(self, program: Program) -> dict[str, tuple[Part, ...]]:
        """Return the parts of a program's buffers; fill new ones.

        Raises DeviceError if a persistent buffer has another size.
        """
        parts = parts_of(program)
        for b in program.buffers:
            if b.role not in PERSISTENT:
                continue
            if b.name in self.parts:
                have = sum(p.size for p in self.parts[b.name])
                if have != b.size:
                    raise DeviceError(f"{b.name} has {have} elements here; the program wants {b.size}")
                continue
            self.parts[b.name] = parts[b.name]
            fill = b.fill if isinstance(b.fill, float | int) else 0.0
            for part in parts[b.name]:
                self._put(part, np.full(part.shape, fill, DTYPES[part.dtype].numpy))
        return parts

    def forget(self, kept: set[str]) -> None:
        """Drop all buffers except these."""
        for name in self.parts.keys() - kept:
            for part in self.parts.pop(name):
                del self.arrays[part.key]

    def read(self, name: str) -> Array:
        """Return a buffer, flat, in the form in which it is stored."""
        return np.concatenate(
            [to_storage(self._fetch(self.arrays[p.key]), p.dtype) for p in persistent(self.parts, name)]
        )

    def write(self, name: str, values: Array, offset: int) -> None:
        """Overwrite some elements of a buffer."""
        flat = np.asarray(values).reshape(-1)
        parts: tuple[Part, ...] = persistent(self.parts, name)
        end = offset + flat.size
        check_within(name, offset, flat.size, parts[-1].offset + parts[-1].size)
        for p in parts:
            low, high = max(offset, p.offset), min(end, p.offset + p.size)
            if low >= high:
                continue
            if high - low == p.size:
                stored = flat[low - offset : high - offset]
            else:
                stored = to_storage(self._fetch(self.arrays[p.key]), p.dtype).copy()
                stored[low - p.offset : high - p.offset] = flat[low - offset : high - offset]
            self._put(p, from_storage(stored, p.field))

    def _put(self, part: Part, x: Array) -> None:
        self.arrays[part.key] = self._to_device(part, x)


def leaf_keys(program: Program, parts: Mapping[str, tuple[Part, ...]]) -> dict[str, str]:
    """Return the key of each parameter and state of the model, by the name of its leaf."""
    own = {f.name for f in (*program.params, *program.model_states)}
    params = {program.buffers[f.buffer].name for f in (*program.params, *program.model_states)}
    return {p.name: p.key for name in params for p in parts[name] if p.name in own}
