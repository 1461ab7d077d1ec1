"""Runs that share a batch: they must be, bit for bit, what they are one by one."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_native import accumulator, chain, kernel, program
from tracegrad import lr, nn, optim
from tracegrad.engine.results import CompletedStep, Failed
from tracegrad.errors import DeviceError
from tracegrad.program import COUNTS, Buffer, Dispatch, Field
from tracegrad.runtime import wgpu_compiled, wgpu_rings, wgpu_session
from tracegrad.runtime.adapters import check_webgpu
from tracegrad.runtime.wgpu_calls import Commands, Write
from tracegrad.runtime.wgpu_rings import depth_of
from tracegrad.runtime.wgpu_session import Batch, NativeSession

pytestmark = pytest.mark.usefixtures("webgpu", "c_compiler")


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the device is, as many runs share a batch as may."""
    monkeypatch.setattr(wgpu_session, "BATCH_SECONDS", 1e9)


@pytest.fixture(params=["compiled", "direct"])
def session(request: pytest.FixtureRequest, many: None) -> Iterator[NativeSession]:
    adapter = check_webgpu().adapter
    assert adapter is not None
    s = NativeSession(adapter, calls=request.param)
    if isinstance(s.calls, wgpu_compiled.CompiledCalls) != (request.param == "compiled"):
        s.close()
        pytest.skip("no C compiler")
    yield s
    s.close()


def counted(session: Any) -> list[int]:
    """How many runs each batch from now on has."""
    sizes: list[int] = []
    submit = session.calls.submit

    def spy(commands: Any, *more: Any) -> Any:
        runs = commands.n if isinstance(commands, ctypes.Structure) else len(commands.runs)
        sizes.extend([runs] * bool(runs))
        return submit(commands, *more)

    session.calls.submit = spy
    return sizes


def test_a_batch_is_one_submission(session: NativeSession) -> None:
    handle = session.load(accumulator(3))
    assert session.capacity(handle) == wgpu_rings.RUNS_AT_ONCE
    x = lambda k: {"x": np.full(3, k, np.float32)}
    session.run(handle, [x(0)]).outputs()
    sizes = counted(session)
    batch = session.run(handle, [x(k) for k in range(1, 24)])
    behind = session.run(handle, [x(1), x(2), x(3)])
    np.testing.assert_array_equal(session.read("total"), [282.0] * 3)  # whatever was run before comes first
    assert sizes == [23, 3]
    assert [outputs["y"].tolist() for outputs in behind.outputs()] == [[277.0] * 3, [279.0] * 3, [282.0] * 3]
    got = [outputs["y"].tolist()[0] for outputs in batch.outputs()]
    assert got == [float(sum(range(k + 1))) for k in range(1, 24)]


@pytest.mark.parametrize("runs", [1, 9])
def test_what_the_device_refuses_fails_alone_and_says_why(session: NativeSession, runs: int) -> None:
    handle = session.load(accumulator(3))
    x = {"x": np.ones(3, np.float32)}
    session.run(handle, [x]).outputs()
    prepared = session.calls.prepared

    def beyond(commands: Commands) -> Any:
        outside = Write(commands.writes[0].buffer, 1 << 24, 16, np.ones(4, np.float32))
        return prepared(commands._replace(writes=[outside, *commands.writes]))

    session._programs[handle].memories[0].prepared.clear()  # pyright: ignore[reportPrivateUsage]
    session.calls.prepared = beyond
    with pytest.raises(DeviceError, match=r"(?i)overrun|bounds|buffer_offset"):  # at once, or when the outputs are read
        refused = session.run(handle, [x] * runs)
        session.calls.prepared = prepared
        for memory in session._programs[handle].memories:  # pyright: ignore[reportPrivateUsage]
            memory.prepared.clear()
        later = session.run(handle, [x] * runs)
        refused.outputs()
    session.calls.prepared = prepared
    for memory in session._programs[handle].memories:  # pyright: ignore[reportPrivateUsage]
        memory.prepared.clear()
    if not isinstance(session.calls, wgpu_compiled.CompiledCalls):
        later = session.run(handle, [x] * runs)
    assert [outputs["y"][0] for outputs in later.outputs()] == [k + 2.0 for k in range(runs)]  # none of the others ran


def test_memory_that_cannot_be_had_is_told_to_whoever_asked_for_it(session: NativeSession) -> None:
    handle = session.load(chain(3000))  # takes long to encode: the next run is staged meanwhile
    x = {"x": np.float32(1)}
    (expected,) = session.run(handle, [x]).outputs()
    under_way = [session.run(handle, [x]) for _ in range(4)]
    device: Any = session._device  # pyright: ignore[reportPrivateUsage]
    create = device.create_buffer
    device.create_buffer = lambda label, size, usage: create(label=label, size=1 << 60, usage=usage)
    with pytest.raises(DeviceError, match="allocating"):
        session.run(handle, [x])
    device.create_buffer = create
    for batch in [*under_way, session.run(handle, [x])]:
        assert batch.outputs() == [expected]


def pipelines(session: NativeSession) -> int:
    return len(session._shared._pipelines)  # pyright: ignore[reportPrivateUsage]


def test_nothing_of_an_unloaded_program_stays(session: NativeSession) -> None:
    assert pipelines(session) == 0  # nor of the self-test
    handle = session.load(accumulator(3))
    session.run(handle, [{"x": np.ones(3, np.float32)}] * 5).outputs()
    assert pipelines(session) == 1
    session.unload(handle)
    assert pipelines(session) == 0


def test_inputs_without_elements_share_submissions_too(session: NativeSession) -> None:
    p = accumulator(3)
    add = kernel("add", "b1[i] += b0[i]; b2[i] = b1[i];", "f32", "f32 write", "f32 write", "f32")
    p = program(
        [add],
        [*p.buffers, Buffer("none", "f32", 0, "input")],
        [Dispatch(0, (0, 1, 2, 3), (), (3, 1))],
        [*p.inputs, Field("z", 3, 0, "f32", (2, 0))],
        p.outputs,
    )
    handle = session.load(p)
    batch = session.run(handle, [{"x": np.ones(3, np.float32), "z": np.ones((2, 0))}] * 4)
    assert [outputs["y"][2] for outputs in batch.outputs()] == [1, 2, 3, 4]


def test_a_map_that_another_thread_finds_done_is_waited_for(many: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitting looks for maps that are done, too: so `landed` may be called late, by the thread that sends."""
    head = "static void landed(int status, text_ message, void *to, void *nothing) {"
    late = wgpu_compiled.SOURCE.replace(
        head,
        f"#include <unistd.h>\nstatic __thread int fetching;\nint elsewhere;\n{head} "
        "if (!fetching) usleep(3000), __atomic_add_fetch(&elsewhere, 1, __ATOMIC_RELAXED);",
    )
    late = late.replace("  int *status = calloc", "  fetching = 1;\n  int *status = calloc")
    monkeypatch.setattr(wgpu_session, "SOURCE", late)
    adapter = check_webgpu().adapter
    assert adapter is not None
    session = NativeSession(adapter)
    assert isinstance(session.calls, wgpu_compiled.CompiledCalls)
    handle = session.load(accumulator(3))
    under_way: deque[Batch] = deque()
    elsewhere = ctypes.c_int.in_dll(session.calls._library, "elsewhere")  # pyright: ignore[reportPrivateUsage]
    expected = 0.0
    until = time.monotonic() + 60
    while elsewhere.value < 20 and time.monotonic() < until:
        under_way.append(session.run(handle, [{"x": np.ones(3, np.float32)}] * 2))
        if len(under_way) == 3:
            for outputs in under_way.popleft().outputs():
                expected += 1
                assert outputs["y"][0] == expected
    assert elsewhere.value >= 20
    session.close()


def test_a_counting_output_is_told_for_each_run_from_its_last_value(session: NativeSession) -> None:
    p = accumulator(1)
    p = replace(p, outputs=(*p.outputs, Field("total", 1, 0, "f32", (1,), {COUNTS: True})))
    handle = session.load(p)
    session.run(handle, [{"x": np.zeros(1, np.float32)}]).outputs()
    sizes = counted(session)
    batch = session.run(handle, [{"x": np.float32([k > 4])} for k in range(12)])
    assert [int(outputs["total"][0]) for outputs in batch.outputs()] == [0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert sizes == [12]


def test_what_cannot_lie_in_parts_has_submissions_of_its_own() -> None:
    p = accumulator(4)
    assert depth_of(p) == wgpu_rings.RUNS_AT_ONCE
    assert depth_of(accumulator(500_000)) == wgpu_rings.RING_BYTES // (2 * 4 * 500_000 + 500)
    assert depth_of(accumulator(5_000_000)) == 1
    assert depth_of(replace(p, outputs=(Field("total", 1, 0, "f32", (4,)),))) == 1


# --- training ---


class Net(tg.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(7, 8)
        self.l1, self.l2 = nn.Linear(8, 16), nn.Linear(16, 7)


def loss(m: Net, i: tg.Tensor, weight: tg.Tensor) -> Any:
    h = tg.dropout(tg.tanh(m.l1(m.table(i))), 0.2)
    tg.capture("h", h)
    each = tg.cross_entropy(m.l2(h), i, reduction="none")
    return tg.mean(each * tg.log(weight)), {"each": each, "best": tg.argmax(m.l2(h), axis=1)}


def compiled() -> tg.CompiledTraining:
    with pytest.warns(RuntimeWarning, match="software") if check_webgpu().reason == "software" else np.errstate():
        return tg.compile(
            model=Net(), loss=loss, inputs={"i": tg.i32[5], "weight": (5,)}, seed=3, device="webgpu",
            optimizer=optim.adamw(lr=lr.linear(0.1, 0.01, 30), weight_decay=0.1, clip_grad_norm=1.0),
        )  # fmt: skip


def batch(k: int, bad: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    weight = rng.uniform(2, 3, 5).astype(np.float32)
    return {"i": rng.integers(0, 7, 5, np.int32), "weight": -weight if bad else weight}


def told(r: Any) -> Any:
    """Everything that a result says, comparable."""
    if isinstance(r, Failed):
        return str(r.error)
    assert isinstance(r, CompletedStep)
    bits = {**r.aux, **r.captures, "loss": np.float32(r.loss), "losses": r.losses}
    return r.step, {k: np.asarray(v).tobytes() for k, v in bits.items()}


def one_by_one(train: tg.CompiledTraining, k: int) -> Any:
    return train.step(batch(k, k in (9, 10, 21)), ).result()  # fmt: skip


def queued(train: tg.CompiledTraining, k: int) -> Any:
    return train.step(batch(k, k in (9, 10, 21)))


def trained(step: Callable[[tg.CompiledTraining, int], Any]) -> tuple[list[Any], dict[str, bytes], list[int]]:
    """Thirty steps, of which three fail, with hyperparameters set on the way; what was told, and the parameters."""
    with compiled() as train:
        train.step(batch(99)).result()
        sizes = counted(train.worker._session)  # pyright: ignore[reportPrivateUsage]
        results: list[Any] = []
        for k in range(30):
            if k == 13:
                train.set(weight_decay=0.5)
            if k == 15:
                train.set_lr(lr.cosine_annealing(0.05, 0.001, 10))
            results.append(step(train, k))
        results = [told(r.result() if isinstance(r, tg.Pending) else r) for r in results]
        return results, {n: x.tobytes() for n, x in train.download_params().items()}, sizes


def test_queued_steps_are_those_read_one_by_one(many: None) -> None:
    alone, params_alone, sizes_alone = trained(one_by_one)
    together, params_together, sizes = trained(queued)
    assert set(sizes_alone) == {1} and max(sizes) > 1
    assert [k for k, r in enumerate(alone) if isinstance(r, str)] == [9, 10, 21]
    assert together == alone
    assert params_together == params_alone


def test_run_steps_are_single_steps(many: None) -> None:
    stacked = {name: np.stack([batch(k)[name] for k in range(40)]) for name in ("i", "weight")}
    with compiled() as train:
        singles = [train.step(batch(k)).result() for k in range(40)]
        params = train.download_params()
    with compiled() as train:
        train.run_steps(1, batch(0)).result()
        train.reset()
        sizes = counted(train.worker._session)  # pyright: ignore[reportPrivateUsage]
        r = train.run_steps(40, stacked).result()
        assert sum(sizes) == 40 and len(sizes) <= 7
        assert r.step == 40 and r.losses.tolist() == [np.float32(s.loss) for s in singles]
        for name, x in (*singles[-1].aux.items(), *singles[-1].captures.items()):
            np.testing.assert_array_equal({**r.aux, **r.captures}[name], x)
        assert all(np.array_equal(x, params[n]) for n, x in train.download_params().items())


def test_a_step_that_fails_within_run_steps(many: None) -> None:
    stacked = {name: np.stack([batch(k, k == 23)[name] for k in range(40)]) for name in ("i", "weight")}
    with compiled() as train:
        for k in range(23):
            train.step(batch(k)).result()
        expected = train.download_params()
        last = train.step(batch(50)).result()
    with compiled() as train:
        r = train.run_steps(40, stacked).result()
        assert isinstance(r, Failed) and "step 24 of 40; those before it were applied" in str(r.error)
        assert all(np.array_equal(x, expected[n]) for n, x in train.download_params().items())
        again = train.step(batch(50)).result()
        assert again.step == 24 and told(again) == told(last)


def test_runs_of_a_forward_between_steps_see_the_steps_before_them(many: None) -> None:
    with compiled() as train:
        show = train.attach(forward=lambda m, i: m.l2(m.l1(m.table(i))), inputs={"i": tg.i32[5]})
        run = lambda: show.run(i=np.arange(5, dtype=np.int32))
        alone: list[Any] = []
        for k in range(6):
            train.step(batch(k)).result()
            alone += [run().output, run().output]
    with compiled() as train:
        show = train.attach(forward=lambda m, i: m.l2(m.l1(m.table(i))), inputs={"i": tg.i32[5]})
        run = lambda: show.run(i=np.arange(5, dtype=np.int32))
        pending: list[Any] = []
        for k in range(6):
            train.step(batch(k))
            pending += [run(), run()]
        for a, p in zip(alone, pending, strict=True):
            np.testing.assert_array_equal(p.output, a)


def test_large_inputs_are_written_beside_small_ones(session: NativeSession) -> None:
    large = wgpu_rings.LARGE_INPUT // 4
    body = "b2[0] = b0[o(0) + i32(b1[0])] + b0[o(1)] + 10.0 * b0[o(2)] + 100.0 * b0[o(3)];"
    k = kernel("pick", body, "f32", "i32", "f32 write", slots=4)
    sizes = {"a": 3, "big": large, "b": 1, "c": 2, "bigger": large + 7, "d": 5}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist()))
    offsets = (starts["bigger"], starts["a"] + 2, starts["c"] + 1, starts["d"] + 4)
    p = program(
        [k],
        [
            Buffer("in", "f32", sum(sizes.values()), "input"),
            Buffer("at", "i32", 1, "input"),
            Buffer("out", "f32", 1, "output"),
        ],
        [Dispatch(0, (0, 1, 2), offsets, (1, 1))],
        [*(Field(n, 0, starts[n], "f32", (size,)) for n, size in sizes.items()), Field("at", 1, 0, "i32", ())],
        [Field("y", 2, 0, "f32", ())],
    )  # fmt: skip
    handle = session.load(p)
    assert depth_of(p) > 8
    rng = np.random.default_rng(0)
    runs = [
        {**{n: rng.integers(0, 9, size).astype(np.float32) for n, size in sizes.items()}, "at": (7919 * k) % large}
        for k in range(8)
    ]
    expected = [float(g["bigger"][g["at"]] + g["a"][2] + 10 * g["c"][1] + 100 * g["d"][4]) for g in runs]
    assert [float(session.run(handle, [g]).outputs()[0]["y"]) for g in runs] == expected
    assert [float(outputs["y"]) for outputs in session.run(handle, runs).outputs()] == expected


def test_a_program_that_launches_nothing(session: NativeSession) -> None:
    p = replace(accumulator(2), kernels=(), dispatches=(), outputs=(Field("total", 1, 0, "f32", (2,)),))
    handle = session.load(p)
    session.write("total", [3.0, 4.0])
    x = {"x": np.zeros(2, np.float32)}
    assert session.run(handle, [x]).outputs()[0]["total"].tolist() == [3.0, 4.0]
