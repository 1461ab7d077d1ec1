"""What a page may do wrong, and what may happen to its device: nothing is changed, or the last checkpoint is there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import ARGS, browser, find_chromium, open_page, plain, served, until
from test_browser import LOSS, SINE, Tab, assert_same_bits, batches, compiled, tab
from test_export import compiled as wave_training, ready, wait_for_steps, wave_page, waves
from tracegrad import lr, optim, safetensors

__all__ = ["browser", "served", "tab"]  # fixtures

REFUSED = """
const answers = [];
for (const [method, x] of a[0]) answers.push(await train[method](x).then(() => null, (e) => [e.name, e.message]));
return [answers, train.lr];
"""
BAD_CALLS: list[tuple[str, Any, str]] = [
    ("setLR", {"kind": "cosine_annealing", "peak": 0.1, "end": 0.0, "steps": 9}, 'final is missing, "end" is unknown'),
    (
        "setLR",
        {"kind": "cosine_annealing", "peak": 0.1, "final": 0.0, "steps": 0},
        "steps is 0, expected an integer above 0",
    ),
    ("setLR", {"kind": "lunar", "peak": 0.1}, "whose kind is one of constant, linear"),
    ("setLR", {"kind": "constructor"}, "whose kind is one of constant, linear"),
    (
        "setLR",
        {"kind": "warmup", "peak": 0.1, "steps": 2, "after": {"kind": "linear"}},
        "warmup: after: schedule linear",
    ),
    ("setLR", math.nan, "got NaN"),
    ("setLR", 1e39, "finite in f32, got 1e+39"),
    ("setLR", -0.1, "of at least 0"),
    ("setLR", None, "got null"),
    ("set", {"bet1": 0.5}, "bet1: unknown; these can be set: "),
    ("set", {"lr": 0.5, "beta1": 2}, "beta1 must be a number of at least 0 and below 1"),
    ("set", {"beta2": math.nan}, "beta2 must be a number of at least 0 and below 1"),
    ("set", {"weight_decay": -0.1}, "weight_decay must be a number of at least 0"),
    ("set", {"clip_grad_norm": 0, "weight_decay": 0.5}, "clip_grad_norm must be a number above 0"),
    ("set", {"eps": 1e39}, "finite in f32"),
    ("set", {"eps": "1e-8"}, 'got "1e-8"'),
    ("set", {"lr": 1e39}, "finite in f32"),
    ("set", {"lr": None}, "got null"),
    ("set", 0.5, "by name"),
    ("reset", {"param": False}, "reset: false is given as param; pass {params, optimizer, seed}"),
    ("uploadParams", {"l9": 1}, "l9: unknown; known are l1.W f32[1,"),
    ("uploadParams", None, "pass values by name"),
    ("loadCheckpoint", None, "got null"),
    ("loadCheckpoint", "./half-way.safetensors", 'await file.arrayBuffer() gives them, got "./half-way'),
]


def test_calls_of_steps_that_cannot_be_meant_fail_at_once(tab: Tab) -> None:
    """A call of 2 ** 31 steps took more than a minute to fail, and the worker answered nothing meanwhile."""
    with compiled(SINE) as train:
        tab.load(train, "many")
        code = """const x = given(a[0]);
          const canvas = train.step({ x: document.createElement("canvas") });
          const none = train.step({ x: a[1], y: a[2] });
          const wrong = [train.runSteps(2 ** 31, x), train.runSteps(1e6 + 1, x), train.step(null), canvas, none];
          return (await Promise.all(wrong)).map(told).map((r) => r.error);"""
        many, one_more, nothing, canvas, none = tab.run(code, plain(batches(SINE, 1)[0]), [[None]] * 16, [["1"]] * 16)
        assert many == ["InputError", "runSteps: n must be an integer from 1 to 1000000, got 2147483648"]
        assert one_more[0] == "InputError" and "got 1000001" in one_more[1]
        assert nothing == ["InputError", "step: pass values by name, such as {x: [...]}; got null"]
        assert 'x: the value null at position 0 is not a number\n  y: the value "1" at position 0' in none[1]
        assert canvas[0] == "InputError" and "of a canvas getImageData(...).data" in canvas[1]


def test_rates_and_hyperparameters_out_of_range_change_nothing(tab: Tab) -> None:
    inputs = batches(SINE, 6)
    training = replace(SINE, optimizer=lambda: optim.adamw(lr=1e-2, clip_grad_norm=1.0))
    with compiled(training) as train:
        tab.load(train, "ranges")
        got = tab.steps(inputs[:3])
        said, rate = tab.run(REFUSED, [call[:2] for call in BAD_CALLS])
        for (method, x, want), answer in zip(BAD_CALLS, said, strict=True):
            assert answer and answer[0] == "InputError" and want in answer[1], (method, x, answer)
        assert rate == 1e-2
        got += tab.steps(inputs[3:])
        np.testing.assert_allclose(got, [train.step(x).loss for x in inputs], rtol=LOSS)


def test_a_schedule_without_a_rate_fails_its_step_and_changes_nothing(tab: Tab) -> None:
    """Its fields are within their ranges, but what comes after the top is above the largest f32."""
    inputs = batches(SINE, 8)
    breaking = lr.one_cycle(1e-3, 12, final_div_factor=1e-300)
    with compiled(SINE) as train:
        tab.load(train, "breaking")
        stacked = {n: np.stack([x[n] for x in inputs[:6]]) for n in inputs[0]}
        code = """await train.setLR(a[0]);
          const under = [train.runSteps(6, given(a[1])), train.step(given(a[2])), train.saveCheckpoint()];
          const [many, one] = await Promise.all(under);
          const step = train.stepCount;
          const before = bits(await train.downloadParams());
          const again = await train.step(given(a[2]));
          const same = JSON.stringify(bits(await train.downloadParams())) === JSON.stringify(before);
          await train.setLR(0.01);
          return [[many, one, again].map(told), step, same, told(await train.step(given(a[2])))];"""
        failed, step, same, after = tab.run(code, breaking.spec(), plain(stacked), plain(inputs[6]))
        for r in failed:
            assert r["kind"] == "failed" and r["error"][0] == "InputError", r
            assert "the schedule at step 4: lr must be a number of at least 0 that is finite in f32" in r["error"][1]
        assert step == 3 and same and after["kind"] == "completed" and after["step"] == 4
        train.set_lr(breaking)
        for x in inputs[:3]:
            train.step(x).result()
        train.set_lr(0.01)
        np.testing.assert_allclose(after["losses"], [train.step(inputs[6]).loss], rtol=LOSS)


def test_a_schedule_begins_at_its_first_step_whatever_failed_before(tab: Tab) -> None:
    """Steps submitted together see the schedule go on, and one that fails in between does not move its start."""
    inputs = batches(SINE, 8)
    rate = lr.linear(0.05, 0.001, 5)
    with compiled(SINE) as train:
        tab.load(train, "begins")
        code = """const calls = a[1].map(given);
          calls[0].x.data[3] = NaN;
          await train.setLR(a[0]);
          return (await Promise.all(calls.map((x) => train.step(x)))).map(told);"""
        first, *rest = tab.run(code, rate.spec(), [plain(x) for x in inputs])
        assert first["kind"] == "failed"
        train.set_lr(rate)
        np.testing.assert_allclose([r["losses"][0] for r in rest], [train.step(x).loss for x in inputs[1:]], rtol=LOSS)


BAD_METADATA = [
    ({"step": "-1"}, "step in the metadata"), ({"step": "4294967296"}, "step in the metadata"),
    ({"step": "1.5"}, "step in the metadata"), ({"step": '"7"'}, "step in the metadata"), ({"step": None}, "step"),
    ({"seed": "4294967296"}, "seed in the metadata"), ({"seed": "null"}, "seed in the metadata"),
    ({"lr_start": "0"}, "lr_start in the metadata"), ({"lr_start": "{"}, "which is not valid JSON"),
    ({"lr": "1e39"}, "finite in f32"), ({"lr": '{"kind": "linear"}'}, "peak is missing"), ({"lr": "null"}, "got null"),
    ({"lr": None}, "lr in the metadata"), ({"hyper": '{"beta1": 2}'}, "beta1 must be a number"),
    ({"hyper": "[]"}, "by name"), ({"hyper": '{"eps": 1e999}'}, "eps must be"),
    ({"tracegrad": "9"}, "not a checkpoint"),
]  # fmt: skip


def test_what_a_checkpoint_says_of_the_training_is_checked(tab: Tab, tmp_path: Path) -> None:
    inputs = batches(SINE, 2)
    with compiled(SINE) as train:
        tab.load(train, "metadata")
        got = tab.steps(inputs[:1])
        before = tab.params()
        train.save(tmp_path / "good")
        file = safetensors.read(tmp_path / "good")
        code = "return train.loadCheckpoint(Uint8Array.from(a[0])).then(() => null, (e) => [e.name, e.message]);"
        for change, want in BAD_METADATA:
            metadata = {k: v for k, v in {**file.metadata, **change}.items() if v is not None}
            safetensors.write(tmp_path / "bad", file.tensors, metadata)
            said = tab.run(code, list((tmp_path / "bad").read_bytes()))
            assert said and said[0] == "InputError" and want in said[1], (change, said)
            assert said[1].startswith("loadCheckpoint: nothing was changed: ") and "\n" not in said[1]
        for bad in (math.nan, math.inf):
            tensors = {**file.tensors, "param/l2.b": np.float32([0, 1, bad, 3, 4, 5, 6, 7])}
            safetensors.write(tmp_path / "bad", tensors, file.metadata)
            said = tab.run(code, list((tmp_path / "bad").read_bytes()))
            assert said[0] == "InputError" and "param/l2.b has values that are not finite" in said[1]
            upload = "const x = [0, 1, a[0], 3, 4, 5, 6, 7]; return train.uploadParams({ 'l2.b': x })"
            said = tab.run(f"{upload}.catch((e) => [e.name, e.message]);", bad)
            assert said[0] == "InputError" and said[1].startswith("uploadParams: nothing was written: l2.b has values")
        assert_same_bits(tab.params(), before)
        got += tab.steps(inputs[1:])
        np.testing.assert_allclose(got, [train.step(x).loss for x in inputs], rtol=LOSS)
        assert tab.run(code, list((tmp_path / "good").read_bytes())) is None


# In the worker: from now on there is no adapter, as after the third crash of a driver
NO_ADAPTER = "Object.getPrototypeOf(navigator.gpu).requestAdapter = async () => null"


@pytest.fixture
def doomed(browser: Any) -> Iterator[Any]:
    """A browser for one test: Chromium gives the GPU up when its process has crashed a few times."""
    own = browser.browser_type.launch(executable_path=find_chromium(), args=ARGS)
    yield own
    own.close()


def lose_the_gpu(browser: Any, page: Any) -> None:
    page.workers[0].evaluate(NO_ADAPTER)
    browser.new_browser_cdp_session().send("Browser.crashGpuProcess")  # what a crashing driver does


@pytest.mark.parametrize("single_file", [False, True], ids=["site", "file"])
def test_the_page_hands_out_its_own_checkpoint_when_the_gpu_is_gone(
    doomed: Any, served: tuple[str, Path], tmp_path: Path, single_file: bool
) -> None:
    """The visitor saved nothing: it is the checkpoint that the page takes while it trains."""
    url, folder = served
    if single_file:
        url = wave_page(tmp_path / "page.html", single_file=True).as_uri()
    else:
        url = f"{url}/{wave_page(folder / 'gone').parent.name}/"
    page = ready(open_page(doomed, url))
    page.click("#start")
    wait_for_steps(page, 50)
    assert page.evaluate("train.lastCheckpoint") is None and page.is_hidden("#rescue")
    page.evaluate("{ const now = performance.now.bind(performance); performance.now = () => now() + 30_000; }")
    until(page, "() => train.lastCheckpoint !== null")
    lose_the_gpu(doomed, page)
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    kept = page.evaluate("train.lastCheckpoint.step")
    said = page.inner_text("#status")
    assert "no new device is available" in said and f"lastCheckpoint has that of step {kept}" in said
    assert page.inner_text("#rescued") == f"Download the last checkpoint, of step {kept}"
    with page.expect_download() as saved:
        page.click("#rescued")
    assert saved.value.suggested_filename == f"checkpoint-{kept}.safetensors"
    saved.value.save_as(tmp_path / "rescued.safetensors")
    with wave_training() as train:
        train.load(tmp_path / "rescued.safetensors")
        assert train.step({n: x[:16] for n, x in waves().items()}).step == kept + 1
    page.context.close()


def test_the_last_checkpoint_outlives_the_device_and_the_worker(
    doomed: Any, served: tuple[str, Path], tmp_path: Path
) -> None:
    tab = Tab(doomed, served)
    inputs = batches(SINE, 4)
    told = "const { bytes, step } = train.lastCheckpoint; return [Array.from(bytes), step];"
    with compiled(SINE) as train:
        tab.load(train, "outlives")
        tab.steps(inputs[:1])
        assert tab.run("return train.lastCheckpoint;") is None
        bytes_, step = tab.run(f"await train.saveCheckpoint(); {told}")
        assert step == 1
        tab.steps(inputs[1:3])
        lose_the_gpu(doomed, tab.page)
        said = tab.run("return told(await train.step(given(a[0])));", plain(inputs[3]))
        assert said["error"][0] == "DeviceLostError" and "lastCheckpoint has that of step 1" in said["error"][1]
        assert tab.run(told) == [bytes_, 1]
        tab.run("worker.terminate();")
        assert tab.run(told) == [bytes_, 1]
        (tmp_path / "kept").write_bytes(bytes(bytes_))
        train.load(tmp_path / "kept")
        assert train.step(inputs[1]).step == 2


# In the worker: the device is lost at the n-th call of a WebGPU method after the page has called `called`
LOSE_AMID = """([called, [type, method], n, first]) => {
  const kind = self[type].prototype, real = kind[method], own = self.onmessage;
  const queue = Object.getOwnPropertyDescriptor(GPUDevice.prototype, "queue");
  let device, left = n;
  Object.defineProperty(GPUDevice.prototype, "queue", { ...queue, get() { return queue.get.call((device = this)); } });
  const counted = function (...args) {
    const lose = --left === 0;
    if (lose) kind[method] = real;
    if (lose && first) device.destroy();
    const made = real.apply(this, args);
    if (lose && !first) return Promise.resolve(made).then((x) => (device.destroy(), x));
    return made;
  };
  self.onmessage = (event) => {
    if (event.data.method === called) {
      self.onmessage = own;
      kind[method] = counted;
    }
    return own.call(self, event);
  };
}"""
READ, WRITTEN = ("GPUBuffer", "mapAsync"), ("GPUQueue", "writeBuffer")
SAVED = "return train.saveCheckpoint().then((x) => Array.from(x), (e) => [e.name, e.message]);"
KEPT = "return [train.stepCount, Array.from(train.lastCheckpoint.bytes), train.lastCheckpoint.step];"


def test_a_device_lost_amid_a_checkpoint_fails_it_and_the_last_one_stays(tab: Tab) -> None:
    """Whichever array is being read, and whether its bytes have arrived; then without another device."""
    inputs = batches(SINE, 4)
    with compiled(SINE) as train:
        tab.load(train, "amid")
        tab.steps(inputs[:2])
        kept = tab.run(SAVED)
        want = tab.steps(inputs[2:])
        for n in (1, 2, 3):
            for first in (True, False):
                tab.page.workers[0].evaluate(LOSE_AMID, ["saveCheckpoint", READ, n, first])
                said = tab.run(SAVED)
                assert said[0] == "DeviceLostError" and "from the last checkpoint, step 2" in said[1], (n, first, said)
                assert tab.run(KEPT) == [2, kept, 2]
                assert tab.steps(inputs[2:]) == want
        tab.page.workers[0].evaluate(NO_ADAPTER)
        tab.page.workers[0].evaluate(LOSE_AMID, ["saveCheckpoint", READ, 2, True])
        for _ in range(2):
            said = tab.run(SAVED)
            assert said[0] == "DeviceLostError" and "lastCheckpoint has that of step 2" in said[1], said
            assert tab.run(KEPT)[1:] == [kept, 2]


@pytest.mark.parametrize("n", [1, 3])
def test_a_device_lost_amid_loading_a_checkpoint_goes_on_from_it(tab: Tab, n: int) -> None:
    """What is written to a lost device goes nowhere, but the checkpoint is kept before the loss is noticed."""
    inputs = batches(SINE, 4)
    load = "return train.loadCheckpoint(Uint8Array.from(a[0])).then(() => train.stepCount);"
    with compiled(SINE) as train:
        tab.load(train, "loading")
        tab.steps(inputs[:2])
        kept = tab.run(SAVED)
        want = tab.steps(inputs[2:])
        tab.page.workers[0].evaluate(LOSE_AMID, ["loadCheckpoint", WRITTEN, n, True])
        assert tab.run(load, kept) == 2
        failed = tab.run("return told(await train.step(given(a[0])));", plain(inputs[2]))
        assert failed["error"][0] == "DeviceLostError" and "from the last checkpoint, step 2" in failed["error"][1]
        assert tab.run(KEPT) == [2, kept, 2] and tab.steps(inputs[2:]) == want


def test_the_page_says_that_its_own_checkpoint_lost_the_device(browser: Any, served: tuple[str, Path]) -> None:
    """It stops: without a word it would train on from an earlier step."""
    url, folder = served
    page = ready(open_page(browser, f"{url}/{wave_page(folder / 'silent').parent.name}/"))
    page.workers[0].evaluate(LOSE_AMID, ["saveCheckpoint", READ, 1, True])
    page.click("#start")
    wait_for_steps(page, 50)
    page.evaluate("{ const now = performance.now.bind(performance); performance.now = () => now() + 30_000; }")
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert "continues from the last checkpoint, step 0" in page.inner_text("#status")
    until(page, "() => document.getElementById('start').textContent === 'Start'")
    assert page.inner_text("#count") == "0" and page.evaluate("train.stepCount") == 0
    page.click("#start")
    wait_for_steps(page, 20)
    assert page.problems == []
    page.context.close()


WEIGHTS = ("weights.safetensors", "data.safetensors", "checks.safetensors")


def test_a_damaged_site_says_so_in_a_sentence(browser: Any, served: tuple[str, Path]) -> None:
    url, folder = served
    wave_page(folder / "damaged")
    whole = {name: (folder / "damaged" / name).read_bytes() for name in ("program.json", *WEIGHTS)}
    cases = [
        ("program.json", whole["program.json"][:5000], "program.json is not JSON"),
        ("program.json", b"<!doctype html>", "program.json is not JSON"),
        ("program.json", b'{"title": "x"}', "program.json was not written by train.export of tracegrad"),
        (
            "program.json",
            whole["program.json"].replace(b'"version":2', b'"version":1', 1),
            "program.json has version 1",
        ),
        ("program.json", whole["program.json"].replace(b'"kernel":0', b'"kernel":99', 1), "kernel is 99; there are"),
        ("weights.safetensors", whole["weights.safetensors"][:-3], "weights: not a valid safetensors file"),
        ("data.safetensors", whole["data.safetensors"][:100], "not a valid safetensors file"),
        ("checks.safetensors", whole["checks.safetensors"][:-3], "checks: not a valid safetensors file"),
        (
            "checks.safetensors",
            whole["checks.safetensors"].replace(rb"\"role\":\"input\"", rb"\"role\":\"other\"", 1),
            'checks.safetensors is damaged: train: program.buffers[0].role is "other"',
        ),
    ]
    code = "import('/damaged/tracegrad.js').then((x) => x.load('/damaged')).catch((e) => [e.name, e.message])"
    for name, data, want in cases:
        (folder / "damaged" / name).write_bytes(data)
        page = open_page(browser, f"{url}/damaged/?from=/elsewhere/")  # with a cache of its own
        until(page, "() => document.getElementById('status').classList.contains('problem')")
        assert want in page.inner_text("#status") and page.is_disabled("#start")
        kind, message = page.evaluate(code)
        assert kind == "InputError" and want in message and "\n" not in message, (name, message)
        assert page.problems == []
        page.context.close()
        (folder / "damaged" / name).write_bytes(whole[name])
    page = ready(open_page(browser, f"{url}/damaged/?from=/elsewhere/#here"))
    assert page.problems == []
    page.context.close()


@pytest.mark.parametrize(
    ("pattern", "change", "want"),
    [
        (r'id="program">\{', 'id="program">', "program.json is not JSON"),
        (r'"version":2,"title"', '"version":7,"title"', "program.json has version 7"),
        (r'id="weights">.{20}', 'id="weights">', "weights: not a valid safetensors file: its header has"),
        (r'id="weights">.', 'id="weights">*', "the weights of this page are damaged"),
    ],
)
def test_a_damaged_file_says_so_in_a_sentence(
    browser: Any, tmp_path: Path, pattern: str, change: str, want: str
) -> None:
    file = wave_page(tmp_path / "page.html", single_file=True)
    text, found = re.subn(pattern, lambda _: change, file.read_text(encoding="utf-8"), count=1)
    assert found == 1
    file.write_text(text, encoding="utf-8")
    page = open_page(browser, file.as_uri())
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert want in page.inner_text("#status") and page.is_disabled("#start") and page.problems == []
    page.context.close()
