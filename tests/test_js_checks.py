"""What the browser's runtime takes from files and callers: checked as Python checks it, each fault in one sentence."""

from __future__ import annotations

import math
from typing import Any

from node import needs_node, run_node
from tracegrad import lr
from tracegrad.errors import InputError
from tracegrad.hypers import RANGES, checked

pytestmark = needs_node

SCHEDULES = [
    lr.constant(0.1), lr.linear(1.0, 0.1, 7), lr.cosine_annealing(1e-2, 1e-5, 30), lr.warmup(0.3, 5, 0.1),
    lr.warmup(0.3, 5, lr.cosine_annealing(0.3, 0.0, 20)), lr.staircase(1.0, 4, 0.7), lr.multi_step(1.0, [3, 9], 0.3),
    lr.exponential(0.5, 0.93), lr.one_cycle(1.0, 40), lr.linear(1.0, 0.0, 9, start=5),
    lr.plateau(0.1, mode="max"), lr.plateau(0.1).after(3.0), lr.cosine_restarts(1.0, 0.0, 4, 2),
]  # fmt: skip
NAN = math.nan
VALUES = [NAN, math.inf, -math.inf, 1e39, -1, 0, 0.5, 1, 3, 2**31, "5", None, True, [], [2, 5], ["a"], {}]


def mutants(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """`spec`, and all that have another value in one field, a field more, or one less that Python needs too."""
    out: list[dict[str, Any]] = [spec, {**spec, "end": 0.1}, {**spec, "kind": "lunar"}, {**spec, "kind": None}]
    out += [{n: x for n, x in spec.items() if n != name} for name in ("peak", "rate", "steps", "after") if name in spec]
    for name in spec:
        out += [{**spec, name: x} for x in VALUES if not (name == "milestones" and x == {})]  # no steps, in Python
    if isinstance(spec.get("after"), dict):
        out += [{**spec, "after": x} for x in mutants(spec["after"])]
    return out


def refused_by_python(spec: dict[str, Any]) -> str | None:
    try:
        lr.from_spec(spec)
    except InputError as e:
        return str(e)
    return None


def test_schedules_are_refused_exactly_where_python_refuses_them() -> None:
    lacking = set(lr.KINDS) - {type(s) for s in SCHEDULES}
    assert not lacking, f"add these to SCHEDULES, to js/checks.js and to js/schedules.js: {lacking}"
    specs = [m for schedule in SCHEDULES for m in mutants(schedule.spec())]
    code = "const { asSchedule } = await source('checks'); return a[0].map((x) => told(() => asSchedule(x)));"
    refused = 0
    for spec, (value, error) in zip(specs, run_node(code, specs), strict=True):
        said = refused_by_python(spec)
        assert (said is None) == (error is None), (spec, said, error)
        if error is None:
            assert value == spec
            continue
        refused += 1
        assert error[0] == "InputError" and "\n" not in error[1], error
        assert error[1].startswith(("schedule ", "lr must be a number")), error
    assert refused > 300


def test_a_schedule_of_the_wrong_fields_is_told_which() -> None:
    specs = [
        {"kind": "cosine_annealing", "peak": 0.1, "end": 0.0, "steps": 9},
        {"kind": "linear", "peak": 0.1, "final": 0.0, "steps": 0},
        {"kind": "warmup", "peak": 1, "steps": 5, "after": {"kind": "linear", "peak": 1, "steps": 5, "final": NAN}},
        {"kind": "one_cycle", "peak": 0.1, "steps": 5},
        "0.1", None, [0.1], math.nan, 1e39, -0.1,
    ]  # fmt: skip
    said = [
        'schedule cosine_annealing: final is missing, "end" is unknown; its fields are peak, final, steps',
        "schedule linear: steps is 0, expected an integer above 0",
        "schedule warmup: after: schedule linear: final must be a number of at least 0 that is finite in f32, got NaN",
        "pct_start is missing, div_factor is missing, final_div_factor is missing, anneal is missing; its fields",
        'lr must be a number, or a schedule whose kind is one of constant, linear', "got null", "got a list of 1",
        "lr must be a number of at least 0 that is finite in f32, got NaN", "got 1e+39", "got -0.1",
    ]  # fmt: skip
    code = "const { asSchedule } = await source('checks'); return a[0].map((x) => told(() => asSchedule(x))[1]);"
    for spec, want, (name, message) in zip(specs, said, run_node(code, specs), strict=True):
        assert name == "InputError" and want in message, (spec, message)


def test_schedules_one_within_another_have_an_end() -> None:
    code = """const { asSchedule } = await source('checks');
      let lr = 0.1;
      for (let k = 0; k < a[0]; k++) lr = { kind: 'warmup', peak: 1, steps: 2, after: lr };
      return told(() => asSchedule(lr).kind);"""
    assert run_node(code, 5) == ["warmup", None]
    name, message = run_node(code, 200_000)[1]
    assert name == "InputError" and message.endswith("schedules are nested deeper than 8")


def test_hyperparameters_have_pythons_ranges() -> None:
    numbers = [x for x in VALUES if x != 2**31] + [1e-300, 1.0 - 2**-53, 3.4028235e38, 3.4028236e38, -0.0]
    cases = [(name, x) for name in RANGES for x in numbers]
    ranges = {name: limits._asdict() for name, limits in RANGES.items()}
    code = """const { checkHypers } = await source('checks');
      return a[0].map(([name, x]) => told(() => checkHypers('set', { [name]: x }, a[1]))[1]);"""
    for (name, x), error in zip(cases, run_node(code, cases, ranges), strict=True):
        try:
            checked(name, x, RANGES[name])
            assert error is None, (name, x, error)
        except InputError:
            assert error[0] == "InputError" and error[1].startswith(f"set: {name} must be a number"), (name, x, error)
    want = "set: beta1 must be a number of at least 0 and below 1 that is finite in f32, got 2"
    assert run_node(code, [["beta1", 2]], ranges) == [["InputError", want]]
    assert run_node(code, [["weight", -2.5]], ranges) == [None]  # of a loss's own


@needs_node
def test_only_indices_in_the_box_are_checked() -> None:
    code = """const { checkRange } = await source("checks");
      const spec = { range: [0, 4], box: [[1, 2], [0, 1]], others: [{ range: [0, 3], box: [[0, 0], [3, 3]] }] };
      return a[0].map((k) => {
        const values = new Int32Array(24).fill(1); // two steps of [3, 4]
        values[k] = 9;
        return told(() => checkRange(values, { shape: [3, 4], spec }))[1] !== null;
      });"""
    refused = run_node(code, list(range(24)))
    assert [k for k, bad in enumerate(refused) if bad] == [3, 4, 5, 8, 9, 15, 16, 17, 20, 21]


def test_a_browser_that_never_answers_is_an_error() -> None:
    """A driver can hang, also while a lost device is replaced: no caller waits for ever then."""
    code = """const { Session, findAdapter } = await source("session");
      const never = () => new Promise(() => {}), real = setTimeout;
      globalThis.setTimeout = (fn, ms) => real(fn, ms >= 10_000 ? 1 : ms);
      let come, gone = 0;
      const limits = {}, features = new Set(), late = new Promise((resolve) => (come = resolve));
      const silent = { limits, features, requestDevice: () => late };
      const failed = (given) => given.then(() => null, (e) => [e.name, e.message]);
      const told = [
        await failed(findAdapter({ requestAdapter: never })),
        await failed(Session.open([], { requestAdapter: async () => silent })),
      ];
      come({ destroy: () => (gone += 1) });
      await late;
      const adapter = { limits };
      return [...told, gone, (await findAdapter({ requestAdapter: async () => adapter })) === adapter];"""
    *told, gone, found = run_node(code)
    for what, (name, message) in zip(("a graphics adapter", "a device"), told, strict=True):
        assert name == "DeviceError" and f"did not answer within 30 s when asked for {what}" in message
    assert gone == 1 and found, "a device that comes too late is given back"
