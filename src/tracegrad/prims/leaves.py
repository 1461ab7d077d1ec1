"""Primitives without inputs: constants, and values that a program gets from outside."""

# The rules are lambdas, whose parameters cannot be annotated.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import array as packed
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from tracegrad.dtypes import (
    DType,
    Shape,
    TensorType,
    bool_,
    f32,
    i32,
    nearest_f32,
    number_kind,
    scalar_dtype,
    show,
    u32,
)
from tracegrad.errors import DTypeError, ShapeError, Site, TraceError, located
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Primitive, Tensor, bind, register
from tracegrad.ir.states import StateTensor
from tracegrad.methods import TensorMethods
from tracegrad.refusals import no_operand

# role: "param", "frozen", "input", "patch", "state" (a persistent array, or one state of a model), or "hyper" (a scalar
# that the host sets each step). "inner" is a leaf of the body of a scan. A "placeholder" belongs to a transform and is
# in no program.
LEAF = register(Primitive("leaf", "leaf", lambda *, role, name, type: type))

# A scalar known at compile time. inf and nan survive, because generated code writes them by their bits.
CONST = register(
    Primitive(
        "const",
        "formula",
        lambda *, value, dtype: TensorType(dtype, ()),
        array=lambda xp, *, value, dtype: xp.asarray(value, dtype.numpy),
        index=lambda i, *, value, dtype: value,
        cost=0,
    )
)

# An array known at compile time; `data` are its bytes, little-endian, row-major. Among eager tensors of f64, f32 stands
# for f64, and the bytes can be of f64.
LITERAL = register(
    Primitive(
        "literal",
        "leaf",
        lambda *, data, dtype, shape: TensorType(f32 if dtype.name == "f64" else dtype, shape),
        array=lambda xp, *, data, dtype, shape: xp.frombuffer(data, dtype.numpy).reshape(shape),
    )
)


def _iota_type(*, shape: Shape, axis: int) -> TensorType:
    if shape[axis] > HIGH["i32"]:
        raise ShapeError(
            f"{shape[axis]} coordinates along axis {axis} of {show(shape)} do not fit i32, which ends at 2^31 - 1"
        )
    return TensorType(i32, shape)


# The coordinate along `axis`.
IOTA = register(
    Primitive(
        "iota",
        "formula",
        _iota_type,
        array=lambda xp, *, shape, axis: xp.broadcast_to(
            xp.arange(shape[axis], dtype="int32").reshape([-1 if d == axis else 1 for d in range(len(shape))]), shape
        ),
        index=lambda i, *, shape, axis: i[axis],
        cost=0,
    )
)


def leaf(role: str, name: str, type: TensorType) -> Tensor:
    """Return a leaf: a value that the program gets from outside."""
    t = bind(LEAF, role=role, name=name, type=type)
    running = ambient.active()
    if running is not None:
        running.leaves.add(t.serial)
    return t


@contextmanager
def placeholder(type: TensorType) -> Generator[Tensor]:
    """Yield a leaf that a transform must replace before the block ends. Any later use of the leaf is an error."""
    running = ambient.require("transform")
    t = leaf("placeholder", "placeholder", type)
    try:
        yield t
    finally:
        running.leaves.discard(t.serial)


def counter(name: str, dtype: DType = u32, what: str = "") -> Tensor:
    """Return the scalar leaf `name` of the trace, the same at each call, which the host sets before each step.

    name:  "seed" and "step" key the random streams.
    what:  what needs a trace, for the error outside of one.
    """
    running = ambient.require(what or name)
    if name not in running.counters:
        running.counters[name] = leaf("hyper", name, TensorType(dtype, ()))
    return running.counters[name]


def const(value: bool | int | float, dtype: DType = f32) -> Tensor:
    """Return a scalar constant."""
    return bind(CONST, value=value, dtype=dtype)


def unviewed(t: Tensor) -> Tensor:
    """Return the tensor of which `t` is a view, through views that keep all elements and add none."""
    while t.prim.name in ("broadcast", "reshape", "permute"):
        t = t.inputs[0]
    return t


def constant(t: Tensor) -> float | None:
    """Return the number that every element of `t` equals, rounded to its dtype and seen through views; else None."""
    t = unviewed(t)
    if t.prim is not CONST:
        return None
    value = float(t.attrs["value"])
    return nearest_f32(value) if t.dtype.is_float else value


def iota(shape: Sequence[int], axis: int) -> Tensor:
    """Return an i32 array each of whose elements is the element's coordinate along `axis`."""
    return bind(IOTA, shape=tuple(shape), axis=axis)


FORMATS = {"f": f32, "d": f32, "e": f32, "?": bool_, "I": u32}  # of the buffer protocol; all other integers are i32
CODES = {"f32": "f", "i32": "i", "u32": "I", "bool": "B", "f64": "d"}
LOW = {"i32": -(2**31), "u32": 0}
HIGH = {"i32": 2**31 - 1, "u32": 2**32 - 1}
MOST_LISTED = 2**26  # so many constants take seconds and 2 GB


def listed(n: int) -> range:
    """Return range(n), for constants that Python lists one by one. Raises ShapeError if `n` is above MOST_LISTED."""
    if n > MOST_LISTED:
        raise ShapeError(f"{n} constants are too many to list, the limit is {MOST_LISTED}; compute them with arange(n)")
    return range(n)


def literal(array: Any, dtype: DType | None = None) -> Tensor:
    """Return a constant from anything with the buffer protocol, a nested list, or a number.

    Raises DTypeError for other objects.
    """
    if isinstance(array, (bool, int, float)):
        dtype = dtype or scalar_dtype(array)
        return const(fitting(array, dtype), dtype)
    if isinstance(array, (list, tuple)):
        flat, shape = _flatten(cast("Sequence[Any]", array))
        return _packed(flat, shape, dtype)
    try:
        view = memoryview(array)
    except (TypeError, ValueError):
        # arrays of ml_dtypes.bfloat16 do not support the buffer protocol
        if number_kind(array) == "f" and hasattr(array, "astype"):
            return literal(array.astype("float32"), dtype)
        raise DTypeError(no_operand(array)) from None
    if view.format[0] in "<=" and view.c_contiguous:  # a format of JAX and ctypes, which memoryview cannot read
        view = view.cast("B").cast(cast("Any", view.format[1:]), view.shape or [])
    shape = tuple(view.shape or ())
    source = FORMATS.get(view.format, i32)
    if view.format in ("f", "i", "I") and dtype in (None, source):
        return bind(LITERAL, data=view.tobytes(), dtype=source, shape=shape)
    return _packed(_values(view), shape, dtype or source)


def _values(view: memoryview) -> list[Any]:
    """Return the elements in row-major order."""
    if view.format == "e":  # half precision, which memoryview cannot read
        return list(struct.unpack(f"{view.nbytes // 2}e", view.tobytes()))
    try:
        return memoryview(view.tobytes()).cast(cast("Any", view.format)).tolist()
    except (NotImplementedError, ValueError):
        kind = getattr(view.obj, "dtype", view.format)
        raise DTypeError(f"an array of {kind} has no dtype here; convert it first, as in x.astype('float32')") from None


SEVERAL = "put tensors together with tg.stack([a, b]), and take one of several results, as in tg.sort(x)[0]"


def _packed(flat: list[Any], shape: Shape, dtype: DType | None) -> Tensor:
    if dtype is None:
        kinds: set[type[Any]] = {type(v) for v in flat}
        dtype = f32 if float in kinds or not kinds else bool_ if kinds == {bool} else i32
    try:
        values = flat if dtype.is_float else [fitting(v, dtype) for v in flat]
        running = ambient.active()
        if dtype.is_float and running is not None:
            dtype, running.rounded = running.double or dtype, running.rounded or running.double is None
        data = packed.array(CODES[dtype.name], values).tobytes()
    except DTypeError:
        raise
    except (TypeError, TraceError):
        raise DTypeError(f"a list holds numbers only; {SEVERAL}") from None
    return bind(LITERAL, data=data, dtype=dtype, shape=shape)


def fitting(value: Any, dtype: DType) -> bool | int | float:
    """Return a Python number as a value of `dtype`. Raises: DTypeError if the number would change."""
    chosen = hasattr(value, "as_float")  # a number that follows from sizes of calls must not become a plain one
    if dtype.is_float:
        return value.as_float() if chosen else float(value)
    kept = chosen and isinstance(value, int)
    if dtype.is_int and (kept or float(value).is_integer()) and LOW[dtype.name] <= value <= HIGH[dtype.name]:
        return value if kept else int(value)
    if dtype.name == "bool" and value in (0, 1):
        return bool(value)
    raise DTypeError(f"the number {value!r} does not fit {dtype}: the value would change; use tg.cast(x, dtype)")


def _ragged(values: Sequence[Any]) -> DTypeError:
    if any(isinstance(v, TensorMethods) for v in values):
        return DTypeError(f"a list has both tensors and lists in it; {SEVERAL}")
    return DTypeError("the nested list is ragged: its lists must have equal lengths")


def _flatten(values: Sequence[Any]) -> tuple[list[Any], Shape]:
    """Return the values of a nested list in order, and its shape. Raises: DTypeError if it is ragged."""
    if not values or not isinstance(values[0], (list, tuple)):
        if any(isinstance(v, (list, tuple)) for v in values):
            raise _ragged(values)
        return list(values), (len(values),)
    parts: list[tuple[list[Any], Shape]] = [_flatten(v) if isinstance(v, (list, tuple)) else ([], ()) for v in values]
    if len({shape for _, shape in parts}) != 1:
        raise _ragged(values)
    return [v for flat, _ in parts for v in flat], (len(values), *parts[0][1])


def as_tensor(value: Any, like: DType | None = None) -> Tensor:
    """Return a tensor, number, nested list or array as a tensor; a number takes the dtype `like`.

    like:   None: f32 for a float, i32 for an integer, bool for a boolean. With `like` bool, an integer or float takes
            this default, too. A number is rounded to f32.
    Raises: TraceError outside a trace, unless `value` is a tensor. DTypeError for a `value` of another type, for a
            float if `like` is i32 or u32, and for an integer out of range.

    As jax.numpy.asarray.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, StateTensor):
        return value.now
    if isinstance(value, TensorMethods):
        return _around(value)
    if not ambient.is_rewriting() and ambient.active() is None:
        raise TraceError(ambient.NO_TRACE)  # the op adds its name and the line
    value = unboxed(value)
    if not isinstance(value, (bool, int, float)):
        return literal(value)
    dtype = scalar_dtype(value) if like is None or (like.name == "bool" and not isinstance(value, bool)) else like
    if isinstance(value, float) and dtype.is_int:
        raise DTypeError(
            f"the number {value!r} is a float, but the tensor is {dtype}; cast the tensor first, tg.cast(x, tg.f32)"
        )
    return const(fitting(value, dtype), dtype)


def _around(value: TensorMethods) -> Tensor:
    """Return an eager tensor that a traced function closes over, as a constant.

    If the function runs at once, the tensor is a further argument instead.
    """
    running, x = ambient.active(), cast("Any", value)
    if running is None or running.closed is None or x.dtype.name not in ("f32", "f64"):
        return literal(x.constant())
    if x.dtype.name == "f64":
        running.double = x.dtype  # lists that are read from now on keep their digits
    if id(value) not in running.closed:
        name = f"closed.{len(running.closed)}"
        running.closed[id(value)] = value, leaf("input", name, TensorType(f32, x.shape))
    return running.closed[id(value)][1]


def as_tensors(*values: Any) -> tuple[Tensor, ...]:
    """Return `values` as tensors; numbers take the dtype of the first tensor, or of a float if all are numbers.

    Beside an f32 tensor, lists of integers become f32 too: alone they are i32, as indices are.
    """
    values = tuple([unboxed(v) for v in values])
    is_number = [isinstance(v, (bool, int, float)) for v in values]
    xs = [as_tensor(v) if isinstance(v, TensorMethods) else None for v in values]  # before lists, as `_around` says
    xs = [as_tensor(v) if x is None and not number else x for x, v, number in zip(xs, values, is_number)]
    like = next((x.dtype for x in xs if x is not None), None)
    if any(x is not None and x.dtype.is_float for x in xs):
        whole = [isinstance(v, (list, tuple)) and x is not None and x.dtype.is_int for v, x in zip(values, xs)]
        xs = [literal(v, f32) if w else x for v, x, w in zip(values, xs, whole)]
        like = f32 if True in whole else like
    if like is None and any(isinstance(v, float) for v in values):
        like = f32
    return tuple([as_tensor(v, like) if x is None else x for v, x in zip(values, xs)])


def unboxed(value: Any) -> Any:
    """Return a NumPy scalar as the Python number it holds, and any other value unchanged."""
    if isinstance(value, (bool, int, float, TensorMethods)):
        return value
    if hasattr(value, "dtype") and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def require_own(nodes: Sequence[Tensor], running: ambient.Trace) -> None:
    """Raise TraceError with the line that uses a leaf of another trace; `nodes` are in order."""
    begin = min(running.leaves, default=0)  # older nodes were made outside of this trace
    foreign: dict[int, Tensor] = {}  # node that depends on such a leaf -> the leaf
    for t in nodes:
        source = next((foreign[x.serial] for x in t.inputs if x.serial in foreign), None)
        if t.prim is LEAF and t.serial not in running.leaves:
            foreign[t.serial] = t
        elif source is not None and t.serial > begin:
            raise _not_own(source, t.site)
        elif source is not None:
            foreign[t.serial] = source
    if foreign:
        t = next(iter(foreign.values()))
        raise _not_own(t, t.site)


def _not_own(t: Tensor, site: Site | None) -> TraceError:
    return TraceError(
        located(
            f"tensor {t.name!r} ({t.type}) belongs to another trace, or to the inside of a scan; "
            "a traced tensor cannot be kept and used outside. Pass values in as inputs, and out as results",
            site,
        )
    )
