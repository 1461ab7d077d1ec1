"""The functions by which users make eager tensors."""

from __future__ import annotations

from typing import Any

from tracegrad.imperative.tensors import GradTensor


def parameter(data: Any, requires_grad: bool = True, dtype: Any = None) -> GradTensor:
    """An eager tensor that `backward` gives a gradient.

    data:          a number, nested lists, an array or a tensor; copied.
    requires_grad: False for one without.
    dtype:         tg.f32, tg.i32, tg.u32, tg.bool_ or "float64"; default f32, of integer and bool arrays their own.
    Returns:       a leaf: its `grad` is None until a `backward` reaches it.
    Raises:        DTypeError for what cannot be cast without loss, and for an integer tensor that requires a gradient.

    >>> import tracegrad as tg
    >>> x = tg.parameter([2, 3, 4])
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([4., 6., 8.])
    """
    return GradTensor(data, requires_grad, dtype)


def tensor(data: Any, requires_grad: bool = False, dtype: Any = None) -> GradTensor:
    """An eager tensor of given values, without a gradient; otherwise as `tg.parameter`.

    >>> import tracegrad as tg
    >>> tg.tensor([[1, 2], [3, 4]]) @ [[1.0], [0.5]]
    tensor([[2.],
            [5.]])
    """
    return GradTensor(data, requires_grad, dtype)
