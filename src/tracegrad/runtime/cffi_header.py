"""Remember what cffi reads in wgpu-py's header: parsing 0.1 MB of C takes 0.3 of the 0.48 s to import wgpu.

The result is kept as JSON in the user's cache directory, under a hash of the header and of all code that reads it, and
loads in 0.02 s. The header is parsed if anything differs from cffi 2, or if another user could have written the file.

The file is JSON, not pickle: a damaged or forged file can only give wrong descriptions of C types, and cannot run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from tracegrad.runtime import cffi_names
from tracegrad.runtime.cache import cache_folder, is_own, put

LONG = 50_000  # characters; parsing less takes no time
LOCK = threading.Lock()  # without it two threads would each take the other's reader for cffi's


@contextlib.contextmanager
def read_once() -> Generator[None]:
    """Stop cffi from parsing, inside the block, a long header that it has read in an earlier process."""
    with LOCK:
        try:
            version: str = importlib.import_module("cffi").__version__
            parser: Any = importlib.import_module("cffi.cparser").Parser
            folder, parse = cache_folder(), parser.parse
        except (ImportError, AttributeError, OSError):
            yield
            return
        parser.parse = _reader(parse, version, folder)
        try:
            yield
        finally:
            parser.parse = parse


def _reader(parse: Callable[..., None], version: str, folder: Path) -> Callable[..., None]:
    """Return cffi's `parse`, which stores the result for a long header in a folder."""

    def read(self: object, source: str, override: bool = False, **options: Any) -> None:
        if len(source) < LONG or override or any(options.values()) or vars(self)["_declarations"]:
            parse(self, source, override=override, **options)
            return
        key = "\0".join([source, version, sys.version, sys.prefix])
        path = folder / f"header-{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"
        known = _kept(path)
        if known is not None:
            vars(self).update(known)
        else:
            parse(self, source)
            with contextlib.suppress(Exception):  # if this fails, the next process parses as well
                put(path, as_json({name: x for name, x in vars(self).items() if name != "_structnode2type"}).encode())
        cffi_names.declare_what_occurs(self)  # because importing wgpu reads types already

    return read


def _kept(path: Path) -> dict[str, Any] | None:
    """Return the contents of a file, if this user wrote it."""
    try:
        if not is_own(path):
            return None
        known = from_json(path.read_text(encoding="utf-8"))
        os.utime(path)
    except Exception:  # whatever the file contains
        return None
    return known if "_declarations" in known else None


# Values are JSON's, or a list with a tag in front: a container, or the number of one of cffi.model's types.
CONTAINERS: Mapping[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "list": list, "set": set, "dict": dict}


def as_json(state: Mapping[str, Any]) -> str:
    """Return the state of a cffi parser as text. Raise TypeError for objects other than data and cffi.model's types."""
    base: type = importlib.import_module("cffi.model").BaseTypeByIdentity
    types: list[Any] = []
    numbers: dict[int, int] = {}

    def number(x: Any) -> int:
        if id(x) not in numbers:
            numbers[id(x)] = len(types)
            types.append(x)
        return numbers[id(x)]

    def plain(x: Any) -> Any:
        if x is None or isinstance(x, (bool, int, str)):
            return x
        if isinstance(x, base):
            return ["type", number(x)]
        if type(x).__name__ not in CONTAINERS:
            raise TypeError(f"{type(x)} is not kept")
        kind = type(x).__name__
        return [kind, *map(plain, x.items() if kind == "dict" else x)]

    known = plain(dict(state))
    rows: list[Any] = []
    while len(rows) < len(types):  # a type can name further ones
        rows.append([type(types[len(rows)]).__name__, plain(vars(types[len(rows)]))])
    return json.dumps([known, rows])


def from_json(text: str) -> dict[str, Any]:
    """Return the argument of `as_json`. Raise an exception of some kind if the text is damaged."""
    model: Any = importlib.import_module("cffi.model")
    known, rows = json.loads(text)
    makers: list[type] = [getattr(model, name) for name, _ in rows]
    if not all(issubclass(maker, model.BaseTypeByIdentity) for maker in makers):
        raise TypeError("not a type of cffi.model")
    types: list[Any] = [object.__new__(maker) for maker in makers]

    def value(x: Any) -> Any:
        if not isinstance(x, list):
            return x
        tag, *items = cast("list[Any]", x)
        return types[items[0]] if tag == "type" else CONTAINERS[tag](map(value, items))

    for made, (_, attributes) in zip(types, rows):
        made.__dict__.update(value(attributes))
    return value(known)
