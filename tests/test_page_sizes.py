"""Pages whose calls choose sizes: any up to the largest of the export, with Python's numbers at each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import test_rooms
import tracegrad as tg
from browser import browser, from_bits, plain, served
from test_browser import LOSS, Tab, tab
from test_rooms import Model
from tracegrad import nn, optim
from tracegrad.errors import InputError, ShapeError

__all__ = ["browser", "served", "tab"]  # fixtures

D = test_rooms.D
SIZES = [(8, 6), (3, 5), (1, 4), (4, 1), (1, 1), (4, 4), (2, 2), (7, 3)]
STEP = """
const r = await train.step(given(a[0]));
return r.kind === "completed" ? { loss: r.loss, aux: bits(r.aux), captures: bits(r.captures) } : told(r);
"""
RUN = "const r = await train.forwards.infer.run(given(a[0])); return r.kind === 'completed' ? bits(r.output) : told(r);"
ERROR = "const r = told(await train.step(...a.map(given))); return r.error?.[1] ?? r;"


class Attention(tg.Module):
    def __init__(self) -> None:
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.mean = self.state((3,))

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return tg.softmax(self.q(x) @ tg.swapaxes(self.k(x), -1, -2), -1) @ self.v(x)


def attention_loss(m: Attention, x: tg.Tensor, y: tg.Tensor, place: tg.Tensor) -> Any:
    """`place` is an index along an axis that grows."""
    p = tg.capture("p", m(x))
    m.mean.assign(0.9 * m.mean + 0.1 * p.mean((0, 1)))
    picked = tg.take_along_axis(x[:, :, 0], place, 1)
    return tg.mse_loss(p, y) + picked.mean(), {"worst": tg.max(tg.square(p - y), -1)}


OPEN = {"x": ("B", "T", 4), "y": ("B", "T", 3), "place": tg.i32["B", "T"]}


def attention(**more: Any) -> tg.CompiledTraining:
    return tg.compile(
        model=Attention(), loss=attention_loss, inputs=OPEN, optimizer=optim.sgd(0.1), seed=3, device="cpu", **more
    )


def batch(b: int, t: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng([b, t, seed])
    x, y = (rng.standard_normal((b, t, n)).astype(np.float32) for n in (4, 3))
    return {"x": x, "y": y, "place": rng.integers(0, t, (b, t)).astype(np.int32)}


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=LOSS, atol=1e-6)


@pytest.mark.parametrize("rooms", [{"B": 8, "T": 6}, {"B": [3, 8], "T": [6, 2, 4]}], ids=["one room", "more rooms"])
def test_every_size_gives_pythons_numbers(tab: Tab, tmp_path: Path, rooms: dict[str, Any]) -> None:
    with attention() as train:
        infer = train.attach(forward=lambda m, x: {"y": m(x), "rows": m(x).reshape(-1, 3)}, inputs={"x": ("B", "T", 4)})
        largest = {"B": 8, "T": 6}
        tab.load(train, "sizes", forwards={"infer": infer}, sizes=rooms, data=batch(40, 6))
        info = tab.run("return train.info;")
        assert info["sizes"] == info["forwards"]["infer"]["sizes"] == largest
        assert [f["spec"]["sizes"] for f in info["inputs"]] == [["B", "T", None], ["B", "T", None], ["B", "T"]]
        for b, t in SIZES:
            given = batch(b, t)
            got, want = tab.run(STEP, plain(given)), train.step(given).result()
            close(got["loss"], want.loss)
            close(from_bits(got["aux"])["worst"], want.aux["worst"])
            close(from_bits(got["captures"])["p"], want.captures["p"])
            output = from_bits(tab.run(RUN, plain({"x": given["x"]})))
            for name, x in infer.run(x=given["x"]).output.items():
                close(output[name], x)
        close(from_bits(tab.run("return bits(await train.states());"))["mean"], train.states()["mean"])
        for name, x in tab.params().items():
            close(x, train.download_params()[name])

        several = [batch(3, 5, k) for k in range(4)]
        together = {n: np.stack([x[n] for x in several]) for n in several[0]}
        losses = tab.run("return told(await train.runSteps(4, given(a[0]))).losses;", plain(together))
        close(losses, [train.step(x).loss for x in several])
        data = tab.run("const r = await train.runSteps(3); return [r.kind, r.step];")
        assert data == ["completed", len(SIZES) + 7], "steps from the data take the largest sizes"

        path = tmp_path / "page.safetensors"
        path.write_bytes(bytes(tab.run("return Array.from(await train.saveCheckpoint());")))
        train.load(path)
        train.save(tmp_path / "python.safetensors")
        tab.run(
            "await train.loadCheckpoint(Uint8Array.from(a[0]));", list((tmp_path / "python.safetensors").read_bytes())
        )
        close(tab.run(STEP, plain(batch(5, 2)))["loss"], train.step(batch(5, 2)).loss)


@pytest.mark.parametrize("loss", ["causal", "lstm", "dropped", "flat", "bounded", "summed"])
def test_models_compute_as_in_python_at_each_size(tab: Tab, loss: str) -> None:
    with tg.compile(
        model=Model(), loss=getattr(test_rooms, loss), optimizer=optim.sgd(0.01), inputs={"x": ("B", "T", D)}, seed=3,
        device="cpu",
    ) as train:  # fmt: skip
        tab.load(train, f"sizes-{loss}", sizes={"B": 5, "T": 9})
        rng = np.random.default_rng(1)
        inputs = [{"x": rng.standard_normal((b, t, D)).astype(np.float32)} for b, t in [(2, 9), (5, 3), (1, 5), (3, 8)]]
        np.testing.assert_allclose(tab.steps(inputs), [train.step(x).loss for x in inputs], rtol=LOSS)


def test_small_sizes_have_programs_of_their_own_where_they_need_them(tab: Tab) -> None:
    """Of two or three places, every second one is a single one, which is broadcast."""
    with tg.compile(
        model=nn.Linear(D, D), loss=lambda m, x: tg.mean(tg.square(tg.cumsum(m(x[:, ::-2]), 1))),
        optimizer=optim.sgd(0.01), inputs={"x": ("B", "T", D)}, seed=3, device="cpu",
    ) as train:  # fmt: skip
        with pytest.raises(InputError, match=r"at B=2, T=2 the model.*'T': \[2, 3, 4, 20\]"):
            tab.load(train, "small", sizes={"B": 5, "T": 20})
        tab.load(train, "small", sizes={"B": 5, "T": [2, 3, 4, 20]})
        rng, sizes = np.random.default_rng(1), [(2, 19), (5, 3), (1, 5), (3, 2), (4, 8), (4, 1), (1, 2), (5, 20)]
        inputs = [{"x": rng.standard_normal((b, t, D)).astype(np.float32)} for b, t in sizes]
        np.testing.assert_allclose(tab.steps(inputs), [train.step(x).loss for x in inputs], rtol=LOSS)


def test_a_call_computes_in_the_least_room_that_fits(tmp_path: Path) -> None:
    with attention() as train:
        train.export(tmp_path, sizes={"B": [1, 8], "T": (4, 6, 4)})
    manifest = json.loads((tmp_path / "program.json").read_text())
    programs = [manifest["train"], *manifest["rooms"]]
    ranges = [program["meta"]["room"]["sizes"] for program in programs]
    assert ranges[0] == {"B": [2, 8], "T": [5, 6]}, "the first program has room for the largest sizes"
    for b, t in np.ndindex(8, 6):
        assert sum(r["B"][0] <= b + 1 <= r["B"][1] and r["T"][0] <= t + 1 <= r["T"][1] for r in ranges) == 1
    for program, r in zip(programs, ranges, strict=True):
        shapes = {x["name"]: x["shape"] for x in program["inputs"]}
        assert shapes["x"] == [r["B"][1], r["T"][1], 4]


def test_labels_and_flat_arrays_of_one_open_size(tab: Tab) -> None:
    inputs = {"x": (None, 2), "label": tg.i32[None]}
    with tg.compile(
        model=nn.Linear(2, 3), loss=lambda m, x, label: tg.cross_entropy(m(x), label), inputs=inputs,
        optimizer=optim.sgd(0.1), device="cpu", seed=1,
    ) as train:  # fmt: skip
        infer = train.attach(forward=lambda m, x: m(x), inputs={"x": (None, 2)})
        tab.load(train, "labels", sizes=6, forwards={"infer": infer, "one": infer})
        code = "const r = told(await train.step({ x: Float32Array.from(a[0]), label: a[1] }));"
        code += " return r.losses ?? r.error[1];"
        for x, label in (([1, 2, 3, 4, 5, 6], [0, 2, 1]), ([1, -1], [2])):
            close(tab.run(code, x, label), [train.step(x=np.reshape(x, (-1, 2)), label=label).loss])
        assert "value 3 at position 1 is out of range" in tab.run(code, [1, 2, 3, 4], [0, 3])
        problem = "\n  axis 0 must be one size in a call: x axis 0 is 2, label axis 0 is 3"
        assert problem in tab.run(code, [1, 2, 3, 4], [0, 1, 2])
        output = from_bits(
            tab.run("return bits({ y: (await train.forwards.infer.run({ x: [[1, 2], [3, 4]] })).output });")
        )
        close(output["y"], infer.run(x=[[1, 2], [3, 4]]).output)


def test_sizes_that_do_not_fit_are_named(tab: Tab) -> None:
    with attention() as train:
        tab.load(train, "refused", sizes={"B": 8, "T": 6})

        def said(**shapes: tuple[int, ...]) -> str:
            given = {n: np.zeros(s, np.int32 if n == "place" else np.float32) for n, s in shapes.items()}
            return tab.run(ERROR, plain(given))

        large = said(x=(9, 2, 4), y=(9, 2, 3), place=(9, 2))
        assert "x: its shape is [9,2,4], but the largest here is f32[8,6,4]" in large
        assert 'B is at most 8: pass less, or export again in Python with a larger one in sizes={"B":8,"T":6}' in large
        assert "T must be one size in a call: x axis 1 is 2, y axis 1 is 3" in said(
            x=(2, 2, 4), y=(2, 3, 3), place=(2, 2)
        )
        assert "x: expected f32[B,T,4], got shape [2,4]" in said(x=(2, 4), y=(2, 2, 3), place=(2, 2))
        assert "x: expected f32[B,T,4], got shape [2,2,5]" in said(x=(2, 2, 5), y=(2, 2, 3), place=(2, 2))
        assert "place: missing, expected i32[2,2]" in said(x=(2, 2, 4), y=(2, 2, 3))
        assert "x: it is empty; B must be at least 1" in said(x=(0, 2, 4), y=(0, 2, 3), place=(0, 2))
        flat = tab.run(
            "return told(await train.step({ x: new Float32Array(16), y: [[[0, 0, 0]]], place: [[0]] })).error[1];"
        )
        assert "x: expected f32[B,T,4], got 16 values; pass {data, shape}" in flat
        out_of_range = batch(2, 3) | {"place": np.int32([[0, 1, 2], [0, 3, 1]])}
        assert "place: value 3 at position 4 is out of range; valid values are 0 to 2" in tab.run(
            ERROR, plain(out_of_range)
        )
        assert tab.run("return train.stepCount;") == 0


def test_a_size_that_the_model_refuses_is_left_out(tab: Tab) -> None:
    """A batch of one example has no variance. The export failed, though steps of other sizes run in Python."""

    def loss(m: Any, x: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.square(m(x, training=True) - 0.5))

    model, inputs = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3)), {"x": (None, 2)}
    x = np.linspace(-1, 2, 20, dtype=np.float32).reshape(10, 2) ** 2
    with tg.compile(model=model, loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), device="cpu", seed=0) as train:
        tab.load(train, "one", sizes=6)
        code = """const out = [];
        for (const x of a[0]) {
          const r = await train.step({ x });
          out.push(r.loss ?? r.error.message);
        }
        return out;"""
        *losses, one = tab.run(code, [x[:n].tolist() for n in (6, 2, 5, 1)])
        np.testing.assert_allclose(losses, [train.step(x=x[:n]).loss for n in (6, 2, 5)], rtol=LOSS)
    assert one == "step: the model does not take sizes of 1"
    with pytest.raises(ShapeError, match="BatchNorm"):
        refused = tg.compile(model=model, loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), device="cpu")
        refused.export("unused", sizes=1)


def test_a_damaged_room_is_refused(tab: Tab) -> None:
    with attention() as train:
        tab.load(train, "damaged", sizes={"B": 4, "T": 4})
    manifest = json.loads((tab.folder / "damaged" / "program.json").read_text())
    read = """const { readManifest } = await import("/damaged/tracegrad.js");
    try { readManifest(a[0]); return "read"; } catch (e) { return `${e.name}: ${e.message}`; }"""
    assert tab.run(read, json.dumps(manifest)) == "read"
    changes: list[tuple[str, Any, str]] = [
        ("sizes", {"B": [1, -4], "T": [1, 4]}, "sizes"), ("sizes", {"B": [2, 5], "T": [2, 4]}, "of the input"),
        ("names", ["B", "constructor"], "names"), ("instructions", [["constructor", 1]], "instructions[0]"),
        ("instructions", [["add", {"at": 9}, 1]], "instructions[0]"), ("numbers", {"size 0": {"at": 99}}, "numbers"),
        ("results", {"aux.worst": {"room": [4], "counts": [{"at": -1}], "shape": [1]}}, "results"),
    ]  # fmt: skip
    for part, value, why in changes:
        changed = json.loads(json.dumps(manifest))
        room = changed["train"]["meta"]["room"]
        room[part] = room[part] | value if part == "numbers" else value
        told = tab.run(read, json.dumps(changed))
        assert told.startswith("InputError: program.json is damaged: train.meta.room.") and why in told, told
    del manifest["train"]["meta"]["room"]
    assert 'hyper.size 0", which has no value' in tab.run(read, json.dumps(manifest))


def refusal(loss: Callable[..., Any], sizes: Any, inputs: Any = None, **more: Any) -> str:
    inputs = inputs or {"x": ("B", "T", D)}
    with tg.compile(model=Model(), loss=loss, optimizer=optim.sgd(0.01), inputs=inputs, device="cpu", seed=3) as train:
        forwards = {n: train.attach(forward=lambda m, x: m.a(x), inputs=i) for n, i in more.items()}
        with pytest.raises(InputError) as e:
            train.export("unused", sizes=sizes, forwards=forwards)
    return str(e.value)


def test_what_sizes_cannot_be_exported_is_said() -> None:
    text = refusal(test_rooms.whole, None)
    assert "each call of step chooses a size of x: f32[B,T,8]" in text and "sizes={'B': 64, 'T': 64}" in text
    assert "sizes={'T': 64}" in refusal(test_rooms.whole, {"B": 4})
    assert "calls choose 'B', 'T'" in refusal(test_rooms.whole, {"B": 4, "T": 4, "C": 4})
    assert "calls choose 'B', 'T'" in refusal(test_rooms.whole, {"B": 4, "T": 0})
    assert "calls choose 'B', 'T'" in refusal(test_rooms.whole, {"B": [0, 4], "T": 4})
    assert "calls choose 'B', 'T'" in refusal(test_rooms.whole, {"B": 4, "T": []})
    assert "calls choose none" in refusal(test_rooms.whole, 4, {"x": (2, 3, D)})
    assert "call of the forward 'f' chooses a size of x: f32[N,B,8]" in refusal(
        test_rooms.whole, {"B": 4, "T": 4}, f={"x": ("N", "B", D)}
    )

    def table(m: Model, x: tg.Tensor) -> tg.Tensor:
        return test_rooms.whole(m, x + m.place[: x.shape[1]])

    assert "a size is refused" in refusal(table, {"B": 4, "T": 41})

    def decides(m: Model, x: tg.Tensor) -> tg.Tensor:
        return test_rooms.whole(m, x) * (2 if x.shape[0] == 3 else 1)

    assert "at B=3, T=2 the model computes differently" in refusal(decides, {"B": 4, "T": 4})

    def counts(m: Model, x: tg.Tensor) -> tg.Tensor:
        return test_rooms.whole(m, x) / len(range(x.shape[0]))

    assert "turns a size into a plain int" in refusal(counts, {"B": 4, "T": 4})
