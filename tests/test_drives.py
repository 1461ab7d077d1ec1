"""The worker's turns on an event loop, as in a browser's tab: here with NumPy, on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import sine
from tracegrad.runtime import tab

SINE = sine(batch=8, width=4)


@pytest.fixture
def in_tab(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]:
    """Run a coroutine as where there are no threads, and nothing can wait but `await`."""

    def run(body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        monkeypatch.setattr(tab, "IN_TAB", True)
        monkeypatch.setattr(tab, "can_wait", lambda: False)
        return asyncio.run(body())

    return run


def batches(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"x": (x := rng.uniform(-3, 3, (8, 1)).astype(np.float32)), "y": np.sin(x)} for _ in range(n)]


def compiled() -> tg.CompiledTraining:
    return tg.compile(**SINE.arguments(), seed=1, device="cpu")


def test_steps_give_what_a_thread_gives(in_tab: Any) -> None:
    inputs = batches(6)
    with compiled() as train:
        want = [train.step(x).loss for x in inputs]

    async def body() -> list[float]:
        train = compiled()
        losses = [(await train.step(x)).loss for x in inputs[:2]]
        queued = [train.step(x) for x in inputs[2:4]]
        losses += [(await p).loss for p in queued]
        stacked = {name: np.stack([x[name] for x in inputs[4:]]) for name in inputs[0]}
        r = await train.run_steps(2, stacked)
        assert isinstance(r.losses, np.ndarray) and r.step == 6
        train.close()
        return [*losses, *r.losses]

    assert in_tab(body) == want


def test_steps_behind_a_failed_one_are_run_again(in_tab: Any) -> None:
    inputs = batches(4)
    inputs[1]["y"] = np.full_like(inputs[1]["y"], np.nan)

    async def body() -> list[Any]:
        train = compiled()
        results = [await p for p in [train.step(x) for x in inputs]]
        train.close()
        return results

    first, bad, *rest = in_tab(body)
    assert isinstance(bad.error, tg.NonFiniteError) and "input 'y'" in str(bad.error)
    assert [r.step for r in (first, *rest)] == [1, 2, 3]


def test_close_answers_all(in_tab: Any) -> None:
    async def body() -> list[Any]:
        train = compiled()
        queued = [train.step(x) for x in batches(3)]
        seen: list[Any] = []
        queued[0].add_done_callback(lambda p: seen.append(p.result()))
        train.close()
        train.close()
        results = [await p for p in queued] + [await train.step(batches(1)[0])]
        await asyncio.sleep(0)
        return [*results, *seen]

    assert [type(r).__name__ for r in in_tab(body)] == ["Aborted"] * 5


def test_an_error_while_it_begins_closes_it(in_tab: Any) -> None:
    async def body() -> Any:
        train = compiled()
        await train.step(batches(1)[0])
        train.worker.begin(lambda _: 1 / 0)
        return await train.step(batches(1)[0])

    assert "ZeroDivisionError" in in_tab(body).reason
