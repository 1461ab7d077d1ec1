"""Remembers what cffi reads in wgpu-py's header: parsing 0.1 MB of C is most of what importing wgpu takes.

0.3 of 0.48 s, in every process. What was read is pickled in the user's cache directory, under a hash of the header and
of all that reads it, and loaded in 0.01 s. Whatever is not as in cffi 2, or could be somebody else's, is parsed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Generator
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
        path = folder / f"header-{hashlib.sha256(key.encode()).hexdigest()[:40]}.pickle"
        known = _kept(path)
        if known is not None:
            vars(self).update(known)
        else:
            parse(self, source)
            with contextlib.suppress(Exception):  # without it the next process parses, too
                put(path, pickle.dumps({name: x for name, x in vars(self).items() if name != "_structnode2type"}))
        cffi_names.declare_what_occurs(self)  # importing wgpu reads types already

    return read


def _kept(path: Path) -> dict[str, Any] | None:
    """What lies there, if this process's user wrote it."""
    try:
        if not is_own(path):
            return None
        known: object = pickle.loads(path.read_bytes())
        os.utime(path)
    except Exception:  # whatever it is that lies there
        return None
    return cast("dict[str, Any]", known) if isinstance(known, dict) and "_declarations" in known else None
