"""Place arrays on a mesh of devices. XLA derives from this what each device computes, and what they exchange."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracegrad.arrays import np
from tracegrad.errors import DeviceError, InputError
from tracegrad.patterns import matcher
from tracegrad.program import Field
from tracegrad.runtime.jax_memory import Part, jax, multihost

DATA = "data"  # the mesh axis that batches are split over
FSDP = "fsdp"  # the layout that splits every parameter over that axis


class Layout:
    """A mesh, and how parameters are split over it: by patterns of names, by "fsdp", or not at all.

    Gradients and optimizer state are placed like their parameter.
    """

    def __init__(self, mesh: Any, layout: Mapping[str, Any] | str | None) -> None:
        """Raise InputError for any other layout, and if `mesh` is not a mesh of JAX."""
        if not isinstance(mesh, jax.sharding.Mesh):
            raise InputError(f"mesh must be a mesh of JAX, as from jax.make_mesh((8,), ('data',)), got {mesh!r}")
        if layout not in (None, FSDP) and not isinstance(layout, Mapping):
            raise InputError(f"layout must be 'fsdp', or a dict from patterns of names to P(...), got {layout!r}")
        # XLA chooses the placement of values in between: some axes of make_mesh would require naming them in every op
        self.mesh = mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
        self.fsdp = layout == FSDP
        self.specs: Mapping[str, Any] = {} if layout is None or isinstance(layout, str) else layout
        for pattern, spec in self.specs.items():
            if not isinstance(spec, jax.sharding.PartitionSpec):
                raise InputError(
                    f"layout: {pattern!r} needs a jax.sharding.PartitionSpec, as P(None, 'model'), got {spec!r}"
                )
        if DATA not in mesh.shape and not self.specs and not self.fsdp:
            raise InputError(
                f"the mesh has {_shown(mesh)}, and no layout= uses it: name the axis that batches are split over 'data'"
            )
        if self.fsdp and DATA not in mesh.shape:
            raise InputError(f"layout='fsdp' splits over the axis 'data'; the mesh has {_shown(mesh)}")
        self.processes = len({d.process_index for d in mesh.devices.flat})
        self.share = self._share() if self.processes > 1 else (0, 1)

    def _share(self) -> tuple[int, int]:
        """Return (k, n): this process's devices hold part k of n equal parts of a batch."""
        mesh = self.mesh
        if DATA not in mesh.shape:
            return 0, 1
        axis = mesh.axis_names.index(DATA)
        here = jax.process_index()
        own = sorted({at[axis] for at, d in np.ndenumerate(mesh.devices) if d.process_index == here})
        n = mesh.shape[DATA]
        first, count = (own[0], len(own)) if own else (0, 0)
        if not count or own != list(range(first, first + count)) or first % count or n % count:
            raise InputError(
                f"mesh: process {here} has the parts {own} of the {n} along the axis 'data'; each process must have as "
                "many neighbours: build the mesh of jax.devices() in their order, with 'data' first"
            )
        return first // count, n // count

    def agree(self, what: str, value: bytes, remedy: str) -> None:
        """Raise DeviceError, in all processes of the mesh, unless they have the same value."""
        if self.processes == 1:
            return
        own = np.frombuffer(hashlib.sha256(value).digest(), np.uint32)
        every = multihost.process_allgather(own)
        if odd := [k for k, digest in enumerate(every) if not np.array_equal(digest, every[0])]:
            raise DeviceError(
                f"the processes disagree about {what}: {_named(odd)} {'differs' if len(odd) == 1 else 'differ'} from "
                f"process 0, and this is process {jax.process_index()}; {remedy}"
            )

    def put(self, x: Any, where: Any) -> Any:
        """Move an array that every process holds whole to the devices."""
        if self.processes == 1:
            return jax.device_put(x, where)
        return jax.make_array_from_callback(x.shape, where, lambda at: x[at])

    def put_batch(self, x: Any, shape: tuple[int, ...], where: Any) -> Any:
        """Move an input of this shape to the devices: the whole array, or this process's rows of it."""
        if x.shape == shape:
            return self.put(x, where)
        return jax.make_array_from_process_local_data(where, x, shape)

    def fetch(self, x: Any) -> Any:
        """Return the whole array, on the host. Every process must call this."""
        if not x.is_fully_addressable and not x.is_fully_replicated:
            x = jax.jit(lambda x: x, out_shardings=self.whole())(x)
        return np.asarray(x)

    def check(self, names: Sequence[str]) -> None:
        """Raise InputError for a pattern that matches no parameter."""
        for pattern in self.specs:
            if not any(map(matcher(pattern, "layout"), names)):
                raise InputError(f"layout: {pattern!r} matches no parameter; they are {', '.join(names)}")

    def of_part(self, part: Part) -> Any:
        """Return the sharding of a parameter, or of the optimizer's state for it."""
        for pattern, spec in self.specs.items():
            if part.name and matcher(pattern, "layout")(part.name):
                self._check_fits(part, spec)
                return jax.sharding.NamedSharding(self.mesh, spec)
        return self.of_shape(part.shape) if self.fsdp and part.name else self.whole()

    def of_shape(self, shape: Sequence[int]) -> Any:
        """Return the sharding of FSDP: over "data", along the longest axis that its size divides; else whole."""
        n = self.mesh.shape[DATA]
        axes = [(size, -axis) for axis, size in enumerate(shape) if size % n == 0]
        if not axes:
            return self.whole()
        axis = -max(axes)[1]
        spec = jax.sharding.PartitionSpec(*[DATA if d == axis else None for d in range(len(shape))])
        return jax.sharding.NamedSharding(self.mesh, spec)

    def of_input(self, field: Field) -> Any:
        """Return the sharding of an input: axis 0 over "data". Raise DeviceError if it cannot be split equally."""
        n = self.mesh.shape.get(DATA, 1)
        if not field.shape or n == 1:
            return self.whole()
        if field.shape[0] % n:
            raise DeviceError(
                f"input {field.name!r} is {field.type}: its axis 0 must be a multiple of {n}, the size of the mesh's "
                "axis 'data', over which batches are split"
            )
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(DATA))

    def by_rows(self, f: Callable[..., Any], rows: Sequence[Any], whole: Sequence[Any], summed: bool) -> Any:
        """Return f(*rows, *whole), for ops that XLA splits wrongly over devices.

        Each device computes `f` on its part of axis 0 of `rows`. The results are parts of axis 0 of the whole result.
        summed: the whole result is the sum of these results instead.

        With JAX 0.10.2, gradients of depthwise filters were three times too large when images were split over two of
        eight devices, and XLA ended the process when such filters were split.
        """
        n = self.mesh.shape.get(DATA, 1)
        split = n > 1 and all(x.shape[0] % n == 0 for x in rows)
        everywhere = jax.sharding.PartitionSpec()
        own = jax.sharding.PartitionSpec(DATA) if split else everywhere

        def part(*operands: Any) -> Any:
            y = f(*operands)
            return jax.lax.psum(y, DATA) if summed and split else y

        given = (*[own] * len(rows), *[everywhere] * len(whole))
        run = jax.shard_map(  # unchecked, because a checked transpose adds a sum of its own
            part, mesh=self.mesh, in_specs=given, out_specs=everywhere if summed else own, check_vma=False
        )
        return run(*rows, *whole)

    def whole(self) -> Any:
        """Return the sharding of arrays that every device holds."""
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    def _check_fits(self, part: Part, spec: Any) -> None:
        if len(spec) > len(part.shape):
            raise InputError(f"layout: {spec} has more axes than {part.name}, {part.field.type}")
        used: list[str] = []
        for size, axes in zip(part.shape, spec):
            names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
            used += names
            if len(set(used)) < len(used):
                raise InputError(
                    f"layout: {spec} splits {part.name}, {part.field.type}, twice over one axis of the mesh"
                )
            unknown = [a for a in names if a not in self.mesh.shape]
            if unknown:
                raise InputError(f"layout: the mesh has no axis {unknown[0]!r}; it has {_shown(self.mesh)}")
            if size % (n := math.prod(self.mesh.shape[a] for a in names)):
                raise InputError(f"layout: {spec} splits an axis of {part.name}, {part.field.type}, into {n} parts: "
                                 f"{size} is not a multiple of {n}")  # fmt: skip


def _named(processes: Sequence[int]) -> str:
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes[:8]))}"


def _shown(mesh: Any) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
