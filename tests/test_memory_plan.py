"""Programs never compute with memory that holds another value: checked by playing them on labels."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

import tracegrad as tg
from all_cases import ALL_CASES
from cases import Case
from memory_check import Planned, check_memory, overlaps, planned, planned_training, slots_of, with_offset
from models import BUDGET, SMALL, Training, build_training, gpt
from test_kernels import graph_of
from tracegrad import optim
from tracegrad.compiler import layout
from tracegrad.compiler.layout import Persistent
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.kernels import group
from tracegrad.kernels.fuse import MAX_BUFFERS
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer

OPTIMIZERS = {
    "sgd": lambda: optim.sgd(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda: optim.adam(lr=0.1),
    "lion": lambda: optim.lion(lr=0.1, weight_decay=0.1),
    "rmsprop": lambda: optim.rmsprop(lr=0.1, momentum=0.9, centered=True),
    "muon": lambda: optim.muon(lr=0.1),
    "adafactor": lambda: optim.adafactor(lr=0.1),
    "all_options": lambda: optim.adamw(lr=0.1, clip_grad_norm=1.0, normalize_grads=True, ema=0.99, accumulate=3),
}


def plan_of(t: Training) -> Planned:
    arguments = t.arguments()
    return planned_training(arguments, build_training(**arguments))


@pytest.mark.parametrize("t", SMALL, ids=repr)
def test_the_plan_that_is_checked_is_the_one_that_runs(t: Training) -> None:
    assert plan_of(t).program == t.build().program


@pytest.mark.parametrize("t", SMALL, ids=repr)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_small_models_with_every_optimizer(t: Training, optimizer: str) -> None:
    check_memory(plan_of(replace(t, optimizer=OPTIMIZERS[optimizer])))


@pytest.mark.parametrize("t", SMALL, ids=repr)
def test_small_models_in_half_precision(t: Training) -> None:
    arguments = replace(t, optimizer=OPTIMIZERS["all_options"]).arguments()
    check_memory(planned_training(arguments, build_training(**arguments, precision="f16")))


@pytest.mark.parametrize("name", ["sine", "cnn"])
def test_models_of_the_budget(name: str) -> None:
    check_memory(plan_of(BUDGET[name][0]))


def test_a_four_layer_gpt() -> None:
    check_memory(plan_of(gpt(batch=2, p=0.1)))  # labels take 8 bytes an element: a small batch, the same plan


def test_temporaries_in_several_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the layers need no more kernels: in which arrays their values lie is none of a kernel's business."""
    monkeypatch.setattr(layout, "CHUNK", 2**20)
    p, twice = plan_of(gpt(batch=2)), gpt(batch=2, layers=8).build().program
    assert sum(b.role == "temp" for b in p.program.buffers) > 4
    assert all(len(k.bindings) <= MAX_BUFFERS for k in p.program.kernels)
    assert len(twice.kernels) == len(p.program.kernels) <= len(twice.dispatches) / 4
    check_memory(p)


def test_a_scalar_that_is_read_from_a_pack_too_is_there_before() -> None:
    """It is not computed again by the kernel that reads it, which would run beside the one that puts it there."""
    with tracing():
        x, y = (leaf("input", n, TensorType(f32, (k,))) for n, k in (("x", 1), ("y", 2)))
        mean = pack([y]).mean()
        p = pack([x, mean.reshape((1,)), x])
        planned_ = planned(Graph({"y": tg.where(p < mean, mean * 0.5, p)}))
    check_memory(planned_)
    assert len(planned_.program.dispatches) > 1


def equal_products(r: random.Random) -> dict[str, tg.Tensor]:
    """A graph with many equal products of few operands, read by rows, columns and each other."""
    values = [leaf("input", n, TensorType(f32, (32, 32))) for n in "xyz"]
    shared = [tg.softmax(r.choice(values)) for _ in range(2)]
    values += shared
    outputs: list[tg.Tensor] = []
    for _ in range(r.randint(8, 24)):
        a, b = r.choice(values[-6:]), r.choice(values)
        product = tg.swapaxes(r.choice(shared), 0, 1) @ a
        others = (
            tg.softmax(a),
            tg.layer_norm(a),
            tg.tanh(a) * b,
            a + tg.swapaxes(b, 0, 1),
            a * tg.sum(a, 0, keepdims=True),
        )
        values.append(r.choice((*[product] * 4, *others)))
        if r.random() < 0.3:
            outputs.append(values[-1])
    outputs.append(values[-1])
    r.shuffle(outputs)
    return {f"o{k}": t for k, t in enumerate(outputs)}


@pytest.mark.parametrize("seed", range(100))
def test_random_graphs_whose_kernels_share_launches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(seed)
    monkeypatch.setattr(group, "ALONE", 2 ** r.choice([9, 11, 12]))
    monkeypatch.setattr(group, "KEPT_ALIVE", 2 ** r.choice([9, 10, 12, 18]))
    with tracing():
        graph = Graph(equal_products(r))
    check_memory(planned(graph))


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_every_op_of_the_table(case: Case) -> None:
    check_memory(planned(graph_of(case)))


def test_aux_captures_and_a_single_parameter() -> None:
    class Single(tg.Module):
        def __init__(self) -> None:
            self.w = self.param((6, 4))

    def loss(m: Single, x: tg.Tensor) -> object:
        y = tg.capture("y", x @ m.w)
        return tg.mean(tg.square(y)), {"w": m.w, "again": m.w, "y": y, "view": y.reshape(-1)[2:9]}

    check_memory(plan_of(Training("single", Single, loss, {"x": (5, 6)}, lambda: optim.adam(lr=0.1))))


# --- the check itself: it must see every kind of damage ---


def reads_of_temporaries(p: Planned) -> list[tuple[int, int, int]]:
    """(dispatch, slot, offset) of every read of a temporary."""
    return [
        (number, s.number, s.begin)
        for number in range(len(p.program.dispatches))
        for s in slots_of(p, number)
        if not s.written and p.program.buffers[s.buffer].role == "temp"
    ]


def refused(p: Planned) -> bool:
    try:
        check_memory(p)
    except AssertionError:
        return True
    return False


def test_a_moved_read_is_seen() -> None:
    p = plan_of(SMALL[2])
    found = reads_of_temporaries(p)
    assert len(found) > 20
    for number, slot, begin in found[::3]:
        assert refused(with_offset(p, number, slot, begin + 1)), (number, slot)


def test_a_moved_write_is_seen() -> None:
    p = plan_of(SMALL[1])
    checked = 0
    for number in range(len(p.program.dispatches)):
        for s in slots_of(p, number):
            if s.written:
                checked += 1
                assert refused(with_offset(p, number, s.number, s.begin + 1)), (number, s.number)
    assert checked > 10


def test_dispatches_in_another_order_are_seen() -> None:
    p = plan_of(SMALL[0])
    for k in range(len(p.program.dispatches) - 1):
        order = list(range(len(p.program.dispatches)))
        order[k], order[k + 1] = order[k + 1], order[k]
        launches = [p.plan.launches[j] for j in order]
        plan = replace(p.plan, launches=launches)
        program = replace(p.program, dispatches=tuple(p.program.dispatches[j] for j in order))
        # Launches depend on each other only as far as values do; those of this model form one chain but for pairs.
        changed = refused(Planned(p.graph, plan, program))
        assert changed or independent(p, k, k + 1), k


def independent(p: Planned, a: int, b: int) -> bool:
    first, second = slots_of(p, a), slots_of(p, b)
    return not any(x.overlaps(y) for x in first for y in second if x.written or y.written)


@pytest.mark.parametrize("t", SMALL, ids=repr)
def test_a_plan_without_lifetimes_is_seen(t: Training) -> None:
    """All temporaries of one type at offset 0: what a planner would do that forgot that values live."""
    arguments = t.arguments()
    built = build_training(**arguments)
    good = planned_training(arguments, built)
    offsets = []
    for number, d in enumerate(good.program.dispatches):
        temps = {s.number for s in slots_of(good, number) if good.program.buffers[s.buffer].role == "temp"}
        offsets.append(replace(d, offsets=tuple(0 if k in temps else o for k, o in enumerate(d.offsets))))
    assert refused(replace(good, program=replace(good.program, dispatches=tuple(offsets))))


def test_a_write_into_a_foreign_array_is_seen() -> None:
    p = plan_of(SMALL[0])
    swapped = {"params": "m", "m": "params"}
    buffers = tuple(replace(b, name=swapped.get(b.name, b.name)) for b in p.program.buffers)
    assert refused(replace(p, program=replace(p.program, buffers=buffers)))


def test_two_outputs_of_one_dispatch_in_one_place_are_seen() -> None:
    p = plan_of(SMALL[2])
    seen = 0
    for number in range(len(p.program.dispatches)):
        outs = [s for s in slots_of(p, number) if s.written]
        for a, b in itertools.pairwise(outs):
            if a.buffer == b.buffer:
                seen += 1
                assert refused(with_offset(p, number, b.number, a.begin))
    assert seen


def test_a_read_at_other_points_of_what_is_overwritten_is_seen() -> None:
    """The transpose of a square array, computed in place: right labels, wrong order."""
    with tracing():
        a = leaf("state", "a", TensorType(f32, (4, 4)))
        graph = Graph({}, {}, {"a": a.swapaxes(0, 1) * 2})
    good = planned(graph, Persistent((Buffer("a", "f32", 16, "state"),)))
    check_memory(good)  # through a temporary
    first = good.program.dispatches[0]
    a = next(k for k, b in enumerate(good.program.buffers) if b.name == "a")
    direct = replace(first, buffers=(a,) * len(first.buffers), offsets=(0,) * len(first.offsets))
    bad = replace(good, program=replace(good.program, dispatches=(direct, *good.program.dispatches[1:])))
    with pytest.raises(AssertionError, match="in place but reads it at other points"):
        check_memory(bad)


@pytest.mark.parametrize("most_arrays", [1, 4])
def test_values_larger_than_an_array_may_be_share_memory(most_arrays: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in turn, and what is small beside them."""
    monkeypatch.setattr(layout, "CHUNK", 4 * 64)
    values = [layout.Lifetime(k, 1000, 2 * k, 2 * k + 1) for k in range(5)] + [layout.Lifetime(9, 10, 0, 9)]
    places, sizes = layout.share_memory(values, "temp.f32", layout.Beside({}, {}, set()), most_arrays)
    assert not overlaps(places, values)
    assert sorted(sizes.values()) in ([10, 1000], [1010], [1042])
