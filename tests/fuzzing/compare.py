"""Which elements of a result lie outside their bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzzing.bounds import LARGEST, distance
from fuzzing.exact import Exact
from fuzzing.program import Array, Program


@dataclass(frozen=True)
class Finding:
    """A program that one runner computes otherwise than the reference, or not at all."""

    program: Program
    runner: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.program.seed}, {self.runner}: {self.what}"


def difference(name: str, got: Any, exact: Exact) -> str:
    """The worst element outside its bound, in words; "" if there is none."""
    got, want, allowed = np.asarray(got), exact.value, exact.allowed
    if got.shape != want.shape:
        return f"{name} has shape {got.shape}, expected {want.shape}"
    if (got.dtype.kind == "f") != (want.dtype.kind == "f"):
        return f"{name} has dtype {got.dtype}, expected {want.dtype}"
    if not want.size:
        return ""
    with np.errstate(all="ignore"):
        off = _off(got, want)
        wrong = ~(off <= allowed) & (allowed < np.inf)
    if not wrong.any():
        return ""
    worst = np.where(wrong, off / np.maximum(allowed, 1e-38), -1.0)
    at = tuple(int(k) for k in np.unravel_index(int(np.argmax(worst)), want.shape))
    return (
        f"{name}[{','.join(map(str, at))}] is {got[at]}, expected {want[at]} ± {allowed[at]:.3g}"
        f" ({int(wrong.sum())} of {want.size} elements are outside their bounds)"
    )


def _off(got: Array, want: Array) -> Array:
    """How far apart two results are; a float64 result beyond f32 counts as infinite."""
    if got.dtype == np.float64:
        got = np.where(np.abs(got) > LARGEST, np.sign(got) * np.inf, got)
    if want.dtype.kind == "f":
        want = np.where(np.abs(want) > LARGEST, np.sign(want) * np.inf, want)
    return distance(got, want)


def differences(results: Mapping[str, Any], expected: Mapping[str, Exact]) -> str:
    """The first result that differs, in words."""
    for name, exact in expected.items():
        if name not in results:
            return f"{name} is missing"
        shown = difference(name, results[name], exact)
        if shown:
            return shown
    return ""
