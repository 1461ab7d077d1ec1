"""`train.export`: pages that train in Chromium, from a server and from a file, and that let nothing in."""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import browser, open_page, served, until
from models import SineMLP, Training, cnn, cnn_logits, gpt, gpt_logits, sine, sine_loss, sine_predict
from tracegrad import lr, nn, optim
from tracegrad.commands import cli, site
from tracegrad.errors import InputError

__all__ = ["browser", "served"]  # fixtures

HOSTILE = "</script><script>globalThis.broken=1</script>\"'`${1}&<img src=x onerror=broken=1><!-- {{body}}"
SINE = sine(batch=16, width=8, optimizer=lambda: optim.adam(lr=1e-2))


def compiled(training: Training = SINE) -> tg.CompiledTraining:
    return tg.compile(**training.arguments(), seed=3, device="cpu")


def waves(n: int = 400) -> dict[str, Any]:
    x = np.random.default_rng(0).uniform(-3, 3, (n, 1)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


def wave_page(path: Path, **more: Any) -> Path:
    with compiled() as train:
        predict = train.attach(forward=sine_predict, inputs={"x": (None, 1)})
        return train.export(path, forwards={"predict": predict}, data=waves(), **more)


def ready(page: Any) -> Any:
    until(page, "() => document.getElementById('status').textContent.startsWith('Ready')")
    return page


def count(page: Any) -> int:
    return int(page.inner_text("#count"))


def wait_for_steps(page: Any, n: int) -> None:
    until(page, "(n) => Number(document.getElementById('count').textContent) >= n", n)


def train_for(page: Any, steps: int) -> None:
    """Start, and pause once that many steps are done."""
    page.click("#start")
    wait_for_steps(page, steps)
    page.click("#start")
    until(page, "() => document.getElementById('start').textContent === 'Start'")


@pytest.mark.parametrize("single_file", [False, True], ids=["site", "file"])
def test_the_page_trains(browser: Any, served: tuple[str, Path], tmp_path: Path, single_file: bool) -> None:
    url, folder = served
    if single_file:
        url = wave_page(tmp_path / "page.html", single_file=True).as_uri()
    else:
        wave_page(folder / "wave")
        url = f"{url}/wave/"
    page = ready(open_page(browser, url))
    assert "swiftshader" in page.inner_text("#adapter") and page.inner_text("#rate-shown") == "0.01000"
    page.click("#step")
    wait_for_steps(page, 1)
    first = float(page.inner_text("#loss"))
    train_for(page, 300)
    assert float(page.inner_text("#loss")) < first / 2
    assert float(page.inner_text("#speed")) > 0
    assert "to" in page.get_attribute("#chart", "aria-label")
    if folder_of_docs := os.environ.get("TRACEGRAD_SCREENSHOTS"):
        page.wait_for_timeout(500)
        page.screenshot(path=Path(folder_of_docs, "page.png"), full_page=True)

    page.fill("#rate", "-6")  # so small that the parameters stay
    bias = "train.downloadParams().then((p) => Array.from(p['l1.b'].data))"
    before, begun = page.evaluate(bias), count(page)
    assert page.inner_text("#rate-shown") == "1.00e-6"
    train_for(page, count(page) + 5)
    np.testing.assert_allclose(page.evaluate(bias), before, rtol=0, atol=3e-6 * (count(page) - begun))
    assert page.evaluate("train.lr") == pytest.approx(1e-6)

    with page.expect_download() as saved:
        page.click("#save")
    saved.value.save_as(tmp_path / "saved.safetensors")
    done = count(page)
    with compiled() as train:
        train.load(tmp_path / "saved.safetensors")
        batch = {n: x[:16] for n, x in waves().items()}
        assert train.step(batch).step == done + 1
        train.save(tmp_path / "python.safetensors")
    page.click("#reset")
    until(page, "() => document.getElementById('count').textContent === '0'")
    page.set_input_files("#open", tmp_path / "python.safetensors")
    until(page, "() => document.getElementById('status').textContent.startsWith('Loaded')")
    assert count(page) == done + 1
    page.set_input_files("#open", Path(__file__))
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert "not a valid safetensors file" in page.inner_text("#status")
    assert page.problems == []
    page.context.close()


def test_a_hostile_title_and_names_inject_nothing(browser: Any, served: tuple[str, Path], tmp_path: Path) -> None:
    class Hostile(SineMLP):
        def __init__(self) -> None:
            super().__init__(8)
            self.more = {HOSTILE: nn.Linear(1, 1), "__proto__": nn.Linear(1, 1)}

    def loss(m: Any, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        return sine_loss(m, m.more[HOSTILE](m.more["__proto__"](x)), y)

    url, folder = served
    training = Training("hostile", Hostile, loss, SINE.inputs, SINE.optimizer)
    with compiled(training) as train:
        predict = train.attach(forward=lambda m, x: {HOSTILE: sine_predict(m, x)}, inputs={"x": (4, 1)})
        common: dict[str, Any] = {"forwards": {HOSTILE: predict}, "data": waves(), "title": HOSTILE}
        common["labels"] = [HOSTILE]
        train.export(folder / "hostile", **common)
        file = train.export(tmp_path / "hostile.html", single_file=True, **common)
    for address in (f"{url}/hostile/", file.as_uri()):
        page = ready(open_page(browser, address))
        assert page.title() == page.inner_text("h1") == HOSTILE
        train_for(page, 5)
        page.click("article button")
        page.wait_for_selector("article pre:not(:empty)")
        assert page.inner_text("h3") == HOSTILE
        assert page.evaluate("globalThis.broken") is None
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        saved = page.evaluate("train.saveCheckpoint().then((b) => train.loadCheckpoint(b)).then(() => train.stepCount)")
        assert saved == count(page) and page.problems == []
        page.context.close()


def test_examples_may_be_long(tmp_path: Path) -> None:
    """The kernel that draws them counts as many as 32 bits allow, and no more."""
    wide = Training("wide", lambda: nn.Linear(784, 1), wide_loss, {"x": (4, 784)}, SINE.optimizer)
    with compiled(wide) as train:
        train.export(tmp_path, data={"x": np.zeros((8, 784), np.float32)})
    assert (tmp_path / "index.html").exists()


def wide_loss(m: nn.Linear, x: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(m(x)))


def test_the_policy_forbids_what_the_page_does_not_need(tmp_path: Path) -> None:
    file = wave_page(tmp_path / "page.html", single_file=True).read_text()
    index = wave_page(tmp_path / "site").read_text()
    for text in (file, index):
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy and "unsafe" not in policy[1] and "default-src &#x27;none&#x27;" in policy[1]
        assert not re.search(r"https?://", re.sub(r"//[^\n]*", "", index))
    assert {p.name for p in (tmp_path / "site").iterdir()} == {
        "index.html", "page.css", "page.js", "tracegrad.js", "checks.js", "arrays.js", "safetensors.js", "manifest.js",
        "trial.js", "random.js", "rooms.js", "verify.js", "tracegrad.d.ts", "worker.js", "program.json",
        "weights.safetensors", "data.safetensors", "checks.safetensors",
    }  # fmt: skip
    program = json.loads((tmp_path / "site" / "program.json").read_text())
    for part in ("train", "feed"):
        assert all("numpy" not in k and "wgsl" in k for k in program[part]["kernels"])
    assert len(json.dumps(program["feed"])) < len(json.dumps(program["train"])) / 2


def test_without_webgpu_the_page_says_what_to_do(browser: Any, tmp_path: Path) -> None:
    file = wave_page(tmp_path / "page.html", single_file=True)
    context = browser.new_context()
    context.add_init_script("Object.defineProperty(Navigator.prototype, 'gpu', { get: () => undefined });")
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("#status.problem")
    assert "does not offer WebGPU" in page.inner_text("#status") and "Firefox" in page.inner_text("#status")
    assert page.is_disabled("#start")
    context.close()


def test_readable_on_a_phone_and_by_keyboard_in_the_dark(browser: Any, tmp_path: Path) -> None:
    file = wave_page(
        tmp_path / "page.html", single_file=True, title="A rather long title of a small training of the sine"
    )
    page = ready(open_page(browser, file.as_uri(), viewport={"width": 360, "height": 740}, color_scheme="dark"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 27)"
    seen = []
    for _ in range(6):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
    assert seen == ["start", "step", "reset", "rate", "save", "open"]
    page.focus("#rate")
    page.keyboard.press("ArrowRight")
    until(page, "() => train.lr > 0.0104")  # one notch up, at once
    page.focus("#step")
    page.keyboard.press("Enter")
    wait_for_steps(page, 1)
    assert page.evaluate("train.lr") == pytest.approx(10**-1.98)
    assert page.problems == []
    page.context.close()


def test_a_canvas_for_images_and_continuation_for_tokens(browser: Any, tmp_path: Path) -> None:
    images = cnn(batch=4, side=8, a=3, b=5)
    with compiled(images) as train:
        judge = train.attach(forward=cnn_logits, inputs={"x": (None, 1, 8, 8)})
        names = [f"class {k}" for k in range(10)]
        file = train.export(tmp_path / "a.html", single_file=True, forwards={"judge": judge}, labels=names)
        page = ready(open_page(browser, file.as_uri()))
        until(page, "() => document.querySelectorAll('.bars li').length === 10")
        before = page.inner_text(".bars")
        page.locator("canvas.pad").scroll_into_view_if_needed()
        box = page.locator("canvas.pad").bounding_box()
        page.mouse.move(box["x"] + 40, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 150, box["y"] + 150, steps=5)
        page.mouse.up()
        until(page, "(old) => document.querySelector('.bars').innerText !== old", before)
        assert "class 9" in page.inner_text(".bars") and "no training data" in page.inner_text("#status")
        pixels = "Array.from(document.querySelector('canvas.pad').getContext('2d').getImageData(0, 0, 8, 8).data)"
        red = lambda: [k for k, (r, g, _, _) in enumerate(np.reshape(page.evaluate(pixels), (64, 4))) if r > 2 * g]
        assert red() == []
        page.click("article button")  # Clear
        for key, where in (("ArrowUp", 28), ("ArrowLeft", 27)):  # the pen, seen while it moves without ink
            page.press("canvas.pad", key)
            assert red() == [where] and sum(page.evaluate(pixels)) == 64 * 255 + 240 + 80 + 80
        page.keyboard.down("Space")
        page.keyboard.press("ArrowDown")
        page.keyboard.up("Space")
        page.keyboard.press("Tab")
        assert red() == [] and sum(page.evaluate(pixels)) > 64 * 255 + 1000
        assert page.is_disabled("#start") and page.problems == []
        page.context.close()
    texts = gpt(batch=2, vocabulary=11, context=8, width=8, layers=1)
    with compiled(texts) as train:
        write = train.attach(forward=gpt_logits, inputs={"tokens": tg.i32[None, 8]})
        file = train.export(tmp_path / "b.html", single_file=True, forwards={"write": write}, vocabulary="abcdefghij ")
        page = ready(open_page(browser, file.as_uri()))
        page.fill("article input", "abc")
        page.click("article button")
        until(page, "() => document.querySelector('article pre').textContent.length >= 30")
        assert page.inner_text("article pre").startswith("abc") and page.problems == []
        page.context.close()


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Mine(lr.Schedule):
        start: int | None = None

        def value(self, s: int) -> float:
            return 0.1

        def spec(self) -> dict[str, Any]:
            return {"kind": "mine"}

    with compiled() as train, compiled() as other:
        x = np.zeros((20, 1), np.float32)
        with pytest.raises(InputError, match=r"y: missing.*\n?.*z: no such input|z: no such input"):
            train.export(tmp_path / "no", data={"x": x, "z": x})
        with pytest.raises(InputError, match="numbers of examples differ"):
            train.export(tmp_path / "no", data={"x": x, "y": x[:5]})
        batch = train.input_types["x"].shape[0]
        for data in ({"x": x, "y": x[:batch]}, {"x": x[:batch], "y": x}):  # a batch alone would be drawn whole
            with pytest.raises(InputError, match="numbers of examples differ"):
                train.export(tmp_path / "no", data=data)
        with pytest.raises(InputError, match=r"y: expected examples of f32\[1\]"):
            train.export(tmp_path / "no", data={"x": x, "y": np.zeros((20, 2), np.float32)})
        with pytest.raises(InputError, match="not attached to this training"):
            train.export(tmp_path / "no", forwards={"p": other.attach(forward=sine_predict, inputs={"x": (4, 1)})})
        wrong: Any = [("forwards", [other]), ("forwards", {"p": sine_predict}), ("data", (x, x))]
        for name, value in wrong:
            with pytest.raises(InputError, match=r"as a dict by name, such as|make it with train\.attach"):
                train.export(tmp_path / "no", **{name: value})
        with pytest.raises(
            InputError, match=r"no\.html names a file, but export writes a folder; for one file pass single_file=True"
        ):
            train.export(tmp_path / "no.html", data={"x": x, "y": x})
        with pytest.raises(InputError, match="export: the path is empty"):
            train.export("")
        train.set_lr(Mine())
        with pytest.raises(InputError, match="unknown kind 'mine'"):
            train.export(tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_classes_out_of_range_are_not_exported(tmp_path: Path) -> None:
    """The page's steps draw their batches on the device, where no check would notice."""

    def loss(m: nn.Linear, x: tg.Tensor, label: tg.Tensor) -> tg.Tensor:
        return tg.cross_entropy(m(x), label)

    inputs = {"x": (4, 2), "label": tg.i32[4]}
    train = tg.compile(model=nn.Linear(2, 3), loss=loss, inputs=inputs, optimizer=optim.sgd(lr=0.1), device="cpu")
    with train, pytest.raises(InputError, match=r"label: value 3 at \[1\] is out of range; valid values are 0 to 2"):
        train.export(tmp_path, data={"x": np.zeros((5, 2)), "label": [0, 3, 1, 2, 0]})


def test_serve_shows_a_folder_and_refuses_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(tmp_path), "--no-open"]) == 1
    assert "no index.html" in capsys.readouterr().err
    wave_page(tmp_path / "site")
    with site.server(tmp_path / "site") as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{running.server_port}/worker.js", timeout=10) as answer:
            assert answer.headers["Content-Type"] == "text/javascript" and b"serve(self)" in answer.read()
        running.shutdown()
