"""What users of NumPy and PyTorch try first: operators on tensors go through, the rest gets a remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from tracegrad.errors import MissingNameError, TraceError, call_site, located
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
    "cuda": "leave it out: the argument device of tg.compile says where a program runs",
    "contiguous": "leave it out: every tensor is",
    "masked_fill": "write tg.where(mask, value, x)",
    "gather": "write tg.take_along_axis(x, indices, axis)",
    "clone": "leave it out: tensors never change",
    "copy": "leave it out: tensors never change",
}
# Names of modules that PyTorch has; most others differ in case and underscores only, as ReLU and relu.
NAMES = {
    **dict.fromkeys(("cat", "concatenate"), "write tg.concat([a, b], axis)"),
    **dict.fromkeys(("float32", "float", "float64", "double"), "write tg.f32"),
    **dict.fromkeys(("int64", "int32", "int", "long", "i64"), "write tg.i32"),
    **dict.fromkeys(("save", "load"), "a training has train.save(path) and train.load(path)"),
    **dict.fromkeys(("Sequential", "ModuleList"), "a model may hold a plain list of layers; loop over it in __call__"),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d"), "write tg.batch_norm"),
    "ModuleDict": "a model may hold a plain dict of layers",
    "Parameter": "parameters are declared in __init__: self.W = self.param(shape, init=...)",
    "functional": "its functions are in tg., such as tg.relu",
    "BCEWithLogitsLoss": "write tg.binary_cross_entropy_with_logits",
    "bool": "write tg.bool_",
    "rand": "write tg.uniform(shape)",
    "unsqueeze": REMEDIES["unsqueeze"],
    "masked_fill": REMEDIES["masked_fill"],
    "gather": REMEDIES["gather"],
    "jit": "tg.compile compiles a whole training step, tg.compile_forward a forward",
}
INTERNAL = ("bit_xor", "getitem", "isnan", "nonfinite", "shift_right")  # of METHODS, not in tg.
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


def no_such_name(module: str, name: str, known: Mapping[str, Iterable[str]]) -> MissingNameError:
    """The error for a name that a module does not have; `known`: the names there are, by what is written before."""
    if name.startswith("_"):
        return MissingNameError(f"module {module!r} has no attribute {name!r}")
    own = {_plain(n): f"{prefix}.{n}" for prefix, names in known.items() for n in names}
    near = get_close_matches(_plain(name), own, n=1, cutoff=0.75)
    remedy = NAMES.get(name) or (f"did you mean {own[near[0]]}?" if near else "")
    return MissingNameError.here(f"{module} has no {name!r}" + (f": {remedy}" if remedy else ""))


def _plain(name: str) -> str:
    """`name` as it is compared: CrossEntropyLoss is cross_entropy."""
    return name.replace("_", "").lower().removesuffix("loss")


def ufunc(function: Any, method: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """An operator with an ndarray on its left; TraceError for any other NumPy function."""
    name = OPERATORS.get(function.__name__)
    if "out" in options:  # as of w.data -= g
        raise TraceError.here("an array does not take a tensor in place: write a = a - b, and w.data = w.data - b")
    if name is None or method != "__call__" or options:
        raise unknown("numpy", function)
    return METHODS[name](*inputs)


def unknown(library: str, function: Any) -> TraceError:
    """The error for a function of another library that was given a tensor."""
    name = str(getattr(function, "__name__", function))
    own = {"concatenate": "concat", "cat": "concat", "absolute": "abs"}.get(name, name)
    public = own in NOT_METHODS or (own in METHODS and own not in INTERNAL)
    hint = f"write tg.{own}" if public else "write it with functions of tg."
    message = f"{library}.{name} cannot compute with a tensor of tracegrad; {hint}"
    inside = getattr(sys.modules.get(library), "__file__", None)  # of its layers the user's line is the call
    return TraceError(located(message, call_site(os.path.dirname(inside) if inside else None)))
