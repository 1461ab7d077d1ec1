"""Many models of one shape as one, whose parameters have an axis more: what `tg.vmap` trains an ensemble with."""

from __future__ import annotations

from typing import TypeVar

from tracegrad.errors import ShapeError
from tracegrad.init import Initializer, Kaiming, Literal, Randn, Xavier
from tracegrad.nn.module import Parameter, named_parameters, replaced

M = TypeVar("M")


def stack(model: M, n: int) -> M:
    """`n` models like `model` in one: each parameter `f32[...]` becomes `f32[n,...]`, names stay.

        models = nn.stack(MLP(), 64)
        def loss(m, x, y):
            return tg.sum(tg.vmap(loss_of_one, in_axes=(0, None, None))(m, x, y))

    Each member draws its own initial values, with the deviation that it would have alone; literals are repeated. The
    member `k` is the slice `[k]` of every parameter. A sum over members keeps them apart: Adam and any other optimizer
    that works element by element trains each as if it were alone, whereas clipping by the global norm sees all.

    model:  a tree of modules. It is read, never changed.
    Raises: ShapeError unless `n` is at least 1.
    """
    if n < 1:
        raise ShapeError.here(f"nn.stack: a stack needs at least one model, got n={n!r}")
    return replaced(model, {id(p): _stacked(p, n) for p in named_parameters(model).values()})


def _stacked(p: Parameter, n: int) -> Parameter:
    return Parameter((n, *p.shape), p.dtype, _init(p, n), p.decay, p.trainable, p.site)


def _init(p: Parameter, n: int) -> Initializer:
    """That of each member: fans are those of one, and not of the stack."""
    if isinstance(p.init, (Kaiming, Xavier)):
        return Randn(p.init.std(p.shape))
    if isinstance(p.init, Literal):
        return Literal(p.dtype, (n, *p.shape), p.init.data * n)
    return p.init
