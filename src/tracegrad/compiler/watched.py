"""A size that records where the user's code decides by it.

A program for many sizes is right only if the user's function does the same at all of them. Arithmetic on a size shows
in the graph; a decision by a size, such as `if x.shape[0] == 64`, need not. So one trace runs with watched sizes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from tracegrad.errors import Site

LONGEST = 200  # characters of how a size was computed
_number = itertools.count()


class Watched(int):
    """An int that appends to `seen` where code outside of tracegrad compares, converts or prints it.

    text: how it was computed. Sizes with equal text are equal in every run, so a comparison of them needs no record.
    """

    text: str
    seen: list[Site]

    @staticmethod
    def of(n: int, text: str, seen: list[Site]) -> Watched:
        """Return a watched size of this value."""
        made = Watched(n)
        made.text, made.seen = text, seen
        return made

    def note(self, depth: int = 2) -> None:
        """Append the caller's line unless it is in tracegrad."""
        frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
        name = str(frame.f_globals.get("__name__", ""))
        if name != "tracegrad" and not name.startswith("tracegrad."):
            self.seen.append(Site(frame.f_code.co_filename, frame.f_lineno))

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.note()
        return sys.modules["numpy"].asarray(int.__int__(self))  # NumPy is loaded, because it calls this


def _computed(name: str) -> Callable[..., Any]:
    of_int: Callable[..., Any] = getattr(int, name)

    def compute(self: Watched, *others: Any) -> Any:
        n = of_int(self, *others)
        if type(n) is not int:
            self.note()  # a float is used as a number; its results are not sizes
            return n
        text = f"({self.text} {name} {' '.join(getattr(x, 'text', None) or str(int(x)) for x in others)})"
        return Watched.of(n, text if len(text) < LONGEST else f"size {next(_number)}", self.seen)

    return compute


def _noted(name: str) -> Callable[..., Any]:
    of_int: Callable[..., Any] = getattr(int, name)

    def read(self: Watched, *others: Any) -> Any:
        if not (others and getattr(others[0], "text", None) == self.text):
            self.note()
        return of_int(self, *others)

    return read


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Watched, f"__{_name}__", _computed(f"__{_name}__"))
    setattr(Watched, f"__r{_name}__", _computed(f"__r{_name}__"))
READS = """eq ne lt le gt ge bool hash int float str repr format truediv rtruediv pow rpow divmod rdivmod and rand
           or ror xor rxor lshift rlshift rshift rrshift neg pos abs invert round ceil floor trunc"""
for _name in READS.split():
    setattr(Watched, f"__{_name}__", _noted(f"__{_name}__"))
