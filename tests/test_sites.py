"""Captures and patches, end to end on both runtimes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import build_forward, build_training
from tracegrad import nn, optim
from tracegrad.engine.programs import SizedPrograms
from tracegrad.program import Program

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 2)).astype(np.float32)
Y = RNG.standard_normal((4, 3)).astype(np.float32)
H = RNG.standard_normal((4, 8)).astype(np.float32)
SHAPES = {"x": (4, 2)}
PATCH_LINES = ["patch hidden: f32[4,8]", "patch big: bool[4,8]", "patch rank: i32[4]"]


class MLP(tg.Module):
    def __init__(self):
        self.l1, self.l2 = nn.Linear(2, 8, init=tg.init.kaiming()), nn.Linear(8, 3, init=tg.init.xavier())


def predict(m, x):
    hidden = tg.patch("hidden", tg.tanh(m.l1(x)))
    big = tg.patch("big", hidden > 0.5)
    out = tg.capture("out", m.l2(tg.where(big, hidden * 2, hidden)))
    return out, tg.patch("rank", tg.argmax(out, axis=-1))


def loss(m, x, y):
    return tg.mean(tg.square(predict(m, x)[0] - y))


def plain_loss(m, x, y):
    hidden = tg.tanh(m.l1(x))
    return tg.mean(tg.square(m.l2(tg.where(hidden > 0.5, hidden * 2, hidden)) - y))


def expected(w, x, hidden=None, mask=True, big=None):
    own = np.tanh(x @ w["l1.W"] + w["l1.b"])
    h = own if hidden is None else np.where(mask, hidden, own)
    h = np.where(h > 0.5 if big is None else big, h * 2, h)
    return h @ w["l2.W"] + w["l2.b"]


@pytest.fixture(params=["cpu", "webgpu"])
def device(request: Any) -> str:
    if request.param == "webgpu":
        request.getfixturevalue("webgpu")
    return request.param


def compiled(device="cpu", forward=predict, inputs=SHAPES):
    return tg.compile_forward(model=MLP(), forward=forward, inputs=inputs, seed=0, device=device)


def close(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_patches_stand_in_for_values_in_their_run_only(device):
    with compiled(device) as f:
        w = f.download_params()
        close(f.run(x=X).output[0], expected(w, X))
        r = f.run(x=X, patches={"hidden": H})
        close(r.output[0], expected(w, X, H))
        close(r.captures["out"], r.output[0])
        close(f.run(x=X).output[0], expected(w, X))
        columns = np.arange(8) % 2 == 0
        close(f.run(x=X, patches={"hidden": (columns, H)}).output[0], expected(w, X, H, columns))
        rows = np.array([[True], [False], [False], [True]])
        close(f.run({"x": X}, patches={"hidden": (rows, H.tolist())}).output[0], expected(w, X, H, rows))
        close(f.run(x=X, patches={"hidden": (False, H)}).output[0], expected(w, X))
        close(f.run(x=X, patches={"hidden": 0.0}).output[0], expected(w, X, np.zeros_like(H)))
        close(f.run(x=X, patches={"hidden": (rows, H[0])}).output[0], expected(w, X, np.tile(H[0], (4, 1)), rows))


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_sites_of_every_dtype_may_be_patched_together(device):
    with compiled(device) as f:
        w = f.download_params()
        big, rank = H > 0, np.array([7, 8, 9, 10])
        first = np.array([True, False, False, False])
        out, got = f.run(x=X, patches={"hidden": H, "big": big, "rank": (first, rank)}).output
        wanted = expected(w, X, H, big=big)
        close(out, wanted)
        assert got.dtype == np.int32 and got.tolist() == [7, *wanted.argmax(-1)[1:]]
        close(f.run(x=X, patches={"big": np.ones((4, 8), bool)}).output[0], expected(w, X, big=True))


def test_patched_arrays_are_copied():
    with compiled() as f:
        w, h, mask = f.download_params(), H.copy(), np.ones((4, 8), bool)
        pending = []
        for k in range(6):
            h[:], mask[:] = H + k, k % 2 == 0
            pending.append(f.run(x=X, patches={"hidden": (mask, h)}))
            h[:], mask[:] = np.nan, True
        for k, p in enumerate(pending):
            close(p.output[0], expected(w, X, H + np.float32(k), k % 2 == 0))


def test_a_forward_is_compiled_twice_at_most_a_size(monkeypatch):
    made: list[tuple[Any, bool]] = []
    original = SizedPrograms.built

    def counted(self, source, sizes):
        made.append((sizes[0][1], source.patching))
        return original(self, source, sizes)

    monkeypatch.setattr(SizedPrograms, "built", counted)
    with compiled(inputs={"x": (None, 2)}) as f:
        for _ in range(2):
            f.run(x=X).result()
            f.run(x=X, patches={}).result()
        assert made == [(4, False)]
        for site, value in (("hidden", H), ("big", H > 0), ("hidden", -H)):
            f.run(x=X, patches={site: value}).result()
        f.run(x=X[:3]).result()
        f.run(x=X[:3], patches={"hidden": H[:3]}).result()
        assert made == [(4, False), (4, True), (3, True)]  # without patches, one program serves the sizes that follow


def test_sites_are_not_in_the_program_of_runs_and_steps_without_patches():
    def bare(m, x):
        hidden = tg.tanh(m.l1(x))
        out = tg.capture("out", m.l2(tg.where(hidden > 0.5, hidden * 2, hidden)))
        return out, tg.argmax(out, axis=-1)

    marked, unmarked = (build_forward(MLP(), f, SHAPES).program for f in (predict, bare))
    assert marked.to_json() == unmarked.to_json()
    inputs = {**SHAPES, "y": (4, 3)}
    a, b = (build_training(MLP(), f, inputs, optim.adam(lr=0.1)).program for f in (loss, plain_loss))
    assert {f.name for f in a.outputs} - {f.name for f in b.outputs} == {"capture.out"}
    assert [f.name for f in a.inputs] == [f.name for f in b.inputs]


def test_the_program_with_sites_is_plain_data():
    program = build_forward(MLP(), predict, SHAPES, patching=True).program
    fields = {f.name: (f.dtype, f.shape) for f in program.inputs}
    assert fields["patch.hidden.value"] == ("f32", (4, 8)) and fields["patch.hidden.mask"] == ("bool", (4, 8))
    assert fields["patch.rank.value"] == ("i32", (4,))
    assert Program.from_json(program.to_json()) == program


def test_memory_of_both_programs_is_freed_with_the_size():
    options: Any = {"model": MLP(), "forward": predict, "inputs": {"x": (None, 2)}, "seed": 0, "device": "cpu"}
    for kept in (1, 3):
        with tg.compile_forward(**options, max_cached_shapes=kept) as f:
            for n in range(1, 5):
                f.run(x=X[:n]).result()
                f.run(x=X[:n], patches={"hidden": H[:n]}).result()
            others = 2  # the program for many sizes, and the one that holds the parameters
            assert f.store.worker.call(lambda session: len(session._loaded)) == 2 * kept + others


@pytest.mark.parametrize("patches, words", [
    ({"hiden": H, "out": H}, ["2 problems with the patches", "hiden: no such site", "out: no such site", *PATCH_LINES]),
    ({"hidden": H[:2]}, ["hidden: expected f32[4,8], got f32[2,8]", "patch hidden: f32[4,8]  # test_sites.py:"]),
    ({"hidden": (np.ones(3, bool), H)}, ["hidden: mask: expected a bool array that broadcasts to [4, 8], got bool[3]"]),
    ({"hidden": (np.ones((1, 4, 8), bool), H)}, ["broadcasts to [4, 8], got bool[1,4,8]"]),
    ({"hidden": (np.ones((4, 8)), H)}, ["hidden: mask: float64 values cannot be converted to bool", "x != 0"]),
    ({"hidden": (H > 0, H, H)}, ["hidden: a tuple must be (mask, array), got one of 3"]),
    ({"hidden": "text"}, ["hidden:"]),
    ({"rank": np.zeros(4)}, ["rank: float64 values cannot be converted to i32 without loss"]),
    ({"big": np.zeros((4, 8)), "hidden": X[0, 0:0]}, ["big: float64 values cannot be", "hidden: expected f32[4,8]"]),
    (H, ["patches must be a dict of site name -> array, got ndarray"]),
    ({1: H}, ["1: no such site"]),
])  # fmt: skip
def test_bad_patches_are_failed_and_name_the_sites_there_are(patches, words):
    with compiled() as f:
        before = f.run(x=X).output[0]
        error = f.run(x=X, patches=patches).result().error
        assert isinstance(error, tg.InputError) and "test_sites.py" in str(error), repr(error)
        for word in words:
            assert word in str(error)
        assert np.array_equal(f.run(x=X).output[0], before)


def test_a_forward_without_patch_sites_says_how_to_mark_them():
    with compiled(forward=lambda m, x: m.l1(x)) as f:
        error = f.run(x=X, patches={"hidden": H}).result().error
        assert isinstance(error, tg.InputError)
        assert "no patch sites" in str(error) and 'tg.patch("name", x)' in str(error)
        assert f.sites == ()


def test_an_input_may_be_named_patches_where_there_are_no_sites():
    def shifted(m, x, patches):
        return m.l1(x) + patches

    inputs = {"x": (4, 2), "patches": (4, 8)}
    with compiled(forward=shifted, inputs=inputs) as f:
        w = f.download_params()
        for p in (f.run(x=X, patches=H), f.run({"x": X, "patches": H}), f.run({"patches": H}, x=X)):
            close(p.output, X @ w["l1.W"] + w["l1.b"] + H)
    with pytest.raises(tg.InputError, match="cannot be named 'patches'"):
        compiled(forward=lambda m, x, patches: tg.patch("h", m.l1(x)) + patches, inputs=inputs)


def test_a_loss_with_sites_trains_like_one_without():
    inputs = {**SHAPES, "y": (4, 3)}
    options: Any = {"inputs": inputs, "optimizer": optim.adam(lr=0.1), "seed": 0, "device": "cpu"}
    with tg.compile(model=MLP(), loss=loss, **options) as a, tg.compile(model=MLP(), loss=plain_loss, **options) as b:
        losses = [t.step(x=X, y=Y).loss for t in (a, b) for _ in range(5)]
        np.testing.assert_allclose(losses[:5], losses[5:], rtol=1e-5)
        lines = ["patch hidden: f32[4,8]", "patch big: bool[4,8]", "capture out: f32[4,3]", "patch rank: i32[4]"]
        assert [str(s).split("  # ")[0] for s in a.sites] == lines and b.sites == ()
        error = a.step(x=X, y=Y, patches={"hidden": H}).result().error
        assert isinstance(error, tg.InputError) and "patches: unknown" in str(error)


def test_an_attached_forward_is_patched_with_the_parameters_of_the_moment():
    options: Any = {"inputs": {**SHAPES, "y": (4, 3)}, "optimizer": optim.adam(lr=0.1), "seed": 0, "device": "cpu"}
    with tg.compile(model=MLP(), loss=loss, **options) as t:
        f = t.attach(forward=predict, inputs={"x": (None, 2)})
        assert [s.type.shape for s in f.sites] == [(1, 8), (1, 8), (1, 3), (1,)]
        for _ in range(2):
            close(f.run(x=X, patches={"hidden": H}).output[0], expected(t.download_params(), X, H))
            t.step(x=X, y=Y).result()
        assert [s.type.shape for s in f.sites] == [(4, 8), (4, 8), (4, 3), (4,)]
        t.replace_model(MLP(), seed=5)
        close(f.run(x=X, patches={"hidden": H}).output[0], expected(t.download_params(), X, H))


def test_sites_tell_kind_name_type_and_line():
    with compiled() as f:
        kinds = [(s.kind, s.name) for s in f.sites]
        assert kinds == [("patch", "hidden"), ("patch", "big"), ("capture", "out"), ("patch", "rank")]
        hidden = f.sites[0]
        assert hidden.type == tg.f32[4, 8] and hidden.site is not None and hidden.site.file == __file__
        assert 'tg.patch("hidden"' in hidden.site.describe() and str(hidden).endswith(hidden.site.short)


def test_heads_are_told_apart():
    def attend(m, x):
        maps = tg.capture("attn", tg.softmax(x, axis=-1))
        return tg.sum(maps)

    maps = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)
    with compiled(forward=lambda m, x: attend(m, x) + tg.sum(m.l1.b), inputs={"x": (2, 3, 4, 4)}) as f:
        r = f.run(x=maps)
        heads = r.captures.per_head("attn")
        assert len(heads) == 3 and all(h.shape == (2, 4, 4) for h in heads)
        np.testing.assert_array_equal(np.stack(heads, 1), r.captures["attn"])
