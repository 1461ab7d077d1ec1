"""Small things that users reach for: names, completion, temporaries, a report that fits a screen, the version."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import init, lr, nn, optim
from tracegrad.commands import cli
from tracegrad.errors import CallError


class Model(tg.Module):
    def __init__(self) -> None:
        self.blocks = [nn.TransformerBlock(8, 2) for _ in range(3)]


def forward(m: Model, x: Any) -> Any:
    for block in m.blocks:
        x = tg.remat(block)(x)
    return x


def loss(m: Model, x: Any) -> Any:
    return tg.sum(tg.square(forward(m, x)))


X = np.ones((2, 3, 8), np.float32)


def compiled() -> tg.CompiledTraining:
    return tg.compile(model=Model(), loss=loss, inputs={"x": X.shape}, optimizer=optim.sgd(0.0), seed=0, device="cpu")


def test_a_temporary_lives_until_its_result_is_there() -> None:
    value = compiled().step(x=X).loss
    assert value == pytest.approx(
        float(np.sum(compiled().attach(forward=forward, inputs={"x": X.shape}).run(x=X).output ** 2))
    )
    pending = compiled().step(x=X)
    worker = pending.owner.worker
    assert pending.loss == value
    gc.collect()
    assert pending.owner is None and worker.closed  # and no longer than that


def test_an_explanation_fits_a_screen_unless_all_is_wanted() -> None:
    with compiled() as train:
        lines, everything = str(train.explain()).splitlines(), str(train.explain(verbose=True))
        assert len(train.explain().dispatches) > 16  # so that some are left out
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert any("dispatches more" in line for line in lines) and "@compute" in everything and len(everything) > 20_000


def test_completion_lists_what_is_public() -> None:
    with compiled() as train:
        names = dir(train)
        assert {"step", "fit", "attach", "seed"} <= {*names}
        inner = {"store", "worker", "remedies", "called", "fitted"}
        assert not inner & {*names} and not [n for n in names if n[0] == "_"]
        pending = dir(train.step())
        assert {*pending} > {"loss", "aux", "result", "done"} and "wanted" not in pending
    assert {"GRU", "MultiheadAttention", "Linear"} <= {*dir(nn)}


NAMES = [
    (tg, "pi", "math.pi"),
    (tg, "pairwise_distance", "tg.norm(a - b, axis=-1)"),
    (tg, "sparse", "tg.segment_sum(values[:, None] * x[columns], rows, n)"),
    (lr, "cosine", "lr.cosine_annealing"), (lr, "StepLR", "lr.staircase"), (lr, "ReduceLROnPlateau", "lr.plateau"),
    (lr, "LambdaLR", "derive tg.lr.Schedule"), (lr, "get_cosine_schedule_with_warmup", "lr.warmup(peak, 100, after="),
    (init, "he", "init.kaiming()"), (init, "constant", "init.literal"), (init, "kaiming_normal_", "init.kaiming()"),
    (tg, "scaled_dot_product_attention", "tg.attention"),
    (tg, "fit", "train.fit"), (nn, "Transformer", "nn.TransformerBlock"),
    (tg, "Trainer", "train.fit"), (tg, "SummaryWriter", "tg.TensorBoard"), (tg, "callbacks", "tg.EarlyStopping"),
    (tg, "clip_grad_norm_", "clip_grad_norm=1.0"), (tg, "ReduceLROnPlateau", "lr.plateau"), (tg, "Input", "tg.Module"),
    (optim, "StepLR", "lr.staircase"), (tg, "autocast", "precision='f16'"), (tg, "Variable", "self.param"),
    (nn, "Identity", "lambda x: x"), (nn, "MLP", "nn.Sequential"), (tg, "rearrange", "x.permute"),
    (tg, "ema", "ema=0.999"), (nn, "LayerNormalization", "nn.LayerNorm"), (nn, "Bidirectional", "bidirectional=True"),
    (tg, "mean_squared_error", "tg.mse_loss"), (optim, "multi_transform", "groups="), (tg, "PRNGKey", "seed="),
    (lr, "piecewise_constant_schedule", "lr.multi_step"), (tg, "fft", "in NumPy"), (tg, "polygamma", "tg.digamma"),
    (tg, "inverse", "tg.linalg"), (tg.linalg, "norm", "tg.norm"), (tg, "logdet", "tg.linalg.slogdet"),
    (tg, "InputErrors", "tg.InputError"), (optim, "adamax", "optim.custom"), (optim, "sam", "tg.grad"),
    (tg, "focal_loss", "tg.cross_entropy"), (tg, "dropout2d", "tg.dropout"), (tg, "tril_indices", "np.tril_indices"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "remedy"), NAMES, ids=[n for _, n, _ in NAMES])
def test_names_of_other_libraries_say_what_to_write(module: Any, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match="has no") as e:
        getattr(module, name)
    assert remedy in str(e.value)


VALUES = np.random.default_rng(7).normal(0, 3, 40).astype(np.float32)
EDGES, SEGMENTS = np.array([-2.0, 0.0, 0.5], np.float32), np.random.default_rng(8).integers(0, 5, 40)
HIGHEST = np.array([VALUES[k == SEGMENTS].max() for k in range(5)], np.float32)
SHARES = np.exp(VALUES - HIGHEST[SEGMENTS]) / np.bincount(SEGMENTS, np.exp(VALUES - HIGHEST[SEGMENTS]))[SEGMENTS]
WRITTEN: tuple[tuple[str, str, Any], ...] = (
    ("scatter_max", "tg.segment_max(x, segments, n)", HIGHEST),
    ("edge_softmax", "tg.segment_softmax(x, segments, n)", SHARES),
    ("searchsorted", "tg.sum(tg.cast(tg.expand_dims(x, -1) > edges, tg.i32), -1)", np.searchsorted(EDGES, VALUES)),
    ("relu6", "tg.clip(x, 0, 6)", np.clip(VALUES, 0, 6)),
    ("hardsigmoid", "tg.clip(x / 6 + 0.5, 0, 1)", np.clip((VALUES + 3) / 6, 0, 1)),
    ("hardswish", "x * tg.clip(x / 6 + 0.5, 0, 1)", VALUES * np.clip((VALUES + 3) / 6, 0, 1)),
    ("softshrink", "x - tg.clip(x, -0.5, 0.5)", np.sign(VALUES) * np.maximum(np.abs(VALUES) - 0.5, 0)),
)


@pytest.mark.parametrize(("name", "code", "wanted"), WRITTEN, ids=[n for n, _, _ in WRITTEN])
def test_what_an_error_says_to_write_computes_the_missing_function(name: str, code: str, wanted: Any) -> None:
    with pytest.raises(AttributeError) as e:
        getattr(tg, name)
    assert f"write {code}" in str(e.value)
    x, edges, segments = tg.tensor(VALUES), tg.tensor(EDGES), tg.tensor(SEGMENTS.astype(np.int32))
    got = eval(code, {"tg": tg, "x": x, "edges": edges, "segments": segments, "n": 5})
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6)


ONES = np.ones((2, 2), np.float32)
ARGUMENTS: tuple[tuple[Any, str], ...] = (
    (lambda: tg.rope(ONES, ONES, offset=3), "write position=3"),
    (lambda: tg.triu(ONES, offset=1), "write k=1"),
    (lambda: tg.segment_sum(ONES, [0, 1], num_segments=2), "write n=2"),
    (lambda: tg.sum(ONES, dim=(0, 1)), r"write axis=\(0, 1\)"),
    (lambda: tg.attention(ONES, ONES, ONES, attn_mask=ONES > 0), "write mask=, True where"),
    (lambda: tg.attention(ONES, ONES, ONES, enable_gqa=True), r"write k.repeat\(n, axis=-3\)"),
    (lambda: tg.tensor(ONES).gather(1, [[0], [1]]), r"tg.take_along_axis\(x, indices, axis\)"),
)


@pytest.mark.parametrize(("call", "text"), ARGUMENTS, ids=[text for _, text in ARGUMENTS])
def test_arguments_of_other_libraries_get_the_right_name(call: Any, text: str) -> None:
    with pytest.raises(TypeError) as e:
        call()
    assert re.search(text, str(e.value).split("\n")[0])  # the next line has the text of the call


def test_remat_is_the_name_and_checkpoint_still_works() -> None:
    assert tg.checkpoint is tg.remat and tg.remat.__name__ == "remat"


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"tracegrad {tg.__version__}\n"


class Normed(tg.Module):
    def __init__(self) -> None:
        self.norm, self.out = nn.BatchNorm(4), nn.Linear(4, 2)
        self.order = self.param(2, dtype=tg.i32, trainable=False)


def scores(m: Normed, x: Any) -> Any:
    return tg.take(m.out(m.norm(x)), m.order, 1)


def train_scores(m: Normed, x: Any) -> Any:
    return tg.sum(tg.square(tg.take(m.out(m.norm(x, training=True)), m.order, 1)))


def test_a_forward_is_loaded_from_checkpoints_and_plain_files(device_name: str, tmp_path: Any) -> None:
    x, inputs = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4), {"x": (3, 4)}
    saved, plain = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    with tg.compile(
        model=Normed(), loss=train_scores, inputs=inputs, optimizer=optim.adam(lr=0.1), device=device_name
    ) as t:
        t.set_params({"order": np.array([1, 0], np.int32)})
        t.run_steps(3, x=x)
        t.save(saved)
        want = t.attach(forward=scores, inputs=inputs).run(x=x).output
        tg.safetensors.write(plain, {**t.params(), **t.states()})
    for path in (saved, plain):
        with tg.load_forward(path, model=Normed(), forward=scores, inputs=inputs, device=device_name) as infer:
            np.testing.assert_array_equal(infer.run(x=x).output, want)
            assert set(infer.params()) == {"norm.g", "norm.b", "out.W", "out.b", "order"}
    with pytest.raises(tg.InputError, match=r"layer\.W: missing"):
        tg.load_forward(saved, model=Other(), forward=lambda m, x: m.layer(x), inputs=inputs, device="cpu")


class Other(tg.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 2)


def test_a_forward_whose_parameters_were_never_set_warns_once() -> None:
    x = np.ones((1, 4), np.float32)
    how: dict[str, Any] = {
        "model": Other(),
        "forward": lambda m, x: m.layer(x),
        "inputs": {"x": (1, 4)},
        "device": "cpu",
    }
    with tg.compile_forward(**how) as infer:
        with pytest.warns(RuntimeWarning, match="never set") as caught:
            first = infer.run(x=x).output
            infer.run(x=x).result()
        assert len(caught) == 1 and caught[0].filename == __file__
        infer.set_params({"layer.b": np.ones(2, np.float32)})
        np.testing.assert_allclose(infer.run(x=x).output, first + 1, rtol=1e-6)


def test_dtypes_have_the_names_of_python_numpy_and_pytorch():
    torch = pytest.importorskip("torch")
    x = tg.tensor([0.0, 1.5])
    for given in (np.float32, np.dtype("float32"), "float32", float, torch.float32, tg.f32):
        assert tg.cast(x > 1.0, given).dtype == tg.f32
    for given in (np.int32, int, torch.int32):
        assert tg.cast(x, given).dtype == tg.i32
    assert tg.cast(x, bool).dtype == tg.cast(x, np.bool_).dtype == tg.bool_
    for given in (np.float64, np.int64, "long", dict, torch.float64):
        with pytest.raises(tg.DTypeError, match="is not a dtype; use one of"):
            tg.cast(x, given)


def test_only_an_index_of_a_pair_of_max_warns(recwarn):
    def loss(m, x):
        h = m(x)
        most = h.max(1)
        parts = [
            most[2:],
            most[None],
            most[tg.arange(2)],
            h.max(1, keepdims=True)[:, 0],
            h.max(),
            h.argmax(1)[0] * 0 == 0,
        ]
        return sum(tg.sum(tg.cast(p, tg.f32)) for p in parts)

    train = tg.compile(model=nn.Linear(3, 2), loss=loss, inputs={"x": (4, 3)}, optimizer=optim.sgd(0.1), device="cpu")
    train.close()
    assert not [w for w in recwarn if "values only" in str(w.message)]


def test_one_example_or_a_dataset_in_place_of_batches_is_recognized():
    def loss(m, x):
        return tg.mean(m(x))

    train = tg.compile(
        model=nn.Linear(3, 2), loss=loss, inputs={"x": (None, 3)}, optimizer=optim.sgd(0.1), device="cpu"
    )
    with (
        train,
        pytest.raises(tg.InputError, match=r"one example\? x\[None\] is a batch of one, and a DataLoader makes"),
    ):
        train.fit(list(np.ones((5, 3), np.float32)), progress=False)


def test_a_column_of_a_table_is_an_input_as_any_other():
    table = np.random.default_rng(0).integers(0, 5, (40, 6))

    def loss(m, i, y):
        return tg.mse_loss(m(i)[:, 0], y)

    def trained(i, y):
        inputs = {"i": tg.i32[None], "y": (None,)}
        with tg.compile(
            model=nn.Embedding(5, 1), loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), seed=0, device="cpu"
        ) as train:
            losses = train.fit(x=i, y=y, batch_size=16, epochs=2, progress=False).loss
            infer = train.attach(forward=lambda m, i: m(i), inputs={"i": tg.i32[None]})
            return losses, infer.run(i=i[::-2]).output.tolist(), train.step(i=i, y=y).loss

    assert trained(table[:, 3], table[:, 1]) == trained(table[:, 3].copy(), table[:, 1].astype(np.float32))


def test_fit_says_which_input_has_no_array():
    def loss(m, x, y):
        return tg.mse_loss(m(x), y)

    x, y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    inputs = {"x": (None, 3), "y": (None, 1)}
    with tg.compile(model=nn.Linear(3, 1), loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), device="cpu") as train:
        for data, said in (
            ({"x": x, "t": y}, "there is no array for 'y'"),
            ({"x": x, "y": y, "t": y}, "'t' is not one"),
        ):
            with pytest.raises(tg.InputError, match=rf"fit: the inputs are x, y; {said}.* columns of a data frame"):
                train.fit(data, progress=False)


@pytest.mark.parametrize(
    ("array", "dtype", "odd"),
    [([1.0, 2.5], tg.i32, "2.5 of float64"), ([np.nan], tg.i32, "nan of float64"), ([2, 1], tg.bool_, "2 of int64")],
)
def test_asarray_refuses_values_that_a_dtype_cannot_hold(array: list[float], dtype: tg.DType, odd: str) -> None:
    with pytest.raises(tg.DTypeError, match=f"asarray: the value {odd} does not fit {dtype}"):
        tg.asarray(np.array(array), dtype)
    assert tg.asarray(np.array([0.0, 1.0]), dtype).numpy().tolist() == [0, 1]


def test_modules_for_other_packages_need_no_import() -> None:
    program = "import tracegrad as tg; tg.testing.check_op(tg.extend.op(lambda x: x * 2.0), (2, 3))"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_history_is_drawn_where_a_notebook_looks() -> None:
    """Figures outside of pyplot are shown nowhere."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    seen: list[str] = []
    with compiled() as train:
        history = train.fit([{"x": X}] * 3, progress=False, on_epoch=lambda state: seen.append(repr(state)))
    assert seen == ["<FitState of epoch 1; read its .loss, .lr, .step, .aux, .metrics and .history>"]
    before = plt.get_fignums()
    axes = history.plot()
    assert [n for n in plt.get_fignums() if n not in before] == [axes.figure.number]
    assert history.plot(ax=axes) is axes and len(axes.lines) == 2
    plt.close(axes.figure)


def test_what_a_package_does_with_a_result_is_told_at_the_users_line() -> None:
    plt = pytest.importorskip("matplotlib.figure")
    axes = plt.Figure().subplots()
    with compiled() as train, pytest.raises(CallError, match=r"test_conveniences\.py:\d+\n +axes\.plot") as caught:
        axes.plot(train.step(x=X))
    assert "site-packages" not in str(caught.value)


def test_a_result_says_which_steps_were_skipped() -> None:
    with compiled() as train:
        assert train.step(x=X).skipped == 0
        assert train.run_steps(2, x=np.stack([X, X])).skipped == 0


def test_a_training_without_sizes_yet_counts_no_dispatches() -> None:
    model, inputs = nn.Linear(2, 1), {"x": (None, 2)}
    with tg.compile(model=model, loss=lambda m, x: m(x).mean(), inputs=inputs, optimizer=optim.sgd(0.1)) as train:
        assert "dispatches" not in repr(train)
        assert train.step(x=np.ones((3, 2))).loss is not None
        assert "dispatches a step" in repr(train)


def test_metrics_call_a_model_that_captures_and_patches() -> None:
    """Loss and metrics are one program of the validation, in which each site would have its name several times."""

    def predict(m: Any, x: Any) -> Any:
        return tg.patch("out", tg.capture("out", m(x)))

    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(8, 2)
    with tg.compile(
        model=nn.Linear(2, 1), loss=lambda m, x: predict(m, x).mean(), inputs={"x": (None, 2)}, optimizer=optim.sgd(0.1)
    ) as train:
        metrics = {"low": lambda m, x: predict(m, x).min(), "high": lambda m, x: predict(m, x).max()}
        h = train.fit(x=x, validation=(x,), metrics=metrics, progress=False)
        assert train.step(x=x).captures["out"].shape == (8, 1)
        assert h.metrics[-1]["val_low"] <= h.metrics[-1]["val_loss"] <= h.metrics[-1]["val_high"]
