"""Calls with wrong arguments: each public function and method says what it takes, in an error of tracegrad."""

# pyright: basic

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import init, nn, optim
from tracegrad.errors import CallError, MissingNameError, TraceError

QUICK = ("asarray", "parameter", "tensor", "tree_leaves", "tree_map")  # called too often to check their arguments
ONES = np.ones((3, 4), np.float32)
MODULES = ((tg, tg.__all__), (nn, nn.__all__), (init, init.__all__))


def functions() -> dict[str, Callable[..., Any]]:
    """The public functions, by name; classes have tests of their own."""
    found = {f"{m.__name__}.{n}": getattr(m, n) for m, names in MODULES for n in names if n not in QUICK}
    return {n: f for n, f in found.items() if callable(f) and not isinstance(f, type)}


FUNCTIONS = functions()


class Net(tg.Module):
    def __init__(self) -> None:
        self.l = nn.Linear(4, 2)


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    train = tg.compile(
        model=Net(), loss=lambda m, x: tg.mean(m.l(x)), inputs={"x": (3, 4)}, optimizer=optim.adam(1e-3), device="cpu"
    )
    infer = train.attach(forward=lambda m, x: m.l(x), inputs={"x": (3, 4)})
    return {"train": train, "infer": infer, "step": train.step(x=np.ones((3, 4)))}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_refuses_too_many_arguments_and_unknown_ones(name: str) -> None:
    if name not in ("tracegrad.einsum", "tracegrad.vjp"):  # these take any number
        with pytest.raises(tg.TracegradError):
            FUNCTIONS[name](*[1] * 30)
    with pytest.raises(tg.TracegradError):
        FUNCTIONS[name](zzz=1)


METHODS = {
    "train": "attach close digest download_grads download_params explain export freeze load lr_metric params profile "
    "replace_model reset save set set_lr set_params set_states states to_jax unfreeze upload_params why",
    "infer": "close download_params explain params profile set_params set_states states upload_params why",
}


@pytest.mark.parametrize(("owner", "name"), [(o, n) for o, names in METHODS.items() for n in names.split()])
def test_a_method_refuses_too_many_arguments(objects: dict[str, Any], owner: str, name: str) -> None:
    with pytest.raises((CallError, tg.InputError), match=f"{name}: "):
        getattr(objects[owner], name)(*[1] * 30)


def test_remedies_of_calls(objects: dict[str, Any]) -> None:
    train: Any = objects["train"]
    for call, said in (
        (lambda: train.set(0.1), r"set: takes its arguments by name, got 1 by position; write set\(loss=\.\.\.,"),
        (lambda: train.download_params("l.W"), r"write download_params\(ema=\.\.\., \.\.\.\)"),
        (lambda: train.params("l.W"), "params: takes its arguments by name, got 1 by position; it takes none"),
        (lambda: tg.devices(3), "tg.devices: "),  # type: ignore[call-arg]
        (lambda: tg.hyper(), "tg.hyper: missing name=, default="),  # type: ignore[call-arg]
        (lambda: tg.grad(), "tg.grad: missing fn="),  # type: ignore[call-arg]
        (lambda: init.literal(), "init.literal: missing array="),  # type: ignore[call-arg]
        (lambda: nn.named_parameters(), "nn.named_parameters: missing model="),  # type: ignore[call-arg]
        (lambda: tg.repeat(3, lambda x: x, 1.0), r"function comes first, as in tg.repeat\(fn, n, init\)"),  # type: ignore[call-overload]
        (lambda: tg.scan(lambda c, x: (c, x), 0.0, ONES, unroll=2), "'unroll': leave it out"),  # type: ignore[call-arg]
        (lambda: tg.einsum("ij->ji", ONES, optimize=True), "'optimize': leave it out"),  # type: ignore[call-arg]
    ):
        with pytest.raises(CallError, match=said):
            call()
    with pytest.raises(MissingNameError, match=r"optim.adam has no 'set': write train.set_lr\(lr\)"):
        getattr(optim.adam(1e-3), "set")  # noqa: B009
    with pytest.raises(MissingNameError, match=r"train.set\(weight_decay=0.0\) changes one"):
        getattr(train, "hyper")  # noqa: B009
    with pytest.raises(MissingNameError, match=r"write train.set_lr\(0.1\)"):
        train.lr = 0.1
    history: Any = train.fit(x=ONES, progress=False)
    with pytest.raises(MissingNameError, match=r"a History has no 'history': read \.loss, the loss"):
        history.history["loss"]
    with pytest.raises(MissingNameError, match=r"a History has no 'model': train.params\(\)"):
        _ = history.model
    assert pickle.loads(pickle.dumps(history)).loss == history.loss and {"loss", "metrics", "plot"} <= set(dir(history))
    with pytest.raises(TraceError, match=r"write tg.round\(x\)"):
        round(tg.tensor([1.5]))  # type: ignore[call-overload]


def test_properties_are_not_called(objects: dict[str, Any]) -> None:
    train: Any = objects["train"]
    for value in (train.graph, train.memory, train.device, objects["step"].loss, objects["step"].aux):
        with pytest.raises(CallError, match=r"an? \w+ is a value, not a function: leave out the parentheses"):
            value()


@pytest.mark.parametrize("given", [{"patience": -1}, {"patience": 1.5}, {"patience": True}, {"min_delta": -0.1}])
def test_early_stopping_checks_its_numbers(given: dict[str, Any]) -> None:
    with pytest.raises(tg.InputError, match=f"EarlyStopping: {next(iter(given))} must be"):
        tg.EarlyStopping("val_loss", **given)


def test_transposing_by_pytorchs_pair_of_axes_is_refused_where_it_would_change_nothing() -> None:
    x = tg.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(tg.ShapeError, match=r"\(0, 1\) leaves f32\[2,2\] as it is; write x.T"):
        x.transpose(0, 1)
    assert x.transpose(1, 0).tolist() == x.T.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert x.transpose((0, 1)).tolist() == x.tolist()  # NumPy's order of axes


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: tg.normal(0, 1, (3,)), r"normal: the shape is the first argument here; got \(3,\) as the last one"),
        (lambda x: tg.uniform(-1, 1, cast("Any", (3,))), "uniform: the shape is the first"),
        (lambda x: tg.randint(0, 10, cast("Any", (2, 3))), "randint: the shape is the first"),
        (lambda x: tg.permute(x, 1, 0), "permute: .* got 3 by position; axes go in one tuple"),  # type: ignore[call-arg]
        (lambda x: tg.reshape(x, 4, 1), "reshape: .* got 3 by position; a shape goes in one"),  # type: ignore[call-arg]
        (lambda x: tg.max(x, x + 1), r"max: axis must be an integer or integers, got f32\[2,2\]; .* write tg.maximum"),
        (
            lambda x: x * (x > 0),
            r"mul: .* cast a condition with tg.cast\(mask, tg.f32\), or write tg.where\(mask, x, 0\)",
        ),
    ],
)
def test_orders_and_kinds_of_other_libraries_get_a_remedy(call: Any, said: str) -> None:
    with pytest.raises(tg.TracegradError, match=said):
        call(tg.tensor([[1.0, -2.0], [3.0, 4.0]]))
