"""Calls from NumPy and PyTorch on tensors: operators work, and other functions raise an error with a remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from tracegrad.errors import MissingNameError, TraceError, call_site, located
from tracegrad.methods import METHODS
from tracegrad.refusals import family, found

# ufuncs that an ndarray on the left of an operator calls
OPERATORS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "remainder": "remainder",
    "floor_divide": "floor_divide", "power": "pow", "matmul": "matmul",
    "less": "less", "less_equal": "less_equal", "greater": "greater", "greater_equal": "greater_equal",
    "equal": "equal", "not_equal": "not_equal", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
}  # fmt: skip

OTHERS = ("torch", "torch.nn", "torch.nn.functional", "jax", "jax.lax", "optax")  # if their names are asked for


def missing(tensor: object, name: str, shown: str = "") -> MissingNameError:
    """Return the error for an attribute that tensors do not have."""
    remedy = found(name, "tensors", "names")
    if remedy is None:
        methods = [n for n in dir(type(tensor)) if not n.startswith("_")]
        near = get_close_matches(name, methods, n=1) or get_close_matches(name, METHODS, n=1)
        remedy = "operations are methods and the functions of tg."
        if name.endswith("_") and name[:-1] in METHODS:
            remedy = f"tensors never change: write x = tg.{name[:-1]}(x)"
        elif near:
            remedy = f"did you mean {f'x.{near[0]}' if near[0] in methods else f'tg.{near[0]}(x)'}?"
    return MissingNameError.here(f"{shown or repr(tensor)} has no {name!r}: {remedy}")


def no_such_name(module: str, name: str, known: Mapping[str, Iterable[str]], *tables: str) -> MissingNameError:
    """Return the error for a name that a module does not have. known: existing names, by the module's prefix.

    tables: remedies of the module, which take precedence over the common ones.
    """
    importing = sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"  # pyright: ignore[reportPrivateUsage]
    if name.startswith("_") or importing:  # importlib tries the attribute before it imports a submodule
        return MissingNameError(f"module {module!r} has no attribute {name!r}")
    own: dict[str, str] = {}
    same = ""  # the same name in another module: for `tg.Embedding`, suggest `tg.nn.Embedding`, not `tg.embedding`
    for prefix, names in known.items():
        for n in names:
            if not n.endswith("Error") or "Err" in name:  # Input is not InputError
                own.setdefault(_plain(n), f"{prefix}.{n}")
            if n == name and n[0].isupper():
                same = f"did you mean {prefix}.{n}?"
    remedy = found(name, *tables, "names", "tensors") or same or found(name, "schedules")
    remedy = remedy or family(name) or _near(name, own)
    if remedy is None and hasattr(sys.modules.get("numpy"), name):
        remedy = f"there is no counterpart; of values known before, compute it with np.{name}, and pass the result"
    elif remedy is None:
        other = any(hasattr(sys.modules.get(m), name) for m in OTHERS)
        remedy = f"{'there is no counterpart; ' if other else ''}dir({module}) lists what it has"
    return MissingNameError.here(f"{module} has no {name!r}: {remedy}")


def _near(name: str, own: Mapping[str, str]) -> str | None:
    """Return a remedy with the name that was probably meant, or None. own: full names by plain name."""
    plain = _plain(name)
    near = get_close_matches(plain, own, n=1, cutoff=0.8) or [n for n in own if len(plain) > 3 and n.startswith(plain)]
    if not near:
        return None
    meant = own[near[0]]
    if name.endswith("_"):
        return f"tensors never change: use the result of {meant}(x)"
    layer = name[0].isupper() and meant.startswith("tg.") and meant[3].islower()
    return f"did you mean {meant}?{' It is a function; nn.Sequential takes functions too' if layer else ''}"


def _plain(name: str) -> str:
    """Normalize `name` for comparison: CrossEntropyLoss and cross_entropy become equal."""
    return name.replace("_", "").lower().removesuffix("loss")


def ufunc(function: Any, method: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Apply an operator with an ndarray on its left. Raises TraceError for any other NumPy function."""
    name = OPERATORS.get(function.__name__)
    if "out" in options:  # as in w.data -= g
        raise TraceError.here(
            "a NumPy array cannot receive a tensor by += or out=: write a = a + b, or w.data = w.data + b"
        )
    if name is None or method != "__call__" or options:
        raise unknown("numpy", function)
    return METHODS[name](*inputs)


def unknown(library: str, function: Any) -> TraceError:
    """Return the error for a function of another library that was given a tensor."""
    name = str(getattr(function, "__name__", function))
    public = name in sys.modules["tracegrad.ops"].__all__
    hint = found(name, "names", "tensors") or (f"write tg.{name}" if public else "write it with functions of tg.")
    module = str(getattr(function, "__module__", None))  # such as numpy.linalg
    module = module if module.startswith(f"{library}.") and "._" not in module else library
    message = f"{module}.{name} cannot compute with a tensor of tracegrad; {hint}"
    # if a layer of that library called the function, the user's line is the call of the layer
    inside = getattr(sys.modules.get(library), "__file__", None)
    return TraceError(located(message, call_site(os.path.dirname(inside) if inside else None)))
