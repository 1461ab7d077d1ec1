"""What users of NumPy and PyTorch try on a traced tensor: operators go through, the rest gets a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from tracegrad.errors import MissingNameError, TraceError
from tracegrad.methods import METHODS

NO_NUMBERS = "it has no numbers while tracing: return it with the result (aux of a loss), or tg.capture it"
CAST = "write tg.cast(x, tg.f32), or another dtype"

REMEDIES = {
    **dict.fromkeys(("item", "numpy", "tolist", "data", "grad"), NO_NUMBERS),
    **dict.fromkeys(("to", "type_as", "float", "long", "int", "half", "double", "bool"), CAST),
    **dict.fromkeys(("values", "indices"), "x.max(axis) gives values only; x.argmax(axis) says where they are"),
    "backward": "tg.compile derives the gradient of what the loss returns",
    "detach": "write tg.stop_gradient(x)",
    "requires_grad": "parameters made with self.param(..., trainable=False) get no gradient; see also tg.stop_gradient",
    "view": "write x.reshape(...)",
    "unsqueeze": "write tg.expand_dims(x, axis), or x[:, None]",
    "expand": "write tg.broadcast_to(x, shape)",
    "chunk": "write tg.split(x, parts, axis)",
    "dim": "write x.ndim",
    "cpu": "leave it out: x.numpy() of an eager tensor has its values, and a traced one has none",
    "contiguous": "leave it out: every tensor is",
    "masked_fill": "write tg.where(mask, value, x)",
    "gather": "write tg.take_along_axis(x, indices, axis)",
    "clone": "leave it out: tensors never change",
    "copy": "leave it out: tensors never change",
}
NOT_METHODS = ("concat", "stack", "einsum", "outer", "clamp", "conv2d", "conv1d")

# ufuncs that an ndarray on the left of an operator calls
OPERATORS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow", "matmul": "matmul",
    "less": "less", "less_equal": "less_equal", "greater": "greater", "greater_equal": "greater_equal",
    "equal": "equal", "not_equal": "not_equal", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
}  # fmt: skip


def missing(tensor: object, name: str, shown: str = "") -> MissingNameError:
    """The error for an attribute that tensors do not have."""
    remedy = REMEDIES.get(name)
    if remedy is None:
        methods = [n for n in dir(type(tensor)) if not n.startswith("_")]
        near = get_close_matches(name, methods, n=1) or get_close_matches(name, METHODS, n=1)
        remedy = "operations are methods and the functions of tg."
        if near:
            remedy = f"did you mean {f'x.{near[0]}' if near[0] in methods else f'tg.{near[0]}(x)'}?"
    return MissingNameError.here(f"{shown or repr(tensor)} has no {name!r}: {remedy}")


def ufunc(function: Any, method: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """An operator with an ndarray on its left; TraceError for any other NumPy function."""
    name = OPERATORS.get(function.__name__)
    if name is None or method != "__call__" or options:
        raise unknown("numpy", function)
    return METHODS[name](*inputs)


def unknown(library: str, function: Any) -> TraceError:
    """The error for a function of another library that was given a tensor."""
    name = str(getattr(function, "__name__", function))
    own = {"concatenate": "concat", "cat": "concat", "absolute": "abs"}.get(name, name)
    hint = f"write tg.{own}" if own in METHODS or own in NOT_METHODS else "write it with functions of tg."
    return TraceError.here(f"{library}.{name} cannot compute with a tensor of tracegrad; {hint}")
