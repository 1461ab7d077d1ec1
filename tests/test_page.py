"""The exported page when things go wrong or go on for long: lost devices, dead workers, memory, a second model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracegrad as tg
from browser import HELPERS, browser, memory_of, open_page, plain, served, until
from models import Training, sine_loss
from test_export import SINE, compiled, count, ready, train_for, wait_for_steps, wave_page, waves
from tracegrad import nn

__all__ = ["browser", "served"]  # fixtures

MIB = 2**20
LONG = int(os.environ.get("TRACEGRAD_PAGE_STEPS", "20000"))  # of the long training; 100 000 for smaller leaks
ZEROS = {"x": waves(16)["x"], "y": waves(16)["y"]}


@pytest.fixture(params=["site", "file"])
def page(request: pytest.FixtureRequest, browser: Any, served: tuple[str, Path], tmp_path: Path) -> Iterator[Any]:
    """The page of a sine, ready, from a server and from a file."""
    url, folder = served
    if request.param == "file":
        address = wave_page(tmp_path / "page.html", single_file=True).as_uri()
    else:
        address = f"{url}/{wave_page(folder / 'page').parent.name}/"
    opened = ready(open_page(browser, address))
    yield opened
    assert opened.problems == []
    opened.context.close()


def loss(page: Any) -> float:
    return float(page.inner_text("#loss"))


def test_the_slider_acts_while_the_training_runs(page: Any) -> None:
    train_for(page, 300)
    low = loss(page)
    page.click("#start")
    wait_for_steps(page, 310)
    page.fill("#rate", "0")  # a rate of 1: Adam's steps then throw every parameter far off
    until(page, "(low) => Number(document.getElementById('loss').textContent) > 20 * low", low)
    assert page.inner_text("#start") == "Pause" and page.inner_text("#rate-shown") == "1.000"
    page.fill("#rate", "-6")  # and now nothing moves, though it runs on
    now = count(page)
    wait_for_steps(page, now + 100)
    before = page.evaluate("train.downloadParams().then((p) => Array.from(p['l2.W'].data))")
    now = count(page)
    wait_for_steps(page, now + 20)
    after = page.evaluate("train.downloadParams().then((p) => Array.from(p['l2.W'].data))")
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) < 2e-2
    page.click("#start")
    until(page, "() => document.getElementById('start').textContent === 'Start'")


def test_a_lost_device_is_told_and_the_training_goes_on(browser: Any, page: Any) -> None:
    train_for(page, 50)
    with page.expect_download():
        page.click("#save")
    saved = count(page)
    page.click("#start")
    wait_for_steps(page, saved + 50)
    browser.new_browser_cdp_session().send("Browser.crashGpuProcess")  # what a crashing driver does
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    said = page.inner_text("#status")
    assert "the device was lost" in said and f"step {saved}: call again" in said
    assert count(page) == saved and page.inner_text("#start") == "Start"
    train_for(page, saved + 60)
    assert not page.evaluate("document.getElementById('status').classList.contains('problem')")
    page.problems.clear()  # Chromium itself complains in the console


def test_a_worker_that_dies_while_training_leaves_an_answer(page: Any) -> None:
    page.click("#start")
    wait_for_steps(page, 20)
    page.workers[0].evaluate("self.close()")
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert "the worker was ended. Reload the page" in page.inner_text("#status")
    assert page.inner_text("#start") == "Start"
    assert page.evaluate("train.step().then((r) => [r.kind, r.error.name])") == ["failed", "DeviceLostError"]
    for button in ("#reset", "#save"):
        page.evaluate("document.getElementById('status').textContent = ''")
        page.click(button)
        until(page, "() => document.getElementById('status').textContent.includes('Reload the page')")


def test_losses_below_zero_have_a_curve_and_large_inputs_a_demo(browser: Any, tmp_path: Path) -> None:
    def loss(m: Any, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        return sine_loss(m, x, y) - 10

    with compiled(replace(SINE, loss=loss)) as train:
        total = train.attach(forward=lambda m, x: tg.sum(x) + m.l3.b[0], inputs={"x": (1, 3, 12, 12)})
        file = train.export(tmp_path / "page.html", single_file=True, forwards={"total": total}, data=waves())
    page = ready(open_page(browser, file.as_uri()))
    train_for(page, 20)
    said = page.get_attribute("#chart", "aria-label")
    assert said.startswith("Loss by step, from -") and float(said.split()[4]) > -10
    page.click("article button")
    page.wait_for_selector("article pre:not(:empty)")
    assert json.loads(page.inner_text("article pre"))["shape"] == [] and page.problems == []
    page.context.close()


def memory_without_workers(browser: Any, page: Any) -> dict[str, int]:
    """Once all of them have ended."""
    for _ in range(100):
        if not page.workers:
            break
        page.wait_for_timeout(100)
    assert page.workers == []
    return memory_of(browser, page)


def test_a_second_model_replaces_the_first_without_a_leak(browser: Any, served: tuple[str, Path]) -> None:
    url, folder = served
    with compiled() as train:
        train.export(folder / "first")
    wave_page(folder / "second")
    page = open_page(browser, f"{url}/blank.html")
    page.evaluate(f"() => {{ {HELPERS} }}")
    code = """async ([x, times]) => {
      const { load } = await import('/first/tracegrad.js');
      const steps = [];
      let train;
      for (let k = 0; k < times; k++) {
        const under = train?.runSteps(1000);
        train?.destroy(); // in the midst of it
        if (under && (await under).kind !== 'aborted') throw new Error('not aborted');
        train = await load(k % 2 ? '/first' : '/second');
        for (let n = 0; n < 3; n++) steps.push((await train.step(k % 2 ? given(x) : {})).step);
      }
      train.destroy();
      return steps;
    }"""
    assert page.evaluate(code, [plain(ZEROS), 6]) == [1, 2, 3] * 6
    before = memory_without_workers(browser, page)
    for _ in range(3):  # what leaks only grows, and the GPU process takes and gives back some 15 MB as it likes
        assert page.evaluate(code, [plain(ZEROS), 20]) == [1, 2, 3] * 20
        after = memory_without_workers(browser, page)
        if all(after[part] - before[part] < 20 * MIB for part in before):
            break
    assert page.problems == []
    for name, grown in ((n, after[n] - before[n]) for n in before):
        assert grown < 20 * MIB, f"{name} grew by {grown / MIB:.1f} MiB over 20 models: {before} -> {after}"
    page.context.close()


# Contrast of an element's text with what lies behind it, by WCAG 2's formula.
CONTRAST = """(selectors) => {
  const channel = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (color) => color.match(/[0-9.]+/g).map(Number);
  const behind = (e) => {
    const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
    return a ? [r, g, b] : behind(e.parentElement);
  };
  return selectors.map((s) => {
    const e = document.querySelector(s);
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_and_controls_have_names(browser: Any, tmp_path: Path, scheme: str) -> None:
    file = wave_page(tmp_path / "page.html", single_file=True)
    page = ready(open_page(browser, file.as_uri(), color_scheme=scheme, viewport={"width": 360, "height": 740}))
    page.evaluate("document.getElementById('status').classList.add('problem')")
    texts = ["h1", "#about", "#status", "#start", "#step", "dt", "dd", "label", ".note"]
    ratios = dict(zip(texts, page.evaluate(CONTRAST, texts), strict=True))
    assert min(ratios.values()) >= 4.5, ratios
    named = [("button", name) for name in ("Start", "Step", "Reset", "Download")]
    named += [("slider", "Learning rate"), ("img", "Loss by step"), ("img", "The curve"), ("status", "")]
    for role, name in named:
        assert page.get_by_role(role, name=name).count() == 1, (role, name)
    assert page.get_attribute("#rate", "aria-valuetext") == "0.01000"
    assert page.get_by_label("Load a checkpoint").count() == 1
    page.click("#step")
    wait_for_steps(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and page.problems == []
    if (folder_of_docs := os.environ.get("TRACEGRAD_SCREENSHOTS")) and scheme == "dark":
        train_for(page, 500)
        page.wait_for_timeout(500)
        page.screenshot(path=Path(folder_of_docs, "page-phone.png"))
    page.context.close()


def line_loss(m: nn.Linear, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(m(x) - y))


@pytest.mark.slow
@pytest.mark.timeout(60 + LONG // 100)  # as many steps on a busy machine
def test_memory_stays_flat_over_many_steps(browser: Any, tmp_path: Path) -> None:
    """Renderer, GPU process and JavaScript heap, from the end of the first steps on.

    The GPU process holds some 15 MB more at one look and less at the next, whatever the number of steps. Over a million
    steps it is at one of two levels, without growing. A leak is never given back and grows with every look. So the
    least of five looks is compared, and after the long training a look as low as that must come. The heap becomes
    smaller only once, so the middle of the last three looks stands for it. On a busy machine
    the renderer has kept 16 MB more, and 2 MB in the next run. Of 20 000 steps, what leaks 7 bytes of the heap in each
    is seen, or 600 of the GPU process; of 100 000 a fifth of that.
    """
    allowed = {"heap": MIB // 8, "renderer": 24 * MIB, "gpu": 12 * MIB}
    line = Training("line", lambda: nn.Linear(1, 1), line_loss, SINE.inputs, SINE.optimizer)  # few kernels, fast steps
    with compiled(line) as train:
        file = train.export(tmp_path / "page.html", single_file=True, data=waves())
    page = ready(open_page(browser, file.as_uri()))

    def train_on(steps: int) -> dict[str, int]:
        end = count(page) + steps
        page.click("#start")
        while count(page) < end:
            assert page.inner_text("#start") == "Pause", page.inner_text("#status")
            page.wait_for_timeout(250)
        page.click("#start")
        until(page, "() => document.getElementById('start').textContent === 'Start'")
        return memory_of(browser, page)

    looks = [train_on(LONG // 12) for _ in range(5)]
    before = {part: min(look[part] for look in looks) for part in allowed} | {
        "heap": sorted(look["heap"] for look in looks[-3:])[1]
    }
    after = train_on(LONG)
    for _ in range(12):
        if all(after[part] - before[part] < allowed[part] for part in allowed):
            break
        look = train_on(LONG // 12)
        after = {part: min(after[part], look[part]) for part in allowed}
    print(f"{before} -> {after}")
    for part in allowed:
        assert after[part] - before[part] < allowed[part], (part, before, after)
    assert page.problems == []
    page.context.close()
