"""Which test runs which lines of some files, and in how many seconds; kept in .mutate."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1]
MAP = HOME / ".mutate"
SRC = "src/tracegrad/"
TOGETHER = 200  # tests between two writings of the map


@dataclass(frozen=True)
class Run:
    """One test without any change: its seconds, and the lines of each file that it runs, as bits."""

    function: str
    seconds: float
    lines: dict[str, int]
    failed: bool = False


def noted(session: Any, files: Sequence[str], fresh: bool) -> list[Run]:
    """Return the `Run` of each test. Tests whose entry is missing or old run again, in a fork for each module."""
    MAP.mkdir(exist_ok=True)
    for at in MAP.iterdir() if fresh else ():
        at.unlink()
    now = {name: digest(HOME / SRC / name) for name in files}
    runs: list[Run] = [Run("", 0, {}, failed=True)] * len(session.items)
    modules: dict[Path, list[int]] = {}
    for k, item in enumerate(session.items):
        modules.setdefault(item.path, []).append(k)
    for path, members in modules.items():
        at, own = MAP / f"{path.stem}.json", digest(path)
        known = json.loads(at.read_text()) if at.exists() else {}
        fits = known.get("test") == own and known["files"].keys() == now.keys()  # of other files it knows no lines
        entries: dict[str, Any] = known["runs"] if fits else {}
        old = {name for name, was in known.get("files", {}).items() if now.get(name) != was}
        stale = [k for k in members if not _valid(entries.get(session.items[k].nodeid), old)]
        entries = {n: entry for n, entry in entries.items() if _valid(entry, old)}
        for start in range(0, len(stale), TOGETHER):
            some = stale[start : start + TOGETHER]
            print(f"noting {len(some)} tests of {path.stem}", flush=True)
            head = {"test": own, "files": now}
            in_fork(session, lambda s=some, a=at, e=entries, h=head: note(session, files, s, a, e, h))
            entries = json.loads(at.read_text())["runs"]
        for k in members:
            found = entries.get(session.items[k].nodeid)
            if found is not None:
                lines = {name: int(bits, 16) for name, bits in found["lines"].items()}
                runs[k] = Run(session.items[k].nodeid.partition("[")[0], found["seconds"], lines, found["failed"])
            if found is None or found["failed"]:
                print(f"  left out, because it fails without any change: {session.items[k].nodeid}", flush=True)
    return runs


def _valid(entry: dict[str, Any] | None, old: set[str]) -> bool:
    """Return whether an entry of the map is still valid after the files `old` changed."""
    return entry is not None and not entry["failed"] and not old & set(entry["lines"])


def digest(path: Path) -> str:
    """Return a hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def note(
    session: Any, files: Sequence[str], items: list[int], at: Path, entries: dict[str, Any], head: dict[str, Any]
) -> None:
    """Run tests, and add the lines that each of them runs to the file `at`."""
    measure = measured(files)
    measure.start()
    found: dict[str, dict[str, Any]] = {}
    for k in items:
        nodeid = session.items[k].nodeid
        measure.switch_context(nodeid)
        began = time.perf_counter()
        run(session.items[k])
        found[nodeid] = {"seconds": time.perf_counter() - began, "failed": bool(session.testsfailed), "lines": {}}
        session.testsfailed = 0
    measure.stop()
    for nodeid, lines in lines_by_context(measure, files).items():
        if nodeid:
            found[nodeid]["lines"] = {name: f"{mask:x}" for name, mask in lines.items()}
    at.write_text(json.dumps(head | {"runs": entries | found}))


def measured(files: Sequence[str]) -> Any:
    """Return a `coverage.Coverage` that records which lines of the files run."""
    from coverage import Coverage

    return Coverage(data_file=None, config_file=False, include=[str(HOME / SRC / name) for name in files])


def lines_by_context(measure: Any, files: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return, for each context, the lines of each file that ran in it, as bits. The first context is ""."""
    found: dict[str, dict[str, int]] = {"": {}}
    data = measure.get_data()
    for name in files:
        for line, contexts in data.contexts_by_lineno(str(HOME / SRC / name)).items():
            for context in contexts:
                lines = found.setdefault(context, {})
                lines[name] = lines.get(name, 0) | 1 << line
    return found


def in_fork(session: Any, job: Any) -> None:
    """Do a job in a fork that prints nothing, so that this process stays as it was."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        silence(session)
        try:
            job()
        finally:
            os._exit(0)
    try:
        os.waitpid(child, 0)
    except BaseException:
        end(child)
        raise


def end(child: int) -> None:
    """Kill a fork and the processes that it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def silence(session: Any) -> None:
    """Print nothing from now on."""
    session.config.pluginmanager.unregister(name="terminalreporter")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)


def run(item: Any) -> None:
    """Run one test, with its fixtures set up and torn down."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
