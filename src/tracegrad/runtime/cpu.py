"""The CPU runtime: runs a program's kernels one after the other over preallocated arrays.

Kernels are C if a compiler was given and its results are right (`verify`), else NumPy. A program is entirely in C or
entirely in NumPy: the two round differently, and a run must not depend on how fast a compiler is.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from tracegrad.arrays import HAVE_NUMPY, Array, need_numpy, np
from tracegrad.dtypes import STORED
from tracegrad.errors import DeviceError
from tracegrad.files.jsontext import shown
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernel_source import KernelSource
from tracegrad.kernels.form import SIZE
from tracegrad.program import PERSISTENT, Buffer, Dispatch, Program
from tracegrad.render.c_engine import ENGINE
from tracegrad.render.c_gathered import GATHERED
from tracegrad.render.c_steps import CSource, FunctionStep, GatheredStep, Place, RunSize, Scratch, Step, View
from tracegrad.render.c_text import library_source
from tracegrad.runtime.base import DeviceInfo, Done, Timings, check_open, check_within, persistent
from tracegrad.runtime.c_calls import BoundCalls, Call, CallList, SizedParts, left_out, lent_fields
from tracegrad.runtime.c_compiler import Compiler, compiler
from tracegrad.runtime.children import Children
from tracegrad.runtime.copy_pool import CopyPool
from tracegrad.runtime.cpu_verify import computes_wrongly
from tracegrad.runtime.doors import CpuProgram, Door, InTurn
from tracegrad.runtime.memory import address, check_memory, lying, readable_around, taken, view, with_margins
from tracegrad.runtime.process import processors
from tracegrad.tuning import C_SOURCE, C_SOURCES


def cpu_info(compiler: Compiler | None, failed: bool = False) -> DeviceInfo:
    """Return the device, described by its compiler. failed: the compiler did not work."""
    without = "without a C compiler" if os.name == "posix" else "because kernels in C need Linux or macOS"
    how = f"C, compiled by {compiler.version}," if compiler else f"NumPy, {without},"
    if compiler and failed:
        how = f"NumPy, because {compiler.path} failed,"
    return DeviceInfo("cpu", f"{how} on this machine's CPU", gpu=False, sizes="exact")


def devices() -> list[DeviceInfo]:
    """Return this machine's CPU, which computes on NumPy's arrays."""
    return [cpu_info(compiler())] if HAVE_NUMPY else []


def begin(device: str) -> Callable[[], CpuSession]:
    """Return a function that makes a session. The compiler is found here, where an interrupt can end the wait."""
    need_numpy(device)
    return partial(CpuSession, compiler())


class CpuSession:
    """Named arrays, and programs that compute on them. All work happens inside `run`."""

    ahead, batch_seconds = 1, 0.0

    def __init__(self, compiler: Compiler | None = None) -> None:
        self._compiler, self._children = compiler, Children()
        # all programs share the engine, so it is compiled at once. It stays loaded, because it has threads of its own
        self.door: Door | None = None
        self._engine = compiler.begin(ENGINE, self._children, keep=True) if compiler else None
        self._persistent: dict[str, Array] = {}
        self._loaded: dict[int, CpuProgram] = {}
        self._sources: dict[str, Callable[..., Any]] = {}
        self._scratch: dict[int, Array] = {}
        self._results = CopyPool()
        self._next = 0
        self._closed = self._interrupted = self._failed = False

    @property
    def info(self) -> DeviceInfo:
        """The CPU, and whether its kernels are in C or, if the compiler has failed, in NumPy."""
        return cpu_info(self._compiler, self._failed)

    def load(self, program: Program, like: int | None = None) -> int:
        """Allocate new memory and begin to compile; the first run waits for the kernels.

        Raises DeviceError for kernels of another process, or too little memory.
        """
        check_open(self._closed)
        self._next += 1
        if like is not None:
            same = self._ready(like)
            self._loaded[self._next] = replace(same, program=program, calls=None, like=same)
            return self._next
        foreign = [k.label for k in program.kernels if not k.own]
        if foreign:
            raise DeviceError(
                f"kernel {shown(foreign[0])} was not compiled by this process, and the CPU runs only code that was. "
                "Compile the model here, or run the program on a GPU, which checks its indices"
            )
        check_memory({b.name: b.bytes for b in program.buffers}, "the program")
        before = set(self._persistent)
        try:
            memory = {b.name: self._array(b) for b in program.buffers}
        except MemoryError as e:
            self._persistent = {name: x for name, x in self._persistent.items() if name in before}
            size = sum(b.bytes for b in program.buffers)
            raise DeviceError(f"not enough memory for the {size} bytes of the program: {e}") from e
        self._loaded[self._next] = CpuProgram(program, memory, self._begun(program))
        return self._next

    def _begun(self, program: Program) -> list[Future[ctypes.CDLL | None]]:
        """Begin to compile the program's libraries in parallel; return them, or an empty list without a compiler."""
        if self._compiler is None or self._engine is None:
            return []
        # sorted, so that a model of another depth, with the same functions, finds its libraries in the cache
        texts = sorted({f for k in program.kernels for f in k.texts["c"].functions})
        count = min(C_SOURCES, processors(), 1 + sum(map(len, texts)) // C_SOURCE)
        sources = [library_source(texts[k::count]) for k in range(count)]
        gathers = any(isinstance(s, GatheredStep) for k in program.kernels for s in k.texts["c"].steps)
        also = [self._compiler.begin(GATHERED, self._children)] if gathers else []
        return [self._engine, *also, *(self._compiler.begin(text, self._children) for text in sources)]

    def _ready(self, handle: int) -> CpuProgram:
        """Return the program with every kernel bound to its arrays."""
        loaded = self._loaded[handle]
        if loaded.calls is not None:
            return loaded
        program, arrays = loaded.program, [loaded.memory[b.name] for b in loaded.program.buffers]
        whole = loaded.like and loaded.like.calls
        calls = whole if isinstance(whole, BoundCalls) else self._bound_calls(loaded, arrays)
        if isinstance(calls, BoundCalls) and program.capacity:
            kept = program.kept() if any(x.per for x in program.loops) else None
            calls = calls.at(program.size, loaded.size, kept)
        loaded.calls = calls
        loaded.inputs = [(f, lying(arrays[f.buffer], f)) for f in program.inputs]
        loaded.outputs = [(f, lying(arrays[f.buffer], f)) for f in program.outputs]
        return loaded

    def _bound_calls(self, loaded: CpuProgram, arrays: Sequence[Array]) -> BoundCalls | InTurn:
        """Bind every kernel to its arrays, in C or in NumPy."""
        program = loaded.program
        if loaded.wrong is None:
            loaded.wrong = bool(loaded.libraries) and self._is_wrong(program, loaded.libraries)
        compiled = _calls_into(loaded.libraries, loaded.size)
        self._failed = self._failed or (bool(loaded.libraries) and compiled is None)
        if self._interrupted:
            raise DeviceError("this session was closed while its kernels were compiled")
        # all kernels in C, or none: a value computed twice must have the same bits, and NumPy rounds differently
        if loaded.wrong or compiled is None:
            return InTurn([self._in_numpy(loaded, arrays, d) for d in program.unrolled()])
        loaded.lent, loaded.handed = [lent_fields(program, loaded.memory, x) for x in ("input", "output")]
        compiled.lent = [*loaded.lent.values(), *loaded.handed.values()]
        for d in program.unrolled():
            self._add(compiled, program.kernels[d.kernel], tuple([arrays[k] for k in d.buffers]), d)
        self.door = self.door or Door(compiled.engine, self._ready, self._results.empty)
        return compiled.bound(left_out(program, loaded.memory))

    def _in_numpy(self, loaded: CpuProgram, arrays: Sequence[Array], d: Dispatch) -> Callable[[], None]:
        text: str = loaded.program.kernels[d.kernel].texts["numpy"]
        size = (loaded.program.size,) if SIZE in text else ()
        key = d.kernel, d.buffers, d.offsets
        made = loaded.made.get(key) if not size else None
        if made is None:
            memory = tuple([arrays[k] for k in d.buffers])
            made = self._bound(text)(np, view, self._scratch_view, memory, d.offsets, *size)
            loaded.made[key] = made
        return made

    def _add(self, calls: CallList, kernel: KernelSource, memory: Sequence[Array], d: Dispatch) -> None:
        """Add the calls of one dispatch, the functions of its kernel in C, to `calls`."""
        capacity, offsets = int(calls.size[0]), d.offsets

        def at(place: Place, first: int = 0) -> tuple[Array, int]:
            if isinstance(place, RunSize):
                return calls.size, 0
            if isinstance(place, Scratch):
                return self._scratch_view(place.number, (place.size,), place.dtype), first
            return memory[kernel.binding_of[place]], offsets[place] + first

        def matrix(v: View) -> Array:
            return view(*at(v.place, v.first), tuple([int(x) for x in v.sizes]), v.steps)

        def made(s: Step) -> Call:
            if isinstance(s, FunctionStep):
                follows = SizedParts(s.parts, capacity) if s.sized and s.parts > 1 else None
                return calls.call(s.name, s.parts, list(map(at, s.places)), follows)
            if isinstance(s, GatheredStep):
                a, b = ((at(x.place, x.first), x) for x in (s.a, s.b))
                terms = s.terms and (matrix(s.terms.size), *s.terms[1:])
                sizes = (*s.out.sizes, s.k)
                return calls.gathered(a, b, matrix(s.out), sizes, s.stacked, s.end and matrix(s.end), terms)
            sizes = (*s.out.sizes, s.a.sizes[-1])
            ends = [x and (matrix(x.size), *x[1:]) for x in s.ends]
            return calls.product(matrix(s.a), matrix(s.b), matrix(s.out), s.limits, sizes, ends)

        source: CSource = kernel.texts["c"]
        steps = [(s, made(s)) for s in source.steps]
        for x in calls.lent:
            for s, call in steps:
                x.note(call, kernel, memory, offsets, s)
        for slot, move in d.moves:
            for s, call in steps:
                calls.follow(call, s, slot, memory[kernel.binding_of[slot]].itemsize, move, capacity)
        calls.add([call for _, call in steps])

    def _is_wrong(self, program: Program, libraries: Sequence[Future[ctypes.CDLL | None]]) -> bool:
        """Return whether C computes a kernel wrongly; False if it does not compile."""
        assert self._compiler is not None

        def prepared(kernel: KernelSource, memory: Sequence[Array], offsets: Sequence[int]) -> Callable[[], object]:
            calls = _calls_into(libraries, np.array([program.capacity], np.int64))
            if calls is None:
                raise DeviceError("the compiler failed")
            self._add(calls, kernel, memory, Dispatch(0, (), tuple(offsets), (1, 1)))
            whole = calls.bound().whole
            # Kernels share scratch arrays, so an element that a kernel does not write can hold anything: here NaN
            return lambda: ([x.fill(0xFF) for x in self._scratch.values()], whole())

        try:
            begin = partial(self._compiler.begin, children=self._children)
            return computes_wrongly(program.kernels, self._compiler, begin, prepared)
        except DeviceError:
            return False  # nothing to check

    def _array(self, b: Buffer) -> Array:
        """Return a flat array of the buffer's elements, a zero for NumPy's padding, and margins that C can read."""
        if b.role in PERSISTENT and b.name in self._persistent:
            found = self._persistent[b.name]
            if found.size != b.size + 1:
                raise DeviceError(f"{b.name} has {found.size - 1} elements here; the program wants {b.size}")
            return found
        made = with_margins(b.size, STORED[b.dtype].numpy)
        if b.data:
            made[:-1] = np.frombuffer(b.contents(), made.dtype)
        elif isinstance(b.fill, float | int) and b.fill:
            made[:-1] = b.fill
        if b.role in PERSISTENT:
            self._persistent[b.name] = made
        return made

    def _bound(self, text: str) -> Callable[..., Any]:
        """Return a kernel's `bind`, compiled once per text."""
        if text not in self._sources:
            scope: dict[str, Any] = {"primitives": PRIMITIVES}  # ops of users whose array rule is a function
            exec(compile(text, "<kernel>", "exec"), scope)
            self._sources[text] = scope["bind"]
        return self._sources[text]

    def _scratch_view(self, number: int, shape: tuple[int, ...], dtype: str) -> Array:
        """Return scratch array `number` of the running kernel. Kernels run one at a time, so they share memory."""
        wanted = np.dtype(dtype)
        size = math.prod(shape) * wanted.itemsize
        have = self._scratch.get(number)
        if have is None or have.nbytes < size:
            have = self._scratch[number] = with_margins(size, np.uint8)
        return have[:size].view(wanted).reshape(shape)

    def unload(self, handle: int) -> None:
        """Free what only this program uses."""
        gone = self._loaded.pop(handle, None)
        if gone is not None:
            kept = {name for one in self._loaded.values() for name in one.memory}
            for name in gone.memory.keys() - kept:
                self._persistent.pop(name, None)

    def capacity(self, handle: int) -> int:
        """Return 1, because runs gain nothing from a shared batch."""
        return 1

    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> Done:
        """Compute the runs now."""
        return Done([self._run(handle, given) for given in inputs])

    def _run(self, handle: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        check_open(self._closed)
        loaded = self._ready(handle)
        given = loaded.given
        for f, target in loaded.inputs:
            x = inputs[f.name]
            lent = loaded.lent.get(f.name)
            if lent is not None:
                lies = readable_around(x, f.dtype)
                lent.point(address(x) if lies else None)
                if lies:
                    continue
            if given.get(f.name) is not x:  # most hyperparameters are unchanged since the last step
                target[...] = given[f.name] = x
        made = {f.name: self._results.empty(f.shape, x.dtype) for f, x in loaded.outputs if f.name in loaded.handed}
        for name, x in made.items():
            loaded.handed[name].point(address(x))
        assert loaded.calls is not None
        loaded.calls.whole()
        return {f.name: made[f.name] if f.name in made else taken(part, f) for f, part in loaded.outputs}

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """Time each kernel by the process's clock."""
        # touches all memory once, and keeps the results, because the timed calls write into them again
        _, loaded = self._run(handle, inputs), self._loaded[handle]
        assert loaded.calls is not None
        return Timings("the host's clock, around each kernel", tuple([loaded.calls.timed() for _ in range(runs)]))

    def read(self, name: str) -> Array:
        """Return a copy of a persistent array."""
        check_open(self._closed)
        return persistent(self._persistent, name)[:-1].copy()

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite part of a persistent array."""
        check_open(self._closed)
        flat = np.asarray(values).reshape(-1)
        target = persistent(self._persistent, name)[:-1]
        check_within(name, offset, flat.size, target.size)
        target[offset : offset + flat.size] = flat

    def interrupt(self) -> None:
        """End compilers that are running for this session."""
        self._interrupted = True
        self._children.stop()

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        self._closed, self.door = True, None
        self.interrupt()
        for kept in (self._loaded, self._sources, self._persistent, self._scratch, self._results):
            kept.clear()


def _calls_into(libraries: Sequence[Future[ctypes.CDLL | None]], size: Array) -> CallList | None:
    """Wait for libraries; return calls into them. Return None without libraries, or if one could not be compiled.

    size: the memory from which functions read the size of a run; here it holds the capacity.
    """
    found = [x.result() for x in libraries]
    made = [x for x in found if x is not None]
    return CallList(made[0], made[1:], size) if made and len(made) == len(found) else None
