"""Check C kernels on arrays of this process, by `verify`. NumPy fills the arrays and picks elements.

The check of kernels uses ordinary numbers and allows rounding. So it misses a `minimum` that drops NaN, a square root
of few digits, denormals that become 0, or a compiler that assumes that infinities do not exist. `Arithmetic` checks
single operations of a C compiler, on operands where compilers and their flags go wrong. Each operation has exactly one
right result, so no rounding error is allowed.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache

from tracegrad.arrays import Array, np
from tracegrad.dtypes import STORED
from tracegrad.ir.evaluate import function_of
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernel_source import KernelSource, Texts
from tracegrad.render.c_engine import ENGINE
from tracegrad.render.c_gathered import GATHERED
from tracegrad.render.c_steps import CSource
from tracegrad.render.c_text import PRELUDE, as_c, helper
from tracegrad.runtime import verify
from tracegrad.runtime.c_calls import pointers
from tracegrad.runtime.c_compiler import VARIABLE, Compiler
from tracegrad.runtime.cache import WRONG, Verdicts, key_of
from tracegrad.runtime.memory import with_margins
from tracegrad.runtime.points import Name
from tracegrad.runtime.repeated import PERIOD, STRIDE
from tracegrad.runtime.trials import GAP, Trial, layout_of, sizes_of


def computes_wrongly(
    kernels: Sequence[KernelSource],
    compiler: Compiler,
    begin: Begin,
    prepared: Callable[[KernelSource, Sequence[Array], Sequence[int]], Callable[[], object]],
) -> bool:
    """Return whether C computes a kernel or an operation wrongly. Warn if this was not known before.

    begin:    begins to compile a library, in the background.
    prepared: returns a function that runs a kernel on arrays, with its offsets.
    """
    if not verify.enabled():
        return False
    verdicts = Verdicts(("cpu", *compiler.state, ENGINE, GATHERED, PRELUDE))  # all that functions call
    in_half = any("half_" in f or "f16" in f for k in kernels for f in k.texts["c"].functions)
    arithmetic = [Arithmetic(verdicts, begin, rows) for rows in ((ROWS, IN_HALF) if in_half else (ROWS,))]
    keyed = {key_of(repr(k.texts["c"]), repr(k.binding_of)): k for k in kernels}
    placed = {key: (k, layout_of(k)) for key, k in keyed.items() if verdicts.known(key) is None}
    sizes = sizes_of(layout for _, layout in placed.values())
    arrays = {name: with_margins(size + GAP, STORED[name[1]].numpy) for name, size in sizes.items()}

    @cache
    def launch(key: str, forms: tuple[bool, ...]) -> Callable[[], object]:
        kernel, layout = placed[key]
        return prepared(_with_forms(kernel, forms), [arrays[name] for name in layout.arrays], layout.offsets)

    filled, strays = set[str](), dict[str, str]()

    def run(trials: verify.Trials) -> Iterator[list[Array]]:
        for key, trial in trials:
            first = key not in filled
            _prepare(trial, arrays, whole=first)
            around = _around(trial, arrays) if first else []
            before = [x.tobytes() for x in around]
            filled.add(key)
            launch(key, tuple(x.size > 0 for x in trial.plan.outer))()
            if before != [x.tobytes() for x in around]:
                strays[key] = "it writes beside its results"
            yield [arrays[c.array][c.at] for c in trial.checks]

    found = verify.faults(verify.trials_of(placed, strict=True), run, verify.FURTHER) | strays
    verdicts.add(found)
    # first, because they are the cause of other faults
    wrong = [("arithmetic", how) for how in [x.fault() for x in arithmetic] if how]
    wrong += [(keyed[key].label, how) for key, how in found.items() if how]
    if wrong:
        warn_wrong(compiler.path, wrong)
    return any(verdicts.known(key) == WRONG for key in (*[x.key for x in arithmetic], *keyed))


def _with_forms(kernel: KernelSource, which: Sequence[bool]) -> KernelSource:
    """Return a kernel that computes some of its forms alone, in C: the others can be large products."""
    left_out = {k for k, one in enumerate(one for one, form in zip(which, kernel.forms) for _ in form.slots) if not one}
    source: CSource = kernel.texts["c"]
    steps = [s for s in source.steps if left_out.isdisjoint(place for _, place in pointers(s))]
    return replace(kernel, texts=Texts(c=source._replace(steps=tuple(steps))))


def _prepare(trial: Trial, arrays: Mapping[Name, Array], *, whole: bool) -> None:
    """Give arrays the values that a trial expects. whole: in all elements, not only in those that results depend on."""
    for f in trial.plan.fills if whole else ():
        target = arrays[f.array][f.begin : f.end]
        values = trial.patterns.along(f.kind, f.begin + f.array[0] * STRIDE)
        periods = target.size // PERIOD * PERIOD
        target[:periods].reshape(-1, PERIOD)[...] = values
        target[periods:] = values[: target.size - periods]
    for array, at, value in (*(() if whole else trial.read), *trial.puts):
        arrays[array][at] = value


def _around(trial: Trial, arrays: Mapping[Name, Array]) -> list[Array]:
    """Return the elements on both sides of each value that a kernel writes; no value lies there."""
    ends = [(name, (begin - GAP, begin), (end, end + GAP)) for name, begin, end in trial.plan.written]
    return [arrays[name][a:b] for name, *both in ends for a, b in both]


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


Begin = Callable[[str], "Future[ctypes.CDLL | None]"]

# Rows of the table whose result IEEE 754 defines to the last bit, with their number of operands
ROWS = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "abs": 1, "sign": 1, "square": 1, "sqrt": 1, "rsqrt": 1,
    "floor": 1, "ceil": 1, "round": 1, "minimum": 2, "maximum": 2, "less": 2, "less_equal": 2, "equal": 2,
    "not_equal": 2, "nonfinite": 1, "isnan": 1,
}  # fmt: skip
IN_HALF = {"half": 1}  # takes compilers a quarter of the time of all rows, so only programs that round to f16 wait
# Zeros, denormals of both precisions, ties, values that overflow; each with both signs
SPECIAL = (
    0.0, 1e-45, 1e-40, 2.0**-126, 2.0**-25, 2.0**-24, 3 * 2.0**-25, 5e-5, 2.0**-14, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 7.3,
    1000.5, 2049.0, 65504.0, 65519.0, 65520.0, 16777217.0, 1.8e19, 3e38, float("inf"), float("nan"),
)  # fmt: skip


@cache
def operands() -> tuple[Array, Array]:
    """Return every pair of the special numbers."""
    x = np.asarray([*SPECIAL, *(-v for v in SPECIAL)], np.float32)
    return np.repeat(x, x.size), np.tile(x, x.size)


@cache
def source(rows: tuple[str, ...]) -> str:
    """Return a C function for these rows, written as in kernels: one loop, because each loop takes compilers longer."""
    found = [PRIMITIVES[name] for name in rows]
    helpers = dict.fromkeys([p.helper for p in found if p.helper])
    values = [as_c(f"f32({p.wgsl.format('x', 'y', t='f32', of='f32')})") for p in found]
    count = operands()[0].size  # a multiple of all vector lengths: less for the compiler to write
    stores = " ".join(f"out[{k * count} + i] = {value};" for k, value in enumerate(values))
    loop = (
        "void check(const float *restrict a, const float *restrict b, float *restrict out) {\n"
        f"  for (long i = 0; i < {count}; i++) {{ const float x = a[i], y = b[i]; {stores} }}\n}}"
    )
    return "\n".join([PRELUDE, *map(helper, helpers), loop])


class Arithmetic:
    """The check of some primitives, compiled by one compiler. The compilation runs in the background."""

    def __init__(self, verdicts: Verdicts, begin: Begin, rows: Mapping[str, int]) -> None:
        # whether this process flushes denormals to 0: verdicts do not hold for processes that differ
        flushes = not np.float32(1e-40) * np.float32(0.5)
        text = source((*rows,))
        self._verdicts, self._rows, self.key = verdicts, rows, key_of("arithmetic", text, str(flushes))
        self._library = begin(text) if verdicts.known(self.key) is None else None

    def fault(self) -> str:
        """Describe an operation that the compiler gets wrong; "" if there is none, or if the verdict was known."""
        library = self._library and self._library.result()
        if library is None:
            return ""
        given = operands()
        out = np.empty((len(self._rows), given[0].size), np.float32)
        library.check(*[ctypes.c_void_p(x.ctypes.data) for x in (*given, out)])
        how = next(filter(None, (_difference(*row, x) for row, x in zip(self._rows.items(), out))), "")
        self._verdicts.add({self.key: how})
        return how


def _difference(name: str, count: int, out: Array) -> str:
    """Describe the first operands for which the result of a row differs; "" if none does. count: of its operands."""
    used = operands()[:count]
    with np.errstate(all="ignore"):
        want = np.asarray(function_of(PRIMITIVES[name], len(used), {}, np)(*used)).astype(np.float32)
    wrong = np.flatnonzero((out != want) & ~(np.isnan(out) & np.isnan(want)))
    if not wrong.size:
        return ""
    k = wrong[0]
    return f"{name}({', '.join(str(x[k]) for x in used)}) is {out[k]}, not {want[k]}"
