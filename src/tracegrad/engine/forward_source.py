"""The source of a forward: the user's function, and the types of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tracegrad.compiler.build import Built, TracedForward, build_forward, check_precision, traced_forward
from tracegrad.compiler.inputtypes import FreeSizes, Sizes, input_types
from tracegrad.compiler.signatures import check_function, check_signature
from tracegrad.dtypes import InputType
from tracegrad.program import Program

if TYPE_CHECKING:
    from tracegrad.compiler.sized import Family


class ForwardSource(NamedTuple):
    """Everything a forward is compiled from, besides the model. Each call chooses the sizes that are None or names."""

    forward: Callable[..., Any]
    precision: str
    free: FreeSizes
    writes: bool = False  # the forward can write states

    @staticmethod
    def checked(
        forward: Callable[..., Any], inputs: Mapping[str, Any], precision: str, writes: bool = False
    ) -> ForwardSource:
        """Return a source. Raise InputError for inputs that are not types or that `forward` does not take."""
        check_precision(precision)
        types = input_types(inputs)
        check_function(forward, "forward")
        check_signature(forward, inputs, "forward")
        return ForwardSource(forward, precision, FreeSizes.of(types), writes)

    @property
    def types(self) -> Mapping[str, InputType]:
        """The types of its inputs, as declared."""
        return self.free.types

    def built(self, model: Any, sizes: Sizes, like: Program | None = None, patching: bool = False) -> Built:
        """Return the program for some sizes; see `build_forward`."""
        inputs = self.free.sized(sizes)
        return build_forward(model, self.forward, inputs, like, patching, self.precision, self.writes)

    def traced(self, model: Any, sizes: Sizes, like: Program | None = None) -> TracedForward:
        """Trace the forward at some sizes, without compiling it."""
        return traced_forward(model, self.forward, self.free.sized(sizes), like, False, self.precision, self.writes)

    def family(self, model: Any, most: int, like: Program | None = None, gpu: bool = False) -> Family:
        """Return the program for sizes up to `most`, or a few more. Raise UnsizedError if each size must have its own.

        gpu: for a GPU, where sizes change only grids.
        """
        from tracegrad.compiler.sized import Source, build_family  # most processes see one size, and need no import

        source = Source.forward(lambda size: self.traced(model, self.free.all(size), like))
        return build_family(source, most, extents=not gpu)
