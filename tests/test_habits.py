"""What users of NumPy and PyTorch write and expect to work: NumPy's integers, tuples and lists, NumPy's scalars."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tracegrad as tg

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
INTS = [np.int64, np.int32, np.uint8, np.array]  # an array of rank 0 is an integer, too
# Each takes the type of integer that stands for n(2), n(-1) and so on, and means what Python's int means.
PROGRAMS: dict[str, Callable[[Callable[[int], Any], Any], Any]] = {
    "axis": lambda n, x: tg.sum(x, axis=n(1)),
    "axes": lambda n, x: tg.mean(x, axis=(n(0), n(-1)), keepdims=True),
    "axes as a list": lambda n, x: tg.max(x, axis=[n(0), n(2)]),
    "softmax": lambda n, x: tg.softmax(x, axis=n(1)),
    "argmax": lambda n, x: tg.argmax(x, axis=n(2)),
    "cumsum": lambda n, x: tg.cumsum(x, n(1)),
    "reshape": lambda n, x: x.reshape(n(6), n(-1)),
    "reshape of a list": lambda n, x: tg.reshape(x, [n(4), 6]),
    "flatten": lambda n, x: tg.flatten(x, n(1)),
    "permute": lambda n, x: x.permute(n(2), n(0), n(1)),
    "swapaxes": lambda n, x: x.swapaxes(n(0), n(-1)),
    "broadcast_to": lambda n, x: tg.broadcast_to(x[:1], (n(5), n(3), n(4))),
    "expand_dims": lambda n, x: tg.expand_dims(x, n(1)),
    "squeeze": lambda n, x: tg.squeeze(x[:1], n(0)),
    "narrow": lambda n, x: tg.narrow(x, n(2), n(1), n(2)),
    "split": lambda n, x: tg.split(x, n(2), n(2))[1],
    "split by sizes": lambda n, x: tg.split(x, (n(1), n(3)), axis=n(2))[1],
    "repeat": lambda n, x: tg.repeat(x, n(2), n(1)),
    "pad": lambda n, x: tg.pad(x, ((n(0), n(1)), (n(2), 0), (0, 0))),
    "pad by one number": lambda n, x: tg.pad(x, n(1)),
    "concat": lambda n, x: tg.concat([x, x], axis=n(1)),
    "stack": lambda n, x: tg.stack((x, x), axis=n(-1)),
    "index": lambda n, x: x[n(1), n(-1)],
    "slice": lambda n, x: x[:, n(1) : n(3)],
    "zeros": lambda n, x: tg.zeros((n(2), n(3), n(4))) + x,
    "one size": lambda n, x: tg.ones(n(4)) + x,
    "full": lambda n, x: tg.full([n(3), 4], 2.0) * x,
    "eye": lambda n, x: x @ tg.eye(n(4)),
    "arange": lambda n, x: tg.arange(n(4)),
    "one_hot": lambda n, x: tg.one_hot(tg.arange(3), n(4)),
    "tril": lambda n, x: tg.tril(x, n(1)),
    "linspace": lambda n, x: tg.linspace(0.0, 1.0, n(5)),
    "max_pool2d": lambda n, x: tg.max_pool2d(x[None], n(2), stride=(n(1), n(2))),
}


@pytest.mark.parametrize("kind", INTS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", PROGRAMS)
def test_integers_of_numpy_are_integers(name: str, kind: Callable[[int], Any]) -> None:
    def n(k: int) -> Any:
        return k if kind is np.uint8 and k < 0 else kind(k)

    program = PROGRAMS[name]
    expected = program(int, tg.tensor(X))
    assert np.array_equal(program(n, tg.tensor(X)).numpy(), expected.numpy())
    graph = tg.trace_forward(
        model=Scale(), forward=lambda m, x: tg.cast(program(n, x), tg.f32) * m.s, inputs={"x": X.shape}
    )
    assert graph.outputs["output"].shape == expected.shape
    assert all(type(k) is int for k in graph.outputs["output"].shape)


class Scale(tg.Module):
    """One number."""

    def __init__(self) -> None:
        self.s = self.param((), dtype=tg.f32)


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dim": (lambda: tg.tensor(X).sum(dim=1), TypeError, r"sum: there is no argument 'dim'; write axis=1\. .*keepdims"),
    "keepdim": (lambda: tg.mean(X, keepdim=True), TypeError, "write keepdims=True"),
    "another": (lambda: tg.softmax(X, axes=0), TypeError, "write axis=0"),
    "misspelt": (lambda: tg.cross_entropy(X, X, label_smooting=0.1), TypeError, "did you mean label_smoothing"),
    "two at once": (lambda: tg.var(X, dim=1, unbiased=False), TypeError, "axis=1; .*'unbiased'; write ddof=0"),
    "a float": (lambda: tg.sum(X, axis=1.0), tg.ShapeError, r"sum: axis must be an integer, got 1\.0; write 1"),
    "a quotient": (lambda: tg.reshape(X, (12 / 2, -1)), tg.ShapeError, r"got 6\.0; write 6, or // for a division"),
    "a negative size": (lambda: tg.zeros((2, -1)), tg.ShapeError, "a size must not be negative"),
    "any other": (lambda: tg.tril(X, k=None), tg.ShapeError, "k must be an integer, got None"),
    "what no check foresaw": (lambda: tg.linspace("0", 1.0), TypeError, r"linspace: cannot work with start='0'.*help"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_arguments_of_an_op_get_a_remedy(name: str) -> None:
    function, kind, text = MISTAKES[name]
    with pytest.raises(kind, match=text) as e:
        function()
    assert isinstance(e.value, tg.TracegradError)
    assert f"at {__file__}:" in str(e.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: tg.metrics.f1_score,
            r"tracegrad.metrics has no 'f1_score': compute it from tg.metrics.confusion_matrix",
        ),
        (lambda: tg.metrics.acuracy, "did you mean tg.metrics.accuracy"),
        (
            lambda: tg.EarlyStopping(monitor="val_loss"),
            "EarlyStopping: there is no argument 'monitor'; write metric='val_",
        ),
        (lambda: tg.EarlyStopping("a", mode="up"), "mode must be 'auto', 'min' or 'max', got 'up'"),
        (lambda: tg.Checkpoint(filepath="a"), "Checkpoint: there is no argument 'filepath'; write path='a'"),
        (lambda: tg.nn.LSTM(3, 4, batch_first=True), "'batch_first': leave it out"),
        (lambda: tg.nn.LSTM(input_size=3, hidden_size=4), "write input_dim=3; .*write hidden_dim=4"),
        (lambda: tg.nn.GRU(3, 4, num_layers=2), "write layers=2"),
        (lambda: tg.nn.MultiheadAttention(embed_dim=8, num_heads=2), "write dim=8; .*write n_heads=2"),
    ],
)
def test_arguments_and_measures_of_other_libraries_get_a_remedy(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(tg.TracegradError, match=text):
        call()


# PyTorch's keywords that say nothing more than the list of arguments
WITHOUT_REMEDY = {"_stacklevel", "_weight", "_freeze", "antialias", "eps", "max_norm", "ns_coefficients", "p"}
# functions of another name, or whose signature Python does not know: here -> PyTorch's, and keywords of it
KEYWORDS: dict[str, tuple[Any, str]] = {
    "torch.linspace": (tg.linspace, "end steps layout"),
    "torch.arange": (tg.arange, "end layout device requires_grad"),
    "torch.full": (tg.full, "size fill_value"),
    "torch.pow": (tg.pow, "exponent"),
    "torch.triu": (tg.triu, "input diagonal"),
    "torch.transpose": (tg.transpose, "dim0 dim1"),
    "torch.swapaxes": (tg.swapaxes, "axis0 axis1"),
    "torch.scatter_add": (tg.scatter_add, "dim index src"),
    "torch.sort": (tg.sort, "dim stable"),
    "torch.stack": (tg.stack, "tensors dim"),
    "torch.vmap": (tg.vmap, "func in_dims out_dims randomness"),
    "CosineAnnealingLR": (tg.lr.cosine_annealing, "T_max eta_min last_epoch"),
    "OneCycleLR": (tg.lr.one_cycle, "max_lr total_steps anneal_strategy cycle_momentum three_phase"),
    "LinearLR": (tg.lr.linear, "start_factor end_factor total_iters"),
    "nn.init.uniform_": (tg.init.uniform, "a b"),
    "nn.init.kaiming_normal_": (tg.init.kaiming, "tensor a mode nonlinearity"),
}


def test_keywords_of_pytorch_get_a_remedy() -> None:
    torch = pytest.importorskip("torch")
    pairs = {name: (here, words.split()) for name, (here, words) in KEYWORDS.items()}
    for theirs, here in ((torch.nn.functional, tg), (torch.nn, tg.nn), (torch.optim, tg.optim)):
        own = {name.lower(): getattr(here, name) for name in dir(here) if callable(getattr(here, name))}
        for name in dir(theirs):
            f, mine = getattr(theirs, name), own.get(re.sub(r"[123]d$", "", name.lower()))
            mine = own.get(name.lower(), mine)
            if callable(f) and mine is not None and name not in ("Module", "Optimizer"):
                code = getattr(f if inspect.isfunction(f) else f.__init__, "__code__", None)  # None: a builtin
                pairs[name] = mine, [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]] if code else []
    assert len(pairs) > 70
    silent = list[str]()
    for name, (here, words) in pairs.items():
        for word in {*words} - {"self", "args", "kwargs", "params"} - WITHOUT_REMEDY:
            with pytest.raises(tg.TracegradError) as e:  # a known keyword's 0.5 can be out of range
                here(**{word: 0.5, "another": 1})
            if f"argument {word!r}; there" in str(e.value):
                silent.append(f"{name}({word}=)")
    assert not silent


def test_short_names_of_losses_are_the_losses() -> None:
    assert tg.huber is tg.huber_loss and tg.hinge is tg.hinge_loss and tg.smooth_l1 is tg.smooth_l1_loss
    assert tg.adaptive_avg_pool is tg.adaptive_avg_pool2d


def test_results_of_sorts_have_pytorchs_names() -> None:
    x = np.array([[3.0, 1.0, 2.0]], np.float32)
    for result in (tg.sort(x), tg.tensor(x).topk(3)):
        values, indices = result
        assert result.values is values and result.indices is indices and type(result.values) is tg.GradTensor
    assert tg.sort(x).indices.tolist() == [[1, 2, 0]]
    infer = tg.compile_forward(
        model=tg.nn.Linear(1, 1), forward=lambda m, x: tg.topk(x, 2), inputs={"x": (1, 3)}, device="cpu", seed=0
    )
    values, indices = infer.run(x=x).output
    assert values.tolist() == [[3.0, 2.0]] and indices.tolist() == [[0, 2]]


class Switched(tg.Module):
    def __init__(self) -> None:
        self.norm, self.drop, self.out = tg.nn.BatchNorm(3), tg.nn.Dropout(0.5), tg.nn.Linear(3, 1)

    def __call__(self, x: Any, training: bool = False) -> Any:
        return self.out(self.drop(self.norm(x, training), training))


@pytest.mark.parametrize(
    ("loss", "frozen", "named"),
    [
        (lambda m, x: tg.mean(m(x)), (), ["nn.BatchNorm and tg.dropout with training=False"]),
        (lambda m, x: tg.mean(m(x)), "norm.*", ["the loss calls tg.dropout with training=False"]),
        (lambda m, x: tg.mean(m(x, training=True)), (), []),
        (lambda m, x: tg.mse_loss(m(x, training=True), m(x)), (), []),  # a student and its teacher
        (lambda m, x: tg.mse_loss(m.out(x), tg.stop_gradient(m(x))), "norm.*", []),
    ],
)
def test_a_loss_that_forgets_to_train_its_layers_gets_a_warning(loss: Any, frozen: Any, named: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tg.compile(
            model=Switched(), loss=loss, inputs={"x": (4, 3)}, optimizer=tg.optim.sgd(), frozen=frozen, device="cpu"
        ).close()
    texts = [str(w.message) for w in caught if "training=False" in str(w.message)]
    assert len(texts) == len(named) and all(part in text for part, text in zip(named, texts))


def test_a_tensor_as_axis_is_no_integer() -> None:
    x = np.ones((4, 3), np.float32)  # as torch.scatter_add(x, 1, indices, values)
    with pytest.raises(tg.ShapeError, match=re.escape("scatter_add: axis must be an integer, got f32[4,3]")):
        tg.trace_forward(
            model=tg.nn.Linear(1, 1), forward=lambda m, x: tg.scatter_add(x, 1, np.zeros((4, 1), np.int32), x),
            inputs={"x": x.shape},
        )  # fmt: skip
    with pytest.raises(tg.TracegradError, match=re.escape("got an array float32[4,3]")):
        tg.no_grad(x)


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (lambda g, p, state, host: g, "must return a pair (g, state), got f32["),
        (lambda g, p, state, host: (tg.sum(g), {}), "gives g as f32[]; it must be f32["),
        (lambda g, p, state, host: (g, {"m": g}), "declares the state [], but its update returned the state ['m']"),
        (lambda g, p, state, host: (g, None), "must return a pair (g, state), got the state None"),
        (lambda g, p, state, host: (g > 0, {}), "gives g as bool["),
    ],
)
def test_what_an_update_of_a_transform_returns_must_fit(update: Any, said: str) -> None:
    with pytest.raises((tg.InputError, tg.ShapeError, tg.DTypeError), match=re.escape(said)):
        tg.compile(
            model=tg.nn.Linear(3, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 3)}, device="cpu",
            optimizer=tg.optim.custom(tg.optim.Transform({}, update), lr=0.1),
        )  # fmt: skip


def test_a_schedule_is_a_dataclass_with_a_value() -> None:
    class Plain(tg.lr.Schedule):
        def value(self, s: int) -> float:
            return 0.1

    @dataclass(frozen=True)
    class Valueless(tg.lr.Schedule):
        start: int | None = None

    for schedule in (Plain(), Valueless()):
        with pytest.raises(tg.InputError, match=re.escape("must be a frozen dataclass with a method value(self, s)")):
            tg.optim.sgd(lr=schedule)


def test_a_sweep_names_the_training_for_other_methods() -> None:
    inputs = {"x": (4, 3)}
    with tg.sweep(
        model=tg.nn.Linear(3, 1), loss=lambda m, x: tg.mean(m(x)), inputs=inputs, optimizer=tg.optim.sgd(),
        seeds=[0, 1], device="cpu",
    ) as sweep:  # fmt: skip
        for name, said in (("fit", "sweep.train.fit(...)"), ("set_lr", "sweep.set(lr=[...])")):
            with pytest.raises(tg.errors.MissingNameError, match=re.escape(said)):
                getattr(sweep, name)
