"""Names and texts of the user's, and of a Program, in pages: they are shown, and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracegrad as tg
from browser import browser, open_page, served, until
from models import SineMLP, Training, gpt, gpt_logits, sine_loss, sine_predict
from test_export import SINE, compiled, count, ready, train_for, wave_page, waves
from tracegrad import nn

__all__ = ["browser", "served"]  # fixtures

RUN = "globalThis.broken=1"
HOSTILE = [
    f"</script><script>{RUN}</script>",
    f"</title></h1></style></textarea></noscript><script>{RUN}</script>",
    f"<!--<script>{RUN}</script>-->",
    f"--><script>{RUN}</script>",
    f"]]><script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f'"><svg/onload="{RUN}">',
    f"' onfocus='{RUN}' autofocus x='",
    f"\u2028;{RUN};\u2029\\u003cscript>{RUN}",
    f"`${{{RUN}}}` {{{{body}}}} {{{{title}}}} \\1 \\g<0>",
    f"javascript:{RUN}//&lt;script&gt;",
    f"\\\";{RUN};//</SCRIPT ><ScRiPt>{RUN}</sCrIpT>",
    "__proto__", "constructor", "toString",
]  # fmt: skip
TITLE = " ".join(HOSTILE[:-3])


class Hostile(SineMLP):
    """The model of the sine demo with layers of hostile names."""

    def __init__(self) -> None:
        self.more = {name: nn.Linear(1, 1) for name in HOSTILE}  # first: errors name few parameters
        super().__init__(8)

    def through_all(self, x: tg.Tensor) -> tg.Tensor:
        for layer in self.more.values():
            x = x + layer(x)
        return x


def assert_nothing_ran(page: Any) -> None:
    assert page.evaluate("globalThis.broken") is None
    assert page.evaluate("document.querySelectorAll('img, svg, a, iframe, style + style').length") == 0
    attributes = "Array.from(document.querySelectorAll('*'), (e) => e.getAttributeNames()).flat()"
    assert not [name for name in page.evaluate(attributes) if name.startswith("on")]


def addresses(train: tg.CompiledTraining, url: str, folder: Path, **contents: Any) -> list[str]:
    """A site on the server, and a file, of the same training."""
    train.export(folder / "site", **contents)
    return [f"{url}/site/", train.export(folder / "file.html", single_file=True, **contents).as_uri()]


def test_names_and_titles_are_shown_and_never_run(browser: Any, served: tuple[str, Path]) -> None:
    def loss(m: Any, x: tg.Tensor, y: tg.Tensor) -> Any:
        x = m.through_all(x)
        return sine_loss(m, x, y), {name: tg.capture(name, tg.mean(x)) for name in HOSTILE}

    url, folder = served
    training = Training("hostile", Hostile, loss, SINE.inputs, SINE.optimizer)
    with compiled(training) as train:
        forwards = {}
        for name in HOSTILE:
            forward = lambda m, x, name=name: {name: sine_predict(m, x), "more": tg.sum(x)}
            forwards[name] = train.attach(forward=forward, inputs={"x": (1, 1)})
        contents = {"forwards": forwards, "data": waves(), "title": TITLE, "labels": HOSTILE, "vocabulary": HOSTILE}
        pages = addresses(train, url, folder, **contents)
    for address in pages:
        page = ready(open_page(browser, address))
        assert page.evaluate("document.title") == page.evaluate("document.querySelector('h1').textContent") == TITLE
        assert page.evaluate("Array.from(document.querySelectorAll('h3'), (e) => e.textContent)") == HOSTILE
        train_for(page, 3)
        for k in range(len(HOSTILE)):
            page.locator("article button").nth(k).click()
        until(page, "() => Array.from(document.querySelectorAll('pre')).every((e) => e.textContent)")
        shown = page.evaluate("Array.from(document.querySelectorAll('pre'), (e) => e.textContent)")
        assert [next(iter(json.loads(x))) for x in shown] == HOSTILE
        names = "[Object.keys(r.aux), Object.keys(r.captures), train.info.params.map((p) => p.name)]"
        aux, captures, params = page.evaluate(f"train.step().then((r) => {names})")
        assert sorted(aux) == sorted(captures) == sorted(HOSTILE)
        assert {f"more.{name}.W" for name in HOSTILE} <= set(params)
        back = page.evaluate("train.saveCheckpoint().then((b) => train.loadCheckpoint(b)).then(() => train.stepCount)")
        assert back == count(page) + 1
        # an error that names parameters
        page.evaluate("(name) => train.uploadParams({ [name]: [[3e38]] })", f"more.{HOSTILE[0]}.W")
        page.click("#step")
        until(page, "() => document.getElementById('status').classList.contains('problem')")
        status = page.evaluate("document.getElementById('status').textContent")
        assert any(f"gradient of more.{name}.W" in status for name in HOSTILE)  # it names few of them
        assert_nothing_ran(page)
        assert page.problems == []
        page.context.close()


def test_labels_and_vocabularies_are_shown_and_never_run(browser: Any, served: tuple[str, Path]) -> None:
    url, folder = served
    texts = gpt(batch=2, vocabulary=len(HOSTILE), context=8, width=8, layers=1)
    with compiled(texts) as train:
        write = train.attach(forward=gpt_logits, inputs={"tokens": tg.i32[None, 8]})
        pages = addresses(train, url, folder, forwards={"write": write}, vocabulary=HOSTILE)
    for address in pages:
        page = ready(open_page(browser, address))
        page.fill("article input", HOSTILE[0])
        page.click("article button")
        until(page, "() => document.querySelector('article pre').textContent.length >= 30")
        assert_nothing_ran(page)
        assert page.problems == []
        page.context.close()


INJECTED = [
    f"<script>{RUN}</script>", f"<script type=module>{RUN}</script>", f"<img src=x onerror='{RUN}'>",
    f"<svg onload='{RUN}'></svg>", f"<a id=evil href='javascript:{RUN}'>a</a>",
    "<iframe srcdoc='<script>parent.broken=1</script>'></iframe>",
    "<script src='data:text/javascript,globalThis.broken=1'></script>", "<base href='https://example.com/'>",
    "<form id=sent action='https://example.com/'><button id=send>b</button></form>",
    "<link rel=stylesheet href='data:text/css,body{display:none}'>", "<style>body { display: none }</style>",
]  # fmt: skip


@pytest.mark.parametrize("single_file", [False, True], ids=["site", "file"])
def test_the_policy_stops_what_someone_put_into_the_page(
    browser: Any, served: tuple[str, Path], tmp_path: Path, single_file: bool
) -> None:
    """Even if an escape were forgotten, nothing of it would run, and the page trains as before."""
    url, folder = served
    if single_file:
        html = wave_page(tmp_path / "page.html", single_file=True)
        address = html.as_uri()
    else:
        html = wave_page(folder / "policy")
        address = f"{url}/policy/"
    text = html.read_text(encoding="utf-8")
    html.write_text(text.replace("<main>", f"<main>{''.join(INJECTED)}", 1), encoding="utf-8")
    page = ready(open_page(browser, address))
    train_for(page, 5)
    for name in ("evil", "send"):  # a link of JavaScript, a form that leaves
        page.evaluate("(name) => document.getElementById(name).click()", name)
    page.wait_for_timeout(200)
    assert page.evaluate("globalThis.broken") is None
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    assert page.evaluate("document.baseURI").startswith(address) and page.url.startswith(address)
    assert sum("Content Security Policy" in x for x in page.problems) >= len(INJECTED) - 1
    page.context.close()


def test_explanations_and_profiles_escape_names(browser: Any, tmp_path: Path) -> None:
    def loss(m: Any, x: tg.Tensor, y: tg.Tensor) -> Any:
        return sine_loss(m, m.through_all(x), y)

    training = Training("hostile", Hostile, loss, SINE.inputs, SINE.optimizer)
    with compiled(training) as train:
        pages = {
            "explain.html": train.explain()._repr_html_(),
            "profile.html": train.profile(1)._repr_html_(),
        }
    for name, text in pages.items():
        (tmp_path / name).write_text(f"<!doctype html><meta charset=utf-8>{text}", encoding="utf-8")
        page = open_page(browser, (tmp_path / name).as_uri())
        assert page.evaluate("globalThis.broken") is None and page.problems == []
        assert page.evaluate("document.querySelectorAll('script, img, svg, a, iframe').length") == 0
        page.context.close()
