"""Make cffi read C types faster: this takes most of the time to open a device through wgpu-py.

wgpu-py's functions name C types as text, such as "WGPUBufferDescriptor *". cffi lets pycparser read each type at first
use, after a declaration of every name it knows: 434 names. Opening a device reads 39 types, which takes 0.5 s of
Python. Only names that occur in the text can matter, so this module declares only those: 0.04 s.

This file imports no part of tracegrad: the child that asks for adapters executes it, too.
"""

from __future__ import annotations

import re
import sys
from typing import Any

KINDS = ("typedef", "struct", "union", "enum")


def declare_what_occurs(parser: Any) -> None:
    """Let the parser of a cffi.FFI declare only names that occur. Parsers unlike cffi 2's stay unchanged."""
    known, parse = getattr(parser, "_declarations", None), getattr(parser, "parse_type", None)
    locked = hasattr(getattr(sys.modules.get("cffi"), "FFI", None), "_typeof_locked")
    if not isinstance(known, dict) or parse is None or not locked or "parse_type" in vars(parser):
        return

    def parse_type(text: str) -> Any:
        everything: dict[str, Any] = parser._declarations
        keys = [f"{kind} {name}" for name in set(re.findall(r"\w+", text)) for kind in KINDS]
        parser._declarations = {key: everything[key] for key in keys if key in everything}
        try:
            return parse(text)
        finally:
            parser._declarations = everything  # cffi parses types under a lock: no other thread saw the change

    parser.parse_type = parse_type
