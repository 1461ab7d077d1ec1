"""Indices and classes: made int32, and checked against the range that the host can check, or clamped."""

from __future__ import annotations

from typing import Any, TypeVar

from tracegrad.dtypes import TensorType, i32
from tracegrad.errors import ConstantIndexError, DTypeError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.prims import views
from tracegrad.prims.leaves import CONST, LITERAL, as_tensor, literal
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import alike
from tracegrad.refusals import valid

T = TypeVar("T")


def indices_for(indices: Any, n: int, what: str | None = None) -> Tensor:
    """Return `indices` as a tensor of i32. Constants are checked against [-n, n), and negative ones made positive.

    what: None for indices of an axis. For other numbers, their name in the plural, such as "classes": these must be
          in [0, n).

    Raises DTypeError for other dtypes, and ConstantIndexError for a constant out of range.
    """
    t = as_tensor(indices)
    if t.dtype != i32:
        hint = "cast with tg.cast(x, tg.i32), or declare the input as tg.i32[...]"
        hint = "for a mask write tg.where(mask, x, 0)" if t.dtype.name == "bool" else hint
        raise DTypeError(f"indices must be i32, got {t.type}; {hint}")
    below = 0 if what else n
    running = ambient.active()
    if running is not None and running.eager and t.serial in running.leaves:
        # In an eager call, the call checks them and makes negative ones positive, for the range of the outermost op
        running.wrapped.setdefault(t.serial, (n, below))
        return t
    values = constant_integers(t)
    bad = [k for k in values if not -below <= k < n]
    if bad:
        kind, among = ("value", f"{n} {what}") if what else ("index", f"an axis of size {n}")
        said = f"{kind} {bad[0]} is out of range for {among}, {valid(below, n)}"
        raise ConstantIndexError(f"{said}; {what or 'indices'} are {t.type}")
    if all(k >= 0 for k in values):
        return t
    return views.reshape(literal([k % n for k in values], i32), t.shape)


def constant_integers(t: Tensor) -> list[int]:
    """Return the values of an i32 constant; an empty list for any other tensor."""
    if t.prim is LITERAL and t.dtype == i32:
        return memoryview(t.attrs["data"]).cast("i").tolist()
    return [t.attrs["value"]] if t.prim is CONST and t.dtype == i32 else []


def _itself(t: T, *, n: int, exempt: int | None) -> T:
    return t


# A node of its own tells the compiler that an input has the range [0, n) or is `exempt`. It computes nothing.
def _class_range(t: TensorType, *, n: int, exempt: int | None) -> tuple[int, int, int | None]:
    return 0, n, exempt


CLASSES = composite("classes", type=_itself, expand=_itself, batch=alike, indexes=_class_range)


def classes_for(classes: Any, n: int, what: str = "classes") -> Tensor:
    """Return class numbers, or others below `n`, as a tensor of i32. Their range is checked like that of indices."""
    t = indices_for(classes, n, what)
    return t if constant_integers(t) else bind(CLASSES, t, n=n, exempt=None)
