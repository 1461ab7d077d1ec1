"""The sizes that the inputs of a call choose; `compiler/inputtypes.py` defines which dimensions have such sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tracegrad.arrays import as_array
from tracegrad.compiler.inputtypes import FreeSizes, Sizes
from tracegrad.dtypes import Dimension
from tracegrad.engine.inputs import check_inputs
from tracegrad.errors import InputError
from tracegrad.program import Field


def as_arrays(free: FreeSizes, values: Mapping[str, Any], split: bool = False) -> dict[str, Any]:
    """Return the values of a call, as arrays if their shapes matter. split: they can have one more axis in front."""
    named = {name for axes in free.axes.values() for name, _ in axes}
    out: dict[str, Any] = {}
    for n, v in values.items():
        shape = free.types[n].shape if n in named else ()
        out[n] = _array_or_same(v, [(None, *shape), shape] if split else [shape]) if n in named else v
    return out


def sizes_of(free: FreeSizes, given: Mapping[str, Any], what: str, split: bool = False) -> Sizes:
    """Return the sizes of a call from `as_arrays`. Raise InputError with every problem if the inputs do not agree."""
    if not free.axes:
        return ()
    found = {name: [(n, d, _size(free, given, n, d, split)) for n, d in axes] for name, axes in free.axes.items()}
    known = {name: {size for _, _, size in sizes if size is not None} for name, sizes in found.items()}
    for name, sizes in known.items():
        if len(sizes) > 1:
            shown = ", ".join(f"{n} axis {d} is {size}" for n, d, size in found[name] if size is not None)
            which = f"dimensions named {name!r}" if name.isidentifier() else "None dimensions"
            raise InputError.here(f"{what}: all {which} of a call must have equal sizes: {shown}")
        if 0 in sizes:
            which = repr(name) if name.isidentifier() else "a None dimension"
            raise InputError.here(f"{what}: an input is empty; {which} must be at least 1")
    if all(None not in [size for _, _, size in sizes] for sizes in found.values()):
        return tuple((name, sizes.pop()) for name, sizes in known.items())
    shapes = {n: list(t.shape) for n, t in free.types.items()}
    for n, d, size in [(n, d, *known[name]) for name, axes in free.axes.items() if known[name] for n, d in axes]:
        shapes[n][d] = size  # the inputs that fit say what the others should be
    fields = [Field(n, 0, 0, t.dtype.name, cast("tuple[int, ...]", (*shapes[n],))) for n, t in free.types.items()]
    check_inputs(fields, given, what)
    raise AssertionError("an input without the declared rank passed the check")


def _size(free: FreeSizes, given: Mapping[str, Any], name: str, axis: int, split: bool) -> int | None:
    """Return the size of an axis of an input; None if it cannot be known."""
    shape: tuple[int, ...] = getattr(given.get(name), "shape", ())
    more = len(shape) - len(free.types[name].shape)
    return shape[axis + more] if more in ((0, 1) if split else (0,)) else None


def _array_or_same(value: Any, shapes: Sequence[tuple[Dimension, ...]]) -> Any:
    try:
        return as_array(value, shapes)
    except InputError:
        return value  # the check reports it, together with every other problem
