"""Check and cast the `patches` of a run, and report all problems at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tracegrad.arrays import as_array, cast_lossless, describe, np
from tracegrad.engine.inputs import fit_value
from tracegrad.errors import InputError
from tracegrad.program import Field
from tracegrad.sites import MASK, VALUE, SiteInfo, patch_leaf

Array = Any


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
    arrays: dict[str, Array] = {}
    problems: list[str] = []
    for name, value in cast("Mapping[Any, Any]", given).items():
        if name not in known:
            problems.append(f"{name}: no such site; choose one of these")
            continue
        try:
            arrays[patch_leaf(name, MASK)], arrays[patch_leaf(name, VALUE)] = mask_and_value(known[name], value)
        except InputError as e:
            problems.append(f"{name}: {e}")
    if problems:
        count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
        listed = "\n  ".join(["patch sites are", *map(str, known.values())])
        if not known:
            listed = 'this forward has no patch sites; mark them with x = tg.patch("name", x)'
        message = "\n  ".join([f"{what}: {count} with the patches", *problems, listed])
        raise InputError.here(message)
    return arrays


def mask_and_value(site: SiteInfo, given: Any) -> tuple[Array, Array]:
    """Return mask and value as arrays of the site's shape. Raise InputError with the bare reason.

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
