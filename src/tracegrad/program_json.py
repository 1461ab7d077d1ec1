"""A Program as plain data and back. What comes from outside is checked whole, and no host code is read or written.

Every fault is one sentence that says where it is: `program: dispatches[3].kernel is 7; there are 2 kernels`.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin, get_type_hints

from tracegrad.dtypes import DTYPES, STORED
from tracegrad.errors import InputError
from tracegrad.jsontext import shown

if TYPE_CHECKING:
    from tracegrad.program import Binding, Buffer, Dispatch, Field, KernelSource, Loop, Program

LOCAL = {"local": True}  # metadata of fields that only the process that compiled a program has
ROLES = ("param", "grad", "state", "data", "input", "fed", "output", "temp", "const")
LARGEST = 2**53  # integers up to which JavaScript counts exactly
INDEX = 2**31  # offsets are i32
MAX_RANK = 64
DEEPEST_LOOPS = 32
MOST_LAUNCHES = 2**22  # of one run, loops unrolled


def plain(value: Any) -> Any:
    """`value` as dicts and lists, without the local fields of its dataclasses."""
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _shared(type(value))}
    if isinstance(value, Mapping):
        return {name: plain(x) for name, x in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in cast("Sequence[Any]", value)]
    return value


def built(kind: Any, value: Any, where: str) -> Any:
    """What a field of type `kind` holds, from what JSON has of it. InputError for a value of another type."""
    if is_dataclass(kind):
        return _built_row(cast("Any", kind), value, where)
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list):
            raise InputError(f"{where} is {shown(value)}; expected a list")
        items = cast("list[Any]", value)
        if ... in kinds:
            return tuple([built(kinds[0], x, f"{where}[{k}]") for k, x in enumerate(items)])
        if len(items) != len(kinds):
            raise InputError(f"{where} has {len(items)} values; expected {len(kinds)}")
        return tuple([built(t, x, f"{where}[{k}]") for k, (t, x) in enumerate(zip(kinds, items))])
    if get_origin(kind) is not None and issubclass(get_origin(kind), Mapping):
        _demand(isinstance(value, dict), where, value, "an object")
        return value
    options = get_args(kind) or (kind,)
    if float in options and type(value) is int and abs(value) <= LARGEST:
        return value
    _demand(type(value) in options, where, value, " or ".join(t.__name__ for t in options))
    return value


def _built_row(kind: type[Any], value: Any, where: str) -> Any:
    _demand(isinstance(value, dict), where, value, "an object")
    shared = _shared(kind)
    unknown = [name for name in value if name not in shared]
    if unknown:
        raise InputError(f"{where} has a field {shown(unknown[0])}; it has {', '.join(shared)}")
    missing = [name for name in shared if name not in value]
    if missing:
        raise InputError(f"{where} has no field {missing[0]!r}")
    row = {name: built(shared[name], x, f"{where}.{name}") for name, x in value.items()}
    for f in fields(kind):
        if "filed" in f.metadata:
            row[f.name] = f.metadata["read"](**{name: row.pop(name) for name in f.metadata["filed"]})
    return kind(**row)


@functools.cache
def _shared(kind: type[Any]) -> dict[str, Any]:
    """The types of what files hold of a dataclass: its fields that are not local, or texts in place of one."""
    kinds = get_type_hints(kind)
    rows = [f for f in fields(kind) if not f.metadata.get("local")]
    return {name: kinds.get(name, str) for f in rows for name in f.metadata.get("filed", (f.name,))}


def _demand(holds: bool, where: str, value: Any, expected: str) -> None:
    if not holds:
        raise InputError(f"{where} is {shown(value)}; expected {expected}")


def check(p: Program, where: str) -> None:
    """InputError for the first index, size, offset, type or loop that does not fit the rest of the program.

    What the kernels do is not checked: their device must keep them inside their buffers.
    """
    _distinct([b.name for b in p.buffers], f"{where}.buffers")
    for k, b in enumerate(p.buffers):
        _check_buffer(b, f"{where}.buffers[{k}]")
    for k, kernel in enumerate(p.kernels):
        _check_kernel(kernel, f"{where}.kernels[{k}]")
    for name in ("inputs", "outputs", "params", "states"):
        rows: Sequence[Field] = getattr(p, name)
        _distinct([f.name for f in rows], f"{where}.{name}")
        for k, f in enumerate(rows):
            _check_field(f, p.buffers, f"{where}.{name}[{k}]")
    depths = _check_loops(p.loops, len(p.dispatches), where)
    for k, d in enumerate(p.dispatches):
        _check_dispatch(d, p, depths[k], f"{where}.dispatches[{k}]")
    for k, pair in enumerate(p.copies):
        at = f"{where}.copies[{k}]"
        source, target = (p.buffers[_index(n, len(p.buffers), at, "buffers")] for n in pair)
        _demand((source.dtype, source.size) == (target.dtype, target.size), at, pair, "buffers of one type and size")
    for name in ("storage_buffers", "binding_bytes", "buffer_bytes", "workgroup_memory"):
        _natural(getattr(p.needs, name), f"{where}.needs.{name}")


def _check_buffer(b: Buffer, where: str) -> None:
    _demand(b.dtype in STORED, f"{where}.dtype", b.dtype, f"one of {', '.join(STORED)}")
    _demand(b.role in ROLES, f"{where}.role", b.role, f"one of {', '.join(ROLES)}")
    _natural(b.size, f"{where}.size")
    finite = math.isfinite(b.fill) if isinstance(b.fill, float | int) else b.fill in ("params", "init")
    _demand(finite, f"{where}.fill", b.fill, 'a finite number, "params" or "init"')
    try:
        length = len(base64.b64decode(b.data, validate=True))
    except (binascii.Error, ValueError):
        raise InputError(f"{where}.data is not base64") from None
    expected = b.bytes if b.role == "const" else 0
    if length != expected:
        raise InputError(f"{where}.data has {length} bytes; a {b.role} of {b.size} {b.dtype} has {expected}")


def _check_kernel(k: KernelSource, where: str) -> None:
    for name in ("slots", "workgroup_memory"):
        _natural(getattr(k, name), f"{where}.{name}")
    _check_grid(k.serial_grid, f"{where}.serial_grid")
    for n, b in enumerate(k.bindings):
        _demand(b.dtype in STORED, f"{where}.bindings[{n}].dtype", b.dtype, f"one of {', '.join(STORED)}")
        _natural(b.size, f"{where}.bindings[{n}].size")


def _check_field(f: Field, buffers: Sequence[Buffer], where: str) -> None:
    b = buffers[_index(f.buffer, len(buffers), f"{where}.buffer", "buffers")]
    _demand(f.dtype in DTYPES, f"{where}.dtype", f.dtype, f"one of {', '.join(DTYPES)}")
    _demand(DTYPES[f.dtype].storage == b.dtype, f"{where}.dtype", f.dtype, f"a type that is stored as {b.dtype}")
    if len(f.shape) > MAX_RANK:
        raise InputError(f"{where}.shape has {len(f.shape)} axes; at most {MAX_RANK} are read")
    for n in f.shape:
        _natural(n, f"{where}.shape")
    _natural(f.offset, f"{where}.offset")
    if f.offset + f.size > b.size:
        end = shown(f.offset + f.size)
        raise InputError(f"{where} ends at element {end} of {shown(b.name)}, which has {b.size}")


def _check_loops(loops: Iterable[Loop], dispatches: int, where: str) -> list[int]:
    """The number of loops around each dispatch. Loops follow each other or lie within each other."""
    depths, times = [0] * dispatches, [1] * dispatches
    around: list[Loop] = []
    last = 0
    for k, x in enumerate(loops):
        at = f"{where}.loops[{k}]"
        while around and around[-1].end <= x.begin:
            around.pop()
        end = around[-1].end if around else dispatches
        if not last <= x.begin < x.end <= end:
            what = f"the dispatches {shown(x.begin)} to {shown(x.end)}"
            raise InputError(f"{at} runs {what}; they must begin at {last} or later, and end by {end}")
        _natural(x.count, f"{at}.count")
        last = x.begin
        around.append(x)
        if len(around) > DEEPEST_LOOPS:
            raise InputError(f"{at} is within {DEEPEST_LOOPS} others; that is the limit")
        for n in range(x.begin, x.end):
            depths[n] += 1
            times[n] = min(times[n] * x.count, MOST_LAUNCHES + 1)
    if sum(times) > MOST_LAUNCHES:
        raise InputError(f"{where}.loops make more than {MOST_LAUNCHES} launches in one run")
    return depths


def _check_dispatch(d: Dispatch, p: Program, depth: int, where: str) -> None:
    kernel = p.kernels[_index(d.kernel, len(p.kernels), f"{where}.kernel", "kernels")]
    if len(d.buffers) != len(kernel.bindings):
        raise InputError(f"{where}.buffers has {len(d.buffers)} values; the kernel has {len(kernel.bindings)} bindings")
    for n, (number, binding) in enumerate(zip(d.buffers, kernel.bindings)):
        at = f"{where}.buffers[{n}]"
        _check_binding(p.buffers[_index(number, len(p.buffers), at, "buffers")], binding, at)
    if len(d.offsets) != kernel.slots:
        raise InputError(f"{where}.offsets has {len(d.offsets)} values; the kernel has {kernel.slots} slots")
    for n, offset in enumerate(d.offsets):
        _demand(0 <= offset < INDEX, f"{where}.offsets[{n}]", offset, f"0 to {INDEX - 1}")
    for n, (slot, move) in enumerate(d.moves):
        at = f"{where}.moves[{n}]"
        _index(slot, kernel.slots, at, "slots")
        _index(move.depth, depth, f"{at}.depth", "loops around it")
        _demand(0 < move.ring < INDEX, f"{at}.ring", move.ring, "at least 1")
        reach = d.offsets[slot] + move.step * (move.ring - 1)
        _demand(-INDEX <= reach < INDEX and abs(move.step) < INDEX, f"{at}.step", move.step, "offsets that fit i32")
    _check_grid(d.grid, f"{where}.grid")


def _check_binding(b: Buffer, binding: Binding, where: str) -> None:
    if b.dtype != binding.dtype:
        raise InputError(f"{where} is {shown(b.name)} of {b.dtype}; the kernel wants {binding.dtype}")
    if binding.size > b.size:
        raise InputError(f"{where} is {shown(b.name)} of {b.size} elements; the kernel declares {binding.size}")


def _check_grid(grid: tuple[int, int], where: str) -> None:
    for n in grid:
        _demand(0 <= n < 2**32, where, grid, "workgroups in x and y, each below 2**32")


def _natural(n: int, where: str) -> None:
    _demand(0 <= n <= LARGEST, where, n, f"0 to {LARGEST}")


def _index(n: int, count: int, where: str, what: str) -> int:
    if not 0 <= n < count:
        raise InputError(f"{where} is {shown(n)}; there are {count} {what}")
    return n


def _distinct(names: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{where} has two of the name {shown(name)}")
        seen.add(name)
