"""Make batches on the device, from examples that stay there: the host uploads a few scalars, or the numbers of rows.

A *feed* is a program that runs before each step, in the same pass: it writes the step's inputs. Its buffers of role
"data" hold the examples. In a page the feed draws a batch. There the number of examples is a value that each run sets,
and no kernel depends on it: a data buffer has size 0 in the program, and the host gives it its size. For `fit` the host
chooses the rows, and the number of examples is fixed. Buffers of role "fed" are the step's own, of the same name; `fed`
joins the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tracegrad import hypers
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, i32
from tracegrad.errors import InputError
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.lower import LARGEST
from tracegrad.ops.indexing import take
from tracegrad.ops.random import rows_at_random
from tracegrad.prims.leaves import leaf
from tracegrad.program import PERSISTENT, Buffer, Field, Program

PREFIX = "data."  # of the arrays of examples
COUNT = "data.count"  # the input with the number of examples; not an identifier, so no user's name clashes
ROWS = "data.rows"  # the input with the numbers of a batch's rows
MOST = 2**24  # examples: a draw has 24 random bits


@ambient.restored
def make_feed(step: Program, drawn: Collection[str], count: int = 0) -> Program:
    """Return the program that fills the inputs of `step`: `drawn` inputs with examples, others with a stored value.

    count: the number of examples; the host chooses rows by the input ROWS. With 0, each step draws examples with
           replacement, the same ones for all inputs.
    Raises: InputError for a drawn input without a leading axis, or if those axes differ in length.
    """
    fields = [f for f in step.inputs if not f.name.startswith(hypers.PREFIX)]
    lengths = {f.shape[0] if f.shape else 0 for f in fields if f.name in drawn}
    if len(lengths) > 1 or 0 in lengths:
        shown = ", ".join(f"{f.name} {f.type}" for f in fields if f.name in drawn)
        raise InputError.here(f"all inputs must have the same first axis, along which a batch is drawn; got {shown}")
    with ambient.tracing():
        rows = _rows(lengths.pop(), count) if lengths else None
        values = {f.name: _value(f, rows if f.name in drawn else None, count) for f in fields}
    data = tuple(
        Buffer(PREFIX + f.name, f.type.dtype.storage, count * _each(f) if f.name in drawn else f.size, "data")
        for f in fields
    )
    feed = make_program(Graph(values), Persistent(data), {}, {"kind": "feed"})
    for f, out in zip(fields, feed.outputs, strict=True):  # inputs are laid out like outputs: one after the other
        assert (f.name, f.offset, f.dtype) == (out.name, out.offset, out.dtype), (f, out)
    return replace(feed, buffers=tuple(_fed(b) if b.role == "output" else b for b in feed.buffers))


def data_of(types: Mapping[str, TensorType]) -> Program:
    """Return a program that computes nothing, with the arrays of examples of these types."""
    data = tuple(Buffer(PREFIX + name, t.dtype.storage, t.size, "data") for name, t in types.items())
    return make_program(Graph({}), Persistent(data), {}, {"kind": "feed"})


def fed(step: Program, feed: Program) -> Program:
    """Return one program that makes its batch by `feed`, and then does `step`."""
    own = {b.name: k for k, b in enumerate(step.buffers)}
    buffers, places = list(step.buffers), list[int]()
    for b in feed.buffers:
        if b.role == "fed":
            places.append(own[b.name])
        else:
            places.append(len(buffers))
            buffers.append(b if b.role in PERSISTENT else replace(b, name=f"feed.{b.name}"))
    first, before = len(step.kernels), len(feed.dispatches)
    fill = [replace(d, kernel=first + d.kernel, buffers=tuple([places[k] for k in d.buffers])) for d in feed.dispatches]
    given = [replace(f, buffer=places[f.buffer]) for f in feed.inputs]
    return replace(
        step,
        kernels=(*step.kernels, *feed.kernels),
        buffers=tuple(buffers),
        dispatches=(*fill, *step.dispatches),
        inputs=(*[f for f in step.inputs if f.name.startswith(hypers.PREFIX)], *given),
        loops=tuple([replace(x, begin=x.begin + before, end=x.end + before) for x in step.loops]),
    )


def _rows(length: int, count: int) -> Tensor:
    if count:
        return leaf("input", ROWS, TensorType(i32, (length,)))
    return rows_at_random(length, hypers.scalar(COUNT))


def _each(f: Field) -> int:
    """Return the number of elements of one example."""
    return f.size // f.shape[0]


def _value(f: Field, rows: Tensor | None, count: int) -> Tensor:
    if rows is None:
        return leaf("state", PREFIX + f.name, f.type)
    most = count or min(MOST, LARGEST // _each(f))  # kernels depend only on this limit
    return take(leaf("state", PREFIX + f.name, TensorType(f.type.dtype, (most, *f.shape[1:]))), rows, 0)


def _fed(b: Buffer) -> Buffer:
    return replace(b, name=b.name.replace("output", "input"), role="fed")
