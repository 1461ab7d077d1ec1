"""Random programs against their error bounds on every runtime, and all programs that ever failed. See tools/fuzz."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzzing.case_steps import row_programs
from fuzzing.command import main as command
from fuzzing.compare import Finding, differences
from fuzzing.corpus import kept
from fuzzing.differentiated import graph_of
from fuzzing.grow import grow
from fuzzing.halves import F16, Format
from fuzzing.open_sizes import farthest
from fuzzing.program import Input, Program, Step
from fuzzing.runners import RUNNERS, FallbackError, Given, Runner, each, no_fallback, passes, pytorch_in_halves
from fuzzing.search import Prepared, prepared, search, sharpness
from fuzzing.shrink import shrunk
from fuzzing.snippet import snippet
from fuzzing.table import OPS
from tracegrad.ir.evaluate import evaluate
from tracegrad.runtime.c_calls import CallList
from tracegrad.runtime.cpu_verify import warn_wrong
from xla import quickly

SEEDS = 300
BATCH = 20
TRAININGS = 300  # seeds, of which one in ten is a training
HALVED = 160  # seeds
SIZED = 40  # seeds: each is a program of its own, which runs at several sizes
PARTS = 10  # of the table
QUICK = ("passes", "eager", "numpy", "c", "torch")
EVERY = (*QUICK, "webgpu", "xla", "jax")
HALVES = ("numpy16", "c16", "webgpu16", "xla16", "xlab16", "torch16", "torchb16")
JAX, JAX_BATCH = 500, 100  # seeds: those after SEEDS under JAX alone, nearly all in its compiler
pytestmark = pytest.mark.filterwarnings("ignore")
CORPUS = dict(kept())
grown = cache(grow)


def agree(programs: list[Program], *runners: str) -> Mapping[str, int]:
    """How many programs each runner answered. Fails with the smallest program that differs.

    All runners share a reference, which takes as long as one of them. Where some cannot run, the others still do.
    """
    lacking = {name: why for name in runners if (why := RUNNERS[name].lacks())}
    able = [name for name in runners if name not in lacking]
    report = search(programs if able else [], able)
    found = report.findings
    if found:
        pytest.fail(f"{len(found)} differ; the first one:\n{snippet(shrunk(found[0], 30.0))}", pytrace=False)
    if lacking:
        pytest.skip(f"these cannot run: {lacking}")
    return report.answered


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, SEEDS, BATCH))
def test_random_programs(start: int) -> None:
    """XLA compiles a third of them as users do, which takes twice as long. tools/fuzz has no other way."""
    with nullcontext() if start % (3 * BATCH) == 0 else quickly():
        agree([grown(s) for s in range(start, start + BATCH)], *EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_of_the_table_at_other_shapes(part: int) -> None:
    with quickly():
        agree(row_programs(0)[part::PARTS], *QUICK, "webgpu", "xla")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SEEDS, JAX, JAX_BATCH))
def test_more_random_programs_under_jax(start: int) -> None:
    answered = agree([grown(s) for s in range(start, start + JAX_BATCH)], "jax")["jax"]
    assert answered > JAX_BATCH / 4, "the others have ops that JAX lacks"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, HALVED, BATCH))
def test_random_programs_in_half_precision(start: int) -> None:
    with quickly():
        agree([grown(s) for s in range(start, start + BATCH)], *HALVES)


def test_halves_that_are_rounded_too_coarsely_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As f16 is beside the bounds of a format with one bit more."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    finer = Format("f16", F16.unit / 2, F16.least, F16.largest)
    programs = [grown(s) for s in range(120, 180)]  # of 300 seeds, 4 find it; these hold two
    for name, half in (("right", F16), ("coarse", finer)):
        runner = Runner("torch", each(pytorch_in_halves(F16)), oracle=True, special=False, half=half)
        monkeypatch.setitem(RUNNERS, name, runner)
    assert {f.runner for f in search(programs, ["right", "coarse"]).findings} == {"coarse"}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_c")
@pytest.mark.parametrize("start", range(0, SIZED, BATCH))
def test_random_programs_for_batches_of_any_size(start: int) -> None:
    assert agree([grown(s) for s in range(start, start + BATCH)], "sizes")["sizes"] > BATCH / 3


@pytest.mark.usefixtures("quick_c")
def test_small_programs_cut_between_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    add = CallList.add
    monkeypatch.setattr(CallList, "add", lambda self, calls: parts.extend(c.parts for c in calls) or add(self, calls))
    agree([grown(s) for s in range(SEEDS, SEEDS + BATCH)], "parts")
    assert sum(n > 1 for n in parts) > len(parts) / 3


def test_what_differs_in_one_row_alone_is_returned() -> None:
    rows = [np.array([1.0, np.nan, 3.0]), np.array([1.0, np.nan, 3.0]), np.array([1.5, 0.0, 3.0])]
    np.testing.assert_array_equal(farthest(rows), [1.5, 0.0, 3.0])
    np.testing.assert_array_equal(farthest(rows[:2]), rows[0])
    np.testing.assert_array_equal(farthest([np.array([True, False]), np.array([True, True])]), [True, True])


@pytest.mark.parametrize("name", CORPUS)
def test_what_failed_once(name: str) -> None:
    agree([CORPUS[name]], *QUICK)


def test_what_failed_once_on_webgpu() -> None:
    agree(list(CORPUS.values()), "webgpu")


def test_a_wrong_result_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that reads the wrong row, as a miscompiled load does."""

    def joins(program: Program) -> bool:
        return any(s.op == "concat" for s in program.steps)

    def wrong(given: list[Given]) -> list[dict[str, Any]]:
        results = [passes(g) for g in given]
        for g, found in zip(given, results, strict=True):
            if joins(g.program):
                found["y0"] = np.roll(found["y0"], 1)
        return list(results)

    monkeypatch.setitem(RUNNERS, "wrong", Runner("wrong", wrong))
    programs = [grown(s) for s in (*range(20), 35, 322, 393)]  # of 400 seeds, the last three join
    findings = search(programs, ["passes", "wrong"]).findings
    assert findings and {f.runner for f in findings} == {"wrong"}
    small = shrunk(max(findings, key=lambda f: len(f.program.steps)), 20.0)
    assert [s.op for s in small.program.steps] == ["concat"]
    assert "tg.concat((" in snippet(small)


def test_chunks_import_from_where_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here from where conftest.py put the tests; elsewhere from a folder of packages that another machine carried."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    progress = str(tmp_path / "progress.jsonl")
    assert command(["--seeds", "0:1", "--runners", "numpy", "--corpus", str(tmp_path), "--progress", progress]) == 0
    assert "numpy: 1 answered" in capsys.readouterr().out


def test_a_runner_that_cannot_run_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VK_ICD_FILENAMES", "/nowhere")
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere")
    assert command(["--seeds", "0:1", "--runners", "numpy,webgpu"]) == 2
    assert "webgpu cannot run: " in capsys.readouterr().err


def test_snippets_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The text computes what the program does: `exec` prints its results."""
    for name, program in CORPUS.items():
        exec(snippet(Finding(program, "numpy", name)), {})
        assert "array(" in capsys.readouterr().out


def test_bounds_hold_for_plain_f32_and_are_sharp() -> None:
    """NumPy in f32 is one runtime more; and a bound that allows anything would find nothing."""
    sharp: list[float] = []
    programs = map(grown, range(300, 400))  # the mean of 700 seeds is 0.963; that of 100 varies by 0.019
    for p in filter(None, (prepared(program, [RUNNERS["numpy"]]) for program in programs)):
        assert isinstance(p, Prepared)
        sharp.append(sharpness(p))
        if p.given.program.mode != "train":
            graph = graph_of(p.given.program, p.given.env)
            with np.errstate(all="ignore"):
                values = evaluate(list(graph.outputs.values()), p.given.env, np)
            assert not differences(dict(zip(graph.outputs, values, strict=True)), p.expected[None])
    assert np.mean(sharp) > 0.95


def test_a_kernel_that_is_found_wrong_and_replaced_is_a_finding() -> None:
    with no_fallback():
        warnings.warn("a software adapter", RuntimeWarning, stacklevel=1)
    with pytest.raises(FallbackError, match="cc computes"), no_fallback():
        warn_wrong("cc computes", [("kernel", "y is 0, the reference has 1")])


def test_a_program_survives_json() -> None:
    for seed in range(60):
        program = grown(seed)
        assert Program.from_json(program.to_json()).to_json() == program.to_json()
        assert grow(seed).to_json() == program.to_json()


def test_every_runner_has_a_name() -> None:
    names = ["passes", "eager", "numpy", "c", "parts", "sizes", "sweep", "webgpu", "loops", "xla"]
    assert list(RUNNERS) == [*names, *HALVES, "torch", "jax"]


def test_an_error_of_an_oracle_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that PyTorch refuses compared nothing: that of `sort` had an argument too many for as long as it was."""
    refused = replace(OPS["sort"], torch=lambda torch, x, axis, descending: torch.sort(x, axis, stable=True))
    monkeypatch.setitem(OPS, "sort", refused)
    program = Program((Input("f32", (3,), "uniform"),), (Step("sort", (-1,), {"axis": 0, "descending": False}),), (0,))
    assert [f.what.partition(":")[0] for f in search([program], ["torch"]).findings] == ["TypeError"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_c")
@pytest.mark.parametrize("start", range(0, TRAININGS, 100))
def test_random_trainings_at_other_sizes_and_in_sweeps(start: int) -> None:
    some = [p for p in map(grown, range(start, start + 100)) if p.mode == "train"]
    answered = agree(some, "sizes", "sweep")
    assert answered["sizes"] > 0.6 * len(some) > 3
    assert answered["sweep"] == sum("losses" not in p.train for p in some) > 3  # a sweep has one loss


def test_the_command_runs_where_torch_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('raise ModuleNotFoundError("No module named torch", name="torch")')
    paths = [str(tmp_path), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-m", "fuzzing.command", "--help"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
