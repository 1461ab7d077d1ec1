"""Indices as source text, computed as C and WGSL compute them: division rounds towards zero, nothing strays."""

from __future__ import annotations

import ast
import itertools
import random
import re
from typing import Any

import pytest

from indices import evaluate_index
from tracegrad.dtypes import bool_, f32, i32, u32
from tracegrad.kernels.expr import Guard, Index, Space
from tracegrad.render import c_values
from tracegrad.render.emit import Emitter, literal

SIZES = {"i": 4, "j": 3, "k": 5}


class Truncating(ast.NodeTransformer):
    """Division and remainder of C."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = {ast.Div: "quotient", ast.Mod: "remainder"}.get(type(node.op))
        return ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], []) if name else node


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a - quotient(a, b) * b


def compiled(text: str) -> Any:
    """A C expression of integers, with at most one choice by `held`, as Python code."""
    text = re.sub(r"\(held \? (.+) : (-?\d+)\)", r"((\1) if held else (\2))", text).replace("(long)", "")
    tree = ast.parse(re.sub(r"(\d)L\b", r"\1", text), mode="eval")
    return compile(ast.fix_missing_locations(Truncating().visit(tree)), "<text>", "eval")


def computed(code: Any, point: dict[str, int], **more: Any) -> int:
    scope = {"quotient": quotient, "remainder": remainder, "min": min, "max": max}
    return eval(code, scope, {**point, **more})


def points() -> list[dict[str, int]]:
    return [dict(zip(SIZES, p, strict=True)) for p in itertools.product(*map(range, SIZES.values()))]


def drawn(rng: random.Random, space: Space) -> Index:
    """Sums of multiples of variables, and of quotients and remainders of such sums, some of them negative."""

    def linear() -> Index:
        x = space.number(rng.randint(-9, 9))
        for name in rng.sample(list(SIZES), rng.randint(1, 3)):
            x = x + space.var(name, SIZES[name]) * rng.choice([-7, -2, -1, 1, 2, 3, 8])
        return x

    x = linear() if rng.random() < 0.7 else space.number(rng.randint(-3, 3))
    for _ in range(rng.randint(0, 2)):
        d = rng.randint(2, 7)
        part = linear() // d if rng.random() < 0.5 else linear() % d
        x = x + part * rng.choice([-3, -1, 1, 2])
    return x


@pytest.mark.parametrize("seed", range(30))
def test_indices_are_computed_as_meant(seed: int) -> None:
    """And bounds hold."""
    rng, space = random.Random(seed), Space()
    for _ in range(5):
        x = drawn(rng, space)
        code = compiled(Emitter(lambda slot, at: at, ()).index(x, loop=False))
        for point in points():
            assert computed(code, point) == evaluate_index(x, point), x
            assert x.lo <= evaluate_index(x, point) <= x.hi


@pytest.mark.parametrize("seed", range(20))
def test_in_a_loop_what_does_not_vary_is_added_up_before(seed: int) -> None:
    rng, space = random.Random(seed), Space()
    for inner in ("i", "j", "k"):
        x = drawn(rng, space)
        emitter = Emitter(lambda slot, at: at, (inner,))
        code = compiled(emitter.index(x, loop=True))
        for point in points():
            before = {"_": 0}
            for line in emitter.outer:
                name, text = re.fullmatch(r"let (\w+) = (.+);", line).groups()  # type: ignore[union-attr]
                assert not re.search(rf"\b{inner}\b", text)
                before[name] = computed(compiled(text), point, **before)
            assert computed(code, point, **before) == evaluate_index(x, point), x


def holds(guard: Guard, point: dict[str, int]) -> bool:
    at = evaluate_index(guard.index, point)
    return guard.lo <= at < guard.hi and at % guard.step == 0


@pytest.mark.parametrize("seed", range(20))
def test_guards_hold_where_they_should(seed: int) -> None:
    """Comparisons that bounds decide are not written."""
    rng, space = random.Random(seed), Space()
    for _ in range(5):
        x, lo, step = drawn(rng, space), rng.randint(-12, 6), rng.choice([1, 1, 2, 3])
        hi = lo + rng.randint(1, 20)
        guard = space.guard(x, lo, hi, step)
        if not isinstance(guard, Guard):
            found = [evaluate_index(x, p) for p in points()]
            assert {lo <= n < hi and n % step == 0 for n in found} == {guard}
            continue
        text = Emitter(lambda slot, at: at, ())._guards([guard], False)
        assert (">=" in text) == (x.lo < guard.lo) and ("<" in text.replace(">=", "")) == (x.hi >= guard.hi)
        code = compiled(text)
        assert [bool(computed(code, p)) for p in points()] == [holds(guard, p) for p in points()]


@pytest.mark.parametrize("last", ["i", "k", "none"])
@pytest.mark.parametrize("seed", range(30))
def test_no_address_strays(seed: int, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the guards hold it is the index; elsewhere it lies in the array, or in the memory around it."""
    monkeypatch.setattr(c_values, "MARGIN", 4)
    rng, space = random.Random(seed), Space()
    for _ in range(6):
        x = drawn(rng, space)
        values = [evaluate_index(x, p) for p in points()]
        size = rng.choice([1, 7, max(1, max(values) - 2), max(1, max(values) + 1)])
        guard = space.guard(x, 0, size, 1)
        if not isinstance(guard, Guard):
            continue
        fixed = x - space.index({a: k for a, k in x.terms if c_values.moves(a, last)}, 0)
        other = space.guard(fixed, rng.randint(-9, 0), rng.randint(1, 9), 1)
        guards = [guard, *([other] if isinstance(other, Guard) else [])]
        if rng.random() < 0.5:  # where only what is fixed is guarded, and so tightly that all stays inside
            moving = x - fixed
            tight = space.guard(fixed, -moving.lo, size - moving.hi, 1)
            guards = [tight] if isinstance(tight, Guard) else guards
        writer = c_values.CEmitter(lambda slot, at: at, (), [size], last, form="")
        text = writer.address(guards, "held", space.load(0, x, f32), False)
        code = compiled(text)
        for point, value in zip(points(), values, strict=True):
            held = all(holds(g, point) for g in guards)
            at = computed(code, point, held=held)
            assert -4 <= at < size + 4, (text, point)
            assert at == value or not held, (text, point)


def test_addresses_are_chosen_outside_the_innermost_loop() -> None:
    """If what moves in it fits the array; else, or if a guard moves in it, the index is clamped."""
    space = Space()
    i, k = space.var("i", 9000), space.var("k", 5)
    x = i + k - 4500

    def text(size: int, guard: Guard | bool) -> str:
        assert isinstance(guard, Guard)
        return c_values.CEmitter(lambda slot, at: at, (), [size], "k", form="").address(
            [guard], "held", space.load(0, x, f32), False
        )

    assert text(5, space.guard(i, 4500, 4501, 1)).startswith("(held ? ")
    assert text(4, space.guard(i, 4500, 4501, 1)).startswith("min(")
    assert text(5, space.guard(x, 0, 5, 1)).startswith("min(")
    assert "held" not in text(404 + 4096, space.guard(x, 0, 5, 1))
    near = i - 4096
    writer = c_values.CEmitter(lambda slot, at: at, (), [9000 - 2 * 4096], "k", form="")
    assert writer.address([], "held", space.load(0, near, f32), False) == writer.index(near, False)


def test_what_is_divided_is_moved_up_no_further_than_needed() -> None:
    """Else it could leave the 32 bits of a GPU."""
    space = Space()
    i = space.var("i", 9)
    emitter = Emitter(lambda slot, at: at, ())
    assert emitter.index(i // 4, loop=False) == "(i / 4)"
    assert emitter.index((i * -1) // 5, loop=False) == "((i * (-1) + 10) / 5 - 2)"
    assert emitter.index((i * -1) % 5, loop=False) == "((i * (-1) + 10) % 5)"


def test_comparisons_are_of_32_bits_where_these_are_enough() -> None:
    space = Space()
    i = space.var("i", 9)
    writer = c_values.CEmitter(lambda slot, at: at, (), [], "i", form="")
    for edge, x in ((2**31 - 9, i + (2**31 - 9)), (-(2**31), i - 2**31)):
        assert writer.compared(x, False) == f"(int)({writer.index(x, False)})", edge
    for edge, x in ((2**31 - 8, i + (2**31 - 8)), (-(2**31) - 1, i - (2**31 + 1))):
        assert writer.compared(x, False) == writer.index(x, False), edge


def test_literals() -> None:
    """C has no negative numbers, only minus: the smallest is a difference."""
    assert [literal(n, i32) for n in (0, 5, 2**31 - 1)] == ["0", "5", "2147483647"]
    assert [literal(n, i32) for n in (-1, 1 - 2**31)] == ["(-1)", "(-2147483647)"]
    assert literal(-(2**31), i32) == "(-2147483647 - 1)"
    assert [literal(n, u32) for n in (0, -1, 2**32 - 1)] == ["0u", "4294967295u", "4294967295u"]
    assert [literal(b, bool_) for b in (True, False)] == ["true", "false"]
