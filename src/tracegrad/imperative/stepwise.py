"""`tg.eager` and `tg.instantiate`: run models on values, line by line, with prints, breakpoints and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from tracegrad.arrays import as_array, cast_lossless
from tracegrad.dtypes import InputType
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.params import declared, drawn
from tracegrad.errors import InputError
from tracegrad.imperative import streams
from tracegrad.imperative.tensors import GradTensor
from tracegrad.nn.module import bound, named_arrays
from tracegrad.training.compiled import CompiledTraining
from tracegrad.wrong_calls import check_function, helpful

M = TypeVar("M")


@helpful
def instantiate(model: M, seed: int | None = None) -> M:
    """Return a copy of a model whose parameters are eager tensors, so that you can call it on values.

    model:   a tree of modules; it is never changed.
    seed:    the seed of the parameters, which equal those of `tg.compile(seed=seed)`. None: the seed of
             `tg.manual_seed`. Random ops such as dropout draw from the seed of `tg.manual_seed` in both cases.
    Returns: the copy m. Call it, call `backward()` on the result, and read `m.W.grad`.
    Raises:  TraceError if `model` is not a tree of modules.
    As the init of a module of Flax. Modules of PyTorch have values from the start.

    >>> import tracegrad as tg
    >>> m = tg.instantiate(tg.nn.Linear(2, 1, init=tg.init.ones()), seed=0)
    >>> m([[1.0, 2.0]]).sum().backward()
    >>> m.W.grad
    tensor([[1.],
            [2.]])
    """
    return _with_values(model, drawn(declared(model), streams.place()[0] if seed is None else seed))


@helpful
def eager(forward: Callable[..., Any], model: Any, /, **inputs: Any) -> Any:
    """Run a forward or loss line by line on values, so that you can print, step and set breakpoints.

    forward: called as `tg.compile` calls it, forward(m, **inputs), with eager tensors.
    model:   one of three. A tree of modules: its parameters are drawn from the seed of `tg.manual_seed`. A copy from
             `tg.instantiate`: its parameters are used. A training or compiled forward: its current parameters are used.
    inputs:  arrays, eager tensors, nested lists or numbers. If `model` is compiled, they are converted to the dtypes of
             its `inputs`. Otherwise they are converted as by `tg.asarray`.
    Returns: the result of `forward`. For a loss, `backward()` fills the gradients of an instantiated model.
    Raises:  the errors of the ops, at the line of the op. If a conversion would lose values, InputError for a compiled
             model, else DTypeError.

    Random ops draw from the seed of `tg.manual_seed`. With a training, they draw the numbers of its next step.
    As jax.disable_jit, for one call.

    >>> import tracegrad as tg
    >>> def double(m, x):
    ...     print(x.shape)
    ...     return m(x) * 2
    >>> tg.eager(double, tg.nn.Linear(2, 1, init=tg.init.ones()), x=[[1.0, 2.0]])
    (1, 2)
    tensor([[6.]], requires_grad=True)
    """
    check_function("tg.eager", forward, "forward", "forward, model, x=...")
    compiled = isinstance(model, (CompiledForward, CompiledTraining))
    types: Mapping[str, InputType] = model.input_types if compiled else {}
    values = {n: _value(n, x, types.get(n)) for n, x in inputs.items()}
    if isinstance(model, CompiledForward):
        return forward(_with_values(model.store.model, model.download_params() | model.states()), **values)
    if isinstance(model, CompiledTraining):
        now = _with_values(model.model, model.download_params() | model.states())  # waits for all queued steps
        with streams.at(model.seed, model.store.stepper.counter + 1):
            return forward(now, **values)
    return forward(instantiate(model) if named_arrays(model) else model, **values)


def _value(name: str, x: Any, declared: InputType | None) -> GradTensor:
    if isinstance(x, GradTensor):
        return x
    try:
        a = as_array(x)
        return GradTensor(a if declared is None else cast_lossless(a, declared.dtype.name))
    except InputError as e:
        raise InputError.here(f"eager: input {name!r}: {e}") from None


def _with_values(model: M, values: dict[str, Any]) -> M:
    """Return the model with eager tensors of these values in place of its parameters and states."""
    tensors = {n: GradTensor(values[n], p.trainable) for n, p in named_arrays(model).items()}
    return bound(model, cast("Any", tensors))
