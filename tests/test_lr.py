"""Schedules: PyTorch's values, plain data, starting later."""

import json

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.errors import InputError

PEAK = 0.1


def pytorch_rates(torch, make, steps):
    """The rates that PyTorch's scheduler gives to `steps` optimizer steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    out = []
    for _ in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return out


ORACLES = {
    "linear": (lr.linear(PEAK, 0.01, 20), lambda S, o: S.LinearLR(o, 1.0, 0.1, 20), 30),
    "cosine": (lr.cosine_annealing(PEAK, 0.001, 25), lambda S, o: S.CosineAnnealingLR(o, 25, eta_min=0.001), 26),
    "restarts": (
        lr.cosine_restarts(PEAK, 0.001, 5),
        lambda S, o: S.CosineAnnealingWarmRestarts(o, 5, eta_min=0.001),
        40,
    ),
    "growing": (lr.cosine_restarts(PEAK, 0.0, 4, 3), lambda S, o: S.CosineAnnealingWarmRestarts(o, 4, 3), 60),
    "staircase": (lr.staircase(PEAK, 7, 0.5), lambda S, o: S.StepLR(o, 7, 0.5), 30),
    "multi_step": (lr.multi_step(PEAK, [12, 5], 0.3), lambda S, o: S.MultiStepLR(o, [5, 12], 0.3), 30),
    "exponential": (lr.exponential(PEAK, 0.9), lambda S, o: S.ExponentialLR(o, 0.9), 30),
    "one_cycle_cos": (lr.one_cycle(PEAK, 40), lambda S, o: S.OneCycleLR(o, PEAK, total_steps=40), 39),
    "one_cycle_linear": (
        lr.one_cycle(PEAK, 33, pct_start=0.25, div_factor=10, final_div_factor=100, anneal="linear"),
        lambda S, o: S.OneCycleLR(
            o, PEAK, total_steps=33, pct_start=0.25, div_factor=10, final_div_factor=100, anneal_strategy="linear"
        ),
        32,
    ),
}


@pytest.mark.parametrize("name", ORACLES)
def test_schedule_gives_pytorchs_rates(name):
    torch = pytest.importorskip("torch")
    schedule, make, steps = ORACLES[name]
    expected = pytorch_rates(torch, make, steps)
    assert [schedule.at(s) for s in range(1, steps + 1)] == pytest.approx(expected, rel=1e-9)


def test_first_and_last_values():
    for schedule in (lr.linear(1.0, 0.1, 10), lr.cosine_annealing(1.0, 0.1, 10)):
        assert schedule.at(1) == 1.0
        assert schedule.at(10) > 0.1
        assert schedule.at(11) == pytest.approx(0.1)
        assert schedule.at(500) == pytest.approx(0.1)
    cycle = lr.one_cycle(1.0, 40)
    assert cycle.at(40) == pytest.approx(1 / 25 / 1e4)
    assert cycle.at(1000) == cycle.at(40)
    assert lr.multi_step(1.0, [3], 0.1).at(3) == 1.0
    assert lr.multi_step(1.0, [3], 0.1).at(4) == pytest.approx(0.1)


def test_warmup_hands_over_to_the_first_step_of_the_next():
    schedule = lr.warmup(1.0, 4, lr.linear(1.0, 0.0, 2))
    assert [schedule.at(s) for s in range(1, 9)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.5, 0, 0])
    assert lr.warmup(1.0, 2, 0.3).at(9) == 0.3


EVERY_KIND = [
    lr.constant(0.1),
    lr.linear(1.0, 0.1, 10),
    lr.cosine_annealing(peak=5e-3, final=1e-4, steps=1000),
    lr.cosine_restarts(1.0, 0.1, 4, growth=2),
    lr.warmup(1.0, 10, lr.cosine_annealing(1.0, 0.0, 5)),
    lr.warmup(1.0, 10, 0.5),
    lr.staircase(1.0, 3, 0.5),
    lr.multi_step(1.0, (2, 5), 0.5),
    lr.exponential(1.0, 0.9, start=4),
    lr.one_cycle(1.0, 12),
    lr.plateau(1.0).after(0.5),
]


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=repr)
def test_spec_round_trips_through_json(schedule):
    again = lr.from_spec(json.loads(json.dumps(schedule.spec())))
    assert [again.at(s) for s in range(1, 30)] == [schedule.at(s) for s in range(1, 30)]
    assert again.spec() == schedule.spec()


def test_every_kind_is_tried():
    lacking = set(lr.KINDS) - {type(s) for s in EVERY_KIND}
    assert not lacking, f"add one of these to EVERY_KIND: {lacking}"


def test_start_shifts_a_schedule_and_an_explicit_one_is_kept():
    schedule = lr.linear(1.0, 0.0, 10)
    later = lr.starting_at(schedule, 101)
    assert later.at(101) == 1.0
    assert later.at(106) == 0.5
    assert later.at(7) == 1.0
    assert lr.starting_at(later, 500) == later
    assert schedule.start is None


def test_a_number_is_a_constant_and_nonsense_is_refused():
    assert lr.as_schedule(0.5).at(10) == 0.5
    assert lr.as_schedule(np.float32(0.5)).spec() == {"kind": "constant", "rate": 0.5}
    for bad in (-1.0, float("nan"), "fast", None):
        with pytest.raises(InputError):
            lr.as_schedule(bad)
    with pytest.raises(InputError, match="steps must be above 0, got 0"):
        lr.linear(1.0, 0.1, 0)
    with pytest.raises(InputError, match=r"staircase: every must be an integer, got 2\.5"):
        lr.staircase(1.0, 2.5)  # pyright: ignore
    assert lr.linear(1.0, 0.0, steps=1e1).at(6) == 0.5  # pyright: ignore
    with pytest.raises(InputError, match="known are constant, linear"):
        lr.from_spec({"kind": "magic"})
    with pytest.raises(InputError, match="anneal"):
        lr.one_cycle(1.0, 10, anneal="square")


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize(("patience", "cooldown", "threshold"), [(0, 0, 1e-4), (2, 0, 0.1), (1, 3, 0.05), (3, 1, 0.0)])
def test_a_plateau_is_pytorchs(mode, threshold_mode, patience, cooldown, threshold):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(patience)
    more = {"mode": mode, "threshold_mode": threshold_mode, "patience": patience, "cooldown": cooldown}
    more |= {"threshold": threshold, "factor": 0.5, "min_lr": 1e-3, "eps": 1e-4}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **more)
    ours, seen = lr.plateau(PEAK, **more), set()
    for k in range(80):
        metric = float("nan") if k % 11 == 7 else float(np.round(np.sin(k / 9) + rng.normal() * 0.3, 1))
        theirs.step(metric)
        ours = lr.from_spec(json.loads(json.dumps(ours.after(metric).spec())))
        seen.add(ours.at(k + 1))
        assert ours.at(k + 1) == optimizer.param_groups[0]["lr"], k
    assert len(seen) > 2


def test_a_plateau_of_a_training_is_saved_and_reset(tmp_path):
    def compiled(rate):
        return tg.compile(
            model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(tg.square(m(x))), inputs={"x": (4, 2)},
            optimizer=optim.sgd(rate), seed=0, device="cpu",
        )  # fmt: skip

    x = np.ones((4, 2), np.float32)
    with compiled(lr.plateau(0.1, patience=1)) as train, compiled(lr.plateau(0.1, patience=1)) as other:
        for metric in (1.0, 2.0, 3.0, 3.0):
            train.step(x=x)
            train.lr_metric(np.float32(metric))
        train.save(tmp_path / "file")
        other.load(tmp_path / "file")
        assert other.store.knobs.rate.schedule == train.store.knobs.rate.schedule
        for t in (train, other):
            t.step(x=x)
            t.lr_metric(3.0)
            t.step(x=x).result()
        assert train.digest() == other.digest()
        assert train.store.knobs.rate.schedule.at(9) == pytest.approx(0.001)
        train.reset()
        assert train.store.knobs.rate.schedule == lr.plateau(0.1, patience=1)
        with pytest.raises(InputError, match="metric must be a number"):
            train.lr_metric("low")
    with compiled(0.1) as train, pytest.raises(InputError, match=r"takes no metric; use lr.plateau"):
        train.lr_metric(1.0)


@pytest.mark.parametrize(
    "more",
    [{"factor": 1.0}, {"patience": -1}, {"mode": "low"}, {"threshold_mode": "x"}, {"cooldown": 1.5}, {"eps": -1.0}],
)
def test_a_plateau_of_no_sense_is_refused(more):
    with pytest.raises(InputError, match=next(iter(more))):
        lr.plateau(0.1, **more)
