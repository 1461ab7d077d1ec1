"""Find the plan of a call by its key, which has everything that the computation depends on. A new key gets a plan."""

# The modules of imperative/ use the private slots of GradTensor. Users should not.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Iterator
from operator import index
from typing import Any, cast

from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.dtypes import DType, number_kind
from tracegrad.errors import DTypeError
from tracegrad.imperative.plans import Source, traced
from tracegrad.imperative.tensors import GradTensor
from tracegrad.imperative.values import NUMBER, Spec, taking, typed
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import AT_ONCE, Engine, Op
from tracegrad.refusals import article
from tracegrad.tuning import MOST_PLANS

BUFFERS = (GradTensor, array, memoryview, bytearray)
PLAIN = frozenset((int, str, type(None)))  # arguments that are their own part of a key
plain = PLAIN.issuperset
kind_of = cast("Callable[[Any], type[object]]", type)
NUMBERS = frozenset((int, float))
TRUE, FALSE = object(), object()  # parts of a key, because Python's True equals 1

# The part of an argument in the key of its plan, as code for most calls; `part` handles the other arguments.
# {p} is the parameter.
ARRAY = "{p}._spec if _type({p}) is _tensor else ({p}.dtype, {p}.shape) if _type({p}) is _array and {p}.shape else "
OPERAND = (
    ARRAY + "{p} if _type({p}) in _plain else (_float, {p}) if _type({p}) is _float and {p} != 0.0 else _part({p})"
)
ROWWISE = ARRAY + "_number if _type({p}) in _numbers else _operand({p})"  # the value comes with each call
SWITCH = "_true if {p} is True or ({p} is not False and _switch('{p}', {p})) else _false"


def key(op: Op) -> str:
    """Return Python code that computes the key of a call's plan."""
    parameters, switches = op.parameters, op.switches
    texts = [ROWWISE if is_rowwise(op) else SWITCH if p in switches else OPERAND for p in parameters]
    return ", ".join([f"({text.format(p=p)})" for p, text in zip(parameters, texts)])


def part(a: Any) -> Any:
    """Return the part of an argument in a key. True differs from 1 there, and 0.0 from -0.0.

    Raises DTypeError for a value that cannot be part of a call.
    """
    kind = kind_of(a)
    if kind is GradTensor:
        return a._spec
    if kind in PLAIN:
        return a
    if kind is slice:
        start, stop, step = a.start, a.stop, a.step
        if type(start) in PLAIN and type(stop) in PLAIN and type(step) in PLAIN:
            return kind, start, stop, step
        return kind, bound(start), bound(stop), bound(step)
    if kind is tuple or kind is list or issubclass(kind, (tuple, list)):
        return kind, tuple(a) if plain(map(type, a)) else tuple(map(part, a))
    if kind is bool:
        return TRUE if a else FALSE
    if kind is DType:
        return kind, a.name
    if kind is float:
        return kind, a if a != 0.0 else repr(a)
    if kind is dict:
        return kind, tuple([(name, part(x)) for name, x in a.items()])
    if kind is Tensor:
        return object()  # a tensor of a trace has no plan
    if is_array(a):
        return (a.dtype, a.shape) if kind is np.ndarray else (kind, typed(a)[1])
    if isinstance(a, (np.generic, np.ndarray)):
        return part(a.item())  # a number, as in a trace
    try:
        hash(a)
    except TypeError:
        raise DTypeError(f"{article(f'{kind.__module__}.{kind.__qualname__}')} cannot be an operand") from None
    return kind, a


def bound(a: Any) -> Any:
    """Return the part of a slice's bound."""
    return index(a) if hasattr(a, "__index__") else part(a)


def operand(a: Any) -> Any:
    """Return NUMBER for a number, else `part`: for ops in which a number is an operand like a tensor."""
    return NUMBER if is_number(a) else part(a)


def is_array(a: Any) -> bool:
    """Return whether `a` is an array or tensor, which can differ in each call; a plan fixes other arguments."""
    if isinstance(a, np.ndarray):
        return bool(cast("Any", a).shape)
    return isinstance(a, BUFFERS) or (hasattr(a, "__array__") and not isinstance(a, (type, np.generic)))


def is_number(a: Any) -> bool:
    """Return whether `a` is a number of Python or NumPy."""
    kind = kind_of(a)
    scalar = issubclass(kind, np.generic) or (kind is np.ndarray and not a.shape)
    return kind in NUMBERS or (scalar and number_kind(a) in "fiu")


def is_rowwise(op: Op) -> bool:
    """Return whether, beside floats, `op` treats a number as an operand like a tensor."""
    return hasattr(op.function, "rowwise")


def is_float(a: Any) -> bool:
    """Return whether `a` is a tensor or an array of floats."""
    if isinstance(a, GradTensor):
        return a._spec.type.dtype.is_float
    return is_array(a) and hasattr(a, "dtype") and number_kind(a) == "f"


def missed(op: Op, key: Any, args: tuple[Any, ...]) -> Any:
    """Return the result of a call whose key is new."""
    found = list[Any]()
    _mapped("", args, lambda path, a: found.append(a))
    if any(isinstance(a, Tensor) for a in found):
        return op.apply(args)
    numbers = is_rowwise(op) and any(map(is_number, args))
    if numbers and not any(map(is_float, args)):
        # For example an i32 tensor and a number: the number's value decides the result's type
        return _kept(op, key, lambda *args: run(op, args))(*args)
    return _kept(op, key, planned(op, args, numbers))(*args)


def run(op: Op, args: tuple[Any, ...]) -> Any:
    """Return the result of a call. Its key has the value of every number."""
    key = part(args)
    known = op.plans.get(key)
    return (known or _kept(op, key, planned(op, args, numbers=False)))(*args)


def _kept(op: Op, key: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    if len(op.plans) >= MOST_PLANS:
        op.plans.clear()
    op.plans[key] = run
    return run


def planned(op: Op, args: tuple[Any, ...], numbers: bool) -> Callable[..., Any]:
    """Return a function of the op's parameters for calls like this one. numbers: their values come with each call."""
    found: list[tuple[str, Any]] = []

    def comes(a: Any) -> bool:
        return is_array(a) or (numbers and is_number(a))

    parameters = [f"p{k}" for k in range(len(args))]  # the op's own names can clash with other names in the function
    for name, a in zip(parameters, args):
        _mapped(name, a, lambda path, x: found.append((path, x)) if comes(x) else None)
    double = any(type(a) is GradTensor and a._spec.double for _, a in found)
    typed_as = ["float64" if double and is_float(a) else None for _, a in found]
    specs = [
        a._spec if type(a) is GradTensor else NUMBER if is_number(a) else typed(a, dtype)[1]
        for (_, a), dtype in zip(found, typed_as)
    ]
    sources = [_source(path, a, spec) for (path, a), spec in zip(found, specs)]

    def build(leaves: Iterator[Tensor]) -> Any:
        return op.apply(_mapped("", args, lambda _, x: next(leaves) if comes(x) else x))

    return traced(build, specs).function(parameters, sources)


def _source(path: str, a: Any, spec: Spec) -> Source:
    """Describe how a plan's function gets the array of the argument at `path`."""
    if type(a) is GradTensor:
        return Source(f"{path}._array", owner=path if spec.requires else "")
    if spec is NUMBER:
        return Source(f"array({path}, float_)")
    return Source(path, taking(a.dtype if type(a) is np.ndarray else None, spec))


def _mapped(path: str, a: Any, put: Callable[[str, Any], Any]) -> Any:
    """Return the argument at `path` with everything in it replaced by `put(path, x)`."""
    if isinstance(a, (tuple, list)):
        items = [_mapped(f"{path}[{k}]", x, put) for k, x in enumerate(cast("list[Any]", a))]
        return type(cast("Any", a))(items)
    if isinstance(a, dict):
        return {k: _mapped(f"{path}[{k!r}]", x, put) for k, x in cast("dict[str, Any]", a).items()}
    return put(path, a)


def install() -> None:
    """Install the engine that runs ops at once. Without NumPy there is none, and ops need a trace."""
    if HAVE_NUMPY:
        # NumPy warns of log(0) and exp(1000), PyTorch does not. np.errstate would cost more than a small op
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"tracegrad\.(imperative|ops|prims)\.")
        types = {"_type": type, "_tensor": GradTensor, "_array": np.ndarray, "_float": float}
        parts = {"_part": part, "_plain": PLAIN, "_numbers": NUMBERS, "_number": NUMBER, "_operand": operand}
        AT_ONCE.append(Engine(key, missed, run, {**types, **parts, "_true": TRUE, "_false": FALSE}))
