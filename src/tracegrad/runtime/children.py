"""Child processes with a time limit. Any thread can end them, with all processes that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

from tracegrad.runtime.process import in_background


class StoppedError(subprocess.SubprocessError):
    """Raised if `Children.stop` ended the process, or kept it from starting."""


class Children:
    """The child processes of one piece of work."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], text: str, seconds: float) -> str:
        """Give `text` to a command and return its output.

        Raises: TimeoutExpired after `seconds`; StoppedError after `stop`; CalledProcessError for an exit status
                other than 0; OSError if there is no such command.
        """
        pipe = subprocess.PIPE
        with self._lock:
            if self._stopped:
                raise StoppedError("ended before it began")
            # its own process group: a compiler is several processes, and an interrupt from the terminal is meant for
            # Python
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

    def answer(self, command: Sequence[str], seconds: float) -> str:
        """Return the output of a command, as `run` does; an interrupt of this thread ends the command.

        Another thread runs the command, so an interrupt cannot come between starting a child and recording it.
        Afterwards this object runs no more commands.
        """
        try:
            return in_background(lambda: self.run(command, "", seconds)).result()
        finally:
            self.stop()

    def stop(self) -> None:
        """End all children, and start no more. Any thread can call this."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    """Kill a process that has not ended, and its whole group."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:  # Windows has no process groups
                child.kill()
