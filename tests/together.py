"""Kernels of many programs in few libraries: the compiler starts rarely, and compiles what programs share once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from cases import Case
from in_c import SessionInC
from tracegrad.program import Program
from tracegrad.runtime.c_compiler import Compiler, compiler_named
from tracegrad.runtime.cpu import CpuSession

NEIGHBOURS = 24  # rows of a table whose kernels are compiled together

_begun = CpuSession._begun


class Together(SessionInC):
    """A session whose C has been compiled for all of `programs`, as if they were one. It loads only these."""

    def __init__(self, compiler: Compiler, programs: Sequence[Program]) -> None:
        super().__init__(compiler)
        self._together = begun(self, programs)

    def _begun(self, program: Program) -> list[Future[Any]]:
        return in_c(self._together)


def begun(session: CpuSession, programs: Sequence[Program]) -> list[Future[Any]]:
    """Begin to compile the kernels of all programs as those of one."""
    kernels = tuple(k for p in programs for k in p.kernels)
    return _begun(session, replace(programs[0], kernels=kernels))


def in_c(libraries: list[Future[Any]]) -> list[Future[Any]]:
    """The same libraries, once they are there."""
    assert all(x.result() for x in libraries), "where C fails, NumPy would do instead"
    return libraries


@contextmanager
def by_rows(cases: Sequence[Case], program_of: Callable[[Case], Program]) -> Iterator[Callable[[Case], CpuSession]]:
    """The session of each row. Neighbours share one, as long as the context lasts."""
    found = compiler_named("")
    if found is None:
        pytest.skip("no C compiler")
    number = {case.name: k for k, case in enumerate(cases)}
    with ExitStack() as open_sessions:

        @cache
        def session(first: int) -> CpuSession:
            programs = [program_of(case) for case in cases[first : first + NEIGHBOURS]]
            return open_sessions.enter_context(closing(Together(found, programs)))

        yield lambda case: session(number[case.name] // NEIGHBOURS * NEIGHBOURS)


def together(test: Callable[..., None]) -> Callable[..., None]:
    """A test that runs twice: first with kernels in NumPy, then in C, where its programs share libraries.

    So the compiler starts once or twice and not once a program. All programs must have the same flags. What the test
    changes by `monkeypatch` is undone after each time.
    """

    def once(args: Any, kwargs: Mapping[str, Any]) -> None:
        with pytest.MonkeyPatch.context() as own:
            test(*args, **{k: own if isinstance(x, pytest.MonkeyPatch) else x for k, x in kwargs.items()})

    @functools.wraps(test)
    def twice(*args: Any, **kwargs: Any) -> None:
        programs: list[Program] = []
        libraries: list[Future[Any]] = []

        def noted(session: CpuSession, program: Program) -> list[Future[Any]]:
            if session._compiler is not None:
                programs.append(program)
            return []

        def compiled(session: CpuSession, program: Program) -> list[Future[Any]]:
            if session._compiler is None or not texts(program) <= known:
                return _begun(session, program)
            if not libraries:
                libraries.extend(begun(session, programs))
            return in_c(libraries)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CpuSession, "_begun", noted)
            try:
                once(args, kwargs)
            except AssertionError:  # NumPy can round otherwise
                if not programs:
                    raise
        known = {text for p in programs for text in texts(p)}
        if programs:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(CpuSession, "_begun", compiled)
                once(args, kwargs)

    return twice


def texts(program: Program) -> set[str]:
    return {text for k in program.kernels for text in k.texts["c"].functions}
