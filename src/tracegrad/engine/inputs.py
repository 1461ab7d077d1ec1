"""Check and cast the inputs and patches of a call against the program, and report all problems at once.

The inputs of a call also choose the sizes that its types leave open; see `compiler/inputtypes.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar, cast

from tracegrad.arrays import Array, as_array, cast_lossless, describe, new_copy, np
from tracegrad.compiler.inputtypes import FreeSizes, Sizes
from tracegrad.dtypes import DTYPES
from tracegrad.errors import InputError
from tracegrad.program import Field
from tracegrad.refusals import nearest, shown
from tracegrad.sites import MASK, VALUE, SiteInfo, patch_leaf
from tracegrad.tuning import KNOWN_SHAPES

Given = Mapping[str, Any] | None
Fitted = TypeVar("Fitted")


class Owned(dict[str, Any]):
    """Inputs of a call in arrays that no other code changes, so they need no copy."""


def unchanged(x: Array) -> Array:
    """Return `x` itself, in place of a copy."""
    return x


LEADING = {"run_steps": "n, ", "profile": "steps, ", "why": "name, "}  # what these methods take before inputs


def merge(
    mapping: Any, named: Mapping[str, Any], what: str, more: Sequence[Any] = (), known: Iterable[str] = ("x",)
) -> dict[str, Any]:
    """Merge the inputs of a call, given by position, as one mapping, or by keyword.

    mapping: the first argument by position: a mapping by name, or the value of the first input.
    more:    further arguments by position. known: names of the inputs, in their order.

    Raises InputError for arguments that no input takes, and for an input given twice.
    """
    # a dict's type is checked at once, while Mapping asks its registry
    if (mapping is None and not more) or type(mapping) is dict or isinstance(mapping, Mapping):
        if more:
            raise InputError.here(f"{what}: {_forms(what, known)}; got a dict and {_values(len(more))}")
        mapping = cast("Mapping[str, Any]", mapping or {})
    else:
        mapping = _in_order((mapping, *more), what, list(known))
    if not named:
        return {**mapping}
    twice = sorted(name for name in named if name in mapping)
    if twice:
        raise InputError.here(f"{what}: {', '.join(twice)} given twice, once by keyword; leave out one")
    return {**mapping, **named}


def _in_order(values: tuple[Any, ...], what: str, names: list[str]) -> dict[str, Any]:
    """Return values given by position, by input name."""
    batch = values[0]
    if len(values) == 1 and isinstance(batch, (tuple, list)):
        parts = cast("Sequence[Any]", batch)
        if len(names) > 1 or any(hasattr(x, "shape") for x in parts):
            kind, first = "tuple" if isinstance(batch, tuple) else "list", LEADING.get(what, "")
            raise InputError.here(f"{what}: {_forms(what, names)}; got one {kind}: write {what}({first}*batch)")
    odd: list[object] = [v for v in values if v is None or isinstance(v, (str, Mapping))]
    if odd or len(values) > len(names):
        got = shown(odd[0]) if odd else f"{_values(len(values))} by position"
        raise InputError.here(f"{what}: {_forms(what, names)}; got {got}")
    return dict(zip(names, values))


def _values(n: int) -> str:
    return f"{n} value{'s' * (n != 1)}"


def _forms(what: str, known: Iterable[str]) -> str:
    """Say how the inputs of a call are given."""
    names, first = list(known), LEADING.get(what, "")
    if not names:
        return "there are no inputs"
    by_name = ", ".join([f"{n}=..." for n in names])
    return f"pass {what}({first}{', '.join(names)}), by name as in {what}({first}{by_name}), or one dict"


def check_inputs(
    fields: Sequence[Field],
    given: Mapping[str, Any],
    what: str,
    lead: int | None = None,
    copied: Callable[[Array], Array] = new_copy,
) -> dict[str, Array]:
    """Return the given values as arrays of each field's dtype and shape.

    fields:   the inputs of the program, hyperparameters left out.
    given:    anything `numpy.asarray` takes: arrays, nested lists, numbers, torch tensors, buffers.
    what:     the call, for the error.
    lead:     `run_steps(n)`: a value may have one more axis in front, of this length.
    copied:   copies an array that needs no cast; `unchanged` returns the caller's own array instead.
    Returns:  one contiguous array per field. If `copied` copies, the caller's arrays can be reused at once.
    Raises:   InputError naming every missing, unknown, wrongly typed or shaped input, and every index out of range.

    Casts without loss are done. Any float becomes f32, rounded to nearest; overflow is refused. Integers and booleans
    become f32 if it holds them exactly, integers i32 and u32 if in range. Other casts are refused.
    """
    arrays: dict[str, Array] = {}
    problems: list[str] = []
    for field in fields:
        if field.name not in given:
            problems.append(f"{field.name}: missing, expected {field.type}")
            continue
        try:
            arrays[field.name] = fit_value(field, given[field.name], lead, copied, batch=True)
        except InputError as e:
            problems.append(f"{field.name}: {e}")
    if len(given) > len(arrays) or problems:
        _refuse(fields, given, what, problems)
    return arrays


def _refuse(fields: Sequence[Field], given: Mapping[str, Any], what: str, problems: list[str]) -> None:
    """Raise InputError with all problems and all unknown names; do nothing if there are none."""
    known = ", ".join(f"{f.name} {f.type}" for f in fields) or "none"
    unknown = [name for name in given if name not in {f.name for f in fields}]
    missing = [f.name for f in fields if f.name not in given]
    meant = {name: nearest(name, missing) for name in unknown}
    said = [f"{x}: unknown{f', did you mean {near}?' if near else ''}; inputs are {known}" for x, near in meant.items()]
    problems = [*said, *problems]
    if problems:
        problems += _swapped(fields, given)
        count = f"{len(problems)} problems with the inputs" if len(problems) > 1 else "a problem with the inputs"
        raise InputError.here("\n  ".join([f"{what}: {count}", *problems]))


def _swapped(fields: Sequence[Field], given: Mapping[str, Any]) -> list[str]:
    """Return a hint if two values were probably passed under each other's names: their shapes fit only there."""
    wanted = {f.name: f.shape for f in fields}
    shapes = {n: getattr(given[n], "shape", None) for n in wanted if n in given}
    pairs = [(a, b) for a in shapes for b in shapes if a < b and wanted[a] != wanted[b]]
    return [
        f"{a} and {b} have each other's shapes: are they swapped?"
        for a, b in pairs
        if shapes[a] == wanted[b] and shapes[b] == wanted[a]
    ]


def fit_value(
    field: Field,
    value: Any,
    lead: int | None = None,
    copied: Callable[[Array], Array] = new_copy,
    batch: bool = False,
) -> Array:
    """Return `value` as a contiguous array of the field's type. Raise InputError with the reason alone.

    lead:   the size of a further, leading axis that `value` can have: a batch for each of several steps.
    copied: as for `check_inputs`.
    batch:  whether `value` is an input of a step or run. Only the hints of errors depend on it.
    """
    dtype = _numpy_dtype(field.dtype)
    if type(value) is np.ndarray and value.shape == field.shape and value.dtype == dtype:
        out = copied(value)
    else:
        shapes = [field.shape] if lead is None else [(lead, *field.shape), field.shape]
        x = as_array(value, shapes)
        if x.shape not in shapes:
            wanted = f" or {field.dtype}[{','.join(map(str, shapes[0]))}]" if lead is not None else ""
            raise InputError(f"expected {field.type}{wanted}, got {describe(x)}{_shape_hint(field, x, batch)}")
        out = copied(x) if x.dtype == dtype else cast_lossless(x, field.dtype)
    if "range" in field.spec and out.size:
        for spec in (field.spec, *field.spec.get("others", ())):
            _check_part(out, spec)
    return out


@cache
def _numpy_dtype(name: str) -> Any:
    return np.dtype(DTYPES[name].numpy)


def blank(fields: Sequence[Field]) -> dict[str, Array]:
    """Return zeros for every field."""
    return {f.name: np.zeros(f.shape, DTYPES[f.dtype].numpy) for f in fields}


def given_or_blank(fields: Sequence[Field], given: Mapping[str, Any], what: str) -> dict[str, Array]:
    """Return the given values, checked; zeros if there are none."""
    return check_inputs(fields, given, what) if given else blank(fields)


def _check_part(x: Array, spec: Mapping[str, Any]) -> None:
    """Check the part of an input that the program uses as indices; see `input_ranges`."""
    box, (low, high) = spec.get("box", ()), spec["range"]
    starts = (*(0 for _ in range(x.ndim - len(box))), *(int(first) for first, _ in box))
    used = x[(..., *(slice(first, last + 1) for first, last in box))] if box else x
    _check_range(used, int(low), int(high), spec.get("exempt"), starts)


def _check_range(x: Array, low: int, high: int, exempt: int | None, starts: Sequence[int]) -> None:
    """Check that indices are in [low, high] or `exempt`: a device clamps them silently. starts: where `x` begins."""
    x = np.ascontiguousarray(x)
    # unsigned, numbers below 0 are above all others: one pass if all are valid
    if low == 0 and exempt is None and int(x.view(np.uint32).max()) <= high:
        return
    if exempt is not None:
        x = np.where(x == exempt, low, x)
    least, most = int(x.min()), int(x.max())
    if least >= low and most <= high:
        return
    bad = least if least < low else most
    where = np.unravel_index(int(np.argmax(x == bad)), x.shape)
    at = f" at [{','.join(str(int(k) + start) for k, start in zip(where, starts))}]" if starts else ""
    raise InputError(
        f"value {bad}{at} is out of range; valid values are {low} to {high}{', counted from 0' if not low else ''}"
    )


def _shape_hint(field: Field, x: Array, batch: bool) -> str:
    sizes = cast("tuple[object, ...]", field.shape)
    if not all(isinstance(n, int) for n in sizes):  # a size that calls choose
        one = batch and not isinstance(sizes[0], int) and x.shape == field.shape[1:]
        return " (one example? x[None] is a batch of one, and a DataLoader makes batches of a dataset)" if one else ""
    others = batch and len(x.shape) == len(field.shape) > 0 and x.shape[1:] == field.shape[1:]
    if others and x.shape[0] < field.shape[0]:
        return " (a last, smaller batch? write None for its size in inputs=, or drop it, by DataLoader(drop_last=True))"
    if sorted(x.shape) == sorted(field.shape):
        return " (the axes are in another order: transpose it, as x.T does with two; a reshape would mix the values up)"
    if x.size == field.size:
        shape = (-1, *field.shape[1:]) if batch and field.shape else field.shape  # -1 suits whole arrays, too
        name = field.name if batch else "x"
        return f" (the sizes agree: did you mean {name}.reshape({', '.join(map(str, shape))})?)"
    if not batch:
        return ""
    if x.shape[:-1] == field.shape and field.dtype == "i32":
        return " (one-hot? x.argmax(-1) gives the class numbers)"
    if x.shape == field.shape[1:]:
        return f" (one example? x[None] is a batch of one, and inputs= has a batch of {field.shape[0]})"
    if others:
        return (
            f" (inputs= has the batch size {field.shape[0]}: cut the data into such batches, or compile with another)"
        )
    return ""


def own_rows(
    fields: Sequence[Field], given: Mapping[str, Any], share: tuple[int, int]
) -> tuple[list[Field], dict[str, Any]]:
    """Return the fields with the shapes of one process, and the values: whole arrays are cut to its rows.

    share: (k, n): the process has part k of n equal parts of axis 0.
    """
    index, n = share
    own = [replace(f, shape=(f.shape[0] // n, *f.shape[1:])) if f.shape else f for f in fields]
    rows = dict(given)
    for f, part in zip(fields, own):
        shape = getattr(given.get(f.name), "shape", ())
        axis = len(shape) - len(f.shape)  # 1 if an axis of steps is in front
        if f.shape and axis in (0, 1) and shape[axis] == f.shape[0]:
            first = index * part.shape[0]
            rows[f.name] = given[f.name][(slice(None),) * axis + (slice(first, first + part.shape[0]),)]
    return own, rows


def check_patches(sites: Sequence[SiteInfo], given: Any, what: str) -> dict[str, Array]:
    """Return the arrays for a program's patch inputs, by field name, for the sites in `given`.

    sites:    the sites of the forward.
    given:    name -> array, or (mask, array) with a bool mask; both broadcast to the site's shape.
    what:     the call, for errors.
    Returns:  new arrays: value and mask of each given site.
    Raises:   InputError with every unknown site and wrong shape or dtype, and the existing patch sites.
    """
    known = {s.name: s for s in sites if s.kind == "patch"}
    if not isinstance(given, Mapping):
        text = f"{what}: patches must be a dict of site name -> array, got {type(given).__name__}"
        raise InputError.here(text)
    problems: list[str] = []

    def fit(name: str, value: Any) -> tuple[Array, Array]:
        if name not in known:
            raise InputError(f"no such site{'; choose one of these' if known else ''}")
        return mask_and_value(known[name], value)

    found = fitted(cast("Mapping[str, Any]", given), fit, problems)
    if problems:
        count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
        listed = "\n  ".join(["patch sites are", *map(str, known.values())])
        if not known:
            listed = 'this forward has no patch sites; mark them with x = tg.patch("name", x)'
        message = "\n  ".join([f"{what}: {count} with the patches", *problems, listed])
        raise InputError.here(message)
    return {patch_leaf(name, part): x for name, both in found.items() for part, x in zip((MASK, VALUE), both)}


def fitted(values: Mapping[str, Any], fit: Callable[[str, Any], Fitted], problems: list[str]) -> dict[str, Fitted]:
    """Return `fit(name, value)` of each value. `problems` gets the names and reasons of those for which it raises."""
    found: dict[str, Fitted] = {}
    for name, value in values.items():
        try:
            found[name] = fit(name, value)
        except InputError as e:
            problems.append(f"{name}: {e}")
    return found


def mask_and_value(site: SiteInfo, given: Any) -> tuple[Array, Array]:
    """Return mask and value as arrays of the site's shape. Raise InputError with the reason alone.

    A tuple is always (mask, array).
    """
    value, mask = given, None
    if isinstance(given, tuple):
        parts = cast("tuple[Any, ...]", given)
        if len(parts) != 2:
            raise InputError(f"a tuple must be (mask, array), got one of {len(parts)}")
        mask, value = parts
    field = Field(site.name, 0, 0, site.type.dtype.name, site.type.shape)
    value = as_array(value, [site.type.shape])
    with contextlib.suppress(ValueError):  # shapes that do not broadcast are refused below, with both types
        value = np.broadcast_to(value, site.type.shape)
    value = fit_value(field, value)
    if mask is None:
        return np.ones(site.type.shape, np.bool_), value
    raw = as_array(mask)
    try:
        return np.broadcast_to(cast_lossless(raw, "bool"), site.type.shape), value
    except InputError as e:
        raise InputError(f"mask: {e}") from None
    except ValueError:
        shape = list(site.type.shape)
        raise InputError(f"mask: expected a bool array that broadcasts to {shape}, got {describe(raw)}") from None


def sizes_of(
    free: FreeSizes, values: Mapping[str, Any], what: str, split: bool = False
) -> tuple[Sizes, Mapping[str, Any]]:
    """Return the sizes of a call's values, and the values, as arrays if their shapes matter.

    split: values can have one more axis in front. Raises: InputError with every problem if the inputs do not agree.
    """
    given, shapes = dict(values), list[Any]([split])
    for n in free.names:
        x = given.get(n)
        if n in given and not isinstance(x, np.ndarray):
            shape = free.types[n].shape
            with contextlib.suppress(InputError):  # the check reports it, together with every other problem
                x = given[n] = as_array(x, [(None, *shape), shape] if split else [shape])
        shapes.append(cast("Array", x).shape if isinstance(x, np.ndarray) else None)
    key = tuple(shapes)
    sizes = free.known.get(key)
    if sizes is None:
        sizes = _sizes(free, given, what, split)
        if None not in key:
            if len(free.known) >= KNOWN_SHAPES:
                free.known.clear()
            free.known[key] = sizes
    return sizes, given


def _sizes(free: FreeSizes, given: Mapping[str, Any], what: str, split: bool) -> Sizes:
    """Do the work of `sizes_of` for shapes that no call had before."""
    found = {name: [(n, d, _size(free, given, n, d, split)) for n, d in axes] for name, axes in free.axes.items()}
    known = {name: {size for _, _, size in sizes if size is not None} for name, sizes in found.items()}
    for name, sizes in found.items():
        _check_equal(name, [(n, d, size) for n, d, size in sizes if size is not None], what)
    if all(None not in [size for _, _, size in sizes] for sizes in found.values()):
        return tuple((name, sizes.pop()) for name, sizes in known.items())
    shapes = {n: list(t.shape) for n, t in free.types.items()}
    for n, d, size in [(n, d, *known[name]) for name, axes in free.axes.items() if known[name] for n, d in axes]:
        shapes[n][d] = size  # the inputs that fit say what the others should be
    fields = [Field(n, 0, 0, t.dtype.name, cast("tuple[int, ...]", (*shapes[n],))) for n, t in free.types.items()]
    check_inputs(fields, given, what)
    raise AssertionError("an input without the declared rank passed the check")


def _check_equal(name: str, sizes: Sequence[tuple[str, int, int]], what: str) -> None:
    """Raise InputError unless all sizes of a name, each with its input and axis, are equal and at least 1."""
    found = {size for _, _, size in sizes}
    if len(found) > 1:
        shown = ", ".join(f"{n} axis {d} is {size}" for n, d, size in sizes)
        which = f"dimensions named {name!r}" if name.isidentifier() else "None dimensions"
        raise InputError.here(f"{what}: all {which} of a call must have equal sizes: {shown}")
    if 0 in found:
        which = repr(name) if name.isidentifier() else "a None dimension"
        raise InputError.here(f"{what}: an input is empty; {which} must be at least 1")


def _size(free: FreeSizes, given: Mapping[str, Any], name: str, axis: int, split: bool) -> int | None:
    """Return the size of an axis of an input; None if it cannot be known."""
    shape: tuple[int, ...] = getattr(given.get(name), "shape", ())
    more = len(shape) - len(free.types[name].shape)
    return shape[axis + more] if more in ((0, 1) if split else (0,)) else None
