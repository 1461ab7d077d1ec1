"""Check C kernels on arrays of this process: `verify`, with NumPy filling memory and picking elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tracegrad.arrays import np
from tracegrad.dtypes import STORED
from tracegrad.kernel_source import KernelSource
from tracegrad.render.c_engine import ENGINE
from tracegrad.runtime.arithmetic import Arithmetic, Begin
from tracegrad.runtime.c_compiler import VARIABLE, Compiler
from tracegrad.runtime.patterns import PERIOD, STRIDE
from tracegrad.runtime.verdicts import WRONG, Verdicts, key_of
from tracegrad.runtime.verify import (
    FURTHER,
    Contents,
    Name,
    Trial,
    Trials,
    enabled,
    faults,
    layout_of,
    sizes_of,
    trials_of,
)

Array = Any


def computes_wrongly(
    kernels: Sequence[KernelSource],
    compiler: Compiler,
    begin: Begin,
    allocate: Callable[[int, Any], Array],
    launch: Callable[[KernelSource, Sequence[Array], Sequence[int]], None],
) -> bool:
    """Return whether C computes a kernel or an operation wrongly. Warn if this was not known before.

    begin:    compiles a library.
    allocate: returns an array of zeros, by size and NumPy type.
    launch:   runs a kernel on arrays, with its offsets.
    """
    if not enabled():
        return False
    verdicts = Verdicts(("cpu", *compiler.state, ENGINE))
    arithmetic = Arithmetic(verdicts, begin)
    keyed = {key_of(repr(k.texts["c"]), repr(k.binding_of)): k for k in kernels}
    placed = {key: (k, layout_of(k)) for key, k in keyed.items() if verdicts.known(key) is None}
    sizes = sizes_of(layout for _, layout in placed.values())
    arrays = {name: allocate(size, STORED[name[1]].numpy) for name, size in sizes.items()}

    def run(trials: Trials) -> Iterator[list[Array]]:
        contents = Contents(sizes)
        for _, trial in trials:
            _prepare(trial, contents, arrays)
            launch(trial.kernel, [arrays[name] for name in trial.layout.arrays], trial.layout.offsets)
            yield [arrays[c.array][c.at] for c in trial.checks]

    found = faults(placed, trials_of(placed, strict=True), run, FURTHER)
    verdicts.add(found)
    wrong = [(keyed[key].label, how) for key, how in found.items() if how]
    fault = arithmetic.fault()
    if fault:
        wrong.append(("arithmetic", fault))
    if wrong:
        warn_wrong(compiler.path, wrong)
    return any(verdicts.known(key) == WRONG for key in (arithmetic.key, *keyed))


def _prepare(trial: Trial, contents: Contents, arrays: Mapping[Name, Array]) -> None:
    """Fill the arrays with the values that a trial expects."""
    for f in contents.lacking(trial):
        values = np.roll(trial.patterns.of(f.kind), -(f.begin + f.array[0] * STRIDE))
        target = arrays[f.array][f.begin : f.end]
        whole = target.size // PERIOD * PERIOD
        target[:whole].reshape(-1, PERIOD)[...] = values
        target[whole:] = values[: target.size - whole]
    for array, at, value in trial.puts:
        arrays[array][at] = value


def warn_wrong(compiler: str, found: Sequence[tuple[str, str]]) -> None:
    """Warn which kernels a compiler miscompiled, and what is wrong with the first."""
    label, how = found[0]
    more = f" and {len(found) - 1} others" if len(found) > 1 else ""
    warnings.warn(
        f"kernel {label!r}{more}, compiled by {compiler}: its numbers are wrong, so the program runs in NumPy, which "
        f"is slower. In {label!r}, {how}. Try another compiler ({VARIABLE}=clang); `tracegrad doctor` "
        "checks many kernels",
        RuntimeWarning,
        stacklevel=2,
    )
