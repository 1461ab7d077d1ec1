"""What one trace tells of a size that was never seen is what a trace at this size tells, or nothing."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import operator
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.compiler.build import ForwardSource, uncollected
from tracegrad.compiler.followed import Followed, follow_sizes, lengths_in
from tracegrad.compiler.numbers import numbers_of, pairs_of, values_at
from tracegrad.compiler.sized import expanded
from tracegrad.compiler.symbols import Record
from tracegrad.compiler.uniform import Pair, check_graphs
from tracegrad.ir.graph import Graph
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.growth import Sizes

SIZES = Pair(67, 71)
BOTH = Sizes((67,), (71,))
THIRD = range(1, 80)


class Weight(tg.Module):
    def __init__(self) -> None:
        self.w = self.param((4,), init=tg.init.ones())


Forward = Callable[[Any, Any], Any]
Chosen = dict[str, Forward]


@uncollected  # as all that is compiled: finalizers are instructions, too
def checked(forward: Forward) -> tuple[Followed | None, list[int]]:
    """What one trace tells of a forward, if it does; and the sizes it knows, each of which is traced here."""

    def graph_at(n: Any) -> Graph:
        try:
            graph = ForwardSource(Weight(), forward, {"x": (n, 4)}).traced().graph
        except Exception as e:
            raise UnsizedError(str(e)) from e
        return expanded(graph)

    graphs = [graph_at(n) for n in SIZES]
    check_graphs(graphs[0], graphs[1], SIZES)
    numbers, places = numbers_of(*graphs)
    followed = follow_sizes(lambda n: graph_at(n[0]), BOTH, numbers, len(places[0]), exact=0)
    known = list[int]()
    for n in THIRD if followed else ():
        told = followed.at([n]) if followed else None
        if told is None:
            continue
        graph = graph_at(n)
        check_graphs(graphs[0], graph, Pair(SIZES.a, n))
        values = values_at(graph, pairs_of(graphs[0], graphs[1]))
        assert told == {x.field: (x.dtype.numpy, values[x.at]) for x in numbers}, n
        known.append(n)
    return followed, known


def rows(x: Any) -> Any:
    return tg.sum(x, -1)


def largest(m: Any, x: Any) -> Any:
    return rows(x) * max(x.shape[0], 9) / min(x.shape[0], 5)


def clipped(m: Any, x: Any) -> Any:
    n = x.shape[0]
    return rows(x) * (1 / n if 1 / n < 0.125 else 0.125)


def remembered(m: Any, x: Any) -> Any:
    shape = copy.deepcopy(x.shape)
    return rows(x) * (2.0 if shape[0] == 13 else 1.0)


def matched(m: Any, x: Any) -> Any:
    match x.shape:
        case (8, _):
            return rows(x)
        case (int() as n, 4) if n % 3 == 0:
            return rows(x) * 3.0
        case _:
            return rows(x) * 2.0


def until(m: Any, x: Any) -> Any:
    n, y = x.shape[0], rows(x)
    while n >= 64:  # one turn at both sizes of the traces
        n, y = n // 2, y * 2.0
    return y


def padded(m: Any, x: Any) -> Any:
    return rows(x) + (-x.shape[0]) % 4


# Sizes of THIRD whose traces are equal to those at the two primes but for what grows with the size
TOLD: dict[str, tuple[Forward, set[int]]] = {
    "mean": (lambda m, x: tg.mean(x, -1) + tg.mean(x), {*THIRD}),
    "divided": (lambda m, x: rows(x) / x.shape[0] * (1 / x.shape[0] ** 2), {*THIRD}),
    "branch": (lambda m, x: rows(x) if x.shape[0] > 20 else rows(x) * 2.0, {n for n in THIRD if n > 20}),
    "equal": (lambda m, x: rows(x) if x.shape[0] == 32 else rows(x) * 2.0, {n for n in THIRD if n != 32}),
    "even": (lambda m, x: rows(x) if x.shape[0] % 2 else rows(x) * 2.0, {n for n in THIRD if n % 2}),
    "half": (lambda m, x: rows(x) * (x.shape[0] // 2), {*THIRD}),
    "largest": (largest, {n for n in THIRD if n >= 9}),
    "clipped": (clipped, {n for n in THIRD if n > 8}),
    "chained": (lambda m, x: rows(x) * (1.0 if 16 <= x.shape[0] <= 72 else 2.0), {n for n in THIRD if 16 <= n <= 72}),
    "listed": (lambda m, x: rows(x) * (x.shape[0] in (8, 16)), {n for n in THIRD if n not in (8, 16)}),
    "tuple": (lambda m, x: rows(x) if x.shape == (9, 4) else rows(x) * 2.0, {n for n in THIRD if n != 9}),
    "matched": (matched, {n for n in THIRD if n != 8 and n % 3}),
    "until": (until, {n for n in THIRD if n >= 64}),
    "padded": (padded, {n for n in THIRD if n % 4 == 3}),
    "product": (lambda m, x: rows(x) * math.prod(x.shape), {*THIRD}),
    "reshaped": (lambda m, x: tg.sum(x.reshape(x.shape[0] * 2, 2), -1).reshape(-1, 2) / (2 * len(x.shape)), {*THIRD}),
    "repeated": (
        lambda m, x: rows(x) + tg.sum(tg.broadcast_to(m.w, (x.shape[0] // 64 + 4, 4))),
        {n for n in THIRD if n > 63},
    ),
    "as many": (
        lambda m, x: rows(x) + tg.sum(tg.broadcast_to(m.w, (x.shape[0] // 64 * x.shape[0], 4))),
        {n for n in THIRD if n > 63},
    ),
    "softmax": (lambda m, x: tg.softmax(x * m.w, -1) - tg.mean(x, 0) / tg.std(x, 0), {n for n in THIRD if n > 1}),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_one_trace_tells_of_a_size_is_what_a_trace_at_it_tells(name: str) -> None:
    forward, equal = TOLD[name]
    followed, known = checked(forward)
    assert followed is not None
    assert {*known} <= equal
    assert {*known} >= equal - {1, SIZES.a, SIZES.b, 2, 4, 8}, equal - {*known}  # these can equal another axis


HELD = {67: 1.0}


@functools.cache
def cached(n: int) -> float:
    return 2.0 if n == 12 else 1.0


def refused_by_json(m: Any, x: Any) -> Any:
    try:
        return rows(x) * (2.0 if json.dumps(x.shape[0]) == "12" else 1.0)
    except TypeError:
        return rows(x)


PLAIN: Chosen = {
    "gcd": lambda m, x: rows(x) * float(math.gcd(x.shape[0], 12)),
    "float": lambda m, x: rows(x) * (2.0 if float(x.shape[0]) == 12.0 else 1.0),
    "int": lambda m, x: rows(x) * (2.0 if int(x.shape[0]) == 12 else 1.0),
    "text": lambda m, x: rows(x) * (2.0 if f"{x.shape[0]}" == "12" else 1.0),
    "percent": lambda m, x: rows(x) * (2.0 if "%d" % x.shape[0] == "12" else 1.0),  # noqa: UP031
    "of types": lambda m, x: rows(x) * (2.0 if str(x.type) == "f32[12,4]" else 1.0),
    "dict": lambda m, x: rows(x) * {12: 2.0}.get(x.shape[0], 1.0),
    "set": lambda m, x: rows(x) * (2.0 if x.shape[0] in {12} else 1.0),
    "range": lambda m, x: rows(x) * float(sum(range(x.shape[0])) % 2 == 0),
    "list": lambda m, x: rows(x) * float(len([0] * x.shape[0])),
    "length": lambda m, x: rows(x) * (2.0 if len(x) == 12 else 1.0),
    "cached": lambda m, x: rows(x) * cached(x.shape[0]),
    "numpy": lambda m, x: rows(x) * (2.0 if np.prod(x.shape) == 48 else 1.0),
    "random": lambda m, x: rows(x) * float(np.random.default_rng(x.shape[0]).random()),
    "random shape": lambda m, x: rows(x) * float(np.random.default_rng(0).random(x.shape[0]).sum()),
    "type": lambda m, x: rows(x) * ((2.0 if x.shape[0] == 12 else 1.0) if type(x.shape[0]) is int else 1.0),
    "round": lambda m, x: rows(x) * (2.0 if round(x.shape[0] / 4) == 3 else 1.0),
    "bits": lambda m, x: rows(x) * (2.0 if x.shape[0] & 1 == 0 else 1.0),
    "attribute": lambda m, x: rows(x) * (2.0 if x.shape[0].bit_length() < 4 else 1.0),
    "copied": remembered,
    "json": refused_by_json,
}


@pytest.mark.parametrize("name", PLAIN)
def test_where_a_size_becomes_a_plain_number_each_size_is_traced(name: str) -> None:
    followed, _ = checked(PLAIN[name])
    assert followed is None


Changing = Callable[[Any, Any, Any], Any]
# A forward of model, input and a value; what it usually gets, and what it gets in one trace. Both run the same code
CHANGES: dict[str, tuple[Changing, Any, Any]] = {
    "op": (lambda m, x, f: rows(x) * tg.sum(f(m.w)), tg.sin, tg.cos),
    "more ops": (lambda m, x, f: rows(x) * tg.sum(f(m.w)), tg.sin, lambda w: tg.sin(tg.sin(w))),
    "attribute": (lambda m, x, k: rows(x) * tg.sum(m.w[k]), slice(1, 2), slice(2, 3)),
    "axes": (
        lambda m, x, axes: rows(x) * tg.sum(tg.square(tg.permute(tg.reshape(m.w, (1, 2, 2)), axes))),
        (0, 2, 1),
        (1, 2, 0),
    ),
    "type": (lambda m, x, k: rows(x) * tg.sum(m.w[k]), slice(0, 2), slice(0, 3)),
    "operand": (lambda m, x, k: rows(x) * tg.sum((m.w, tg.sin(m.w))[k] - tg.cos(m.w)), 0, 1),
    "constant": (lambda m, x, c: rows(x) * c, 2.0, 3.0),
    "output": (lambda m, x, name: {name: rows(x), "other": tg.sum(x)}, "one", "two"),
    "outputs": (lambda m, x, k: {"one": (rows(x), tg.sin(rows(x)))[k], "two": tg.sin(rows(x))}, 0, 1),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("at", [2, 3])
def test_a_forward_that_changes_from_trace_to_trace_is_traced_at_each_size(name: str, at: int) -> None:
    forward, usual, other = CHANGES[name]
    given = chain([*[usual] * at, other], repeat(usual))  # how often it is traced depends on the version of Python
    followed, _ = checked(lambda m, x: forward(m, x, next(given)))
    assert followed is None


def test_numbers_are_computed_and_compared_as_plain_ones_at_every_size() -> None:
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "lt", "le", "eq", "ne", "gt", "ge"):
        compute: Any = getattr(operator, name)
        for operands in (lambda n: (n, 3), lambda n: (3, n), lambda n: (n, n), lambda n: (2 * n, n + 3)):
            record = Record([3])
            made = compute(*operands(record.sizes()[0]))
            for size in (2, 3, 4):
                values, plain = record.at([size]), compute(*operands(size))
                if isinstance(plain, bool):
                    assert made is compute(*operands(3)) and (values is not None) == (plain is made), (name, size)
                else:
                    assert values is not None and values[made.index] == plain, (name, size)
    record = Record([3])
    made = [-record.sizes()[0], +record.sizes()[0], abs(-record.sizes()[0]), pow(record.sizes()[0], 2)]
    assert [(record.at([5]) or [])[x.index] for x in made] == [-5, 5, 5, 25]
    assert not record.sizes()[0] - 3
    assert record.at([3]) and record.at([4]) is None and not record.escaped


def test_what_is_no_number_is_no_operand() -> None:
    for other in ("text", None, [1]):
        with pytest.raises(TypeError):
            Record([3]).sizes()[0] + other
    assert Record([3]).sizes()[0] != "3"


def test_a_number_that_becomes_a_plain_one_says_so() -> None:
    for use in (float, int, hash, str, round, "{}".format, lambda n: n & 6, lambda n: 6 & n, lambda n: n.bit_length()):
        record = Record([5])
        assert use(record.sizes()[0]) == use(5) and record.escaped
    record = Record([5])
    assert record.sizes()[0] & record.sizes()[0] == 5 and record.escaped
    assert not hasattr(Record([5]).sizes()[0], "__deepcopy__")


def test_a_number_of_another_trace_is_a_plain_one() -> None:
    one, other = Record([5]), Record([5])
    assert one.sizes()[0] == other.sizes()[0] and (one.sizes()[0] + other.sizes()[0]).value == 10
    assert one.at([6]) is None and one.at([5]) == [5, True, 10]


LENGTHS: dict[str, Callable[[Any, Any], Any]] = {
    "half": lambda b, t: t // 2, "half up": lambda b, t: (t + 1) // 2, "other half": lambda b, t: t - t // 2,
    "by negation": lambda b, t: -(-t // 3), "negative": lambda b, t: t + -(t // 2),
    "a fourth": lambda b, t: t // 2 // 2,
    "convolutions": lambda b, t: ((t - 1) // 2 + 1 - 1) // 2 + 1, "even": lambda b, t: 2 * (t // 2),
    "of a double": lambda b, t: (2 * t) // 6, "whole": lambda b, t: (6 * t) // 3, "before": lambda b, t: 5 - (3 - t),
    "product": lambda b, t: b * (t // 2) * 3, "sum": lambda b, t: t + t, "less": lambda b, t: 3 * t - t,
    "shifted double": lambda b, t: 2 * (t + 1) - 4, "at the end": lambda b, t: 40 - (-(t - 1) // 2),
    "half less": lambda b, t: (t + 3) - (t + 2) // 2, "through zero": lambda b, t: -(-(t - 9) // 4) + 3,
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_recorded_lengths_are_known_at_all_sizes(name: str) -> None:
    record = Record((16, 64))
    made = LENGTHS[name](*record.sizes())
    length = lengths_in(record)[made.index]
    for b, t in itertools.product((1, 2, 5, 16), range(1, 70)):
        assert length.at((b, t)) == LENGTHS[name](b, t), (b, t)


NO_LENGTHS: dict[str, Callable[[Any, Any], Any]] = {
    "rest": lambda b, t: t % 2, "quotient": lambda b, t: t / 2, "of both": lambda b, t: b + t,
    "power": lambda b, t: t**2, "nothing": lambda b, t: t - t, "zero": lambda b, t: 0 * t, "ratio": lambda b, t: t // b,
    "half of a product": lambda b, t: (b * t + 1) // 2, "fraction": lambda b, t: (3 * t) // 2,
    "float": lambda b, t: t + 0.5, "last third": lambda b, t: t - t // 3, "negative": lambda b, t: -t,
    "below": lambda b, t: t // -2,
}  # fmt: skip


@pytest.mark.parametrize("name", NO_LENGTHS)
def test_other_recorded_numbers_are_no_lengths(name: str) -> None:
    record = Record((16, 64))
    made = NO_LENGTHS[name](*record.sizes())
    assert made.index not in lengths_in(record)
