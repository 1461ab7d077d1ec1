"""JSON from files of others: parsed in linear time, with a limit on nesting, and nothing that JSON itself forbids."""

from __future__ import annotations

import json
import re
from collections.abc import Sized
from itertools import accumulate
from typing import Any, cast

from tracegrad.errors import InputError

DEEPEST = 64  # levels of lists and objects
LONGEST = 60  # characters of a value in a message
STRINGS = rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?'  # one without an end goes to the end of the text
NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def parse(text: bytes | str, deepest: int = DEEPEST) -> Any:
    """The value of a JSON text in UTF-8.

    Raises: InputError for text that is not JSON, is nested deeper than `deepest`, names a key of an object twice, or
    holds NaN, an infinity, a number of more than 4300 digits, or half of a surrogate pair.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        whole = data.decode("utf-8")
        # counted before parsing: Python's parser calls itself for each level
        levels = re.sub(STRINGS, b"", data).translate(None, NO_BRACKETS)
        if max(accumulate(map(STEPS.__getitem__, levels)), default=0) > deepest:
            raise InputError(f"it is nested more than {deepest} levels deep")
        value = json.loads(whole, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        if b"\\u" in data:
            _check_text(value)
        return value
    except InputError:
        raise
    except (ValueError, RecursionError) as e:
        raise InputError(f"it is not JSON: {e}") from None


def shown(value: Any) -> str:
    """A value for a message: its `repr` in printable characters, cut to a line."""
    if isinstance(value, str):
        return cut(repr(value[: LONGEST + 1]))
    many = isinstance(value, Sized) and len(value) > LONGEST
    try:
        return f"a {type(value).__name__} of {len(cast('Sized', value))}" if many else cut(repr(value))
    except ValueError:  # Python spells no integers of more than 4300 digits
        return "a number of thousands of digits"


def printable(text: str) -> str:
    """`text` with control characters, direction marks and the like escaped, so that a terminal only prints it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay."""
    return "\n".join(map(printable, text.split("\n")))


def cut(text: str, longest: int = LONGEST) -> str:
    """The first characters of a long text."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InputError(f"it names {shown(name)} twice")
            seen.add(name)
    return out


def _refuse_constant(name: str) -> Any:
    raise InputError(f"it holds {name}, which JSON does not have")


def _check_text(value: Any) -> None:
    """Escapes can spell half of a surrogate pair, which no text holds."""
    rest = [value]
    while rest:
        x = rest.pop()
        if isinstance(x, str):
            x.encode()  # UnicodeEncodeError is a ValueError
        elif isinstance(x, dict):
            rest += [*x, *x.values()]  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
        elif isinstance(x, list):
            rest += x
