"""The check of kernels accepts every device that only rounds otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import tracegrad as tg
from test_kernels import NOTHING
from tracegrad.arrays import Array
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Primitive, Tensor
from tracegrad.prims import elementwise as rows
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.runtime import trials
from tracegrad.runtime.inexact import UNSURE, Check, Inexact
from tracegrad.runtime.repeated import Patterns, kind_of

DEVICES = (50, 51)  # simulated devices that the check does not try
SHAPE = (24, 4, 4)


class Backwards(Inexact):
    """A device that folds each row from its end."""

    def combined(self, prim: Primitive, values: Array) -> Array:
        """A fold in the other order."""
        return super().combined(prim, values[..., ::-1])


def checked(program: Program, seed: int, device: int, *, strict: bool) -> Iterator[tuple[Check, Array]]:
    """Each check of a trial, with what that device writes."""
    for kernel in program.kernels:
        plan = trials.plan_of(kernel, trials.layout_of(kernel))
        (trial,) = trials.trials_with(plan, [(Patterns(seed, strict), ())])
        found: list[Array] = []
        for form, outer, places in zip(kernel.forms, plan.outer, trials.places_of(kernel, plan.layout)):
            kinds = [kind_of(s.dtype, plan.below) for s in form.slots]
            read = trials._reader(form.slots, kinds, places, trial)  # pyright: ignore[reportPrivateUsage]
            found += [w.values for w in Backwards(form, read, outer, device, strict=strict).written()]
        yield from zip(trial.checks, found)


def cancelled(x: Tensor, ct: Tensor) -> Tensor:
    """What cancellation leaves: at some elements the few devices that the check simulates leave 0 by chance."""
    y, ct = tg.softmax(x), ct / 9.0
    return y * (ct - tg.sum(y * ct, axis=-1, keepdims=True))


def bits(x: Tensor, _: Tensor) -> Tensor:
    """Integers that differ if the last digit of a sum does, which can be exact in one order only."""
    return rows.bits(tg.sum(x, axis=-1, keepdims=True))


@pytest.mark.parametrize(("of", "strict", "seeds"), [(cancelled, True, (34, 49)), (bits, False, (7, 8))])
def test_devices_that_round_otherwise_are_right(
    of: Callable[[Tensor, Tensor], Tensor], strict: bool, seeds: tuple[int, ...]
) -> None:
    with tracing():
        y = of(leaf("input", "x", TensorType(f32, SHAPE)), leaf("input", "ct", TensorType(f32, (*SHAPE[:-1], 1))))
    program = make_program(Graph({"y": y}), NOTHING, {}, {})
    tried = [pair for seed in seeds for n in DEVICES for pair in checked(program, seed, n, strict=strict)]
    assert {check.difference(got) for check, got in tried} <= {"", UNSURE}
