"""Ops on values: every op of the table against the graph and PyTorch, and what GradTensor promises."""

from __future__ import annotations

import doctest
import gc
import subprocess
import sys
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import docnames
import tracegrad as tg
from all_cases import ALL_CASES
from cases import Case
from cases_nn import COUNTERS, FedCase
from tracegrad import methods, nn, optim
from tracegrad.dtypes import TensorType, f32
from tracegrad.imperative import stepwise, tensors, values
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.prims.leaves import leaf, literal
from tracegrad.transforms.walks import gradients

by_name = {"argnames": "case", "ids": lambda c: c.name}
# f32 results of one graph: NumPy's sums of the same numbers in other memory layouts differ in their last bits
CLOSE = 2e-6


def eager_inputs(case: Case, dtype: str, seed: int = 0) -> dict[str, tg.GradTensor]:
    own = case.arrays(seed, dtype)
    names = [n for n in own if not isinstance(case, FedCase) or n not in case.feed]
    floats = {n for n in names if own[n].dtype.kind == "f"}
    return {n: tg.GradTensor(own[n], n in floats, dtype if n in floats else None) for n in names}


def in_the_graph(case: Case) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Value, cotangent, and gradient of each float input, as the compiler's graph defines them."""
    env = case.arrays(dtype="float32")
    with tracing(), np.errstate(all="ignore"):
        leaves = case.leaves()
        y = case.apply(leaves)
        ct = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
        env["ct"] = ct
        xs = [t for t in leaves.values() if t.dtype.is_float] if case.grad else []
        wanted = [y, *(gradients((y * leaf("input", "ct", TensorType(f32, y.shape))).sum(), xs) if xs else [])]
        value, *grads = evaluate(wanted, env, np)
    return value, ct, {x.name: g for x, g in zip(xs, grads)}


@pytest.mark.parametrize(**by_name, argvalues=ALL_CASES)
def test_values_and_gradients_are_those_of_the_graph(case: Case) -> None:
    value, ct, grads = in_the_graph(case)
    tg.manual_seed(int(COUNTERS["seed"]), int(COUNTERS["step"]))
    xs = eager_inputs(case, "float32")
    y = case.fn(*xs.values())
    assert isinstance(y, tg.GradTensor)
    assert (y.shape, y.data.dtype, y.dtype.numpy) == (value.shape, value.dtype, value.dtype.name)
    np.testing.assert_allclose(y.numpy(), value, rtol=CLOSE, atol=CLOSE)
    if grads:
        y.backward(ct)
    for name, expected in grads.items():
        found = xs[name].grad
        actual = np.zeros_like(expected) if found is None else found.numpy()
        np.testing.assert_allclose(actual, expected, rtol=4 * CLOSE, atol=4 * CLOSE, err_msg=name)


# These make f32 tensors of their own, which a float64 one refuses
OWN_F32 = {"arange", "arange_steps", "arange_whole", "arange_fractions", "eye", "linspace", "zeros_ones_full",
           "one_hot", "scan_many"}  # fmt: skip


@pytest.mark.parametrize(**by_name, argvalues=[c for c in ALL_CASES if c.torch is not None and c.name not in OWN_F32])
def test_values_and_gradients_in_double_precision_are_pytorch_s(case: Case) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert case.torch is not None
    xs = eager_inputs(case, "float64", zlib.crc32(case.name.encode()))
    theirs = {n: torch.tensor(x.numpy(), requires_grad=x.requires_grad) for n, x in xs.items()}
    y, expected = case.fn(*xs.values()), case.torch(*theirs.values())
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=case.close, atol=case.close)
    if not (case.grad and y.requires_grad):
        return
    ct = np.random.default_rng(1).standard_normal(y.shape)
    y.backward(ct)
    expected.backward(torch.tensor(ct))
    for name, x in xs.items():
        if x.requires_grad:
            actual = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
            np.testing.assert_allclose(actual, theirs[name].grad.numpy(), rtol=case.close, atol=case.close)


def test_arrays_and_numbers_run_at_once_too() -> None:
    a = np.arange(6.0).reshape(2, 3)
    for y in (
        tg.add(a, 1),
        tg.add(1, a),
        tg.tensor(a) + 1,
        1 + tg.tensor(a),
        a + tg.tensor(1.0),
        a.tolist() + tg.tensor(1.0),
    ):
        assert isinstance(y, tg.GradTensor) and y.dtype is tg.f32 and not y.requires_grad
        np.testing.assert_array_equal(y.numpy(), a + 1)
    assert tg.argmax(a, axis=1).tolist() == [2, 2]
    assert tg.zeros((2, 1)).tolist() == [[0.0], [0.0]] and tg.arange(3).dtype is tg.i32
    assert [p.tolist() for p in tg.split(np.arange(4), 2)] == [[0, 1], [2, 3]]
    assert tg.sum([1.0, 2.0]).item() == 3.0
    assert (tg.add(2, 3).item(), tg.add(2, 0.5).item()) == (5, 2.5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x + tg.tensor([1.0, 2.0]), tg.ShapeError, "add: shapes do not broadcast: f32[3] and f32[2]"),
        (lambda x: x + tg.arange(3), tg.DTypeError, "add: dtypes differ: f32[3] and i32[3]"),
        (lambda x: tg.arange(3) * 0.5, tg.DTypeError, "is a float, but the tensor is i32"),
        (lambda x: x + tg.GradTensor([1.0], dtype="float64"), tg.DTypeError, "add: dtypes differ"),
        (lambda x: x.view(2, 2), tg.ShapeError, "reshape: cannot reshape 3 elements"),
        (lambda x: x.sum(1), tg.ShapeError, "sum: axis 1 is out of range"),
        (lambda x: x[3], tg.ShapeError, "index 3 is out of range"),
        (lambda x: x[3], IndexError, "index 3 is out of range"),
        (lambda x: tg.take(x, [3], 0), IndexError, "index 3 is out of range"),
        (lambda x: x[np.array([0, 3])], IndexError, "index 3 is out of range; valid are -3 to 2"),
        (lambda x: x.gather([-4]), IndexError, "index -4 is out of range; valid are -3 to 2"),
        (lambda x: tg.cross_entropy(x, tg.tensor(3, dtype=tg.i32)), tg.InputError, "value 3 is out of range"),
        (lambda x: tg.cross_entropy(x[None], np.array([-1])), tg.InputError, "value -1 is out of range; valid are 0"),
        (lambda x: tg.cross_entropy(x[None], [3]), IndexError, "class 3 is out of range; valid are 0 to 2"),
        (lambda x: x.__isub__(1.0), tg.TraceError, "f32[3] requires a gradient and cannot be changed in place"),
        (lambda x: np.subtract(x.numpy(), x, out=np.zeros(3)), tg.TraceError, "write a = a - b"),
        (lambda x: x + nn.Linear(3, 3).b, tg.DTypeError, "of a model outside its forward"),
        (lambda x: x + "a", tg.DTypeError, "neither a tensor"),
        (lambda x: (x > 1).backward(), tg.TraceError, "requires no gradient"),
        (lambda x: x.backward(np.ones(2)), tg.ShapeError, "backward: the gradient is f32[2], the tensor is f32[3]"),
        (lambda x: x.backward(np.ones(3, int)), tg.DTypeError, "backward: the gradient is i32[3]"),
        (lambda x: x.set_grad(1.0), tg.ShapeError, "set_grad: the gradient is f32[], the tensor is f32[3]"),
        (lambda x: tg.tensor([1.0]).set_grad([1.0]), tg.TraceError, "set_grad: f32[1] requires no gradient"),
        (lambda x: tg.parameter([1, 2], dtype=tg.i32), tg.DTypeError, "only floats have gradients"),
        (lambda x: tg.tensor(["a"]), tg.DTypeError, "neither numbers"),
        (lambda x: tg.tensor([0.5], dtype=tg.i32), tg.DTypeError, "do not fit i32"),
        (lambda x: tg.GradTensor.scalar([1.0]), tg.ShapeError, "takes one number"),  # type: ignore[arg-type]
        (lambda x: x.item(), tg.ShapeError, "has 3 elements"),
        (lambda x: x.__setitem__(0, 1.0), tg.TraceError, "cannot be changed in place"),
        (lambda x: np.exp(x), tg.TraceError, "write tg.exp"),
        (lambda x: (x * 2).set_requires_grad(False), tg.TraceError, "detach"),
    ],
)  # fmt: skip
def test_mistakes_get_a_message_with_the_op_the_types_and_the_line(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        call(tg.parameter([1.0, 2.0, 3.0]))
    assert text in str(caught.value) and "test_eager.py" in str(caught.value)


def test_construction() -> None:
    assert tg.parameter([1, 2]).dtype is tg.f32 and tg.parameter([1, 2]).requires_grad
    assert tg.tensor([[True, False]]).dtype is tg.bool_ and tg.tensor(np.arange(3)).dtype is tg.i32
    assert not tg.parameter([1.0], requires_grad=False).requires_grad
    assert tg.parameter(2.5).shape == () and tg.GradTensor.scalar(2.5).item() == 2.5
    assert tg.tensor([1, 2], dtype=tg.i32).dtype is tg.i32 and tg.tensor([1.5], dtype="float64").dtype.name == "f64"
    source = np.ones(2, np.float32)
    t = tg.GradTensor.from_numpy(source, requires_grad=True)
    source[:] = 7
    assert t.tolist() == [1.0, 1.0]
    assert tg.GradTensor.is_grad_tensor(t) and not tg.GradTensor.is_grad_tensor(source)
    assert (t.shape, t.ndim, t.size, len(t)) == ((2,), 1, 2, 2)
    assert tg.tensor(t).tolist() == t.tolist() and not tg.tensor(t).requires_grad
    assert repr(tg.parameter([[1.0, 2.0]])) == "tensor([[1., 2.]], requires_grad=True)"
    assert repr(tg.arange(2)) == "tensor([0, 1], dtype=i32)"
    assert bool(tg.tensor(1.0) > 0) and float(tg.tensor(1.5)) == 1.5 and [1, 2, 3][tg.argmax([0.0, 1.0])] == 2  # type: ignore


def test_values_cannot_be_changed_behind_a_tensor_s_back() -> None:
    x = tg.parameter([1.0, 2.0])
    y = x * x
    for view in (x.data, np.asarray(x), y.data, x.reshape(2, 1).data, tg.sum(x).data):
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0
    own = x.numpy()
    own[:] = 9
    x.data = [5.0, 6.0]  # a new value for what follows; what was computed keeps the old one
    y.backward([1.0, 1.0])
    assert x.tolist() == [5.0, 6.0] and x.grad is not None and x.grad.tolist() == [2.0, 4.0]
    with pytest.raises(tg.ShapeError, match=r"data|values are f32\[3\]"):
        x.data = [1.0, 2.0, 3.0]
    with pytest.raises(tg.InputError, match="only a leaf"):
        y.data = [1.0, 2.0]
    array = np.ones(2, np.float32)
    z = x * array
    array[:] = 100
    z.backward()
    assert x.grad.tolist() == [3.0, 5.0]


def test_a_leaf_is_updated_in_place_under_no_grad_as_in_pytorch() -> None:
    w = leaf = tg.parameter([1.0, 2.0])
    before = (w * w).sum()
    with tg.no_grad():
        w -= 0.5
        w *= np.array([2.0, 4.0], np.float32)
    assert w is leaf and w.requires_grad and w.is_leaf and w.tolist() == [1.0, 6.0]
    before.backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 4.0]  # of the values it was computed from
    with tg.no_grad(), pytest.raises(tg.ShapeError, match=r"the values are f32\[3,2\], the tensor is f32\[2\]"):
        w += np.ones((3, 2), np.float32)
    y = constant = tg.tensor([1.0])
    y += 1.0
    assert y.tolist() == [2.0] and constant.tolist() == [1.0]


def test_gradients_add_up_in_leaves_and_where_they_are_retained() -> None:
    x = tg.parameter([1.0, 2.0])
    y = (x * x).retain_grad()
    s = y.sum()
    s.backward()
    s.backward()
    assert x.grad is not None and x.grad.tolist() == [4.0, 8.0]
    assert y.grad is not None and y.grad.tolist() == [2.0, 2.0]
    assert s.grad is None and y.has_grad() and not y.is_leaf
    x.zero_grad()
    assert x.grad is None and not x.has_grad()
    x.set_grad([10.0, 20.0])
    (x * 3).backward([1.0, 2.0])
    assert x.grad is not None and x.grad.tolist() == [13.0, 26.0]
    x.backward()
    assert x.grad.tolist() == [14.0, 27.0]


def test_one_tensor_used_twice_and_unused_branches() -> None:
    x, unused = tg.parameter([2.0]), tg.parameter([3.0])
    y = x * x + x
    z = y * y + y * x
    _ = z * unused
    z.backward()
    # z = (x^2 + x)^2 + (x^2 + x) x, dz = 2 (x^2 + x)(2x + 1) + 3x^2 + 2x
    assert x.grad is not None and x.grad.item() == pytest.approx(2 * 6 * 5 + 12 + 4)
    assert unused.grad is None


def test_a_chain_of_twenty_thousand_ops_needs_no_deep_stack() -> None:
    x = tg.parameter([1.0])
    y = x
    for _ in range(20_000):
        y = y + 1.0
    y.backward()
    assert x.grad is not None and x.grad.item() == 1.0
    del y


def test_a_graph_lives_as_long_as_something_refers_to_it() -> None:
    x = tg.parameter(np.ones(1000))
    y = tg.exp(x)
    kept = weakref.ref(y)
    z = y * 2
    record = z._record
    assert record is not None
    del y
    gc.disable()  # by counting references alone: no cycle keeps memory until a collection
    try:
        assert kept() is None  # the tensor; what its gradient needs is in the record
        z.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(np.ones(1000)), rtol=1e-6)  # type: ignore[union-attr]
        saved = weakref.ref(record.sources[0].saved[0])  # type: ignore[union-attr]
        leaf_ = weakref.ref(x)
        del record
        assert saved() is not None
        del z
        assert saved() is None
        del x
        assert leaf_() is None
    finally:
        gc.enable()


def test_no_grad_is_a_block_a_call_and_a_decorator_and_refuses_what_runs_later() -> None:
    x = tg.parameter([3.0])
    with tg.no_grad():
        y = x * x
        with tg.no_grad():
            assert not (x * x).requires_grad
        assert not (x * x).requires_grad
    assert not y.requires_grad and (x * x).requires_grad
    assert not tg.no_grad(lambda: x * x).requires_grad

    @tg.no_grad()
    def square(t: tg.GradTensor) -> Any:
        """Squares."""
        return t * t

    assert not square(x).requires_grad and square.__doc__ == "Squares."

    async def later() -> Any:
        return x * x

    def one_by_one() -> Any:
        yield x * x

    for late in (later, one_by_one, lambda: later()):
        with pytest.raises(tg.TracegradError, match="async"):
            tg.no_grad(late)
    with pytest.raises(ZeroDivisionError), tg.no_grad():
        _ = 1 / 0
    assert (x * x).requires_grad


def test_detach_shares_the_values_without_history() -> None:
    x = tg.parameter([1.0, 2.0])
    d = (x * 2).detach()
    assert not d.requires_grad and d.is_leaf
    (x * d).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]
    assert not tg.stop_gradient(x).requires_grad and not tg.floor(x).requires_grad


def test_random_ops_have_the_numbers_of_a_compiled_step() -> None:
    def draw(m: Any, x: Any) -> Any:
        return {"a": tg.dropout(m(x), 0.5), "b": tg.randn((3,)), "c": tg.uniform(4), "d": tg.categorical(x)}

    model, x = nn.Linear(3, 4, init=tg.init.ones()), np.ones((2, 3), np.float32)
    with tg.compile_forward(model=model, forward=draw, inputs={"x": (2, 3)}, seed=5, device="cpu") as compiled:
        expected = compiled.run(x=x).output
    tg.manual_seed(5, step=1)
    found = tg.eager(draw, model, x=x)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value)
    again = tg.eager(draw, model, x=x)
    assert again["b"].tolist() != found["b"].tolist()
    for seed in (-1, None, 1.5, np.array([1.5])):
        with pytest.raises(tg.InputError, match="manual_seed"):
            tg.manual_seed(seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int64", "bool", "float64"])
def test_arrays_become_the_same_dtype_everywhere(dtype: str) -> None:
    x = np.ones(2, dtype)
    with tracing():
        traced = literal(x).dtype
    assert tg.tensor(x).dtype == traced and np.asarray(tg.vmap(lambda x: x)(x)).dtype == traced.numpy


def test_dropout_goes_back_through_its_own_mask_also_later() -> None:
    tg.manual_seed(0)
    x = tg.parameter(np.ones(64))
    first, second = tg.dropout(x, 0.5), tg.dropout(x, 0.5)
    assert first.tolist() != second.tolist()
    first.backward()
    assert x.grad is not None and x.grad.tolist() == first.tolist()


def test_in_a_trace_an_eager_tensor_is_a_constant_unless_it_wants_a_gradient() -> None:
    scale = tg.tensor([2.0, 3.0])

    def forward(m: Any, x: Any) -> Any:
        assert isinstance(scale * scale, tg.Tensor)  # of values only, too: whatever was computed before
        return m(x) * scale + (scale * scale) - tg.mul(scale, 1.0)

    for _ in range(2):  # the second time the engine knows the op
        with tg.compile_forward(
            model=nn.Linear(2, 2, init=tg.init.ones()), forward=forward, inputs={"x": (1, 2)}, device="cpu"
        ) as compiled:
            np.testing.assert_array_equal(compiled.run(x=np.ones((1, 2), np.float32)).output, [[6.0, 12.0]])
        assert isinstance(scale * scale, tg.GradTensor)
    weight = tg.parameter([1.0, 1.0])
    for wrong in (lambda m, x: m(x) * weight, lambda m, x: weight * m(x), lambda m, x: tg.concat([m(x), weight[None]])):
        with pytest.raises(tg.TraceError, match="the eager tensor f32") as caught:
            tg.trace_forward(model=nn.Linear(2, 2), forward=wrong, inputs={"x": (1, 2)})
        assert "test_eager.py" in str(caught.value)


def test_numbers_and_shapes_met_before_make_no_new_plans() -> None:
    x = tg.tensor([1.0, 2.0])
    before = len(methods.METHODS["mul"].entry.plans)  # type: ignore[attr-defined]
    results = [(x * (k / 7)).tolist()[1] for k in range(100)]
    assert results == pytest.approx([2 * k / 7 for k in range(100)])
    assert len(methods.METHODS["mul"].entry.plans) <= before + 1  # type: ignore[attr-defined]
    assert tg.mul(-0.0, x).data[0].tobytes() == np.float32(-0.0).tobytes()
    assert (x**2).tolist() == [1.0, 4.0] and (x**3).tolist() == [1.0, 8.0] and (x**0).tolist() == [1.0, 1.0]
    assert tg.elu(-x, 1.0).tolist() != tg.elu(-x, 0.5).tolist()
    assert tg.sum(x, 0, True).shape == (1,) and tg.sum(x, 0, False).shape == ()


def test_what_decides_about_a_call_is_told_apart_where_python_says_equal() -> None:
    x = tg.tensor(np.arange(12.0).reshape(3, 4))
    for _ in range(2):  # the second round finds what the first one prepared
        assert tg.sum(x, 1, True).shape == (3, 1) and tg.sum(x, 1, False).shape == tg.sum(x, axis=1).shape == (3,)
        assert x[1:].shape == x[np.int64(1) :].shape == x[tg.tensor(1, dtype=tg.i32) :].shape == (2, 4)
        assert x[1].shape == (4,) and x[1,].shape == (4,) and x[[1]].shape == (1, 4) and x[None, 1].shape == (1, 4)
    for _ in range(2):
        with pytest.raises(TypeError):
            x[1.0:]
        with pytest.raises(tg.DTypeError, match="True and False cannot be indices"):
            x[True]
        with pytest.raises(tg.DTypeError, match="True and False cannot be indices"):
            x[True, 0]
        assert [tg.pad(x, w).shape for w in (1, (1, 2), ((1, 1), (0, 2)))] == [(5, 6), (6, 7), (5, 6)]
        for zero in (0.0, -0.0):
            assert np.signbit(tg.full((2,), zero).numpy()).all() == np.signbit(zero)
        nan = tg.pad(x, 1, value=float("nan"))
        assert np.isnan(nan.numpy()[0]).all()
        assert tg.concat([x, x]).shape == tg.concat((x, x), axis=0).shape == (6, 4)
        assert tg.einsum("ij,ij->", x, x).item() == 506.0 and tg.einsum("ij->ji", x).shape == (4, 3)
        statistics = tg.batch_norm(x, mean=tg.tensor(np.ones(4)), var=tg.tensor(np.ones(4)))
        np.testing.assert_allclose(statistics.numpy(), x.numpy() - 1, rtol=1e-4)


def test_arrays_are_read_where_they_are_and_never_shared() -> None:
    for dtype in ("float32", "float64", "int32", "int64"):
        a = np.arange(6).astype(dtype)
        kept = [tg.mul(a, a), tg.mul(a, 1), tg.maximum(a, a), a * tg.tensor(a), tg.sum(a[None], 0), tg.concat([a]),
                tg.reshape(a, (2, 3)), tg.transpose(a), tg.stop_gradient(a)]  # fmt: skip
        before = [y.tolist() for y in kept]
        a[:] = 77
        assert [y.tolist() for y in kept] == before
    a, w = np.ones(3), tg.parameter(np.ones(3))
    y = tg.mul(a, w) * tg.mul(w, a)
    a[:] = 77
    y.backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("double", [False, True])
def test_limits_in_one_call_are_what_their_definition_says(double: bool) -> None:
    special = [-np.inf, -2.0, -1.0, -1e-30, -0.0, 0.0, 1e-30, 0.5, 1.0, 2.0, np.inf, np.nan] * 3
    x = tg.tensor(special, dtype="float64" if double else None)
    env = {"x": np.asarray(special, "float64" if double else "float32")}
    ops = {
        "relu": tg.relu, "low": lambda x: tg.clip(x, -1.0), "high": lambda x: tg.clip(x, None, 1.0),
        "both": lambda x: tg.clip(x, -1.0, 1.0), "one": lambda x: tg.clip(x, 1.0, 1.0), "hardtanh": tg.hardtanh,
        "crossed": lambda x: tg.where(x < 1.0, 1.0, tg.where(x > -1.0, -1.0, x)),
        "zero": lambda x: tg.clip(x, 0.0, 0.0),
    }  # fmt: skip
    for name, f in ops.items():
        with tracing():
            (expected,) = evaluate([f(leaf("input", "x", TensorType(f32, (len(special),))))], env, np)
        found = (tg.vmap(f)(x) if name == "crossed" else f(x)).numpy()
        np.testing.assert_array_equal(found, expected, err_msg=name)
        if name == "relu":
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_integers_in_lists_are_floats_beside_floats() -> None:
    x = tg.tensor([1.0, 2.0])
    for y in (x * [3, 4], [3, 4] * x, tg.mul(np.ones(2), [3, 8]), tg.where(x > 1, [3, 8], x * 3)):
        assert y.dtype is tg.f32 and y.tolist() == [3.0, 8.0]
    assert (x @ [[1], [2]]).tolist() == [5.0] and tg.add([1, 2], [3, 4]).dtype is tg.i32
    assert (tg.arange(2) * [3, 4]).dtype is tg.i32
    assert tg.outer(x, [3, 4]).tolist() == [[3, 4], [6, 8]] and tg.einsum("i,i", [3, 4], x).item() == 11
    assert tg.concat([x, [3]]).tolist() == [1, 2, 3] and tg.stack([x[0], 3, 4.5]).tolist() == [1, 3, 4.5]
    assert tg.scatter_add(x, [0, 0], [3, 4]).tolist() == [8, 2]
    assert tg.batch_norm([[1.0, 2.0]], [2, 3], [1, 0]).tolist() == [[1, 0]]
    assert tg.linalg.solve([[0, 2], [1, 0]], x).tolist() == [2, 0.5]
    assert tg.linalg.solve_triangular([[2, 0], [1, 3]], [[4.0], [8.0]], upper=False).tolist() == [[2], [2]]
    for wrong in (lambda: tg.arange(2) * [1.5, 2.0], lambda: x * tg.arange(2), lambda: x * np.arange(2)):
        with pytest.raises(tg.DTypeError, match="dtypes differ"):
            wrong()
    graph = tg.trace_forward(model=nn.Linear(2, 2), forward=lambda m, x: m(x * [3, 4]), inputs={"x": (2,)})
    assert str(graph.outputs["output"].type) == "f32[2]"


TARGETS_IN_LISTS = (tg.mse_loss, tg.l1_loss, tg.huber_loss, tg.hinge_loss, tg.kl_div,
                    tg.binary_cross_entropy_with_logits)  # fmt: skip


@pytest.mark.parametrize("loss", TARGETS_IN_LISTS)
def test_targets_are_integers_in_a_list(loss: Any) -> None:
    x = tg.tensor([0.5, -2.0])
    assert loss(x, [1, 0]).item() == loss(x, [1.0, 0.0]).item() == loss(x, np.array([1.0, 0.0])).item()
    with pytest.raises(tg.DTypeError, match="i32"):
        loss(x, np.array([1, 0]))


def test_weights_of_losses_are_integers_in_a_list() -> None:
    x = np.array([[0.5, -2.0], [1.0, 3.0]], np.float32)
    for loss in (tg.cross_entropy, tg.nll_loss):
        assert loss(x, [0, 1], weight=[3, 1]).item() == loss(x, [0, 1], weight=[3.0, 1.0]).item()
    a, b = (tg.binary_cross_entropy_with_logits(x, 1, pos_weight=w).item() for w in ([3, 1], [3.0, 1.0]))
    assert a == b


def test_plans_of_one_op_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracegrad.imperative.keys.MOST_PLANS", 5)
    x = tg.tensor(np.arange(40.0))
    assert [x[k].item() for k in range(40)] == list(range(40))
    assert len(methods.METHODS["getitem"].entry.plans) <= 5  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=5), st.integers(1, 4), st.data())
def test_any_number_of_backward_calls_adds_up(values: list[float], calls: int, data: st.DataObject) -> None:
    """Over one graph or several, in any order, a leaf's gradient is the sum of what each call alone gives."""
    x = tg.parameter(values)
    roots = [tg.sin(x).sum(), (x * x).sum(), (x * 2 - x).sum()]
    alone = [np.cos(x.numpy()), 2 * x.numpy(), np.ones(len(values), np.float32)]
    total = np.zeros(len(values), np.float32)
    for _ in range(calls):
        k, seed = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([1.0, -2.0, 0.5]))
        roots[k].backward(seed)
        total = total + np.float32(seed) * alone[k]
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), total, rtol=1e-5, atol=1e-5)


def test_the_engine_has_no_op_of_its_own() -> None:
    """Values come from rows' array rules and gradients from their VJPs: with a row changed, eager ops change too."""
    entry = methods.METHODS["sin"].entry  # type: ignore[attr-defined]
    entry.plans.clear()
    row = PRIMITIVES["sin"]
    kept = row.array, row.vjp
    try:
        object.__setattr__(row, "array", "cos")
        object.__setattr__(row, "vjp", lambda ct, y, x: (ct * 5.0,))
        x = tg.parameter([0.0])
        y = tg.sin(x)
        y.backward()
        assert y.item() == 1.0 and x.grad is not None and x.grad.item() == 5.0
    finally:
        object.__setattr__(row, "array", kept[0])
        object.__setattr__(row, "vjp", kept[1])
        entry.plans.clear()


def test_a_model_trains_eagerly_as_it_does_compiled() -> None:
    class MLP(tg.Module):
        def __init__(self) -> None:
            self.l1, self.l2 = nn.Linear(2, 8, init=tg.init.kaiming()), nn.Linear(8, 1, init=tg.init.kaiming())

    def loss(m: Any, x: Any, y: Any) -> Any:
        return tg.mse_loss(m.l2(tg.tanh(m.l1(x))), y)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 2)).astype(np.float32), rng.standard_normal((16, 1)).astype(np.float32)
    with tg.compile(
        model=MLP(), loss=loss, inputs={"x": (16, 2), "y": (16, 1)}, optimizer=optim.sgd(lr=0.1), seed=3, device="cpu"
    ) as train:
        m = tg.instantiate(MLP(), seed=3)
        assert tg.eager(loss, train, x=x, y=y).item() == pytest.approx(loss(m, x, y).item(), rel=1e-6)
        for _ in range(20):
            value = tg.eager(loss, m, x=x, y=y)
            value.backward()
            assert train.step(x=x, y=y).loss == pytest.approx(value.item(), rel=1e-5)
            for p in (m.l1.W, m.l1.b, m.l2.W, m.l2.b):
                p.data = p.data - 0.1 * p.grad.data
                p.zero_grad()
        np.testing.assert_allclose(m.l1.W.numpy(), train.download_params()["l1.W"], rtol=1e-4, atol=1e-6)
        assert values.spec_of(TensorType(f32, (2, 8)), requires=True) is m.l1.W._spec


@pytest.mark.parametrize("name", ["eager.md"])
def test_examples_of_the_documentation_give_what_it_shows(name: str) -> None:
    path = Path(__file__).parents[1] / "docs" / name
    results = doctest.testfile(str(path), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0 and results.attempted > 30


@pytest.mark.parametrize("module", [tensors, stepwise])
def test_examples_in_docstrings_give_what_they_show(module: Any) -> None:
    results = doctest.testmod(module, extraglobs=docnames.names())
    assert results.failed == 0 and results.attempted > 3


def test_backward_passes_through_transforms():
    w = tg.parameter([1.0, 2.0, 3.0])
    g = tg.grad(lambda x: tg.sum(x * x * x))(w)
    assert tg.GradTensor.is_grad_tensor(g)
    np.testing.assert_allclose(g.numpy(), 3 * w.numpy() ** 2)
    tg.sum(g * g).backward()
    np.testing.assert_allclose(w.grad.numpy(), 36 * w.numpy() ** 3, rtol=1e-6)
    rows = tg.vmap(lambda a: tg.sum(a * a))(tg.parameter([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_allclose(rows.numpy(), [5.0, 25.0])


def test_transforms_of_double_tensors_are_double():
    w = tg.parameter([1.0, 1 / 3], dtype="float64")
    np.testing.assert_allclose(tg.grad(lambda x: tg.sum(x * x * x))(w).numpy(), 3 * w.numpy() ** 2, rtol=1e-15)
    with pytest.raises(tg.DTypeError, match="f32 and f64"):
        tg.grad(lambda a, b: tg.sum(a * b))(w, tg.parameter([1.0, 2.0]))


@pytest.mark.parametrize("constant", [[0.1, 0.2, 16777217], (0.1, 0.2, 16777217), [1, 2, 16777217]])
def test_lists_beside_double_tensors_keep_all_digits(constant: Any):
    w, exact = tg.parameter([1.0, 1.0, 1.0], dtype="float64"), np.array(constant, np.float64)
    for y in (w * constant, tg.minimum(constant, w * np.inf), tg.concat([w, constant])[3:], tg.vmap(tg.mul)(w, exact)):
        assert np.array_equal(y.numpy(), exact)
    (w * constant).sum().backward()
    for grad in (w.grad, tg.grad(lambda w: tg.sum(w * constant))(w), tg.grad(lambda w: tg.sum(w * exact))(w)):
        assert np.array_equal(grad.numpy(), exact)
    assert np.array_equal((tg.tensor([1.0, 1.0, 1.0]) * constant).numpy(), exact.astype(np.float32))
    ones = np.ones(3, np.float32)  # an argument of f32; the tensor of f64 is outside of the function
    for beside in (lambda: w * constant, lambda: constant * w, lambda: tg.minimum(constant, w * np.inf)):
        for f in (lambda x: tg.sum(x * beside()), lambda x: tg.sum(x * constant * w)):  # noqa: B023
            assert np.array_equal(tg.grad(f)(ones).numpy(), exact)


class Small(tg.Module):
    def __init__(self) -> None:
        self.l1, self.l2 = nn.Linear(1, 4, init=tg.init.kaiming()), nn.Linear(4, 1, init=tg.init.kaiming())

    def __call__(self, x: Any) -> Any:
        return self.l2(tg.tanh(self.l1(x)))


def adapted(m: Any, x: Any) -> Any:
    grads = tg.grad(lambda m: tg.mean(m(x) ** 2))(m)
    return tg.tree_map(lambda p, g: p - 0.1 * g, m, grads)


@pytest.mark.parametrize(
    "through",
    [
        lambda m, x: tg.checkpoint(lambda x: m(x))(x),
        lambda m, x: tg.vmap(lambda x: m(x))(x),
        lambda m, x: tg.vmap(tg.checkpoint(lambda x: m(x)))(x),
        lambda m, x: tg.grad(lambda x: tg.sum(m(x)))(x),
        lambda m, x: tg.jvp(lambda x: m(x), (x,), (x,))[1],
        lambda m, x: tg.vjp(lambda x: m(x), x)[1](x)[0],
        lambda m, x: tg.hessian(lambda x: tg.sum(m(x)))(x),
        lambda m, x: tg.vmap(lambda x: tg.repeat(lambda h: m(h), 3, x))(x),
        lambda m, x: tg.grad(lambda x: tg.sum(tg.repeat(tg.checkpoint(lambda h: m(h)), 3, x)))(x),
        lambda m, x: adapted(m, x)(x),
    ],
    ids=[
        "checkpoint",
        "vmap",
        "vmap-checkpoint",
        "grad",
        "jvp",
        "vjp",
        "hessian",
        "scan",
        "checkpoint-in-scan",
        "maml",
    ],
)
def test_parameters_around_a_transformed_function_get_the_gradient_of_the_compiled_step(through: Any) -> None:
    def loss(m: Any, x: Any) -> Any:
        return tg.mean(through(m, x) ** 2)

    x = np.linspace(-1, 1, 3, dtype=np.float32)[:, None]
    m = tg.instantiate(Small(), seed=3)
    value = loss(m, tg.tensor(x))
    value.backward()
    with tg.compile(model=Small(), loss=loss, inputs={"x": (3, 1)}, optimizer=optim.sgd(lr=1.0), seed=3,
                    device="cpu") as train:  # fmt: skip
        before = train.download_params()
        assert tg.eager(loss, train, x=x).item() == pytest.approx(value.item(), rel=1e-5)
        assert train.step(x=x).loss == pytest.approx(value.item(), rel=1e-5)
        after = train.download_params()
    np.testing.assert_allclose(m.l1.W.grad.numpy(), before["l1.W"] - after["l1.W"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(m.l2.W.grad.numpy(), before["l2.W"] - after["l2.W"], rtol=1e-4, atol=1e-6)
    assert abs(m.l1.W.grad.numpy()).max() > 1e-3


def test_a_double_tensor_around_a_transformed_function_stays_double() -> None:
    w = tg.parameter([1.0, 1 / 3], dtype="float64")
    tg.sum(tg.vmap(lambda x: tg.sum(tg.exp(x * w)))(np.ones((3, 2), np.float32))).backward()
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), 3 * np.exp(w.numpy()), rtol=1e-15)
    with tg.no_grad():
        assert not tg.vmap(lambda x: x * w)(np.ones((3, 2), np.float32)).requires_grad
    slope = tg.grad(lambda v: tg.repeat(lambda h: tg.sin(h) * v, 3, v))(tg.parameter(0.7, dtype="float64"))
    h, d = 0.7, 1.0  # h' = sin(h) v, of v = 0.7
    for _ in range(3):
        h, d = np.sin(h) * 0.7, np.cos(h) * d * 0.7 + np.sin(h)
    assert slope.item() == pytest.approx(d, rel=1e-14)


def test_numbers_alone_make_floats_of_single_precision() -> None:
    mask = tg.tensor([True, False])
    for y in (tg.where(mask, 1.0, 2.0), tg.where(mask, 0.1, 0), tg.maximum(1.0, 2.0), tg.where(mask, 1.0, 2.0) * 3):
        assert y.dtype is tg.f32 and y.numpy().dtype == np.float32
    twice = tg.where(tg.parameter([1.0, -1.0], dtype="float64") > 0, 1 / 3, 1.0)
    assert twice.numpy().dtype == np.float32  # of a mask nothing is known but that it is one


def test_random_ops_in_transforms_have_the_numbers_of_the_next_step() -> None:
    def loss(m: Any, x: Any) -> Any:
        h = tg.dropout(m(x), 0.5)
        h = tg.checkpoint(lambda h: tg.dropout(h, 0.5))(h) + tg.vmap(lambda h: tg.dropout(h, 0.5))(h)
        return tg.mean(h * tg.uniform(h.shape)) + tg.mean(m(x))

    x = np.ones((20, 1), np.float32)
    with tg.compile(model=Small(), loss=loss, inputs={"x": (20, 1)}, optimizer=optim.sgd(lr=0.1), device="cpu",
                    seed=5) as train:  # fmt: skip
        losses = [(tg.eager(loss, train, x=x).item(), train.step(x=x).loss) for _ in range(3)]
    np.testing.assert_allclose(*zip(*losses), rtol=1e-5)

    x = np.ones(64, np.float32)
    dropped = lambda x: tg.dropout(x, 0.5)
    assert not np.array_equal(tg.vmap(dropped)(x), tg.vmap(dropped)(x))  # as of eager ops: each call has its own
    y, pull = tg.vjp(dropped, x)
    assert 0 < y.sum() < 128
    for _ in range(2):
        np.testing.assert_array_equal(pull(x)[0], y)  # but a pullback has those of its forward


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tg.scan(lambda h, x: h + x, 0.0, np.ones(3)), tg.TraceError, r"must return a pair \(carry, y\)"),
        (lambda: tg.scan(lambda h, x: (tg.stack([h, x]), x), 0.0, np.ones(3)), tg.ShapeError, r"gets \[\] and re"),
        (lambda: tg.scan(lambda h, x: (h, x), 0.0, 1.0), tg.ShapeError, "without an axis to scan"),
        (lambda: tg.scan(lambda h, x: (h, x), 0.0, (np.ones(3), np.ones(2))), tg.ShapeError, "lengths differ"),
        (lambda: tg.scan(lambda h, x: (h, x), 0.0, np.ones(3), length=4), tg.ShapeError, "length is 4"),
        (lambda: tg.vmap(lambda x: x)(1.0), tg.ShapeError, r"vmap: f32\[\] has no axis 0"),
        (lambda: tg.vmap(lambda x: x, in_axes=2)(np.ones(3)), tg.ShapeError, r"vmap: f32\[3\] has no axis 2"),
        (lambda: np.exp(tg.tensor([1.0])), tg.TraceError, "write tg.exp"),
        (lambda: tg.tensor([1.0]).unsqueeze(0), AttributeError, r"f32\[1\] has no 'unsqueeze': write tg.expand_dims"),
        (lambda: tg.no_grad(lambda x: x), tg.TracegradError, r"missing a required argument: 'x'; .*@tg.no_grad\(\)"),
        (lambda: tg.tensor([1.0]).men(), tg.TraceError, r"did you mean x.mean"),
    ],
)  # fmt: skip
def test_mistakes_with_transforms_at_once_name_the_line(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        call()
    assert "test_eager.py" in str(caught.value) and "while tracing" not in str(caught.value)


def test_a_number_formats_as_one() -> None:
    assert f"{tg.tensor(1.23456):.2f} {tg.tensor([[2.0]]):5.1f} {tg.tensor([1.0])}" == "1.23   2.0 tensor([1.])"
    with pytest.raises(tg.ShapeError, match="has 2 elements"):
        f"{tg.tensor([1.0, 2.0]):.2f}"


def test_eager_converts_what_a_step_converts() -> None:
    def loss(m: Any, x: Any, y: Any, weight: Any) -> Any:
        return tg.mean(tg.square(m(x)[:, 0] - y) * weight)

    x, y = np.arange(8).reshape(4, 2), np.array([1, 0, 2, 1])  # i64, as pandas and PyTorch give
    types = {"x": (4, 2), "y": (4,), "weight": (4,)}
    with tg.compile(model=nn.Linear(2, 1), loss=loss, inputs=types, optimizer=optim.sgd(0.0), seed=0) as train:
        found = tg.eager(loss, train, x=x, y=y, weight=[True, False, True, True])
        assert found.item() == pytest.approx(train.step(x=x, y=y, weight=[True, False, True, True]).loss, rel=1e-6)
        infer = train.attach(forward=lambda m, x: m(x) * x[:, :1], inputs={"x": (None, 2)})
        got = tg.eager(infer.source.forward, infer, x=x)
        np.testing.assert_allclose(got.numpy(), infer.run(x=x).output, rtol=1e-6)
    with tg.compile_forward(
        model=nn.Embedding(4, 2), forward=lambda m, x: m(x), inputs={"x": tg.i32[3]}, seed=0
    ) as infer:
        with pytest.raises(tg.InputError, match="eager: input 'x': float64 values cannot be converted to i32") as e:
            tg.eager(infer.source.forward, infer, x=np.array([0.5, 1.0, 2.0]))
        assert "test_eager.py" in str(e.value)


def test_one_hot_takes_no_negative_index_and_programs_that_compute_one_get_zeros() -> None:
    bad = np.array([0, -1, 2], np.int32)
    for wrong in (bad, tg.tensor(bad) + 0, np.array([0, 3], np.int32)):
        with pytest.raises(IndexError, match="valid are 0 to 2"):
            tg.one_hot(wrong, 3)
    with pytest.raises(IndexError, match="value -1 is out of range for 3 classes"):
        tg.trace_forward(model=nn.Linear(1, 1), forward=lambda m: tg.one_hot(bad, 3), inputs={})
    with tg.compile_forward(
        model=nn.Linear(1, 1), forward=lambda m, i: tg.one_hot(i - 1, 3), inputs={"i": tg.i32[4]}, seed=0
    ) as infer:
        np.testing.assert_array_equal(infer.run(i=np.array([0, 1, 3, 9])).output, np.eye(11)[[10, 0, 2, 8], :3])


@pytest.mark.parametrize(
    ("f", "n"),
    [
        (lambda x, at: tg.segment_sum(x, at, 3), 3),
        (lambda x, at: tg.segment_max(x, at, 3), 3),
        (lambda x, at: tg.segment_softmax(x, at, 3), 3),
        (lambda x, at: tg.metrics.accuracy(x.reshape((2, 1)), at), 1),
        (lambda x, at: tg.metrics.confusion_matrix(at, [0, 0], 2), 2),
        (lambda x, at: tg.metrics.confusion_matrix([0, 0], at, 2), 2),
        (lambda x, at: tg.ctc_loss(x.reshape((2, 1, 1)), at[None], np.array([2]), np.array([0])), 1),
    ],
)
def test_numbers_of_segments_and_classes_do_not_count_from_the_end(f: Any, n: int) -> None:
    x = tg.tensor([0.0, 1.0])
    assert np.isfinite(np.asarray(f(x, np.array([0, 0], np.int32))).max())
    for bad in (-1, n):
        at = np.array([0, bad], np.int32)
        for numbers in (at, tg.tensor(at)):
            with pytest.raises(IndexError, match=f"(value|class) {bad} is out of range.* valid are 0 to {n - 1}"):
                f(x, numbers)
        with pytest.raises(IndexError, match=f"(value|class) {bad} is out of range.* valid are 0 to {n - 1}"):
            tg.trace_forward(model=nn.Linear(1, 1), forward=lambda m, x, at=at: f(x, at), inputs={"x": (2,)})


def test_an_eager_op_that_memory_cannot_hold_names_itself_and_the_line():
    """NumPy raises at once: no machine has 90 TiB."""
    with pytest.raises(tg.DeviceError, match=r"(?s)^eye: not enough memory: .*\(10000000, 10000000\).*test_eager\.py"):
        tg.eye(10**7)
    x = tg.zeros(10**7)
    with pytest.raises(tg.DeviceError, match=r"^mul: not enough memory"):
        x[:, None] * x


def test_ops_do_not_pass_on_numpys_warnings() -> None:
    code = """
import numpy as np, tracegrad as tg
before = np.geterr()
x = tg.tensor([0.0, -1.0, 1000.0], requires_grad=True)
for f in (tg.log, tg.exp, tg.lgamma, lambda x: x / 0.0, lambda x: tg.fmod(x, 0.0), lambda x: tg.std(x * 1e38)):
    tg.sum(f(x)).backward()
tg.linalg.inv(tg.zeros((2, 2)))
assert np.geterr() == before
np.log(np.zeros(1))  # the user's own: as before
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stderr.count("Warning") == 1 and "<string>:9" in ran.stderr, ran.stderr
