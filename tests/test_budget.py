"""What a step may cost: dispatches, memory, and the work to compile."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from memory_check import planned_training
from models import BUDGET, gpt
from tracegrad import optim
from tracegrad.program import PERSISTENT, Program

# Layers of a GPT -> Python's and C's calls from tracing to Program, all texts included: 1.25 and 4.43 million. CPython
# 3.11 counts them, which calls comprehensions too (bench/scaling.py and bench/cpu.py --cold time them).
COMPILE_CALLS = {4: 1_670_000, 24: 5_900_000}
GPT_TEMPORARIES = 72.9e6  # bytes: what PyTorch 2.13 allocates for the same step, besides parameters and state


@pytest.mark.parametrize("name", BUDGET)
def test_dispatches_a_step(name: str) -> None:
    training, most = BUDGET[name]
    program = training.build().program
    n = len(program.dispatches)
    assert 0 < n <= most, f"{n} dispatches, {n - most} more than {most}"


def test_a_large_gpt_takes_a_few_kernels_and_dispatches_a_layer() -> None:
    """Its values take many arrays, and most of its kernels a launch each: neither may cost a kernel for each layer."""
    programs = [gpt(batch=64, context=256, width=384, layers=n).build().program for n in (4, 6)]
    few, more = (len(p.dispatches) for p in programs)
    kernels = [len(p.kernels) for p in programs]
    assert kernels[0] == kernels[1] <= 60, f"{kernels} kernels, {max(kernels) - 60} more than 60"
    assert more - few <= 2 * 45, f"{more - few} dispatches for two layers, {more - few - 90} more than 90"


@pytest.mark.parametrize("name", BUDGET)
def test_clipping_optimizer_and_ema_take_two_dispatches(name: str) -> None:
    """Those from the first on that reads or writes the optimizer's state; before them comes part of the norm."""
    optimizer = optim.adamw(lr=1e-3, weight_decay=0.1, clip_grad_norm=1.0, ema=0.99)
    program = replace(BUDGET[name][0], optimizer=lambda: optimizer).build().program
    states = {k for k, b in enumerate(program.buffers) if b.name in ("m", "v", "ema")}
    grads = next(k for k, b in enumerate(program.buffers) if b.name == "grads")
    updates = [k for k, d in enumerate(program.dispatches) if states & set(d.buffers)]
    last_gradient = max(k for k, d in enumerate(program.dispatches) if grads in d.buffers and writes(program, k, grads))
    assert updates == [len(program.dispatches) - 1]
    after = len(program.dispatches) - 1 - last_gradient
    assert after <= 2, f"{after} dispatches, {after - 2} more than 2"


def writes(program: Program, dispatch: int, buffer: int) -> bool:
    """Does a dispatch write a buffer?"""
    d = program.dispatches[dispatch]
    return program.kernels[d.kernel].bindings[d.buffers.index(buffer)].written


@pytest.mark.parametrize("name", BUDGET)
def test_memory_of_adam(name: str) -> None:
    """Parameters, gradients and two moments; not per parameter, one flag and three bounds of 4 bytes each."""
    program = replace(BUDGET[name][0], optimizer=lambda: optim.adam(lr=1e-3)).build().program
    taken, most = persistent_bytes(program), 4 * parameter_bytes(program) + 16
    assert taken <= most, f"{taken} bytes, {taken - most} more than {most}"


@pytest.mark.parametrize("name", BUDGET)
def test_temporaries_take_what_is_alive_at_once(name: str) -> None:
    """Each pool against its lower bound, the most that is alive during one dispatch; a tenth is left for gaps.

    Integers and floats have pools of their own: a kernel sees an array as one type.
    """
    training, _ = BUDGET[name]
    arguments = training.arguments()
    built = training.build()
    plan = planned_training(arguments, built).plan
    for pool in (b for b in built.program.buffers if b.role == "temp"):
        inside = [t for t in plan.lifetimes if plan.places[t.key].array == pool.name]
        alive = max(sum(t.size for t in inside if t.first <= k <= t.last) for k in range(len(plan.launches)))
        assert alive <= pool.size <= 1.1 * alive, f"{pool.size} bytes for {alive}, {pool.size - 1.1 * alive:.0f} over"


def persistent_bytes(program: Program) -> int:
    return sum(b.bytes for b in program.buffers if b.role in PERSISTENT)


def parameter_bytes(program: Program) -> int:
    sizes = []
    for f in program.params:
        size = 4
        for n in f.shape:
            size *= n
        sizes.append(size)
    return sum(sizes)


def test_temporaries_of_the_gpt_take_no_more_than_in_pytorch() -> None:
    program = BUDGET["gpt"][0].build().program
    taken = sum(b.bytes for b in program.buffers if b.role == "temp")
    assert taken <= GPT_TEMPORARIES, f"{taken} bytes, {taken - GPT_TEMPORARIES:.0f} more than {GPT_TEMPORARIES:.0f}"


@pytest.mark.parametrize("layers", COMPILE_CALLS)
def test_a_gpt_is_traced_to_a_program_with_little_work(layers: int) -> None:
    """Work is counted and not timed: time is the machine's too."""
    training = gpt(layers=layers)
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        training.build().program.to_json()
    finally:
        sys.setprofile(before)
    most = COMPILE_CALLS[layers]
    assert calls < most, f"compiling takes {calls} calls, {calls - most} more than {most}"
