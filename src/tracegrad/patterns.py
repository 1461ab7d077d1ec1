"""Selections of parameters by name: a pattern, a list of patterns, or a function of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from tracegrad.errors import InputError, is_function
from tracegrad.refusals import NoNumber, shown
from tracegrad.wrong_calls import check_takes

Selection = str | Sequence[str] | Callable[[str], bool]
NAMED = 12  # names listed in an error


def matcher(given: Selection, what: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches: `*` matches any text, also dots, and `?` one character.

    js/checks.js has the same rule. Raises InputError for anything but a pattern, a list of them, or a function."""
    if is_function(given) and not isinstance(given, NoNumber):  # a layer is callable, too
        check_takes(what, "parameters", given, ("name",))
        return lambda name: bool(given(name))
    patterns: list[object] = [given] if isinstance(given, str) else list(cast("Iterable[object]", _listed(given, what)))
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError.here(f"{what}: a pattern is a text such as 'backbone.*', got {shown(pattern)}")
    rules = [re.escape(str(p)).replace(r"\*", ".*").replace(r"\?", ".") for p in patterns]
    rule = re.compile("|".join(f"(?:{rule})" for rule in rules) or r"(?!)", re.DOTALL)
    return lambda name: rule.fullmatch(name) is not None


def _listed(given: object, what: str) -> object:
    if isinstance(given, (list, tuple, set, frozenset)):
        return cast("object", given)
    raise InputError.here(
        f"{what}: parameters are chosen by a pattern such as 'backbone.*', a list of patterns, or a function of the "
        f"name; got {shown(given)}"
    )


def chosen(names: Iterable[str], given: Selection, what: str) -> list[str]:
    """Return the `names` that match. Raises InputError if there are none."""
    names = list(names)
    fits = matcher(given, what)
    found = [name for name in names if fits(name)]
    if not found:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise InputError.here(f"{what}: {label(given)} matches no parameter; they are {', '.join(names[:NAMED])}{more}")
    return found


def label(given: Selection) -> str:
    """Return the text for a selection in errors and pages."""
    if callable(given):
        return getattr(given, "__name__", "a function")
    return " | ".join(map(repr, given)) if isinstance(given, (list, tuple)) else repr(given)
