"""Draw batches on the device, from examples that stay there: the host uploads only a few scalars.

A *feed* is a program that a runtime runs before each step, in the same pass: it writes the step's inputs. Its buffers
of role "data" hold the examples. A data buffer of size 0 is as large as the host makes it, because the number of
examples is a hot value that no kernel depends on. Its buffers of role "fed" are the step's own, of the same name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tracegrad import ambient, hypers
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType
from tracegrad.errors import InputError
from tracegrad.graph import Graph
from tracegrad.ir import Tensor
from tracegrad.kernels.lower import LARGEST
from tracegrad.ops.indexing import take
from tracegrad.ops.random import rows_at_random
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer, Field, Program

PREFIX = "data."  # of the arrays of examples
COUNT = "data.count"  # the hot value that counts the examples; not an identifier, so no user's name clashes
MOST = 2**24  # examples: a draw has 24 random bits


@ambient.restored
def make_feed(step: Program, drawn: Collection[str]) -> Program:
    """Return the program that fills the inputs of `step`: `drawn` inputs with examples, the others with their value.

    Examples are drawn with replacement: the same ones for all inputs, others at every step.
    Raises: InputError for a drawn input without a leading axis, or if those axes differ in length.
    """
    fields = [f for f in step.inputs if not f.name.startswith(hypers.PREFIX)]
    lengths = {f.shape[0] if f.shape else 0 for f in fields if f.name in drawn}
    if len(lengths) > 1 or 0 in lengths:
        shown = ", ".join(f"{f.name} {f.type}" for f in fields if f.name in drawn)
        raise InputError.here(f"all inputs must have the same first axis, along which a batch is drawn; got {shown}")
    with ambient.tracing():
        rows = rows_at_random(lengths.pop(), hypers.scalar(COUNT)) if lengths else None
        values = {f.name: _value(f, rows if f.name in drawn else None) for f in fields}
    data = tuple(
        Buffer(PREFIX + f.name, f.type.dtype.storage, 0 if f.name in drawn else f.size, "data") for f in fields
    )
    feed = make_program(Graph(values), Persistent(data, (), {}), {}, {"kind": "feed"})
    for f, out in zip(fields, feed.outputs, strict=True):  # inputs are laid out like outputs: one after the other
        assert (f.name, f.offset, f.dtype) == (out.name, out.offset, out.dtype), (f, out)
    return replace(feed, buffers=tuple(_fed(b) if b.role == "output" else b for b in feed.buffers))


def _value(f: Field, rows: Tensor | None) -> Tensor:
    if rows is None:
        return leaf("state", PREFIX + f.name, f.type)
    most = min(MOST, LARGEST // max(1, f.size // f.shape[0]))  # kernels depend only on this limit
    return take(leaf("state", PREFIX + f.name, TensorType(f.type.dtype, (most, *f.shape[1:]))), rows, 0)


def _fed(b: Buffer) -> Buffer:
    return replace(b, name=b.name.replace("output", "input"), role="fed")
