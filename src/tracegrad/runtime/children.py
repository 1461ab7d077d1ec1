"""Child processes with a time limit. Any thread can end them, and what they started ends with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence


class StoppedError(subprocess.SubprocessError):
    """The process was ended by `Children.stop`."""


class Children:
    """The child processes of one piece of work."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], text: str, seconds: float) -> str:
        """Give `text` to a command; what it prints.

        Raises: TimeoutExpired after so many seconds; StoppedError after `stop`; CalledProcessError for an exit status
                other than 0; OSError if there is no such command.
        """
        pipe = subprocess.PIPE
        with self._lock:
            if self._stopped:
                raise StoppedError("ended before it began")
            # a group of its own: a compiler is several processes, and an interrupt from the terminal is for Python
            child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0)
            self._running.add(child)
        try:
            out, err = child.communicate(text, timeout=seconds)
            if child.returncode == 0:
                return out
            if self._stopped:
                raise StoppedError("ended by this process")
            raise subprocess.CalledProcessError(child.returncode, command, out, err)
        finally:
            with self._lock:
                self._running.discard(child)
                _end(child)
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            child.wait()

    def stop(self) -> None:
        """End all of them, and begin no more. For any thread."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    """Kill a process that has not ended, and all of its group."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:  # Windows has no groups of processes
                child.kill()
