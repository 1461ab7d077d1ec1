"""`nn.stack` joins several models of one shape into one, and `nn.as_states` copies a model with states as arrays."""

from __future__ import annotations

from typing import TypeVar

from tracegrad.dtypes import check_integers
from tracegrad.errors import ShapeError
from tracegrad.init import Kaiming, Lecun, Literal, Orthogonal, Randn, Uniform, Xavier
from tracegrad.initializer import Even, Initializer
from tracegrad.nn.module import named_arrays, replaced
from tracegrad.nn.parameters import Parameter, State
from tracegrad.wrong_calls import helpful

__all__ = ["as_states", "stack"]

M = TypeVar("M")


@helpful
def stack(model: M, n: int) -> M:
    """Return `n` models like `model` as one: each parameter f32[...] becomes f32[n, ...] under the same name.

        models = nn.stack(MLP(), 64)

        def loss_of_one(m, x, y):
            return tg.mse_loss(m(x), y)

        def loss(m, x, y):                                  # for tg.compile(model=models, loss=loss, ...)
            return tg.sum(tg.vmap(loss_of_one, in_axes=(0, None, None))(m, x, y))

    Model `k` is the slice `[k]` of every parameter. Each model draws its own first values, as if it were alone; all
    have the same values of `tg.init.literal`. In the sum of the losses, no model influences another. Adam and any other
    elementwise optimizer then trains each as if it were alone; clipping by the global norm mixes them.

    model:  a tree of modules, which is not changed.
    n:      the number of models.
    Raises: ShapeError unless `n` is at least 1. As torch.func.stack_module_state of PyTorch.

    >>> {name: p.shape for name, p in nn.named_parameters(nn.stack(nn.Linear(2, 1), 8)).items()}
    {'W': (8, 2, 1), 'b': (8, 1)}
    """
    check_integers("nn.stack", n=n)
    if n < 1:
        raise ShapeError.here(f"nn.stack: a stack needs at least one model, got n={n!r}")
    return replaced(model, {id(p): _stacked(p, n) for p in named_arrays(model).values()})


def _stacked(p: Parameter, n: int) -> Parameter:
    shape, init = (n, *p.shape), _init(p, n)
    if isinstance(p, State):
        return State(shape, p.dtype, init, p.site)
    return Parameter(shape, p.dtype, init, p.decay, p.trainable, p.site)


def _init(p: Parameter, n: int) -> Initializer:
    """Return the initialiser of the stack. Fans are computed from the shape of one member."""
    if isinstance(p.init, (Kaiming, Lecun, Xavier)):
        return Randn(p.init.deviation(p.shape))
    if isinstance(p.init, Even):
        return Uniform(*p.init.bounds(p.shape))
    if isinstance(p.init, Orthogonal):
        return Orthogonal(p.init.gain, p.init.stacked + 1)
    if isinstance(p.init, Literal):
        return Literal(p.dtype, (n, *p.shape), p.init.data * n)
    return p.init


@helpful
def as_states(model: M) -> M:
    """Return a copy of `model` with states in place of parameters, for a teacher or a target network.

        class Agent(tg.Module):
            def __init__(self):
                self.q = Net()
                self.target = nn.as_states(self.q)

        def loss(m, x):                                     # m is the Agent
            for t, p in zip(tg.tree_leaves(m.target), tg.tree_leaves(m.q)):
                t.assign(0.995 * t + 0.005 * p)
            ...

    Call the copy as you call the model. No optimizer changes the copy, and it gets no gradient. Its states start as
    copies of the drawn parameters. `train.set_states` changes them, `train.set_params` does not. States of `model`
    become separate states of the copy. For target networks, see Mnih et al. 2015.
    model:   a tree of modules, which is not changed.
    Raises:  TraceError if `model` is not a tree of modules.

    >>> list(nn.named_states(nn.as_states(nn.Linear(2, 1))))
    ['W', 'b']
    """
    return replaced(model, {id(p): _state_of(p) for p in named_arrays(model).values()})


def _state_of(p: Parameter) -> State:
    return State(p.shape, p.dtype, p.init, p.site, None if isinstance(p, State) else p)
