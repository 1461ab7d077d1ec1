"""The programs that ever failed, one file each; tests replay them on every runner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fuzzing.compare import Finding
from fuzzing.program import Program

FOLDER = Path(__file__).parents[1] / "corpus" / "fuzz"


def kept(folder: Path = FOLDER) -> Iterator[tuple[str, Program]]:
    """Every program of the corpus, by the name of its file."""
    for path in sorted(folder.glob("*.json")):
        yield path.stem, Program.from_json(json.dumps(json.loads(path.read_text())["program"]))


def keep(finding: Finding, folder: Path = FOLDER) -> Path:
    """Writes a finding into the corpus."""
    ops = "-".join(dict.fromkeys(str(s.attrs.get("name", s.op)) for s in finding.program.steps))[:48]
    name = "".join(c if c.isalnum() else "-" for c in f"{finding.runner}-{ops}-{finding.program.seed}")
    path = folder / f"{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    data = {"found": f"{finding.runner}: {finding.what}", "program": json.loads(finding.program.to_json())}
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path
