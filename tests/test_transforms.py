"""Transforms of functions as users call them: at once on arrays, in compiled programs, on models, and of each other."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import GPT, SineMLP, adamw, build_forward, build_training, sine_loss
from tracegrad import DTypeError, InputError, ShapeError, TraceError, nn, optim
from tracegrad.compiler import pipeline
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.introspection.explain import Memory
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import toposort
from tracegrad.passes import recompute
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.walks import gradients
from xla import options

X = np.array([0.3, -1.2, 2.0], np.float32)
W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def close(a: Any, b: Any, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


def forward(fn: Any, **arrays: Any) -> Any:
    """`fn` of inputs, compiled and run on the CPU."""
    arrays = {k: np.asarray(v, np.float32) for k, v in arrays.items()}
    model = nn.Linear(1, 1)
    inputs = {k: v.shape for k, v in arrays.items()}
    with tg.compile_forward(model=model, forward=lambda m, **xs: fn(**xs), inputs=inputs, device="cpu") as f:
        return f.run(arrays).output


# derivatives
def test_grad_at_once_gives_arrays():
    g = tg.grad(lambda x: tg.sum(x**3))(X)
    assert isinstance(g, np.ndarray) and g.dtype == np.float32
    close(g, 3 * X**2)
    assert float(tg.grad(tg.grad(tg.grad(lambda x: x**3)))(2.0)) == 6.0


def test_argnums_aux_and_keywords():
    def f(a: Any, b: Any, *, scale: Any) -> Any:
        return tg.sum(a["w"] @ b) * scale, {"twice": b * 2.0}

    (value, aux), (ga, gb) = tg.value_and_grad(f, argnums=(0, -1), has_aux=True)({"w": W}, X, scale=2.0)
    close(value, 2 * (W @ X).sum())
    close(aux["twice"], 2 * X)
    close(ga["w"], 2 * np.tile(X, (2, 1)))
    close(gb, 2 * W.sum(0))
    gradient, aux = tg.grad(f, 1, has_aux=True)({"w": W}, X, scale=1.0)
    close(gradient, W.sum(0))
    assert set(aux) == {"twice"}


def test_what_is_not_f32_has_no_gradient():
    g = tg.grad(lambda t: tg.sum(tg.take(t["x"], t["at"])))({"x": X, "at": np.array([0, 2, 2])})
    close(g["x"], [1, 0, 2])
    assert g["at"] is None


def test_an_outer_variable_is_constant_to_the_inner_gradient():
    """d/dx [x * d/dy (x y) at y=x] = d/dx x^2; a single tape would take x and y for one."""
    close(tg.grad(lambda x: x * tg.grad(lambda y: x * y)(x))(3.0), 6.0)
    close(tg.jvp(lambda x: tg.jvp(lambda y: x * y, (x,), (1.0,))[1], (3.0,), (1.0,))[1], 1.0)
    z = lambda x: 2.0 * x
    close(tg.grad(lambda x: tg.grad(lambda y: y * z(x))(x))(3.0), 2.0)


def test_vjp_pulls_more_than_once():
    (y, extra), pull = tg.vjp(lambda a, b: (a @ b, a * 2.0), W, X)
    close(y, W @ X)
    ga, gb = pull((np.array([1, 0], np.float32), None))
    close(ga, [X, 0 * X])
    close(gb, W[0])
    assert extra.shape == (2, 3)
    close(pull((None, W))[0], 2 * W)


def test_a_result_that_is_returned_twice_has_both_cotangents():
    def twice(x: Any) -> Any:
        y = 3.0 * x
        return y, y

    _, pull = tg.vjp(twice, X)
    close(pull((X, 10 * X))[0], 33 * X)


def test_jvp_of_trees_and_of_integers():
    f = lambda p: {"y": p["a"] * p["b"], "n": tg.argmax(p["a"])}
    out, t = tg.jvp(f, ({"a": X, "b": 2.0},), ({"a": None, "b": 1.0},))
    close(out["y"], 2 * X)
    close(t["y"], X)
    assert t["n"] is None and int(out["n"]) == 2


def test_jacobian_takes_the_cheaper_direction():
    wide, tall = (lambda x: tg.tanh(tg.asarray(W) @ x)), (lambda x: tg.tanh(x @ tg.asarray(W)))
    close(tg.jacobian(wide)(X), (1 - np.tanh(W @ X) ** 2)[:, None] * W)
    v = X[:2]
    close(tg.jacobian(tall)(v), (1 - np.tanh(v @ W) ** 2)[:, None] * W.T)
    tree = tg.jacobian(lambda p: {"s": tg.sum(p[0]) * p[1], "v": p[0]})([X, W])
    assert tree["s"][0].shape == (2, 3, 3) and tree["s"][1].shape == (2, 3, 2, 3)
    close(tree["v"][0], np.eye(3))
    close(tree["v"][1], np.zeros((3, 2, 3)))


def test_hessians_agree_with_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")

    def f(lib: Any) -> Any:
        return lambda x: lib.sum(lib.exp(x) * lib.tanh(x[::-1])) + lib.prod(x)

    theirs = jax.hessian(f(jax.numpy))
    jit = functools.partial(jax.jit, compiler_options=options())
    close(tg.hessian(f(tg))(X), jit(theirs)(X), 1e-4)
    close(tg.jacobian(tg.hessian(f(tg)))(X), jit(jax.jacfwd(theirs))(X), 1e-4)
    close(tg.vmap(tg.hessian(f(tg)))(W), jit(jax.vmap(theirs))(W), 1e-4)


# vmap
def test_axes_go_in_and_out_anywhere():
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    f = lambda x, y: (x * y["k"], tg.sum(x))
    found, sums = tg.vmap(f, in_axes=(1, {"k": None}), out_axes=(-1, 0))(a, {"k": 2.0})
    close(found, np.moveaxis(2 * a, 1, -1))
    close(sums, a.sum((0, 2)))
    same = tg.vmap(lambda x, k: k + 1.0, in_axes=(0, None), out_axes=None)(X, 1.0)
    assert same.shape == () and same == 2.0
    close(tg.vmap(lambda x, k: k + 1.0, in_axes=(0, None))(X, 1.0), [2, 2, 2])
    close(tg.vmap(lambda x, *, y: x + y)(X, y=X), 2 * X)
    close(tg.vmap(lambda x, y: x + y, in_axes=(0, None))(y=1.0, x=X), X + 1)


def test_vmap_nests_and_mixes():
    outer = tg.vmap(tg.vmap(lambda a, b: a * b, in_axes=(0, None)), in_axes=(None, 0))(X, X)
    close(outer, np.outer(X, X))
    per_example = tg.vmap(tg.grad(lambda w, x: tg.sum(tg.square(w @ x))), in_axes=(None, 0))
    rows = np.stack([X, 2 * X])
    close(per_example(W, rows), [2 * np.outer(W @ x, x) for x in rows])
    summed = tg.grad(lambda w: tg.sum(tg.vmap(lambda x: tg.sum(tg.square(w @ x)))(rows)))(W)
    close(summed, per_example(W, rows).sum(0))
    pushed = tg.jvp(tg.vmap(tg.grad(lambda x: tg.sum(x**3))), (rows,), (np.ones_like(rows),))[1]
    close(pushed, 6 * rows)


def test_one_table_is_read_once_for_all_indices():
    """So the gradient is one scatter into it, not one for each element."""
    with tracing():
        table = leaf("param", "table", TensorType(f32, (5, 3)))
        at = leaf("input", "at", TensorType(i32, (4, 2)))
        rows = tg.vmap(lambda i: tg.embedding(table, i))(at)
        (back,) = gradients(tg.sum(rows * rows), [table])
        of = {name: [t for t in toposort([back]) if t.prim.name == name] for name in ("gather", "scatter_add")}
        assert [t.inputs[0].shape for t in of["gather"]] == [(5, 3)]
        assert [t.shape for t in of["scatter_add"]] == [(5, 3)]


def test_a_product_with_one_matrix_stays_one_product():
    graph = tg.trace_forward(model=nn.Linear(3, 5), forward=lambda m, x: tg.vmap(m)(x), inputs={"x": (64, 3)})
    (product,) = [t for t in graph if t.prim.name == "matmul"]
    assert product.shape == (64, 5)


def test_random_numbers_differ_between_elements_and_not_with_their_number():
    draw = lambda x: x + tg.uniform((4,))
    tg.manual_seed(4)
    few = tg.vmap(draw)(np.zeros(2))
    tg.manual_seed(4)
    many = tg.vmap(draw)(np.zeros(50))
    close(few, many[:2], 0)
    assert len(np.unique(many)) == many.size
    nested = tg.vmap(tg.vmap(draw))(np.zeros((3, 3)))
    assert len(np.unique(nested)) == nested.size
    kept = tg.vmap(lambda x: tg.dropout(x, 0.5))(np.ones((40, 8)))
    assert 0.3 < (kept > 0).mean() < 0.7 and len(np.unique(kept, axis=0)) > 20


def test_gradient_of_dropout_under_vmap_uses_the_same_mask():
    def f(x: Any) -> Any:
        return tg.sum(tg.vmap(lambda r: tg.dropout(r, 0.5))(x) * 3.0)

    x = np.ones((5, 6), np.float32)
    value, g = tg.value_and_grad(f)(x)
    assert set(np.unique(g)) == {0.0, 6.0}
    close(value, g.sum())


def test_captures_and_patches_inside_vmap():
    def f(m: Any, x: Any) -> Any:
        tg.capture("outside", tg.sum(x, 1))
        return tg.vmap(lambda r: tg.capture("twice", 2.0 * tg.patch("p", r)))(x) + 0.0 * m.b

    with tg.compile_forward(model=nn.Linear(1, 3), forward=f, inputs={"x": (2, 3)}, device="cpu") as run:
        found = run.run(x=W)
        close(found.captures["twice"], 2 * W)
        close(found.captures["outside"], W.sum(1))
        close(run.run({"x": W}, patches={"p": X}).output, np.stack([2 * X, 2 * X]))


# composition in programs
def test_compiled_and_at_once_agree():
    def f(x: Any, v: Any) -> Any:
        energy = lambda x: tg.sum(tg.softmax(x @ tg.asarray(W.T)) * tg.sin(x[:2]))
        hvp = lambda x, v: tg.jvp(tg.grad(energy), (x,), (v,))[1]
        return tg.vmap(hvp, in_axes=(None, 0))(x, v)

    eye = np.eye(3, dtype=np.float32)
    at_once, compiled = tg.vmap(lambda v: f(X, v[None])[0])(eye), forward(f, x=X, v=eye)
    close(at_once, compiled)
    close(compiled, compiled.T)


class Tied(tg.Module):
    def __init__(self) -> None:
        self.a = nn.Linear(2, 2, bias=False)
        self.b, self.scale, self.sizes = self.a, 3.0, [1, 2]


def test_gradient_of_a_model_is_a_model():
    model = nn.bound(Tied(), {"a.W": np.eye(2, dtype=np.float32)})
    g = tg.grad(lambda m, x: tg.sum(m.b(m.a(x))) * m.scale)(model, np.ones((1, 2), np.float32))
    assert isinstance(g, Tied) and g.scale == 3.0 and g.sizes == [1, 2]
    close(g.a.W, 3 * 2 * np.ones((2, 2)))  # both uses of the one parameter
    assert g.a is g.b


def test_a_bound_model_needs_a_tensor_for_each_parameter():
    with pytest.raises(InputError, match=r"there is no tensor for 'a\.W'; it takes a\.W"):
        nn.bound(Tied(), {"W": np.eye(2, dtype=np.float32)})


def test_tree_map_sees_through_models():
    model = nn.bound(Tied(), {"a.W": np.ones((2, 2), np.float32)})
    assert len(tg.tree_leaves(model)) == 1
    close(tg.tree_map(lambda p, g: p - g, model, model).a.W, 0)
    with pytest.raises(TraceError, match="trees differ"):
        tg.tree_map(lambda a, b: a, [1.0, 2.0], [1.0])
    with pytest.raises(TraceError, match="trees differ: a is a leaf"):
        tg.tree_map(lambda a, b: a, {"a": X}, {"a": [X]})


def test_dicts_are_paired_by_key_in_whatever_order_their_keys_come():
    x, one, none = np.float32(3), np.float32(1), np.float32(0)
    assert tg.tree_map(lambda a, b: (a, b), {"a": 1, "b": 2}, {"b": 20, "a": 10}) == {"a": (1, 10), "b": (2, 20)}
    fn = lambda p: p["a"] * 10.0 + p["b"]
    close(tg.jvp(fn, ({"a": x, "b": x},), ({"b": none, "a": one},))[1], 10)
    _, pull = tg.vjp(lambda x: {"a": x, "b": x * 10.0}, x)
    close(pull({"b": none, "a": one})[0], 1)
    close(tg.vmap(fn, ({"b": None, "a": 0},))({"a": np.arange(2, dtype=np.float32), "b": x}), [3, 13])
    ours = tg.custom_vjp(fn)
    ours.defvjp(lambda p: (fn(p), ()), lambda _, ct: ({"b": ct * 7.0, "a": ct * 5.0},))
    g = tg.grad(ours)({"a": x, "b": x})
    close((g["a"], g["b"]), (5, 7))


# ensembles
def test_an_ensemble_trains_as_its_members_would_alone():
    n, x = 3, np.linspace(-2, 2, 16, dtype=np.float32)[:, None]
    inputs = {"x": (16, 1), "y": (16, 1)}

    def loss(m: Any, x: Any, y: Any) -> Any:
        return tg.sum(tg.vmap(sine_loss, in_axes=(0, None, None))(m, x, y))

    arguments: dict[str, Any] = {"inputs": inputs, "seed": 0, "device": "cpu"}
    with tg.compile(model=nn.stack(SineMLP(8), n), loss=loss, optimizer=optim.adam(lr=1e-2), **arguments) as train:
        start = train.download_params()
        assert start["l1.W"].shape == (n, 1, 8)
        assert not np.array_equal(start["l1.W"][0], start["l1.W"][1])
        for _ in range(10):
            train.step(x=x, y=np.sin(x))
        together = train.download_params()
    for k in range(n):
        with tg.compile(model=SineMLP(8), loss=sine_loss, optimizer=optim.adam(lr=1e-2), **arguments) as alone:
            alone.upload_params({name: v[k] for name, v in start.items()})
            for _ in range(10):
                alone.step(x=x, y=np.sin(x))
            for name, v in alone.download_params().items():
                close(together[name][k], v, 1e-5)


def test_members_of_a_stack_start_as_wide_as_one_model():
    stacked = nn.named_parameters(nn.stack(SineMLP(64), 5))
    one = nn.named_parameters(SineMLP(64))
    assert list(stacked) == list(one)
    for name, p in stacked.items():
        assert p.shape == (5, *one[name].shape)
        assert nn.decays(name, p) == nn.decays(name, one[name])
    assert stacked["l1.W"].init == tg.init.randn(one["l1.W"].init.deviation((1, 64)))
    literal = nn.named_parameters(nn.stack([Fixed()], 2))["0.v"]
    assert literal.init == tg.init.literal([[1.0, 2.0]] * 2)
    with pytest.raises(ShapeError, match="n=0"):
        nn.stack(SineMLP(4), 0)


class Fixed(tg.Module):
    def __init__(self) -> None:
        self.v = self.param(2, init=tg.init.literal([1.0, 2.0]))


# checkpoint
def gpt_with(checkpointed: bool, layers: int = 6, p: float = 0.0) -> Any:
    def loss(m: GPT, tokens: Any, following: Any) -> Any:
        x = m.token(tokens) + m.position
        for block in m.blocks:
            x = (tg.checkpoint(block) if checkpointed else block)(x)
        return tg.cross_entropy(m.head(m.norm(x)), following)

    inputs = {"tokens": tg.i32[8, 16], "following": tg.i32[8, 16]}
    return {"model": GPT(11, 16, 32, layers=layers, p=p), "loss": loss, "inputs": inputs, "optimizer": adamw()}


def test_checkpoint_lowers_the_memory_of_a_deep_gpt():
    """Kept are one f32[8,16,32] a block and the inside of one block; without it the inside of all."""
    plain, saving = (Memory(build_training(**gpt_with(c, layers=12)).program)["temp"] for c in (False, True))
    assert saving < plain / 3
    deeper = Memory(build_training(**gpt_with(True, layers=16)).program)["temp"]
    assert deeper - saving < 4 * 1.5 * (8 * 16 * 32 * 4)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_checkpoint_changes_no_bit_of_the_training(p: float, large: bool, monkeypatch: pytest.MonkeyPatch):
    if large:
        monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)
    tokens = np.random.default_rng(0).integers(0, 11, (8, 17)).astype(np.int32)
    ends: list[dict[str, np.ndarray]] = []
    for checkpointed in (False, True):
        with tg.compile(**gpt_with(checkpointed, 2, p), seed=3, device="cpu") as train:
            for _ in range(3):
                train.step(tokens=tokens[:, :-1], following=tokens[:, 1:])
            ends.append(train.download_params())
    for name, v in ends[0].items():
        np.testing.assert_array_equal(v, ends[1][name], err_msg=name)


def test_checkpoint_composes():
    f = lambda x: tg.sum(tg.sin(tg.asarray(W) @ x) ** 2)
    again = tg.checkpoint(f)
    close(again(X), tg.vmap(f)(X[None])[0])
    for transform in (tg.grad, tg.hessian, lambda f: lambda x: tg.jvp(f, (x,), (x,))[1]):
        close(transform(again)(X), transform(f)(X))
        close(transform(tg.checkpoint(again))(X), transform(f)(X))
    rows = np.stack([X, -X])
    close(tg.vmap(tg.hessian(again))(rows), tg.vmap(tg.hessian(f))(rows))
    close(tg.grad(lambda x: tg.sum(tg.vmap(again)(x)))(rows), tg.vmap(tg.grad(f))(rows))


def barriers(loss: Any) -> int:
    graph = tg.trace(model=nn.Linear(3, 3), loss=loss, inputs={"x": (4, 3)}, optimizer=optim.sgd())
    return len([t for t in graph if t.prim.name == "barrier"])


def test_a_batched_checkpoint_is_still_one():
    block = lambda m: tg.checkpoint(lambda x: tg.tanh(m(tg.tanh(x))))
    assert barriers(lambda m, x: tg.sum(m(tg.tanh(x)))) == 0
    assert barriers(lambda m, x: tg.sum(block(m)(x))) > 0
    assert barriers(lambda m, x: tg.sum(tg.vmap(block(m))(x))) > 0


def test_gradients_flow_to_what_a_checkpoint_closes_over():
    close(tg.grad(lambda w: tg.checkpoint(lambda x: tg.sum(tg.tanh(w @ x)))(X))(W),
          tg.grad(lambda w: tg.sum(tg.tanh(w @ X)))(W))  # fmt: skip


# custom_vjp
@tg.custom_vjp
def double(x: Any, y: Any) -> Any:
    """x * y, with twice the gradient by x and none by y."""
    return x * y


double.defvjp(lambda x, y: (x * y, (y, "kept")), lambda r, ct: (2.0 * ct * r[0], None))


def test_custom_vjp_in_every_transform():
    assert double.__name__ == "double"
    close(double(3.0, X), 3 * X)
    close(tg.grad(double)(3.0, 4.0), 8.0)
    close(tg.grad(double, 1)(3.0, 4.0), 0.0)
    close(tg.jvp(double, (3.0, 4.0), (1.0, 1.0))[1], 8.0)
    close(tg.vmap(tg.grad(double))(X, X), 2 * X)
    close(tg.grad(lambda x: tg.sum(tg.vmap(double, in_axes=(None, 0))(x, X)))(1.0), 2 * X.sum())
    close(tg.grad(lambda y: tg.grad(double)(1.0, y))(5.0), 2.0)
    close(tg.jvp(lambda x: tg.vmap(double)(x, X), (X,), (X,))[1], 2 * X * X)


def test_custom_vjp_of_several_results():
    @tg.custom_vjp
    def f(p: Any) -> Any:
        return p["a"], p["a"] * p["b"]

    f.defvjp(lambda p: ((p["a"], p["a"] * p["b"]), p), lambda p, ct: ({"a": ct[0] + 10.0 * ct[1], "b": None},))
    g = tg.grad(lambda p: tg.sum(f(p)[0]) + tg.sum(f(p)[1]))({"a": X, "b": X})
    close(g["a"], 11 * np.ones(3))
    close(g["b"], 0)


def test_fwd_may_call_the_function():
    @tg.custom_vjp
    def cube(x: Any) -> Any:
        return x * x * x

    cube.defvjp(lambda x: (cube(x), x), lambda x, ct: (ct * 30.0 * x,))
    close(cube(2.0), 8.0)
    close(tg.grad(cube)(2.0), 60.0)
    close(tg.grad(tg.grad(cube))(2.0), 30.0)
    close(tg.grad(lambda x: cube(cube(x)))(1.0), 900.0)
    close(tg.vmap(tg.grad(cube))(X), 30 * X)


@pytest.mark.parametrize("axes", [(None, 0), (0, None), (0, 0)])
def test_checkpoints_and_own_derivatives_take_what_is_the_same_for_all(axes: Any):
    def f(a: Any, b: Any) -> Any:
        return tg.sum(tg.sin(a) * b * b)

    mine = tg.custom_vjp(f)
    mine.defvjp(
        lambda a, b: (f(a, b), (a, b)), lambda r, ct: (ct * tg.cos(r[0]) * r[1] ** 2, ct * 2 * tg.sin(r[0]) * r[1])
    )
    a, b = (np.stack([v, v + 1, v - 2]) if axis == 0 else v for v, axis in zip((X, X[::-1].copy()), axes, strict=True))
    for fn in (tg.checkpoint(f), mine):
        for wrt in (0, 1):
            close(tg.vmap(tg.grad(fn, wrt), axes)(a, b), tg.vmap(tg.grad(f, wrt), axes)(a, b))
            outer, want = (tg.grad(lambda a, b, g=g: tg.sum(tg.vmap(g, axes)(a, b)), wrt)(a, b) for g in (fn, f))
            close(outer, want)


def test_a_backward_that_leads_nowhere_is_not_called():
    called: list[Any] = []
    f = custom(lambda x: (2.0 * x, ()), lambda _, ct: (called.append(ct), (2.0 * ct,))[1])
    close(tg.grad(lambda x, y: tg.sum(x * f(y)))(X, X), 2 * X)
    assert not called
    close(tg.grad(lambda x, y: tg.sum(x * f(y)), 1)(X, X), 2 * X)
    assert len(called) == 1


# errors
def custom(fwd: Any, bwd: Any) -> Any:
    @tg.custom_vjp
    def f(x: Any) -> Any:
        return x

    f.defvjp(fwd, bwd)
    return f


def pulled(bwd: Any) -> Any:
    return tg.grad(lambda x: tg.sum(custom(lambda x: (x, ()), bwd)(x)))(X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tg.grad(lambda x: x)(X), ShapeError, r"must return a scalar, f32\[\], got f32\[3\].*tg.jacobian\n"),
        (lambda: tg.grad(lambda x: (tg.sum(x), 1))(X), ShapeError, r"needs has_aux\=True"),
        (lambda: tg.grad(lambda x: x, has_aux=True)(1.0), TraceError, r"must return \(result, aux\)"),
        (lambda: tg.grad(lambda x: x)(3), DTypeError, r"grad: the argument to differentiate is i32\[\]; only f32"),
        (lambda: tg.grad(lambda x: x, argnums=1)(3.0), TraceError, "got 1 positional"),
        (lambda: tg.grad(lambda x: x, argnums="x")(3.0), TraceError, "the index of an argument, counted from 0"),
        (lambda: tg.jacobian(lambda x: x, argnums=None)(3.0), TraceError, "jacobian: argnums=None"),
        (lambda: tg.grad(3), TraceError, "tg.grad: fn must be a function, .*got 3"),
        (lambda: tg.vmap(np.ones(2)), TraceError, "vmap: takes a function"),
        (lambda: tg.grad(lambda x: x, argnums=(0, -1))(3.0), TraceError, "names an argument twice"),
        (lambda: tg.grad(lambda x: x)("a"), TraceError, "is a str; transforms take"),
        (lambda: tg.grad(lambda m: 0.0)(nn.Linear(1, 1)), TraceError, "outside its forward"),
        (lambda: tg.jvp(lambda x: x, X, X), TraceError, "are tuples"),
        (lambda: tg.jvp(lambda x: x, (X,), (W,)), ShapeError, r"tangent of f32\[3\] must have the same type, got f32"),
        (lambda: tg.vjp(lambda x: x, X)[1](W), ShapeError, r"cotangent of f32\[3\]"),
        (lambda: tg.vmap(lambda x, y: x)(X, W), ShapeError, r"different sizes: axis 0 of f32\[3\], .*2,3\]"),
        (lambda: tg.vmap(lambda x: x)(1.0), ShapeError, r"f32\[\] has no axis 0"),
        (lambda: tg.vmap(lambda x: x, in_axes=2)(W), ShapeError, "axis"),
        (lambda: tg.vmap(lambda x: x, in_axes=(0, 0))(X), TraceError, "2 entries for 1 arguments"),
        (lambda: tg.vmap(lambda x: x, in_axes=None)(X), TraceError, "at least one argument"),
        (lambda: tg.vmap(lambda x: x, out_axes=None)(X), TraceError, "depends on the mapped axis"),
        (lambda: tg.vmap(lambda x: x, in_axes=({"a": 0},))([X]), TraceError, "one of these for each part"),
        (lambda: tg.jacobian(lambda x: tg.argmax(x))(X), DTypeError, "must return f32"),
        (lambda: tg.vmap(lambda x: x, out_axes=-3)(W), ShapeError, r"out_axes=-3 is out of range for f32\[3\]"),
        (lambda: tg.vmap(lambda x: x, out_axes=2)(W), ShapeError, r"out_axes=2 is out of range for f32\[3\]"),
        (lambda: tg.custom_vjp(lambda x: x)(X), TraceError, "no derivative yet"),
        (lambda: custom(lambda x: x, print)(X), TraceError, r"fwd of f must return \(result, residuals\)"),
        (lambda: custom(lambda x: (x, (), ()), print)(X), TraceError, r"fwd of f must return \(result, residuals\)"),
        (lambda: pulled(lambda _, ct: ct), TraceError, "one entry for each of its 1 arguments"),
        (lambda: pulled(lambda _, ct: (ct, ct)), TraceError, "one entry for each of its 1 arguments"),
        (lambda: pulled(lambda _, ct: (ct[0],)), ShapeError, r"returned f32\[\] as the cotangent of f32\[3\]"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(call: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message) as e:
        call()
    assert "test_transforms.py" in str(e.value), "no line of the user's"


def test_every_place_of_a_new_axis():
    for axis, want in ((0, 0), (1, 1), (-1, 1), (-2, 0)):
        close(tg.vmap(lambda x: x, out_axes=axis)(W), np.moveaxis(W, 0, want))


def test_a_value_that_leaks_from_vmap_is_reported():
    leaked: list[Any] = []

    def f(m: Any, x: Any) -> Any:
        tg.vmap(lambda r: leaked.append(r * 2.0) or r)(x)
        return leaked[-1] + m.b

    with pytest.raises(TraceError, match="belongs to another trace"):
        build_forward(nn.Linear(1, 3), f, {"x": (2, 3)})


def test_the_guide_runs(capsys: pytest.CaptureFixture[str]):
    text = (Path(__file__).parents[1] / "docs" / "transforms.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "docs/transforms.md", "exec"), names)
    shown = re.findall(r"^\S.*?  # prints (.*)$", text, re.M)
    assert capsys.readouterr().out.splitlines() == shown and shown


def test_an_ensemble_of_recurrences_compiles_to_one_loop() -> None:
    """vmap over a scan is a scan over a batch; the same numbers as one after the other."""

    def last(w: tg.Tensor, x: tg.Tensor) -> tg.Tensor:
        return tg.scan(lambda h, e: (tg.tanh(h @ w + e), None), tg.zeros(3), x)[0]

    rng = np.random.default_rng(0)
    ws, x = rng.standard_normal((4, 3, 3)).astype(np.float32), rng.standard_normal((6, 3)).astype(np.float32)
    together = tg.vmap(last, (0, None))(ws, x)
    np.testing.assert_allclose(together, [last_of(w, x) for w in ws], rtol=1e-5, atol=1e-6)
    _, slope = tg.jvp(lambda w: last(w, x), (ws[0],), (ws[1],))
    jacobian = tg.jacobian(lambda w: last(w, x))(ws[0])
    np.testing.assert_allclose(slope, np.einsum("ijk,jk->i", jacobian, ws[1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("members", [1, 2, 4])
def test_what_all_members_of_an_ensemble_read_is_there_once(members: int) -> None:
    """Elements and constants of the loop; a carry that starts the same for all becomes one for each."""
    rng = np.random.default_rng(0)
    env = {"w": rng.standard_normal((members, 3)), "x": rng.standard_normal((5, 3)), "c": rng.standard_normal(3)}
    with tracing():
        w, x, c = (leaf("input", n, TensorType(f32, v.shape)) for n, v in env.items())
        y = tg.vmap(lambda w: tg.scan(lambda h, e: (h * w + e * c, h), tg.zeros(3), x)[0])(w)
        (scan,) = (t for t in toposort([y]) if t.prim.family == "scan")
        body = scan.attrs["body"]
        assert [t.shape for t in body.carries] == [(members, 3)]
        if members > 1:
            assert [t.shape for t in body.xs] == [(3,)]
            assert {t.shape for t in body.consts} == {(3,), (members, 3)} and len(body.consts) == 2
        (found,) = evaluate([y], env, np)
    for k in range(members):
        h = np.zeros(3)
        for e in env["x"]:
            h = h * env["w"][k] + e * env["c"]
        close(found[k], h)


def last_of(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    h = np.zeros(3, np.float32)
    for e in x:
        h = np.tanh(h @ w + e)
    return h


@pytest.mark.parametrize(
    "fn",
    [
        lambda f: tg.grad(lambda x: tg.sum(tg.checkpoint(f)(x))),
        lambda f: tg.grad(lambda x: tg.sum(tg.checkpoint(tg.checkpoint(f))(x))),
        lambda f: tg.grad(lambda x: tg.sum(tg.checkpoint(lambda x: f(tg.checkpoint(f)(x)))(x))),
        lambda f: tg.vmap(tg.grad(lambda r: tg.sum(tg.checkpoint(f)(r)))),
        lambda f: lambda x: tg.jvp(tg.grad(lambda x: tg.sum(tg.checkpoint(f)(x))), (x,), (x,))[1],
        lambda f: lambda x: tg.grad(lambda y: tg.sum(tg.repeat(tg.checkpoint(f), 3, y)))(x),
        lambda f: lambda x: tg.repeat(tg.grad(lambda c: tg.sum(tg.checkpoint(f)(c))), 2, x),
        lambda f: lambda x: tg.vjp(tg.checkpoint(f), x)[1](x)[0],
        lambda f: tg.grad(lambda x: tg.sum(tg.checkpoint(lambda x: tg.max(f(x)) / tg.sum(x * x))(x))),
    ],
    ids=["grad", "twice", "nested", "vmap", "jvp", "scan", "in-scan", "vjp", "scalar"],
)  # fmt: skip
def test_a_checkpoint_whose_value_nobody_reads_compiles(fn: Any) -> None:
    """Only the gradient is a result: what recomputes the value waits for one that nothing else needs."""
    square = tg.asarray(np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3))
    whole = fn(lambda x: tg.tanh(x @ square))
    rows = np.stack([X, -X, 2 * X, X + 1])
    close(forward(lambda x: whole(x), x=rows), whole(rows))


def test_what_is_only_waited_for_is_not_computed():
    gradient = lambda wrapped: lambda m, x: tg.grad(lambda x: tg.sum(wrapped(lambda x: tg.tanh(m(x)))(x)))(x)
    sizes = [
        tg.trace_forward(model=nn.Linear(3, 3), forward=gradient(wrapped), inputs={"x": (4, 3)})
        for wrapped in (tg.checkpoint, lambda f: f)
    ]
    products = [sum(t.prim.name == "matmul" for t in pipeline.optimize(graph).order) for graph in sizes]
    assert products[0] == products[1] == 2


def test_second_derivatives_of_the_norm_of_zeros_are_zero() -> None:
    penalty = tg.grad(lambda v: tg.sum(tg.grad(tg.norm)(v) * np.array([1, 2], np.float32)))
    np.testing.assert_array_equal(penalty(np.zeros(2, np.float32)), [0.0, 0.0])
