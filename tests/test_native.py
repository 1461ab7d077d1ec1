"""The native WebGPU runtime, on whatever adapter there is (a software one will do), with hand-written programs."""

from __future__ import annotations

import base64
import gc
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracegrad.errors import CompileError, DeviceError, DeviceLostError, InputError
from tracegrad.kernel_source import Binding, KernelSource, Shader, Texts
from tracegrad.program import Buffer, Dispatch, Field, Program
from tracegrad.runtime import adapters as finding, wgpu_adapter, wgpu_compiled
from tracegrad.runtime.c_compiler import VARIABLE, compiler
from tracegrad.runtime.wgpu_calls import Calls
from tracegrad.runtime.wgpu_compiled import CompiledCalls
from tracegrad.runtime.wgpu_session import NativeSession

SUPPORT = finding.check_webgpu()
needs_adapter = pytest.mark.skipif(not SUPPORT.ok, reason=f"no WebGPU adapter: {SUPPORT.message}")


def kernel(label: str, body: str, *bindings: str, slots: int = 0) -> KernelSource:
    """One thread a workgroup; `bindings` such as "f32" or "i32 write" are b0, b1, ...; offsets are o(0), o(1), ..."""
    rows = [Binding(b.split()[0], "write" in b) for b in bindings]
    lines = [
        f"@group(0) @binding({i}) var<storage, {'read_write' if b.written else 'read'}> b{i}: array<{b.dtype}>;"
        for i, b in enumerate(rows)
    ]
    if slots:
        lines.append(f"@group(1) @binding(0) var<uniform> at: array<vec4<i32>, {-(-slots // 4)}>;")
        lines.append("fn o(k: i32) -> i32 { return at[k / 4][k % 4]; }")
    lines.append(f"@compute @workgroup_size(1) fn main(@builtin(workgroup_id) w: vec3u) {{ let i = i32(w.x); {body} }}")
    return KernelSource(label, tuple(rows), slots, 0, Texts.filed("\n".join(lines)))


def program(
    kernels: Sequence[KernelSource],
    buffers: Sequence[Buffer],
    dispatches: Sequence[Dispatch],
    inputs: Sequence[Field] = (),
    outputs: Sequence[Field] = (),
) -> Program:
    """A Program without parameters."""
    return Program(tuple(kernels), tuple(buffers), tuple(dispatches), tuple(inputs), tuple(outputs), (), ())


SCALE = kernel("scale", "b2[i] = b0[i] * b1[0];", "f32", "f32", "f32 write")
ACCUMULATE = kernel("accumulate", "b1[i] += b0[i]; b2[i] = b1[i];", "f32", "f32 write", "f32 write")


def accumulator(n: int = 4) -> Program:
    """Adds the input to the persistent buffer "total" and returns it."""
    return program(
        [ACCUMULATE],
        [Buffer("in", "f32", n, "input"), Buffer("total", "f32", n, "param"), Buffer("out", "f32", n, "output")],
        [Dispatch(0, (0, 1, 2), (), (n, 1))],
        [Field("x", 0, 0, "f32", (n,))],
        [Field("y", 2, 0, "f32", (n,))],
    )


def chain(n: int) -> Program:
    """`n` dependent dispatches, two kernels in turn, each with offsets: the shape of a training step."""
    two = [
        kernel(f"step{k}", f"b1[o(1)] = b1[o(0)] + b0[0] * {k + 1}.0;", "f32", "f32 write", slots=2) for k in range(2)
    ]
    return program(
        two,
        [Buffer("in", "f32", 1, "input"), Buffer("t", "f32", n + 1, "temp")],
        [Dispatch(k % 2, (0, 1), (k, k + 1), (1, 1)) for k in range(n)],
        [Field("x", 0, 0, "f32", ())],
        [Field("y", 1, n, "f32", ())],
    )


@pytest.fixture(scope="module", params=["compiled", "direct"])
def session(request: pytest.FixtureRequest, c_compiler: None) -> Iterator[NativeSession]:
    """One device by each way to call wgpu."""
    if SUPPORT.adapter is None:
        pytest.skip(f"no WebGPU adapter: {SUPPORT.message}")
    if request.param == "compiled" and compiler() is None:
        pytest.skip("no C compiler")
    s = NativeSession(SUPPORT.adapter, calls=request.param)
    assert type(s.calls) is (CompiledCalls if request.param == "compiled" else Calls)
    yield s
    s.close()


@pytest.fixture
def fresh() -> Iterator[NativeSession]:
    """A device of its own for tests that end it."""
    if SUPPORT.adapter is None:
        pytest.skip(f"no WebGPU adapter: {SUPPORT.message}")
    s = NativeSession(SUPPORT.adapter)
    yield s
    s.close()


def run(s: NativeSession, handle: int, **inputs: object) -> dict[str, np.ndarray]:
    return s.run(handle, [inputs]).outputs()[0]


def test_programs_share_persistent_buffers_by_name(session: NativeSession) -> None:
    first, second = session.load(accumulator()), session.load(accumulator())
    x = np.arange(4, dtype=np.float32)
    run(session, first, x=x)
    np.testing.assert_array_equal(run(session, second, x=x)["y"], 2 * x)
    session.write("total", np.float32([7, 8]), offset=1)
    np.testing.assert_array_equal(session.read("total"), [0, 7, 8, 6])
    session.unload(first)
    np.testing.assert_array_equal(run(session, second, x=x)["y"], [0, 8, 10, 9])
    session.unload(second)
    with pytest.raises(DeviceError, match="no persistent array 'total'"):
        session.read("total")


def test_a_persistent_buffer_starts_with_its_fill_and_a_temp_with_zeros(session: NativeSession) -> None:
    p = accumulator()
    p = replace(p, buffers=(p.buffers[0], replace(p.buffers[1], fill=2.5), p.buffers[2]))
    handle = session.load(p)
    np.testing.assert_array_equal(session.read("total"), [2.5] * 4)
    session.unload(handle)


def test_sharing_a_name_with_another_size_is_refused(session: NativeSession) -> None:
    handle = session.load(accumulator(4))
    with pytest.raises(DeviceError, match=r"'total' as f32\[5\]; this session holds it as f32\[4\]"):
        session.load(accumulator(5))
    np.testing.assert_array_equal(run(session, handle, x=np.ones(4, np.float32))["y"], [1] * 4)
    session.unload(handle)


def test_many_runs_in_flight_each_keep_their_outputs(session: NativeSession) -> None:
    handle = session.load(accumulator(1))
    batches = [session.run(handle, [{"x": np.full(1, k, np.float32)}]) for k in range(12)]
    expected = np.cumsum(range(12))
    order = [5, 0, 11, *range(1, 5), *range(6, 11)]
    assert [float(batches[k].outputs()[0]["y"][0]) for k in order] == [float(expected[k]) for k in order]
    with pytest.raises(DeviceError, match="read already"):
        batches[0].outputs()
    session.unload(handle)


def test_offsets_reach_each_dispatch(session: NativeSession) -> None:
    handle = session.load(chain(300))
    assert float(run(session, handle, x=np.float32(1))["y"]) == 450.0
    assert float(run(session, handle, x=2)["y"]) == 900.0
    session.unload(handle)


def test_more_than_four_offsets(session: NativeSession) -> None:
    k = kernel("six", "b0[i] = f32(o(0) + 10 * o(4) + 100 * o(5));", "f32 write", slots=6)
    out = Buffer("out", "f32", 1, "output")
    offsets = (1, 0, 0, 0, 2, 3)
    p = program([k], [out], [Dispatch(0, (0,), offsets, (1, 1))], outputs=[Field("y", 0, 0, "f32", (1,))])
    handle = session.load(p)
    assert run(session, handle)["y"].tolist() == [321.0]
    session.unload(handle)


def test_offsets_that_never_differ_are_in_the_text(session: NativeSession) -> None:
    def adds(label: str, place: str) -> KernelSource:
        body = f"b0[{place}] = b0[at[0].y] + f32(at[1].z) + 1.0;"
        memory, main = kernel(label, body, "f32 write").wgsl.splitlines(keepends=True)
        return KernelSource(
            label, (Binding("f32", True),), 7, 0, Texts(wgsl=Shader(memory, main, 7, "i + 2" not in main))
        )

    last = lambda slot: (0, slot - 1, 0, 0, 0, 0, 10 * slot)
    p = program(
        [adds("once", "1"), adds("moving", "at[0].y + 1"), adds("computed", "at[1][i + 2] / 10"), adds("again", "6")],
        [Buffer("out", "f32", 8, "output")],
        [
            Dispatch(0, (0,), last(1), (1, 1)),
            *(Dispatch(1, (0,), last(k), (1, 1)) for k in (2, 3)),
            Dispatch(2, (0,), last(4), (1, 1)),
            Dispatch(1, (0,), last(5), (1, 1)),
            *(Dispatch(3, (0,), last(6), (1, 1)) for _ in range(2)),
        ],
        outputs=[Field("y", 0, 0, "f32", (8,))],
    )
    handle = session.load(p)
    constant = session._programs[handle].program  # pyright: ignore[reportPrivateUsage]
    assert [k.slots for k in constant.kernels] == [0, 7, 7, 0]
    vectors = "vec4<i32>(0, 0, 0, 0), vec4<i32>(0, 0, 10, 0)"
    assert f"const at = array<vec4<i32>, 2>({vectors});" in constant.kernels[0].wgsl
    assert "uniform" not in constant.kernels[0].wgsl
    assert [d.offsets == () for d in constant.dispatches] == [True, False, False, False, False, True, True]
    np.testing.assert_array_equal(run(session, handle)["y"], [0, 11, 32, 63, 104, 155, 216, 0])
    session.unload(handle)


def test_constants_and_scattered_outputs(session: NativeSession) -> None:
    data = base64.b64encode(np.float32([10]).tobytes()).decode()
    p = program(
        [SCALE],
        [
            Buffer("in", "f32", 200, "input"),
            Buffer("ten", "f32", 1, "const", data=data),
            Buffer("t", "f32", 200, "temp"),
        ],
        [Dispatch(0, (0, 1, 2), (), (200, 1))],
        [Field("x", 0, 0, "f32", (10, 20))],
        [Field("head", 2, 0, "f32", (2,)), Field("near", 2, 5, "f32", (1, 3)), Field("tail", 2, 199, "f32", ())],
    )
    handle = session.load(p)
    x = np.arange(200, dtype=np.float32).reshape(10, 20)
    got = run(session, handle, x=x)
    assert got["head"].tolist() == [0, 10] and got["near"].tolist() == [[50, 60, 70]] and got["tail"] == 1990.0
    assert got["tail"].shape == ()
    session.unload(handle)


def test_integers_and_booleans_keep_their_bits(session: NativeSession) -> None:
    body = "b1[0] = b0[0] - 1; b1[1] = i32(u32(b0[1]) / 2u); b1[2] = select(1, 0, b0[2] != 0); b1[3] = b0[3];"
    p = program(
        [kernel("bits", body, "i32", "i32 write")],
        [Buffer("in", "i32", 4, "input"), Buffer("out", "i32", 4, "output")],
        [Dispatch(0, (0, 1), (), (1, 1))],
        [
            Field("i", 0, 0, "i32", (1,)),
            Field("u", 0, 1, "u32", ()),
            Field("b", 0, 2, "bool", (2,)),
        ],
        [Field("i", 1, 0, "i32", (1,)), Field("u", 1, 1, "u32", ()), Field("b", 1, 2, "bool", (2,))],
    )
    handle = session.load(p)
    got = run(session, handle, i=np.int32([-5]), u=np.uint32(0xFFFFFFFE), b=np.array([True, True]))
    assert got["i"].tolist() == [-6] and got["i"].dtype == np.int32
    assert int(got["u"]) == 0x7FFFFFFF and got["u"].dtype == np.uint32
    assert got["b"].tolist() == [False, True] and got["b"].dtype == np.bool_
    session.unload(handle)


def test_equal_kernels_are_compiled_once_and_freed_with_their_last_program(session: NativeSession) -> None:
    gc.collect()
    before = len(session._shared._pipelines)
    handles = [session.load(chain(n)) for n in (3, 4, 5)]
    assert len(session._shared._pipelines) == before + 2
    for h in handles:
        session.unload(h)
    gc.collect()
    assert len(session._shared._pipelines) == before


def test_inputs_that_do_not_fit_are_named(session: NativeSession) -> None:
    handle = session.load(accumulator())
    with pytest.raises(InputError, match=r"missing \['x'\], unknown \['z'\]"):
        session.run(handle, [{"z": 1}])
    with pytest.raises(InputError, match=r"'x' has shape \(1,\), not \(4,\)"):
        session.run(handle, [{"x": np.ones(1, np.float32)}])
    with pytest.raises(DeviceError, match="elements 3 to 5 are outside 'total', which has 4"):
        session.write("total", [1, 2], offset=3)
    session.unload(handle)


def test_a_program_too_large_names_buffer_value_and_limit(session: NativeSession) -> None:
    def with_kernel(**changes: Any) -> Program:
        return replace(p, kernels=(replace(p.kernels[0], **changes),))

    big = session.limits["max-storage-buffer-binding-size"] // 4 + 1
    p = accumulator()
    large = replace(
        p,
        buffers=(p.buffers[0], replace(p.buffers[1], size=big), p.buffers[2]),
        params=(Field("l1.W", 1, 0, "f32", (big - 4,)), Field("l1.b", 1, big - 4, "f32", (4,))),
    )
    with pytest.raises(DeviceError, match=r"total, largest value 'l1.W' f32\[\d+\].*max-storage-buffer-binding-size"):
        session.load(large)
    scan = replace(p, buffers=(*p.buffers, Buffer("memory", "f32", big, "temp")), largest="the memory of a scan")
    with pytest.raises(DeviceError, match=r"\(memory, largest value the memory of a scan\)"):
        session.load(scan)
    with pytest.raises(DeviceError, match=r"max-(storage-buffers-per-shader-stage|bindings-per-bind-group)"):
        session.load(with_kernel(bindings=p.kernels[0].bindings * 10**5))
    with pytest.raises(DeviceError, match="max-compute-workgroup-storage-size"):
        session.load(with_kernel(workgroup_memory=1 << 30))
    with pytest.raises(DeviceError, match=r"'accumulate' launches \(70000, 1\) workgroups.*; device='cpu' has"):
        session.load(replace(accumulator(), dispatches=(Dispatch(0, (0, 1, 2), (), (70000, 1)),)))


def test_a_kernel_that_does_not_compile_is_named(
    session: NativeSession, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    bad = kernel("broken_kernel", "b0[i] = nonsense;", "f32 write")
    p = program([bad], [Buffer("leftover", "f32", 1, "param")], [Dispatch(0, (0,), (), (1, 1))])
    with pytest.raises(CompileError, match=r"(?s)'broken_kernel'.*nonsense"):
        session.load(p)
    with pytest.raises(DeviceError, match="no persistent array"):  # nothing of it stays
        session.read("leftover")
    assert capfd.readouterr().err == ""


def test_dropped_batches_give_their_memory_back(session: NativeSession) -> None:
    handle = session.load(accumulator(1))
    for _ in range(20):
        session.run(handle, [{"x": np.ones(1, np.float32)}])
    assert len(session._programs[handle].memories) <= 2  # pyright: ignore[reportPrivateUsage]
    assert run(session, handle, x=np.ones(1, np.float32))["y"].tolist() == [21.0]
    session.unload(handle)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_stays_flat_over_many_runs(session: NativeSession) -> None:
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    n = 20_000
    handle = session.load(accumulator(n))
    x = np.ones(n, np.float32)
    for _ in range(60):
        run(session, handle, x=x)
    before = resident()
    for _ in range(150):
        run(session, handle, x=x)
    session.read("total")
    assert resident() - before < 40 * x.nbytes  # a leak of one input a run would be 150
    session.unload(handle)


def test_a_closed_session_refuses_in_plain_words(fresh: NativeSession) -> None:
    handle = fresh.load(accumulator())
    batch = fresh.run(handle, [{"x": np.ones(4, np.float32)}])
    fresh.close()
    fresh.close()
    x = {"x": np.ones(4, np.float32)}
    for call in (
        lambda: fresh.run(handle, [x]),
        lambda: batch.outputs(),
        lambda: fresh.load(accumulator()),
        lambda: fresh.read("total"),
        lambda: fresh.write("total", x["x"]),
    ):
        with pytest.raises(DeviceError, match="closed"):
            call()
    fresh.unload(handle)


def test_a_run_of_an_unloaded_program_cannot_be_read_and_the_rest_goes_on(session: NativeSession) -> None:
    first, second = session.load(accumulator()), session.load(accumulator())
    x = np.ones(4, np.float32)
    batch = session.run(first, [{"x": x}])
    session.write("total", x)  # a write that is pending while buffers go
    session.unload(first)
    with pytest.raises(DeviceError, match="unloaded"):
        batch.outputs()
    with pytest.raises(DeviceError, match="no program"):
        session.run(first, [{"x": x}])
    assert run(session, second, x=x)["y"].tolist() == [2.0] * 4
    session.unload(second)


@needs_adapter
def test_a_device_lost_to_others_is_a_device_lost_error(fresh: NativeSession) -> None:
    handle = fresh.load(accumulator())
    fresh._device.destroy()  # pyright: ignore[reportPrivateUsage]
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="lost"):
            run(fresh, handle, x=np.ones(4, np.float32))


@needs_adapter
def test_compiled_calls_that_cannot_be_had_or_compute_wrongly_give_way_to_python(
    c_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen() -> type[Calls]:
        assert SUPPORT.adapter is not None
        s = NativeSession(SUPPORT.adapter)
        s.close()
        return type(s.calls)

    assert chosen() is (CompiledCalls if compiler() else Calls)
    zeros = lambda self, buffer, size, mark: np.zeros(size, np.uint8)  # pyright: ignore
    with monkeypatch.context() as patch:
        patch.setattr(CompiledCalls, "fetch", zeros)
        assert chosen() is Calls
        patch.setattr(Calls, "fetch", zeros)
        with pytest.raises(DeviceError, match="computes wrongly"):
            chosen()
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "off")
        assert chosen() is Calls
    with monkeypatch.context() as patch:
        patch.setattr(wgpu_compiled, "FUNCTIONS", ("NoSuchFunction",))
        assert chosen() is Calls


@needs_adapter
def test_another_wgpu_than_the_one_whose_handles_are_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SUPPORT.adapter is not None
    monkeypatch.setattr(wgpu_adapter, "PINNED", "0.1.")
    with pytest.raises(DeviceError, match=r"this is wgpu 0\.32\.\d+, tracegrad needs 0\.1\.x\); pip install"):
        NativeSession(SUPPORT.adapter)


def test_kernels_are_spelled_one_at_a_time_whoever_asks() -> None:
    """Kernels share what expressions are made of, and threads that compile pipelines ask for texts side by side."""
    inside, most, times = 0, 0, 0

    def spell(language: str) -> Shader:
        nonlocal inside, most, times
        times += 1
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return Shader(language)

    kernels = [KernelSource("k", (), 0, 0, Texts(spell)) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda k: k.wgsl, 2 * kernels)) == ["wgsl"] * 16
    assert most == 1 and times == len(kernels)


def test_kernels_of_others_are_compiled_with_the_checks_of_the_driver(
    session: NativeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this process's compiler are not: it proves its indices in range. Only wgpu's own function checks."""
    checked: list[str] = []
    real = type(session._device).create_shader_module

    def spy(self: object, *, label: str, code: str) -> object:
        checked.append(label)
        return real(self, label=label, code=code)

    monkeypatch.setattr(type(session._device), "create_shader_module", spy)
    reach = "b1[i] = b0[i + o(0)]; b1[o(0)] = 7.0;"  # far behind both arrays
    buffers = [Buffer("in", "f32", 4, "input"), Buffer("out", "f32", 4, "output")]
    places = [Field("x", 0, 0, "f32", (4,))], [Field("y", 1, 0, "f32", (4,))]
    for name, own in (("here", True), ("there", False)):
        bad = replace(kernel(name, reach, "f32", "f32 write", slots=1), own=own)
        p = program([bad], buffers, [Dispatch(0, (0, 1), (1 << 28,), (4, 1))], *places)
        handle = session.load(p if own else Program.from_json(p.to_json()))
        if not own:
            got = session.run(handle, [{"x": np.ones(4, np.float32)}]).outputs()[0]
            assert np.isfinite(got["y"]).all()
        session.unload(handle)
    assert checked == ["there"]
