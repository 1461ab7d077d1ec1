"""A Program from a file is checked whole, refused in one sentence, and never brings code to a host."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import SMALL
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.errors import DeviceError, InputError
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.runtime.adapters import check_webgpu
from tracegrad.runtime.c_compiler import compiler
from tracegrad.runtime.cpu import CpuSession
from tracegrad.runtime.wgpu_session import NativeSession


def scanned() -> Program:
    """A program with a loop, a constant and two outputs."""
    with tracing():
        x = leaf("input", "x", TensorType(f32, (5, 3)))
        last, all_of = tg.scan(lambda c, r: (tg.tanh(c + r), c * r), np.float32([1, 2, 3]), x)
        return make_program(Graph({"last": last, "all": all_of}), Persistent(), {}, {"kind": "forward"})


PROGRAM = scanned()
DATA = json.loads(PROGRAM.to_json())


def changed(path: str, value: Any) -> str:
    """The program's JSON with one value changed; `path` such as "dispatches.0.kernel"."""
    data: Any = copy.deepcopy(DATA)
    *way, last = [int(x) if x.isdigit() else x for x in path.split(".")]
    at = data
    for step in way:
        at = at[step]
    if callable(value):
        value = value(at[last])
    at[last] = value
    return json.dumps(data)


def test_the_program_under_test_has_all_parts() -> None:
    assert (
        PROGRAM.loops and any(d.moves for d in PROGRAM.dispatches) and any(b.role == "const" for b in PROGRAM.buffers)
    )
    assert Program.from_json(json.dumps(DATA)) == PROGRAM


MOVING = next(k for k, d in enumerate(DATA["dispatches"]) if d["moves"])
CONSTANT = next(k for k, b in enumerate(DATA["buffers"]) if b["role"] == "const")
FAULTS: list[tuple[str, Any, str]] = [
    ("version", 1, r"version 1; this library reads version 2"),
    ("version", True, r"version True"),
    ("version", "1", r"version '1'"),
    ("kernels", None, r"kernels is None; expected a list"),
    ("kernels.0", [], r"kernels\[0\] is \[\]; expected an object"),
    ("kernels.0.slots", 1.0, r"kernels\[0\].slots is 1.0; expected int"),
    ("kernels.0.slots", True, r"kernels\[0\].slots is True; expected int"),
    ("kernels.0.slots", 10**30, r"kernels\[0\].slots is 10{30}; expected 0 to"),
    ("kernels.0.slots", lambda n: n + 1, r"dispatches\[0\].offsets has \d+ values; the kernel has \d+ slots"),
    ("kernels.0.wgsl", 3, r"kernels\[0\].wgsl is 3; expected str"),
    ("kernels.0.serial_grid", [1], r"kernels\[0\].serial_grid has 1 values; expected 2"),
    ("kernels.0.bindings.0.dtype", "f64", r"kernels\[0\].bindings\[0\].dtype is 'f64'; expected one of f32, i32, f16"),
    ("kernels.0.bindings", [], r"dispatches\[0\].buffers has \d values; the kernel has 0 bindings"),
    ("kernels.0.more", 1, r"kernels\[0\] has a field 'more'; it has label"),
    ("dispatches.0.kernel", 99, r"dispatches\[0\].kernel is 99; there are \d+ kernels"),
    ("dispatches.0.kernel", -1, r"dispatches\[0\].kernel is -1"),
    ("dispatches.0.buffers.0", 99, r"dispatches\[0\].buffers\[0\] is 99; there are \d+ buffers"),
    ("dispatches.0.offsets.0", -1, r"dispatches\[0\].offsets\[0\] is -1; expected 0 to 2147483647"),
    ("dispatches.0.offsets.0", 2**31, r"dispatches\[0\].offsets\[0\] is 2147483648"),
    ("dispatches.0.grid", [2**32, 1], r"dispatches\[0\].grid"),
    (f"dispatches.{MOVING}.moves.0.0", 99, r"moves\[0\] is 99; there are \d+ slots"),
    (f"dispatches.{MOVING}.moves.0.1.depth", 7, r"moves\[0\].depth is 7; there are 1 loops around it"),
    (f"dispatches.{MOVING}.moves.0.1.ring", 0, r"moves\[0\].ring is 0; expected at least 1"),
    (f"dispatches.{MOVING}.moves.0.1.step", 2**40, r"moves\[0\].step is 1099511627776"),
    ("buffers.0.dtype", "u8", r"buffers\[0\].dtype is 'u8'"),
    ("buffers.0.role", "code", r"buffers\[0\].role is 'code'; expected one of param"),
    ("buffers.0.size", -1, r"buffers\[0\].size is -1"),
    (f"buffers.{CONSTANT}.size", 0, r"data has 12 bytes; a const of 0 f32 has 0"),
    ("kernels.0.bindings.0.size", 10**6, r"buffers\[0\] is '.*' of \d+ elements; the kernel declares 1000000"),
    ("buffers.0.fill", "evil", r"buffers\[0\].fill is 'evil'; expected a finite number"),
    ("buffers.0.fill", 10**400, r"buffers\[0\].fill is 1000.*expected float or str"),
    ("buffers.1.name", DATA["buffers"][0]["name"], r"buffers has two of the name"),
    (f"buffers.{CONSTANT}.data", "A!", r"data is not base64"),
    (f"buffers.{CONSTANT}.data", "AAAA", r"data has 3 bytes; a const of 3 f32 has 12"),
    ("inputs.0.buffer", 50, r"inputs\[0\].buffer is 50"),
    ("inputs.0.offset", 10**6, r"inputs\[0\] ends at element 1000015 of 'input.f32', which has"),
    ("inputs.0.shape", [10**9, 10**9], r"inputs\[0\] ends at element"),
    ("inputs.0.shape", [-1], r"inputs\[0\].shape is -1"),
    ("inputs.0.shape", [1] * 65, r"inputs\[0\].shape has 65 axes"),
    ("inputs.0.dtype", "i32", r"inputs\[0\].dtype is 'i32'; expected a type that is stored as f32"),
    ("outputs.1.name", "last", r"outputs has two of the name 'last'"),
    ("loops.0.end", 10**6, r"loops\[0\] runs the dispatches \d to 1000000; they must begin"),
    ("loops.0.end", lambda _: DATA["loops"][0]["begin"], r"loops\[0\] runs the dispatches"),
    ("loops.0.count", 10**12, r"loops make more than \d+ launches"),
    ("loops.0.count", -1, r"loops\[0\].count is -1"),
    ("loops", [DATA["loops"][0]] * 40, r"loops\[32\] is nested deeper than the limit of 32"),
    ("copies", [], r"program has a field 'copies'; it has"),
    ("largest", 3, r"largest is 3; expected str"),
    ("meta", [], r"meta is \[\]; expected an object"),
    ("more", 1, r"has a field 'more'"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), FAULTS, ids=lambda x: str(x)[:24] if isinstance(x, str) else "")
def test_each_fault_is_one_sentence_that_says_where(path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as e:
        Program.from_json(changed(path, value))
    assert str(e.value).startswith("program") and "\n" not in str(e.value) and len(str(e.value)) < 250


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"version":1}', "[" * 10**6, '{"version":NaN}', b"\xff"])
def test_what_is_no_program_is_refused(text: Any) -> None:
    with pytest.raises(InputError):
        Program.from_json(text)


@pytest.mark.parametrize("name", ["texts", "numpy", "c", "own"])
def test_code_for_the_host_is_neither_written_nor_read(name: str, tmp_path: Path) -> None:
    assert name not in DATA["kernels"][0]
    evil = f"def bind(*_):\n    open({str(tmp_path / 'owned')!r}, 'w')\n    return lambda: None\n"
    data = copy.deepcopy(DATA)
    data["kernels"][0][name] = True if name == "own" else evil
    with pytest.raises(InputError, match=f"has a field '{name}'; it has label"):
        Program.from_json(json.dumps(data))


@pytest.mark.parametrize("in_c", [False, True])
def test_a_cpu_refuses_a_program_from_a_file(in_c: bool) -> None:
    session = CpuSession(compiler() if in_c else None)
    try:
        with pytest.raises(DeviceError, match="was not compiled by this process, and the CPU runs only code that was"):
            session.load(Program.from_json(PROGRAM.to_json()))
        session.unload(session.load(PROGRAM))
    finally:
        session.close()


def test_no_text_for_the_host_is_spelled_for_a_file() -> None:
    """A browser takes programs as JSON, and would wait for texts that it cannot use."""
    program = scanned()
    program.to_json()
    for kernel in program.kernels:
        for name in ("numpy", "c", "calls"):
            with pytest.raises(AttributeError):
                object.__getattribute__(kernel, name)


def test_loops_of_hostile_programs_are_checked_in_linear_time() -> None:
    data = copy.deepcopy(DATA)
    data["dispatches"] = [{**d, "moves": []} for d in data["dispatches"][:1]] * 20_000
    data["loops"] = [{"begin": k, "end": k + 1, "count": 1} for k in range(20_000)]
    program = Program.from_json(json.dumps(data))
    assert sum(1 for _ in program.unrolled()) == 20_000


@pytest.mark.parametrize("t", SMALL, ids=repr)
def test_exported_programs_are_read_again(t: Any) -> None:
    program = t.build().program
    assert Program.from_data(json.loads(json.dumps(program.to_data()))) == program


def test_a_program_from_a_file_runs_on_webgpu_as_the_one_compiled_here(webgpu: None) -> None:
    adapter = check_webgpu().adapter
    assert adapter is not None
    session = NativeSession(adapter)
    try:
        x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
        got = []
        for program in (PROGRAM, Program.from_json(PROGRAM.to_json())):
            handle = session.load(program)
            got.append(session.run(handle, [{"x": x}]).outputs()[0])
            session.unload(handle)
        for name in ("last", "all"):
            np.testing.assert_array_equal(got[0][name], got[1][name])
    finally:
        session.close()
