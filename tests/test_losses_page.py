"""Several losses in an exported page: their steps, turns, files and settings are Python's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import browser, plain, served
from node import needs_node, run_node
from test_browser import Tab, tab
from tracegrad import lr, nn, optim, safetensors
from tracegrad.engine.stepper import stream_of
from tracegrad.errors import InputError

__all__ = ["browser", "served", "tab"]  # fixtures

rng = np.random.default_rng(0)
X = rng.normal(2.0, 0.5, (5, 8, 2)).astype(np.float32)
Z = rng.standard_normal((5, 8, 3)).astype(np.float32)
TURNS = ("d", "d", "g")


class GAN(tg.Module):
    def __init__(self) -> None:
        self.D = nn.Sequential(nn.Linear(2, 8), tg.tanh, nn.Linear(8, 1))
        self.G = nn.Sequential(nn.Linear(3, 8), tg.tanh, nn.Linear(8, 2))
        self.seen = self.state((), dtype=tg.i32)


def d_loss(m: Any, x: Any, z: Any) -> Any:
    m.seen.assign(m.seen + 1)
    fake = m.G(z) + 0.1 * tg.randn((8, 2))
    return tg.mean(tg.softplus(-m.D(x))) + tg.mean(tg.softplus(m.D(fake)))


def g_loss(m: Any, z: Any) -> Any:
    return tg.mean(tg.softplus(-m.D(m.G(z) + 0.1 * tg.randn((8, 2)))))


def compiled() -> tg.CompiledTraining:
    rate = lr.linear(peak=2e-3, final=1e-4, steps=10)
    return tg.compile(
        model=GAN(),
        losses={"d": d_loss, "g": g_loss},
        inputs={"x": (8, 2), "z": (8, 3)},
        optimizer={"d": optim.adam(rate), "g": optim.adamw(1e-3, weight_decay=0.1, ema=0.9)},
        params={"d": "D.*", "g": "G.*"},
        seed=7,
        device="cpu",
    )


def batch(turn: str, k: int) -> dict[str, Any]:
    return {"x": X[k], "z": Z[k]} if turn == "d" else {"z": Z[k]}


def steps(tab: Tab, turns: list[tuple[str, int]]) -> list[Any]:
    code = """const under = a[0].map(([loss, x]) => train.step(loss, given(x)));
      return (await Promise.all(under)).map(told);"""
    return tab.run(code, [[turn, plain(batch(turn, k))] for turn, k in turns])


def test_steps_of_each_loss_are_pythons_and_checkpoints_go_both_ways(tab: Tab, tmp_path: Path) -> None:
    turns = [(turn, k) for k in range(3) for turn in TURNS]
    with compiled() as train, compiled() as other:
        infer = train.attach(forward=lambda m, z: m.G(z), inputs={"z": (8, 3)})
        tab.load(train, "losses", fresh=True, forwards={"draw": infer})
        assert tab.run("return [train.info.losses, train.losses];") == [
            ["d", "g"],
            {"d": {"stepCount": 0, "lr": 2e-3}, "g": {"stepCount": 0, "lr": 1e-3}},
        ]
        got = steps(tab, turns)
        assert [(r["kind"], r["step"]) for r in got[:4]] == [("completed", n) for n in (1, 2, 1, 3)]
        want = [train.step(turn, **batch(turn, k)).loss for turn, k in turns]
        np.testing.assert_allclose([r["losses"][0] for r in got], want, rtol=1e-4)
        for name, x in tab.params().items():
            np.testing.assert_allclose(x, train.params()[name], rtol=1e-3, atol=1e-5, err_msg=name)
        assert tab.run("return (await train.states()).seen.data[0];") == 6 == train.states()["seen"]
        run = "return Array.from((await train.forwards.draw.run({ z: Float32Array.from(a[0]) })).output.data);"
        np.testing.assert_allclose(
            tab.run(run, Z[0].ravel().tolist()), infer.run(z=Z[0]).output.ravel(), rtol=1e-3, atol=1e-4
        )
        # the page's file in Python, then Python's in the page
        (tmp_path / "page").write_bytes(bytes(tab.run("return Array.from(await train.saveCheckpoint());")))
        other.load(tmp_path / "page")
        theirs = safetensors.read(tmp_path / "page")
        other.save(tmp_path / "again")
        again = safetensors.read(tmp_path / "again")
        assert {n: x.tobytes() for n, x in theirs.tensors.items()} == {n: x.tobytes() for n, x in again.tensors.items()}
        assert {n.split("/")[1] for n in theirs.tensors if n.startswith("opt/")} == {"d", "g"}
        train.load(tmp_path / "page")
        later = [(turn, k) for k in (3, 4) for turn in TURNS]
        want = [train.step(turn, **batch(turn, k)).loss for turn, k in later]
        np.testing.assert_allclose([r["losses"][0] for r in steps(tab, later)], want, rtol=1e-4)
        train.save(tmp_path / "python")
        data = list((tmp_path / "python").read_bytes())
        tab.run("await train.loadCheckpoint(Uint8Array.from(a[0]));", data)
        assert tab.run("return train.losses.d.stepCount") == 10 and tab.run("return train.stepCount") == 15


def test_a_failed_step_changes_no_loss_and_later_steps_of_the_other_run(tab: Tab) -> None:
    code = """const bad = { x: new Float32Array(16).fill(NaN), z: Float32Array.from(a[1]) };
      const under = [train.step("d", given(a[0])), train.step("d", bad), train.step("g", given(a[2])),
                     train.step("d", given(a[0]))];
      const answers = (await Promise.all(under)).map(told);
      return [answers, train.losses];"""
    with compiled() as train:
        tab.load(train, "losses-bad", fresh=True)
        answers, progress = tab.run(code, plain(batch("d", 0)), Z[0].ravel().tolist(), plain(batch("g", 1)))
        assert [r["kind"] for r in answers] == ["completed", "failed", "completed", "completed"]
        want = [train.step(turn, **batch(turn, k)).loss for turn, k in (("d", 0), ("g", 1), ("d", 0))]
        got = [answers[k]["losses"][0] for k in (0, 2, 3)]
        np.testing.assert_allclose(got, want, rtol=1e-4)
        assert {name: x["stepCount"] for name, x in progress.items()} == {"d": 2, "g": 1}


def test_settings_are_of_a_loss_and_wrong_names_are_said(tab: Tab) -> None:
    code = """const said = async (f) => { try { await f(); return null; } catch (e) { return e.message; } };
      await train.setLR(0.5, { loss: "g" });
      await train.set({ weight_decay: 0.25 }, { loss: "g" });
      await train.reset({ params: false, optimizer: false });
      const { error } = await train.step("e", {});
      const { error: none } = await train.step({});
      return [train.losses, error.message, none.message, await said(() => train.setLR(0.5)),
              await said(() => train.set({ weight_decay: 0.1 }, { loss: "d" }))];"""
    with compiled() as train:
        tab.load(train, "losses-set", fresh=True)
        progress, wrong, none, unnamed, decay = tab.run(code)
    assert [progress[name]["lr"] for name in "dg"] == [2e-3, 0.5]
    assert wrong == 'step: there is no loss "e"; the losses are "d", "g"'
    assert "the losses are" in none and "the losses are" in unnamed and "weight_decay" in decay


def test_the_page_trains_in_turns(browser: Any, tmp_path: Path) -> None:
    from test_export import ready, until, wait_for_steps

    data = {"x": X.reshape(-1, 2), "z": Z.reshape(-1, 3)}
    with compiled() as train:
        path = train.export(tmp_path / "gan.html", single_file=True, data=data, schedule=TURNS)
    page = browser.new_context().new_page()
    problems: list[str] = []
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.goto(path.as_uri())
    ready(page)
    for k in range(3):
        page.click("#step")
        wait_for_steps(page, k + 1)
    assert page.evaluate("[train.losses.d.stepCount, train.losses.g.stepCount]") == [2, 1]
    page.click("#start")
    wait_for_steps(page, 30)
    page.click("#start")
    until(page, "() => document.getElementById('start').textContent === 'Start'")
    d, g = page.evaluate("[train.losses.d.stepCount, train.losses.g.stepCount]")
    assert abs(d - 2 * g) <= 2 and page.text_content("#loss").startswith(("d ", "g "))
    assert problems == []
    page.context.close()


def test_what_a_page_of_several_losses_cannot_have_is_said(tmp_path: Path) -> None:
    with compiled() as train:
        for schedule in ("d", ("d", "e"), ()):
            if schedule:
                with pytest.raises(InputError, match="export: schedule must be a sequence of names of losses"):
                    train.export(tmp_path / "a", schedule=schedule)
        train.export(tmp_path / "b")
    manifest = json.loads((tmp_path / "b" / "program.json").read_text())
    assert manifest["schedule"] == ["d", "g"] and [x["train"]["meta"]["part"]["name"] for x in manifest["losses"]] == [
        "g"
    ]


@needs_node
def test_a_damaged_manifest_of_several_losses_is_refused(tmp_path: Path) -> None:
    with compiled() as train:
        train.export(tmp_path / "a")
    whole = (tmp_path / "a" / "program.json").read_text()

    def damaged(change: Any) -> str:
        manifest = json.loads(whole)
        change(manifest)
        code = "const { readManifest } = await source('manifest'); return told(() => readManifest(a[0]) && 1);"
        answer, error = run_node(code, json.dumps(manifest))
        return error[1] if error else f"read {answer}"

    def part(manifest: Any) -> Any:
        return manifest["losses"][0]["train"]["meta"]["part"]

    assert damaged(lambda m: None) == "read 1"
    assert "losses lack names of their own" in damaged(lambda m: m["losses"].append(m["losses"][0]))
    assert "losses[0].train.buffers[5].fill is neither" in damaged(lambda m: part(m).update(first=10**6))
    assert "train.meta.part.first is 1" in damaged(lambda m: m["train"]["meta"]["part"].update(first=1))
    assert "losses[0].train.meta.part.trains" in damaged(lambda m: part(m).update(trains=7))
    assert "schedule must name losses" in damaged(lambda m: m.update(schedule=["e"]))
    assert "losses[0].train" in damaged(lambda m: m["losses"][0].pop("train"))
    assert "losses[0].hyper" in damaged(lambda m: m["losses"][0].update(hyper={"beta1": "x"}))


@needs_node
def test_random_streams_of_losses_are_pythons() -> None:
    code = "const { streamOf } = await source('random'); return a[0].map(([s, n]) => streamOf(s, n));"
    pairs = [[seed, n] for seed in (0, 1, 7, 2**31, 2**32 - 1) for n in range(4)]
    assert run_node(code, pairs) == [stream_of(seed, n) for seed, n in pairs]
