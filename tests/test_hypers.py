"""Which values hyperparameters take, at construction, in `set`, in schedules and in a program's meta data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.hypers import RANGES, Range, checked, ranges_of

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)


def loss(m, x):
    return tg.mean(tg.square(m(x)))


def compiled(optimizer, device="cpu", loss=loss, **more):
    return tg.compile(
        model=nn.Linear(2, 3), loss=loss, inputs={"x": (4, 2)}, optimizer=optimizer, seed=0, device=device, **more
    )


NO_NUMBERS = [True, "0.5", None, [0.5], np.array([0.5, 0.5], np.float32), 0.5j]
NOT_FINITE = [math.nan, math.inf, -math.inf, 1e39, 10**400]
OUTSIDE = {
    "lr": [-1e-9],
    "weight_decay": [-0.1],
    "momentum": [-0.1],
    "eps": [-1e-8],
    "adam_eps": [-1e-8],
    "adam_lr_scale": [-1.0],
    "clip_grad_norm": [0.0, -1.0],
    "beta1": [-0.1, 1.0, 2.0],
    "beta2": [-0.1, 1.0, 2.0],
    "alpha": [-0.1, 1.0],
    "rho": [-0.1, 1.0],
    "lr_decay": [-0.1],
    "momentum_decay": [-0.1],
    "ema": [-0.1, 1.0],
}
TAKING = [
    (optim.sgd, ("lr", "momentum", "weight_decay", "clip_grad_norm", "ema")),
    (optim.adam, ("lr", "beta1", "beta2", "eps", "weight_decay", "clip_grad_norm", "ema")),
    (optim.adafactor, ("lr", "weight_decay")),
    (optim.adagrad, ("lr", "lr_decay", "eps", "weight_decay")),
    (optim.adadelta, ("lr", "rho", "eps", "weight_decay")),
    (optim.nadam, ("lr", "beta1", "beta2", "eps", "momentum_decay", "weight_decay")),
    (optim.radam, ("lr", "beta1", "beta2", "eps", "weight_decay")),
    (optim.lamb, ("lr", "beta1", "beta2", "eps", "weight_decay")),
    (optim.adamw, ("lr", "beta1", "beta2", "eps", "weight_decay")),
    (optim.lion, ("lr", "beta1", "beta2", "weight_decay")),
    (optim.rmsprop, ("lr", "alpha", "eps", "momentum", "weight_decay")),
    (optim.muon, ("lr", "beta1", "beta2", "eps", "momentum", "weight_decay", "adam_eps", "adam_lr_scale")),
]


@pytest.mark.parametrize(("make", "names"), TAKING, ids=lambda x: getattr(x, "__name__", ""))
def test_constructors_refuse_what_is_out_of_range(make, names):
    for name in names:
        may_be_none = name in ("clip_grad_norm", "ema")  # off
        for bad in [*OUTSIDE[name], *NOT_FINITE, *(x for x in NO_NUMBERS if not (x is None and may_be_none))]:
            with pytest.raises(tg.InputError, match=f"{name} (must be|is)"):
                make(**{name: bad})


@pytest.mark.parametrize(("make", "names"), TAKING, ids=lambda x: getattr(x, "__name__", ""))
def test_set_refuses_what_constructors_refuse_and_changes_nothing(make, names):
    first = {"momentum": 0.9, "weight_decay": 0.1, "clip_grad_norm": 1.0, "ema": 0.9}
    with (
        compiled(make(**{name: first[name] for name in names if name in first})) as train,
        compiled(make(**{name: first[name] for name in names if name in first})) as other,
    ):
        for name in names:
            for bad in [*OUTSIDE[name], *NOT_FINITE, *(x for x in NO_NUMBERS if x is not None)]:
                with pytest.raises(tg.InputError, match=f"{name} must be"):
                    train.set(**{"lr": 0.5, name: bad} if name != "lr" else {name: bad})
        assert train.step(x=X).loss == other.step(x=X).loss
        for k, value in train.download_params().items():
            np.testing.assert_array_equal(value, other.download_params()[k])


def test_a_decay_that_no_parameter_has_is_taken():
    optimizer = optim.adamw(lr=0.1, decay_filter=lambda name: False)
    with compiled(optimizer) as train:
        train.set(weight_decay=0.3)
        with pytest.raises(tg.InputError, match="weight_decay must be"):
            train.set(weight_decay=-1.0)


def test_numbers_of_every_kind_are_taken():
    with compiled(optim.adamw(lr=np.float32(0.1), beta1=np.float64(0.5), weight_decay=1, eps=0)) as train:
        train.set(beta1=np.float32(0.25), weight_decay=0, eps=np.int64(0), beta2=0)
        train.set_lr(np.float32(0.5))
        assert math.isfinite(train.step(x=X).loss)


def test_the_message_says_what_where_and_the_range():
    with pytest.raises(tg.InputError, match=r"beta1 must be at least 0 and below 1, got 2\.0\n.*test_hypers"):
        optim.adam(beta1=2.0)
    with pytest.raises(tg.InputError, match=r"lr must be finite in f32, got 1e\+39; the largest f32 is 3\.403e\+38"):
        optim.adam(lr=1e39)
    with pytest.raises(tg.InputError, match=r"eps must be a number, got '1e-8' \(str\)"):
        optim.adam(eps="1e-8")
    with pytest.raises(tg.InputError, match=r"pass float\(x\)"):
        optim.adam(eps=np.array(1e-8))
    with pytest.raises(tg.InputError, match="clip_grad_norm must be above 0, got 0"):
        optim.adam(clip_grad_norm=0)


@pytest.mark.parametrize("bad", [1.5, 0, -1, True, "2", None, np.array([2])])
def test_counts_are_whole_numbers(bad):
    for name, make in (("accumulate", optim.sgd), ("ns_steps", optim.muon)):
        with pytest.raises(tg.InputError, match=f"{name} must be an integer of at least 1"):
            make(**{name: bad})
    assert optim.sgd(accumulate=np.int64(2)).options == {"nesterov": False, "accumulate": 2}


def test_a_transform_of_ones_own_takes_any_finite_number_or_has_ranges():
    def update(g, p, state, host):
        return g * host.hyper("pull") * host.hyper("beta1"), {}

    own = optim.custom(optim.Transform({}, update, {"pull": -3.0, "beta1": 5.0}, {"pull": Range(high=1.0)}))
    with compiled(own) as train:
        train.set(pull=-100.0, beta1=7.0)
        with pytest.raises(tg.InputError, match="pull must be below 1, got 2"):
            train.set(pull=2.0)
        with pytest.raises(tg.InputError, match="beta1 must be finite in f32"):
            train.set(beta1=1e39)
    with pytest.raises(tg.InputError, match=r"optim\.custom: pull must be below 1, got 3"):
        optim.custom(optim.Transform({}, update, {"pull": 3.0, "beta1": 5.0}, {"pull": Range(high=1.0)}))
    with pytest.raises(tg.InputError, match="beta1 must be a number"):
        optim.custom(optim.Transform({}, update, {"pull": 0.0, "beta1": "5"}))


def test_named_hyperparameters_are_finite_in_f32():
    def weighted(m, x):
        return tg.hyper("weight", 2.0) * loss(m, x)

    with compiled(optim.sgd(0.1), loss=weighted) as train:
        train.set(weight=-2.0)
        for bad in (1e39, math.nan, "1", True):
            with pytest.raises(tg.InputError, match="weight must be"):
                train.set(weight=bad)
    for bad in (1e39, math.inf, "1"):
        with pytest.raises(tg.InputError, match=r"tg\.hyper: the default of 'weight' must be"):
            tg.hyper("weight", bad)


def test_programs_carry_the_ranges_as_plain_data():
    with compiled(optim.adamw(clip_grad_norm=1.0)) as train:
        meta = tg.program.Program.from_json(train.program.to_json()).meta
        assert meta["ranges"]["beta1"] == {"low": 0.0, "high": 1.0, "above": False}
        assert meta["ranges"]["clip_grad_norm"] == {"low": 0.0, "high": None, "above": True}
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip_grad_norm")
        assert ranges_of(meta) == {name: RANGES[name] for name in names}


def test_ranges():
    assert str(Range(0.0, 1.0)) == "at least 0 and below 1" and str(Range(0.0, above=True)) == "above 0"
    assert checked("x", 3.4028235e38) == 3.4028235e38
    with pytest.raises(tg.InputError):
        checked("x", 3.4028236e38)  # rounds to infinity


# --- learning rates ---

RATES = [-0.1, *NOT_FINITE, True, "0.1", [0.1]]


@pytest.mark.parametrize("bad", RATES, ids=lambda x: repr(x)[:9])
def test_rates_out_of_range_are_refused_wherever_one_is_given(bad):
    with compiled(optim.sgd(0.1)) as train:
        before = train.download_params()
        for setting in (train.set_lr, lambda x: train.set(lr=x)):
            with pytest.raises(tg.InputError, match="lr must be"):
                setting(bad)
        train.set_lr(0.0)
        assert isinstance(train.step(x=X).result(), tg.Completed)
        assert all(np.array_equal(x, before[n]) for n, x in train.download_params().items())
    for make in (
        lr.constant, lambda x: lr.linear(x, 0.1, 5), lambda x: lr.linear(0.1, x, 5), lambda x: lr.warmup(x, 5, 0.1),
        lambda x: lr.warmup(0.1, 5, x), lambda x: lr.cosine_annealing(x, 0.1, 5), lambda x: lr.staircase(x, 2),
        lambda x: lr.staircase(0.1, 2, x), lambda x: lr.multi_step(x, [2]), lambda x: lr.exponential(x, 0.5),
        lambda x: lr.exponential(0.5, x), lambda x: lr.one_cycle(x, 5), lambda x: lr.cosine_restarts(x, 0.1, 5),
    ):  # fmt: skip
        with pytest.raises(tg.InputError, match="must be"):
            make(bad)


def test_schedules_refuse_other_fields_that_make_no_sense():
    for make in (
        lambda: lr.linear(1.0, 0.1, math.inf), lambda: lr.linear(1.0, 0.1, "5"), lambda: lr.staircase(1.0, 0),
        lambda: lr.multi_step(1.0, 30), lambda: lr.multi_step(1.0, ["a"]), lambda: lr.constant(1.0, start=1.5),
        lambda: lr.one_cycle(1.0, 10, div_factor=0.0), lambda: lr.cosine_restarts(1.0, 0.1, 5, 1.5),
        lambda: lr.cosine_restarts(1.0, 0.1, 5, growth=0), lambda: lr.as_schedule(lr.linear),
    ):  # fmt: skip
        with pytest.raises(tg.InputError):
            make()
    assert lr.multi_step(1.0, np.array([4, 2])).spec()["milestones"] == [2, 4]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "linear", "peak": 0.1, "end": 0.0, "steps": 5}, "final is missing, end is unknown"),
        ({"kind": "linear", "peak": 0.1, "final": 0.0, "steps": 0}, "steps must be above 0"),
        ({"kind": "constant", "rate": 1e39}, "rate must be finite in f32"),
        ({"kind": "lunar"}, "unknown kind 'lunar'"),
        ([0.1], "must be a dict or a number"),
    ],
)
def test_descriptions_of_schedules_are_checked(spec, said):
    with pytest.raises(tg.InputError, match=said):
        lr.from_spec(spec)


@dataclass(frozen=True)
class Breaking(lr.Schedule):
    """0.1, but `bad` at one step."""

    bad: object
    when: int
    start: int | None = None

    def value(self, s):
        return self.bad if s == self.when else 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e39, -0.1, "0.1", None, np.ones(2)], ids=repr)
def test_a_schedule_that_breaks_fails_its_step_and_changes_nothing(device_name, bad):
    optimizer = optim.adam(lr=Breaking(bad, 3), ema=0.9)
    with compiled(optimizer, device_name) as train:
        assert [train.step(x=X).step for _ in range(2)] == [1, 2]
        before = train.download_params(), train.download_params(ema=True)
        failed = train.step(x=X).result()
        assert isinstance(failed, tg.Failed) and isinstance(failed.error, tg.InputError)
        assert "the schedule at step 3: lr must be" in str(failed.error)
        for now, then in zip((train.download_params(), train.download_params(ema=True)), before, strict=True):
            assert all(np.array_equal(x, then[n]) for n, x in now.items())
        train.set_lr(0.1)
        assert train.step(x=X).result().step == 3
    with compiled(optimizer, device_name) as train:
        many = train.run_steps(5, x=X).result()
        assert isinstance(many, tg.Failed) and "the schedule at step 3" in str(many.error)
        train.set_lr(0.1)
        assert train.step(x=X).result().step == 3  # the two before it were applied


def test_the_first_rate_of_a_schedule_is_checked_too():
    with compiled(optim.adam(lr=Breaking(None, 1)), "cpu") as train:
        before = train.download_params()
        failed = train.step(x=X).result()
        assert isinstance(failed, tg.Failed) and "the schedule at step 1: lr must be a number" in str(failed.error)
        assert all(np.array_equal(x, before[n]) for n, x in train.download_params().items())
