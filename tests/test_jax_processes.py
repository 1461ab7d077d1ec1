"""Two and four processes on one machine, as SLURM would start them, train as a single device does, step by step."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed")

from processes_child import STEPS, batches, compiled
from xla import devices

CHILD = Path(__file__).with_name("processes_child.py")
PATIENCE = 240  # seconds, on a busy machine
NEAR = 1e-5


def started(n: int, folder: Path, what: str) -> list[subprocess.Popen[str]]:
    """The processes, with two devices each, on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, str(CHILD), str(port), str(n), str(k), str(folder), what], env=devices(2),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for k in range(n)
    ]  # fmt: skip


def ended(processes: list[subprocess.Popen[str]], folder: Path, what: str) -> list[Any]:
    """What each of them found."""
    late = time.monotonic() + PATIENCE
    while any(p.poll() is None for p in processes) and time.monotonic() < late:
        time.sleep(0.1)
    codes = [p.poll() for p in processes]  # None: it hangs, perhaps because another has failed
    for p in processes:
        p.kill()
    errors = [p.communicate()[1] for p in processes]
    assert codes == [0] * len(codes), f"{codes}\n" + "\n".join(errors)
    return [json.loads((folder / f"{what}-{k}.json").read_text()) for k in range(len(processes))]


@pytest.fixture(scope="module")
def single() -> Iterator[dict[str, Any]]:
    """The same training on one device."""
    with compiled() as train:
        losses = [train.step(b).loss for b in batches()]
        yield {"losses": losses, "params": train.params()}


@pytest.mark.parametrize("n", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_as_one_device_does(n: int, tmp_path: Path, single: dict[str, Any]) -> None:
    """Each layout, from whole batches and from each process's rows; what they save loads on one device."""
    found = ended(started(n, tmp_path, "train"), tmp_path, "train")
    for name, one in found[0].items():
        assert f"in {n} processes" in one["device"]
        for process in found:
            np.testing.assert_allclose(process[name]["losses"], single["losses"], rtol=NEAR, err_msg=name)
            for k, x in single["params"].items():
                np.testing.assert_allclose(process[name]["params"][k], x, rtol=NEAR, atol=1e-6, err_msg=f"{name} {k}")
        with compiled() as train:
            train.load(tmp_path / f"{name}.safetensors")
            for k, x in train.params().items():
                np.testing.assert_array_equal(x, np.asarray(one["params"][k], np.float32))
    held = {"data": 256, "fsdp": 256 // (2 * n), "tensor": 128, "tensor across": 256 // (2 * n)}
    assert {name: one["held"] for name, one in found[0].items()} == {name: held[name] for name in found[0]}
    assert len(found[0]) == (4 if n == 2 else 2)


@pytest.mark.parametrize("how", ["", " folder"])
def test_one_of_them_is_killed_and_the_job_goes_on_from_the_last_checkpoint(
    how: str, tmp_path: Path, single: dict[str, Any]
) -> None:
    """A folder is written while the steps go on. If its last checkpoint is incomplete, the one before it counts.

    The interpreter waits for a folder that is still being written when the program ends.
    """
    first = started(2, tmp_path, f"die{how}")
    try:
        assert first[1].wait(timeout=PATIENCE) == -9
    finally:
        for p in first:  # as SLURM ends a job of which one process is gone
            p.kill()
            p.communicate()
    for process in ended(started(2, tmp_path, f"resume{how}"), tmp_path, f"resume{how}"):
        losses = {int(k): x for k, x in process["losses"].items()}
        done = min(losses) - 1
        assert done == 4 or (how and done == 2), "it goes on behind step 4, whose checkpoint was the last"
        np.testing.assert_allclose([losses[k + 1] for k in range(done, STEPS)], single["losses"][done:], rtol=NEAR)
    if how:
        with compiled() as train:
            train.load(tmp_path / "resume")
            assert train.store.call(lambda _, stepper: stepper.counter) == 4


SAID = {
    "model": "disagree about the program: process 1 differs from",
    "seed": "disagree about what 'params' gets: process 1 differs from",
}


@pytest.mark.parametrize("what", SAID)
def test_processes_that_disagree_are_told(what: str, tmp_path: Path) -> None:
    for process in ended(started(2, tmp_path, what), tmp_path, what):
        assert SAID[what] in process["error"] and "every process must" in process["error"]
