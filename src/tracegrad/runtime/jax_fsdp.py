"""FSDP inside a step: an op gathers the parameters that it reads, and gradients are summed into their parts.

XLA alone gathers parameters more often than they are read, and sums each gradient twice, on all devices.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from tracegrad.ir import Tensor
from tracegrad.prims.leaves import LEAF
from tracegrad.runtime.jax_memory import jax
from tracegrad.runtime.jax_mesh import Layout
from tracegrad.tuning import GATHERED_APART, GATHERED_TOGETHER

Array = Any


class Split:
    """How the values of one run of a graph lie on the devices."""

    def __init__(self, layout: Layout, gradients: Set[int], elements: int) -> None:
        """gradients: serials of the nodes that compute the gradients of single parameters; elements: of parameters."""
        self._layout, self.gradients, self._apart = layout, gradients, elements > GATHERED_TOGETHER
        self._views: set[int] = set()  # serials of views of whole parameters, which stay split as well

    def gathered(self, t: Tensor, inputs: Sequence[Array]) -> list[Array]:
        """Return the operands of an op, with parameters whole on each device.

        In a large model each is gathered for each reader anew, once the other operands are there: else XLA would keep
        all of them until their gradients are computed.
        """
        split = [k for k, x in enumerate(t.inputs) if self._is_split(x)]
        view = t.prim.family == "view" and t.size == t.inputs[0].size
        if split and view:
            self._views.add(t.serial)
        if not split or view:
            return list(inputs)
        if self._apart and len(split) < len(inputs) and any(t.inputs[k].size >= GATHERED_APART for k in split):
            inputs = jax.lax.optimization_barrier(tuple(inputs))
        return [self._whole(x) if k in split else x for k, x in enumerate(inputs)]

    def reduced(self, gradient: Array) -> Array:
        """Return a gradient, summed over the devices, as the parts that each device keeps."""
        parts = self._layout.of_shape(gradient.shape)
        return jax.lax.with_sharding_constraint(self._whole(gradient), parts)

    def _is_split(self, t: Tensor) -> bool:
        return t.serial in self._views or (t.prim is LEAF and t.attrs["role"] in ("param", "frozen"))

    def _whole(self, x: Array) -> Array:
        return jax.lax.with_sharding_constraint(x, self._layout.whole())
