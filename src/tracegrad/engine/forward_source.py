"""What a forward is compiled from: the user's function, and the types of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from tracegrad.compiler.build import Built, build_forward, check_precision
from tracegrad.compiler.inputtypes import input_types
from tracegrad.compiler.signatures import check_function, check_signature
from tracegrad.dtypes import InputType
from tracegrad.engine.inputs import as_array, check_inputs
from tracegrad.errors import InputError
from tracegrad.program import Field, Program


class ForwardSource(NamedTuple):
    """What a forward is compiled from, besides the model. Each call chooses the size of the None dimensions."""

    forward: Callable[..., Any]
    types: Mapping[str, InputType]
    precision: str
    free: tuple[tuple[str, int], ...]  # input and axis of each None dimension
    writes: bool = False  # it may write states

    @staticmethod
    def checked(
        forward: Callable[..., Any], inputs: Mapping[str, Any], precision: str, writes: bool = False
    ) -> ForwardSource:
        """A source; InputError for inputs that are no types or that `forward` does not take."""
        check_precision(precision)
        types = input_types(inputs)
        check_function(forward, "forward")
        check_signature(forward, inputs, "forward")
        free = tuple((n, d) for n, t in types.items() for d, size in enumerate(t.shape) if size is None)
        return ForwardSource(forward, types, precision, free, writes)

    def sized(self, size: int | None) -> dict[str, InputType]:
        """The inputs with `size` in place of None."""
        return {n: InputType(t.dtype, tuple(size if d is None else d for d in t.shape)) for n, t in self.types.items()}

    def built(self, model: Any, size: int | None, like: Program | None = None, patching: bool = False) -> Built:
        """The program for one size; see `build_forward`."""
        return build_forward(model, self.forward, self.sized(size), like, patching, self.precision, self.writes)

    def as_arrays(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a call. Inputs with a None dimension become arrays, because their shapes matter."""
        named = {name for name, _ in self.free}
        return {n: _array_or_same(v, self.types[n].shape) if n in named else v for n, v in values.items()}

    def size_of(self, given: Mapping[str, Any]) -> int | None:
        """The size of the None dimensions in a call. InputError naming every problem if the inputs do not agree."""
        if not self.free:
            return None
        sizes = {
            (n, d): given[n].shape[d]
            for n, d in self.free
            if n in given and len(getattr(given[n], "shape", ())) == len(self.types[n].shape)
        }
        if len(sizes) == len(self.free) and len(set(sizes.values())) == 1 and all(sizes.values()):
            return next(iter(sizes.values()))
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{n} axis {d} is {size}" for (n, d), size in sizes.items())
            raise InputError.here(f"run: all None dimensions of a call must agree, give equal sizes: {shown}")
        if 0 in sizes.values():
            raise InputError.here("run: an input is empty: a None dimension must be at least 1")
        fields = [Field(n, 0, 0, t.dtype.name, cast("tuple[int, ...]", t.shape)) for n, t in self.types.items()]
        check_inputs(fields, given, "run")
        raise AssertionError("an input without the declared rank passed the check")


def _array_or_same(value: Any, shape: tuple[int | None, ...]) -> Any:
    try:
        return as_array(value, [shape])
    except InputError:
        return value  # the check names it, together with every other problem
