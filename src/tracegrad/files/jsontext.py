"""JSON from untrusted files: parsed in linear time, with a limit on nesting, and strictly by the standard.

Also conversion between dataclasses and plain data. Data from files are checked completely. Every error is one sentence
with the place of the fault: `program: dispatches[3].kernel is 7; there are 2 kernels`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from itertools import accumulate
from typing import Any, cast, get_args, get_origin, get_type_hints

from tracegrad.errors import InputError

LOCAL = {"local": True}  # metadata of fields that exist only in the process that compiled a program
LARGEST = 2**53  # largest integer up to which JavaScript is exact
DEEPEST = 64  # levels of lists and objects
LONGEST = 60  # characters of a value in a message
STRINGS = rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?'  # an unterminated string extends to the end of the text
NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def dumped(value: Any, **options: Any) -> str:
    """Return `value` as JSON, as json.dumps. Only this function and `parse` load json: most processes need neither."""
    import json

    return json.dumps(value, **options)


def parse(text: bytes | str, deepest: int = DEEPEST) -> Any:
    """Parse a JSON text in UTF-8.

    Raises: InputError for text that is not JSON, is nested deeper than `deepest`, or has a duplicate key. Also for NaN,
    infinities, numbers of more than 4300 digits, and half of a surrogate pair.
    """
    import json

    try:
        data = text.encode() if isinstance(text, str) else text
        whole = data.decode("utf-8")
        # counted before parsing: Python's parser is recursive
        levels = re.sub(STRINGS, b"", data).translate(None, NO_BRACKETS)
        if max(accumulate(map(STEPS.__getitem__, levels)), default=0) > deepest:
            raise InputError(f"it is nested more than {deepest} levels")
        value = json.loads(whole, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        if b"\\u" in data:
            _check_text(value)
        return value
    except InputError:
        raise
    except (ValueError, RecursionError) as e:
        raise InputError(f"it is not JSON: {e}") from None


def shown(value: Any) -> str:
    """Return a value's `repr` for a message, cut to LONGEST characters. Of a long container, show type and length."""
    if isinstance(value, str):
        return cut(repr(value[: LONGEST + 1]))
    many = isinstance(value, Sized) and len(value) > LONGEST
    try:
        return f"a {type(value).__name__} of {len(cast('Sized', value))}" if many else cut(repr(value))
    except ValueError:  # Python does not print integers of more than 4300 digits
        return "a number of thousands of digits"


def printable(text: str) -> str:
    """Escape control characters, direction marks and the like, so that a terminal only prints `text`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Escape each line of `text` as `printable` does, and keep the line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def cut(text: str, longest: int = LONGEST) -> str:
    """Cut a text to at most `longest` characters, ending in "..." if cut."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise InputError(f"it names {shown(_repeated([name for name, _ in pairs]))} twice")
    return out


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _refuse_constant(name: str) -> Any:
    raise InputError(f"it holds {name}, which is not valid JSON")


def _check_text(value: Any) -> None:
    """Raise ValueError if a string has half of a surrogate pair, which a JSON escape can produce."""
    rest = [value]
    while rest:
        x = rest.pop()
        if isinstance(x, str):
            x.encode()  # UnicodeEncodeError is a ValueError
        elif isinstance(x, dict):
            rest += [*x, *x.values()]  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
        elif isinstance(x, list):
            rest += x


def plain(value: Any) -> Any:
    """Convert `value` to dicts and lists, without the local fields of dataclasses."""
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _shared(type(value))}
    if isinstance(value, Mapping):
        return {name: plain(x) for name, x in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in cast("Sequence[Any]", value)]
    return value


def built(kind: Any, value: Any, where: str) -> Any:
    """Convert JSON data to a value of type `kind`. Raises InputError for a value of another type."""
    if is_dataclass(kind):
        return _built_row(cast("Any", kind), value, where)
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        demand(isinstance(value, list), where, value, "a list")
        items = cast("list[Any]", value)
        if ... in kinds:
            return tuple([built(kinds[0], x, f"{where}[{k}]") for k, x in enumerate(items)])
        if len(items) != len(kinds):
            raise InputError(f"{where} has {len(items)} values; expected {len(kinds)}")
        return tuple([built(t, x, f"{where}[{k}]") for k, (t, x) in enumerate(zip(kinds, items))])
    if get_origin(kind) is not None and issubclass(get_origin(kind), Mapping):
        demand(isinstance(value, dict), where, value, "an object")
        return value
    options = get_args(kind) or (kind,)
    if float in options and type(value) is int and abs(value) <= LARGEST:
        return value
    demand(type(value) in options, where, value, " or ".join(t.__name__ for t in options))
    return value


def _built_row(kind: type[Any], value: Any, where: str) -> Any:
    demand(isinstance(value, dict), where, value, "an object")
    shared = _shared(kind)
    unknown = [name for name in value if name not in shared]
    if unknown:
        raise InputError(f"{where} has a field {shown(unknown[0])}; it has {', '.join(shared)}")
    missing = [name for name in shared if name not in value]
    if missing:
        raise InputError(f"{where} has no field {missing[0]!r}")
    row = {name: built(shared[name], x, f"{where}.{name}") for name, x in value.items()}
    for f in fields(kind):
        if "filed" in f.metadata:
            row[f.name] = f.metadata["read"](**{name: row.pop(name) for name in f.metadata["filed"]})
    return kind(**row)


@functools.cache
def _shared(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields that files store for a dataclass. Local fields are left out.

    If a field's metadata have `filed`, files store the texts named there instead of the field.
    """
    kinds = get_type_hints(kind)
    rows = [f for f in fields(kind) if not f.metadata.get("local")]
    return {name: kinds.get(name, str) for f in rows for name in f.metadata.get("filed", (f.name,))}


def demand(holds: bool, where: str, value: Any, expected: str) -> None:
    """Check a condition on `value`. Raises InputError naming `expected` if it does not hold."""
    if not holds:
        raise InputError(f"{where} is {shown(value)}; expected {expected}")


def natural(n: int, where: str) -> None:
    """Check that `n` is from 0 to 2**53. Raises InputError otherwise."""
    demand(0 <= n <= LARGEST, where, n, f"0 to {LARGEST}")


def index(n: int, count: int, where: str, what: str) -> int:
    """Return `n`. Raises InputError unless it is an index into `count` elements."""
    if not 0 <= n < count:
        raise InputError(f"{where} is {shown(n)}; there are {count} {what}")
    return n


def distinct(names: Sequence[str], where: str) -> None:
    """Check that names are unique. Raises InputError for a name that occurs twice."""
    if (name := _repeated(names)) is not None:
        raise InputError(f"{where} has two of the name {shown(name)}")
