"""Where temporaries lie: never over each other while they live, in little memory, and where it costs least."""

from __future__ import annotations

import random

import pytest

from memory_check import overlaps
from tracegrad.compiler import layout
from tracegrad.compiler.layout import Beside, Lifetime, share_memory
from tracegrad.dtypes import TensorType, f32, i32

NOTHING = Beside({}, {}, set())


def drawn(seed: int) -> list[Lifetime]:
    """Values of a step: short and long ones, small and large ones."""
    rng = random.Random(seed)
    found: list[Lifetime] = []
    for key in range(rng.randint(1, 30)):
        first = rng.randint(0, 20)
        size = 32 * rng.choice([1, 1, 2, 3, 5, 8, 13])
        found.append(Lifetime(key, size, first, min(20, first + rng.choice([0, 1, 2, 8]))))
    return found


def most_alive(lifetimes: list[Lifetime]) -> int:
    """The most elements that are alive at once: no layout needs less."""
    return max(sum(t.size for t in lifetimes if t.first <= at <= t.last) for at in range(21))


@pytest.mark.parametrize("seed", range(60))
def test_random_values(seed: int) -> None:
    values = drawn(seed)
    places, sizes = share_memory(values, "temp.f32", NOTHING, 1)
    assert not overlaps(places, values) and set(places) == {v.key for v in values}
    assert list(sizes) == ["temp.f32"]
    assert sizes["temp.f32"] == max(places[v.key].offset + v.size for v in values)
    assert all(p.offset % layout.TEMP_ALIGN == 0 for p in places.values())
    assert most_alive(values) <= sizes["temp.f32"] <= 1.5 * most_alive(values)


@pytest.mark.parametrize("most", [32 * 16, 32 * 40])
@pytest.mark.parametrize("seed", range(20))
def test_no_array_is_longer_than_devices_bind(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK", 4 * most)
    values = drawn(seed)
    for most_arrays in (1, 3):
        places, sizes = share_memory(values, "temp.f32", NOTHING, most_arrays)
        assert not overlaps(places, values)
        assert max(sizes.values()) <= most
        if most_alive(values) > most:
            assert len(sizes) > 1


def test_the_array_that_grows_least_is_taken() -> None:
    """Not the shortest, nor the first."""
    apart = Beside({3: {1}, 1: {3}}, {}, set())
    values = [Lifetime(1, 128, 0, 5), Lifetime(2, 96, 0, 1), Lifetime(3, 64, 0, 5), Lifetime(4, 32, 3, 4)]
    places, sizes = share_memory(values, "temp.f32", apart, 2)
    assert sizes == {"temp.f32": 224, "temp.f32.1": 64}
    assert (places[4].array, places[4].offset) == ("temp.f32", 128)
    wide = [Lifetime(1, 160, 0, 1), Lifetime(3, 64, 0, 5), Lifetime(4, 32, 3, 4)]
    places, sizes = share_memory(wide, "temp.f32", apart, 2)
    assert sizes == {"temp.f32": 160, "temp.f32.1": 64}
    assert (places[4].array, places[4].offset) == ("temp.f32", 0)


def test_growth_is_counted_to_the_element() -> None:
    """The first array would grow, by much or by one; the second would not, and is full or not."""
    apart = Beside({1: {3}, 3: {1}}, {}, set())
    much = [Lifetime(1, 160, 0, 5), Lifetime(3, 64, 0, 1), Lifetime(4, 64, 3, 4)]
    by_one = [Lifetime(1, 168, 0, 1), Lifetime(2, 96, 3, 5), Lifetime(3, 90, 0, 1), Lifetime(4, 73, 3, 4)]
    for values, want in ((much, (160, 64)), (by_one, (168, 90))):
        places, sizes = share_memory(values, "temp.f32", apart, 2)
        assert tuple(sizes.values()) == want
        assert places[4] == places[3] == layout.Place("temp.f32.1", 0)


@pytest.mark.parametrize("seed", range(40))
def test_random_values_beside_each_other(seed: int) -> None:
    """In no more arrays than allowed, and apart where some array is free of what they should be apart from."""
    rng, values = random.Random(seed), drawn(seed)
    read: dict[int, set[int]] = {v.key: set() for v in values}
    for a in values:
        for b in values:
            if a.key < b.key and rng.random() < 0.2:
                read[a.key].add(b.key)
                read[b.key].add(a.key)
    for most_arrays in (2, 3):
        places, sizes = share_memory(values, "temp.f32", Beside(read, {}, set()), most_arrays)
        assert not overlaps(places, values) and len(sizes) <= most_arrays
        placed: list[Lifetime] = []
        for t in sorted(values, key=lambda t: (-t.size, t.first, t.key)):
            used = {places[o.key].array for o in placed}
            taken = {places[o.key].array for o in placed if o.key in read[t.key]}
            assert places[t.key].array not in taken or (taken == used and len(used) == most_arrays)
            placed.append(t)


def test_all_that_is_alive_fits_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last element."""
    monkeypatch.setattr(layout, "CHUNK", 4 * 1024)
    values = [Lifetime(1, 992, 0, 1), Lifetime(2, 32, 0, 1)]
    assert share_memory(values, "temp.f32", NOTHING, 1)[1] == {"temp.f32": 1024}
    assert len(share_memory([*values, Lifetime(3, 1, 0, 1)], "temp.f32", NOTHING, 1)[1]) == 2


def test_beside_a_value_larger_than_an_array_others_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK", 4 * 1024)
    values = [Lifetime(1, 5000, 0, 9), Lifetime(2, 512, 0, 9), Lifetime(3, 512, 0, 9)]
    none, written = {k: set[int]() for k in (1, 2, 3)}, {1: set[int](), 2: {3}, 3: {2}}
    places, sizes = share_memory(values, "temp.f32", Beside(none, written, set()), 1)
    assert sorted(sizes.values()) == [512, 512, 5000] and len({p.array for p in places.values()}) == 3


def test_a_filling_puts_values_one_after_the_other() -> None:
    """Of each role and element type. No array is empty."""
    filling = layout.Filling()
    added = [("input", "a", f32, 3), ("input", "i", i32, 2), ("const", "c", f32, 1), ("input", "b", f32, 4)]
    for role, name, dtype, n in added:
        filling.add(role, name, TensorType(dtype, (n,)))
    assert filling.places["a"] == layout.Place("input.f32", 0) and filling.places["b"] == layout.Place("input.f32", 3)
    assert filling.places["i"] == layout.Place("input.i32", 0) and filling.places["c"] == layout.Place("const.f32", 0)
    assert filling.sizes == {"input.f32": 7, "input.i32": 2, "const.f32": 1}
    empty = layout.Filling()
    assert empty.add("input", "e", TensorType(f32, (0, 3))).offset == 0 and empty.sizes == {"input.f32": 1}
    assert layout.Place("a", 5).at(3) == layout.Place("a", 8)


def test_what_a_launch_reads_and_writes_lies_apart() -> None:
    """Unless its launch touches so much else that all temporaries share an array."""
    values = [Lifetime(1, 64, 0, 1), Lifetime(2, 64, 1, 2)]
    read = {1: {2}, 2: {1}}
    places, _ = share_memory(values, "temp.f32", Beside(read, {}, set()), 3)
    assert places[1].array != places[2].array
    places, sizes = share_memory(values, "temp.f32", Beside(read, {}, {2}), 3)
    assert places[1].array == places[2].array and sizes == {"temp.f32": 128}
    places, sizes = share_memory(values, "temp.f32", Beside(read, {}, set()), 1)
    assert places[1].array == places[2].array and sizes == {"temp.f32": 128}


def test_in_several_arrays_what_is_written_together_lies_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small values share the first array, so that every launch finds them there."""
    monkeypatch.setattr(layout, "CHUNK", 4 * 1024)
    small = [Lifetime(k, 32, 0, 9) for k in (1, 2)]
    large = [Lifetime(k, 512, 0, 9) for k in (3, 4, 5)]
    none, written = {k: set[int]() for k in (3, 4, 5)}, {3: {4}, 4: {3}, 5: set[int]()}
    places, sizes = share_memory([*small, *large], "temp.f32", Beside(none, written, set()), 1)
    assert {places[k].array for k in (1, 2)} == {"temp.f32"}
    assert places[3].array != places[4].array and places[5].array in (places[3].array, places[4].array)
    assert sorted(sizes.values()) == [64, 512, 1024]


def touched(places: dict[int, layout.Place], keys: set[int]) -> int:
    """In how many arrays these values lie."""
    return len({places[key].array for key in keys})


def test_a_launch_with_little_room_finds_its_values_in_few_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six values that are written together, each half an array: apart where there is room, else two and two."""
    monkeypatch.setattr(layout, "CHUNK", 4 * 1024)
    keys = set(range(6))
    values = [Lifetime(k, 512, 0, 9) for k in keys]
    written = {k: keys - {k} for k in keys}
    none = {k: set[int]() for k in keys}
    for room, arrays in ((6, 6), (5, 5), (4, 4), (3, 3)):
        places, _ = share_memory(values, "temp.f32", Beside(none, written, set(), [(keys, room)]), 1)
        assert touched(places, keys) == arrays and not overlaps(places, values)
    # a launch of two of them may need one array, another launch with room for all does not mind
    rooms = [({0, 1}, 1), ({2, 3}, 1), (keys, 6)]
    places, _ = share_memory(values, "temp.f32", Beside(none, written, set(), rooms), 1)
    assert touched(places, {0, 1}) == touched(places, {2, 3}) == 1 and touched(places, keys) == 4


def test_small_values_take_one_array_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK", 4 * 1024)
    keys = set(range(5))
    values = [Lifetime(4, 32, 0, 9), *(Lifetime(k, 512, 0, 9) for k in range(4))]
    beside = {k: keys - {k} for k in keys}
    for room, arrays in ((5, 5), (4, 4), (3, 3)):
        places, _ = share_memory(values, "temp.f32", Beside(beside, beside, set(), [(keys, room)]), 1)
        assert touched(places, keys) == arrays, room


def test_values_that_one_array_does_not_hold_keep_to_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """384 elements are alive at once, which one array has, but gaps between values take more."""
    monkeypatch.setattr(layout, "CHUNK", 4 * 384)
    lives = [(128, 0, 3), (96, 3, 6), (160, 3, 5), (192, 1, 1), (64, 5, 7)]
    values = [Lifetime(k, *life) for k, life in enumerate(lives)]
    assert most_alive(values) == 384
    none = {v.key: set[int]() for v in values}
    for room, arrays in ((2, 2), (1, 1)):
        places, sizes = share_memory(values, "temp.f32", Beside(none, none, set(), [({1, 4}, room)]), 1)
        assert touched(places, {1, 4}) == arrays and len(sizes) == 2 and not overlaps(places, values)


def test_overlaps_are_found() -> None:
    """Pairs that share an element in a launch in which both live."""
    a, b = Lifetime(1, 32, 0, 2), Lifetime(2, 32, 2, 4)
    at = layout.Place("temp.f32", 0)
    assert overlaps({1: at, 2: at}, [a, b]) == [(1, 2)] and overlaps({1: at, 2: at}, [b, a]) == [(2, 1)]
    assert overlaps({1: at.at(31), 2: at}, [a, b]) == overlaps({1: at, 2: at.at(31)}, [a, b]) == [(1, 2)]
    assert not overlaps({1: at.at(32), 2: at}, [a, b]) and not overlaps({1: at, 2: at.at(32)}, [a, b])
    assert not overlaps({1: at, 2: layout.Place("temp.f32.1", 0)}, [a, b])
    assert not overlaps({1: at, 2: at}, [a, Lifetime(2, 32, 3, 4)])
    assert not overlaps({1: at, 2: at}, [Lifetime(1, 32, 5, 6), b])
