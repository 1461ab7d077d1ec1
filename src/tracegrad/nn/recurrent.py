"""Recurrent layers: RNN, GRU and LSTM, in PyTorch's equations and order of gates, over `scan`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

from tracegrad import init as inits, transforms
from tracegrad.dtypes import i32, whole
from tracegrad.errors import DTypeError, InputError, ShapeError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor
from tracegrad.nn.module import Module
from tracegrad.ops import activation, constants, indexing, indices, joining, linalg, random, shaping
from tracegrad.prims.elementwise import tanh, where

__all__ = ["GRU", "LSTM", "RNN"]

Carry = tuple[Any, ...]


class Cell(Module):
    """One direction of one layer, with PyTorch's weights. In W_ih, W_hh, b_ih and b_hh, each gate has `hidden` rows.

    W_ih: f32[gates * hidden, input].  W_hh: f32[gates * hidden, hidden].  b_ih, b_hh: f32[gates * hidden].
    First values are uniform in +-1 / sqrt(hidden).
    """

    def __init__(self, input_dim: int, hidden: int, gates: int) -> None:
        edge = 1.0 / math.sqrt(hidden)
        self.W_ih = self.param((gates * hidden, input_dim), init=inits.uniform(-edge, edge))
        self.W_hh = self.param((gates * hidden, hidden), init=inits.uniform(-edge, edge))
        self.b_ih = self.param(gates * hidden, init=inits.uniform(-edge, edge))
        self.b_hh = self.param(gates * hidden, init=inits.uniform(-edge, edge))

    def given(self, x: Any) -> Any:
        """Return W_ih x + b_ih, the contribution of the input to the gates."""
        return linalg.matmul(x, shaping.swapaxes(self.W_ih, 0, 1)) + self.b_ih

    def recurring(self, h: Any) -> Any:
        """Return W_hh h + b_hh, the contribution of the previous output to the gates."""
        return linalg.matmul(h, shaping.swapaxes(self.W_hh, 0, 1)) + self.b_hh


class Recurrent(Module):
    """The common part of RNN, GRU and LSTM."""

    gates: ClassVar[int]
    carried: ClassVar[int] = 1  # number of arrays in the state

    def __init__(
        self, input_dim: int, hidden_dim: int, layers: int = 1, bidirectional: bool = False, dropout: float = 0.0
    ) -> None:
        if min(whole(n) or 0 for n in (input_dim, hidden_dim, layers)) < 1:
            raise ShapeError.here(
                f"{type(self).__name__}: input_dim={input_dim!r}, hidden_dim={hidden_dim!r} and layers={layers!r} must "
                "be integers of at least 1"
            )
        self.hidden_dim, self.layers = hidden_dim, layers
        self.dropout = random.probability(dropout, f"{type(self).__name__}: dropout")
        self.directions = 2 if bidirectional else 1
        sizes = [input_dim, *[self.directions * hidden_dim] * (layers - 1)]
        self.cells = [Cell(n, hidden_dim, self.gates) for n in sizes for _ in range(self.directions)]

    def step(self, cell: Cell, given: Any, carry: Carry) -> Carry:
        """Return the next carry, with the output first. Subclasses define `step`. Raises NotImplementedError here."""
        raise NotImplementedError

    def __call__(self, x: Tensor, state: Any = None, lengths: Any = None, training: bool = False) -> tuple[Any, Any]:
        """Run the layers along axis 1 of f32[B, T, input]; see the class.

        Raises: ShapeError for another rank or size of `x`, for a state or lengths that do not fit `x`, and in eager
                calls for T = 0. DTypeError for lengths that are not i32. InputError for lengths with known values
                that are out of range.
        """
        x = constants.asarray(x)
        if x.ndim != 3 or x.shape[2] != self.cells[0].W_ih.shape[1]:
            raise ShapeError.here(f"{self._name}: x must be [B, T, {self.cells[0].W_ih.shape[1]}], got {x.type}")
        if not ambient.building() and x.shape[1] == 0:
            raise ShapeError.here(
                f"{self._name}: axis 1 of x, the sequence, must have at least 1 element, got {x.type}"
            )
        live = self._live(x, lengths)
        carries = self._first(x, state)
        y, last = shaping.swapaxes(x, 0, 1), list[Carry]()
        for k in range(self.layers):
            y = random.dropout(y, self.dropout, training) if k and self.dropout else y
            parts: list[Any] = []
            for d in range(self.directions):
                at = k * self.directions + d
                out, end = self._along(self.cells[at], y, carries[at], live, reverse=d == 1)
                parts.append(out)
                last.append(end)
            y = parts[0] if len(parts) == 1 else joining.concat(parts, -1)
        ends = tuple(joining.stack([carry[k] for carry in last]) for k in range(self.carried))
        return shaping.swapaxes(y, 0, 1), ends if self.carried > 1 else ends[0]

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _along(self, cell: Cell, x: Any, carry: Carry, live: Any, reverse: bool) -> tuple[Any, Carry]:
        """Run one direction over f32[T, B, input]. Returns the outputs and the last carry."""

        def step(carry: Carry, given: Any) -> tuple[Carry, Any]:
            gates, here = given if live is not None else (given, None)
            new = self.step(cell, gates, carry)
            if here is None:
                return new, new[0]
            kept = tuple(where(here, a, b) for a, b in zip(new, carry, strict=True))
            return kept, where(here, new[0], 0.0)

        gates = cell.given(x)
        last, ys = _scanned(step, carry, gates if live is None else (gates, live), x.shape[0], reverse)
        return ys, last

    def _live(self, x: Any, lengths: Any) -> Any:
        """Return bool[T, B, 1], True where a sequence has an element; None if all have `T` elements."""
        if lengths is None:
            return None
        n = constants.asarray(lengths)
        if n.shape != x.shape[:1] or n.dtype != i32:
            kind, hint = (
                (ShapeError, "") if n.dtype == i32 else (DTypeError, "; cast them with tg.cast(lengths, tg.i32)")
            )
            must = f"lengths must be i32[{x.shape[0]}], one for each of x"
            raise kind.here(f"{self._name}: {must}, got {n.type}{hint}")
        known: list[int] = indices.constant_integers(n) if ambient.building() else cast("Any", n).numpy().tolist()
        bad = [k for k in known if not 0 <= k <= x.shape[1]]
        if bad:
            raise InputError.here(
                f"{self._name}: lengths must be from 0 to {x.shape[1]}, the size of axis 1 of x, {x.type}; got {bad[0]}"
            )
        n = indices.classes_for(n, x.shape[1] + 1) if ambient.building() else n  # the host checks those of an input
        return shaping.reshape(indexing.arange(x.shape[1]), (-1, 1, 1)) < shaping.reshape(n, (1, -1, 1))

    def _first(self, x: Any, state: Any) -> list[Carry]:
        """Return the first carry of each cell."""
        shape = (len(self.cells), x.shape[0], self.hidden_dim)
        if state is None:
            return [tuple(constants.zeros(shape[1:]) for _ in range(self.carried)) for _ in self.cells]
        parts = state if self.carried > 1 else (state,)
        given = [constants.asarray(s) for s in cast("Carry", parts)] if isinstance(parts, (tuple, list)) else []
        if [s.shape for s in given] != [shape] * self.carried:
            want = "(h, c), each" if self.carried > 1 else "h,"
            got = ", ".join(str(s.type) for s in given) or type(state).__name__
            raise ShapeError.here(f"{self._name}: the state must be {want} f32[{','.join(map(str, shape))}], got {got}")
        return [tuple(s[k] for s in given) for k in range(len(self.cells))]


def _scanned(step: Callable[..., Any], carry: Carry, xs: Any, n: int, reverse: bool) -> tuple[Any, Any]:
    """Run `tg.scan`; on eager values, the equivalent Python loop."""
    if ambient.building():
        return transforms.scan(step, carry, xs, reverse=reverse)
    ys: list[Any] = [None] * n
    for t in reversed(range(n)) if reverse else range(n):
        parts: Any = tuple(x[t] for x in cast("Carry", xs)) if isinstance(xs, tuple) else xs[t]
        carry, ys[t] = step(carry, parts)
    return carry, joining.stack(ys)


class RNN(Recurrent):
    """A recurrent network (Elman 1990), h' = tanh(W_ih x + b_ih + W_hh h + b_hh) for each vector x of a sequence.

    input_dim, hidden_dim: sizes of a vector x and of the state h.
    layers:        number of layers; each runs on the outputs of the previous one.
    bidirectional: True: also run from the end to the start, and concatenate both outputs. Then directions = 2, else 1.
    dropout:       probability of dropping an element of a layer's output, if training=True. The last layer has none.

    layer(x, state=None, lengths=None, training=False) gives (y, state):
    x:       f32[B, T, input_dim].
    state:   f32[layers * directions, B, hidden_dim]; None means zeros. The result has the last state of each sequence.
    lengths: i32[B], from 0 to T: lengths of the sequences; None: all are T. After a sequence's end, y is 0 and the
             state is kept, so a length of 0 gives the given state, where PyTorch's pack_padded_sequence raises. Lengths
             that a program computes are not checked: one below 0 counts as 0, and one above T as T.
    y:       f32[B, T, directions * hidden_dim]: h after each x.

    The weights of each layer and direction are in a cell: `cells.0`, ..., layer by layer, forward before backward. A
    cell has W_ih f32[G hidden_dim, size of x], W_hh f32[G hidden_dim, hidden_dim], and b_ih and b_hh f32[G hidden_dim].
    G is 1 for RNN, 3 for GRU and 4 for LSTM. First values are uniform in [-e, e), e = 1 / sqrt(hidden_dim).
    Raises: ShapeError for sizes below 1, when called if x, state or lengths do not fit, and in eager calls for T = 0.
            DTypeError for lengths that are not i32. InputError if `dropout` is outside [0, 1], and for lengths out of
            range; a length out of range in an input fails the run.
    As torch.nn.RNN with batch_first.

    >>> y, last = tg.instantiate(nn.RNN(3, 4), seed=0)(np.zeros((2, 5, 3), np.float32))
    >>> y.shape, last.shape
    ((2, 5, 4), (1, 2, 4))
    """

    gates = 1

    def step(self, cell: Cell, given: Any, carry: Carry) -> Carry:
        """Return the state after one element of the sequence: a tuple (h',), h' = tanh(given + W_hh h + b_hh).

        cell:  the cell with the weights, an element of `self.cells`.
        given: f32[B, hidden_dim]: W_ih x + b_ih for the element x, as `cell.given(x)` computes it.
        carry: the previous state, (h,), f32[B, hidden_dim].
        """
        return (tanh(given + cell.recurring(carry[0])),)


class GRU(Recurrent):
    """A gated recurrent unit (Cho et al. 2014), with gates r, z, n. As torch.nn.GRU with batch_first.

    r = sigmoid(x_r + h_r),  z = sigmoid(x_z + h_z),  n = tanh(x_n + r * h_n),  h' = (1 - z) * n + z * h

    W_ih x + b_ih is x_r, x_z and x_n one after the other, and W_hh h + b_hh is h_r, h_z and h_n.

    layer(x, state=None, lengths=None, training=False) gives (y, state), with x f32[B, T, input_dim], y f32[B, T,
    directions * hidden_dim] and state f32[layers * directions, B, hidden_dim]. All arguments, weights and errors are
    those of `RNN`.

    >>> y, last = tg.instantiate(nn.GRU(3, 4), seed=0)(np.zeros((2, 5, 3), np.float32))
    >>> y.shape, last.shape
    ((2, 5, 4), (1, 2, 4))
    """

    gates = 3

    def step(self, cell: Cell, given: Any, carry: Carry) -> Carry:
        """Return the state after one element of the sequence: a tuple (h',), by the equations in `nn.GRU`.

        cell:  the cell with the weights, an element of `self.cells`.
        given: f32[B, 3 hidden_dim]: W_ih x + b_ih for the element x, as `cell.given(x)` computes it.
        carry: the previous state, (h,), f32[B, hidden_dim].
        """
        (h,), k = carry, self.hidden_dim
        old = cell.recurring(h)
        r = activation.sigmoid(given[:, :k] + old[:, :k])
        z = activation.sigmoid(given[:, k : 2 * k] + old[:, k : 2 * k])
        n = tanh(given[:, 2 * k :] + r * old[:, 2 * k :])
        return ((1.0 - z) * n + z * h,)


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), gates i, f, g, o. As torch.nn.LSTM with batch_first.

    c' = sigmoid(f) * c + sigmoid(i) * tanh(g),  h' = sigmoid(o) * tanh(c')

    W_ih x + b_ih + W_hh h + b_hh is i, f, g and o one after the other.

    layer(x, state=None, lengths=None, training=False) gives (y, state), with x f32[B, T, input_dim] and y f32[B, T,
    directions * hidden_dim]. The state is a pair (h, c), f32[layers * directions, B, hidden_dim] each. All arguments,
    weights and errors are those of `RNN`.

    >>> y, (h, c) = tg.instantiate(nn.LSTM(3, 4), seed=0)(np.zeros((2, 5, 3), np.float32))
    >>> y.shape, c.shape
    ((2, 5, 4), (1, 2, 4))
    """

    gates, carried = 4, 2

    def step(self, cell: Cell, given: Any, carry: Carry) -> Carry:
        """Return the state after one element of the sequence: a tuple (h', c'), by the equations in `nn.LSTM`.

        cell:  the cell with the weights, an element of `self.cells`.
        given: f32[B, 4 hidden_dim]: W_ih x + b_ih for the element x, as `cell.given(x)` computes it.
        carry: the previous state, (h, c), f32[B, hidden_dim] each.
        """
        (h, c), k = carry, self.hidden_dim
        a = given + cell.recurring(h)
        i, f, o = (activation.sigmoid(a[:, j * k : (j + 1) * k]) for j in (0, 1, 3))
        c = f * c + i * tanh(a[:, 2 * k : 3 * k])
        return o * tanh(c), c
