"""Suppress output of C code to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator


@contextlib.contextmanager
def quiet_stderr() -> Generator[None, None, None]:
    """Suppress output of C code to stderr inside the block; do nothing if stderr is not a real file.

    Also do nothing if the compiler was told to print: it works at the same time, on another thread.
    """
    if os.environ.get("TRACEGRAD_DEBUG"):
        yield
        return
    try:
        sys.stderr.flush()
        saved = os.dup(2)
    except (OSError, AttributeError, ValueError):
        yield
        return
    import tempfile

    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
