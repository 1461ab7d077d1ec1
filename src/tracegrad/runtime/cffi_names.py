"""Makes cffi read C types faster, which is most of what opening a device through wgpu-py takes.

wgpu-py's functions name C types as text, such as "WGPUBufferDescriptor *", and cffi has pycparser read each when it is
first used, behind a declaration of every name it knows: 434 names, and 39 types until a device is open, 0.5 s of
Python. Only the names that occur in the text can matter, so only they are declared here: 0.04 s.

No part of tracegrad is imported: the child that asks for adapters executes this file, too.
"""

from __future__ import annotations

import re
import sys
from typing import Any

KINDS = ("typedef", "struct", "union", "enum")


def declare_what_occurs(parser: Any) -> None:
    """Have the parser of a cffi.FFI declare nothing else. Whatever is not as in cffi 2 is left."""
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
            parser._declarations = everything  # cffi parses types under a lock: no thread saw the other

    parser.parse_type = parse_type
