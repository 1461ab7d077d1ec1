"""The statements of a kernel in order, as data for every language: loops, and blocks in braces.

A line is a statement that an Emitter has written. The extents of loops are integers, or expressions whose value is
known only when a step runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Loop(NamedTuple):
    """A loop over `body` for each `name` from `first` on that is less than `end`."""

    name: str
    end: int | str
    body: Sequence[Statement]
    first: int | str = 0
    step: int = 1


class Block(NamedTuple):
    """Statements in braces, with text such as a condition before them."""

    head: str
    body: Sequence[Statement]


Statement = str | Loop | Block


def when(condition: str, body: Sequence[Statement]) -> Block:
    """Return statements under a condition."""
    return Block(f"if ({condition})", body)


def spelled(statements: Iterable[Statement], counter: str) -> list[str]:
    """Return the lines of some statements. counter: the language's declaration of a loop variable."""
    lines: list[str] = []
    for s in statements:
        if isinstance(s, str):
            lines.append(s)
            continue
        if isinstance(s, Loop):
            head = f"for ({counter} {s.name} = {s.first}; {s.name} < {s.end}; {s.name} += {s.step}) {{"
        else:
            head = f"{s.head} {{" if s.head else "{"
        lines += [head, *(f"  {line}" for line in spelled(s.body, counter)), "}"]
    return lines
