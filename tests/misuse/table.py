"""The table of mistakes, the small programs that they are mutations of, and how to get a mistake's message."""

from __future__ import annotations

import functools
import os
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

FOLDER = Path(__file__).parent
MISTAKES: dict[str, Mistake] = {}

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
Y = np.linspace(0, 1, 16, dtype=np.float32).reshape(8, 2)
LABEL = np.arange(8, dtype=np.int32) % 5
SHAPES = {"x": (8, 3), "y": (8, 2)}


class MLP(tg.Module):
    """3-4-2."""

    def __init__(self, width: int = 4, out: int = 2):
        self.l1, self.l2 = nn.Linear(3, width), nn.Linear(width, out)

    def __call__(self, x: Any) -> Any:
        return self.l2(tg.relu(self.l1(x)))


class CNN(tg.Module):
    """A convolution of gray images 8x8, and a dense layer for 5 classes."""

    def __init__(self) -> None:
        self.conv, self.dense = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 16, 5)


class Words(tg.Module):
    """A table of 7 words, and scores for the next one."""

    def __init__(self) -> None:
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)


def predict(m: MLP, x: Any) -> Any:
    return m(x)


def mse(m: MLP, x: Any, y: Any) -> Any:
    return tg.mean(tg.square(m(x) - y))


def compiled(**changes: Any) -> tg.CompiledTraining:
    """The program that most mistakes change in one place."""
    right = {"model": MLP(), "loss": mse, "inputs": SHAPES, "optimizer": optim.adam(lr=0.01)}
    return tg.compile(**{**right, **changes}, device="cpu", seed=0)


@functools.cache
def shared() -> tg.CompiledTraining:
    """A training that no mistake may change."""
    return compiled()


@dataclass(frozen=True)
class Mistake:
    """One wrong program.

    says:    what its message must contain: the op or input, types, the remedy.
    raises:  the type of the error, or of the warning.
    needs:   a package without which it cannot run.
    late:    the error comes when the call is over, or from the system: only its traceback has the line.
    """

    function: Callable[..., Any]
    run: Callable[[], Any]
    says: tuple[str, ...]
    raises: type[BaseException]
    needs: str | None = None
    late: bool = False

    @property
    def module(self) -> str:
        return self.function.__module__.rpartition(".")[2]


def _table(arguments: Callable[[Callable[..., Any]], Any]) -> Callable[..., Any]:
    """A decorator that puts a function in the table. arguments: what runs it, given the function."""

    def row(*says: str, raises: type[BaseException] = tg.TracegradError, **more: Any) -> Any:
        def enter(f: Callable[..., Any]) -> Callable[..., Any]:
            assert f.__name__ not in MISTAKES, f.__name__
            MISTAKES[f.__name__] = Mistake(f, lambda: arguments(f), says, raises, **more)
            return f

        return enter

    return row


# A mistake that is a whole program: it raises, warns, or gives a Pending that failed.
program = _table(lambda f: f())
# One of a call of a training.
training = _table(lambda f: f(shared()))


def traced(model: Any, **inputs: Any) -> Callable[[Callable[..., Any]], Any]:
    """Runs a mistake that is a loss: it is traced with the whole step."""
    return lambda f: tg.trace(model=model(), loss=f, inputs=inputs, optimizer=optim.adam(lr=0.01))


# Mistakes in a loss of a regression, of classes, of images, of texts.
loss = _table(traced(MLP, **SHAPES))
classes = _table(traced(lambda: MLP(out=5), x=(8, 3), label=tg.i32[8]))
images = _table(traced(CNN, x=(2, 1, 8, 8), label=tg.i32[2]))
texts = _table(traced(Words, tokens=tg.i32[2, 6]))


@dataclass(frozen=True)
class Message:
    """What a mistake says. text: as the golden file has it. file, line: the line of the user's that it names."""

    kind: type[BaseException]
    full: str
    text: str
    file: str | None
    line: int | None


def message(mistake: Mistake) -> Message:
    """Run the mistake. AssertionError if nothing complains."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mistake.run()
        except Exception as e:
            text = str(e)
            return Message(type(e), text, normal(text), *_place(mistake, e))
    assert caught, f"{mistake.function.__name__} passes without a word"
    w = caught[0]
    file = w.filename if Path(w.filename).parent == FOLDER else None
    return Message(w.category, str(w.message), normal(str(w.message)), file, w.lineno)


def _place(mistake: Mistake, e: Exception) -> tuple[str | None, int | None]:
    """The line that the message ends with; of an error of Python's own, the line that its traceback ends with."""
    found = re.findall(rf"^  at ({re.escape(str(FOLDER))}.*):(\d+)$", str(e), re.MULTILINE)
    if found:
        return found[-1][0], int(found[-1][1])
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(e.__traceback__)]
    own = [(file, line) for file, line in frames if Path(file).parent == FOLDER]
    if own and (mistake.late or frames[-1] == own[-1]):
        return own[-1]
    return None, None


def normal(text: str) -> str:
    """Without what differs between machines, and between versions of Python."""
    text = text.replace(str(FOLDER) + os.sep, "").replace(tempfile.gettempdir(), "/tmp")
    text = re.sub(r"^(  at \w+\.py):\d+$", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"(# \w+\.py):\d+", r"\1", text)
    text = re.sub(r"'x\.\d+'", "'x.12'", text)  # numbered by what was traced before
    text = re.sub(r" Did you mean '\w+'\?$", "", text)  # from Python 3.13 on
    return re.sub(r"/tmp/tmp\w+", "/tmp/folder", text)
