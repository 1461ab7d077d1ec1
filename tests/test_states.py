"""States of a model: written by steps and forwards, undone with a failed step, saved, shared, and named in errors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from memory_check import check_memory, planned, planned_training
from models import build_forward, build_training
from oracle import torch
from tracegrad import nn, optim, safetensors
from tracegrad.compiler.layout import Persistent

EPS = float(np.finfo(np.float32).eps)
RNG = np.random.default_rng(18)
X = RNG.standard_normal((6, 8, 3)).astype(np.float32)
"""Six batches of eight vectors of three."""


class Counter(tg.Module):
    """A trained vector beside states of every dtype."""

    def __init__(self) -> None:
        self.w = self.param(3, init=tg.init.ones())
        self.mean = self.state(3)
        self.n = self.state((), dtype=tg.i32)
        self.bits = self.state((2,), init=tg.init.ones(), dtype=tg.u32)
        self.odd = self.state((), dtype=tg.bool_)
        self.untouched = self.state((2, 2), init=tg.init.literal(np.eye(2, dtype=np.float32)))


def follow(m: Counter, x: tg.Tensor) -> None:
    m.mean.assign(0.5 * m.mean + 0.5 * x.mean(0) * m.w)
    m.n.assign(m.n + 1)
    m.bits.assign(m.bits * tg.asarray(3, dtype=tg.u32))
    m.odd.assign(~m.odd)


def loss(m: Counter, x: tg.Tensor) -> tg.Tensor:
    before = tg.sum(m.w * m.mean)
    follow(m, x)
    return tg.mean(tg.square(x * m.w - 1)) + 0.0 * before


def see(m: Counter, x: tg.Tensor) -> dict[str, Any]:
    return {"y": x + m.mean, "n": m.n, "odd": m.odd}


def count(m: Counter, x: tg.Tensor) -> dict[str, Any]:
    old = m.n + 0
    follow(m, x)
    return {"old": old, "new": m.n, "mean": m.mean}


def compiled(device: str = "cpu", **more: Any) -> Any:
    given = {"model": Counter(), "loss": loss, "inputs": {"x": (8, 3)}, "optimizer": optim.adam(0.1), "seed": 0}
    return tg.compile(**{**given, **more}, device=device)


def same(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_step_writes_states_of_every_dtype_and_a_failed_one_none(device_name: str) -> None:
    with compiled(device_name) as train:
        assert {n for n in train.graph.writes if n.startswith("state/")} == {
            "state/mean", "state/n", "state/bits", "state/odd",
        }  # fmt: skip
        mean = np.zeros(3, np.float32)
        for k in range(3):
            w = train.download_params()["w"]
            train.step(x=X[k]).result()
            mean = 0.5 * mean + 0.5 * X[k].mean(0) * w
            s = train.states()
            np.testing.assert_allclose(s["mean"], mean, rtol=16 * EPS, atol=16 * EPS)
            assert (s["n"], s["bits"].tolist(), s["odd"]) == (k + 1, [3 ** (k + 1)] * 2, k % 2 == 0)
        before = train.states()
        bad = X[3].copy()
        bad[0, 0] = np.inf
        runs = [train.step(x=x) for x in (X[3], bad, X[4])]
        assert [type(r.result()).__name__ for r in runs] == ["CompletedStep", "Failed", "CompletedStep"]
        after = train.states()
        assert after["n"] == before["n"] + 2
        np.testing.assert_array_equal(after["untouched"], np.eye(2))
        assert list(train.download_params()) == ["w"]


def test_a_state_that_would_become_infinite_fails_the_step(device_name: str) -> None:
    def far(m: Counter, x: tg.Tensor) -> tg.Tensor:
        m.mean.assign(m.mean + tg.exp(x.sum() * 1e3))
        return tg.sum(tg.square(m.w * x))

    with compiled(device_name, loss=far) as train:
        before = train.states(), train.download_params()
        failed = train.step(x=np.ones((8, 3), np.float32)).result()
        assert isinstance(failed, tg.Failed) and "or the new value of a state, is not finite" in str(failed.error)
        assert "m.mean.assign" in str(failed.error)
        same(before[0], train.states())
        same(before[1], train.download_params())
        assert train.step(x=-np.ones((8, 3), np.float32)).result().step == 1


def test_a_late_read_sees_the_new_value_and_the_last_write_wins(device_name: str) -> None:
    def twice(m: Counter, x: tg.Tensor) -> Any:
        m.n.assign(m.n + 1)
        between = m.n + 0
        m.n.assign(m.n * 10)
        return tg.sum(m.w * x), {"between": between, "end": m.n}

    with compiled(device_name, loss=twice) as train:
        aux = train.step(x=X[0]).aux
        assert (aux["between"], aux["end"], train.states()["n"]) == (1, 10, 10)


def test_states_have_no_gradient_and_values_are_followed_by_none(device_name: str) -> None:
    def through(m: Counter, x: tg.Tensor) -> tg.Tensor:
        m.mean.assign(3.0 * m.w)
        return tg.sum(m.mean * m.w)  # by w: the mean alone

    with compiled(device_name, loss=through, keep_grads=True, inputs={"x": (3,)}, optimizer=optim.sgd(0.0)) as train:
        assert train.step(x=X[0, 0]).loss == 9.0
        np.testing.assert_array_equal(train.download_grads()["w"], [3.0, 3.0, 3.0])


def test_run_steps_and_accumulate_write_at_every_step(device_name: str) -> None:
    with compiled(device_name, optimizer=optim.sgd(0.1, accumulate=3)) as one, compiled(device_name) as many:
        w = one.download_params()["w"]
        mean = np.zeros(3, np.float32)
        for k in range(2):
            one.step(x=X[k]).result()
            mean = 0.5 * mean + 0.5 * X[k].mean(0) * w
        assert one.states()["n"] == 2
        np.testing.assert_array_equal(one.download_params()["w"], w)
        np.testing.assert_allclose(one.states()["mean"], mean, rtol=16 * EPS, atol=16 * EPS)
        many.run_steps(6, x=X).result()
        assert many.states()["n"] == 6


def test_forwards_share_states_and_write_them_where_they_say_so(device_name: str) -> None:
    with compiled(device_name) as train:
        seen = train.attach(forward=see, inputs={"x": (None, 3)})
        writer = train.attach(forward=count, inputs={"x": (8, 3)}, writes=True)
        train.step(x=X[0]).result()
        out = seen.run(x=X[0]).output
        s = train.states()
        np.testing.assert_array_equal(out["y"], X[0] + s["mean"])
        assert (out["n"], out["odd"]) == (1, True)
        runs = [writer.run(x=X[k]) for k in range(5)]
        assert [int(r.output["old"]) for r in runs] == [1, 2, 3, 4, 5]
        assert [int(r.output["new"]) for r in runs] == [2, 3, 4, 5, 6]
        np.testing.assert_array_equal(runs[-1].output["mean"], train.states()["mean"])
        assert seen.run(x=X[0]).output["n"] == 6
        bad = np.full((8, 3), np.nan, np.float32)
        calls = [train.step(x=X[0]), train.step(x=bad), writer.run(x=X[1]), train.step(x=X[0]), writer.run(x=X[1])]
        assert isinstance(calls[1].result(), tg.Failed)
        assert [int(calls[k].output["old"]) for k in (2, 4)] == [7, 9]
        assert train.states()["n"] == 10


def test_a_forward_of_a_model_without_parameters(device_name: str) -> None:
    x = np.float32([[1, 2], [3, 5]])
    for model in ({}, tg.Module()):
        made = {"model": model, "forward": lambda m, x: (x @ x.T, tg.uniform(3)), "inputs": {"x": (None, 2)}}
        with tg.compile_forward(**made, device=device_name) as f:  # without a seed: no first values are random
            for n in (2, 1):
                np.testing.assert_array_equal(f.run(x=x[:n]).output[0], x[:n] @ x[:n].T)
            assert f.params() == f.states() == {} and f.param_names == []
            f.set_params({})


def test_a_forward_of_its_own_keeps_its_states_over_all_sizes(device_name: str) -> None:
    forward = tg.compile_forward(model=Counter(), forward=count, inputs={"x": (None, 3)}, seed=0, device=device_name,
                                 writes=True, max_cached_shapes=2)  # fmt: skip
    with forward as infer:
        assert infer.states()["n"] == 0
        assert [int(infer.run(x=X[0, :k]).output["new"]) for k in (2, 3, 4, 5, 2, 3)] == [1, 2, 3, 4, 5, 6]
        assert infer.states()["n"] == 6
        infer.set_states({"n": 40})
        assert infer.run(x=X[0]).output["old"] == 40


def test_checkpoints_hold_states_and_resume_to_the_bit(device_name: str, tmp_path: Any) -> None:
    with compiled(device_name) as train, compiled(device_name) as other:
        train.run_steps(3, x=X[:3]).result()
        train.save(tmp_path / "a")
        found = safetensors.read(tmp_path / "a").tensors
        assert {n for n in found if n.startswith("state/")} == {f"state/{n}" for n in train.states()}
        other.step(x=X[5]).result()
        other.load(tmp_path / "a")
        assert other.digest() == train.digest()
        for t in (train, other):
            t.run_steps(2, x=X[3:5]).result()
        same(train.states(), other.states())
        first = train.states()
        train.reset(params=False)
        same(first, train.states())
        train.reset()
        assert train.states()["n"] == 0 and train.states()["bits"].tolist() == [1, 1]
        train.replace_model(Counter())
        assert train.step(x=X[0]).result().step == 1 and train.states()["n"] == 1
        train.set(clip_grad_norm=1.0)  # compiles the step once more
        assert train.states()["n"] == 1 and train.step(x=X[0]).loss and train.states()["n"] == 2


def test_a_checkpoint_without_a_state_is_refused_and_changes_nothing(tmp_path: Any) -> None:
    with compiled() as train:
        train.step(x=X[0]).result()
        train.save(tmp_path / "a")
        file = safetensors.read(tmp_path / "a")
        bad = {n: x for n, x in file.tensors.items() if n != "state/n"}
        bad["state/mean"] = np.full(3, np.nan, np.float32)
        safetensors.write(tmp_path / "b", bad, file.metadata)
        digest = train.digest()
        with pytest.raises(tg.InputError) as e:
            train.load(tmp_path / "b")
        assert "state/n: missing, expected i32[]" in str(e.value) and "state/mean: 3 NaN of 3 values" in str(e.value)
        assert train.digest() == digest


def test_set_states_names_every_problem_before_it_writes() -> None:
    with compiled() as train:
        with pytest.raises(tg.InputError) as e:
            train.set_states({"mean": np.zeros(2), "m": 1.0, "n": np.nan})
        text = str(e.value)
        assert "set_states: nothing was written" in text and "m: no such state" in text
        assert "states are mean, n, bits, odd, untouched" in text
        train.set_states({"mean": [1.0, 2.0, 3.0], "odd": True})
        assert train.states()["mean"].tolist() == [1.0, 2.0, 3.0] and train.states()["odd"]
        with pytest.raises(tg.InputError, match="n: missing, expected"):
            train.set_states({"mean": [1.0, 2.0, 3.0]}, strict=True)


def test_a_state_leaves_the_first_values_of_parameters_as_they_are() -> None:
    class Plain(tg.Module):
        def __init__(self, with_state: bool) -> None:
            if with_state:
                self.codes = self.state((4, 3), init=tg.init.randn(1.0))
            self.l = nn.Linear(3, 2)

    def total(m: Plain, x: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.square(m.l(x)))

    made = [compiled(model=Plain(flag), loss=total) for flag in (True, False)]
    a, b = (t.download_params() for t in made)
    same(a, b)
    assert made[0].states()["codes"].std() > 0.5
    eager = tg.instantiate(Plain(True), seed=0)
    np.testing.assert_array_equal(eager.codes.numpy(), made[0].states()["codes"])
    for t in made:
        t.close()


@pytest.mark.parametrize("transform", ["plain", "remat", "value_and_grad"])
def test_a_write_inside_of_grad_and_remat_is_a_write_of_the_step(transform: str) -> None:
    def inner(m: Counter, x: tg.Tensor) -> tg.Tensor:
        follow(m, x)
        return tg.mean(tg.square(x * m.w - 1))

    def outer(m: Counter, x: tg.Tensor) -> tg.Tensor:
        if transform == "plain":
            return inner(m, x)
        if transform == "remat":
            return tg.checkpoint(inner)(m, x)
        value, g = tg.value_and_grad(inner)(m, x)
        assert g.mean is None
        return value + 0.0 * tg.sum(g.w)

    def trained(loss: Any) -> Any:
        with compiled(loss=loss) as train:
            train.run_steps(4, x=X[:4]).result()
            return train.states()

    want, got = trained(inner), trained(outer)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=64 * EPS, err_msg=name)


def test_eager_models_take_a_write_at_once_and_leave_the_training_alone() -> None:
    with compiled() as train:
        train.step(x=X[0]).result()
        before = train.states()
        tg.eager(loss, train, x=X[1])
        same(before, train.states())
        m = tg.instantiate(Counter(), seed=0)
        w = m.w.numpy()
        loss(m, tg.tensor(X[0])).backward()
        np.testing.assert_allclose(m.mean.numpy(), 0.5 * X[0].mean(0) * w, rtol=8 * EPS)
        assert m.n.item() == 1 and m.odd.item() is True and m.w.grad is not None
        with pytest.raises(tg.ShapeError, match=r"assign: the state is f32\[3\], the value is f32\[2\]"):
            m.mean.assign([1.0, 2.0])
        with pytest.raises(tg.DTypeError, match=r"assign: the state is f32\[3\], the value is i32\[3\]"):
            m.mean.assign(tg.tensor([1, 2, 3], dtype=tg.i32))
        with pytest.raises(tg.TraceError, match="requires a gradient, so it is not a state"):
            m.w.assign([1.0, 2.0, 3.0])


def wrong_shape(m: Any, x: Any) -> Any:
    m.mean.assign(x)
    return tg.sum(m.w)


def wrong_dtype(m: Any, x: Any) -> Any:
    m.n.assign(tg.sum(x))
    return tg.sum(m.w)


def in_scan(m: Any, x: Any) -> Any:
    def body(c: Any, row: Any) -> Any:
        m.mean.assign(row)
        return c + tg.sum(row * m.w), None

    return tg.scan(body, tg.asarray(0.0), x)[0]


def in_vmap(m: Any, x: Any) -> Any:
    def one(row: Any) -> Any:
        m.mean.assign(row)
        return tg.sum(row * m.w)

    return tg.sum(tg.vmap(one)(x))


def of_parameter(m: Any, x: Any) -> Any:
    m.w.assign(x[0])
    return tg.sum(m.w)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (wrong_shape, tg.ShapeError, "assign: the state 'mean' is f32[3], the value is f32[8,3]; an assignment must"),
        (wrong_dtype, tg.DTypeError, "assign: the state 'n' is i32[], the value is f32[]; an assignment must"),
        (in_scan, tg.TraceError, "assign: the state 'mean' is assigned inside tg.scan, where it has no"),
        (in_vmap, tg.TraceError, "assign: the state 'mean' is assigned inside tg.vmap, where it has no"),
        (of_parameter, tg.TraceError, "assign: f32[3] is not a state of the model; only a state can be assigned."),
    ],
)  # fmt: skip
def test_what_cannot_be_assigned_is_an_error_with_the_line(wrong: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as e:
        tg.trace(model=Counter(), loss=wrong, inputs={"x": (8, 3)})
    assert text in str(e.value) and ".assign(" in str(e.value)


def test_a_forward_that_writes_without_saying_so_is_refused() -> None:
    with compiled() as train, pytest.raises(tg.TraceError) as e:
        train.attach(forward=count, inputs={"x": (8, 3)})
    assert "count writes the state 'mean', f32[3]; say so where it is attached or compiled, with writes=True" in str(
        e.value
    )
    assert "m.mean.assign(" in str(e.value)


def test_a_state_is_declared_in_init_and_has_no_values_outside_of_a_forward() -> None:
    m = Counter()
    with pytest.raises(tg.TraceError, match=r"Counter\.state works in __init__ only: a model's states are fixed"):
        m.state(3)
    with pytest.raises(tg.TracegradError, match=r"the state f32\[3\] of a model has no 'assign'"):
        m.mean.assign(0.0)
    with pytest.raises(tg.DTypeError, match="init must be zeros, ones or literal for i32"):

        class Odd(tg.Module):
            def __init__(self) -> None:
                self.n = self.state(3, init=tg.init.randn(), dtype=tg.i32)

        Odd()
    assert list(nn.named_parameters(m)) == ["w"]


def test_a_tied_module_has_one_state() -> None:
    class Tied(tg.Module):
        def __init__(self) -> None:
            self.a = Counter()
            self.b = self.a

    def both(m: Tied, x: tg.Tensor) -> tg.Tensor:
        follow(m.a, x)
        follow(m.b, x)
        return tg.sum(m.a.w * m.b.w)

    with compiled(model=Tied(), loss=both) as train:
        train.step(x=X[0]).result()
        assert list(train.states()) == ["a.mean", "a.n", "a.bits", "a.odd", "a.untouched"]
        assert train.states()["a.n"] == 2


class Net(tg.Module):
    """A dense or convolutional layer, batch normalisation, and a sum."""

    def __init__(self, images: bool, affine: bool = True) -> None:
        self.first = nn.Conv2d(3, 5, 3, init=tg.init.kaiming()) if images else nn.Linear(3, 5, init=tg.init.kaiming())
        self.norm = nn.BatchNorm(5, momentum=0.3, affine=affine)
        self.last = self.param((5,), init=tg.init.randn(1.0))


def scores(m: Net, x: tg.Tensor, training: bool = False) -> tg.Tensor:
    y = tg.relu(m.norm(m.first(x), training=training))
    y = y.mean((2, 3)) if y.ndim == 4 else y
    return y @ m.last


@pytest.mark.parametrize("images", [False, True], ids=["1d", "2d"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_batch_norm_trains_and_infers_as_pytorch(device_name: str, images: bool, affine: bool) -> None:
    shape = (8, 3, 6, 5) if images else (8, 3)
    xs = RNG.standard_normal((5, *shape)).astype(np.float32) * 2 + 1
    ys = RNG.standard_normal((5, 8)).astype(np.float32)
    net = torch.nn.BatchNorm2d if images else torch.nn.BatchNorm1d
    norm = net(5, momentum=0.3, affine=affine).double()
    arguments = {
        "model": Net(images, affine),
        "inputs": {"x": shape, "y": (8,)},
        "optimizer": optim.sgd(0.05),
        "seed": 3,
    }

    def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.square(scores(m, x, training=True) - y))

    def predict(m: Net, x: tg.Tensor) -> tg.Tensor:
        return scores(m, x)

    with tg.compile(**arguments, loss=loss, device=device_name) as train:
        infer = train.attach(forward=predict, inputs={"x": (None, *shape[1:])})
        p = {n: torch.tensor(x.astype(np.float64), requires_grad=True) for n, x in train.download_params().items()}
        if affine:
            norm.weight, norm.bias = torch.nn.Parameter(p["norm.g"]), torch.nn.Parameter(p["norm.b"])
            p["norm.g"], p["norm.b"] = norm.weight, norm.bias

        def reference(x: Any) -> Any:
            h = torch.nn.functional.conv2d(x, p["first.W"], p["first.b"]) if images else x @ p["first.W"] + p["first.b"]
            h = torch.relu(norm(h))
            return (h.mean((2, 3)) if images else h) @ p["last"]

        for x, y in zip(xs, ys):
            norm.train()
            want = torch.mean((reference(torch.tensor(x).double()) - torch.tensor(y).double()) ** 2)
            grads = torch.autograd.grad(want, list(p.values()))
            with torch.no_grad():
                for value, g in zip(p.values(), grads):
                    value -= 0.05 * g
            assert train.step(x=x, y=y).loss == pytest.approx(want.item(), rel=2e-5)
        s = train.states()
        # n values of size m are summed with an error of at most n eps m, five times, and so are their squares
        size = float(np.abs(xs).max()) * 3
        bound = 5 * 8 * (30 if images else 1) * EPS * size
        np.testing.assert_allclose(s["norm.mean"], norm.running_mean.numpy(), rtol=0, atol=bound)
        np.testing.assert_allclose(s["norm.var"], norm.running_var.numpy(), rtol=0, atol=bound * size)
        norm.eval()
        with torch.no_grad():
            want = reference(torch.tensor(xs[0]).double()).numpy()
        np.testing.assert_allclose(infer.run(x=xs[0]).output, want, rtol=0, atol=2e-5 * np.abs(want).max())
        same(s, train.states())


def test_batch_norm_refuses_one_value_a_channel_and_other_channels() -> None:
    def one(m: Any, x: Any) -> Any:
        return tg.sum(m(x, training=True))

    with pytest.raises(tg.ShapeError, match=r"BatchNorm: f32\[1,5\] has one value per channel"):
        tg.trace(model=nn.BatchNorm(5), loss=one, inputs={"x": (1, 5)})
    with pytest.raises(tg.ShapeError, match=r"BatchNorm: x must be \[B, 5, ...\], with 5 channels, got f32\[2,4\]"):
        tg.trace(model=nn.BatchNorm(5), loss=one, inputs={"x": (2, 4)})


def test_batch_norm_on_values_writes_its_statistics_at_once() -> None:
    m = tg.instantiate(nn.BatchNorm(3, momentum=0.5), seed=0)
    y = m(X[0], training=True)
    np.testing.assert_allclose(m.mean.numpy(), 0.5 * X[0].mean(0), rtol=0, atol=8 * EPS)
    np.testing.assert_allclose(m.var.numpy(), 0.5 + 0.5 * X[0].var(0, ddof=1), rtol=16 * EPS)
    tg.sum(tg.square(y)).backward()
    np.testing.assert_allclose(m.b.grad, 2 * y.numpy().sum(0), rtol=1e-5, atol=1e-5)
    before = m.mean.numpy()
    want = (X[1] - before) / np.sqrt(m.var.numpy() + 1e-5)
    np.testing.assert_allclose(m(tg.tensor(X[1])).numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(m.mean.numpy(), before)


class Teacher(tg.Module):
    """A student, and a state beside each of its parameters."""

    def __init__(self) -> None:
        self.student = nn.Linear(3, 2)
        self.teacher = [self.state((3, 2)), self.state(2)]


def taught(m: Teacher, x: tg.Tensor) -> tg.Tensor:
    target = tg.tanh(x @ m.teacher[0] + m.teacher[1])
    y = tg.mean(tg.square(m.student(x) - target - 1))
    for t, p in zip(m.teacher, tg.tree_leaves(m.student), strict=True):
        t.assign(0.9 * t + 0.1 * p)
    return y


def test_an_ema_teacher_follows_the_parameters_before_each_step(device_name: str) -> None:
    with compiled(device_name, model=Teacher(), loss=taught) as train:
        p = train.download_params()
        train.set_states({"teacher.0": p["student.W"], "teacher.1": p["student.b"]})
        want = {"teacher.0": p["student.W"], "teacher.1": p["student.b"]}
        for k in range(5):
            p = train.download_params()
            train.step(x=X[k]).result()
            now = {"teacher.0": p["student.W"], "teacher.1": p["student.b"]}
            want = {n: np.float32(0.9) * x + np.float32(0.1) * now[n] for n, x in want.items()}
        for name, x in train.states().items():
            np.testing.assert_allclose(x, want[name], rtol=0, atol=5 * 3 * EPS * np.abs(x).max(), err_msg=name)


class Agent(tg.Module):
    """A network with batch normalisation, and its target."""

    def __init__(self) -> None:
        self.q = Net(False)
        self.target = nn.as_states(self.q)


def regression(m: Agent, x: tg.Tensor) -> tg.Tensor:
    goal = 1 + 0.5 * scores(m.target, x)
    y = tg.mean(tg.square(scores(m.q, x, training=True) - goal))
    for t, p in zip(tg.tree_leaves(m.target), tg.tree_leaves(m.q), strict=True):
        t.assign(0.75 * t + 0.25 * p)
    return y


def test_a_target_network_begins_as_the_network_and_follows_it(device_name: str) -> None:
    with compiled(device_name, model=Agent(), loss=regression) as train:
        first = train.states()
        assert {n.replace("target.", "q.") for n in first} - {"q.norm.mean", "q.norm.var"} == set(train.param_names)

        def now() -> Any:
            s = train.states()
            running = {n: x for n, x in s.items() if n.startswith("q.")}
            return {n.replace("q.", "target.", 1): x for n, x in (train.download_params() | running).items()}

        targets = [n for n in first if n.startswith("target.")]
        for name in targets:
            np.testing.assert_array_equal(first[name], now()[name], err_msg=name)
        want = {n: first[n] for n in targets}
        for k in range(4):
            begin = now()
            train.step(x=X[k]).result()
            after = now()  # statistics are assigned before the loop reads them, parameters updated after it
            want = {n: np.float32(0.75) * want[n] + np.float32(0.25) * (after if "norm.mean" in n or "norm.var" in n
                                                                        else begin)[n] for n in targets}  # fmt: skip
        for name in targets:
            x = train.states()[name]
            np.testing.assert_allclose(x, want[name], rtol=0, atol=12 * EPS * np.abs(x).max(), err_msg=name)
        train.reset()
        same(first, train.states())


def by_name(m: Agent, x: tg.Tensor) -> tg.Tensor:
    """`regression`, with parameters and states by their names."""
    y = tg.mean(tg.square(scores(m.q, x, training=True) - 1 - 0.5 * scores(m.target, x)))
    targets, now = nn.named_states(m.target), nn.named_parameters(m.q) | nn.named_states(m.q)
    assert {*targets} == {*now} and {*nn.named_states(m.q)} == {"norm.mean", "norm.var"}
    for name, p in now.items():
        targets[name].assign(0.75 * targets[name] + 0.25 * p)
    return y


def test_a_model_in_a_forward_names_its_parameters_and_states(device_name: str) -> None:
    """They are tensors there. An empty dict would leave out what a loop over it does, without a word."""
    found: list[dict[str, Any]] = []
    for loss in (regression, by_name):
        with compiled(device_name, model=Agent(), loss=loss) as train:
            first = train.states()
            train.step(x=X[0]).result()
            found.append(train.states())
    assert not np.array_equal(found[0]["target.norm.mean"], first["target.norm.mean"])
    same(found[0], found[1])
    model = tg.instantiate(Agent(), seed=0)
    tg.eager(by_name, model, x=X[0])  # names are those of the model with values, too


class Codebook(tg.Module):
    """An encoder, and a codebook that follows what is assigned to it (van den Oord et al. 2017, appendix A.1)."""

    def __init__(self) -> None:
        self.encode = nn.Linear(3, 2, init=tg.init.kaiming())
        self.codes = self.state((4, 2), init=tg.init.randn(1.0))
        self.counts, self.sums = self.state(4, init=tg.init.ones()), self.state((4, 2))


def quantized(m: Codebook, x: tg.Tensor) -> tg.Tensor:
    z = m.encode(x)
    far = tg.sum(tg.square(tg.expand_dims(z, 1) - m.codes), axis=2)
    chosen = tg.one_hot(tg.argmin(far, axis=1), 4)
    q = chosen @ m.codes
    m.counts.assign(0.8 * m.counts + 0.2 * chosen.sum(0))
    m.sums.assign(0.8 * m.sums + 0.2 * tg.swapaxes(chosen, 0, 1) @ z)
    m.codes.assign(m.sums / tg.expand_dims(m.counts, 1))
    return tg.mean(tg.square(z - tg.stop_gradient(q)))


def test_a_codebook_of_a_vq_vae_follows_its_averages(device_name: str) -> None:
    with compiled(device_name, model=Codebook(), loss=quantized) as train:
        s = {n: x.astype(np.float64) for n, x in train.states().items()}
        for k in range(4):
            p = train.download_params()
            z = X[k].astype(np.float64) @ p["encode.W"] + p["encode.b"]
            chosen = np.eye(4)[((z[:, None] - s["codes"]) ** 2).sum(2).argmin(1)]
            s["counts"] = 0.8 * s["counts"] + 0.2 * chosen.sum(0)
            s["sums"] = 0.8 * s["sums"] + 0.2 * chosen.T @ z
            s["codes"] = s["sums"] / s["counts"][:, None]
            train.step(x=X[k]).result()
        for name, x in train.states().items():
            np.testing.assert_allclose(x, s[name], rtol=1e-4, atol=1e-5, err_msg=name)


class Cached(tg.Module):
    """One head of causal attention, with the keys and values of all tokens so far."""

    def __init__(self) -> None:
        self.q, self.k, self.v = (nn.Linear(4, 4, init=tg.init.xavier()) for _ in range(3))
        self.keys, self.values = self.state((6, 4)), self.state((6, 4))
        self.length = self.state((), dtype=tg.i32)


def generate(m: Cached, x: tg.Tensor) -> tg.Tensor:
    here = tg.expand_dims(tg.arange(6) == m.length, 1)
    m.keys.assign(tg.where(here, m.k(x), m.keys))
    m.values.assign(tg.where(here, m.v(x), m.values))
    scores = tg.where(tg.arange(6) <= m.length, m.keys @ m.q(x), -1e30)
    m.length.assign(m.length + 1)
    return tg.softmax(0.5 * scores) @ m.values


def test_a_cache_of_keys_and_values_gives_what_the_whole_sequence_gives(device_name: str) -> None:
    tokens = RNG.standard_normal((6, 4)).astype(np.float32)

    def whole(m: Cached, x: tg.Tensor) -> tg.Tensor:
        return tg.softmax_causal(0.5 * m.q(x) @ tg.swapaxes(m.k(x), 0, 1)) @ m.v(x)

    made = {"model": Cached(), "seed": 5, "device": device_name}
    with tg.compile_forward(**made, forward=whole, inputs={"x": (6, 4)}) as all_at_once:
        want = all_at_once.run(x=tokens).output
    with tg.compile_forward(**made, forward=generate, inputs={"x": (4,)}, writes=True) as infer:
        runs = [infer.run(x=x) for x in tokens]
        np.testing.assert_allclose([r.output for r in runs], want, rtol=1e-5, atol=1e-6)
        assert infer.states()["length"] == 6


def test_half_precision_keeps_states_in_single(device_name: str) -> None:
    if device_name == "webgpu" and not tg.check_webgpu().ok:
        pytest.skip("no adapter")

    def trained(precision: str) -> Any:
        with compiled(device_name, precision=precision) as train:
            train.run_steps(3, x=X[:3]).result()
            return train.states()

    want, got = trained("f32"), trained("f16")
    np.testing.assert_allclose(got["mean"], want["mean"], rtol=2e-3)
    assert got["n"] == want["n"] == 3


class Swapped(tg.Module):
    """Three states whose new values need each other's old ones, and themselves at other points."""

    def __init__(self) -> None:
        self.w = self.param(4)
        self.a = self.state(4, init=tg.init.literal(np.array([1, 2, 3, 4], np.float32)))
        self.b = self.state(4, init=tg.init.literal(np.array([5, 6, 7, 8], np.float32)))
        self.c = self.state((2, 2), init=tg.init.literal(np.array([[1, 2], [3, 4]], np.float32)))


def swap(m: Swapped, x: tg.Tensor) -> tg.Tensor:
    a, b = m.a * 1.0, m.b * 1.0
    m.a.assign(b)
    m.b.assign(tg.flip(a, 0))
    m.c.assign(tg.swapaxes(m.c, 0, 1) + tg.sum(a))
    return tg.sum(a * x) + tg.sum(m.w * x)


def test_states_that_need_each_others_old_values_get_them(device_name: str) -> None:
    with compiled(device_name, model=Swapped(), loss=swap, inputs={"x": (4,)}) as train:
        writer = train.attach(forward=swap, inputs={"x": (4,)}, writes=True)
        want = train.states()
        x = np.ones(4, np.float32)
        for k in range(4):
            a, b, c = want["a"], want["b"], want["c"]
            w = train.download_params()["w"].sum()
            got = train.step(x=x).loss if k % 2 else writer.run(x=x).output
            np.testing.assert_allclose(got, a.sum() + w, rtol=8 * EPS)
            want = {"a": b, "b": a[::-1], "c": c.T + a.sum()}
            same(want, train.states())


PLANNED = {
    "counter": (Counter, loss, {"x": (8, 3)}),
    "swap": (Swapped, swap, {"x": (4,)}),
    "codebook": (Codebook, quantized, {"x": (8, 3)}),
    "agent": (Agent, regression, {"x": (8, 3)}),
}


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_no_dispatch_overwrites_what_another_needs(name: str, precision: str) -> None:
    model, fn, inputs = PLANNED[name]
    arguments = {"model": model(), "loss": fn, "inputs": inputs, "optimizer": optim.adam(0.1)}
    step = build_training(**arguments, precision=precision)
    check_memory(planned_training(arguments, step))
    forward = build_forward(model(), fn, inputs, precision, writes=True, like=step.program)
    assert forward.graph.writes
    check_memory(planned(forward.graph, Persistent.of(step.program, ("param",))))


def test_the_model_is_read_and_never_changed() -> None:
    model = Counter()
    before = copy.copy(vars(model))
    with compiled(model=model) as train:
        train.step(x=X[0]).result()
    assert vars(model) == before


def test_the_derivative_by_a_state_is_taken_at_its_value() -> None:
    """As in Langevin sampling from chains that a state keeps."""

    def walk(m: Counter, x: tg.Tensor) -> Any:
        slope = tg.grad(lambda s: tg.sum(tg.square(s)))
        m.mean.assign(m.mean + 1.0)
        (moved,), _ = tg.vjp(lambda s: (tg.square(s),), m.mean)
        _, (pushed,) = tg.jvp(lambda s: (3.0 * s,), (m.mean,), (x,))
        return {"slope": slope(m.mean), "moved": moved, "pushed": pushed}

    with compiled().attach(forward=walk, inputs={"x": (3,)}, writes=True) as f:
        out = f.run(x=X[0, 0]).output
    np.testing.assert_array_equal(out["slope"], [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(out["moved"], [1.0, 1.0, 1.0])
    np.testing.assert_allclose(out["pushed"], 3.0 * X[0, 0], rtol=EPS)
