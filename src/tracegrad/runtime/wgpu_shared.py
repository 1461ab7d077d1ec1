"""What programs of a session on a wgpu device share: layouts, pipelines, persistent arrays, the device's limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any
from weakref import WeakValueDictionary

from tracegrad.arrays import np
from tracegrad.errors import CompileError, DeviceError
from tracegrad.kernel_source import KernelSource
from tracegrad.program import PERSISTENT, Buffer, Program
from tracegrad.runtime.wgpu_calls import SMALLER, Calls, device_error
from tracegrad.runtime.wgpu_rings import VECTOR, Array, stored_dtype, stride_of, whole
from tracegrad.tuning import LOOP_THREADS

MAP_READ, COPY_SRC, COPY_DST, UNIFORM, STORAGE = 0x1, 0x4, 0x8, 0x40, 0x80  # GPUBufferUsage
COMPUTE = 0x4  # GPUShaderStage
HALF = "shader-f16"  # the feature that lets shaders use arrays in half precision


class Shared:
    """Objects that all programs of a session share: the device, the way to call it, and persistent arrays.

    Also layouts and pipelines, by content, while a loaded program uses them.
    """

    def __init__(self, device: Any, calls: Calls) -> None:
        self.device, self.calls = device, calls
        self.arrays: dict[str, Array] = {}  # by name
        self._layouts: dict[tuple[str, ...], Any] = {}
        self._pipelines: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()

    def layout(self, kernel: KernelSource) -> Any:
        """Return the layout of bind group 0."""
        return self._layout(tuple("storage" if b.written else "read-only-storage" for b in kernel.bindings))

    def offsets_layout(self) -> Any:
        """Return the layout of bind group 1."""
        return self._layout(("uniform",))

    def _layout(self, kinds: tuple[str, ...]) -> Any:
        if kinds not in self._layouts:
            entries = [
                {"binding": i, "visibility": COMPUTE, "buffer": {"type": k, "has_dynamic_offset": k == "uniform"}}
                for i, k in enumerate(kinds)
            ]
            self._layouts[kinds] = self.device.create_bind_group_layout(entries=entries)
        return self._layouts[kinds]

    def pipeline(self, kernel: KernelSource) -> Any:
        """Return the compiled kernel. CompileError names the kernel and carries the driver's message."""
        key = (kernel.wgsl, tuple(b.written for b in kernel.bindings), kernel.slots > 0, kernel.own)
        found = self._pipelines.get(key)
        if found is None:
            layouts = [self.layout(kernel), *([self.offsets_layout()] if kernel.slots else [])]
            try:
                layout = self.device.create_pipeline_layout(bind_group_layouts=layouts)
                module = self.calls.module(kernel.label, kernel.wgsl, trusted=kernel.own)
                stage = {"module": module, "entry_point": "main"}
                found = self.device.create_compute_pipeline(label=kernel.label, layout=layout, compute=stage)
            except Exception as e:
                error = device_error(str(e))
                if type(error) is not DeviceError:
                    raise error from e
                raise CompileError(f"kernel {kernel.label!r} was refused by the device: {e}") from e
            self._pipelines[key] = found
        return found

    def group(self, layout: Any, resources: Iterable[Mapping[str, Any]]) -> Any:
        """Return a bind group with `resources` in binding order."""
        entries = [{"binding": i, "resource": dict(r)} for i, r in enumerate(resources)]
        return self.device.create_bind_group(layout=layout, entries=entries)

    def allocate(self, name: str, size: int, usage: int) -> Any:
        """Return a buffer of `size` bytes, rounded up to whole vectors. Raises DeviceError if there is no memory."""
        try:
            return self.device.create_buffer(label=name, size=whole(size) or VECTOR, usage=usage)
        except Exception as e:
            raise device_error(str(e), f"allocating {size} bytes for {name!r}") from e

    def array(self, b: Buffer, depth: int) -> Array:
        """Return the array of a buffer: a new one, or the session's if it is persistent and exists.

        Arrays of inputs and outputs have parts for `depth` runs.
        """
        found = self.arrays.get(b.name) if b.role in PERSISTENT else None
        if found is not None:
            if (found.dtype, found.size) != (b.dtype, b.size):
                raise DeviceError(
                    f"the program has {b.name!r} as {b.dtype}[{b.size}]; this session holds it as "
                    f"{found.dtype}[{found.size}]"
                )
            found.users += 1
            return found
        stride = stride_of(b.size) if depth > 1 and b.role in ("input", "output") else 0
        buffer = self.allocate(b.name, depth * stride or b.bytes, STORAGE | COPY_SRC | COPY_DST)
        made = Array(b.name, b.dtype, b.size, buffer, stride=stride)
        if b.role in PERSISTENT:
            self.arrays[b.name] = made
        if b.role == "const":
            self.calls.write(made.buffer, 0, np.frombuffer(b.contents(), np.uint8))
        elif b.role in PERSISTENT and isinstance(b.fill, (int, float)) and b.fill:  # other memory starts as zeros
            self.calls.write(made.buffer, 0, np.full(b.size, b.fill, stored_dtype(b.dtype)))
        return made


def check_limits(program: Program, limits: Mapping[str, int], features: Set[str], device: str) -> None:
    """Raise DeviceError if a program exceeds a limit of `device`, or needs a feature that `device` lacks.

    The error names the limit, and for a buffer that is too large also its largest value.
    """
    if program.needs_f16 and HALF not in features:
        raise DeviceError(f'precision="f16" needs {HALF}, which {device} does not offer; compile with precision="f32"')
    largest = max(program.buffers, key=lambda b: b.bytes, default=Buffer("none", "f32", 0, "temp"))
    fields = (*program.params, *program.states, *program.inputs, *program.outputs)
    values = [f for f in fields if program.buffers[f.buffer] is largest]
    value = program.largest if largest.role == "temp" else ""
    if values:
        top = max(values, key=lambda f: f.size)
        value = f"{top.name!r} {top.type}"
    name = f"{largest.name}, largest value {value}" if value else largest.name
    arrays = max([len(k.bindings) for k in program.kernels], default=0)
    memory = max([k.workgroup_memory for k in program.kernels], default=0)
    # llvmpipe reports 2^31 - 1 bytes, but buffers are whole elements
    rows = (
        ("max-buffer-size", largest.bytes, f"bytes in one buffer ({name})"),
        ("max-storage-buffer-binding-size", largest.bytes, f"bytes in one binding ({name})"),
        ("max-storage-buffers-per-shader-stage", arrays, "arrays in one kernel"),
        ("max-bindings-per-bind-group", arrays, "arrays in one kernel"),
        ("max-compute-workgroup-storage-size", memory, "bytes of workgroup memory"),
        ("max-compute-invocations-per-workgroup", LOOP_THREADS, "threads in one workgroup"),
    )
    for limit, need, what in rows:
        if need > limits[limit]:
            raise DeviceError(f"the program needs {need} {what}; {device} allows {limits[limit]} ({limit}); {SMALLER}")
    most = limits["max-compute-workgroups-per-dimension"]
    for d in program.dispatches:
        if max(d.grid) > most:
            label = program.kernels[d.kernel].label
            raise DeviceError(
                f"kernel {label!r} launches {d.grid} workgroups; {device} allows {most} a dimension "
                f"(max-compute-workgroups-per-dimension); {SMALLER}"
            )
