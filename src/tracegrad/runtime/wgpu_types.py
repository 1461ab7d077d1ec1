"""The C types of wgpu's header, compiled once: parsing them takes most of the time to open a device through wgpu-py.

wgpu-py lets cffi parse 0.1 MB of C at each import, and then every type that wgpu-py names. A header can be compiled
to tables instead (cffi's "out-of-line" mode, which wgpu-py's code supports). The tables are kept as text, as literals
of Python, and given to wgpu-py in place of a parser. Importing wgpu and opening a device then takes 0.3 s instead of
2.1 s.

No part of tracegrad is imported here: the child that asks for adapters executes this file, too.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import threading
from collections.abc import Generator
from typing import Any

LOCK = threading.Lock()  # without it, two threads could each mistake the other's class for cffi's
NAME = "wgpu.h"


def compiled(header: str) -> str:
    """Return the tables of a header, as a dict in Python's notation."""
    ffi: Any = importlib.import_module("cffi").FFI()
    ffi.cdef(header)
    ffi.set_source(NAME, None)
    text = io.StringIO()
    importlib.import_module("cffi.recompiler").make_py_source(ffi, NAME, text)
    call: Any = ast.parse(text.getvalue()).body[-1]
    return repr({k.arg: ast.literal_eval(k.value) for k in call.value.keywords})


@contextlib.contextmanager
def known(tables: str) -> Generator[None]:
    """Let an import of wgpu inside the block use these tables instead of parsing. "" changes nothing."""
    with LOCK:
        cffi: Any = importlib.import_module("cffi")
        parsing = cffi.FFI
        cffi.FFI = _with(ast.literal_eval(tables)) if tables else parsing
        try:
            yield
        finally:
            cffi.FFI = parsing


def _with(tables: dict[str, Any]) -> type[Any]:
    """Return a subclass of cffi's class that has the types of the tables from the start."""
    base: Any = importlib.import_module("_cffi_backend").FFI

    def begin(ffi: Any) -> None:
        base.__init__(ffi, NAME, **tables)

    def ignore(*_: Any, **__: Any) -> None:
        """Do nothing, because the types are known."""

    return type("Known", (base,), {"__init__": begin, "cdef": ignore, "set_source": ignore})
