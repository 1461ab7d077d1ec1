"""The hosted workflows: what they call exists here, and no action of others can change under its name."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

HOME = Path(__file__).parents[1]
WORKFLOWS = sorted((HOME / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def jobs() -> list[tuple[str, str, dict[str, Any]]]:
    """Workflow, name and content of every job."""
    read = ((path, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in WORKFLOWS)
    return [(path.name, name, job) for path, content in read for name, job in content["jobs"].items()]


def commands() -> list[str]:
    return [step["run"] for _, _, job in jobs() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit_with_the_version_beside_it(path: Path) -> None:
    """A tag of another's repository can be moved to other code; a commit can't."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(r"\s+- uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_one_action_is_one_commit() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    pins = set(re.findall(r"uses: ([\w./-]+)@(\w+)", text))
    assert len({name for name, _ in pins}) == len(pins), pins


def test_only_publishing_may_do_more_than_read() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}, path.name
    more = {(path, name): job["permissions"] for path, name, job in jobs() if "permissions" in job}
    assert more == {("release.yml", "publish"): {"id-token": "write"}}


def test_pull_requests_run_everything_and_what_is_portable_on_three_systems() -> None:
    of = {name: job for path, name, job in jobs() if path == "ci.yml"}
    assert [step["run"] for step in of["everything"]["steps"] if "run" in step] == [".ci/run"]
    matrix = of["portable"]["strategy"]["matrix"]
    assert {re.split(r"-\d", name)[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    label = "Programming Language :: Python :: 3."
    assert [f"{label}{version.split('.')[1]}" for version in matrix["python"]] == [
        line for line in PROJECT["classifiers"] if line.startswith(label)
    ]


def test_what_the_commands_call_exists() -> None:
    for text in commands():
        for path in re.findall(r"(?:^|[\s@])((?:\.ci|tools|tests)/[\w./]+)", text):
            assert (HOME / path).is_file(), text
        for extras in re.findall(r"-e \"\.\[([\w,]+)\]\"", text):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), text
        if text.startswith("tracegrad "):
            run = [sys.executable, "-m", *text.split(), "--help"]
            assert subprocess.run(run, cwd=HOME, capture_output=True, check=False).returncode == 0, text
