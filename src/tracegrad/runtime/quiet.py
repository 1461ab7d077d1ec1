"""What C code prints to stderr, swallowed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator


@contextlib.contextmanager
def quiet_stderr() -> Generator[None, None, None]:
    """Swallow what C code prints to stderr meanwhile; nothing where stderr is no real file.

    Nor where the compiler was asked to print: it works at the same time, on another thread.
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
