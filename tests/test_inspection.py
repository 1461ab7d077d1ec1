"""What a compiled training tells of itself, and what TRACEGRAD_DEBUG prints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import build_training
from tracegrad import nn, optim
from tracegrad.compiler.pipeline import optimize
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.lower import external_order, lower
from tracegrad.kernels.show import show_kernel
from tracegrad.program import Program

SHAPES = {"x": (16, 2), "y": (16, 1)}
X, Y = np.ones((16, 2), np.float32), np.ones((16, 1), np.float32)


class MLP(tg.Module):
    def __init__(self):
        self.l1, self.l2 = nn.Linear(2, 8), nn.Linear(8, 1)


def loss(m, x, y):
    return tg.mean(tg.square(m.l2(tg.tanh(m.l1(x))) - y))


def compiled(**more: Any) -> Any:
    options = {"model": MLP(), "loss": loss, "inputs": SHAPES, "optimizer": optim.adam(lr=0.1), "seed": 3, **more}
    return tg.compile(**{"device": "cpu", **options})


# --- members ---


@pytest.mark.parametrize("wrong, right", [("stepp", "step"), ("uplod_params", "upload_params"), ("fitt", "fit")])
def test_a_misspelled_method_is_named_whichever_base_class_has_it(wrong: str, right: str):
    with compiled() as train, pytest.raises(AttributeError, match=f"has no '{wrong}': did you mean '{right}'"):
        getattr(train, wrong)


def test_memory_is_told_by_role():
    with compiled() as t:
        weights = 4 * (2 * 8 + 8 + 8 + 1)
        m = t.memory
        assert m["param"] == m["grad"] == weights and m["state"] == 2 * weights + 16
        assert m["input"] >= 4 * (16 * 2 + 16) and m["output"] >= 4 and m["temp"] > 0
        assert m["total"] == sum(m[role] for role in m if role != "total") == sum(b.bytes for b in t.program.buffers)
        text = str(m)
        for name in ("parameters", "gradients", "optimizer state", "temporaries", "inputs", "outputs", "total", "132"):
            assert name in text
        assert repr(m) == text and dict(m)["param"] == weights


def test_everything_can_be_looked_at_without_running():
    with compiled() as t:
        assert isinstance(t.program, Program) and t.kernels == t.program.kernels
        assert t.param_names == ["l1.W", "l1.b", "l2.W", "l2.b"] and t.output_shape == () and t.seed == 3
        assert t.device.name == "cpu" and t.device.description
        for part in ("cpu", "33 parameters", "dispatches", "step 0", "seed 3"):
            assert part in repr(t)


def test_the_graph_is_iterable_and_prints():
    with compiled() as t:
        g = t.graph
        assert [p.name for p in g.params] == t.param_names and [x.name for x in g.inputs] == ["x", "y"]
        assert set(g.outputs) == {"loss", "halted"} and not g.captures
        assert {"params", "grads", "halted"} <= set(g.writes)
        seen: set[int] = set()
        for node in g:
            assert node.name and node.type.size >= 0 and isinstance(dict(node.attrs), dict)
            assert all(id(x) in seen for x in node.inputs)
            seen.add(id(node))
        assert len(list(g)) == len(g) and "test_inspection.py" in str(g)


def test_nodes_belong_to_lines_of_the_user():
    with compiled() as t:
        files = {node.site.file for node in t.graph if node.site}
        assert files <= {__file__, nn.layers.__file__}, files


def test_an_input_that_nothing_reads_is_still_an_input():
    def partly(m, x, y, spare, index):
        return loss(m, x, y)

    inputs = {**SHAPES, "spare": (3,), "index": tg.i32[2]}
    with compiled(loss=partly, inputs=inputs) as t, compiled() as other:
        assert {f.name for f in t.program.inputs} >= {"spare", "index"}
        given = {"x": X, "y": Y, "spare": [1, 2, 3], "index": [4, 5]}
        assert t.step(given).loss == other.step(x=X, y=Y).loss
        assert "index: missing, expected i32[2]" in str(t.step(x=X, y=Y, spare=[1, 2, 3]).result().error)


@pytest.mark.usefixtures("webgpu")
@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_an_input_that_nothing_reads_is_an_input_on_webgpu_too():
    def first(m, x, spare):
        return m.l1(x)

    inputs = {"x": (4, 2), "spare": tg.i32[2]}
    with tg.compile_forward(model=MLP(), forward=first, inputs=inputs, seed=0, device="webgpu") as f:
        assert f.run(x=X[:4], spare=[1, 2]).output.shape == (4, 8)


# --- TRACEGRAD_DEBUG ---


def printed(level: str, monkeypatch: Any, capsys: Any) -> str:
    monkeypatch.setenv("TRACEGRAD_DEBUG", level)
    capsys.readouterr()
    build_training(MLP(), loss, SHAPES, optim.adam(lr=0.1))
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_each_level_adds_to_the_one_below(monkeypatch, capsys):
    marks = [
        "tracegrad: training: ", "runs  workgroups", "form of kernel 0", "@compute @workgroup_size", "graph traced",
    ]  # fmt: skip
    for level in range(7):
        text = printed(str(level), monkeypatch, capsys)
        assert [mark in text for mark in marks] == [level > k for k in range(5)]
    for name in ("expand_composites", "simplify", "split_long", "place_results"):
        assert f"graph after {name}" in text
    assert "return loss = %" in text


def test_one_line_a_compile(monkeypatch, capsys):
    lines = printed("1", monkeypatch, capsys).splitlines()
    assert len(lines) == 1
    for part in ("nodes", "kernels", "dispatches", "bytes", "ms"):
        assert part in lines[0]


def test_nothing_is_printed_unless_asked(monkeypatch, capsys):
    assert printed("", monkeypatch, capsys) == ""
    monkeypatch.delenv("TRACEGRAD_DEBUG")
    build_training(MLP(), loss, SHAPES, optim.adam(lr=0.1))
    assert capsys.readouterr() == ("", "")
    with pytest.raises(tg.InputError, match="TRACEGRAD_DEBUG must be a number from 0 to 5, got 'on'"):
        printed("on", monkeypatch, capsys)


# --- kernel forms ---


class Mixed(tg.Module):
    """Has every kind of statement: products, folds, scatters, guards, computed indices."""

    def __init__(self):
        self.table, self.conv = nn.Embedding(11, 6), nn.Conv2d(1, 4, 3, padding=1)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 5)


def mixed(m, tokens, image, targets):
    h = m.norm(m.table(tokens))
    pooled = tg.max_pool2d(tg.relu(m.conv(image)), 2)
    return tg.cross_entropy(m.head(h), targets) + tg.mean(pooled) + tg.mean(tg.cumsum(h, axis=-1))


def forms() -> list[str]:
    inputs = {"tokens": tg.i32[7], "image": (2, 1, 6, 6), "targets": tg.i32[7]}
    storage = optimize(tg.trace(model=Mixed(), loss=mixed, inputs=inputs, optimizer=optim.adam(lr=0.1)))
    clusters = Schedule(storage).clusters
    return [show_kernel(lower(c, external_order(c, storage)[0], storage)) for c in clusters]


def test_kernel_forms_have_a_text():
    text = "\n".join(forms())
    for part in (" points (", "slot 0: f32 read", "written", "= where(", "= sum %", " * %", "; rows m0 < ", "clamp(%"):
        assert part in text, part
    assert "0 <= " in text and " if " in text  # padding is a guard
    assert " where %" in text or " == i0" in text  # the gradient of an embedding scatters


def test_a_form_defines_what_it_uses():
    for text in forms():
        known: set[str] = set()
        for line in text.splitlines()[1:]:
            left, _, right = line.strip().partition(" = ")
            used = {word.strip("(),[]") for word in (right + " " + left.partition("[")[2]).split()}
            assert {w for w in used if w.startswith("%") and w[1:].isdigit()} <= known, line
            known.add(left)
