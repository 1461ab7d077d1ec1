"""What holds for every graph: indices, views, whole graphs and Programs, on inputs that hypothesis makes up."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from indices import evaluate_index
from memory_check import check_memory, planned
from models import SMALL, Training
from tracegrad import ops as tg
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.entrypoints import compile as tg_compile
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.coordinates import ravel, regroup, unravel
from tracegrad.kernels.expr import Index, Space
from tracegrad.prims import folds, views
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer, Program
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms import scan

RELAXED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
SCALE = int(os.environ.get("TRACEGRAD_EXAMPLES", "1"))  # 20 for a long search after a change to the compiler
quick = settings(max_examples=150 * SCALE, deadline=None, suppress_health_check=RELAXED)
few = settings(max_examples=60 * SCALE, deadline=None, suppress_health_check=RELAXED)

# --- indices against Python's integers ---

NAMES = ("i", "j", "k")


@st.composite
def points(draw: Any) -> tuple[Space, dict[str, Index], list[dict[str, int]]]:
    """A space, its variables, and some points of it."""
    sizes = {n: draw(st.integers(1, 12)) for n in NAMES}
    space = Space()
    found = [{n: draw(st.integers(0, size - 1)) for n, size in sizes.items()} for _ in range(4)]
    return space, {n: space.var(n, size) for n, size in sizes.items()}, found


Known = tuple[Index, list[int]]  # an index, and its values at some points
OPERATIONS = st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "shift"])


def applied(kind: str, x: Index, a: list[int], y: Index, b: list[int], n: int) -> Known:
    """One operation, on indices and on integers."""
    if kind == "add":
        return x + y, [p + q for p, q in zip(a, b, strict=True)]
    if kind == "sub":
        return x - y, [p - q for p, q in zip(a, b, strict=True)]
    if kind == "mul":
        return x * n, [p * n for p in a]
    if kind == "floordiv":
        return x // n, [p // n for p in a]
    if kind == "mod":
        return x % n, [p % n for p in a]
    return x + (n - 6), [p + n - 6 for p in a]


@quick
@given(points(), st.data())
def test_index_arithmetic_is_that_of_integers(space_and: Any, data: Any) -> None:
    """Random expressions of +, -, *, // and %, whose values Python computes along."""
    _, variables, found = space_and
    pool: list[Known] = [(v, [p[n] for p in found]) for n, v in variables.items()]
    for _ in range(data.draw(st.integers(1, 10))):
        x, a = pool[data.draw(st.integers(0, len(pool) - 1))]
        y, b = pool[data.draw(st.integers(0, len(pool) - 1))]
        n = data.draw(st.integers(1, 12))
        pool.append(applied(data.draw(OPERATIONS), x, a, y, b, n))
        index, values = pool[-1]
        assert [evaluate_index(index, p) for p in found] == values
        assert all(index.lo <= v <= index.hi for v in values)


@quick
@given(points(), st.integers(2, 12), st.integers(1, 5), st.integers(-20, 20), st.data())
def test_a_quotient_and_its_remainder_make_the_whole(space_and: Any, d: int, c: int, shift: int, data: Any) -> None:
    """c*(y % d) + c*d*(y // d) is c*y, the very same object."""
    _, variables, _ = space_and
    y = sum((v * data.draw(st.integers(0, 9)) for v in variables.values()), start=variables["i"] * 0) + shift
    assert (y % d) * c + (y // d) * (c * d) is y * c


SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@quick
@given(SHAPES)
def test_unravel_undoes_ravel(shape: tuple[int, ...]) -> None:
    space = Space()
    coordinates = tuple(space.var(f"v{k}", n) for k, n in enumerate(shape))
    flat = ravel(coordinates, shape, space)
    assert all(a is b for a, b in zip(unravel(flat, shape), coordinates, strict=True))
    for where in np.ndindex(*shape):
        env = {f"v{k}": n for k, n in enumerate(where)}
        assert evaluate_index(flat, env) == (np.ravel_multi_index(where, shape) if shape else 0)


@st.composite
def two_shapes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of one size."""
    primes = draw(st.lists(st.sampled_from([2, 2, 2, 3, 3, 5]), max_size=5))

    def grouped() -> tuple[int, ...]:
        order = draw(st.permutations(primes))
        cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=4)))
        edges = [0, *cuts, len(order)]
        return tuple(math.prod(order[a:b]) for a, b in itertools.pairwise(edges))

    return grouped(), grouped()


@quick
@given(two_shapes())
def test_regrouped_coordinates_name_the_same_element(shapes: Any) -> None:
    source, target = shapes
    space = Space()
    coordinates = tuple(space.var(f"v{k}", n) for k, n in enumerate(source))
    moved = regroup(coordinates, source, target, space)
    assert len(moved) == len(target)
    for number, where in enumerate(np.ndindex(*source)):
        env = {f"v{k}": n for k, n in enumerate(where)}
        got = [evaluate_index(i, env) for i in moved]
        assert all(0 <= g < n for g, n in zip(got, target))
        assert (np.ravel_multi_index(got, target) if target else 0) == number


# --- chains of views as kernels ---


def run(session: Any, graph: Graph, env: dict[str, Any], persistent: Persistent | None = None) -> dict[str, Any]:
    program = make_program(graph, persistent or Persistent(), {}, {})
    handle = session.load(program)
    try:
        return session.run(handle, [{f.name: env[f.name] for f in program.inputs}]).outputs()[0]
    finally:
        session.unload(handle)


def draw_view(draw: Any, x: Tensor) -> Tensor:
    """Some view of `x`, not too large."""
    kinds = ["reshape", "permute", "slice", "place", "broadcast", "window", "unwindow", "index"]
    kind = draw(st.sampled_from(kinds))
    if kind == "reshape":
        primes = [p for n in x.shape for p in factors(n)]
        cuts = sorted(draw(st.lists(st.integers(0, len(primes)), max_size=3)))
        edges = [0, *cuts, len(primes)]
        return views.reshape(x, [math.prod(primes[a:b]) for a, b in itertools.pairwise(edges)])
    if kind == "permute":
        return views.permute(x, draw(st.permutations(range(x.ndim))))
    if kind == "broadcast":
        grown = [n if n > 1 else draw(st.integers(1, 3)) for n in x.shape]
        return views.broadcast_to(x, [draw(st.integers(1, 2)), *grown])
    if not x.ndim:
        return x
    axis = draw(st.integers(0, x.ndim - 1))
    n = x.shape[axis]
    if kind == "slice":
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        start = draw(st.integers(0, n - 1))
        room = (n - 1 - start) // step if step > 0 else start // -step
        return views.slice_(x, axis, start, draw(st.integers(1, room + 1)), step)
    if kind == "place":
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        span = (n - 1) * abs(step)
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        start = before if step > 0 else before + span
        return views.place(x, axis, start, before + span + 1 + after, step)
    size, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    if kind == "window" and n > dilation * (size - 1):
        return views.window(x, axis, size, stride, dilation)
    if kind == "unwindow" and axis < x.ndim - 1:
        size = x.shape[-1]
        length = (n - 1) * stride + dilation * (size - 1) + 1 + draw(st.integers(0, 2))
        return views.unwindow(x, axis, length, stride, dilation)
    return x[(slice(None),) * axis + (slice(None, None, -1), None)]


def factors(n: int) -> list[int]:
    out, p = [], 2
    while n > 1:
        if n % p:
            p += 1
        else:
            out.append(p)
            n //= p
    return out


@st.composite
def view_chains(draw: Any) -> Graph:
    """One input through up to six views, perhaps with arithmetic between them."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    with tracing():
        y = leaf("input", "x", TensorType(f32, tuple(shape)))
        for _ in range(draw(st.integers(1, 6))):
            new = draw_view(draw, y)
            y = new if new.size <= 600 else y
            if draw(st.integers(0, 3)) == 0:
                y = y * 2.0 + 1.0
    return Graph({"y": y})


@quick
@given(view_chains())
def test_chains_of_views_move_every_element_to_its_place(graph: Graph) -> None:
    """Bit for bit: views only move, and 2x + 1 of small integers is exact."""
    for x in graph.inputs:
        env = {"x": np.arange(1, x.size + 1, dtype=np.float32).reshape(x.shape)}
        (want,) = evaluate(graph.roots, env, np)
        np.testing.assert_array_equal(run(CpuSession(), graph, env)["y"], want)


# --- random graphs ---


class Builder:
    """Grows a random graph of f32 tensors, a pool of which every op takes its operands."""

    numbers: Tensor  # an i32 input of six

    def __init__(self, draw: Any, depth: int = 0) -> None:
        self.draw, self.depth = draw, depth
        self.pool: list[Tensor] = []

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self) -> Tensor:
        """Rather a late one: chains grow long, and values are still shared."""
        late = max(0, len(self.pool) - 4)
        return self.pool[self.integer(late if self.integer(0, 2) else 0, len(self.pool) - 1)]

    def shaped_like(self, x: Tensor) -> Tensor:
        """A tensor that broadcasts with `x`."""
        fits = [t for t in self.pool if fits_into(t.shape, x.shape)]
        return fits[self.integer(0, len(fits) - 1)] if fits else x

    def grow(self) -> None:
        made = getattr(self, self.draw(st.sampled_from(self.OPS)))(self.pick())
        if made is not None and 0 < made.size <= 400 and made.ndim <= 4:
            self.pool.append(made)

    OPS = ("unary", "unary", "binary", "binary", "choice", "reduce", "reduce", "product", "view", "view", "gather",
           "scatter", "pack", "composite", "scan")  # fmt: skip

    def unary(self, x: Tensor) -> Tensor:
        f = self.draw(st.sampled_from([tg.tanh, tg.sigmoid, tg.relu, tg.neg, tg.abs, tg.sin, lambda x: tg.exp(-x * x)]))
        return f(x)

    def binary(self, x: Tensor) -> Tensor:
        f = self.draw(st.sampled_from([tg.add, tg.sub, tg.mul, tg.minimum, tg.maximum, lambda a, b: a / (1 + b * b)]))
        return f(x, self.shaped_like(x))

    def choice(self, x: Tensor) -> Tensor:
        y = self.shaped_like(x)
        return tg.where(x < y, y * 0.5, x)

    def axes(self, x: Tensor) -> Any:
        every = st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1).map(tuple) if x.ndim else st.none()
        return self.draw(st.one_of(st.none(), every))

    def reduce(self, x: Tensor) -> Tensor:
        f = self.draw(st.sampled_from([tg.mean, tg.max, tg.min, lambda x, a, k: tg.sum(x, a, keepdims=k) * 0.25]))
        axes, keep = self.axes(x), bool(self.integer(0, 1))
        return f(x, axes, keep) if f not in (tg.mean, tg.max, tg.min) else f(x, axis=axes, keepdims=keep)

    def product(self, x: Tensor) -> Tensor | None:
        if x.ndim < 2:
            return None
        others = [t for t in self.pool if t.ndim >= 2 and t.shape[:-2] == x.shape[:-2]]
        y = others[self.integer(0, len(others) - 1)]
        for a, b in ((x, y), (x, tg.swapaxes(y, -1, -2)), (tg.swapaxes(x, -1, -2), y)):
            if a.shape[-1] == b.shape[-2]:
                return tg.matmul(a, b) * 0.2
        return None

    def view(self, x: Tensor) -> Tensor:
        return draw_view(self.draw, x)

    def gather(self, x: Tensor) -> Tensor | None:
        """By numbers read from memory, by a constant, or by a coordinate."""
        if not x.ndim:
            return None
        axis = self.integer(0, x.ndim - 1)
        constant = tg.asarray(np.array([3, 0, 2, 2, 1], np.int32))
        picked = self.draw(st.sampled_from([self.numbers, self.numbers[::-1], constant, tg.arange(3)]))
        return tg.take(x, tg.clip(picked, 0, x.shape[axis] - 1), axis)

    def scatter(self, x: Tensor) -> Tensor | None:
        if x.ndim != 2 or x.shape[0] > self.numbers.shape[0]:
            return None
        rows = tg.clip(self.numbers[: x.shape[0]], 0, 3)
        return folds.scatter_add(x, tg.broadcast_to(rows[:, None], x.shape), 0, 4)

    def pack(self, x: Tensor) -> Tensor:
        return folds.pack([x, *(self.pick() for _ in range(self.integer(0, 2)))])

    def scan(self, x: Tensor) -> Tensor | None:
        """Along `x`, from any other; its function is grown too, may use what is around it, and may scan itself."""
        if not x.ndim or self.depth > 1:
            return None
        inner = Builder(self.draw, self.depth + 1)
        inner.numbers = self.numbers

        def step(c: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
            inner.pool = [self.pick(), e, c]
            for _ in range(self.integer(1, 4)):
                inner.grow()
            fits = [t for t in inner.pool if t.shape == c.shape]
            return fits[self.integer(0, len(fits) - 1)], inner.pool[self.integer(0, len(inner.pool) - 1)]

        last, ys = scan(step, self.pick(), x, reverse=bool(self.integer(0, 1)))
        return tg.tanh(ys if self.integer(0, 2) else last)

    def composite(self, x: Tensor) -> Tensor | None:
        if not x.ndim:
            return None
        return self.draw(st.sampled_from([tg.softmax, tg.logsumexp, lambda x: tg.cumsum(x, -1) * 0.1]))(x)


def fits_into(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Does `shape` broadcast to `target` without growing it?"""
    if len(shape) > len(target):
        return False
    return all(n in (1, m) for n, m in zip(reversed(shape), reversed(target)))


@st.composite
def graphs(draw: Any, most: int = 14) -> tuple[Graph, dict[str, np.ndarray]]:
    """Several outputs over two f32 inputs and one of i32, with shared values."""
    b = Builder(draw)
    env: dict[str, np.ndarray] = {}
    with tracing():
        for k in range(2):
            shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
            b.pool.append(leaf("input", f"x{k}", TensorType(f32, shape)))
            env[f"x{k}"] = np.random.default_rng(k).uniform(-2, 2, shape).astype(np.float32)
        b.numbers = leaf("input", "n", TensorType(i32, (6,)))
        env["n"] = np.array([2, 0, 3, 1, 1, 5], np.int32)
        for _ in range(draw(st.integers(2, most))):
            b.grow()
        wanted = draw(st.lists(st.integers(0, len(b.pool) - 1), min_size=1, max_size=3))
        return Graph({f"y{k}": b.pool[n] for k, n in enumerate([*wanted, len(b.pool) - 1])}), env


def assert_close(graph: Graph, env: dict[str, Any], got: dict[str, Any]) -> None:
    """Compare with the reference. Values stay below some hundreds, in at most 14 ops of at most 400 terms each.

    Every comparison that decides between values is continuous there. `where(x < y, y/2, x)` is not: graphs that come
    near a jump are skipped.
    """
    double = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in env.items()}
    with np.errstate(all="ignore"):
        exact = evaluate(graph.roots, double, np)
        single = evaluate(graph.roots, env, np)
    for (name, y), want, rounded in zip(graph.outputs.items(), exact, single, strict=True):
        scale = max(1.0, float(np.abs(want).max(initial=0.0)))
        # where two roundings of the reference itself disagree the graph has no one answer
        assume(np.abs(np.asarray(rounded, np.float64) - want).max(initial=0.0) <= 1e-4 * scale)
        assert got[name].shape == y.shape
        np.testing.assert_allclose(got[name], want, rtol=3e-4, atol=3e-4 * scale, err_msg=f"{name}\n{graph}")


GATHERS = {
    "concatenated": lambda x, i: tg.take(tg.concat([x, 2 * x], 0), i, 0),
    "padded": lambda x, i: tg.take(tg.pad(x, ((1, 2), (0, 0))), i, 0) * 2 + 1,
    "transposed": lambda x, i: tg.take(x.permute(1, 0).reshape(-1), i, 0),
    "flipped": lambda x, i: tg.take(tg.flip(x, 0), i, 0),
    "coordinates": lambda x, i: tg.take(tg.arange(9) * 2, i, 0),
    "gathered": lambda x, i: tg.take(tg.take(x, tg.clip(i, 0, 3), 0), tg.clip(i, 0, 5), 0),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gathers_from_views(name: str) -> None:
    """Their indices and guards are known only when the kernel runs."""
    with tracing():
        x, i = leaf("input", "x", TensorType(f32, (4, 3))), leaf("input", "i", TensorType(i32, (6,)))
        graph = Graph({"y": GATHERS[name](x, i)})
    env = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "i": np.array([2, 0, 3, 1, 1, 5], np.int32)}
    (want,) = evaluate(graph.roots, env, np)
    np.testing.assert_array_equal(run(CpuSession(), graph, env)["y"], want)


@few
@given(graphs())
def test_random_graphs_on_the_cpu(graph_and: Any) -> None:
    graph, env = graph_and
    assert_close(graph, env, run(CpuSession(), graph, env))


@few
@given(graphs())
def test_random_graphs_never_misuse_memory(graph_and: Any) -> None:
    check_memory(planned(graph_and[0]))


@st.composite
def updates(draw: Any) -> tuple[Graph, Persistent, dict[str, np.ndarray]]:
    """Persistent arrays of one size that are overwritten by functions of each other."""
    n = draw(st.integers(2, 40))
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    b = Builder(draw)
    env = {name: np.random.default_rng(k).uniform(-2, 2, n).astype(np.float32) for k, name in enumerate(names)}
    with tracing():
        b.pool = [leaf("state", name, TensorType(f32, (n,))) for name in names]
        b.numbers = leaf("input", "n", TensorType(i32, (6,)))
        env["n"] = np.array([2, 0, 3, 1, 1, 5], np.int32)
        for _ in range(draw(st.integers(1, 8))):
            b.grow()
        fits = [t for t in b.pool if t.size == n]
        writes = {name: fits[b.integer(0, len(fits) - 1)].reshape((n,)) for name in names if b.integer(0, 3)}
        outputs = {"y": b.pool[-1], "old": b.pool[0]}
    buffers = tuple(Buffer(name, "f32", n, "state") for name in names)
    return Graph(outputs, {}, writes), Persistent(buffers), env


@quick
@given(updates())
def test_state_is_overwritten_by_functions_of_the_old_state(made: Any) -> None:
    """As if all new values were computed before the first is written; also by the labels of the memory check."""
    graph, persistent, env = made
    check_memory(planned(graph, persistent))
    program = make_program(graph, persistent, {}, {})
    session = CpuSession()
    handle = session.load(program)
    for b in persistent.buffers:
        session.write(b.name, env[b.name])
    got = session.run(handle, [{f.name: env[f.name] for f in program.inputs}]).outputs()[0]
    new = {b.name: session.read(b.name) for b in persistent.buffers}
    named = Graph({**graph.outputs, **{f"new {n}": t for n, t in graph.writes.items()}})
    assert_close(named, env, {**got, **{f"new {n}": new[n] for n in graph.writes}})
    for b in persistent.buffers:
        if b.name not in graph.writes:
            np.testing.assert_array_equal(new[b.name], env[b.name])


def test_new_states_without_an_order_of_writes_go_through_copies() -> None:
    """a' = b@b waits for b' = a, which waits for y = a' + b, which waits for a': no order of in-place writes exists."""
    with tracing():
        a, b = (leaf("state", name, TensorType(f32, (2,))) for name in "ab")
        column = b.reshape((2, 1, 1))
        new_a = tg.matmul(column, column) * 0.2
        graph = Graph({"y": new_a + column}, {}, {"a": new_a.reshape((2,)), "b": a})
    persistent = Persistent(tuple(Buffer(name, "f32", 2, "state") for name in "ab"))
    check_memory(planned(graph, persistent))
    session = CpuSession()
    handle = session.load(make_program(graph, persistent, {}, {}))
    session.write("a", np.float32([1, 2]))
    session.write("b", np.float32([3, 4]))
    y = session.run(handle, [{}]).outputs()[0]["y"]
    np.testing.assert_allclose(y.reshape(-1), [4.8, 7.2], rtol=1e-6)
    np.testing.assert_allclose(session.read("a"), [1.8, 3.2], rtol=1e-6)
    np.testing.assert_array_equal(session.read("b"), [1, 2])


@pytest.mark.slow
@settings(max_examples=15 * SCALE, deadline=None, suppress_health_check=[*RELAXED, HealthCheck.function_scoped_fixture])
@given(graph_and=graphs(most=10))
def test_random_graphs_on_webgpu(device: Any, graph_and: Any) -> None:
    graph, env = graph_and
    assert_close(graph, env, run(device, graph, env))


# --- the Program ---


@pytest.mark.parametrize("t", SMALL, ids=repr)
def test_a_program_survives_json(t: Training) -> None:
    program = t.build().program
    text = program.to_json()
    again = Program.from_json(text)
    assert again == program
    assert again.to_json() == text


@few
@given(graphs())
def test_programs_of_random_graphs_survive_json(graph_and: Any) -> None:
    program = make_program(graph_and[0], Persistent(), {}, {})
    assert Program.from_json(program.to_json()) == program


@pytest.mark.parametrize("t", SMALL, ids=repr)
def test_compiling_again_gives_the_same_bytes(t: Training) -> None:
    """With other work between, and with a device or without."""
    text = t.build().program.to_json()
    for other in SMALL:
        other.build()
    assert t.build().program.to_json() == text
    with tg_compile(**t.arguments(), device="cpu", seed=1) as train:
        assert train.program.to_json() == text


@pytest.mark.parametrize("hashing", ["1", "2"])
def test_a_fresh_process_gives_the_same_bytes(hashing: str) -> None:
    """Sets and dictionaries of strings have another order there."""
    code = "import sys, models; sys.stdout.write('\\n'.join(t.build().program.to_json() for t in models.SMALL))"
    env = {
        **os.environ,
        "PYTHONHASHSEED": hashing,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n".join(t.build().program.to_json() for t in SMALL)
