"""What pages compute from the sizes of a call, `compiler/portable.py`, is what traces at these sizes give."""

# pyright: basic

from __future__ import annotations

import json
import math
import operator
from itertools import product
from typing import Any

import numpy as np
import pytest

import test_rooms
import tracegrad as tg
from tracegrad.compiler.build import StepSource
from tracegrad.compiler.portable import portable
from tracegrad.compiler.rooms import Rooms, build_rooms
from tracegrad.compiler.tracing import TensorType
from tracegrad.dtypes import f32
from tracegrad.hypers import PREFIX
from tracegrad.kernels.form import UnsizedError
from tracegrad.optim import sgd

ROOM = {"B": 5, "T": 9}
ALL = list(product(range(2, 6), range(2, 10)))


def rooms_of(loss: Any) -> Rooms:
    model = test_rooms.Model()

    def at(n: Any) -> StepSource:
        return StepSource(model, loss, {"x": TensorType(f32, (*n, test_rooms.D))}, sgd(0.01))

    return build_rooms(at, ROOM, None, gpu=True)


def as_a_page(told: dict[str, Any], sizes: tuple[int, ...]) -> dict[str, Any]:
    """Numbers, specs and results at some sizes, from the data alone."""
    values = list(sizes)

    def of(x: Any) -> Any:
        if isinstance(x, dict):
            return values[x["at"]] if x.keys() == {"at"} else {name: of(y) for name, y in x.items()}
        return [of(y) for y in x] if isinstance(x, list) else x

    for name, *arguments in told["instructions"]:
        values.append(float(*of(arguments)) if name == "float" else getattr(operator, name)(*of(arguments)))
    return {part: of(told[part]) for part in ("numbers", "specs", "results")}


def traced(rooms: Rooms, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The same from a trace of the user's functions at these sizes."""
    fitted = rooms._replace(followed=None, shown={}).at(sizes)
    assert fitted is not None
    numbers = {name.removeprefix(PREFIX): value for name, (_, value) in fitted.built.numbers.items()}
    specs, results = rooms.shapes_at(sizes)
    return {"numbers": numbers, "specs": specs, "results": {name: cut._asdict() for name, cut in results.items()}}


def outputs(m: Any, x: Any) -> Any:
    n, t, _ = x.shape
    y = m.b(x)
    aux = {"rows": y[:, -1], "flat": y.reshape(-1), "twice": tg.concat([x, x], 1), "last": tg.argmax(x, 1)}
    at = tg.cast(tg.arange(n * t), tg.f32).reshape(n, t) / (t * 2 - 1)
    return (y[:, :, 0] * at).mean() * (3 - n) + tg.sum(x) / abs(n - 7) ** 2 + x[:, 0].sum() * (t // 2 - t % 3), aux


@pytest.mark.parametrize("loss", [*map(test_rooms.__dict__.get, ("causal", "lstm", "dropped", "summed")), outputs])
def test_data_of_a_page_gives_what_a_trace_gives(loss: Any) -> None:
    rooms = rooms_of(loss)
    told = json.loads(json.dumps(portable(rooms, (2, 2))))
    assert told["names"] == ["B", "T"]
    for sizes in ALL[:: 1 if loss is outputs else 5]:
        found, known = as_a_page(told, sizes), traced(rooms, sizes)
        assert found["numbers"].keys() == known["numbers"].keys()
        for name, value in known["numbers"].items():
            assert np.float32(found["numbers"][name]) == np.float32(value), (name, sizes)
        for part in ("specs", "results"):
            assert found[part] == json.loads(json.dumps(known[part])), (part, sizes)


def scaled(scale: Any) -> Any:
    def loss(m: Any, x: Any) -> Any:
        return m.b(x).square().mean() * scale(*x.shape[:2])

    return loss


SAME = {
    "two formulas": lambda n, t: 2 * t if t > 4 else t + t,
    "three formulas": lambda n, t: 2 * t if t > 6 else t + t if t > 3 else t * 4 / 2,
    "both sizes decide": lambda n, t: 2 * t if t > n else t + t,
    "one size decides": lambda n, t: (n * t if t == 3 else t * n) + 0.0,
}


@pytest.mark.parametrize("scale", SAME.values(), ids=SAME)
def test_branches_that_compute_the_same_are_served(scale: Any) -> None:
    rooms = rooms_of(scaled(scale))
    told = portable(rooms, (2, 2))
    for sizes in ALL[::3]:
        numbers = as_a_page(told, sizes)["numbers"]
        for name, value in traced(rooms, sizes)["numbers"].items():
            assert math.isclose(numbers[name], value, rel_tol=1e-6), (name, sizes)


OTHER = {
    "a limit": (lambda n, t: 1 / max(t, 4), (2, 2)),
    "one size": (lambda n, t: 2 if (n, t) == (4, 6) else 1, (4, 6)),
    "the size below the room": (lambda n, t: 2 if (n, t) == (5, 8) else 1, (5, 8)),
    "the last of three branches": (lambda n, t: t if t > 6 else t + 0 if t > 3 else t * 3, (2, 2)),
    "one size of a branch": (lambda n, t: t if t > 4 else t * (t + 1) / 4, (2, 2)),
    "a division by zero": (lambda n, t: 1 / (t - 7), (2, 7)),
    "a plain int": (lambda n, t: t if t > 2 else len(range(t)), (2, 2)),
}


@pytest.mark.parametrize(("scale", "at"), OTHER.values(), ids=OTHER)
def test_other_numbers_at_a_size_are_refused(scale: Any, at: tuple[int, int]) -> None:
    rooms = rooms_of(scaled(scale))
    with pytest.raises(UnsizedError, match=f"at B={at[0]}, T={at[1]} the model computes"):
        portable(rooms, (2, 2))


def test_another_graph_at_a_size_is_refused() -> None:
    def loss(m: Any, x: Any) -> Any:
        return m.b(tg.tanh(x) if x.shape[1] == 5 else tg.sin(x)).mean()

    with pytest.raises(UnsizedError, match="at B=2, T=5 the model computes differently"):
        portable(rooms_of(loss), (2, 2))
    assert portable(rooms_of(loss), (2, 6))["names"] == ["B", "T"], "from a least size on, it is served"
