"""Exceptions, and the lines of the user's code to which their messages point."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Self, TypeGuard, TypeVar

__all__ = [
    "AbortedError", "CompileError", "DTypeError", "DeviceError", "DeviceLostError", "InputError", "NonFiniteError",
    "ShapeError", "TraceError", "TracegradError",
]  # fmt: skip

PACKAGE_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep
# contextlib enters the package's context managers, and threading runs its threads: these frames are not the user's.
NOT_THE_USER = (PACKAGE_DIR, contextlib.contextmanager.__code__.co_filename, threading.Thread.run.__code__.co_filename)


class TracegradError(Exception):
    """The base class of all errors that tracegrad defines. Catch it to catch any of them.

    Five further classes are names of `tracegrad.errors` only:
    - `CallError`, also a TypeError: an argument is missing, unknown or too many.
    - `MissingNameError`, a TraceError and an AttributeError: an attribute does not exist.
    - `MissingKeyError`, an InputError and a KeyError: a result has no such name.
    - `RangeError`, an InputError and an IndexError: an index is out of range.
    - `ConstantIndexError`, a ShapeError and an IndexError: a constant index is out of range.

    >>> issubclass(tg.ShapeError, tg.TracegradError)
    True
    """

    bare: str | None = None  # the message without op and line, after these were added

    @classmethod
    def here(cls, message: str) -> Self:
        """Make the error, with the user's line below its message."""
        return cls(located(message, call_site()))


class ShapeError(TracegradError, ValueError):
    """An op got shapes that it does not take or cannot combine. Also a ValueError.

    >>> try:
    ...     tg.ones((2, 3)) + tg.ones((2,))
    ... except tg.ShapeError as error:
    ...     print(str(error).splitlines()[0])
    add: shapes do not broadcast: f32[2,3] and f32[2]; matched from the last axis, sizes must be equal or 1
    """


class DTypeError(TracegradError, TypeError):
    """An op got element types that it does not take or cannot combine. Also a TypeError.

    >>> try:
    ...     tg.tensor([1.0]) + tg.tensor([1], dtype=tg.i32)
    ... except tg.DTypeError as error:
    ...     print(str(error).splitlines()[0])
    add: dtypes differ: f32[1] and i32[1]; cast one with tg.cast(x, dtype)
    """


class TraceError(TracegradError, RuntimeError):
    """A traced tensor was used where Python needs its value, or outside the loss or forward that made it.

    Python needs the value in `if t:`, in `float(t)` and in NumPy's functions. A parameter that is
    declared outside of `__init__`, and a model that is not a tree of modules, raise this error too.

    >>> try:
    ...     tg.trace_forward(model=nn.Linear(2, 1), forward=lambda m, x: float(m(x)), inputs={"x": (1, 2)})
    ... except tg.TraceError as error:
    ...     print(type(error).__name__)
    TraceError
    """


class MissingNameError(TraceError, AttributeError):
    """An attribute does not exist: of a tensor, a model, a training or a module. Also an AttributeError."""


class CallError(TracegradError, TypeError):
    """A call with arguments that the function does not take."""


class CompileError(TracegradError, RuntimeError):
    """A model or loss cannot be compiled, or the device refuses one of its kernels. Also a RuntimeError.

    >>> try:
    ...     tg.trace(model=nn.Linear(2, 1), loss=lambda m, x: m(x), inputs={"x": (4, 2)})
    ... except tg.CompileError as error:
    ...     print(str(error).splitlines()[0])
    <lambda> must return a scalar, f32[], got f32[4,1]; reduce it with tg.mean or tg.sum
    """

    kernel: int | None = None  # number, in its Program, of the kernel at fault


class InputError(TracegradError, ValueError):
    """Arguments or inputs do not fit the function or the compiled program. Also a ValueError.

    >>> try:
    ...     lr.constant(-0.1)
    ... except tg.InputError as error:
    ...     print(str(error).splitlines()[0])
    lr.constant: rate must be at least 0, got -0.1
    """


class MissingKeyError(InputError, KeyError):
    """A name that a result does not have."""

    __str__ = Exception.__str__  # KeyError's own is a repr


class RangeError(InputError, IndexError):
    """Indices are out of range for their axis. Also an IndexError."""


class ConstantIndexError(ShapeError, IndexError):
    """A constant index is out of range for its axis. Also an IndexError."""


class NonFiniteError(TracegradError, ArithmeticError):
    """The loss, a gradient or a new value of a training step is infinite or NaN. The step changed nothing.

    >>> result = train.step(x=x, y=np.full((4, 1), 1e38)).result()    # train, x: as in the example of tg.compile
    >>> type(result.error).__name__
    'NonFiniteError'
    """


class DeviceError(TracegradError, RuntimeError):
    """A device is missing, is too small, or refused the work. Also a RuntimeError.

    >>> try:
    ...     tg.compile_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (4, 2)}, device="gpu")
    ... except tg.DeviceError as error:
    ...     print(str(error).splitlines()[0])
    device is 'gpu'; it must be one of 'auto', 'webgpu', 'cpu', 'jax'; 'webgpu' runs on any vendor's GPU
    """


class DeviceLostError(DeviceError):
    """A device stopped answering during the work, for example when a GPU's driver was reset. A kind of `DeviceError`.

    >>> issubclass(tg.DeviceLostError, tg.DeviceError)
    True
    """


class AbortedError(TracegradError, RuntimeError):
    """A part of an aborted step or run was read, such as `pending.loss`; `pending.result()` gives an `Aborted`.

    `close`, `replace_model` and newer calls of a `tg.single_flight` function abort queued work.

    >>> train.close()    # train: as in the example of tg.compile, with a batch x, y
    >>> train.step(x=x, y=y).result()
    Aborted(reason='closed')
    >>> try:
    ...     train.step(x=x, y=y).loss
    ... except tg.AbortedError as error:
    ...     print(str(error)[:24])
    step was aborted: closed
    """


OF_OPS = (ShapeError, DTypeError, InputError, TraceError, CallError)  # what functions of ops raise


class Site(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    @property
    def short(self) -> str:
        """The file name and line, such as `model.py:14`, as in printed graphs."""
        return f"{os.path.basename(self.file)}:{self.line}"

    def describe(self) -> str:
        """Return the file, the line number and the source line: the end of an error message."""
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


def is_user(frame: FrameType) -> bool:
    """Return whether the frame runs the user's code."""
    return not frame.f_code.co_filename.startswith(NOT_THE_USER) and not is_generated(frame)


def located(message: str, site: Site | None) -> str:
    """Return `message` with the user's line below it."""
    return f"{message}\n{site.describe()}" if site else message


class Shortened(contextlib.ContextDecorator):
    """A block or function whose TracegradErrors have short tracebacks: the user's frames and the last frame.

    Causes of these errors are shortened, too. TRACEGRAD_TRACEBACK=full keeps all frames. Python's own errors, which can
    be faults of the library, keep all frames.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if os.environ.get("TRACEGRAD_TRACEBACK") == "full":
            return
        seen = set[int]()  # an error can be its own cause
        while isinstance(error, TracegradError) and id(error) not in seen:
            seen.add(id(error))
            first = tb = error.__traceback__
            while tb is not None and (rest := tb.tb_next) is not None:
                if is_user(tb.tb_frame) and (rest.tb_next is None or is_user(rest.tb_frame)):
                    tb = rest
                elif is_user(tb.tb_frame):
                    tb.tb_next = rest.tb_next
                else:
                    first = tb = rest
            error.__traceback__, error = first, error.__cause__


shortened = Shortened()
E = TypeVar("E", bound=TracegradError)


def placed(error: E, who: str, site: Site | None) -> E:
    """Add the op's name and the user's line to `error`. Of nested ops, the outermost gives the name."""
    text = error.bare if error.bare is not None else str(error)
    if error.bare is None and "\n  at " in text:
        return error
    new = type(error)(located(f"{who}: {text}", site))
    new.bare = text
    return new


F = TypeVar("F", bound=Callable[..., Any])


def refusing(call: F) -> F:
    """Mark a `__call__` that only says what to write instead."""
    call.__dict__["refuses"] = True
    return call


def is_function(value: object) -> TypeGuard[Callable[..., Any]]:
    """Return whether a call of `value` does more than to say what to write instead."""
    return callable(value) and not hasattr(type(value).__call__, "refuses")
