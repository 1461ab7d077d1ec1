"""Pending, its three outcomes, single_flight, and the worker that resolves them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings

import numpy as np
import pytest

from tracegrad.engine.pending import Pending, resolved
from tracegrad.engine.results import Aborted, Captures, Completed, CompletedRun, CompletedStep, Failed, failure
from tracegrad.engine.single_flight import single_flight
from tracegrad.errors import AbortedError, DeviceError, InputError, NonFiniteError


def step(loss=0.5, number=3):
    return CompletedStep(Captures(), loss, {"accuracy": np.float32(0.75)}, number, np.float32([loss]))


def test_shortcuts_wait_and_give_the_parts():
    p = Pending("step")
    threading.Timer(0.02, p.resolve, [step()]).start()
    assert not p.done()
    assert p.loss == 0.5
    assert p.done() and p.step == 3 and p.aux["accuracy"] == 0.75 and p.losses.shape == (1,)


def test_shortcuts_raise_the_error_of_a_failed_and_aborted_error():
    error = NonFiniteError("the loss is nan")
    with pytest.raises(NonFiniteError, match="nan"):
        _ = resolved(Failed(error)).loss
    with pytest.raises(AbortedError, match="step was aborted: closed"):
        _ = resolved(Aborted("closed"), "step").output


def test_results_match():
    def kind(result):
        match result:
            case Completed(loss=loss):
                return f"loss {loss}"
            case Completed(output=output):
                return f"output {output}"
            case Aborted(reason):
                return reason
            case Failed(error):
                return type(error).__name__

    assert kind(step()) == "loss 0.5"
    assert kind(CompletedRun(Captures(), 7)) == "output 7"
    assert kind(Aborted("closed")) == "closed"
    assert kind(Failed(InputError("x"))) == "InputError"
    match step():
        case Completed(loss):
            assert loss == 0.5


def test_result_times_out():
    with pytest.raises(TimeoutError, match="no result after"):
        Pending("step").result(timeout=0.01)


def test_a_result_is_set_once():
    p = resolved(Aborted("first"))
    p.resolve(Aborted("second"))
    assert p.result() == Aborted("first")


def test_a_pending_shows_what_came_of_it():
    p = Pending("step")
    assert repr(p) == "<Pending step: under way>"
    p.resolve(step(0.25))
    assert repr(p) == "<Pending step: CompletedStep, loss 0.25>"
    assert repr(resolved(Aborted("closed"), "run")) == "<Pending run: Aborted>"


def test_callbacks_run_once_before_and_after_the_result():
    p, seen = Pending("step"), []
    p.add_done_callback(lambda q: seen.append(q.result().loss))
    p.resolve(step())
    p.add_done_callback(lambda q: seen.append(q.result().loss))
    assert seen == [0.5, 0.5]


def test_a_callback_that_raises_is_reported_and_harms_nobody():
    p, seen = Pending("step"), []
    p.add_done_callback(lambda q: 1 / 0)
    p.add_done_callback(lambda q: seen.append(1))
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        p.resolve(step())
    assert seen == [1]


def test_await_gives_the_result_without_blocking_the_loop():
    async def main():
        p = Pending("step")
        threading.Timer(0.05, p.resolve, [step()]).start()
        ticks = 0

        async def tick():
            nonlocal ticks
            while not p.done():
                ticks += 1
                await asyncio.sleep(0.005)

        result, _ = await asyncio.gather(p, tick())
        return result, ticks, await p

    result, ticks, again = asyncio.run(main())
    assert result.loss == 0.5 and again is result and ticks > 2


def test_an_abandoned_await_is_harmless():
    async def main(p):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(wrap(p)), 0.01)

    async def wrap(p):
        return await p

    p = Pending("step")
    asyncio.run(main(p))
    p.resolve(step())  # the loop is closed by now


def test_a_failed_that_nobody_looked_at_is_reported_once():
    gc.collect()  # those of other tests
    with pytest.warns(RuntimeWarning, match="step failed and its result was never read.*InputError: bad") as caught:
        resolved(Failed(InputError("bad")), "step")
        gc.collect()
    assert len(caught) == 1


def catch(p):
    with pytest.raises(InputError):
        _ = p.loss


@pytest.mark.parametrize("look", [lambda p: p.result(), catch])
def test_a_failed_that_was_looked_at_is_not_reported(look):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = resolved(Failed(InputError("bad")))
        look(p)
        del p
        gc.collect()


def test_foreign_errors_are_device_errors_with_a_cause():
    cause = MemoryError("no room")
    error = failure(cause, "step").error
    assert isinstance(error, DeviceError) and error.__cause__ is cause and "MemoryError: no room" in str(error)
    assert failure(InputError("x"), "step").error.args == ("x",)


def test_per_head_splits_heads_with_and_without_a_batch():
    maps = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    captures = Captures({"attn": maps, "one": maps[0], "flat": maps[0, 0]})
    heads = captures.per_head("attn")
    assert len(heads) == 3 and heads[1].shape == (2, 4, 4)
    np.testing.assert_array_equal(heads[1], maps[:, 1])
    np.testing.assert_array_equal(captures.per_head("one")[2], maps[0, 2])
    with pytest.raises(InputError, match="2 dimensions"):
        captures.per_head("flat")
    with pytest.raises(KeyError, match=r"there is no 'x'; there are: attn, one, flat"):
        captures["x"]


class TestSingleFlight:
    """At most one running, one queued, the newest wins."""

    def test_displaced_calls_are_aborted(self):
        running, calls = {}, []

        def fn(x):
            calls.append(x)
            running[x] = Pending(str(x))
            return running[x]

        call = single_flight(fn)
        a, b, c = call("a"), call("b"), call("c")
        assert calls == ["a"] and isinstance(b.result(), Aborted) and not c.done()
        running["a"].resolve(step(1.0))
        assert calls == ["a", "c"] and a.loss == 1.0
        running["c"].resolve(step(2.0))
        assert c.loss == 2.0
        d = call("d")
        running["d"].resolve(step(3.0))
        assert d.loss == 3.0

    def test_an_error_in_a_queued_call_reaches_its_caller(self):
        first = Pending("first")

        def fn(x):
            if x == "bad":
                raise ValueError("no such thing")
            return first

        call = single_flight(fn)
        a, bad = call("good"), call("bad")
        first.resolve(step())
        assert a.loss == 0.5
        assert isinstance(bad.result(timeout=1).error, ValueError)
        assert call("good").loss == 0.5  # and the next call runs

    def test_awaitables(self):
        async def main():
            order = []

            async def fn(x):
                order.append(x)
                await asyncio.sleep(0.01)
                if x == 2:
                    raise ValueError("two")
                return x

            call = single_flight(fn)
            results = await asyncio.gather(call(0), call(1), call(2))
            return order, results, await call(3)

        order, (zero, one, two), three = asyncio.run(main())
        assert order == [0, 2, 3] and zero == 0 and three == 3
        assert isinstance(one, Aborted) and isinstance(two.error, ValueError)

    def test_many_threads_settle_every_call(self):
        def fn(x):
            p = Pending("x")
            threading.Timer(0.001, p.resolve, [x]).start()
            return p

        call = single_flight(fn)
        results = []

        def work(k):
            for i in range(20):
                results.append(call((k, i)).result(timeout=10))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        began = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(results) == 80 and time.perf_counter() - began < 10
