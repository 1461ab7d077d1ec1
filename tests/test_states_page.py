"""States of a model in an exported page: written by its steps and forwards, and carried by checkpoints both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tracegrad as tg
from browser import browser, served
from test_browser import Tab, tab
from test_states import Agent, X, compiled, count, regression, same, see
from tracegrad import optim, safetensors

__all__ = ["browser", "served", "tab"]  # fixtures

SAVED = "return Array.from(await train.saveCheckpoint());"


def states(tab: Tab, folder: Path) -> dict[str, Any]:
    """What the page's checkpoint holds of states, as Python reads it."""
    (folder / "page").write_bytes(bytes(tab.run(SAVED)))
    found = safetensors.read(folder / "page").tensors
    return {n.removeprefix("state/"): x for n, x in found.items() if n.startswith("state/")}


def test_a_page_writes_states_and_its_checkpoints_hold_them(tab: Tab, tmp_path: Path) -> None:
    batch = [{"x": x} for x in X]
    bad = np.full((8, 3), np.nan, np.float32)
    with compiled() as train, compiled() as other:
        forwards = {
            "see": train.attach(forward=see, inputs={"x": (8, 3)}),
            "count": train.attach(forward=count, inputs={"x": (8, 3)}, writes=True),
        }
        tab.load(train, "states", fresh=True, forwards=forwards)
        first = states(tab, tmp_path)
        for name, x in train.states().items():
            np.testing.assert_array_equal(first[name], x, err_msg=name)
        got = tab.steps(batch[:3])
        np.testing.assert_allclose(got, [train.step(x).loss for x in batch[:3]], rtol=1e-5)
        code = "const r = await train.step({ x: new Float32Array(24).fill(NaN) }); return r.kind;"
        assert tab.run(code) == "failed"
        assert isinstance(train.step(x=bad).result(), tg.Failed)
        run = """const { output } = await train.forwards[a[0]].run({ x: Float32Array.from(a[1]) });
          return (output.new ?? output.n).data[0];"""
        assert [tab.run(run, name, X[3].reshape(-1).tolist()) for name in ("count", "see")] == [4, 4]
        assert forwards["count"].run(x=X[3]).output["new"] == 4
        now = states(tab, tmp_path)
        for name, x in train.states().items():
            np.testing.assert_allclose(now[name], x, rtol=1e-5, atol=1e-7, err_msg=name)
        other.load(tmp_path / "page")
        assert other.states()["n"] == 4 and other.states()["odd"] == train.states()["odd"]
        train.set_states({"n": 70, "bits": [7, 2**32 - 1], "mean": [1.0, 2.0, 3.0]})
        train.save(tmp_path / "python")
        data = list((tmp_path / "python").read_bytes())
        tab.run("await train.loadCheckpoint(Uint8Array.from(a[0]));", data)
        same(safetensors.read(tmp_path / "python").tensors, _read(tab, tmp_path))
        np.testing.assert_allclose(tab.steps(batch[4:5]), [train.step(batch[4]).loss], rtol=1e-5)
        assert states(tab, tmp_path)["n"] == 71
        found = tab.run("return Object.fromEntries(Object.entries(await train.states()).map("
                        "([n, x]) => [n, [x.dtype, x.shape, Array.from(x.data)]]));")  # fmt: skip
        for name, x in states(tab, tmp_path).items():
            kind, shape, data = found.pop(name)
            np.testing.assert_array_equal(np.array(data).reshape(shape).astype(x.dtype), x, err_msg=name)
            assert kind in ("f32", "i32", "u32", "bool")
        assert not found
        before = states(tab, tmp_path)
        refused = """try { await train.setStates(a[0], a[1]); } catch (e) { return [e.name, e.message]; }"""
        for record, strict, said in (
            ({"n": 1, "nothing": 2}, False, "nothing: unknown"),
            ({"n": 1}, True, "missing"),
            ({"n": 1, "mean": [1.0, 2.0]}, False, "mean: expected f32"),
        ):
            name, message = tab.run(refused, record, {"strict": strict})
            assert name == "InputError" and message.startswith("setStates: nothing was written") and said in message
        same(before, states(tab, tmp_path))
        tab.run("await train.setStates({ n: 71, mean: Float32Array.from([4, 5, 6]) });")
        assert states(tab, tmp_path)["mean"].tolist() == [4, 5, 6]
        tab.run("await train.reset({ params: false });")
        assert states(tab, tmp_path)["n"] == 71
        tab.run("await train.reset();")
        assert states(tab, tmp_path)["n"] == 0 and states(tab, tmp_path)["bits"].tolist() == [1, 1]


def _read(tab: Tab, folder: Path) -> dict[str, Any]:
    states(tab, folder)
    return safetensors.read(folder / "page").tensors


def test_a_page_draws_a_target_network_as_the_network_is_drawn(tab: Tab, tmp_path: Path) -> None:
    # not adam: the bias before the normalisation has no gradient but roundings, which adam would make steps of
    with compiled(model=Agent(), loss=regression, optimizer=optim.sgd(0.05)) as train:
        tab.load(train, "target", fresh=True)
        same(train.states(), states(tab, tmp_path))
        np.testing.assert_allclose(
            tab.steps([{"x": x} for x in X[:3]]), [train.step(x=x).loss for x in X[:3]], rtol=1e-4
        )
        now = states(tab, tmp_path)
        for name, x in train.states().items():
            np.testing.assert_allclose(now[name], x, rtol=1e-5, atol=1e-6, err_msg=name)
