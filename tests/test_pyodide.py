"""Python in a browser's worker, without NumPy: traced, compiled and trained there, on the browser's WebGPU."""

from __future__ import annotations

import base64
import importlib.util
import re
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import browser, open_page, served, until
from models import Training
from pyodide_tab import ROOT, Python, pyodide, python, wheel
from test_browser import LOSS, SEED, SINE, SMALL, STEPS, Tab, batches, compiled
from test_verify_pages import LYING
from tracegrad.runtime.recorded import file_of, recorded

__all__ = ["browser", "pyodide", "python", "served", "wheel"]  # fixtures

SAME_ADAPTER = 1e-5
MODELS = {"models.py": (Path(__file__).parent / "models.py").read_text(encoding="utf-8")}
TRAININGS = {
    "sine": "sine(batch=16, width=8)",
    "cnn": "cnn(batch=4, side=8, a=3, b=5)",
    "gpt": "gpt(batch=2, vocabulary=11, context=8, width=8, layers=2, p=0.1)",
    "rnn": "rnn(batch=3, length=7, width=5)",
}
COMPILED = "from models import *\ntrain = tg.compile(**sine(batch=16, width=8).arguments(), seed=7)\n"


def listed(inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: x.tolist() for name, x in one.items()} for one in inputs]


@pytest.mark.parametrize("training", SMALL, ids=repr)
def test_losses_are_those_of_the_exported_page_and_of_the_cpu(
    python: Python, browser: Any, served: tuple[str, Path], training: Training
) -> None:
    inputs = batches(training, STEPS)
    code = f"""
    from models import *
    assert "numpy" not in sys.modules
    train = tg.compile(**{TRAININGS[training.name]}.arguments(), seed={SEED})
    losses = [(await train.step(x)).loss for x in inputs[:5]]
    stacked = {{name: [x[name] for x in inputs[5:]] for name in inputs[0]}}
    r = await train.run_steps(len(inputs) - 5, stacked)
    first = train.program.to_json()
    answer = [losses + list(r.losses), r.step, str(train.device), first]
    train.close()
    """
    losses, step, device, program = python.run(code, MODELS, inputs=listed(inputs))
    assert step == STEPS and device.startswith("webgpu")
    with compiled(training) as train:
        assert program == train.program.to_json()  # the same bytes, wherever it was compiled
        tab = Tab(browser, served)
        tab.load(train, f"beside-{training.name}", fresh=True)
        np.testing.assert_allclose(losses, tab.steps(inputs), rtol=SAME_ADAPTER)
        tab.page.context.close()
        np.testing.assert_allclose(losses, [train.step(x).loss for x in inputs], rtol=LOSS)


def test_first_values_are_the_cpus_bit_for_bit(python: Python) -> None:
    code = """
    class All(tg.Module):
        def __init__(self):
            kinds = [tg.init.randn(0.5), tg.init.kaiming(), tg.init.xavier(), tg.init.uniform(-0.3, 1.7)]
            self.w = [self.param((7, 5), init=i) for i in (*kinds, tg.init.ones())]
            self.fixed = self.param((2, 2), init=tg.init.literal([[1.5, -0.0], [0.1, 3.0]]))
    """
    forward = "lambda m, x: x + sum((tg.sum(w) for w in m.w), start=tg.sum(m.fixed))"
    scope: dict[str, Any] = {"tg": tg}
    exec(textwrap.dedent(code), scope)
    with tg.compile_forward(
        model=scope["All"](), forward=eval(forward, {"tg": tg}), inputs={"x": (1,)}, seed=3, device="cpu"
    ) as infer:
        want = {name: x.tobytes().hex() for name, x in infer.download_params().items()}
    got = python.run(
        textwrap.dedent(code)
        + f"f = tg.compile_forward(model=All(), forward={forward}, inputs={{'x': (1,)}}, seed=3)\n"
        "answer = {name: x.tobytes().hex() for name, x in f.download_params().items()}\n"
        "r = await f.run(x=[0.0])\nassert r.output.shape == (1,)\nf.close()\n"
    )
    assert got == want


def test_kernels_are_checked_where_numpy_is_loaded(python: Python) -> None:
    """This tab has no NumPy, so what the check expects was evaluated elsewhere; all else is what a tab with it does."""
    with compiled(SINE) as train:
        check = recorded(train.program, {})
        assert check is not None
        checks = base64.b64encode(file_of({"program": check})).decode()
    lie = LYING.partition("serve }")[2].partition(";")[2].rpartition("serve(self)")[0]
    code = """
    import base64, builtins, pyodide
    from models import *
    from tracegrad.runtime import browser
    asked = []
    def check_of(program):
        def told():
            asked.append(len(program.kernels))
            return browser.sent(base64.b64decode(checks))
        return pyodide.ffi.create_proxy(told)
    own, browser.check_of = browser.check_of, check_of
    assert own(None) is None
    made = pyodide.code.run_js("GPUDevice.prototype").createShaderModule
    pyodide.code.run_js(lie)
    answer = []
    for k in range(3):
        try:
            with tg.compile(**sine(batch=16, width=8).arguments(), seed=7) as train:
                r = await train.step(inputs[0])
                answer.append([type(r).__name__, str(getattr(r, "error", "")), len(asked)])
        except tg.CompileError as e:
            answer.append(["CompileError", str(e), len(asked)])
        pyodide.code.run_js("GPUDevice.prototype").createShaderModule = made
    browser.check_of = own
    """
    lie = lie.format(old="(ta0 + xa0)", new="(ta0 - xa0)", end="''")
    first, *others = python.run(code, MODELS, inputs=listed(batches(SINE, 1)), checks=checks, lie=lie)
    assert re.search(r"kernel \S.* computes wrongly on this device: a value is ", first[1]) and first[2] == 1
    assert first[0] != "CompileError" or re.search(r"models.py:\d+", first[1])  # Python could wait for it
    assert [x[0] for x in others] == ["CompletedStep"] * 2
    assert [x[2] for x in others] == [2, 2]  # a verdict is kept


def test_results_are_memoryviews_with_shape(python: Python) -> None:
    code = (
        COMPILED
        + """
def forward(m, x):
    h = tg.capture("hidden", tg.relu(m.l1(x)))
    return {"y": tg.patch("out", m.l3(tg.relu(m.l2(h)))), "best": tg.argmax(h, -1)}
import js
from array import array
both = train.attach(forward=forward, inputs={"x": (None, 1)})
given = [array("f", [1, 2, 3]), js.Float32Array.new([1, 2, 3]), memoryview(array("d", [1, 2, 3])), [[1], [2], [3]]]
runs = [await both.run(x=memoryview(g).cast("B").cast("f", (3, 1)) if isinstance(g, array)
        else g if not isinstance(g, memoryview) else g.cast("B").cast("d", (3, 1))) for g in given]
assert all(isinstance(r, tg.Completed) for r in runs), runs
patched = both.run(x=[[1], [2], [3]], patches={"out": ([[True], [False], [True]], [[9.0], [9.0], [9.0]])}).output["y"]
r = runs[0]
answer = [[r.output["y"].tolist() == one.output["y"].tolist() for one in runs],
          [r.output["y"].shape, r.output["y"].format, r.output["best"].shape, r.output["best"].format],
          [r.captures["hidden"].shape, type(r.captures["hidden"]).__name__],
          [patched.tolist()[0], patched.tolist()[1] == r.output["y"].tolist()[1], patched.tolist()[2]]]
train.close()
worst = lambda m, x, y: (sine_loss(m, x, y), {"worst": tg.max(tg.abs(sine_predict(m, x) - y))})
with tg.compile(**{**sine(batch=2, width=8).arguments(), "loss": worst}, seed=7) as train:
    r = await train.step(x=[[0.0], [1.0]], y=[[0.0], [1.0]])
    assert r.aux["worst"].shape == () and r.aux["worst"][()] > 0 and r.losses[0] == r.loss
"""
    )
    same, types, capture, patched = python.run(code, MODELS)
    assert same == [True] * 4
    assert types == [[3, 1], "f", [3], "i"] and capture == [[3, 8], "memoryview"]
    assert patched == [[9.0], True, [9.0]]


def test_many_sizes_share_programs(python: Python) -> None:
    code = """
    from tracegrad import nn, optim
    class Net(tg.Module):
        def __init__(self):
            self.q, self.k, self.v = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 3)
        def __call__(self, x):
            return tg.softmax(self.q(x) @ tg.swapaxes(self.k(x), -1, -2), -1) @ self.v(x)
    def compiled(**more):
        return tg.compile(model=Net(), loss=lambda m, x, y: tg.mse_loss(m(x), y), seed=3, optimizer=optim.adam(0.01),
                          inputs={"x": ("B", "T", 3), "y": ("B", "T", 3)}, **more)
    """
    train_there = """
    from tracegrad.runtime import browser
    loads, own = [], browser.BrowserSession.load
    browser.BrowserSession.load = lambda self, program: loads.append(program) or own(self, program)
    with compiled() as train:
        infer = train.attach(forward=lambda m, x: m(x), inputs={"x": ("B", "T", 3)})
        losses = [(await train.step(x)).loss for x in inputs]
        train.freeze("q.*")
        outputs = [(await infer.run(x=x["x"])).output.tolist() for x in inputs[-3:]]
    browser.BrowserSession.load = own
    answer = [losses, outputs, len(loads)]
    """
    rng = np.random.default_rng(0)
    sizes = [(b, t) for b in (3, 5, 2, 7) for t in (4, 6, 3, 8)]
    inputs = [{n: rng.standard_normal((*s, 3)).astype(np.float32) for n in "xy"} for s in sizes]
    losses, outputs, loads = python.run(textwrap.dedent(code) + textwrap.dedent(train_there), inputs=listed(inputs))
    assert loads <= 10, "of 19 choices of sizes"
    scope: dict[str, Any] = {"tg": tg}
    exec(textwrap.dedent(code), scope)
    with scope["compiled"](device="cpu") as train:
        np.testing.assert_allclose(losses, [train.step(x).loss for x in inputs], rtol=LOSS)
        infer = train.attach(forward=lambda m, x: m(x), inputs={"x": ("B", "T", 3)})
        for x, output in zip(inputs[-3:], outputs):
            np.testing.assert_allclose(output, infer.run(x=x["x"]).output, rtol=1e-4, atol=1e-6)


def test_checkpoints_go_both_ways(python: Python, tmp_path: Path) -> None:
    inputs = batches(SINE, 8)
    with compiled(SINE) as train, compiled(SINE) as other:
        for x in inputs[:3]:
            train.step(x).result()
        train.save(tmp_path / "native")
        code = (
            COMPILED
            + """
import base64
open("native", "wb").write(base64.b64decode(saved))
train.load("native")
train.save("back")
r = [(await train.step(x)).loss for x in inputs]
train.save("later")
site = train.export("site", forwards={"predict": train.attach(forward=sine_predict, inputs={"x": (None, 1)})})
import os
answer = [r, *[base64.b64encode(open(name, "rb").read()).decode() for name in ("back", "later")],
          sorted(os.listdir("site")), train.step(inputs[0]).step]
train.close()
"""
        )
        saved = base64.b64encode((tmp_path / "native").read_bytes()).decode()
        losses, back, later, files, step = python.run(code, MODELS, saved=saved, inputs=listed(inputs[3:6]))
        assert base64.b64decode(back) == (tmp_path / "native").read_bytes()
        np.testing.assert_allclose(losses, [train.step(x).loss for x in inputs[3:6]], rtol=LOSS)
        (tmp_path / "later").write_bytes(base64.b64decode(later))
        other.load(tmp_path / "later")
        np.testing.assert_allclose(other.step(inputs[6]).loss, train.step(inputs[6]).loss, rtol=LOSS)
        assert step == 7 and {"index.html", "tracegrad.js", "program.json", "weights.safetensors"} <= set(files)


def test_what_goes_wrong_is_said_as_natively(python: Python) -> None:
    inputs = listed(batches(SINE, 4))
    code = (
        COMPILED
        + """
def told(r):
    kind = type(r).__name__
    return [kind, type(r.error).__name__, str(r.error)] if isinstance(r, tg.Failed) else [kind, str(r)]
answer = [told(await train.step(x=inputs[0]["x"], z=1))]
before = train.download_params()
bad = {name: list(x) for name, x in inputs[1].items()}
bad["y"][3] = [math.nan]
queued = [train.step(x) for x in (inputs[0], bad, inputs[2])]
answer += [told(await p) for p in queued]
after = [queued[0].step, queued[2].step]
r = await train.run_steps(2, {name: [inputs[3][name], bad[name]] for name in bad})
answer += [told(r), after, train.step(inputs[3]).step]
try:
    tg.compile(**sine(batch=16, width=8).arguments(), device="cpu")
except tg.DeviceError as e:
    answer.append(str(e))
try:
    train.upload_params({"l1.W": [[1.0]], "no": [1]})
except tg.InputError as e:
    answer.append(str(e))
under_way = train.step(inputs[0])
train.close()
answer.append([told(await under_way), told(await train.step(inputs[0]))])
"""
    )
    missing, first, nan, third, several, steps, last, cpu, upload, closed = python.run(code, MODELS, inputs=inputs)
    assert missing[:2] == ["Failed", "InputError"] and "y: missing, expected f32[16,1]" in missing[2]
    assert "z: unknown" in missing[2]
    assert first[0] == third[0] == "CompletedStep" and steps == [1, 2]
    assert nan[:2] == ["Failed", "NonFiniteError"] and "step 2: the loss is nan; nothing was changed" in nan[2]
    assert several[:2] == ["Failed", "NonFiniteError"] and "step 2 of 2" in several[2] and last == 4
    assert "needs NumPy" in cpu
    assert "expected f32[1,8], got" in upload and "no: no such parameter" in upload
    assert closed == [["Aborted", "Aborted(reason='closed')"]] * 2


def test_hot_values_reset_fit_and_another_model(python: Python) -> None:
    inputs = batches(SINE, 6)
    with compiled(SINE) as train:
        train.step(inputs[0]).result()
        train.set_lr(tg.lr.cosine_annealing(0.1, 0.001, 4))
        train.set(beta1=0.5)
        want = [train.step(x).loss for x in inputs[1:4]]
        train.reset()
        want += [train.step(inputs[0]).loss]
    code = (
        COMPILED
        + """
infer = train.attach(forward=sine_predict, inputs={"x": (4, 1)})
(await train.step(inputs[0]))
train.set_lr(tg.lr.cosine_annealing(0.1, 0.001, 4))
train.set(beta1=0.5)
losses = [train.step(x).loss for x in inputs[1:4]]
train.reset()
losses.append(train.step(inputs[0]).loss)
x = {"x": [[0.0]] * 4}
old = train.download_params()
train.upload_params({name: v for name, v in old.items()}, strict=True)
a = infer.run(x).output.tolist()
waiting = [train.step(inputs[0]) for _ in range(20)]  # more than may be in flight
train.replace_model(SineMLP(5))
b = infer.run(x).output.tolist()
kinds = sorted({type(await p).__name__ for p in waiting})
history = train.fit([inputs[0], inputs[1]], epochs=3, progress=False)
seen = []
train.step(inputs[0]).add_done_callback(lambda p: seen.append(train.step(inputs[0]).loss))  # waits in a callback
await train.step(inputs[1])
import asyncio
await asyncio.sleep(0.2)
answer = [losses, a != b, kinds, len(history.loss), train.download_params()["l1.W"].shape, len(seen)]
train.close()
"""
    )
    losses, changed, kinds, fitted, shape, seen = python.run(code, MODELS, inputs=listed(inputs))
    np.testing.assert_allclose(losses, want, rtol=LOSS)
    assert changed and set(kinds) <= {"Aborted", "CompletedStep"} and fitted == 6 and shape == [1, 5] and seen == 1


def test_averages_and_gradients(python: Python) -> None:
    inputs = batches(SINE, 3)
    code = """
    from models import *
    from tracegrad import optim
    arguments = {**sine(batch=16, width=8).arguments(), "optimizer": optim.adam(lr=1e-2, ema=0.5)}
    train = tg.compile(**arguments, seed=7, keep_grads=True)
    for x in inputs:
        await train.step(x)
    kept = train.download_params(ema=True), train.download_grads()
    answer = [{name: x.tolist() for name, x in one.items()} for one in kept]
    train.close()
    """
    got = python.run(code, MODELS, inputs=listed(inputs))
    arguments = {**SINE.arguments(), "optimizer": tg.optim.adam(lr=1e-2, ema=0.5)}
    with tg.compile(**arguments, seed=SEED, device="cpu", keep_grads=True) as train:
        for x in inputs:
            train.step(x).result()
        for mine, theirs in zip(got, (train.download_params(ema=True), train.download_grads())):
            for name, x in theirs.items():
                np.testing.assert_allclose(mine[name], x, rtol=1e-3, atol=1e-6, err_msg=name)


def test_steps_queued_together_are_one_submission(python: Python) -> None:
    code = (
        COMPILED
        + """
from tracegrad.runtime.tab import javascript
runs = []
session = train.worker._session
class Counted:
    def __init__(self, tab): self.tab = tab
    def __getattr__(self, name):
        if name == "run":
            return lambda handle, n, data: runs.append(n) or self.tab.run(handle, n, data)
        return getattr(self.tab, name)
session._tab = Counted(session._tab)
train.store.stepper.main.at_once = 10
await train.run_steps(10, x=[[0.5]] * 16, y=[[0.5]] * 16)
answer = [runs, train.step(x=[[0.5]] * 16, y=[[0.5]] * 16).step]
train.close()
"""
    )
    runs, step = python.run(code, MODELS)
    assert runs[0] == 10 and step == 11


def test_a_lost_device_is_a_clear_failure(python: Python) -> None:
    code = (
        COMPILED
        + """
x = {"x": [[0.5]] * 16, "y": [[0.5]] * 16}
await train.step(x)
train.worker._session._tab.destroy()
lost = [await train.step(x) for _ in range(2)]
answer = [[type(r.error).__name__, str(r.error)] for r in lost]
train.close()
"""
    )
    for kind, text in python.run(code, MODELS):
        assert kind == "DeviceLostError" and "load a checkpoint" in text


def test_without_a_way_to_wait_steps_are_still_awaited(python: Python) -> None:
    """As in a browser that cannot switch stacks: Pyodide says so, and only what needs waiting is refused."""
    code = """
    import pyodide.ffi
    real = pyodide.ffi.can_run_sync
    pyodide.ffi.can_run_sync = lambda: False
    try:
        from models import *
        train = tg.compile(**sine(batch=16, width=8).arguments(), seed=7)
        x = {"x": [[0.5]] * 16, "y": [[0.5]] * 16}
        losses = [(await train.step(x)).loss for _ in range(3)] + list((await train.run_steps(3, x)).losses)
        infer = train.attach(forward=sine_predict, inputs={"x": (None, 1)})
        out = (await infer.run(x=[[0.5]])).output.tolist()
        texts = []
        for call in (train.download_params, train.step(x).result):
            try:
                call()
            except tg.DeviceError as e:
                texts.append(str(e))
        answer = [losses, out, texts]
    finally:
        pyodide.ffi.can_run_sync = real
    train.close()
    """
    losses, out, texts = python.run(code, MODELS)
    assert losses[-1] < losses[0] and len(losses) == 6 and len(out) == 1
    assert len(texts) == 2 and all("cannot switch stacks" in t for t in texts)


def test_webgpu_is_found(python: Python) -> None:
    ok, adapter, devices = python.run(
        "s = tg.check_webgpu()\nanswer = [s.ok, s.adapter.name, [d.name for d in tg.devices()]]"
    )
    assert ok and "swiftshader" in adapter.lower() and devices == ["webgpu"]


def test_the_wheel_asks_for_nothing_in_a_browser(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        text = next(z.read(n).decode() for n in z.namelist() if n.endswith("METADATA"))
    needs = [line for line in text.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert len(needs) == 2 and all("sys_platform != 'emscripten'" in line for line in needs)


IN_THE_PAGE = """async ([wheel, code]) => {
  const { loadPyodide } = await import("/pyodide/pyodide.mjs");
  const python = await loadPyodide();
  await python.loadPackage(wheel, { messageCallback: () => {} });
  return await python.runPythonAsync(code);
}"""


def test_python_may_live_in_the_page_itself(browser: Any, pyodide: tuple[str, Path], wheel: Path) -> None:
    code = """
    import tracegrad as tg
    train = tg.compile(model=tg.nn.Linear(1, 1), loss=lambda m, x: tg.mean(tg.square(m(x) - 2 * x)),
                       inputs={"x": (4, 1)}, optimizer=tg.optim.sgd(lr=0.1), seed=0)
    x = [[0.5], [1.0], [1.5], [2.0]]
    losses = [(await train.step(x=x)).loss, *(await train.run_steps(20, x=x)).losses, train.step(x=x).loss]
    train.close()
    losses[-1] / losses[0]
    """
    page = open_page(browser, f"{pyodide[0]}/blank.html")
    given = [f"/{wheel.name}", textwrap.dedent(code)]
    try:
        ratio = page.evaluate(IN_THE_PAGE, given)
    except Exception as e:
        if "Target crashed" not in str(e):
            raise
        page.context.close()  # Chromium itself crashed, as it does on a busy machine: once more
        page = open_page(browser, f"{pyodide[0]}/blank.html")
        ratio = page.evaluate(IN_THE_PAGE, given)
    assert ratio < 0.05
    assert page.problems == []
    page.context.close()


def build_page() -> Any:
    """The example's tool, which no package holds."""
    spec = importlib.util.spec_from_file_location("build_page", ROOT / "examples" / "pyodide" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_page_runs_edited_programs_and_stops(browser: Any, pyodide: tuple[str, Path], wheel: Path) -> None:
    url, folder = pyodide
    build_page().build(folder / "example", folder / "pyodide", wheel)
    page = open_page(browser, f"{url}/example/index.html")
    status = "(text) => document.getElementById('status').value.startsWith(text)"
    output = lambda: page.inner_text("#output")
    until(page, status, "Ready")
    program = page.input_value("#program")
    assert "STEPS, BATCH = 300, 32" in program
    # seeded: of 400 random draws of batches two missed the bound below
    edited = program.replace("300, 32", "120, 8\nrandom.seed(0)")
    page.fill("#program", edited.replace("r.loss)", "r.loss); print(r.loss)"))
    page.click("#run")
    until(page, status, "Done")
    losses = [float(line) for line in output().splitlines() if re.fullmatch(r"[\d.e+-]+", line)]
    assert page.inner_text("#step") == "120" and len(losses) == 120
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    painted = "() => document.getElementById('chart').getContext('2d').getImageData(0, 0, 900, 200).data.some((x) => x)"
    assert page.evaluate(painted)
    assert "webgpu" in output() and "sin( 2)" in output()

    page.fill("#program", program.replace("300, 32", "100000, 8"))
    page.press("#program", "Control+Enter")
    until(page, "() => Number(document.getElementById('step').value) >= 5")
    page.click("#stop")
    until(page, status, "Stopped")

    page.fill("#program", program.replace("self.l3 = nn.Linear(width, 1)", "self.l3 = nn.Linear(width + 1, 1)"))
    page.click("#run")
    until(page, status, "Failed")
    assert "ShapeError" in output() and "m.l3(tg.relu(m.l2(tg.relu(m.l1(x)))))" in output()

    page.fill("#program", "while True: pass")
    page.click("#run")
    page.click("#stop")
    until(page, status, "Ready")  # Python was ended and started again
    page.fill("#program", "import tracegrad as tg; print(tg.check_webgpu().ok)")
    page.click("#run")
    until(page, status, "Done")
    assert output().strip() == "True"
    assert page.problems == []
    page.context.close()
