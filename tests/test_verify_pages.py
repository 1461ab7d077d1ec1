"""Exported pages check their kernels before the first number: a browser that computes wrongly is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import browser, open_page, served, until
from models import Training, cnn, gpt, sine
from node import needs_node, run_node
from test_export import ready, train_for, wave_page
from test_verify import Strided, strided
from tracegrad import optim
from tracegrad.program import Dispatch, Program
from tracegrad.runtime.recorded import ANY, recorded, some_groups
from tracegrad.runtime.repeated import Patterns
from tracegrad.runtime.trials import layout_of, plan_of

__all__ = ["browser", "served"]  # fixtures

# A worker whose adapter compiles another text than it is given, of kernels that end like this
LYING = """
import {{ serve }} from "./tracegrad.js";
const told = GPUDevice.prototype.createShaderModule;
GPUDevice.prototype.createShaderModule = function (given) {{
  const [head, ...body] = given.code.split("fn k0(");
  const code = [head, ...body.map((x) => x.replace("{old}", "{new}"))].join("fn k0(");
  return told.call(this, {{ ...given, code: given.code.endsWith({end}) ? code : given.code }});
}};
serve(self);
"""
LIES = {
    "a sum that subtracts": ("(ta0 + xa0)", "(ta0 - xa0)"),
    "products one k short": ("j < 8;", "j < 7;"),
    "the other side of a choice": ("select(v0, 0f,", "select(0f, v0,"),
}
KINDS = [("f32", 0), ("f16", 0), ("i32", 7), ("u32", 7), ("i32", 73), ("bool", 2)]


@needs_node
@pytest.mark.parametrize("seed", [7, 8])
def test_patterns_have_the_bits_of_python(seed: int) -> None:
    code = """const { pattern } = await source("verify");
    return a[0].map(([dtype, below]) => Array.from(pattern(dtype, below, a[1])));"""
    for kind, bits in zip(KINDS, run_node(code, KINDS, seed)):
        want = Patterns(seed, strict=False).of(kind)
        want = want.astype(np.float32 if want.dtype.kind == "f" else np.int32).view(np.int32)
        np.testing.assert_array_equal(np.int32(bits), want, err_msg=str(kind))


def fetched(page: Any) -> list[str]:
    """What a page asks a server for."""
    names: list[str] = []
    page.context.on("request", lambda request: names.append(request.url.rsplit("/", 1)[-1]))
    return names


def test_a_page_checks_its_kernels_once(browser: Any, served: tuple[str, Path]) -> None:
    url, folder = served
    wave_page(folder / "once")
    page = open_page(browser, f"{url}/blank.html")
    names = fetched(page)
    page.goto(f"{url}/once/")
    train_for(ready(page), 3)
    assert names.count("checks.safetensors") == 1
    page.reload()
    train_for(ready(page), 3)
    assert names.count("checks.safetensors") == 1
    assert page.problems == []
    page.context.close()


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_adapter_is_refused(lie: str, browser: Any, served: tuple[str, Path]) -> None:
    url, folder = served
    old, new = LIES[lie]
    site = folder / re.sub(r"\W", "-", lie)
    wave_page(site)
    (site / "worker.js").write_text(LYING.format(old=old, new=new, end="''"))
    page = open_page(browser, f"{url}/{site.name}/")
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    said = page.inner_text("#status")
    assert re.search(r"kernel \S.* computes wrongly on this device: a value is .*\n? +at models.py:\d+", said), said
    assert page.is_disabled("#start")
    page.context.close()


@pytest.mark.parametrize(("old", "new"), [("v3 >> 28u", "v3 >> 27u"), ("5.96046448e-08f", "2.98023224e-08f")])
def test_batches_that_are_drawn_wrongly_are_refused(old: str, new: str, browser: Any, served: tuple[str, Path]) -> None:
    """Another hash of the random numbers, and numbers that reach half of the examples."""
    url, folder = served
    site = folder / f"drawn-{len(old)}"
    wave_page(site)
    own = json.loads((site / "program.json").read_text())
    assert not any(old in k["wgsl"] for k in own["train"]["kernels"])
    (kernel,) = [k for k in own["feed"]["kernels"] if k["wgsl"].count(old) == 2]
    (site / "worker.js").write_text(LYING.format(old=old, new=new, end="''"))
    page = open_page(browser, f"{url}/{site.name}/")
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert f"kernel {kernel['label']} computes wrongly on this device" in page.inner_text("#status")
    page.context.close()


def test_a_forward_that_is_computed_wrongly_fails(browser: Any, served: tuple[str, Path]) -> None:
    """It is checked when it first runs; the training goes on."""
    url, folder = served
    wave_page(folder / "forward")
    own = json.loads((folder / "forward/program.json").read_text())
    trained = {k[text] for k in own["train"]["kernels"] for text in ("wgsl", "serial_wgsl")}
    kernel = next(k for k in own["forwards"]["predict"]["program"]["kernels"] if k["wgsl"] not in trained)
    body = (kernel["serial_wgsl"] or kernel["wgsl"]).partition("fn k0(")[2]
    worker = LYING.format(old="(ta0 + xa0)", new="(ta0 - xa0)", end=json.dumps(body))
    (folder / "forward/worker.js").write_text(worker)
    page = open_page(browser, f"{url}/forward/")  # "Ready" shows too briefly to wait for it
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert f"kernel {kernel['label']} computes wrongly" in page.inner_text("#status")
    assert page.evaluate("train.step().then((r) => r.kind)") == "completed"
    page.context.close()


def test_a_page_of_one_file_is_checked(browser: Any, tmp_path: Path) -> None:
    """From a file, too, where its worker is a blob's."""
    path = wave_page(tmp_path / "page.html", single_file=True)
    text = path.read_text()
    path.write_text(text.replace("(ta0 + xa0)", "(ta0 - xa0)"))
    page = open_page(browser, path.as_uri())
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert "computes wrongly on this device" in page.inner_text("#status")
    path.write_text(text)
    page.reload()
    train_for(ready(page), 3)
    assert page.problems == []
    page.context.close()


def bits_of(entry: list[Any], seed: int) -> Any:
    """What js/verify.js makes of a row of a check's table."""
    kind, x = entry
    values = np.int32([x]) if kind == "one" else Patterns(seed, strict=False).of((kind, x))
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32).view(np.int32)


def checked(device: Any, program: Program, *, some: bool = False) -> tuple[int, int]:
    """Runs natively what a page would. How many elements were compared, and how many of them are halves.

    some: as on a software adapter, only the workgroups that compute them.
    """
    check = recorded(program, {})
    assert check is not None
    facts, kernels = check.facts, program.to_data()["kernels"]
    data = facts["program"] | {
        "kernels": [kernels[k] if isinstance(k, int) else k for k in facts["program"]["kernels"]]
    }
    trials = Program.from_data(data)
    assert any(d.kernel for d in trials.dispatches)
    if some:
        assert facts["groups"]
        trials = with_some_groups(trials, facts["groups"])
    handle = device.load(trials)
    table = np.concatenate([bits_of(entry, facts["seeds"][0]) for entry in facts["table"]])
    (outputs,) = device.run(handle, [{"table": table, "picks": check.arrays["picks"]}]).outputs()
    device.unload(handle)
    got, want = outputs["found"], check.arrays["found.0"]
    halves = compared = 0
    for (n, kind, begin, size), (every, each) in zip(facts["checks"], facts["allowed"][0]):
        at = np.arange(begin, begin + size)[want[begin : begin + size] != ANY]
        if kind[0] == "f":
            y = want[at].view(np.float32)
            np.testing.assert_array_less(np.abs(got[at].view(np.float32) - y), every + each * np.abs(y) + 1e-30, str(n))
            halves += at.size if kind == "f16" else 0
        else:
            found, expected = (got[at] != 0, want[at] != 0) if kind == "bool" else (got[at], want[at])
            np.testing.assert_array_equal(found, expected, str(n))
        compared += at.size
    return compared, halves


def with_some_groups(trials: Program, groups: list[list[int]]) -> Program:
    """The function of js/verify.js."""
    dispatches: list[Dispatch] = []
    for n, d in enumerate(trials.dispatches):
        kernel = trials.kernels[d.kernel]
        some = [replace(d, offsets=(*d.offsets, first), grid=(size, 1)) for of, first, size in groups if of == n]
        dispatches += some or [replace(d, grid=kernel.serial_grid) if kernel.serial_wgsl else d]
    kernels = tuple([k.without_barriers() for k in trials.kernels])
    return replace(trials, kernels=kernels, dispatches=tuple(dispatches))


def test_the_check_of_a_page_in_half_precision(device: Any) -> None:
    """Chromium's software adapter has no halves, so a native one runs what a page would."""
    shapes = {"x": (5, 1, 5, 5), "k": tg.i32[5]}
    with tg.compile(
        model=Strided(), loss=strided, inputs=shapes, optimizer=optim.sgd(1e-2), seed=0, device="cpu", precision="f16"
    ) as train:
        program = train.program
    assert program.needs_f16
    compared, halves = checked(device, program)
    assert halves > 100 and compared > 500, (halves, compared)


@pytest.mark.parametrize("training", [cnn(20), gpt(4), sine(2100)], ids=str)
def test_a_software_adapter_computes_only_what_is_compared(training: Training, device: Any) -> None:
    """Elements whose workgroup does not run would hold another number."""
    compared, _ = checked(device, training.build().program, some=True)
    assert compared > 500


def test_few_workgroups_run() -> None:
    program = cnn().build().program
    check = recorded(program, {})
    assert check is not None
    run = sum(size for *_, size in check.facts["groups"])
    kernels = [k for k in program.kernels if some_groups(plan_of(k, layout_of(k), few_groups=True))]
    assert 0 < run < sum(t.workgroups for k in kernels for t in k.apart) / 3
    assert len(kernels) > 6


def test_a_lie_in_the_last_workgroup_is_found(browser: Any, served: tuple[str, Path]) -> None:
    """What a software adapter runs includes the ends of every kernel."""
    url, folder = served
    b = 20
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((b, 1, 28, 28)).astype(np.float32), "y": rng.integers(0, 10, b).astype(np.int32)}
    with tg.compile(**cnn(b).arguments(), seed=0, device="cpu") as train:
        train.export(folder / "last", data=data)
    page = open_page(browser, f"{url}/last/")
    train_for(ready(page), 1)
    assert page.problems == []
    page.context.close()
    lie = LYING.format(old="if ((mm <", new=f"if ((batch != {b - 1}) & (mm <", end="''")
    (folder / "last/worker.js").write_text(lie)
    page = open_page(browser, f"{url}/last/")
    until(page, "() => document.getElementById('status').classList.contains('problem')")
    assert "computes wrongly on this device" in page.inner_text("#status")
    page.context.close()
