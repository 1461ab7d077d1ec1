"""tools/fuzz: random programs on every runtime, what differs made small, printed, and kept in the corpus.

  tools/fuzz --seeds 0:300                   three hundred programs
  tools/fuzz --seeds 0:100000 --jobs 8       every night; goes on where it was stopped
  tools/fuzz --seeds 278:279 --runners c     one program on one runtime
  tools/fuzz --rows 0:11                     every row of the case table, at eleven choices of sizes
  tools/fuzz --replay                        the corpus

Seeds run in chunks, each in a process of its own: a crash or a hang of one is a finding, and nothing piles up. A chunk
imports from where this process does. A runner that this machine or a chunk's process lacks ends the command with exit
status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.case_steps import row_programs
from fuzzing.compare import Finding
from fuzzing.corpus import FOLDER, keep, kept
from fuzzing.grow import grow
from fuzzing.polymorphic import DEVICES, explored as compared_at_sizes
from fuzzing.runners import RUNNERS
from fuzzing.search import Report, kind, search
from fuzzing.shrink import shrunk
from fuzzing.snippet import snippet

CHUNK = 200  # seeds of one process
BATCH = 20  # programs that are compiled as one
HANGS = 1800.0  # seconds after which a chunk counts as hanging
LINE = "fuzz:"  # begins what a chunk tells
LACKING = 2  # exit status where a runner cannot run


@dataclass
class Total:
    """What all chunks found."""

    programs: int = 0
    sharp: float = 0.0
    answered: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, told: dict[str, Any]) -> None:
        """Counts a chunk in."""
        self.programs += told["programs"]
        self.sharp += told["sharp"]
        self.answered.update(told["answered"])
        self.kinds.update(told["kinds"])

    def __str__(self) -> str:
        sharp = 100 * self.sharp / max(self.programs, 1)
        lines = [f"{self.programs} programs; {sharp:.1f} % of their elements have a bound below 1/1000 of the largest"]
        lines += [f"  {name}: {n} answered" for name, n in sorted(self.answered.items())]
        lines += [f"  {n} x {what}" for what, n in self.kinds.most_common()] or ["no differences"]
        return "\n".join(lines)


class RunnerError(Exception):
    """A runner cannot run."""


def explored(seeds: range, runners: Sequence[str], seconds: float, folder: Path) -> dict[str, Any]:
    """One chunk, in this process: what it found is shrunk, printed and kept. A summary as plain data."""
    report, kinds = Report(), Counter[str]()
    for start in range(seeds.start, seeds.stop, BATCH):
        found = search([grow(s) for s in range(start, min(start + BATCH, seeds.stop))], runners)
        for finding in found.findings:
            small = shrunk(finding, seconds)
            what = f"{kind(small)}: {' '.join(str(s.attrs.get('name', s.op)) for s in small.program.steps)}"
            if not kinds[what]:
                print(f"\n{snippet(small)}\nkept as {keep(small, folder)}", flush=True)
            kinds[what] += 1
        report.add(found)
    return {"programs": report.programs, "sharp": report.sharp, "answered": report.answered, "kinds": kinds}


def chunk(seeds: range, options: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own. One that crashes or hangs is halved, down to the seed."""
    command = [sys.executable, "-m", "fuzzing.command", "--inside", "--seeds", f"{seeds.start}:{seeds.stop}",
               "--runners", options.runners, "--shrink", str(options.shrink),
               "--corpus", str(options.corpus)]  # fmt: skip
    with tempfile.TemporaryDirectory() as cache:
        path = os.pathsep.join(p for p in sys.path if p)  # packages may have come by other ways than PYTHONPATH
        env = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": path}
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS)
            lines, how = done.stdout.splitlines(), f"exit status {done.returncode}\n{done.stderr[-2000:]}"
        except subprocess.TimeoutExpired:
            lines, how = [], f"no end after {HANGS:.0f} s"
        else:
            if done.returncode == LACKING:
                raise RunnerError(done.stderr.strip().rpartition("\n")[2])
    if lines and lines[-1].startswith(LINE):
        if lines[:-1]:
            print("\n".join(lines[:-1]), flush=True)
        return json.loads(lines[-1].removeprefix(LINE))
    if len(seeds) == 1:
        path = keep(Finding(grow(seeds.start), "process", how), options.corpus)
        print(f"seed {seeds.start} ends its process: {how}\nkept as {path}", flush=True)
        return {"programs": 1, "sharp": 1.0, "answered": {}, "kinds": {"ends its process": 1}}
    middle = (seeds.start + seeds.stop) // 2
    total = Total()
    for half in (range(seeds.start, middle), range(middle, seeds.stop)):
        total.add(chunk(half, options))
    return {"programs": total.programs, "sharp": total.sharp, "answered": total.answered, "kinds": total.kinds}


def fuzz(options: argparse.Namespace) -> Total:
    """All chunks that the progress file does not have yet."""
    total, finished = Total(), set[tuple[int, int]]()
    progress: Path = options.progress
    if progress.exists():
        for line in progress.read_text().splitlines():
            told = json.loads(line)
            if told["runners"] == options.runners and tuple(told["seeds"]) not in finished:
                finished.add(tuple(told["seeds"]))
                if options.seeds.start <= told["seeds"][0] and told["seeds"][1] <= options.seeds.stop:
                    total.add(told)
    first, end = options.seeds.start, options.seeds.stop
    chunks = [range(at, min(at + CHUNK, end)) for at in range(first, end, CHUNK)]
    begin = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        left = {pool.submit(chunk, c, options): c for c in chunks if (c.start, c.stop) not in finished}
        for done in as_completed(left):
            c, told = left[done], done.result()
            total.add(told)
            with progress.open("a") as file:
                file.write(json.dumps({"seeds": [c.start, c.stop], "runners": options.runners, **told}) + "\n")
            minutes = (time.monotonic() - begin) / 60
            shown = f"seeds {c.start}:{c.stop} done, {total.programs} in all, {minutes:.1f} min"
            print(shown, file=sys.stderr, flush=True)
    return total


def replay(runners: Sequence[str], folder: Path) -> list[Finding]:
    """The programs of the corpus that still fail."""
    found: list[Finding] = []
    for _, program in kept(folder):
        found += search([program], runners).findings
    return found


def table(runners: Sequence[str], turns: range) -> list[Finding]:
    """What differs of the rows of the case table."""
    found: list[Finding] = []
    for turn in turns:
        programs = row_programs(turn)
        for at in range(0, len(programs), BATCH):
            found += search(programs[at : at + BATCH], runners).findings
    return found


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    layout = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__, formatter_class=layout)
    parser.add_argument("--seeds", default="0:300", type=_seeds, help="first:end")
    parser.add_argument("--runners", default="passes,eager,numpy,c,webgpu,torch", help=f"some of {','.join(RUNNERS)}")
    parser.add_argument("--jobs", default=1, type=int, help="processes at a time")
    parser.add_argument("--shrink", default=60.0, type=float, help="seconds to make a failing program smaller")
    parser.add_argument("--corpus", default=FOLDER, type=Path, help="where failing programs are kept")
    parser.add_argument("--progress", default=Path("fuzz-progress.jsonl"), type=Path, help="which chunks are done")
    parser.add_argument("--rows", default=None, type=_seeds, help="run the case table instead, at these turns of sizes")
    parser.add_argument("--sizes", default=None, type=_seeds, help="run functions of all sizes instead, of these seeds")
    parser.add_argument("--seconds", default=300.0, type=float, help="after which --sizes begins nothing, per runner")
    parser.add_argument("--replay", action="store_true", help="run the corpus instead")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end or int(first) + 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if anything differs."""
    options = parsed(arguments)
    runners = options.runners.split(",")
    unknown = sorted(set(runners) - set(RUNNERS))
    if unknown:
        print(f"no such runner: {', '.join(unknown)}; there are {', '.join(RUNNERS)}", file=sys.stderr)
        return LACKING
    lacking = {name: why for name in runners if (why := RUNNERS[name].lacks())}
    if lacking:
        print("; ".join(f"{name} cannot run: {why}" for name, why in lacking.items()), file=sys.stderr)
        return LACKING
    warnings.simplefilter("ignore")
    if options.sizes is not None:
        chosen = [name for name in runners if name in DEVICES]
        found = [text for name in chosen for text in compared_at_sizes(options.sizes, name, options.seconds)]
        return bool(found)
    if options.inside:
        print(LINE + json.dumps(explored(options.seeds, runners, options.shrink, options.corpus)))
        return 0
    if options.replay or options.rows is not None:
        found = table(runners, options.rows) if options.rows is not None else replay(runners, options.corpus)
        print("\n\n".join(map(snippet, found)) or "nothing differs")
        return bool(found)
    try:
        total = fuzz(options)
    except RunnerError as e:
        print(f"in a process of its own, {e}", file=sys.stderr)
        return LACKING
    print(total)
    return bool(total.kinds)


if __name__ == "__main__":
    sys.exit(main())
