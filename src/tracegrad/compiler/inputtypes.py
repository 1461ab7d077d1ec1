"""What `inputs=` may say about an input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tracegrad.dtypes import Dimension, DType, InputType, TensorType, f32
from tracegrad.errors import InputError
from tracegrad.refusals import shown
from tracegrad.shapes import whole

InputSpec = InputType | TensorType | Sequence[Dimension] | int


def input_type(name: str, spec: Any) -> InputType:
    """`(B, 784)` is f32; `tg.i32[B, T]` says its dtype. InputError for anything else."""
    if hasattr(spec, "shape") and not isinstance(spec, (InputType, TensorType, type)):
        raise InputError.here(
            f"input {name!r}: inputs declares shapes or types, got a {type(spec).__name__} of shape {spec.shape}; "
            "values go to step and run"
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
    """How to write what was probably meant."""
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
    """A copy of `inputs=`; InputError unless it says each input by name."""
    types = cast("Mapping[str, Any]", inputs)
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[Any, Any]", inputs)):
        raise InputError.here(
            f'inputs is a dict of a shape or type for each input by name, such as {{"x": (64, 784)}}; got {inputs!r}'
        )
    for name in types:
        if not name.isidentifier():
            own = re.sub(r"\W", "_", name)
            hint = f", such as {own!r}" if own.isidentifier() else ""
            raise InputError.here(
                f"input {name!r} needs another name{hint}: inputs are arguments of the loss or forward, so each has a "
                "Python name, of letters, digits and _"
            )
    return dict(types)


def input_types(inputs: Mapping[str, Any]) -> dict[str, InputType]:
    """All inputs of a call."""
    return {name: input_type(name, spec) for name, spec in declared(inputs).items()}


def concrete_type(name: str, spec: Any) -> TensorType:
    """The type of an input whose sizes are all known."""
    t = input_type(name, spec)
    sizes = tuple([d for d in t.shape if isinstance(d, int)])
    if len(sizes) < len(t.shape):
        raise InputError.here(
            f"input {name!r}: {t} has a size that each call chooses, and here is no call; give a number in its place"
        )
    return TensorType(t.dtype, sizes)
