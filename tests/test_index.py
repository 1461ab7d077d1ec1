"""The normal form of indices is as simple as bounds allow, and guards are decided at the very edge."""

from __future__ import annotations

import itertools

import pytest

from indices import evaluate_index
from tracegrad.dtypes import f32, i32
from tracegrad.kernels.coordinates import ravel, regroup, unravel
from tracegrad.kernels.expr import Guard, Index, Space, atoms_of, walk


def values(index: Index, *sizes: tuple[str, int]) -> list[int]:
    """All values of an index, in row-major order of its variables."""
    names = [name for name, _ in sizes]
    points = itertools.product(*[range(n) for _, n in sizes])
    return [evaluate_index(index, dict(zip(names, p, strict=True))) for p in points]


@pytest.mark.parametrize("a", range(1, 6))
@pytest.mark.parametrize("size", range(1, 7))
def test_bounds_decide_division(a: int, size: int) -> None:
    """(a i + j) // a is i exactly where 0 <= j < a, and the same through multiples of a."""
    space = Space()
    i, j = space.var("i", 12), space.var("j", size)
    x = i * a + j
    for m in (1, 2, 3):
        whole, rest = x // (a * m), x % (a * m)
        if size <= a:
            assert whole is i // m
            assert rest is (i % m) * a + j
        assert values(whole, ("i", 12), ("j", size)) == [n // (a * m) for n in values(x, ("i", 12), ("j", size))]
        assert values(rest, ("i", 12), ("j", size)) == [n % (a * m) for n in values(x, ("i", 12), ("j", size))]
    assert (x // a is i) == (size <= a)


def test_division_of_shifted_variables() -> None:
    """A constant is part of the remainder: 0 and d - 1 are inside, -1 and d are not."""
    space = Space()
    i = space.var("i", 7)
    for shift in range(-6, 7):
        q, r = (i * 6 + shift) // 6, (i * 6 + shift) % 6
        assert q is i + shift // 6
        assert r is space.number(shift % 6)
    j = space.var("j", 3)
    for shift in range(5):
        inside = j.lo + shift >= 0 and j.hi + shift < 4
        assert ((i * 4 + j + shift) // 4 is i) == inside
        assert ((i * 4 + j + shift) % 4 is j + shift) == inside


def test_a_flat_index_in_two_parts_is_seen_through_the_axes_of_its_shape() -> None:
    space = Space()
    flat = space.var("i", 677) * 208 + space.var("j", 208)
    assert ravel(unravel(flat, (26, 677, 8)), (26, 677, 8), space) is flat


def test_quotients_of_quotients_are_one() -> None:
    space = Space()
    i, j = space.var("i", 100), space.var("j", 3)
    assert (i // 3) // 5 is i // 15
    assert (i // 3 + j * 2 + 4) // 5 is (i + j * 6 + 12) // 15
    assert (i % 30) // 5 is not i // 5
    k, m = space.var("k", 2**20), space.var("l", 2**12)
    assert (k + m // 2**11) // 7 is not (k * 2**11 + m) // (2**11 * 7)  # whose dividend needs more than 30 bits
    assert i // 1 is i and i % 1 is space.number(0) and i // 100 is space.number(0) and i % 100 is i
    assert (i + j * 0) is i and i * 1 is i and i + 0 is i
    assert (i // 7) * 14 + (i % 7) * 2 is i * 2
    assert (i // 7) * 13 + (i % 7) * 2 is not i * 2
    assert (i - i) is space.number(0)
    assert (i % 7) // 7 is space.number(0) and (i % 7) % 7 is i % 7
    n = space.var("n", 6)
    falling = n + (n * -1 + 5) // 2  # in [2, 5], which only the dividend of one quotient shows
    assert falling // 6 is space.number(0)
    assert values(falling % 6, ("n", 6)) == values(falling, ("n", 6))


def test_division_of_falling_variables() -> None:
    space = Space()
    i, j = space.var("i", 6), space.var("j", 4)
    for a, b, d, shift in itertools.product((-8, -4, 4), (-3, -1, 1), (4, 8, 12), (0, 3)):
        x = i * a + j * b + shift
        assert values(x // d, ("i", 6), ("j", 4)) == [n // d for n in values(x, ("i", 6), ("j", 4))]
        assert values(x % d, ("i", 6), ("j", 4)) == [n % d for n in values(x, ("i", 6), ("j", 4))]


@pytest.mark.parametrize("c", [1, 2, 3, -2])
def test_bounds_are_the_extremes_of_a_variable(c: int) -> None:
    space = Space()
    for n, shift in itertools.product(range(1, 5), (-3, 0, 2)):
        x = space.var("i", n) * c + shift
        found = values(x, ("i", n))
        assert (x.lo, x.hi) == (min(found), max(found))
        space = Space()


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("c", [1, 2, -1, 4, 6])
def test_guards_are_decided_at_the_edge(c: int, step: int) -> None:
    """True or False if bounds and divisors say so, else the condition itself; equal conditions are one object."""
    for n, shift in itertools.product((2, 4), range(-3, 4)):
        space = Space()
        x = space.var("i", n) * c + shift
        found = values(x, ("i", n))
        for lo, hi in itertools.combinations(range(-5, 7), 2):
            guard = space.guard(x, lo, hi, step)
            divides = c % step == 0 and shift % step == 0
            never = c % step == 0 and shift % step != 0
            if max(found) < lo or min(found) >= hi or never:
                assert guard is False
            elif divides and min(found) >= lo and max(found) < hi:
                assert guard is True
            else:
                assert isinstance(guard, Guard) and space.guard(x, lo, hi, step) is guard
                assert (guard.lo, guard.hi, guard.step) == (lo, hi, 1 if divides else step)
            assert space.guard(shift, lo, hi, step) is (lo <= shift < hi and shift % step == 0)


def test_equal_values_are_one_object() -> None:
    """Literals by their text: 0.0 is not -0.0, NaN is NaN."""
    space = Space()
    nan = float("nan")
    assert space.const(0.0, f32) is not space.const(-0.0, f32)
    assert space.const(nan, f32) is space.const(nan, f32)
    assert space.const(1, i32) is not space.const(1, f32)
    i = space.var("i", 4)
    assert space.of_index(i - i + 3) is space.const(3, i32)
    assert space.of_index(i).op == "index"
    load = space.load(0, i, f32)
    assert space.inside([], load) is load
    guard = space.guard(i, 1, 3, 1)
    assert isinstance(guard, Guard)
    assert space.inside([guard, guard], load) is space.inside([guard], load) is not load


def test_indices_read_from_memory_are_clamped_to_the_axis() -> None:
    """Bounds of 0 and size - 1 decide guards; equal values of equal sizes are one index."""
    space = Space()
    at = space.load(0, space.var("i", 4), i32)
    x = space.dynamic(at, 5)
    assert (x.lo, x.hi, x.const, len(x.terms)) == (0, 4, 0, 1)
    assert space.guard(x, 0, 5, 1) is True and space.guard(x, 5, 9, 1) is False and space.guard(x - 5, 0, 9, 1) is False
    assert isinstance(space.guard(x, 1, 5, 1), Guard) and isinstance(space.guard(x, 0, 4, 1), Guard)
    assert space.dynamic(at, 5) is x is not space.dynamic(at, 6)
    assert x // 5 is space.number(0) and x % 5 is x
    assert set(walk([space.load(1, x, f32)])) == {at, space.load(1, x, f32)}


def test_walks_give_operands_first_and_each_once() -> None:
    """Also values inside of indices, of guards and of quotients."""
    space = Space()
    i = space.var("i", 4)
    at = space.load(0, i, i32)
    x = space.dynamic(at, 9)
    guard = space.guard(x + i, 2, 5, 1)
    assert isinstance(guard, Guard)
    load = space.load(1, (x + 1) // 2, f32)
    total = space.value("add", f32, None, (load, load))
    root = space.inside([guard], total)
    assert list(walk([root, total])) == [at, load, total, root] or list(walk([total, root])) == [at, load, total, root]
    assert list(walk([])) == []


def test_coordinates_regroup_axis_by_axis() -> None:
    """Axes of equal products stay as they are; no flat index of everything."""
    space = Space()
    a, b, c = (space.var(n, size) for n, size in (("a", 4), ("b", 6), ("c", 5)))
    assert regroup((a, b, c), (4, 6, 5), (4, 1, 6, 5), space) == (a, space.number(0), b, c)
    assert regroup((a, b, c), (4, 6, 5), (24, 5), space) == (a * 6 + b, c)
    assert regroup((a, b, c), (4, 6, 5), (2, 2, 6, 5), space) == (a // 2, a % 2, b, c)
    assert regroup((a, b, c), (4, 6, 5), (8, 3, 5), space) == (a * 2 + b // 3, b % 3, c)
    assert ravel((a, b, c), (4, 6, 5), space) is a * 30 + b * 5 + c
    assert unravel(a * 30 + b * 5 + c, (4, 6, 5)) == (a, b, c)


def test_padding_is_seen_through_reshapes() -> None:
    """Guards, not bounds, keep the flat index in range: no remainder by the whole size may hide a sum of axes."""
    space = Space()
    c, i, k = (space.var(n, size) for n, size in (("c", 6), ("i", 8), ("k", 3)))
    at = i + k - 1  # a window of 3 on 8 elements
    for shape in ((2, 24), (2, 3, 4, 2)):
        assert ravel(regroup((c, at), (6, 8), shape, space, guarded=True), shape, space) is c * 8 + at
        assert ravel(regroup((c, at), (6, 8), shape, space), shape, space) is not c * 8 + at
    assert unravel(at, (1, 8), guarded=True) == (space.number(0), at % 8)


def test_indices_print_as_sums() -> None:
    """What explain and debug texts show."""
    space = Space()
    i, j = space.var("i", 9), space.var("j", 5)
    shown = [space.number(0), space.number(3), i, i * 2 + 3, j + i * 2, (i + 1) // 2, (i + 1) % 2]
    assert list(map(repr, shown)) == ["0", "3", "i", "i*2 + 3", "i*2 + j", "((i + 1) // 2)", "((i + 1) % 2)"]
    assert list(map(repr, [i // 2, (i + j) % 3])) == ["(i // 2)", "((i + j) % 3)"]
    assert [repr(a) for a in atoms_of((i + 1) // 2 + j)] == ["j", "((i + 1) // 2)", "i"]
