"""Where arrays lie on a mesh of devices. XLA derives from that which device computes what, and what they exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracegrad.errors import DeviceError, InputError
from tracegrad.patterns import matcher
from tracegrad.program import Field
from tracegrad.runtime.jax_library import jax
from tracegrad.runtime.jax_memory import Part

DATA = "data"  # the axis of a mesh that batches are split over
FSDP = "fsdp"  # the layout that splits every parameter over that axis


class Layout:
    """A mesh, and how parameters are split over it: by patterns of names, by "fsdp", or not at all.

    What the optimizer keeps for a parameter, and its gradient, lie as the parameter does.
    """

    def __init__(self, mesh: Any, layout: Mapping[str, Any] | str | None) -> None:
        """Raises InputError for a layout that is none of these."""
        if isinstance(layout, str) and layout != FSDP:
            raise InputError(f"layout must be 'fsdp', or a dict from patterns of names to P(...), got {layout!r}")
        # XLA decides about what lies between: axes of make_mesh may be such as every op must name
        self.mesh = mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
        self.fsdp = layout == FSDP
        self.specs: Mapping[str, Any] = {} if layout is None or isinstance(layout, str) else layout
        if self.fsdp and DATA not in mesh.shape:
            raise InputError(f"layout='fsdp' splits over the axis 'data'; the mesh has {_shown(mesh)}")

    def check(self, names: Sequence[str]) -> None:
        """InputError for a pattern that matches no parameter."""
        for pattern in self.specs:
            if not any(map(matcher(pattern, "layout"), names)):
                raise InputError(f"layout: {pattern!r} matches no parameter; they are {', '.join(names)}")

    def of_part(self, part: Part) -> Any:
        """The sharding of a parameter, or of what the optimizer keeps for it."""
        for pattern, spec in self.specs.items():
            if part.name and matcher(pattern, "layout")(part.name):
                self._check_fits(part, spec)
                return jax.sharding.NamedSharding(self.mesh, spec)
        return jax.sharding.NamedSharding(self.mesh, self._split(part) if self.fsdp else jax.sharding.PartitionSpec())

    def of_input(self, field: Field) -> Any:
        """The sharding of an input: its axis 0 over "data". DeviceError if that does not divide."""
        n = self.mesh.shape.get(DATA, 1)
        if not field.shape or n == 1:
            return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        if field.shape[0] % n:
            raise DeviceError(
                f"input {field.name!r} is {field.type}: its axis 0 must be a multiple of {n}, the size of the mesh's "
                "axis 'data', over which batches are split"
            )
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(DATA))

    def whole(self) -> Any:
        """The sharding of what every device has."""
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    def _split(self, part: Part) -> Any:
        """The longest axis that divides over "data"; of what has none, every device has all."""
        n = self.mesh.shape[DATA]
        axes = [(size, -axis) for axis, size in enumerate(part.shape) if part.name and size % n == 0]
        if not axes:
            return jax.sharding.PartitionSpec()
        axis = -max(axes)[1]
        return jax.sharding.PartitionSpec(*[DATA if d == axis else None for d in range(len(part.shape))])

    def _check_fits(self, part: Part, spec: Any) -> None:
        if len(spec) > len(part.shape):
            raise InputError(f"layout: {spec} has more axes than {part.name}, {part.field.type}")
        for size, axes in zip(part.shape, spec):
            names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
            unknown = [a for a in names if a not in self.mesh.shape]
            if unknown:
                raise InputError(f"layout: the mesh has no axis {unknown[0]!r}; it has {_shown(self.mesh)}")
            n = 1
            for a in names:
                n *= self.mesh.shape[a]
            if size % n:
                raise InputError(f"layout: {spec} splits an axis of {part.name}, {part.field.type}, in {n} parts: "
                                 f"{size} is no multiple of that")  # fmt: skip


def _shown(mesh: Any) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
