"""scan and repeat: against loops, JAX and PyTorch; what they cost; what they refuse."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracegrad as tg
from memory_check import check_memory, planned
from models import RNN, build_training, rnn, rnn_loss, rnn_outputs
from test_kernels import NOTHING, run
from test_random import pcg
from tracegrad import optim
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.compiler.places import make_plan
from tracegrad.dtypes import TensorType, f32, i32, u32
from tracegrad.engine.reference import check_indices
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

HERE = Path(__file__)
LINES = HERE.read_text(encoding="utf-8").splitlines()


def unrolled(fn: Any, init: Any, xs: Any) -> tuple[Any, Any]:
    """The same as `tg.scan` for a carry and a y that are tensors, written out."""
    ys: list[Tensor] = []
    for t in range(xs.shape[0]):
        init, y = fn(init, xs[t])
        ys.append(y)
    return init, tg.stack(ys)


def unrolled_loss(m: RNN, x: Tensor, y: Tensor) -> Tensor:
    return tg.mean(tg.square(rnn_outputs(m, x, unrolled) - y))


def inputs(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {n: leaf("input", n, TensorType(f32, s)) for n, s in shapes.items()}


def arrays(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in shapes.items()}


def on_cpu(graph: Graph, env: dict[str, Any]) -> dict[str, Any]:
    return run(CpuSession(), make_program(graph, NOTHING, {}, {}), env)


# --- it computes what a loop computes ---


def losses(loss: Callable[..., Any], device: str, batch: dict[str, Any], steps: int = 5) -> list[float]:
    t = rnn(3, batch["x"].shape[0], 4)
    arguments = {**t.arguments(), "loss": loss, "inputs": {n: x.shape for n, x in batch.items()}}
    with tg.compile(**arguments, seed=1, device=device) as train:
        return [train.step(batch).loss for _ in range(steps)]


@pytest.mark.parametrize("length", [1, 2, 9])
def test_training_follows_the_loop_written_out(length: int) -> None:
    """The operations are the same on the same numbers; only gradients of parameters are summed in another order.

    1e-5 covers that for sums of 9 terms over 5 steps.
    """
    batch = arrays(x=(length, 3, 2), y=(length, 3, 1))
    np.testing.assert_allclose(losses(rnn_loss, "cpu", batch), losses(unrolled_loss, "cpu", batch), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_training_on_webgpu_follows_the_cpu(webgpu: None) -> None:
    batch = arrays(x=(9, 3, 2), y=(9, 3, 1))
    np.testing.assert_allclose(losses(rnn_loss, "webgpu", batch), losses(rnn_loss, "cpu", batch), rtol=1e-5)


def test_a_carry_without_a_derivative_gives_zeros_however_large_it_grows() -> None:
    """Its slopes are infinite, and 0 times infinity would be NaN."""
    with tracing():
        leaves = inputs(a=(2,), b=(6, 2))
        a, b = leaves["a"], leaves["b"]
        grows = lambda c, x: ((tg.expm1(tg.expm1(c[0])), c[1] + x), tg.sin(x) + tg.stop_gradient(c[0]))
        rows = tg.scan(grows, (a, a), b)[1]
        (big, total), moved = tg.jvp(lambda b: tg.scan(grows, (a, tg.zeros(2)), b)[0], (b,), (b,))
        wanted = [total, *moved, *gradients(tg.sum(rows), [a, b])]
        env = {"a": np.array([-1.5, 2.5]), "b": np.ones((6, 2))}
        with np.errstate(all="ignore"):
            largest, _, still, whole, of_a, of_b = evaluate([big, *wanted], env, np)
    assert np.isinf(largest[1])
    for found, right in ((still, np.zeros(2)), (whole, np.full(2, 6.0)), (of_a, np.zeros(2)), (of_b, np.cos(env["b"]))):
        np.testing.assert_allclose(found, right)


CHAINS: dict[str, Any] = {
    "one reads the other": lambda np, c, x: ((np.sin(c[0]) * x, c[1] + c[0]), x * c[1]),
    "they change places": lambda np, c, x: ((c[1], c[0] * x), c[0] + c[1]),
    "the second has no derivative": lambda np, c, x: ((np.tanh(c[0]) * x, c[1] * c[0]), x * c[0]),
    "only the second moves": lambda np, c, x: ((np.sin(x), c[1] * c[0] + x), c[1]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_derivatives_of_carries_that_depend_on_some_others(name: str) -> None:
    """Backwards, twice, and forwards along one carry, beside JAX in float64."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    shapes = {"a": (3,), "b": (3,), "x": (4, 3)}
    env = {n: x.astype(np.float64) for n, x in arrays(**shapes).items()}

    def derivatives(lib: Any, xp: Any, scan: Any, a: Any, b: Any, x: Any) -> list[Any]:
        def step(c: Any, x: Any) -> Any:
            (first, second), row = CHAINS[name](xp, c, x)
            return (first, second, c[2] + c[0]), row  # the third depends on the second by the first

        both = lambda a, b: scan(step, (a, b, xp.zeros(3)), x)
        total = lambda a, b: xp.sum(xp.sin(both(a, b)[1]))
        slopes = lib.grad(total, (0, 1))(a, b)
        twice = lib.grad(lambda a, b: xp.sum(xp.sin(lib.grad(total)(a, b))), (0, 1))(a, b)
        last, rows = lib.jvp(lambda b: both(a, b), (b,), (a,))[1]
        return [*slopes, *twice, *last, rows]

    with tracing():
        ours = evaluate(derivatives(tg, tg, tg.scan, **inputs(**shapes)), env, np)
    with jax.enable_x64(True):
        theirs = derivatives(jax, jax.numpy, jax.lax.scan, **{n: jax.numpy.asarray(x) for n, x in env.items()})
    for found, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


def test_gradients_of_gradients_are_those_of_jax() -> None:
    """Values, gradients and products with the Hessian, in float64 by the reference: rounding only."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    shapes = {"w": (3, 3), "x": (4, 2, 3), "h": (2, 3)}

    def objective(xp: Any, scan: Any, w: Any, x: Any, h: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = xp.tanh(x + h @ w)
            return h, xp.sin(h) * x

        last, ys = scan(step, h, x)
        return xp.sum(ys * ys) + xp.sum(last)

    with tracing():
        leaves = inputs(**shapes)
        y = objective(tg, tg.scan, **leaves)
        slopes = gradients(y, list(leaves.values()))
        total = tg.add(tg.sum(tg.sin(slopes[0])), tg.add(tg.sum(tg.sin(slopes[1])), tg.sum(tg.sin(slopes[2]))))
        env = {n: x.astype(np.float64) for n, x in arrays(**shapes).items()}
        ours = evaluate([y, *slopes, *gradients(total, list(leaves.values()))], env, np)
    with jax.enable_x64(True):
        given = {n: jax.numpy.asarray(x) for n, x in env.items()}

        def value(p: Any) -> Any:
            return objective(jax.numpy, jax.lax.scan, **p)

        def slope(p: Any) -> Any:
            return sum(jax.numpy.sin(g).sum() for g in jax.tree.leaves(jax.grad(value)(p)))

        theirs = [value(given)]
        for f in (value, slope):
            found = jax.grad(f)(given)
            theirs += [found[n] for n in shapes]
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, np.asarray(b), rtol=1e-10, atol=1e-12)


class State(NamedTuple):
    h: Tensor
    rest: list[Any]


def test_trees_keep_their_form() -> None:
    with tracing():
        x = inputs(x=(3, 2))["x"]

        def step(s: State, e: dict[str, Any]) -> Any:
            assert e["none"] is None
            return State(s.h + e["x"], [s.rest[0] * 2, (s.rest[1][0],)]), {"a": s.h, "b": (e["n"], [s.rest[0]])}

        init = State(x[0], [1, (2.5,)])
        last, ys = tg.scan(step, init, {"x": x, "n": tg.arange(3), "none": None})
    assert isinstance(last, State) and last.rest[0].type == TensorType(i32, ()) and last.rest[1][0].shape == ()
    assert ys["a"].shape == (3, 2) and ys["b"][0].type == ys["b"][1][0].type == TensorType(i32, (3,))
    out = evaluate([last.h, last.rest[0], ys["b"][1][0]], env := arrays(x=(3, 2)), np)
    np.testing.assert_allclose(out[0], env["x"][0] + env["x"].sum(0), rtol=1e-6)
    assert out[1] == 8 and out[2].tolist() == [1, 2, 4]


def test_repeat_of_elements_and_of_a_function() -> None:
    with tracing():
        x = inputs(x=(2, 3))["x"]
        graph = Graph({
            "elements": tg.repeat(x, 2, 1), "flat": tg.repeat(x, 2), "named": tg.repeat(x, repeats=2, axis=0),
            "function": tg.repeat(lambda c: c * x, 3, x), "never": tg.repeat(lambda c: c * x, 0, x),
            "start": tg.repeat(lambda c: c * x, n=3, init=x),
        })  # fmt: skip
    env = arrays(x=(2, 3))
    got, a = on_cpu(graph, env), env["x"]
    for name, want in {
        "elements": a.repeat(2, 1), "flat": a.repeat(2), "named": a.repeat(2, 0), "function": a**4, "never": a,
        "start": a**4,
    }.items():  # fmt: skip
        np.testing.assert_allclose(got[name], want, rtol=1e-6, err_msg=name)


def test_attached_forwards_and_any_length(tmp_path: Path) -> None:
    """A recurrence runs over as many elements as come; files hold nothing of it."""
    batch = arrays(x=(5, 3, 2), y=(5, 3, 1))
    with tg.compile(**rnn(3, 5, 4).arguments(), seed=0, device="cpu") as train:
        infer = train.attach(forward=lambda m, x: rnn_outputs(m, x), inputs={"x": (None, 1, 2)})
        train.step(batch).result()
        p = train.download_params()
        for n in (1, 4, 7):
            x = arrays(x=(n, 1, 2))["x"]
            h, want = np.zeros((1, 4)), []
            for t in range(n):
                h = np.tanh(x[t] @ p["input.W"] + p["input.b"] + h @ p["state.W"])
                want.append(h @ p["output.W"] + p["output.b"])
            np.testing.assert_allclose(infer.run(x=x).output, want, rtol=1e-5, atol=1e-6)


def test_a_scan_over_nothing_gives_the_first_carry() -> None:
    with tracing():
        x = inputs(x=(0, 3))["x"]
        last, ys = tg.scan(lambda c, e: (c + 1, (e, c)), tg.full((), 2.0), x)
        values = evaluate([last, *ys], {"x": np.zeros((0, 3))}, np)
    assert values[0] == 2 and values[1].shape == (0, 3) and values[2].shape == (0,)


def test_a_carry_that_stays_is_stored_once() -> None:
    with tracing():
        x = inputs(x=(50, 8))["x"]
        (_, h), _ = tg.scan(lambda c, e: ((c[0], tg.sin(c[1] + c[0] * e)), None), (tg.sum(x, 0), x[0]), x)
        plan = make_plan(optimize(Graph({"y": gradients(tg.sum(h), [x])[0]})), NOTHING)
    assert plan.temporaries["temp.f32"] < 3 * 51 * 8


# --- randomness ---


def test_random_numbers_differ_in_each_iteration() -> None:
    """key = pcg(key + i), in nested scans for the outer number first."""
    with tracing():
        _, ys = tg.scan(lambda c, _: (c, tg.uniform((2,))), 0, length=3)

        def outer(c: Tensor, _: None) -> Any:
            return c, tg.scan(lambda c, _: (c, tg.uniform((2,))), 0, length=2)[1]

        _, nested = tg.scan(outer, 0, length=2)
        env = {"seed": np.asarray(7, np.uint32), "step": np.asarray(3, np.uint32)}
        one, two = evaluate([ys, nested], env, np)

    def unit(salt: int, numbers: tuple[int, ...], i: int) -> float:
        key = pcg(pcg(pcg(7) + 3 & 0xFFFFFFFF) + salt & 0xFFFFFFFF)
        for n in numbers:
            key = pcg(key + n & 0xFFFFFFFF)
        return (pcg(pcg(i) ^ key) >> 8) * 2.0**-24

    assert one.tolist() == [[unit(1, (k,), i) for i in range(2)] for k in range(3)]
    assert two.tolist() == [[[unit(2, (j, k), i) for i in range(2)] for k in range(2)] for j in range(2)]


def test_dropout_has_the_same_mask_in_the_backward() -> None:
    with tracing():
        x = inputs(x=(5, 40))["x"]
        last, ys = tg.scan(lambda c, e: (c + tg.dropout(e, 0.5), tg.dropout(e, 0.5)), tg.zeros(40), x)
        g_last, g_ys = gradients(tg.sum(last), [x])[0], gradients(tg.sum(ys), [x])[0]
        graph = Graph({"last": last, "ys": ys, "g_last": g_last, "g_ys": g_ys})
    env = {"x": np.ones((5, 40), np.float32), "seed": np.asarray(5, np.uint32), "step": np.asarray(1, np.uint32)}
    got = on_cpu(graph, env)
    np.testing.assert_array_equal(got["g_ys"], got["ys"])
    np.testing.assert_array_equal(got["g_last"].sum(0), got["last"])
    assert len({row.tobytes() for row in got["ys"]}) == 5 and {0.0, 2.0} == set(got["ys"].ravel())


# --- what it costs ---


def built(length: int, batch: int = 4, width: int = 8) -> Program:
    return rnn(batch, length, width).build().program


def test_program_and_compile_time_do_not_grow_with_the_length() -> None:
    short, long = built(300), built(480)  # sums of 1024 terms and more are made in parts
    assert len(long.dispatches) == len(short.dispatches) and len(long.kernels) == len(short.kernels)
    assert len(long.to_json()) < 1.05 * len(short.to_json())
    assert [loop.count for loop in long.loops] == [480, 480]
    started = time.perf_counter()
    CpuSession().load(built(512, 32, 64))
    assert time.perf_counter() - started < 5  # 0.1 s on a quiet machine, see bench/scan.py


def test_values_that_nothing_needs_are_not_stored() -> None:
    """Without a gradient a carry needs two places, whatever the length; with one, a place an iteration."""

    def elements(length: int, backward: bool) -> int:
        with tracing():
            w = inputs(w=(16, 16), h=(4, 16))
            h = tg.repeat(lambda h: tg.tanh(h @ w["w"]), length, w["h"])
            y = gradients(tg.sum(h), [w["w"]])[0] if backward else h
            plan = make_plan(optimize(Graph({"y": y})), NOTHING)
        return plan.temporaries["temp.f32"]

    assert elements(100, False) == elements(10, False) == 2 * 64
    # and the cotangent of each carry, for the gradient of the weight: one product behind the loop
    assert elements(100, True) - elements(10, True) == 2 * 90 * 64


def test_a_sum_is_kept_in_place() -> None:
    with tracing():
        x = inputs(x=(9, 64))["x"]
        (total, _), _ = tg.scan(lambda c, e: ((c[0] + tg.sin(c[1]), c[1] * e), None), (tg.zeros(64), tg.ones(64)), x)
        p = planned(Graph({"y": total}))
    assert p.plan.temporaries["temp.f32"] == 3 * 64  # the other carry is read by both
    check_memory(p)


def sabotaged(p: Any, change: Callable[[Any], Any]) -> int:
    """Of how many dispatches with moving offsets a change of one of them passes the check."""
    passed = 0
    for number, d in enumerate(p.program.dispatches):
        for k, (slot, move) in enumerate(d.moves):
            moves = (*d.moves[:k], (slot, change(move)), *d.moves[k + 1 :])
            other = (*p.program.dispatches[:number], replace(d, moves=moves), *p.program.dispatches[number + 1 :])
            try:
                check_memory(replace(p, program=replace(p.program, dispatches=other)))
                passed += 1
            except AssertionError:
                pass
    return passed


def test_a_wrong_move_is_seen() -> None:
    with tracing():
        leaves = inputs(w=(3, 3), x=(5, 2, 3))
        _, ys = tg.scan(lambda h, x: ((h := tg.tanh(x + h @ leaves["w"])), h), tg.zeros((2, 3)), leaves["x"])
        graph = Graph({"y": ys, **{f"g{n}": g for n, g in zip("wx", gradients(tg.sum(ys), list(leaves.values())))}})
    p = planned(graph)
    check_memory(p)
    assert sum(len(d.moves) for d in p.program.dispatches) >= 6
    assert sabotaged(p, lambda m: replace(m, step=-m.step)) == 0
    assert sabotaged(p, lambda m: replace(m, ring=1)) == 0
    assert sabotaged(p, lambda m: replace(m, ring=m.ring - 1)) == 0
    for loop in range(len(p.program.loops)):
        loops = list(p.program.loops)
        loops[loop] = replace(loops[loop], count=4)
        with pytest.raises(AssertionError):
            check_memory(replace(p, program=replace(p.program, loops=tuple(loops))))


def test_a_program_with_nested_loops_survives_json() -> None:
    with tracing():
        x = inputs(x=(3, 4))["x"]
        _, ys = tg.scan(lambda c, r: tg.scan(lambda c, e: (c * e, c + e), c, r), 1.0, x)
        graph = Graph({"y": ys, "g": gradients(tg.sum(ys), [x])[0]})
    program = make_program(graph, NOTHING, {}, {})
    assert Program.from_json(program.to_json()) == program
    assert [loop.count for loop in program.loops].count(3) == 2
    executed = list(program.unrolled())
    assert len(executed) > 2 * 3 * 4 and not any(d.moves for d in executed)
    env = arrays(x=(3, 4))
    got = run(CpuSession(), program, env)
    for name, want in zip(graph.outputs, evaluate(graph.roots, env, np)):
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)


# --- what it refuses ---


def kept(leak: list[Any]) -> Any:
    def step(c: Tensor, x: Tensor) -> Any:
        leak.append(c * 2)
        return c + x, None

    return step


def a_leak(x: Tensor) -> Tensor:
    leak: list[Any] = []
    tg.scan(kept(leak), tg.zeros(3), x)
    return leak[0]


REFUSED: dict[str, tuple[Callable[[Tensor], Any], type[Exception], list[str]]] = {
    "shape": (lambda x: tg.scan(lambda c, e: (c[:2], e), x[0], x), tg.ShapeError, ["f32[3]", "f32[2]", "carry"]),
    "dtype": (lambda x: tg.scan(lambda c, e: (c * 0.5 + e, None), tg.zeros(3, tg.i32), x), tg.DTypeError, ["i32[3]"]),
    "rounded": (lambda x: tg.scan(lambda c, e: (tg.sum(e), None), 0, x), tg.DTypeError, ["i32[]", "f32[]", "cast"]),
    "form": (
        lambda x: tg.scan(lambda c, e: ((c, c), e), x[0], x),
        tg.ShapeError,
        ["form of the carry", "a tuple"],
    ),
    "names": (
        lambda x: tg.scan(lambda c, e: ({"b": c["a"]}, e), {"a": x[0]}, x),
        tg.ShapeError,
        ["dict of a", "dict of b"],
    ),
    "no pair": (lambda x: tg.scan(lambda c, e: c + e, x[0], x), tg.TraceError, ["pair (carry, y), got f32[3]"]),
    "no tensor": (lambda x: tg.scan(lambda c, e: (c, "y"), x[0], x), tg.TraceError, ["y must be", "a str"]),
    "lengths": (lambda x: tg.scan(lambda c, e: (c, None), 0, (x, x[:3])), tg.ShapeError, ["f32[4,3]", "f32[3,3]; cut"]),
    "length": (lambda x: tg.scan(lambda c, e: (c, None), 0, x, length=5), tg.ShapeError, ["f32[4,3]", "length is 5"]),
    "no length": (lambda x: tg.scan(lambda c, e: (c, None), x), tg.ShapeError, ["length=10"]),
    "negative": (lambda x: tg.repeat(lambda c: c, -1, x), tg.ShapeError, ["-1"]),
    "scalar": (lambda x: tg.scan(lambda c, e: (c, None), 0, tg.sum(x)), tg.ShapeError, ["rank 0", "f32[]"]),
    "capture": (lambda x: tg.scan(lambda c, e: (tg.capture("c", c), e), x[0], x), tg.TraceError, ["'c'", "as y"]),
    "patch": (lambda x: tg.scan(lambda c, e: (tg.patch("c", c), e), x[0], x), tg.TraceError, ["'c'", "f32[3]"]),
    "leak": (a_leak, tg.TraceError, ["inside of a scan"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_say_what_is_wrong_and_where(name: str) -> None:
    call, kind, parts = REFUSED[name]

    def loss(m: RNN, x: Tensor) -> Tensor:
        y = call(x)
        return tg.sum(y if isinstance(y, Tensor) else y[0]) + tg.sum(m.output.W)

    with pytest.raises(kind) as e:
        build_training(RNN(), loss, {"x": (4, 3)}, optim.sgd(lr=0.1))
    text = str(e.value)
    assert all(part in text for part in parts), text
    assert f"at {HERE}" in text


def test_an_error_in_the_function_names_its_own_line() -> None:
    def step(c: Tensor, x: Tensor) -> Any:
        return c @ tg.ones((5, 5)), None  # HERE

    with tracing(), pytest.raises(tg.ShapeError, match="matmul: inner dimensions differ") as e:
        tg.scan(step, tg.zeros((2, 3)), length=3)
    assert f"{HERE}:{1 + next(k for k, line in enumerate(LINES) if line.endswith('# HERE'))}" in str(e.value)


def test_outside_a_trace_it_runs_at_once() -> None:
    last, ys = tg.scan(lambda c, x: (c + x, {"c": c}), 0.0, np.arange(4.0))
    assert last == 6 and ys["c"].tolist() == [0, 0, 1, 3]
    assert tg.repeat(lambda c: c * 2, 5, 1.0) == 32 and tg.repeat(np.array([1.0, 2.0]), 2).tolist() == [1, 1, 2, 2]
    slope = tg.grad(lambda x: tg.scan(lambda c, _: (c * x, None), 1.0, length=3)[0])(np.float32(2))
    assert slope == 12


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("carry", [1.0, np.float32(1), np.ones(2, np.float32), tg.tensor(1.0, dtype="float64")])
def test_results_are_tensors_after_any_number_of_iterations(n: int, carry: Any) -> None:
    (last, nothing), ys = tg.scan(lambda c, x: ((c[0] * 2, None), x), (carry, None), np.ones((n, 3), np.float32))
    assert nothing is None and all(isinstance(t, tg.GradTensor) for t in (last, ys, tg.repeat(lambda c: c, n, carry)))
    assert last.dtype is tg.asarray(carry).dtype and (last.numpy() == 2**n).all() and ys.shape == (n, 3)


def test_models_as_carries() -> None:
    """Gradient descent inside a function: the carry is the model; and its gradient goes through all the descent."""

    def inner(m: RNN, x: Tensor) -> Tensor:
        return tg.mean(tg.square(rnn_outputs(m, x) - 1.0))

    def tuned(m: RNN, x: Tensor) -> RNN:
        return tg.repeat(lambda m: tg.tree_map(lambda p, g: p - 0.1 * g, m, tg.grad(inner)(m, x)), 4, m)

    def written_out(m: RNN, x: Tensor) -> RNN:
        for _ in range(4):
            m = tg.tree_map(lambda p, g: p - 0.1 * g, m, tg.grad(inner)(m, x))
        return m

    x = arrays(x=(3, 2, 2))["x"]
    found = []
    for descent in (tuned, written_out):
        arguments = {"model": RNN(2, 3), "inputs": {"x": x.shape}, "optimizer": optim.sgd(lr=0.1), "seed": 0}
        with tg.compile(**arguments, loss=lambda m, x, f=descent: inner(f(m, x), x), device="cpu") as train:
            found.append([train.step(x=x).loss for _ in range(4)])
    assert found[0][-1] < found[0][0]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


# --- what the host knows of a body ---


class Tokens(tg.Module):
    def __init__(self) -> None:
        self.table = tg.nn.Embedding(5, 3)


def test_tokens_read_in_a_scan_are_checked() -> None:
    def loss(m: Tokens, tokens: Tensor) -> Tensor:
        return tg.mean(tg.scan(lambda h, k: (tg.tanh(h + m.table(k)), None), tg.zeros((2, 3)), tokens)[0])

    arguments = {"model": Tokens(), "loss": loss, "inputs": {"tokens": tg.i32[4, 2]}, "optimizer": optim.sgd(lr=0.1)}
    with tg.compile(**arguments, device="cpu") as train:
        assert train.step(tokens=np.full((4, 2), 4)).result().step == 1
        failed = train.step(tokens=np.full((4, 2), 5)).result()
        assert isinstance(failed, tg.Failed)
        assert "tokens" in str(failed.error) and "0 to 4" in str(failed.error)


def test_computed_indices_in_a_scan_are_checked() -> None:
    with tracing():
        x = inputs(x=(3, 4))["x"]
        number = leaf("input", "n", TensorType(i32, ()))
        graph = Graph({"y": tg.scan(lambda c, e: (c + 1, tg.take(e, c, 0)), number, x)[1]})
    env = {f"input.{n}": v for n, v in arrays(x=(3, 4)).items()}
    check_indices(graph, {**env, "input.n": np.int32(0)})
    with pytest.raises(tg.InputError, match="computed index 4 is out of range; valid are 0 to 3") as e:
        check_indices(graph, {**env, "input.n": np.int32(2)})
    assert str(HERE) in str(e.value)


def test_the_op_inside_that_made_a_nan_is_named() -> None:
    def loss(m: RNN, x: Tensor) -> Tensor:
        def step(c: Tensor, e: Tensor) -> Any:
            return c + tg.sum(tg.log(e)), None  # NAN

        return tg.scan(step, tg.sum(m.output.W), x)[0]

    with tg.compile(model=RNN(), loss=loss, inputs={"x": (4, 3)}, optimizer=optim.sgd(lr=0.1), device="cpu") as train:
        x = np.ones((4, 3), np.float32)
        assert train.step(x=x).result().step == 1
        x[2, 1] = -1
        failed = train.step(x=x).result()
        assert isinstance(failed, tg.Failed)
        line = 1 + next(k for k, line in enumerate(LINES) if line.endswith("# NAN"))
        assert "log" in str(failed.error) and f"{HERE}:{line}" in str(failed.error)


def test_counters_are_u32() -> None:
    """Elements and carries of every dtype."""
    with tracing():
        flags = leaf("input", "b", TensorType(tg.bool_, (4, 2)))
        start = leaf("input", "u", TensorType(u32, (2,)))
        last, ys = tg.scan(lambda c, b: (c * 3 + tg.cast(b, u32), ~b), start, flags, reverse=True)
        graph = Graph({"last": last, "ys": ys})
    env = {"b": np.array([[1, 0], [1, 1], [0, 1], [0, 0]], bool), "u": np.array([2**32 - 1, 5], np.uint32)}
    got = on_cpu(graph, env)
    want = env["u"].copy()
    for row in env["b"][::-1]:
        want = want * np.uint32(3) + row.astype(np.uint32)
    assert got["last"].dtype == np.uint32 and got["last"].tolist() == want.tolist()
    np.testing.assert_array_equal(got["ys"], ~env["b"])


def test_the_example_learns_to_repeat_what_it_heard(c_compiler: None) -> None:
    """Half of the default steps: the loss is below 0.05 after 150 on the CPU, a guess being 0.693."""
    spec = importlib.util.spec_from_file_location("rnn_example", HERE.parents[1] / "examples" / "rnn.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main(steps=200, device="cpu") > 0.95


@pytest.mark.parametrize("traced", [False, True], ids=["at once", "traced"])
def test_the_carry_is_a_dict_whose_keys_come_in_another_order(traced: bool) -> None:
    def run(x: Any) -> Any:
        def turn(c: Any, x: Any) -> Any:
            return {"b": c["b"] * 3.0, "a": c["a"] * 2.0 + x}, None

        (c, _) = tg.scan(turn, {"a": tg.zeros(()), "b": tg.ones((2,))}, x)
        return c["a"], c["b"]

    x = np.ones(3, np.float32)
    a, b = tg.vmap(run)(x[None]) if traced else run(x)
    assert float(np.asarray(a).reshape(())) == 7 and np.asarray(b).reshape(2).tolist() == [27, 27]


@pytest.mark.parametrize("init, new", [((1.0, None), (1.0, 2.0)), ((1.0, 2.0), (1.0, None)), ((1.0,), [1.0])])
def test_a_carry_of_another_form_is_refused(init: Any, new: Any) -> None:
    for scan in (tg.scan, lambda *a, **k: tg.vmap(lambda _: tg.scan(*a, **k)[1])(np.ones(1, np.float32))):
        with pytest.raises(tg.TracegradError, match="carry"):
            scan(lambda c, x: (new, x), init, np.ones(3, np.float32))


def test_arrays_are_tensors_in_the_loop_on_values() -> None:
    """With arrays, `c += x` would change those of the caller and all outputs, and small integers would wrap."""

    def step(c: Any, x: Any) -> tuple[Any, Any]:
        c += x
        return c, c

    first, xs = np.zeros(2, np.float32), np.ones((3, 2), np.float32)
    last, ys = tg.scan(step, first, xs)
    assert last.tolist() == [3, 3] and ys.tolist() == [[1, 1], [2, 2], [3, 3]] and not first.any() and (xs == 1).all()
    assert tg.repeat(lambda c: step(c, 1.0)[0], 3, first).tolist() == [3, 3] and not first.any()
    bright = np.full((3, 2), 200, np.uint8)
    assert tg.scan(step, bright[0], bright)[0].tolist() == [800, 800]
    last, ys = tg.scan(step, bright[0, 0], bright[:, 0])  # numbers of NumPy
    assert last.tolist() == 800 and ys.tolist() == [400, 600, 800]
    assert tg.repeat(lambda c: c * 2, 3, np.int8(100)).tolist() == 800
    assert tg.repeat(lambda c: c * 2, 3, np.float16(60000)).tolist() == 480000
    double = tg.tensor([[0.1, 0.2]], dtype="float64")
    assert tg.scan(step, first, double)[0].tolist() == double[0].tolist()
