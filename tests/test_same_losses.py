"""The trainings of test_end_to_end.py in a page, in Pyodide, natively on the same adapter and llvmpipe, on the CPU."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import HELPERS, browser, find_chromium, open_page, plain, served
from pyodide_tab import Python, pyodide, python, wheel
from test_end_to_end import CLIP, CONTEXT, DECAY, JOBS, LOSS, RATE, STEPS, TEXT, compiled, cpu_run, run

__all__ = ["browser", "pyodide", "python", "served", "wheel"]  # fixtures

SAME_ADAPTER = 1e-5  # relative: one driver, but two compilers of WGSL, Tint and Naga

CHILD = """
import json, sys
from test_end_to_end import JOBS, run
from tracegrad import devices
assert "SwiftShader" in str([d for d in devices() if d.name == "webgpu"]), devices()
print("LOSSES" + json.dumps({name: run(job, "webgpu").losses for name, job in JOBS.items()}))
"""


@functools.cache
def native_swiftshader() -> dict[str, list[float]]:
    """Losses by wgpu-py on Chromium's own software adapter; a driver is chosen before its process begins."""
    program = Path(os.path.realpath(find_chromium() or ""))
    found = [p for d in (program.parent, Path("/usr/lib/chromium")) for p in d.glob("vk_swiftshader_icd.json")]
    if not found:
        pytest.skip(f"no vk_swiftshader_icd.json beside {program}")
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(tg.__file__).parents[1])])
    env = {**os.environ, "VK_DRIVER_FILES": str(found[0]), "VK_ICD_FILENAMES": str(found[0]), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD], env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("LOSSES")[1])


def page_losses(browser: Any, served: tuple[str, Path], name: str) -> list[float]:
    url, folder = served
    job = JOBS[name]
    with tg.compile(**job.training.arguments(), seed=0, device="cpu") as train:
        train.export(folder / name)
    page = open_page(browser, f"{url}/blank.html")
    code = """async ([name, inputs]) => {
      const { load } = await import(`/${name}/tracegrad.js`);
      const train = await load(`/${name}`);
      return (await Promise.all(inputs.map((x) => train.step(given(x))))).map(told);
    }"""
    page.evaluate(f"() => {{ {HELPERS} }}")
    inputs = [plain(batch) for batch, _ in zip(job.batches(), range(STEPS))]
    results = page.evaluate(code, [name, inputs])
    assert page.problems == []
    page.context.close()
    assert [r["step"] for r in results] == list(range(1, STEPS + 1))
    return [r["losses"][0] for r in results]


MODELS = {"models.py": (Path(__file__).parent / "models.py").read_text(encoding="utf-8")}
SOURCES = {  # of JOBS, for a Python that has no PyTorch
    "sine": "sine(batch=64, width=32, optimizer=adamw)",
    "cnn": "cnn(batch=16, side=8, a=4, b=8, optimizer=adamw)",
    "gpt": f"gpt(batch=4, vocabulary={len(TEXT.alphabet)}, context={CONTEXT}, width=16, layers=2, optimizer=adamw)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_one_adapter_gives_the_same_losses_to_page_python_and_pyodide(
    browser: Any, served: tuple[str, Path], python: Python, name: str, webgpu: None
) -> None:
    page = page_losses(browser, served, name)
    np.testing.assert_allclose(page, native_swiftshader()[name], rtol=SAME_ADAPTER)
    np.testing.assert_allclose(page, cpu_run(name).losses, rtol=LOSS)
    np.testing.assert_allclose(page, run(JOBS[name], "webgpu").losses, rtol=LOSS)
    inputs = [{k: x.tolist() for k, x in batch.items()} for batch, _ in zip(JOBS[name].batches(), range(STEPS))]
    code = f"""
    from models import *
    from tracegrad import optim
    adamw = lambda: optim.adamw(lr={RATE}, weight_decay={DECAY}, clip_grad_norm={CLIP})
    train = tg.compile(**{SOURCES[name]}.arguments(), seed=0)
    answer = [[(await train.step(x)).loss for x in inputs], train.program.to_json()]
    train.close()
    """
    losses, program = python.run(code, MODELS, inputs=inputs)
    with compiled(JOBS[name].training) as train:
        assert program == train.program.to_json()
    np.testing.assert_allclose(losses, page, rtol=SAME_ADAPTER)
    np.testing.assert_allclose(losses, cpu_run(name).losses, rtol=LOSS)
