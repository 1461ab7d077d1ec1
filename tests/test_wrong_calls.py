"""Wrong calls, one for each rule that no other table of wrong calls breaks: the error names the types and the rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tracegrad as tg
from models import SineMLP, sine_loss
from tracegrad import lr, nn, ops, optim
from tracegrad.refusals import remedies

OPTIM: Any = optim  # wrong calls are wrong for type checkers, too


def test_no_remedy_is_for_a_name_that_exists() -> None:
    own = {"names": {*ops.__all__, *nn.__all__, *optim.__all__}, "schedules": {*lr.__all__}}
    stale = {n for table, exist in own.items() for keys in remedies()[table] for n in keys.split() if n in exist}
    assert not stale, f"take these names out of src/tracegrad/remedies.toml, because they exist now: {stale}"


@pytest.mark.parametrize("name", ["Sequential", "Embedding", "Conv2d", "adam", "plateau"])
def test_a_name_of_another_module_is_named_with_it(name: str) -> None:
    owner = next(m for m in (nn, optim, lr) if hasattr(m, name))
    with pytest.raises(AttributeError, match=f"did you mean {owner.__name__.removeprefix('tracegrad.')}.{name}"):
        getattr(tg, name)


def f(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def i(*shape: int) -> Any:
    return np.ones(shape, np.int32)


# the call -> what its error says, after the name of the op
OPS: dict[str, tuple[Callable[[], Any], str]] = {
    "ctc_loss: probabilities": (
        lambda: tg.ctc_loss(f(3, 4), i(1, 2), i(1), i(1)),
        "log_probs must be [T,N,C] with T > 0, got f32[3,4]",
    ),
    "ctc_loss: labels": (
        lambda: tg.ctc_loss(f(3, 2, 4), i(2), i(2), i(2)),
        "targets must be i32[2,S], a row of labels for each sequence; got i32[2]",
    ),
    "ctc_loss: reduction": (
        lambda: tg.ctc_loss(f(3, 2, 4), i(2, 2), i(2), i(2), reduction="max"),
        "reduction must be one of 'mean', 'sum', 'none', got 'max'",
    ),
    "diag": (lambda: tg.diag(f()), "takes a vector or matrices, got f32[]"),
    "linspace": (lambda: tg.linspace(0, 1, -1), "num must not be negative, got -1"),
    "linspace: stop": (
        lambda: tg.linspace(0, float("inf")),
        "start and stop must be finite numbers of f32, got 0 and inf",
    ),
    "linspace: size": (
        lambda: tg.linspace(0, 1e39, 3),
        "start and stop must be finite numbers of f32, got 0 and 1e+39",
    ),
    "arange: size": (
        lambda: tg.arange(0, 1e39, 5e38),
        "start, stop and step must be finite numbers of f32, and step not 0; got 0, 1e+39, 5e+38",
    ),
    "linspace: integer": (
        lambda: tg.linspace(-(10**400), 0, 3),
        "start and stop must be finite numbers of f32, got -1000",
    ),
    "arange: integer": (
        lambda: tg.arange(0, 2**200, 2**199),
        "start, stop and step must be finite numbers of f32, and step not 0; got 0, 16069",
    ),
    "max_pool2d: bias": (
        lambda: tg.max_pool2d(f(1, 1, 4, 4), 2, bias=f(1)),  # type: ignore[call-arg]
        "there is no argument 'bias': add it to the result y, as in y + b, or y + b[:, None, None] for images",
    ),
    "smooth_l1_loss": (lambda: tg.smooth_l1_loss(f(2), f(2), beta=-1.0), "beta must be a number >= 0, got -1.0"),
    "getitem": (lambda: tg.tensor(f(2, 3))[..., 0, ...], "an index can have only one Ellipsis; got f32[2,3]"),
    "take_along_axis: rank": (
        lambda: tg.take_along_axis(f(2, 3), i(2), 1),
        "ranks differ: x is f32[2,3], indices are i32[2]",
    ),
    "take_along_axis: type": (
        lambda: tg.take_along_axis(f(2, 3), f(2, 3), 1),
        "indices must be i32, got f32[2,3]; cast with tg.cast",
    ),
    "concat": (lambda: tg.concat([tg.tensor(f(2)), tg.tensor(i(2))], 0), "dtypes differ: f32[2] and i32[2]; cast one"),
    "einsum: operands": (lambda: tg.einsum("ij,jk->ik", f(2, 2)), "'ij,jk->ik' names 2 operands, got 1"),
    "einsum: letters": (lambda: tg.einsum("i1->i", f(2, 2)), "axes are named by letters, got 'i1' in 'i1->i'"),
    "einsum: output": (lambda: tg.einsum("ij->ii", f(2, 2)), "the output of 'ij->ii' names an axis twice"),
    "interpolate: corners": (
        lambda: tg.interpolate(f(1, 1, 4, 4), size=8, mode="nearest", align_corners=True),
        "align_corners cannot go with mode",
    ),
    "interpolate: size": (
        lambda: tg.interpolate(f(1, 1, 4, 4), size=(2,)),
        "size must be a positive integer for each of 2 axes, or one for all, got (2,)",
    ),
    "adaptive_avg_pool2d": (
        lambda: tg.adaptive_avg_pool2d(f(1, 4, 4), 2),
        "x must be images [B,C,H,W], got f32[1,4,4]",
    ),
    "categorical": (lambda: tg.categorical(i(2, 3)), "takes f32, got i32[2,3]; cast with tg.cast(x, tg.f32)"),
    "gumbel_softmax": (lambda: tg.gumbel_softmax(i(2, 3)), "takes f32, got i32[2,3]; cast with tg.cast(x, tg.f32)"),
    "max_pool3d": (
        lambda: tg.max_pool3d(f(1, 1, 1, 4, 4), 2),
        "a window of 2x2x2 (dilation 1x1x1) does not fit a volume of 1x4x4 with padding 0x0x0",
    ),
    "max_pool3d: padding": (
        lambda: tg.max_pool3d(f(1, 1, 4, 4, 4), 3, padding=(2, 0, 0)),
        "max_pool3d: padding 2x0x0 is more than half of 3x3x3",
    ),
    "avg_pool1d: window": (
        lambda: tg.avg_pool1d(f(1, 2, 5), 9),
        "avg_pool1d: a window of 9 (dilation 1) does not fit a sequence of 5 with padding 0",
    ),
    "max_pool1d: padding": (
        lambda: tg.max_pool1d(f(1, 2, 5), 3, padding=2),
        "max_pool1d: padding 2 is more than half of 3",
    ),
    "avg_pool1d: kernel": (
        lambda: tg.avg_pool1d(f(1, 2, 5), 0),
        "kernel_size must be one integer of at least 1, got 0",
    ),
    "conv1d: bias": (lambda: ANY.conv1d(f(1, 2, 5), f(3, 2, 3), f(3)), "as in conv1d(x, w) + b[:, None]"),
    "conv_transpose1d: padding": (
        lambda: tg.conv_transpose1d(f(1, 2, 5), f(2, 3, 3), padding=9),
        "conv_transpose1d: padding 9 leaves none of the 7 elements: x is f32[1,2,5]",
    ),
    "conv_transpose2d: padding": (
        lambda: tg.conv_transpose2d(f(1, 2, 5, 5), f(2, 3, 3, 3), padding=9),
        "conv_transpose2d: padding 9x9 leaves none of the 7x7 elements: x is f32[1,2,5,5]",
    ),
    "avg_pool1d": (lambda: tg.avg_pool1d(f(4, 4), 2), "x must be sequences [B,C,L], got f32[4,4]"),
    "pixel_shuffle: factor": (lambda: tg.pixel_shuffle(f(1, 4, 2, 2), 0), "factor must be a positive integer, got 0"),
    "pixel_shuffle: rank": (lambda: tg.pixel_shuffle(f(4, 2), 2), "x must be images [...,C,H,W], got f32[4,2]"),
    "repeat": (lambda: tg.repeat(f(2), -1), "repeats must not be negative, got -1"),
    "repeat: calls": (lambda: tg.repeat(lambda c: c, -1, 1.0), "n must not be negative, got -1"),
    "repeat: type": (
        lambda: tg.repeat(lambda c: tg.cast(c, tg.i32), 2, f(2)),
        "fn changes the type of the carry: it gets f32[2] and returns i32[2]",
    ),
    "accuracy": (lambda: tg.metrics.accuracy(f(), i()), "the last axis of the logits must be the classes, got f32[]"),
    "max": (
        lambda: tg.max(np.ones(3, bool)),
        "takes numbers, got bool[3]; write tg.any, or cast with tg.cast(x, tg.i32)",
    ),
    "unfold": (lambda: tg.unfold(f(4, 4), 2), "x must be images [B,C,H,W], got f32[4,4]"),
    "rope": (lambda: tg.rope(f(2, 4), f(2, 4), base=0), "base must be above 0, got 0"),
    "leaky_relu": (lambda: tg.leaky_relu(f(2), OPTIM), "alpha must be a number, got <module"),
    "leaky_relu: text": (lambda: tg.leaky_relu(f(2), "3"), "alpha must be a number, got '3' (str)"),  # type: ignore[arg-type]
    "elu": (lambda: tg.elu(f(2), alpha=float("nan")), "alpha must be finite in f32, got nan"),
    "retain_grad": (lambda: tg.tensor(f(2)).retain_grad(), "f32[2] requires no gradient"),
}


def test_a_transform_names_a_parameter_that_is_only_declared() -> None:
    with pytest.raises(tg.TraceError, match=r"^W is a declared parameter, f32\[2,2\], .* tg.instantiate"):
        tg.remat(lambda m, x: m(x))(nn.Linear(2, 2), f(1, 2))


@pytest.mark.parametrize("name", OPS)
def test_an_op_refuses_a_wrong_call(name: str) -> None:
    call, said = OPS[name]
    with pytest.raises(tg.TracegradError) as told:
        call()
    text = str(told.value)
    assert text.startswith(f"{name.partition(':')[0]}: ") and said in text, text


def test_a_tensor_is_no_index_and_has_no_length_where_python_asks() -> None:
    with pytest.raises(tg.DTypeError, match=r"only i32 and u32 can be an index, got f32\[\]"):
        [1, 2, 3][tg.tensor(1.0)]
    with pytest.raises(tg.ShapeError, match="a tensor of rank 0 has no length"):
        len(tg.tensor(1.0))


SINE: dict[str, Any] = {
    "model": SineMLP(8),
    "loss": sine_loss,
    "inputs": {"x": (4, 1), "y": (4, 1)},
    "optimizer": optim.adam(0.1),
    "device": "cpu",
    "seed": 0,
}
X, Y = f(8, 1), f(8, 1)


def compiled(**more: Any) -> tg.CompiledTraining:
    return tg.compile(**{**SINE, **more})


class Flagged(tg.Module):
    def __init__(self, init: Any) -> None:
        self.flag = self.param((1,), init=init, dtype="bool")


def fitted(*args: Any, **options: Any) -> Any:
    with compiled() as train:
        return train.fit(*args, epochs=1, **options)


TRAININGS: dict[str, tuple[Callable[[], Any], str]] = {
    "a layout alone": (lambda: compiled(layout="fsdp"), "pass mesh=jax.make_mesh(...) too"),
    "params of one loss": (lambda: compiled(params={"": "*"}), "params= is for losses="),
    "losses as a list": (
        lambda: compiled(loss=None, losses=[sine_loss]),
        "with several losses, give one for each by name",
    ),
    "a loss that takes nothing": (lambda: compiled(loss=lambda: 0.0), "must take the model as its first argument"),
    "a loss without a name": (lambda: compiled().download_grads(loss="d"), "one loss without a name; leave out 'd'"),
    "a group by number": (lambda: optim.adamw(0.1, groups={3: {"lr": 1}}), "a pattern such as 'backbone.*'"),
    "accumulate twice": (
        lambda: optim.accumulate(2, optim.accumulate(2, optim.scale_by_adam())),
        "accumulate cannot be nested",
    ),
    "accumulate an optimizer": (
        lambda: OPTIM.accumulate(2, optim.sgd(0.1)),
        "optim.accumulate: takes transforms, such as optim.scale_by_adam(); got optim.sgd(",
    ),
    "accumulate for ever": (lambda: optim.sgd(0.1, accumulate=2**24 + 1), "at most 16777216, got 16777217"),
    "accumulate 400 digits": (lambda: optim.sgd(0.1, accumulate=10**400), "at most 16777216, got 1000"),
    "a literal of truth values": (
        lambda: Flagged(tg.init.literal(f(1))),
        "literal(array, dtype='bool'), not f32",
    ),
    "an input in place of the model": (
        lambda: compiled(loss=lambda m: m, inputs={"m": (4, 1)}),
        "its first argument is the model, as in loss(m)",
    ),
    "no schedule": (
        lambda: compiled(optimizer=OPTIM.adam("fast")),
        "lr must be a number or a schedule of tracegrad.lr, got 'fast'",
    ),
    "data twice": (lambda: fitted([{"x": X, "y": Y}], x=X, y=Y), "give data, or x= and y=, not both"),
    "an empty share": (lambda: fitted(x=X, y=Y, validation=0.01), "leaves one part empty"),
    "a share above one": (lambda: fitted(x=X, y=Y, validation=2.0), "a fraction of whole arrays, between 0 and 1"),
    "lengths": (lambda: fitted(x=X, y=Y[:4]), "the same number of examples, at least one: x has 8, y has 4"),
    "metrics as a list": (lambda: fitted(x=X, y=Y, validation=0.5, metrics=[sine_loss]), "metrics"),
    "a hook that is a text": (lambda: fitted(x=X, y=Y, on_step="print"), "on_step must be a function of the state"),
    "no batch to validate": (lambda: fitted(x=X, y=Y, validation=iter([])), "validation has no batch"),
    "an optimizer by name": (
        lambda: compiled(loss=None, losses={"d": sine_loss}, optimizer={"d": optim.sgd(0.1)}).replace_model(
            SineMLP(8), optimizer={"g": optim.sgd(0.1)}
        ),
        "there is no loss 'g'; there are d",
    ),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_refuses_a_wrong_call(name: str) -> None:
    call, said = TRAININGS[name]
    with pytest.raises(tg.TracegradError) as told:
        call()
    assert said in str(told.value) and f"at {Path(__file__)}:" in str(told.value), str(told.value)


def turn(carry: Any, x: Any) -> tuple[Any, Any]:
    return carry, x


def traced(**settings: Any) -> Any:
    def forward(_: Any, x: tg.Tensor) -> Any:
        return tg.sum(x, 0, **settings)

    return tg.trace_forward(model=SineMLP(8), forward=forward, inputs={"x": (2, 3)})


# a call with another value for a switch: "no" would be true
SWITCHES: dict[str, Callable[[Any], Any]] = {
    "sum: keepdims": lambda no: tg.sum(f(2, 3), 0, keepdims=no),
    "sum: keepdims, by position": lambda no: tg.sum(f(2, 3), 0, no),
    "sum: keepdims, in a trace": lambda no: traced(keepdims=no),
    "dropout: training": lambda no: tg.dropout(f(3), 0.5, training=no),
    "BatchNorm: training": lambda no: nn.BatchNorm(3)(f(2, 3), training=no),
    "Linear: bias": lambda no: nn.Linear(2, 3, bias=no),
    "Linear: decay": lambda no: nn.Linear(2, 3, decay=no),
    "LSTM: bidirectional": lambda no: nn.LSTM(2, 3, bidirectional=no),
    "sgd: nesterov": lambda no: optim.sgd(0.1, momentum=0.9, nesterov=no),
    "tg.compile: keep_grads": lambda no: compiled(keep_grads=no),
    "fit: shuffle": lambda no: fitted(x=X, y=Y, shuffle=no),
    "reset: params": lambda no: compiled().reset(params=no),
    "tg.scan: reverse": lambda no: tg.scan(turn, f(), f(3), reverse=no),
    "requires_grad": lambda no: tg.parameter(f(2), requires_grad=no),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false(name: str) -> None:
    for value, shown in (
        ("no", "'no'"),
        (2, "2"),
        (np.array(2), "2"),
        (np.float32(0.5), "0.5"),
        (0.0, "0.0"),
        (optim, "<module 'tracegrad.optim'"),
    ):
        with pytest.raises(tg.InputError) as told:
            SWITCHES[name](value)
        text = str(told.value)
        assert name.partition(",")[0] in text and f" must be True or False, got {shown}" in text, text
        assert f"at {Path(__file__)}:" in text, text


def test_a_switch_can_come_from_numpy() -> None:
    x = f(2, 3)
    values: list[tuple[Any, tuple[int, ...]]] = [(np.True_, (1, 3)), (1, (1, 3)), (np.False_, (3,)), (0, (3,))]
    for value, shape in values:
        assert tg.sum(x, 0, keepdims=value).shape == shape
        assert traced(keepdims=value).outputs["output"].shape == shape
    assert list(nn.named_parameters(nn.Linear(2, 3, bias=bool(np.bool_(False)), decay=None))) == ["W"]


@pytest.mark.parametrize("path", [None, 3, b"x", ["x"]])
def test_a_path_is_a_text_or_a_path(path: Any) -> None:
    """`open` would read from descriptor 3, and close it."""
    with compiled() as train:
        calls: list[Callable[[Any], Any]] = [train.save, train.load, tg.Checkpoint, tg.CSVLogger]
        for call in calls:
            with pytest.raises(tg.InputError, match=r"path must be a path, such as 'model\.safetensors', got "):
                call(path)
    with pytest.raises(tg.InputError, match=r"fit: resume must be a path, such as"):
        fitted(x=X, y=Y, resume=path or 0)


X4, IMAGES = f(2, 4), f(2, 4, 3)
# a layer with another number, or none -> what its error says
NUMBERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "LayerNorm": (lambda x: tg.instantiate(nn.LayerNorm(4, x), 0)(X4), "layer_norm: eps must be "),
    "RMSNorm": (lambda x: tg.instantiate(nn.RMSNorm(4, x), 0)(X4), "rms_norm: eps must be "),
    "GroupNorm": (lambda x: tg.instantiate(nn.GroupNorm(2, 4, x), 0)(IMAGES), "layer_norm: eps must be "),
    "BatchNorm": (lambda x: tg.instantiate(nn.BatchNorm(4, x), 0)(X4), "batch_norm: eps must be "),
    "batch_norm": (lambda x: tg.batch_norm(X4, eps=x), "batch_norm: eps must be "),
    "BatchNorm: momentum": (lambda x: nn.BatchNorm(4, momentum=x), "BatchNorm: momentum must be "),
    "Dropout": (nn.Dropout, "Dropout: p must be "),
    "LSTM": (lambda x: nn.LSTM(2, 3, dropout=x), "LSTM: dropout must be "),
    "TransformerBlock": (lambda x: nn.TransformerBlock(8, 2, dropout=x), "TransformerBlock: dropout must be "),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["3", True, None, (2,), -1, float("nan"), 1e39])
def test_a_number_of_a_layer_is_in_its_range(name: str, value: Any) -> None:
    """eps=True was 1.0, eps=1e39 made all results 0, and momentum=2 gave negative variances."""
    call, said = NUMBERS[name]
    with pytest.raises(tg.InputError) as told:
        call(value)
    assert said in str(told.value) and f"at {Path(__file__)}:" in str(told.value), str(told.value)


def test_the_ends_of_the_ranges_of_a_layer_are_in_range() -> None:
    assert np.isfinite(tg.layer_norm(np.arange(4, dtype=np.float32), eps=0).numpy()).all()
    assert [nn.BatchNorm(4, momentum=x).momentum for x in (0, 1, 0.5)] == [0, 1, 0.5]
    assert nn.Dropout(1).p == 1


@pytest.mark.parametrize("layer", [nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding])
@pytest.mark.parametrize("init", [0, 0.0, "", []])
def test_an_init_that_is_false_is_no_default(layer: Any, init: Any) -> None:
    """`init=0` drew random weights."""
    with pytest.raises(tg.DTypeError, match=r"init must come from tg\.init, got "):
        layer(*(4, 2, 3)[: 2 + layer.__name__.startswith("Conv")], init=init)


def test_the_parts_of_a_block_are_what_they_must_be() -> None:
    block: Any = nn.TransformerBlock
    with pytest.raises(tg.InputError, match=r"activation must be a function, such as tg\.gelu, got 'gelu'"):
        block(8, 2, activation="gelu")
    with pytest.raises(tg.ShapeError):
        block(8, 2, hidden=0)


ANY: Any = tg
SEVERAL = np.ones((2, 3), np.float32)
# wrong values that raised errors of Python or NumPy, or took all time and memory -> the library's error
ODD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "vjp: an array": (lambda: ANY.vjp(tg.sin, f(2), has_aux=SEVERAL), tg.InputError, "has_aux must be True or False"),
    "text of NumPy": (lambda: ANY.parameter(f(2), np.str_("no")), tg.InputError, "requires_grad must be True or False"),
    "parameter": (lambda: ANY.parameter(f(2), SEVERAL), tg.InputError, "requires_grad must be True or False"),
    "scale_by_rms": (lambda: OPTIM.scale_by_rms(centered=SEVERAL), tg.InputError, "centered must be True or False"),
    "muon": (lambda: OPTIM.scale_by_muon(adjust_lr=SEVERAL), tg.InputError, 'adjust_lr must be "original" or'),
    "EarlyStopping": (lambda: ANY.EarlyStopping("loss", mode=SEVERAL), tg.InputError, "mode must be"),
    "RMSNorm": (lambda: ANY.nn.RMSNorm(np.array(2.5)), tg.ShapeError, "must be an integer"),
    "eager": (lambda: ANY.eager(2, None), tg.TraceError, "tg.eager: forward must be a function"),
    "scan": (lambda: ANY.scan(lambda c, x: (c, x), 1.0, length=f), tg.ShapeError, "length must be an integer"),
    "scan: floats": (
        lambda: ANY.scan(lambda c, x: (c, x), 1.0, length=SEVERAL),
        tg.ShapeError,
        "length must be an integer",
    ),
    "scan: carry": (
        lambda: ANY.scan(lambda c, x: (tg.cast(c, tg.i32), x), f(2), length=2),
        tg.DTypeError,
        "fn changes the type of the carry: it gets f32[2] and returns i32[2]",
    ),
    "col2im": (lambda: ANY.col2im(f(1, 4, 4), tg.f32, 2), tg.TracegradError, ""),
    "Module": (lambda: ANY.Module(3), tg.errors.CallError, "Module: takes no arguments"),
    "vector": (lambda: ANY.nn.Linear(3, 2, init=tg.init.orthogonal(1, 1)), tg.ShapeError, "two axes or more after 1"),
    "orthogonal": (lambda: ANY.init.orthogonal(stacked=-1), tg.InputError, "stacked must be an integer of at least 0"),
    "manual_seed": (lambda: ANY.manual_seed(0, 1.5), tg.InputError, "step must be an integer from 0"),
    "a late step": (lambda: ANY.manual_seed(0, 2**32), tg.InputError, "step must be an integer from 0 to"),
    "norm": (lambda: ANY.norm(f(2, 2), ord="fro"), tg.InputError, "the Frobenius norm has ord=2"),
    "norm: below 0": (lambda: ANY.norm(f(2, 2), ord=-1), tg.InputError, "inf or -inf, got -1; got f32[2,2]"),
    "size": (lambda: ANY.i32[-1], tg.ShapeError, "i32[...]: a size is an integer of at least 0, None or a name"),
    "sizes": (lambda: ANY.f32["B", 2.5], tg.ShapeError, "got 2.5"),
    "arange": (lambda: ANY.arange(1e38), tg.ShapeError, "constants are too many to list"),
    "linspace": (lambda: ANY.linspace(0, 1, 10**12), tg.ShapeError, "constants are too many to list"),
    "nearest": (lambda: ANY.interpolate(f(1, 1, 3), 10**12), tg.ShapeError, "constants are too many to list"),
    "cubic": (lambda: ANY.interpolate(f(1, 1, 3, 3), 10**12, mode="bicubic"), tg.ShapeError, "too many to list"),
    "pool": (lambda: ANY.adaptive_avg_pool1d(f(1, 1, 4), 10**9), tg.ShapeError, "constants are too many to list"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ODD)
def test_odd_values_and_huge_sizes_are_refused_at_once(name: str) -> None:
    call, error, said = ODD[name]
    with pytest.raises(error) as told:
        call()
    assert said in str(told.value), str(told.value)


def test_a_dtype_is_no_sequence() -> None:
    """Python asked for f32[0], f32[1] and so on, without an end."""
    with pytest.raises(TypeError, match="not iterable"):
        iter(tg.f32)  # pyright: ignore


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: optim.adamw(1e-3, 0.9, 0.999), r"optim.adamw\(0.001, weight_decay=0.9, beta1=0.999\)"),
        (lambda: tg.grad(cast("Any", tg.f32)), "fn must be a function.*got f32"),
        (lambda: cast("Any", tg.pad)(np.zeros(3), 1, mode="reflect"), "mode='reflect'.*axis"),
        (lambda: cast("Any", tg.compile)(mode="default"), "the whole step is compiled"),
        (lambda: cast("Any", tg.init.kaiming)(mode="fan_out"), "scale by fan_in"),
        (lambda: cast("Any", tg.compile)(log="x"), r"train.fit\(..., log="),
    ],
)
def test_what_a_call_of_that_function_is_told(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(tg.TracegradError, match=said):
        call()


def test_hooks_are_functions_and_handles_take_no_settings() -> None:
    sweep = tg.sweep(
        model=nn.Linear(2, 1),
        loss=lambda m, x: tg.mean(m(x)),
        inputs={"x": (4, 2)},
        optimizer=optim.sgd(),
        seeds=[0, 1],
    )
    with pytest.raises(tg.InputError, match="on_step must be a function of the state"):
        sweep.train.fit([{"x": np.ones((4, 2))}], on_step=tg.f32, progress=False)
    for name, said in (("lr", r"sweep.set\(lr="), ("train", "tg.sweep makes"), ("seed", "pass seeds=")):
        with pytest.raises(AttributeError, match=said):
            setattr(sweep, name, 0.1)


def test_one_batch_is_not_taken_for_an_array() -> None:
    with tg.compile_forward(model={}, forward=lambda m, x: x, inputs={"x": ("B", "T", 3)}, device="cpu") as infer:
        for batch in ((np.ones((2, 3)), np.ones((2, 3))), [np.ones((2, 3))]):
            with pytest.raises(tg.InputError, match=r"write run\(\*batch\)"):
                _ = infer.run(batch).output
        assert infer.run([[[1.0, 2.0, 3.0]]]).output.shape == (1, 1, 3)
