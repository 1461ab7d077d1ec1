"""The functions that make an eager tensor of given values: `tg.parameter` and `tg.tensor`."""

from __future__ import annotations

from typing import Any

from tracegrad.arrays import np
from tracegrad.errors import DTypeError
from tracegrad.imperative.keys import is_array
from tracegrad.imperative.tensors import GradTensor
from tracegrad.methods import TensorMethods
from tracegrad.ops import constants
from tracegrad.wrong_calls import helpful, wrapped


@helpful
def parameter(data: Any, requires_grad: bool = True, dtype: Any = None) -> GradTensor:
    """Return an eager tensor that gets a gradient from `backward`.

    data:          a number, nested lists, an array or a tensor; copied.
    requires_grad: False for a tensor without a gradient.
    dtype:         tg.f32, tg.i32, tg.u32, tg.bool_ or "float64". By default, numbers, lists and float arrays become
                   f32, integer arrays i32 (uint32: u32), and booleans bool; an eager tensor keeps its dtype.
    Returns:       a leaf: a tensor that no op computed. Its `grad` is None until a `backward` reaches it.
    Raises:        DTypeError if `requires_grad` is True and the dtype, given or by default, is i32, u32 or bool. Also
                   for integers that `dtype` cannot hold exactly, and for fractions if it is i32 or u32. No error for
                   fractions that f32 rounds.

    As torch.tensor(data, requires_grad=True).

    >>> import tracegrad as tg
    >>> x = tg.parameter([2, 3, 4])
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([4., 6., 8.])
    """
    return GradTensor(data, requires_grad, dtype)


@helpful
def tensor(data: Any, requires_grad: bool = False, dtype: Any = None) -> GradTensor:
    """Return an eager tensor of given values. By default it gets no gradient. As torch.tensor.

    data:          a number, nested lists, an array or a tensor; copied.
    requires_grad: True for a tensor that gets a gradient from `backward`, as `tg.parameter`.
    dtype:         tg.f32, tg.i32, tg.u32, tg.bool_ or "float64". By default, numbers and lists become f32, even if they
                   are integers, and integer arrays become i32. `tg.parameter` has all rules.
    Raises:        DTypeError for integers that `dtype` cannot hold exactly, and for fractions if `dtype` is i32 or u32.
                   No error for fractions that f32 rounds.

    >>> import tracegrad as tg
    >>> tg.tensor([[1, 2], [3, 4]]) @ [[1.0], [0.5]]
    tensor([[2.],
            [5.]])
    """
    return GradTensor(data, requires_grad, dtype)


def _asarray(value: Any, dtype: Any = None) -> Any:
    made = constants.asarray(value, dtype)
    if not isinstance(made, GradTensor) or isinstance(value, TensorMethods) or not is_array(value):
        return made
    given, kept = np.asarray(value), made.data
    if not made.dtype.is_float and not np.array_equal(given, kept):  # the op's plan casts the array
        raise DTypeError.here(
            f"asarray: the value {given[given != kept][0]} of {given.dtype} does not fit {made.dtype}: "
            "the value would change; use tg.cast(x, dtype)"
        )
    return made


asarray = helpful(wrapped(_asarray, constants.asarray))
