"""`explain()` and `profile()`: what a step consists of, what it costs, and that looking changes nothing."""

from __future__ import annotations

import dataclasses
import json
import linecache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import models
import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.compiler.dispatches import _marked, dispatches_of  # pyright: ignore[reportPrivateUsage]
from tracegrad.compiler.pipeline import optimize
from tracegrad.kernels.costs import Cost
from tracegrad.runtime import wgpu_adapter, wgpu_timing

SHAPES = {"x": (16, 2), "y": (16, 1)}
RNG = np.random.default_rng(0)
BATCH = {n: RNG.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
quiet = pytest.mark.filterwarnings("ignore:.*software adapter")


class MLP(tg.Module):
    def __init__(self):
        self.l1, self.l2 = nn.Linear(2, 8), nn.Linear(8, 1)


def predict(m, x):
    return m.l2(tg.dropout(tg.tanh(m.l1(x)), 0.2))


def loss(m, x, y):
    return tg.mean(tg.square(predict(m, x) - y))


@pytest.fixture(params=["cpu", "webgpu"])
def name_of_device(request: Any) -> str:
    if request.param == "webgpu":
        request.getfixturevalue("webgpu")
    return request.param


def compiled(**more: Any) -> Any:
    options = {"model": MLP(), "loss": loss, "inputs": SHAPES, "optimizer": optim.adam(lr=0.1), "seed": 3, **more}
    return tg.compile(**{"device": "cpu", **options})


# --- costs ---


class Table(tg.Module):
    def __init__(self):
        self.w = self.param((64, 48))


def cost(forward: Any, **inputs: Any) -> Cost:
    """Of all dispatches of a forward of the parameter w, f32[64,48]."""
    with tg.compile_forward(model=Table(), forward=forward, inputs=inputs, seed=0, device="cpu") as f:
        return sum((d.cost for d in f.explain().dispatches), Cost())


def test_a_product_is_two_flops_a_term_and_reads_each_operand_once():
    assert cost(lambda m, x: x @ m.w, x=(32, 64)) == Cost(2 * 32 * 64 * 48, 4 * (32 * 64 + 64 * 48), 4 * 32 * 48)


def test_an_epilogue_is_a_flop_a_result_and_op():
    bare, biased = (
        cost(lambda m, x: x @ m.w, x=(32, 64)),
        cost(lambda m, x, b: tg.exp(x @ m.w + b), x=(32, 64), b=(48,)),
    )
    assert biased.flops - bare.flops == 2 * 32 * 48
    assert biased.read - bare.read == 4 * 48 and biased.written == bare.written


def test_elementwise_ops_read_and_write_each_element_once():
    assert cost(lambda m, x: m.w * x + 1.0, x=(64, 48)) == Cost(2 * 64 * 48, 2 * 4 * 64 * 48, 4 * 64 * 48)
    assert cost(lambda m, x: m.w * x, x=(48,)) == Cost(64 * 48, 4 * (64 * 48 + 48), 4 * 64 * 48)


def test_folds_are_a_flop_a_point():
    assert cost(lambda m, x: tg.sum(m.w * x, axis=1), x=(48,)) == Cost(2 * 64 * 48, 4 * (64 * 48 + 48), 4 * 64)
    # the row kernel: max, x - max, exp, sum, quotient; one load of each element
    assert cost(lambda m, x: tg.softmax(m.w + x), x=(48,)) == Cost(6 * 64 * 48, 4 * (64 * 48 + 48), 4 * 64 * 48)


def test_what_is_not_read_costs_nothing():
    part = cost(lambda m, x: m.w[:4] * x, x=(4, 48))
    assert part == Cost(4 * 48, 2 * 4 * 4 * 48, 4 * 4 * 48)
    rows = cost(lambda m, i: tg.embedding(m.w, i), i=tg.i32[5])
    assert rows.read == 4 * (5 + 5 * 48) and rows.written == 4 * 5 * 48 and rows.flops == 0
    many = cost(lambda m, i: tg.embedding(m.w, i), i=tg.i32[500])
    assert many.read == 4 * (500 + 64 * 48)  # rows that repeat are read once at least


def test_overlapping_windows_read_each_element_once():
    pooled = cost(lambda m, x: tg.max_pool2d(x, 2, stride=1) * m.w[0, 0], x=(1, 1, 9, 9))
    assert pooled.read == 4 * (81 + 1) and pooled.written == 4 * 64


def test_a_scatter_adds_each_update_once():
    added = cost(lambda m, i, u: tg.scatter_add(m.w, i, u, axis=0), i=tg.i32[5, 48], u=(5, 48))
    assert 5 * 48 <= added.flops <= 5 * 48 + 64 * 48


# --- dispatches ---


@pytest.mark.parametrize("training", models.SMALL, ids=repr)
def test_the_plan_made_again_is_the_program(training: models.Training):
    built = training.build()
    found = dispatches_of(built.graph, built.program)
    assert [d.label for d in found] == [" | ".join(k.label for k in d.forms) for d in found]
    assert [d.number for d in found] == list(range(len(built.program.dispatches)))
    for d in found:
        assert d.cost.written > 0 and d.cost.bytes <= sum(b.bytes for b in built.program.buffers) * len(d.forms)
        assert d.sites, d.label


def test_dispatches_know_the_lines_of_their_ops():
    with compiled() as t:
        forward = t.explain().dispatches[0]
        lines = {site.line for site in forward.sites if site.file == __file__}
        assert predict.__code__.co_firstlineno + 1 in lines and "test_look_inside.py:" in forward.lines


def test_a_dispatch_in_a_loop_is_one_row(tmp_path):
    training = models.rnn(batch=3, length=6, width=5)
    with tg.compile(**training.arguments(), seed=0, device="cpu") as t:
        p = t.profile(2)
        looped = [row.info for row in p.rows if row.info.times == 6]
        assert looped and {row.info.times for row in p.rows} == {1, 6}
        assert [row.info.number for row in p.rows] == list(range(len(t.program.dispatches)))
        events = [e for e in p.trace()["traceEvents"] if e["ph"] == "X"]
        assert len(events) == 2 * sum(row.info.times for row in p.rows)
        assert sum(e["dur"] for e in events if e["args"]["dispatch"] == looped[0].number) > 0
        assert f"{looped[0].label} x 6" in t.explain().table().text(200) and " x 6" in p.table().text(200)
        other = models.rnn(batch=3, length=12, width=5).build()
        longer = dispatches_of(other.graph, other.program)[looped[0].number]
        assert longer.times == 12 and longer.cost.flops == 2 * looped[0].cost.flops


# --- explain ---


def test_lines_are_those_of_the_model_wherever_it_is_explained() -> None:
    """A result that is a view or an input is copied. The copy has the line of what it copies."""

    def loss(m: Any, x: Any, y: Any) -> Any:
        h = m(x)
        return tg.mse_loss(h, y), {"turned": tg.swapaxes(h, 0, 1), "x": x}

    with tg.compile(
        model=tg.nn.Linear(4, 3), loss=loss, inputs={"x": (8, 4), "y": (8, 3)}, optimizer=optim.adam(lr=1e-3),
        seed=0, device="cpu",
    ) as train:  # fmt: skip
        for infos in (train.explain().dispatches, [row.info for row in train.profile(steps=1).rows]):
            sites = {site for info in infos for site in info.sites}
            assert {site.file for site in sites} == {__file__}
            assert not [site for site in sites if "explain" in linecache.getline(site.file, site.line)]


def test_a_plan_made_again_has_its_nodes_in_the_same_order() -> None:
    """Also if work is lifted out of a loop, whose body is older than the copy of the graph with marks."""

    def loop(m: Any, x: Any) -> Any:
        step = lambda h, z: (tg.tanh(h + tg.where(tg.arange(4) < 2, z @ m.W, 0.0)), h)
        return tg.sum(tg.scan(step, tg.zeros((2, 4)), x)[0])

    graph = tg.trace_forward(
        model=nn.Linear(4, 4), forward=lambda m, x: tg.grad(lambda m: loop(m, x))(m).W, inputs={"x": (7, 2, 4)}
    )
    first, again = ([(t.prim.name, t.type) for t in optimize(g).order] for g in (graph, _marked(graph)[0]))
    assert first == again


def test_explain_tells_all_as_text():
    with compiled() as t:
        e = t.explain()
        text = str(dataclasses.replace(e, verbose=True))
        for d in e.dispatches:
            assert d.lines and f"kernel {d.kernel}, {d.label}" in text
        for part in (
            "matmul",
            "workgroups",
            "FLOP/B",
            "optimizer state",
            "@compute",
            "slot 0: f32 read",
            "return loss",
        ):
            assert part in text
        assert "return m.l2(tg.dropout(tg.tanh(m.l1(x)), 0.2))" in text  # the line itself
        assert str(e.memory) == str(t.memory) and len(repr(e)) < 200


class Tags(HTMLParser):
    """Every element and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert(1)</script>"
FILE = '<img src=x onerror="alert(2)">&.py'


def test_pages_escape_what_users_named(tmp_path):
    scope: dict[str, Any] = {"tg": tg, "predict": predict}
    code = f"def loss(m, x, y):\n    return tg.mean(tg.square(tg.capture({HOSTILE!r}, predict(m, x)) - y))\n"
    exec(compile(code, FILE, "exec"), scope)
    with compiled(loss=scope["loss"]) as t:
        e, p = t.explain(), t.profile(2)
        file = e.save(tmp_path / "look.html")
        for page in (file.read_text(encoding="utf-8"), e._repr_html_(), p._repr_html_()):
            seen = Tags(page)
            assert not seen.tags & {"script", "img", "iframe", "link"} and "onerror" not in seen.attributes
            assert FILE in seen.text
        whole = Tags(file.read_text(encoding="utf-8"))
        assert HOSTILE in whole.text and {"html", "details", "table", "pre"} <= whole.tags
        assert "@compute" in whole.text and "http" not in whole.text.replace("http-equiv", "")


def test_a_forward_explains_the_size_used_last():
    with compiled() as t:
        infer = t.attach(forward=predict, inputs={"x": (None, 2)})
        with pytest.raises(tg.InputError, match=r"x: missing, expected f32\[None,2\]"):
            infer.explain()
        small, large = (infer.explain(x=np.zeros((n, 2), np.float32)) for n in (4, 400))
        assert small.dispatches[-1].cost.flops * 100 == large.dispatches[-1].cost.flops
        wanted = [d.cost for d in large.dispatches]
        assert [d.cost for d in infer.explain().dispatches] == wanted
        assert [row.info.cost for row in infer.profile(2).rows] == wanted


# --- profile ---


@quiet
def test_a_profile_is_a_table(name_of_device: str):
    with compiled(device=name_of_device) as t:
        t.step(BATCH)
        p = t.profile(steps=3)
        assert len(p.rows) == len(t.program.dispatches) and len(p.timings.runs) == 3
        assert all(row.seconds >= 0 for row in p.rows) and p.seconds > 0
        assert sum(row.share for row in p.rows) == pytest.approx(1)
        for row in p.rows:
            flops, moved = row.info.cost.flops, row.info.cost.bytes
            assert row.bytes_per_second * row.seconds == pytest.approx(moved if row.seconds else 0)
            assert row.limit == ("compute" if flops / p.limits.flops > moved / p.limits.bytes else "memory")
        text = str(p)
        for part in ("FLOP/s", "B/s", "share", "test_look_inside.py", "median of 3 runs", p.timings.clock, "product"):
            assert part in text
        assert repr(p) == text and "<table>" in p._repr_html_()
        assert len(text.splitlines()) == 2 + len(p.rows) + 1 + len(p.notes)
        assert t.profile(1, BATCH).limits is p.limits  # measured once
        assert t.worker.call(lambda s: _has(s, "params")) and not t.worker.call(lambda s: _has(s, "profile.a"))


class Large(tg.Module):
    """Weights of 32 MB, used in part: the update is nearly all of a step."""

    def __init__(self) -> None:
        self.w = self.param((2048, 4096), init=tg.init.normal(0.01))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("kernels", ["numpy", "c"])
def test_an_update_takes_its_time_in_a_profile(kernels: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer's rows move their bytes no faster than memory does, though a profile applies no step."""
    monkeypatch.setenv("TRACEGRAD_CC", "off" if kernels == "numpy" else "")
    forward = lambda m, x: tg.sum(m.w[0] * x)
    with tg.compile(
        model=Large(), loss=forward, optimizer=getattr(optim, kind)(lr=0.1), inputs={"x": (4096,)}, device="cpu", seed=0
    ) as t:
        x = np.ones(4096, np.float32)
        t.step(x=x)
        before = t.download_params()["w"]
        large = [row for row in t.profile(3, x=x).rows if row.info.cost.bytes > 64e6]
        assert large and all(row.bytes_per_second < 1e12 for row in large)
        assert np.array_equal(t.download_params()["w"], before)


def _has(session: Any, name: str) -> bool:
    try:
        session.read(name)
    except tg.DeviceError:
        return False
    return True


def test_the_trace_is_what_chrome_reads(tmp_path):
    with compiled() as t:
        p = t.profile(3)
        trace = json.loads(p.save(tmp_path / "trace.json").read_text(encoding="utf-8"))
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 3 * len(p.rows) and {e["ph"] for e in trace["traceEvents"]} == {"X", "M"}
    end = 0.0
    for e in events:
        assert isinstance(e["name"], str) and e["pid"] == e["tid"] == 1 and e["dur"] >= 0
        assert e["ts"] >= end - 1e-6  # one after the other: no slice hides another
        end = e["ts"] + e["dur"]
    assert events[0]["ts"] == 0 and events[0]["args"]["lines"] == p.rows[0].info.lines
    assert sum(e["dur"] for e in events) <= 1e6 * sum(s[-1][1] - s[0][0] for s in p.timings.runs) + 1


OPTIMIZERS = {
    "adam": lambda: optim.adam(lr=lr.cosine_annealing(peak=1e-2, final=1e-4, steps=9), clip_grad_norm=0.5, ema=0.9),
    "sgd": lambda: optim.sgd(lr=lr.warmup(1e-1, 4, lr.constant(1e-1)), momentum=0.9, accumulate=2),
}


@quiet
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_profiling_changes_nothing(name_of_device: str, name: str, tmp_path):
    def trained(look: bool) -> tuple[Any, ...]:
        with compiled(device=name_of_device, optimizer=OPTIMIZERS[name](), keep_grads=True) as t:
            losses: list[float] = []
            if look:
                t.profile(2)
            for k in range(6):
                losses.append(t.step(BATCH).loss)
                if k == 3:
                    t.set_lr(lr.linear(peak=1e-2, final=1e-3, steps=5))  # begins at the next step, not at a look
                if look and k % 2:
                    before = t.download_grads()
                    t.profile(2, x=BATCH["x"] * 1e30, y=BATCH["y"])
                    t.profile(1)
                    np.testing.assert_equal(t.download_grads(), before)
            state = tmp_path / f"{look}.safetensors"
            t.save(state)
            averages = t.download_params(ema=True) if name == "adam" else {}
            return losses, state.read_bytes(), t.download_params(), averages, t.download_grads()

    looked, blind = trained(True), trained(False)
    np.testing.assert_equal(looked, blind)


def test_what_profile_refuses():
    with compiled() as t:
        for steps in (0, -1, 2.5, True):
            with pytest.raises(tg.InputError, match="steps must be an integer of at least 1"):
                t.profile(steps)
        with pytest.raises(tg.InputError, match=r"x: expected f32\[16,2\], got f32\[3\]"):
            t.profile(x=np.zeros(3, np.float32), y=BATCH["y"])
        infer = t.attach(forward=predict, inputs={"x": (4, 2)})
        infer.close()
        with pytest.raises(tg.AbortedError, match="CompiledForward is closed"):
            infer.profile()
    with pytest.raises(tg.AbortedError, match="closed"):
        t.profile()
    assert t.explain().dispatches  # needs no device


@quiet
@pytest.mark.usefixtures("webgpu")
def test_a_device_without_timestamps_is_waited_for(monkeypatch):
    monkeypatch.setattr(wgpu_adapter, "FEATURES", ())
    with compiled(device="webgpu") as t:
        p = t.profile(2)
        assert all(row.seconds > 0 for row in p.rows)
        assert "waiting after each dispatch (the device has no timestamps)" in str(p)


@quiet
@pytest.mark.usefixtures("webgpu")
def test_more_dispatches_than_a_query_set_holds(monkeypatch):
    monkeypatch.setattr(wgpu_timing, "IN_A_SET", 32)
    training = models.gpt(batch=2, vocabulary=11, context=8, width=8, layers=1)
    with tg.compile(**training.arguments(), seed=0, device="webgpu") as t:
        p = t.profile(2)
        assert len(p.rows) > 16 and "timestamps" in p.timings.clock
        for spans in p.timings.runs:
            assert all(end > begin for begin, end in spans) and list(spans) == sorted(spans)
