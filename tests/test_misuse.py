"""Wrong programs get messages that say what is wrong, on which line, and what to write instead.

The programs are the functions of `tests/misuse`, their messages `tests/golden/misuse`. After a change that is meant,
read the difference that this makes:

    TRACEGRAD_GOLDEN=1 python -m pytest tests/test_misuse.py && git diff tests/golden/misuse
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from kept import assert_as_kept
from misuse import table
from misuse.table import MISTAKES, Message

FOLDER = Path(__file__).parent / "golden" / "misuse"
MODULES = sorted(p.stem for p in Path(table.__file__).parent.glob("*.py") if p.stem not in ("__init__", "table"))
for module in MODULES:
    importlib.import_module(f"misuse.{module}")  # each enters its mistakes in the table
LONGEST = 700  # characters of a message without the user's line
LINES = 12
# What a remedy has: a verb for the user, a name to write, or what is allowed
REMEDY = re.compile(
    r"\b(write|use|pass|leave|give|did you mean|declare|make|cast|call|reshape|compile|compare|choose|convert|define|"
    r"derive|drop|exchange|keep|number|pad|pick|put|read|rename|round|return|sort|cut|transpose|work on|scale|such as|"
    r"values go|tg\.\w+|train\.\w+|x\.\w+|must|takes?|needs|expected|valid|known|there are|it has|inputs are|"
    r"parameters are|was super|nothing was changed|can be set)\b",
    re.IGNORECASE,
)


@functools.cache
def message(name: str) -> Message:
    mistake = MISTAKES[name]
    if mistake.needs is not None and importlib.util.find_spec(mistake.needs) is None:
        pytest.skip(f"{mistake.needs} is not installed")
    return table.message(mistake)


@pytest.mark.parametrize("name", MISTAKES)
def test_what_where_and_how(name: str) -> None:
    mistake, said = MISTAKES[name], message(name)
    # What: the op, input, name or value in question, and both types where they matter.
    for part in mistake.says:
        assert part in said.full, f"{part!r} is not in\n{said.full}"
    # An error of the library's own, unless Python's own words say all there is, as for a wrong number of arguments.
    assert issubclass(said.kind, mistake.raises), said.kind
    assert issubclass(said.kind, (tg.TracegradError, TypeError, OSError, Warning)), said.kind
    # Where: the line of the mistake, or that of the small program around it.
    lines, first = inspect.getsourcelines(mistake.function)
    assert said.file is not None, f"no line of the user's in\n{said.full}"
    if Path(said.file) != Path(table.__file__):
        assert said.line is not None and first <= said.line < first + len(lines), f"line {said.line}:\n{said.full}"
    # How: a remedy. Python's own errors have none.
    own = issubclass(said.kind, (tg.TracegradError, Warning))
    words = said.full.partition("\n  at ")[0]
    assert not own or REMEDY.search(words), f"no remedy in\n{words}"
    # Short enough to be read, on one screen, and without the library's inner names.
    assert len(words) <= LONGEST and words.count("\n") < LINES, words
    assert not re.search(r"<locals>|object at 0x|Traceback|NoneType' object|tracegrad\.\w+\.\w+\.", words), words


def test_the_table_is_large() -> None:
    assert len(MISTAKES) >= 300


@pytest.mark.parametrize("module", MODULES)
def test_the_messages_are_as_they_were(module: str) -> None:
    texts: list[str] = []
    for name, mistake in MISTAKES.items():
        if mistake.module == module:
            said = message(name)
            texts.append(f"[{name}] {said.kind.__name__}\n{said.text}\n")
    text = "\n".join(texts)
    assert_as_kept(FOLDER / f"{module}.txt", text)


def test_no_message_is_left_over() -> None:
    assert {p.stem for p in FOLDER.iterdir()} == set(MODULES)


def test_no_mistake_changes_a_training() -> None:
    """The shared one goes on after all calls as one does that was never called wrongly."""
    for name, mistake in MISTAKES.items():
        if mistake.needs is None:
            message(name)
    batch = {"x": table.X, "y": table.Y}
    steps = table.shared().step(batch).step
    with table.compiled() as untouched:
        untouched.run_steps(steps, batch).result()
        mine, theirs = table.shared().download_params(), untouched.download_params()
    assert steps < 40
    assert all(np.array_equal(mine[n], theirs[n]) for n in theirs)
