"""Products with an operand whose elements are read several times: which products have one, and where they find it.

Every way of reading it gives the same numbers, for every width of vectors.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracegrad as tg
from models import build_forward
from together import together
from tracegrad.kernels.form import Axis
from tracegrad.program import Program
from tracegrad.render.c_steps import CSource, GatheredStep, Scratch
from tracegrad.render.gathered import Lay, in_memory_order
from tracegrad.runtime.c_calls import neighbours, places
from tracegrad.runtime.c_compiler import GCC_FLAGS, OTHER_FLAGS, compiler_named
from tracegrad.runtime.cpu import CpuSession

# Vectors of what this machine has, of 8 and of 4
FLAGS = ("", "-march=x86-64-v3", "-march=x86-64") if platform.machine() == "x86_64" else ("",)
Fn = Callable[..., Any]


class Filters(tg.Module):
    """Filters of a convolution."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = self.param(w.shape, init=tg.init.literal(w))


def conv(x: Any, w: Any, **how: Any) -> Any:
    return getattr(tg, f"conv{len(x.shape) - 2}d")(x, w, **how)


# filters of one channel each, for so many channels that a vector has one element of each of several products
STACKED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((3, 7, 7, 9), (7, 1, 5, 5), {"padding": 2, "groups": 7}),
    ((5, 13, 6, 11), (26, 1, 3, 3), {"padding": 1, "groups": 13}),
    ((4, 8, 37), (8, 1, 5), {"padding": 2, "groups": 8}),
    ((4, 10, 13, 21), (30, 1, 3, 3), {"stride": 2, "dilation": 2, "padding": 2, "groups": 10}),
]

# so many terms that they are summed in parts
LONG: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]] = ((1, 43, 9, 11), (26, 43, 7, 7), {"padding": 3})

# images, filters, geometry: long and short rows, many channels, steps, dilation, groups, sequences, volumes, small ones
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 40), (5, 3, 3, 3), {"padding": 1}),
    ((2, 16, 12, 33), (15, 16, 3, 3), {"padding": 1}),
    ((3, 70, 7, 7), (65, 70, 3, 3), {"padding": 1}),
    ((2, 5, 16, 21), (6, 5, 4, 5), {"stride": (2, 3), "padding": (1, 2)}),
    ((2, 4, 14, 30), (8, 2, 3, 3), {"dilation": (2, 3), "padding": 2, "groups": 2}),
    ((2, 6, 10, 36), (6, 1, 3, 5), {"padding": (1, 2), "groups": 6}),
    ((4, 20, 6, 18), (24, 20, 1, 1), {}),
    ((2, 3, 200), (7, 3, 9), {"padding": 4, "stride": 2}),
    ((1, 2, 6, 5, 19), (3, 2, 2, 3, 3), {"padding": 1}),
    ((3, 6, 7, 7), (6, 1, 7, 7), {"padding": 3, "groups": 6}),
    ((2, 8, 5, 6), (16, 2, 3, 2), {"stride": (1, 2), "padding": 1, "groups": 4}),
    ((2, 5, 19, 20), (10, 1, 3, 3), {"stride": 2, "dilation": 2, "padding": 1, "groups": 5}),
    *STACKED,
    ((5, 12, 3, 5), (33, 12, 3, 3), {"padding": 1}),
    ((13, 25, 6, 7), (29, 25, 2, 2), {"stride": (1, 2)}),
    ((9, 40, 41), (24, 40, 3), {"dilation": 2}),
    LONG,
]


class Way(NamedTuple):
    """A forward or a gradient as a program, and what it is given."""

    program: Program
    w: np.ndarray
    given: dict[str, np.ndarray]

    def run(self, session: CpuSession) -> tuple[np.ndarray, int]:
        """The result, and how many of the program's products gather."""
        handle = session.load(self.program)
        for b in self.program.buffers:
            if b.role == "param":
                session.write(b.name, self.w)
        (found,) = session.run(handle, [self.given])
        sources: Sequence[CSource] = [k.texts["c"] for k in self.program.kernels]
        return next(iter(found.values())), sum(isinstance(s, GatheredStep) for source in sources for s in source.steps)


def way(fn: Fn, w: np.ndarray, given: dict[str, np.ndarray]) -> Way:
    return Way(build_forward(Filters(w), fn, {k: v.shape for k, v in given.items()}).program, w, given)


def run(session: CpuSession, fn: Fn, w: np.ndarray, given: dict[str, np.ndarray]) -> tuple[np.ndarray, int]:
    return way(fn, w, given).run(session)


@pytest.fixture(params=[""])
def sessions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CpuSession, ...]]:
    """Sessions with kernels in C, for vectors as the flags say, and in NumPy. Bits need the flags for GCC, too.

    Results come from C even where C is wrong: a check would have NumPy compute them.
    """
    monkeypatch.setenv("TRACEGRAD_VERIFY", "off")
    compiler = compiler_named("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    gcc = () if "clang" in compiler.version else GCC_FLAGS
    monkeypatch.setenv(OTHER_FLAGS, " ".join((request.param, *gcc)))
    with closing(CpuSession(compiler)) as session, closing(CpuSession(None)) as reference:
        yield session, reference


def drawn(x: tuple[int, ...], w: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(0)
    return rng.standard_normal(x).astype("f"), rng.standard_normal(w).astype("f"), rng


every_width = pytest.mark.parametrize("sessions", FLAGS, indirect=True)


every_shape = pytest.mark.parametrize("number", range(len(SHAPES)), ids=lambda k: str(SHAPES[k]))


@cache
def ways_of(number: int) -> list[tuple[list[Way], np.ndarray]]:
    """A convolution and both gradients, and what NumPy computes: once for all widths.

    What reads the images reads them also with channels last in memory: axes of k or of the columns go in another order.
    """
    x_shape, w_shape, how = SHAPES[number]
    x, w, rng = drawn(x_shape, w_shape)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    turned = lambda x: tg.permute(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))
    plain: Fn = lambda m, x: conv(x, m.w, **how)
    with closing(CpuSession(None)) as reference:
        ct = rng.standard_normal(run(reference, plain, w, {"x": x})[0].shape).astype("f")

        def by_input(m: Filters, ct: Any) -> Any:
            return tg.grad(lambda x: (conv(x, m.w, **how) * ct).sum())(tg.zeros(x_shape))

        def by_weights(m: Filters, x: Any, ct: Any) -> Any:
            return tg.grad(lambda w: (conv(x, w, **how) * ct).sum())(m.w)

        found: list[tuple[list[Way], np.ndarray]] = []
        for fn, given in ((plain, {"x": x}), (by_input, {"ct": ct}), (by_weights, {"x": x, "ct": ct})):
            ways = [way(fn, w, given)]
            if "x" in given:
                other: Fn = lambda m, x, fn=fn, **rest: fn(m, turned(x), **rest)
                ways.append(way(other, w, {**given, "x": last}))
            found.append((ways, ways[0].run(reference)[0]))
    return found


@every_width
@every_shape
@together
def test_convolutions_and_both_gradients(number: int, sessions: tuple[CpuSession, ...]) -> None:
    gathering = 0
    for ways, expected in ways_of(number):
        for k, one in enumerate(ways):
            got, count = one.run(sessions[0])
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())
            gathering += count if k == 0 else 0
    assert gathering


def test_the_parts_of_a_long_sum_gather(sessions: tuple[CpuSession, ...]) -> None:
    x, w, _ = drawn(*LONG[:2])
    assert run(sessions[0], lambda m, x: conv(x, m.w, **LONG[2]), w, {"x": x})[1] == 1  # a stack of products


@every_width
@pytest.mark.parametrize("shape", STACKED, ids=str)
@together
def test_bits_of_an_image_do_not_depend_on_how_many_there_are(shape: Any, sessions: tuple[CpuSession, ...]) -> None:
    x_shape, w_shape, how = shape
    x, w, _ = drawn(x_shape, w_shape)
    few, many = 3, how["groups"]
    each = len(w) // many
    stacked: list[bool] = []
    found: list[np.ndarray] = []
    for images, filters, groups in ((x, w, many), (x[:1, :few], w[: few * each], few)):
        geometry = {**how, "groups": groups}
        fn: Fn = lambda m, x, v, g=geometry: conv(x, v, **g)
        built = build_forward(Filters(w), fn, {"x": images.shape, "v": filters.shape})
        steps = [s for k in built.program.kernels for s in k.texts["c"].steps if isinstance(s, GatheredStep)]
        stacked += [s.stacked for s in steps]
        found.append(run(sessions[0], fn, w, {"x": images, "v": filters})[0])
    assert stacked == [True, False]
    np.testing.assert_array_equal(found[0][:1, : few * each], found[1])


@every_width
@together
def test_bits_of_a_small_product_do_not_depend_on_the_stack(sessions: tuple[CpuSession, ...]) -> None:
    """Products by one column are ordinary sums, and the compiler chooses whether these fuse multiplications."""
    for sides in ((3, 3, 3), (1, 6, 2), (5, 2, 6), (6, 5, 4), (2, 1, 4)):
        for turned in ((False, False), (True, False), (False, True)):
            does_not_depend_on_the_stack(sides, turned, sessions)


def does_not_depend_on_the_stack(
    sides: tuple[int, int, int], turned: tuple[bool, bool], sessions: tuple[CpuSession, ...]
) -> None:
    m, k, n = sides
    x, y, _ = drawn((4, 10, *((k, m) if turned[0] else (m, k))), (4, 10, *((n, k) if turned[1] else (k, n))))

    def product(_: Any, x: Any, y: Any) -> Any:
        return (x.swapaxes(-1, -2) if turned[0] else x) @ (y.swapaxes(-1, -2) if turned[1] else y)

    got, count = run(sessions[0], product, x[0, 0, :1, :1], {"x": x, "y": y})
    np.testing.assert_allclose(got, product(None, x, y), rtol=1e-5, atol=1e-5, err_msg=f"{sides}, {turned}")
    assert count or min(m, n, k) == 1  # these may be folds
    few, none = run(sessions[0], product, x[0, 0, :1, :1], {"x": x[:1, :3], "y": y[:1, :3]})
    np.testing.assert_array_equal(got[:1, :3], few, f"{sides}, {turned}")
    assert not none


def test_k_and_columns_go_as_neighbours_meet() -> None:
    """A text's convolution: 20 letters of a place lie together, and so do the windows of 3 places."""
    k, n = [(Axis("c", 20), Lay(20, 1)), (Axis("j", 3), Lay(3, 20))], [(Axis("t", 50), Lay(50, 20))]
    ordered = lambda pairs: in_memory_order(*[tuple(x) for x in zip(*pairs)])
    assert [a.name for a in ordered(k) or ()] == ["j", "c"]
    assert ordered(k[::-1]) is None and ordered(n) is None


@pytest.mark.parametrize("shape", [(2, 2, 3 * 108), (2, 6 * 9, 12), (2, 648)], ids=str)
def test_an_image_that_was_grouped_otherwise_in_memory(
    shape: tuple[int, ...], sessions: tuple[CpuSession, ...]
) -> None:
    """A group norm leaves its result as groups of channels: padding and windows must be seen through the reshape."""
    session, reference = sessions
    x, w, _ = drawn(shape, (5, 6, 3, 3))
    fn: Fn = lambda m, x: conv(tg.reshape(x, (2, 6, 9, 12)), m.w, padding=1)
    got, count = run(session, fn, w, {"x": x})
    np.testing.assert_allclose(got, run(reference, fn, w, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert count == 1


@pytest.mark.parametrize("filters", [1, 7])
@pytest.mark.parametrize("blocks", [(2, 2), (3, 1), (4, 6)], ids=str)
@pytest.mark.parametrize("how", [{"padding": 2}, {"stride": (1, 2), "padding": 1}], ids=str)
def test_an_image_that_lies_in_blocks(
    filters: int, blocks: tuple[int, int], how: dict[str, Any], sessions: tuple[CpuSession, ...]
) -> None:
    """The gradient of a pool leaves its blocks one after the other, so each place is a quotient and a remainder."""
    (session, reference), (i, j) = sessions, blocks
    x, w, _ = drawn((2, 5, 12 // i, 18 // j, i, j), (filters, 5, 3, 3))
    image: Fn = lambda x: tg.reshape(tg.permute(x, (0, 1, 2, 4, 3, 5)), (2, 5, 12, 18))
    fn: Fn = lambda m, x: conv(image(x), m.w, **how)
    got, count = run(session, fn, w, {"x": x})
    np.testing.assert_allclose(got, run(reference, fn, w, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert count == 1


@together
def test_a_product_that_lies_as_a_matrix_gathers_nothing(sessions: tuple[CpuSession, ...]) -> None:
    x, w, _ = drawn((20, 30), (30, 40))
    for fn, expected in (
        (lambda m, x: x @ m.w, x @ w),
        (lambda m, x: m.w.T @ x.T, (x @ w).T),
        (lambda m, x: tg.relu(x) @ m.w, np.maximum(x, 0) @ w),
    ):
        got, count = run(sessions[0], fn, w, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        assert count == 0


@every_width
@together
def test_rows_far_apart_whose_number_is_no_whole_vector(sessions: tuple[CpuSession, ...]) -> None:
    for rows in (3, 5, 6, 7, 13):
        x, w, _ = drawn((rows, 1024), (1024, 20))
        got, _ = run(sessions[0], lambda m, x: x @ m.w, w, {"x": x})
        np.testing.assert_allclose(got, x @ w, rtol=1e-3, atol=1e-3)


def test_places_of_axes_and_their_neighbours() -> None:
    assert places([Lay(2, 10), Lay(3, 1)]).tolist() == [0, 1, 2, 10, 11, 12]
    assert places([Lay(4, 1, 1, 2, 100)]).tolist() == [0, 100, 1, 101]  # even ones first
    assert places([]).tolist() == [0]
    at = np.array([0, 1, 2, 10, 11, 20])
    assert neighbours(at).tolist() == [3, 2, 1, 2, 1, 1]


@pytest.mark.parametrize("blocks", [(2, 2), (3, 1), (4, 6)], ids=str)
def test_axes_of_one_coordinate_are_one_in_the_copy(blocks: tuple[int, int], sessions: tuple[CpuSession, ...]) -> None:
    """Positions that are blocks of positions, as k of a gradient by filters, do not repeat elements of the image."""
    (session, reference), (i, j) = sessions, blocks
    x, w, rng = drawn((2, 5, 12, 18), (7, 5, 3, 3))
    ct = rng.standard_normal((2, 7, 12 // i, 18 // j, i, j)).astype("f")

    def fn(m: Any, x: Any, ct: Any) -> Any:
        image = tg.reshape(tg.permute(ct, (0, 1, 2, 4, 3, 5)), (2, 7, 12, 18))
        return tg.grad(lambda w: (conv(x, w, padding=1) * image).sum())(m.w)

    got, count = run(session, fn, w, {"x": x, "ct": ct})
    np.testing.assert_allclose(got, run(reference, fn, w, {"x": x, "ct": ct})[0], rtol=1e-4, atol=1e-4)
    built = build_forward(Filters(w), fn, {"x": x.shape, "ct": ct.shape})
    sources: Sequence[CSource] = [k.texts["c"] for k in built.program.kernels]
    copies = [s.b.place for source in sources for s in source.steps if isinstance(s, GatheredStep)]
    assert count == 1 and all(isinstance(c, Scratch) and c.size <= 2 * 5 * 14 * 20 for c in copies), copies


def test_channels_far_apart_are_no_part_of_a_coordinate(sessions: tuple[CpuSession, ...]) -> None:
    """A copy of all that lies between the channels would be 64 times as large."""
    session, reference = sessions
    x, w, rng = drawn((2, 128, 12, 18), (7, 2, 3, 3))
    ct = rng.standard_normal((2, 7, 6, 9, 2, 2)).astype("f")

    def fn(m: Any, x: Any, ct: Any) -> Any:
        image = tg.reshape(tg.permute(ct, (0, 1, 2, 4, 3, 5)), (2, 7, 12, 18))[:, :, :10, :16]
        return tg.grad(lambda w: (conv(tg.abs(x[:, ::64]), w) * image).sum())(m.w)

    got, _ = run(session, fn, w, {"x": x, "ct": ct})
    np.testing.assert_allclose(got, run(reference, fn, w, {"x": x, "ct": ct})[0], rtol=1e-4, atol=1e-4)
    built = build_forward(Filters(w), fn, {"x": x.shape, "ct": ct.shape})
    sources: Sequence[CSource] = [k.texts["c"] for k in built.program.kernels]
    copies = [s.b.place for source in sources for s in source.steps if isinstance(s, GatheredStep)]
    assert all(not isinstance(c, Scratch) or c.size <= 2 * 2 * 12 * 18 for c in copies), copies
