"""What a forward is compiled from: the user's function, and the types of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tracegrad.compiler.build import Built, build_forward, check_precision
from tracegrad.compiler.inputtypes import input_types
from tracegrad.compiler.signatures import check_function, check_signature
from tracegrad.compiler.sizes import FreeSizes, Sizes
from tracegrad.dtypes import InputType
from tracegrad.program import Program


class ForwardSource(NamedTuple):
    """What a forward is compiled from, besides the model. Each call chooses the sizes that are None or names."""

    forward: Callable[..., Any]
    precision: str
    free: FreeSizes
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
        return ForwardSource(forward, precision, FreeSizes.of(types), writes)

    @property
    def types(self) -> Mapping[str, InputType]:
        """Its inputs, as declared."""
        return self.free.types

    def built(self, model: Any, sizes: Sizes, like: Program | None = None, patching: bool = False) -> Built:
        """The program for some sizes; see `build_forward`."""
        inputs = self.free.sized(sizes)
        return build_forward(model, self.forward, inputs, like, patching, self.precision, self.writes)
