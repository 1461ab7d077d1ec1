"""What `inputs=` may say about an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tracegrad.dtypes import InputType, TensorType, f32
from tracegrad.errors import InputError

InputSpec = InputType | TensorType | Sequence["int | None"] | int


def input_type(name: str, spec: Any) -> InputType:
    """`(B, 784)` is f32; `tg.i32[B, T]` says its dtype. InputError for anything else."""
    if hasattr(spec, "shape") and not isinstance(spec, (InputType, TensorType, type)):
        raise InputError.here(
            f"input {name!r}: inputs declares shapes or types, got a {type(spec).__name__} of shape {spec.shape}; "
            "values go to step and run"
        )
    dtype, dims = f32, (spec,) if isinstance(spec, int) else spec
    if isinstance(spec, (InputType, TensorType)):
        dtype, dims = spec
    sequence = isinstance(dims, (tuple, list))
    sizes = list(cast("Sequence[Any]", dims)) if sequence else []
    valid = sequence and all(d is None or (type(d) is int and d > 0) for d in sizes)
    if not name.isidentifier() or not valid:
        raise InputError.here(
            f"input {name!r}: {spec!r} is not a shape such as (64, 784), nor a type such as tg.i32[64, 128]"
        )
    return InputType(dtype, tuple(sizes))


def declared(inputs: Any) -> dict[str, Any]:
    """A copy of `inputs=`; InputError unless it says each input by name."""
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in cast("Mapping[Any, Any]", inputs)):
        return dict(cast("Mapping[str, Any]", inputs))
    raise InputError.here(
        f'inputs is a dict of a shape or type for each input by name, such as {{"x": (64, 784)}}; got {inputs!r}'
    )


def input_types(inputs: Mapping[str, Any]) -> dict[str, InputType]:
    """All inputs of a call."""
    return {name: input_type(name, spec) for name, spec in declared(inputs).items()}


def concrete_type(name: str, spec: Any) -> TensorType:
    """The type of an input without None dimensions."""
    t = input_type(name, spec)
    if None in t.shape:
        raise InputError.here(f"input {name!r}: {t} has a None dimension, which only attach and compile_forward take")
    return TensorType(t.dtype, tuple(d for d in t.shape if d is not None))
