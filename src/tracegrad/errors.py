"""Exceptions, and the lines of the user's code where they happen."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
from types import FrameType
from typing import NamedTuple, Self, TypeVar

PACKAGE_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep
# contextlib enters the package's context managers, and threading runs its threads: these frames are not the user's.
NOT_THE_USER = (PACKAGE_DIR, contextlib.contextmanager.__code__.co_filename, threading.Thread.run.__code__.co_filename)


class TracegradError(Exception):
    """Base of every error that tracegrad raises.

    >>> issubclass(tg.ShapeError, tg.TracegradError)
    True
    """

    bare: str | None = None  # the message without op and line, after these were added

    @classmethod
    def here(cls, message: str) -> Self:
        """Make the error, with the user's line below its message."""
        return cls(located(message, call_site()))


class ShapeError(TracegradError, ValueError):
    """Shapes that an op does not take, or cannot combine.

    >>> issubclass(tg.ShapeError, ValueError)
    True
    """


class DTypeError(TracegradError, TypeError):
    """Element types that an op does not take, or cannot combine.

    >>> issubclass(tg.DTypeError, TypeError)
    True
    """


class TraceError(TracegradError, RuntimeError):
    """A tensor, parameter or op used outside of its trace, or a traced tensor where Python needs its value.

    Such places are `if t:`, `float(t)` and NumPy's functions. A model that is not a tree of modules raises it too.

    >>> issubclass(tg.TraceError, tg.TracegradError)
    True
    """


class MissingNameError(TraceError, AttributeError):
    """A name that a tensor does not have."""


class CallError(TracegradError, TypeError):
    """A call with arguments that the function does not take."""


class CompileError(TracegradError, RuntimeError):
    """A model or loss that cannot be compiled, such as a loss that is no f32[], or a kernel that the device refuses.

    >>> issubclass(tg.CompileError, tg.TracegradError)
    True
    """

    kernel: int | None = None  # number, in its Program, of the kernel at fault


class InputError(TracegradError, ValueError):
    """Inputs or other arguments that do not fit the function, or the compiled program.

    >>> issubclass(tg.InputError, ValueError)
    True
    """


class MissingKeyError(InputError, KeyError):
    """A name that a result does not have."""

    __str__ = Exception.__str__  # KeyError's own is a repr


class RangeError(InputError, IndexError):
    """Indices that are out of range for their axis."""


class ConstantIndexError(ShapeError, IndexError):
    """A constant index that is out of range for its axis."""


class NonFiniteError(TracegradError, ArithmeticError):
    """A step whose loss or gradient is infinite or NaN. The step changed nothing.

    >>> result = train.step(x=x, y=np.full((4, 1), 1e38)).result()
    >>> type(result.error).__name__
    'NonFiniteError'
    """


class DeviceError(TracegradError, RuntimeError):
    """A device that is missing, too small, or refused the work.

    >>> issubclass(tg.DeviceError, RuntimeError)
    True
    """


class DeviceLostError(DeviceError):
    """A device that stopped answering.

    >>> issubclass(tg.DeviceLostError, tg.DeviceError)
    True
    """


class AbortedError(TracegradError, RuntimeError):
    """A result that is read, as by `pending.loss`, of work that `close`, `replace_model` or a newer call ended.

    >>> issubclass(tg.AbortedError, tg.TracegradError)
    True
    """


class Site(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    @property
    def short(self) -> str:
        """The file name and line, such as `model.py:14`, as in printed graphs."""
        return f"{os.path.basename(self.file)}:{self.line}"

    def describe(self) -> str:
        """Return the location and the source line, as error messages end."""
        source = linecache.getline(self.file, self.line).strip()
        return f"  at {self.file}:{self.line}" + (f"\n    {source}" if source else "")


def call_site(past: str | None = None) -> Site | None:
    """Return the line of the innermost caller outside this package and outside the folder `past`, or None."""
    others = NOT_THE_USER if past is None else (*NOT_THE_USER, past + os.sep)
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if not frame.f_code.co_filename.startswith(others) and not is_generated(frame):
            return Site(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def is_generated(frame: FrameType) -> bool:
    """Return whether the frame runs generated code of this package, such as the __init__ of a dataclass."""
    name = str(frame.f_globals.get("__name__"))
    return frame.f_code.co_filename == "<string>" and name.startswith(("tracegrad.", "namedtuple_"))


def located(message: str, site: Site | None) -> str:
    """Return `message` with the user's line below it."""
    return f"{message}\n{site.describe()}" if site else message


E = TypeVar("E", bound=TracegradError)


def placed(error: E, who: str, site: Site | None) -> E:
    """Add the op's name and the user's line to `error`. Of nested ops, the outermost gives the name."""
    text = error.bare if error.bare is not None else str(error)
    if error.bare is None and "\n  at " in text:
        return error
    new = type(error)(located(f"{who}: {text}", site))
    new.bare = text
    return new
