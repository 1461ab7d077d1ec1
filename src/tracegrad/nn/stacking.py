"""Models made of models: many of one shape as one, and copies whose arrays are states."""

from __future__ import annotations

from typing import TypeVar

from tracegrad.errors import ShapeError
from tracegrad.init import Even, Initializer, Kaiming, Lecun, Literal, Orthogonal, Randn, Uniform, Xavier
from tracegrad.nn.module import Parameter, State, named_arrays, replaced

M = TypeVar("M")


def stack(model: M, n: int) -> M:
    """Return `n` models like `model` in one: each parameter `f32[...]` becomes `f32[n,...]`, names stay.

        models = nn.stack(MLP(), 64)
        def loss(m, x, y):
            return tg.sum(tg.vmap(loss_of_one, in_axes=(0, None, None))(m, x, y))

    Each member draws its own initial values, with the deviation that it would have alone; literals are repeated. The
    member `k` is the slice `[k]` of every parameter. A sum over members keeps them apart: Adam and any other optimizer
    that works element by element trains each as if it were alone, whereas clipping by the global norm sees all.

    model:  a tree of modules. It is read, never changed.
    Raises: ShapeError unless `n` is at least 1.

    >>> {name: p.shape for name, p in nn.named_parameters(nn.stack(nn.Linear(2, 1), 8)).items()}
    {'W': (8, 2, 1), 'b': (8, 1)}
    """
    if n < 1:
        raise ShapeError.here(f"nn.stack: a stack needs at least one model, got n={n!r}")
    return replaced(model, {id(p): _stacked(p, n) for p in named_arrays(model).values()})


def _stacked(p: Parameter, n: int) -> Parameter:
    shape, init = (n, *p.shape), _init(p, n)
    if isinstance(p, State):
        return State(shape, p.dtype, init, p.site)
    return Parameter(shape, p.dtype, init, p.decay, p.trainable, p.site)


def _init(p: Parameter, n: int) -> Initializer:
    """That of each member: fans are those of one, and not of the stack."""
    if isinstance(p.init, (Kaiming, Lecun, Xavier)):
        return Randn(p.init.deviation(p.shape))
    if isinstance(p.init, Even):
        return Uniform(*p.init.bounds(p.shape))
    if isinstance(p.init, Orthogonal):
        return Orthogonal(p.init.gain, p.init.stacked + 1)
    if isinstance(p.init, Literal):
        return Literal(p.dtype, (n, *p.shape), p.init.data * n)
    return p.init


def as_states(model: M) -> M:
    """A copy of `model` whose parameters are states that begin as these parameters do: a target network or a teacher.

        class Agent(tg.Module):
            def __init__(self):
                self.q = Net()
                self.target = nn.as_states(self.q)

        for t, p in zip(tg.tree_leaves(m.target), tg.tree_leaves(m.q)):     # in the loss
            t.assign(0.995 * t + 0.005 * p)

    The copy is called as the model is. No optimizer touches it, and it has no gradient. It begins as the parameters are
    drawn; after `train.upload_params` set it by `train.set_states`. States of `model` have states of their own in it.

    model:   a tree of modules. It is read, never changed.

    >>> list(nn.named_states(nn.as_states(nn.Linear(2, 1))))
    ['W', 'b']
    """
    return replaced(model, {id(p): _state_of(p) for p in named_arrays(model).values()})


def _state_of(p: Parameter) -> State:
    return State(p.shape, p.dtype, p.init, p.site, None if isinstance(p, State) else p)
