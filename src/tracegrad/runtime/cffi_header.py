"""Remembers what cffi reads in wgpu-py's header: parsing 0.1 MB of C is most of what importing wgpu takes.

0.3 of 0.48 s, in every process. What was read is kept as JSON in the user's cache directory, under a hash of the header
and of all that reads it, and loaded in 0.02 s. Whatever is not as in cffi 2, or could be somebody else's, is parsed.

JSON, not pickle: a damaged or forged file can only give wrong descriptions of C types, and cannot run code.
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

LONG = 50_000  # characters; less is parsed in no time
LOCK = threading.Lock()  # else two threads would each take the other's reader for cffi's


@contextlib.contextmanager
def read_once() -> Generator[None]:
    """Inside, cffi does not parse a long header that it has read in an earlier process."""
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
    """cffi's `parse`, which keeps in a folder what it made of a long header."""

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
            with contextlib.suppress(Exception):  # without it the next process parses, too
                put(path, as_json({name: x for name, x in vars(self).items() if name != "_structnode2type"}).encode())
        cffi_names.declare_what_occurs(self)  # importing wgpu reads types already

    return read


def _kept(path: Path) -> dict[str, Any] | None:
    """What lies there, if this process's user wrote it."""
    try:
        if not is_own(path):
            return None
        known = from_json(path.read_text(encoding="utf-8"))
        os.utime(path)
    except Exception:  # whatever it is that lies there
        return None
    return known if "_declarations" in known else None


# Values are what JSON has, or a list with a tag in front: of containers, and of the types of cffi.model by number.
CONTAINERS: Mapping[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "list": list, "set": set, "dict": dict}


def as_json(state: Mapping[str, Any]) -> str:
    """What a parser of cffi knows, as text. TypeError for anything but data and the types of cffi.model."""
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
    while len(rows) < len(types):  # a type may name further ones
        rows.append([type(types[len(rows)]).__name__, plain(vars(types[len(rows)]))])
    return json.dumps([known, rows])


def from_json(text: str) -> dict[str, Any]:
    """What `as_json` was given. An exception of some kind if the text is damaged."""
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
