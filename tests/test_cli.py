"""The command line: demos write what they promise, the doctor finds fault only where there is one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.commands import bench, cli, doctor
from tracegrad.demo import gpt
from tracegrad.demo.data import load_digits, load_text
from tracegrad.engine import reference
from tracegrad.safetensors import read

FILES = {
    "digits": {"loss.svg", "digits.svg"},
    "sine": {"loss.svg", "sine.svg"},
    "gpt": {"loss.svg", "samples.txt"},
}
COMMON = {"parameters.safetensors", "checkpoint.safetensors", "result.json", "index.html"}


def demo(which: str, folder: Path, *args: str) -> dict[str, Any]:
    assert cli.main(["demo", which, "--out", str(folder), *args]) == 0
    return json.loads((folder / "result.json").read_text())


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize("which", FILES)
def test_demo_writes_its_folder(which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    result = demo(which, tmp_path / "out", "--device", "cpu", "--steps", "12")
    assert {p.name for p in (tmp_path / "out").iterdir()} == FILES[which] | COMMON
    assert result["steps"] == len(result["loss"]) == 12
    assert np.isfinite(result["loss"]).all()
    for picture in (tmp_path / "out").glob("*.svg"):
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    parameters = read(tmp_path / "out" / "parameters.safetensors").tensors
    assert sum(x.size for x in parameters.values()) == result["parameters"]
    said = capsys.readouterr()
    assert "Device: cpu" in said.out and "chosen by --device cpu" in said.out
    assert "steps/s" in said.err, "the progress bar shows loss and speed"


@pytest.mark.usefixtures("c_compiler")
def test_demo_is_the_same_for_the_same_seed(tmp_path: Path):
    runs = [demo("digits", tmp_path / str(k), "--device", "cpu", "--steps", "8", "--seed", "3") for k in range(2)]
    other = demo("digits", tmp_path / "other", "--device", "cpu", "--steps", "8", "--seed", "4")
    assert runs[0]["loss"] == runs[1]["loss"] != other["loss"]


@pytest.mark.parametrize("compiler, model", [("", "sine"), ("off", "digits")])
def test_digests_repeat_in_other_processes_and_after_a_checkpoint(compiler: str, model: str):
    """Whatever the hash seed, the processors and the threads of BLAS."""
    said: list[str] = []
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    one = f"import os; hasattr(os, 'sched_setaffinity') and os.sched_setaffinity(0, {{{first}}})"
    for seed, before in (("1", "pass"), ("2", one)):
        env = os.environ | {"PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": seed, "TRACEGRAD_CC": compiler}
        code = (
            f"{before}; from tracegrad.commands import bench; print(*bench.hashes(bench.models()[{model!r}], 'cpu', 6))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert len({*said[0].split(), *said[1].split()}) == 1, said


def test_bench_prints_digests(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    sine = bench.models()["sine"]
    monkeypatch.setattr(bench, "models", lambda: {"sine": sine})
    assert cli.main(["bench", "--digest", "--device", "cpu"]) == 0
    assert re.search(r"sine +cpu +[0-9a-f]{64} the same resumed\n", capsys.readouterr().out)
    monkeypatch.setattr(bench, "hashes", lambda *_: ("a", "b"))
    assert cli.main(["bench", "--digest", "--device", "cpu"]) == 1
    assert "resumed: b" in capsys.readouterr().out


def test_the_digest_tells_runs_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One bit of a parameter, one loss, one step, another seed or learning rate: each changes it."""
    net = nn.Linear(2, 1)
    batch = {"x": np.ones((4, 2), np.float32)}
    made = lambda seed=0: tg.compile(model=net, loss=lambda m, x: tg.mean(tg.square(m(x))), inputs={"x": (4, 2)},
                                     optimizer=optim.adam(lr=0.1), seed=seed, device="cpu")  # fmt: skip
    with made() as a, made() as b, made(1) as c:
        losses = [a.step(batch).loss, a.step(batch).loss]
        assert [b.step(batch).loss, b.step(batch).loss] == losses
        seen = [a.digest(losses), a.digest(), a.digest(losses[:1]), c.digest()]
        assert b.digest(losses) == seen[0]
        b.set_lr(0.2)
        seen.append(b.digest())
        b.set_lr(0.1)
        changed = b.download_params()
        changed["W"][0] = np.nextafter(changed["W"][0], 9)
        b.upload_params(changed)
        seen.append(b.digest())
        a.step(batch)
        seen.append(a.digest())
    assert len(set(seen)) == len(seen)
    result = demo("sine", tmp_path, "--device", "cpu", "--steps", "3", "--digest")
    assert f"Digest: {result['digest']}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("c_compiler")
def test_digits_demo_reaches_97_percent(tmp_path: Path):
    result = demo("digits", tmp_path, "--device", "cpu")
    assert result["accuracy"] >= 0.97


@pytest.mark.usefixtures("c_compiler")
def test_sine_demo_learns_the_curve(tmp_path: Path):
    assert demo("sine", tmp_path, "--device", "cpu")["largest_error"] < 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*software adapter")
@pytest.mark.usefixtures("webgpu")
@pytest.mark.parametrize(("which", "steps"), [("digits", 20), ("sine", 20), ("gpt", 5)])
def test_loss_curves_of_both_devices_agree(which: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """First steps only: rounding differs between devices, and training amplifies every difference."""
    monkeypatch.setattr(gpt, "SAMPLE_LENGTH", 5)
    curves = [
        np.array(demo(which, tmp_path / device, "--device", device, "--steps", str(steps))["loss"])
        for device in ("cpu", "webgpu")
    ]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-3)


def test_doctor_passes_on_the_cpu(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["doctor", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "All checks passed." in out
    assert all(c.name in out for c in doctor.CHECKS)


@pytest.mark.usefixtures("webgpu")
def test_doctor_passes_on_webgpu():
    assert cli.main(["doctor", "--device", "webgpu"]) == 0


def test_doctor_reports_a_mismatch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    right = reference.evaluate
    monkeypatch.setattr(doctor, "CHECKS", doctor.CHECKS[:1])
    monkeypatch.setattr(reference, "evaluate", lambda *given: [x + 1 for x in right(*given)])
    assert doctor.run("cpu") == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "the reference has" in out


def test_a_missing_device_is_one_line_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "none.json"))
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "none.json"))
    assert cli.main(["demo", "sine", "--out", str(tmp_path / "out"), "--device", "webgpu"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("tracegrad: ") and "webgpu" in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_found_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("in the way")
    assert cli.main(["demo", "--out", str(tmp_path / "file"), "--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("tracegrad: ") and "file" in said.err
    assert "Trained" not in said.out


@pytest.mark.parametrize("args", [["demo", "--steps", "0"], ["demo", "--seed", "-1"], ["demo", "cats"], []])
def test_wrong_arguments_are_usage_errors(args: list[str]):
    with pytest.raises(SystemExit) as e:
        cli.main(args)
    assert e.value.code == 2


def test_python_m_tracegrad_is_the_command():
    done = subprocess.run([sys.executable, "-m", "tracegrad", "--help"], capture_output=True, text=True, check=True)
    assert "demo" in done.stdout and "doctor" in done.stdout


@pytest.mark.usefixtures("c_compiler")
def test_examples_run(tmp_path: Path):
    """Each as a user runs it, with fewer steps."""
    folder = Path(__file__).parents[1] / "examples"
    code = "import sine, cnn, gpt, resume, rnn; sine.main(20, 'cpu'); cnn.main(4, 'cpu'); gpt.main(2, 'cpu')"
    code += "; rnn.main(2, 'cpu'); import ensemble, maml, ode, hessian"
    code += "; assert ensemble.main(150, 'cpu').min() < 1e-2; assert hessian.main() < 1e-2; ode.main(3, 'cpu')"
    code += "; before, after = maml.main(300, 'cpu'); assert after < before"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)


def test_the_program_of_the_readme_runs_and_learns(tmp_path: Path):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if re.fullmatch(r"\d+ [\d.e-]+", line)]
    assert len(losses) == 10 and losses[-1] < 0.1 * losses[0]
    assert (tmp_path / "sine.safetensors").exists()


def test_digits_are_all_there_and_split_without_overlap():
    data = load_digits()
    assert data.train_x.shape == (1437, 1, 8, 8) and data.test_x.shape == (360, 1, 8, 8)
    assert data.train_x.min() == 0 and data.train_x.max() == 1
    counts = np.bincount(np.concatenate([data.train_y, data.test_y]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    seen = {x.tobytes() for x in data.train_x}
    assert not any(x.tobytes() in seen for x in data.test_x)


def test_text_decodes_to_what_was_encoded():
    text = load_text()
    assert "Alice" in text.decode(text.train[:5000])
    assert text.decode(text.encode("Off with her head!")) == "Off with her head!"
    assert len(text.train) + len(text.test) > 100_000


def test_inspect_says_what_a_demo_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    demo("sine", tmp_path, "--device", "cpu", "--steps", "3")
    capsys.readouterr()
    for name, wanted in {
        "checkpoint.safetensors": ("a checkpoint", "step: 3", "opt/m/l2.W", "f32[64,64]", "total"),
        "parameters.safetensors": ("6 tensors", "17.4 kB", "l2.W", "4,353"),
    }.items():
        assert cli.main(["inspect", str(tmp_path / name)]) == 0
        said = capsys.readouterr().out
        assert all(word in said for word in wanted), said


def test_inspect_says_what_a_site_and_a_program_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    x = {"x": (4, 2)}
    with tg.compile(
        model=nn.Linear(2, 1), loss=lambda m, x: m(x).sum(), inputs=x, optimizer=optim.sgd(lr=0.1), device="cpu"
    ) as train:
        infer = train.attach(forward=lambda m, x: m(x), inputs=x)
        train.export(tmp_path / "site", forwards={"predict": infer})
        program = tmp_path / "step.json"
        program.write_text(train.program.to_json())
        dispatches = len(train.program.dispatches)
    for what in ("site", "site/program.json", "step.json"):
        assert cli.main(["inspect", str(tmp_path / what)]) == 0
        said = capsys.readouterr().out
        assert f"{dispatches} dispatches" in said and "x f32[4,2]" in said and "W f32[2,1]" in said
        assert ("Forward predict" in said) == what.startswith("site")


def test_bench_times_every_model(capsys: pytest.CaptureFixture[str]):
    assert bench.run("cpu", seconds=0.02) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if " cpu " in line and line[0] != "c"] == list(bench.models())
