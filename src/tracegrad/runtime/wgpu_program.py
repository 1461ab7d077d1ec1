"""A Program on a wgpu device: its arrays, pipelines, bind groups and staging, built once when it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tracegrad.arrays import np
from tracegrad.dtypes import DTYPES
from tracegrad.errors import CompileError, DeviceError, InputError
from tracegrad.program import PERSISTENT, Buffer, Field, KernelSource, Program
from tracegrad.runtime.wgpu_calls import Calls, Copy, Launch, device_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracegrad.runtime.wgpu_calls import Bytes

MAP_READ, COPY_SRC, COPY_DST, UNIFORM, STORAGE = 0x1, 0x4, 0x8, 0x40, 0x80  # GPUBufferUsage
COMPUTE = 0x4  # GPUShaderStage
HALF = "shader-f16"  # the feature by which shaders know arrays in half precision
ALIGN = 256  # of offsets into a uniform buffer: what every device accepts
GAP = 64  # outputs this close (elements) are copied together: a copy costs more than these bytes


@dataclass(slots=True, eq=False)
class Array:
    """A flat array on the device. `users` counts the loaded programs that share a persistent one."""

    name: str
    dtype: str
    size: int
    buffer: Any
    users: int = 1


@dataclass(slots=True, eq=False)
class Slot:
    """One mappable area for the outputs of one run in flight."""

    buffer: Any
    copies: Any


@dataclass(slots=True, eq=False)
class HostInput:
    """What the host writes into one input buffer before each run: one array, seen through one view a field."""

    array: Array
    staging: NDArray[Any]
    views: dict[str, NDArray[Any]]


@dataclass(slots=True, eq=False)
class Loaded:
    """A program ready to run."""

    program: Program
    arrays: list[Array] = field(default_factory=list[Array])
    inputs: list[HostInput] = field(default_factory=list[HostInput])
    input_names: set[str] = field(default_factory=set[str])
    launches: Any = None
    dispatched: tuple[Launch, ...] = ()  # what they were made of; dispatches of no workgroups are none
    copies: list[Copy] = field(default_factory=list[Copy])  # the program's, then the outputs' without their target
    places: dict[str, int] = field(default_factory=dict[str, int])  # output name -> first byte in a slot
    slot_bytes: int = 0
    slots: list[Slot] = field(default_factory=list[Slot])  # every slot made
    free: list[Slot] = field(default_factory=list[Slot])
    uniform: Any = None
    alive: bool = True

    def stage(self, inputs: Mapping[str, Any]) -> None:
        """Put `inputs` into the host arrays: booleans as 0 and 1, u32 as the same 32 bits."""
        if set(inputs) != self.input_names:
            missing, extra = sorted(self.input_names - inputs.keys()), sorted(inputs.keys() - self.input_names)
            raise InputError(f"inputs do not fit the program: missing {missing}, unknown {extra}")
        for host in self.inputs:
            for name, view in host.views.items():
                if np.shape(inputs[name]) != view.shape:  # NumPy would broadcast it silently
                    raise InputError(f"input {name!r} has shape {np.shape(inputs[name])}, not {view.shape}")
                view[...] = inputs[name]

    def unpack(self, raw: Bytes) -> dict[str, Any]:
        """The outputs by name, from the bytes of a slot."""
        result: dict[str, Any] = {}
        for f in self.program.outputs:
            at = self.places[f.name]
            flat = raw[at : at + 4 * f.size].view(stored_dtype(f.dtype))
            result[f.name] = (flat != 0 if f.dtype == "bool" else flat).reshape(f.shape)
        return result


class Kernels:
    """Layouts and pipelines of one device, shared by content while a loaded program uses them."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._layouts: dict[tuple[str, ...], Any] = {}
        self._pipelines: WeakValueDictionary[tuple[str, str, tuple[bool, ...], bool], Any] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._pipelines)

    def layout(self, kernel: KernelSource) -> Any:
        """Of bind group 0."""
        return self._layout(tuple("storage" if b.written else "read-only-storage" for b in kernel.bindings))

    def offsets_layout(self) -> Any:
        """Of bind group 1."""
        return self._layout(("uniform",))

    def _layout(self, kinds: tuple[str, ...]) -> Any:
        if kinds not in self._layouts:
            entries = [
                {"binding": i, "visibility": COMPUTE, "buffer": {"type": k, "has_dynamic_offset": k == "uniform"}}
                for i, k in enumerate(kinds)
            ]
            self._layouts[kinds] = self._device.create_bind_group_layout(entries=entries)
        return self._layouts[kinds]

    def pipeline(self, kernel: KernelSource, calls: Calls) -> Any:
        """The kernel, compiled. CompileError names it and carries the driver's message."""
        key = (calls.name, kernel.wgsl, tuple(b.written for b in kernel.bindings), kernel.slots > 0)
        found = self._pipelines.get(key)
        if found is None:
            layouts = [self.layout(kernel), *([self.offsets_layout()] if kernel.slots else [])]
            try:
                layout = self._device.create_pipeline_layout(bind_group_layouts=layouts)
                module = calls.module(kernel.label, kernel.wgsl)
                stage = {"module": module, "entry_point": "main"}
                found = self._device.create_compute_pipeline(label=kernel.label, layout=layout, compute=stage)
            except Exception as e:
                error = device_error(str(e))
                if type(error) is not DeviceError:
                    raise error from e
                raise CompileError(f"kernel {kernel.label!r} was refused by the device: {e}") from e
            self._pipelines[key] = found
        return found

    def group(self, layout: Any, resources: Iterable[Mapping[str, Any]]) -> Any:
        """A bind group with `resources` in binding order."""
        entries = [{"binding": i, "resource": dict(r)} for i, r in enumerate(resources)]
        return self._device.create_bind_group(layout=layout, entries=entries)


def check_limits(program: Program, limits: Mapping[str, int], features: Set[str], device: str) -> None:
    """Refuse a program that `device` is too small for, naming the largest buffer, its largest value, and the limit."""
    if program.needs_f16 and HALF not in features:
        raise DeviceError(f'precision="f16" needs {HALF}, which {device} does not offer; compile with precision="f32"')
    needs = program.needs
    largest = max(program.buffers, key=lambda b: b.bytes, default=Buffer(needs.largest, "f32", 0, "temp"))
    name = needs.largest or largest.name
    values = [f for f in _fields(program) if program.buffers[f.buffer].name == name]
    if values:
        top = max(values, key=lambda f: f.size)
        name = f"{name}, largest value {top.name!r} {top.type}"
    # llvmpipe reports 2^31 - 1 bytes; buffers are whole elements
    rows = (
        ("max-buffer-size", max(needs.buffer_bytes, largest.bytes), f"bytes in one buffer ({name})"),
        ("max-storage-buffer-binding-size", max(needs.binding_bytes, largest.bytes), f"bytes in one binding ({name})"),
        ("max-storage-buffers-per-shader-stage", needs.storage_buffers, "arrays in one kernel"),
        ("max-compute-workgroup-storage-size", needs.workgroup_memory, "bytes of workgroup memory"),
    )
    for limit, need, what in rows:
        if need > limits[limit]:
            raise DeviceError(f"the program needs {need} {what}; {device} allows {limits[limit]} ({limit})")
    most = limits["max-compute-workgroups-per-dimension"]
    for d in program.dispatches:
        if max(d.grid) > most:
            label = program.kernels[d.kernel].label
            raise DeviceError(
                f"kernel {label!r} launches {d.grid} workgroups; {device} allows {most} a dimension "
                "(max-compute-workgroups-per-dimension)"
            )


def build(program: Program, device: Any, calls: Calls, kernels: Kernels, shared: dict[str, Array]) -> Loaded:
    """Load `program`: arrays (persistent ones from `shared`), pipelines, bind groups. Frees its arrays on failure."""
    loaded = Loaded(program)
    try:
        for b in program.buffers:
            loaded.arrays.append(_array(b, device, calls, shared))
        loaded.dispatched = tuple(_launches(loaded, device, calls, kernels))
        loaded.launches = calls.prepare(loaded.dispatched)
        loaded.inputs = _host_inputs(loaded)
        loaded.input_names = {f.name for f in program.inputs}
        _plan_outputs(loaded)
    except BaseException:
        release(loaded, shared)
        raise
    return loaded


def release(loaded: Loaded, shared: dict[str, Array]) -> None:
    """Free what only this program uses; it must not be submitted again."""
    loaded.alive = False
    for b, a in zip(loaded.program.buffers, loaded.arrays, strict=False):  # fewer arrays if building failed
        if b.role in PERSISTENT:
            a.users -= 1
            if a.users:
                continue
            del shared[a.name]
        a.buffer.destroy()
    for s in loaded.slots:
        s.buffer.destroy()
    if loaded.uniform is not None:
        loaded.uniform.destroy()
    loaded.launches, loaded.dispatched, loaded.free, loaded.slots, loaded.arrays = None, (), [], [], []


def take_slot(loaded: Loaded, device: Any, calls: Calls) -> Slot:
    """A slot that no run in flight uses; a new one if all are."""
    if loaded.free:
        return loaded.free.pop()
    buffer = device.create_buffer(label="outputs", size=max(loaded.slot_bytes, 4), usage=MAP_READ | COPY_DST)
    copies = [
        Copy(c.source, c.source_offset, buffer if c.target is None else c.target, c.target_offset, c.size)
        for c in loaded.copies
    ]
    slot = Slot(buffer, calls.prepare_copies(copies))
    loaded.slots.append(slot)
    return slot


def stored_dtype(dtype: str) -> str:
    """NumPy's name for a dtype's 32 bits on the device: booleans are integers there."""
    return "int32" if dtype == "bool" else DTYPES[dtype].numpy


def allocate(device: Any, name: str, size: int, usage: int) -> Any:
    """A buffer of `size` bytes."""
    try:
        return device.create_buffer(label=name, size=max(size, 4), usage=usage)
    except Exception as e:
        raise device_error(str(e), f"allocating {size} bytes for {name!r}") from e


def _fields(program: Program) -> Sequence[Field]:
    return (*program.params, *program.states, *program.inputs, *program.outputs)


def _array(b: Buffer, device: Any, calls: Calls, shared: dict[str, Array]) -> Array:
    """The array of one buffer; a persistent one may exist."""
    found = shared.get(b.name) if b.role in PERSISTENT else None
    if found is not None:
        if (found.dtype, found.size) != (b.dtype, b.size):
            raise DeviceError(
                f"the program has {b.name!r} as {b.dtype}[{b.size}]; this session holds it as "
                f"{found.dtype}[{found.size}]"
            )
        found.users += 1
        return found
    made = Array(b.name, b.dtype, b.size, allocate(device, b.name, b.bytes, STORAGE | COPY_SRC | COPY_DST))
    if b.role in PERSISTENT:
        shared[b.name] = made
    if b.role == "const":
        calls.write(made.buffer, 0, np.frombuffer(b.contents(), np.uint8))
    elif b.role in PERSISTENT and isinstance(b.fill, (int, float)) and b.fill:  # memory starts as zeros
        calls.write(made.buffer, 0, np.full(b.size, b.fill, stored_dtype(b.dtype)))
    return made


def _launches(loaded: Loaded, device: Any, calls: Calls, kernels: Kernels) -> list[Launch]:
    """Every dispatch with its pipeline and bind groups; equal groups are one, equal offsets lie once."""
    program = loaded.program
    dispatches = list(program.unrolled())
    places: dict[tuple[int, ...], int] = {}
    span = 16 * max((-(-k.slots // 4) for k in program.kernels), default=0)
    stride = ALIGN * -(-span // ALIGN)
    for d in dispatches:
        if d.offsets:
            places.setdefault(d.offsets, stride * len(places))
    offsets_group = None
    if places:
        table = np.zeros((len(places), stride // 4), np.int32)
        for offsets, at in places.items():
            table[at // stride, : len(offsets)] = offsets
        loaded.uniform = allocate(device, "offsets", table.nbytes, UNIFORM | COPY_DST)
        calls.write(loaded.uniform, 0, table)
        part = {"buffer": loaded.uniform, "offset": 0, "size": span}
        offsets_group = kernels.group(kernels.offsets_layout(), [part])
    groups: dict[tuple[int, tuple[int, ...]], Any] = {}
    launches: list[Launch] = []
    for d in dispatches:
        if not all(d.grid):
            continue
        kernel = program.kernels[d.kernel]
        layout = kernels.layout(kernel)
        key = (id(layout), d.buffers)
        if key not in groups:
            groups[key] = kernels.group(layout, [{"buffer": loaded.arrays[i].buffer} for i in d.buffers])
        here = offsets_group if kernel.slots else None
        launches.append(Launch(kernels.pipeline(kernel, calls), groups[key], here, places.get(d.offsets, 0), d.grid))
    return launches


def _host_inputs(loaded: Loaded) -> list[HostInput]:
    """A host array for each input buffer, with a view for each of its fields."""
    made: dict[int, HostInput] = {}
    for f in loaded.program.inputs:
        array = loaded.arrays[f.buffer]
        if f.buffer not in made:
            made[f.buffer] = HostInput(array, np.zeros(array.size, stored_dtype(array.dtype)), {})
        host = made[f.buffer]
        part = host.staging[f.offset : f.offset + f.size]
        host.views[f.name] = part.view(stored_dtype(f.dtype)).reshape(f.shape)
    return list(made.values())


def _plan_outputs(loaded: Loaded) -> None:
    """Where each output lies in a slot, and the copies that bring it there: neighbours in one copy."""
    source: Callable[[int], Any] = lambda i: loaded.arrays[i].buffer
    for a, b in loaded.program.copies:
        loaded.copies.append(Copy(source(a), 0, source(b), 0, 4 * loaded.arrays[a].size))
    runs: list[list[int]] = []  # buffer, start, stop (elements)
    at = 0
    for f in sorted(loaded.program.outputs, key=lambda f: (f.buffer, f.offset)):
        stop = f.offset + f.size
        if runs and runs[-1][0] == f.buffer and f.offset - runs[-1][2] <= GAP:
            runs[-1][2] = max(runs[-1][2], stop)
        else:
            at += sum(4 * (r[2] - r[1]) for r in runs[-1:])
            runs.append([f.buffer, f.offset, stop])
        loaded.places[f.name] = at + 4 * (f.offset - runs[-1][1])
    target = 0
    for buffer, start, stop in runs:
        size = 4 * (stop - start)
        if size:
            loaded.copies.append(Copy(source(buffer), 4 * start, None, target, size))
        target += size
    loaded.slot_bytes = target
