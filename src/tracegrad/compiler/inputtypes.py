"""Read the types in `inputs=`. Each call chooses the sizes that are None or a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from tracegrad.compiler.standins import tried
from tracegrad.dtypes import Dimension, DType, InputType, TensorType, f32
from tracegrad.errors import InputError
from tracegrad.refusals import shown
from tracegrad.shapes import whole

InputSpec = InputType | TensorType | Sequence[Dimension] | int
Sizes = tuple[tuple[str, int], ...]  # of a call: each name and its size, in the order of the declaration


def input_type(name: str, spec: Any) -> InputType:
    """Return the type of a spec: `(B, 784)` is f32; `tg.i32[B, T]` names its dtype. Raise InputError otherwise."""
    if hasattr(spec, "shape") and not isinstance(spec, (InputType, TensorType, type)):
        raise InputError.here(
            f"input {name!r}: declare a shape or a type, not a {type(spec).__name__} of shape {spec.shape}; "
            "pass values to step and run"
        )
    dtype, dims = f32, (spec,) if whole(spec) is not None else spec
    if isinstance(spec, (InputType, TensorType)):
        dtype, dims = spec
    sizes = list(cast("Sequence[Any]", dims)) if isinstance(dims, (tuple, list)) else None
    if sizes is None or not all(d is None or _is_name(d) or (whole(d) or 0) > 0 for d in sizes):
        raise InputError.here(
            f"input {name!r}: {shown(spec)} is not a shape such as (64, 784), nor a type such as tg.i32[64, 128]"
            f"{_hint(spec, sizes or [])}"
        )
    return InputType(dtype, tuple([d if d is None or isinstance(d, str) else whole(d) for d in sizes]))


def _is_name(d: Any) -> bool:
    return isinstance(d, str) and d.isidentifier()


def _hint(spec: Any, sizes: Sequence[Any]) -> str:
    """Suggest how to write what was probably meant."""
    if isinstance(spec, DType):
        return f"; a dtype alone has no shape, write tg.{spec}[...]"
    if any(isinstance(d, DType) for d in sizes):
        return "; the shape goes in brackets behind the dtype, as in tg.i32[64, 128]"
    if any(isinstance(d, float) for d in sizes):
        return "; sizes are integers, write // for a division"
    if any(whole(d) == 0 for d in sizes):
        return "; sizes are at least 1"
    if any((whole(d) or 0) < 0 for d in sizes):
        return "; a size that each call chooses is None, or a name such as 'B'"
    if any(isinstance(d, str) for d in sizes):
        return "; the name of a size is made of letters, digits and _"
    return "; f32 is the dtype of a shape alone" if isinstance(spec, type) else ""


def declared(inputs: Any) -> dict[str, Any]:
    """Return a copy of `inputs=`. Raises: InputError unless it gives each input by name."""
    types = cast("Mapping[str, Any]", inputs)
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[Any, Any]", inputs)):
        raise InputError.here(
            f'inputs must be a dict from names to shapes or types, such as {{"x": (64, 784)}}; got {inputs!r}'
        )
    for name in types:
        if not name.isidentifier():
            own = re.sub(r"\W", "_", name)
            hint = f", such as {own!r}" if own.isidentifier() else ""
            raise InputError.here(
                f"input {name!r} needs another name{hint}: inputs are arguments of the loss or forward, so a name "
                "must be a Python identifier: letters, digits and _"
            )
    return dict(types)


def input_types(inputs: Mapping[str, Any]) -> dict[str, InputType]:
    """Return the types of all inputs of a call."""
    return {name: input_type(name, spec) for name, spec in declared(inputs).items()}


def concrete_type(name: str, spec: Any) -> TensorType:
    """Return the type of an input whose sizes are all known. Raises InputError for an open size."""
    t = input_type(name, spec)
    sizes = tuple([d for d in t.shape if isinstance(d, int)])
    if len(sizes) < len(t.shape):
        raise InputError.here(
            f"input {name!r}: {t} has an open size, which only a call can choose; write a number instead"
        )
    return TensorType(t.dtype, sizes)


class FreeSizes(NamedTuple):
    """The inputs of a step or forward, and where each size that calls choose occurs in them."""

    types: Mapping[str, InputType]
    axes: Mapping[str, tuple[tuple[str, int], ...]]  # each name -> inputs and their axes

    @staticmethod
    def of(types: Mapping[str, InputType]) -> FreeSizes:
        """Return the free sizes of inputs. A None is named by its axis, so it is one size for all inputs."""
        axes: dict[str, list[tuple[str, int]]] = {}
        for n, t in types.items():
            for d, size in enumerate(t.shape):
                if not isinstance(size, int):
                    axes.setdefault(name_of(size, d), []).append((n, d))
        return FreeSizes(types, {name: tuple(found) for name, found in axes.items()})

    def sized(self, sizes: Sizes) -> dict[str, InputType]:
        """Return the inputs with these sizes."""
        known = dict(sizes)
        return {
            n: InputType(
                t.dtype, tuple(s if isinstance(s, int) else known[name_of(s, d)] for d, s in enumerate(t.shape))
            )
            for n, t in self.types.items()
        }

    def all(self, size: int) -> Sizes:
        """Return the sizes that are all `size`."""
        return tuple((name, size) for name in self.axes)

    def tried(self) -> Iterator[Sizes]:
        """Yield the sizes to trace with before a call has chosen any."""
        return tried({name: self.types[found[0][0]].shape[found[0][1]] for name, found in self.axes.items()})


def name_of(size: Dimension, axis: int) -> str:
    """Return the name of a size that calls choose."""
    return size if isinstance(size, str) else f"None at axis {axis}"


def as_read(sizes: Sizes) -> int | None | dict[str, int]:
    """Return sizes as users read them: the size alone if there is one name, None if there is none."""
    return dict(sizes) if len(sizes) > 1 else sizes[0][1] if sizes else None
