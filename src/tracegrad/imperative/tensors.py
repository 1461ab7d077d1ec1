"""GradTensor: a tensor with values and a gradient."""

# The modules of imperative/ use the private slots of GradTensor. Users should not.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from tracegrad import foreign
from tracegrad.arrays import as_array, np
from tracegrad.dtypes import DType, Shape, TensorType, number_kind
from tracegrad.errors import CallError, DTypeError, InputError, ShapeError, TraceError, call_site, placed
from tracegrad.imperative import tape
from tracegrad.imperative.values import Array, Spec, given
from tracegrad.methods import METHODS, TensorMethods
from tracegrad.wrong_calls import switch, unexpected


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    """Return an in-place operator, such as `w -= g`: the same as `w = w - g`, unless `w` is a leaf that requires grad.

    The operator sets the values of such a leaf under no_grad, as in PyTorch. Otherwise it raises TraceError.
    """

    def spelled(self: GradTensor, other: Any) -> Any:
        if self._record is not None or not self._spec.requires:
            return NotImplemented
        if tape.recording.get():
            raise TraceError.here(
                f"{self.type} requires a gradient and cannot be changed in place: "
                "write `with tg.no_grad():` around this, or w.data = w.data - g; a new tensor is y = w - g"
            )
        self.data = METHODS[name](self, other)
        return self

    return spelled


class GradTensor(TensorMethods):
    """A tensor with values: every op on it runs at once, and `backward` fills the gradients of its leaves.

    Make one with `tg.tensor` or `tg.parameter`, which describe the arguments. As torch.Tensor, but no op changes values
    in place: arrays that you pass are copied, `data` is read-only, and `numpy()` returns a copy.

    >>> tg.tensor([[1.0, 2.0]]) * 3
    tensor([[3., 6.]])
    """

    __slots__ = ("__weakref__", "_array", "_grad", "_record", "_spec")
    __array_priority__ = 1000
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    _array: Array
    _spec: Spec
    _record: tape.Record | None  # None for a leaf
    _grad: Array | None

    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None):
        """Make a leaf. data: a number, nested lists, an array or a tensor, copied. dtype: default tg.f32 for floats."""
        self._array, self._spec = given(data, dtype, "a tensor")
        self._record, self._grad = None, None
        self.set_requires_grad(requires_grad)

    @classmethod
    def from_numpy(cls, array: Any, requires_grad: bool = False, dtype: Any = None) -> GradTensor:
        """Return a tensor with a copy of an array.

        As torch.tensor(array); torch.from_numpy shares the memory. Raises DTypeError for a cast that loses data.
        """
        return cls(as_array(array), requires_grad, dtype)

    @classmethod
    def scalar(cls, value: float, requires_grad: bool = False, dtype: Any = None) -> GradTensor:
        """Return a tensor of rank 0. As torch.tensor(value). Raises ShapeError for more than one number."""
        t = cls(value, requires_grad, dtype)
        if t.shape != ():
            raise ShapeError.here(f"scalar: takes one number, got {t.type}")
        return t

    @staticmethod
    def is_grad_tensor(value: object) -> TypeGuard[GradTensor]:
        """Return whether `value` is an eager tensor. As torch.is_tensor."""
        return isinstance(value, GradTensor)

    @property
    def type(self) -> TensorType:
        """Element type and shape, such as f32[2,3]. As jax.typeof."""
        return TensorType(self._spec.dtype, self._spec.shape)

    @property
    def dtype(self) -> DType:
        """Element type, such as tg.f32. As torch.Tensor.dtype."""
        return self._spec.dtype

    @property
    def shape(self) -> Shape:
        """Number of elements along each axis, a tuple. As torch.Tensor.shape."""
        return self._spec.shape

    @property
    def requires_grad(self) -> bool:
        """True for a leaf that `backward` gives a gradient, and for a tensor computed from such a leaf.

        As torch.Tensor.requires_grad.
        """
        return self._spec.requires

    @property
    def is_leaf(self) -> bool:
        """True unless an op computed the tensor from a tensor that requires a gradient. As torch.Tensor.is_leaf."""
        return self._record is None

    @property
    def data(self) -> Array:
        """The values, as a read-only NumPy array. To change a leaf, assign new values: `w.data = w.data - g`.

        Assigning raises InputError unless the tensor is a leaf, ShapeError for another shape. As torch.Tensor.data.
        """
        view = np.asarray(self._array).view()
        view.flags.writeable = False
        return view

    @data.setter
    def data(self, values: Any) -> None:
        if self._record is not None:
            raise InputError.here(f"only a leaf can get new values; {self.type} was computed")
        array, spec = given(values, self._spec.dtype, "data")
        if spec is not self._spec.requiring(False):
            raise ShapeError.here(f"the values are {spec!r}, the tensor is {self._spec!r}")
        self._array = array

    def assign(self, value: Any) -> None:
        """Replace the values of a state (see `tg.Module.state`) in a model from `tg.instantiate`.

        value: a tensor of the state's shape and dtype, or an array of this shape, converted to the dtype.

        Raises TraceError if this tensor was computed or requires a gradient; ShapeError for another shape; DTypeError
        for another dtype. As torch.Tensor.copy_ of a buffer.
        """
        if self._record is not None or self._spec.requires:
            raise TraceError.here(
                f"assign: {self.type} {'requires a gradient' if self.is_leaf else 'was computed'}, so it is not a "
                "state of a model; make one with self.state(shape)"
            )
        new = value if isinstance(value, GradTensor) else GradTensor(value, dtype=self.dtype)
        if new.type != self.type:
            raise (DTypeError if new.shape == self.shape else ShapeError).here(
                f"assign: the state is {self.type}, the value is {new.type}; an assignment must keep the type"
            )
        self._array = new._array

    def numpy(self) -> Array:
        """Return a copy of the values, as a NumPy array that you can change. torch.Tensor.numpy shares the memory.

        >>> tg.tensor([3.0]).numpy()
        array([3.], dtype=float32)
        """
        return np.array(self._array)

    def item(self) -> float | int | bool:
        """Return the value of a tensor with one element, as a Python number. As torch.Tensor.item.

        Raises ShapeError for more elements, or none.

        >>> tg.tensor([3.0]).item()
        3.0
        """
        if self.size != 1:
            raise ShapeError.here(f"item: {self.type} has {self.size} elements, not one; x.numpy() returns all")
        return np.asarray(self._array).item()

    def tolist(self) -> Any:
        """Return the values as nested lists, or as one number. As torch.Tensor.tolist.

        >>> tg.tensor([[3.0], [4.0]]).tolist()
        [[3.0], [4.0]]
        """
        return np.asarray(self._array).tolist()

    # gradients
    @property
    def grad(self) -> GradTensor | None:
        """The gradient: the sum over all `backward` calls since the last `zero_grad`; None before the first.

        Tensors that ops computed have one only after `retain_grad`. As torch.Tensor.grad.
        """
        return None if self._grad is None else wrap(self._grad, self._spec.requiring(False))

    def backward(self, grad: Any = None, **unknown: Any) -> None:
        """Add d sum(self * grad) / dx to `x.grad`, for each leaf x that requires a gradient and led to this tensor.

        grad:   a factor for each element, of this tensor's shape and dtype; default ones.
        Raises: TraceError if no leaf requires a gradient; ShapeError or DTypeError for a `grad` of another type.

        You can call it again, also on the same tensor: gradients add up. As torch.Tensor.backward(retain_graph=True).

        >>> x = tg.parameter([3.0])
        >>> (x * x).sum().backward()
        >>> x.grad
        tensor([6.])
        """
        if unknown:
            raise placed(unexpected(("grad",), unknown, "backward"), "backward", call_site())
        if not self._spec.requires:
            raise TraceError.here(
                f"backward: {self.type} requires no gradient: it does not depend on a tg.parameter through an op "
                "with a derivative, or was computed under no_grad"
            )
        seed = self._spec.ones if grad is None else self._checked(grad, "backward")
        tape.backward(self._record or self, seed)

    def set_grad(self, grad: Any) -> None:
        """Replace `grad` by a copy of another tensor of the same shape and dtype. To remove it, call `zero_grad`.

        Raises TraceError if the tensor requires no gradient; ShapeError or DTypeError for another type.
        In PyTorch, assign to torch.Tensor.grad, which makes no copy.

        >>> x = tg.parameter([3.0])
        >>> x.set_grad(tg.tensor([1.0]))
        >>> x.grad
        tensor([1.])
        """
        if not self._spec.requires:
            raise TraceError.here(f"set_grad: {self.type} requires no gradient; see set_requires_grad")
        self._grad = self._checked(grad, "set_grad")

    def zero_grad(self) -> None:
        """Set `grad` to None, so that the next `backward` starts from 0. As torch.optim.Optimizer.zero_grad.

        >>> x = tg.parameter([3.0])
        >>> (x * x).sum().backward()
        >>> x.zero_grad()
        >>> x.has_grad()
        False
        """
        self._grad = None

    def has_grad(self) -> bool:
        """Return whether `grad` is not None."""
        return self._grad is not None

    def detach(self) -> GradTensor:
        """Return a tensor with the same values and no history. As torch.Tensor.detach.

        >>> tg.parameter([3.0]).detach().requires_grad
        False
        """
        return wrap(self._array, self._spec.requiring(False))

    def set_requires_grad(self, flag: bool = True) -> GradTensor:
        """Set whether `backward` gives the tensor a gradient, and return the tensor. As torch.Tensor.requires_grad_.

        flag: True or False. Raises DTypeError for True on integers or booleans, TraceError for False on a result of
              ops: use `detach` there.

        >>> x = tg.tensor([3.0]).set_requires_grad()
        >>> x.requires_grad
        True
        """
        if switch("requires_grad", flag) and not self._spec.type.dtype.is_float:
            raise DTypeError.here(f"only floats have gradients, this is {self.type}; make it with dtype=tg.f32")
        if self._record is not None and not flag:
            raise TraceError.here(f"{self.type} was computed from tensors that require a gradient; use detach()")
        self._spec = self._spec.requiring(bool(flag))
        return self

    def retain_grad(self) -> GradTensor:
        """Make `backward` set `grad` of this tensor too, although an op computed it, and return the tensor.

        As torch.Tensor.retain_grad. Raises TraceError if the tensor requires no gradient.
        """
        if not self._spec.requires:
            raise TraceError.here(f"retain_grad: {self.type} requires no gradient")
        if self._record is not None:
            self._record.retained = weakref.ref(self)
        return self

    def accumulate(self, grad: Array) -> None:
        """Add `grad`, an array of the tensor's shape and dtype, to the gradient. As AccumulateGrad of PyTorch."""
        self._grad = grad if self._grad is None else self._grad + grad

    def _checked(self, grad: Any, what: str) -> Array:
        """Return a copy of a gradient given by the user; numbers, lists and float arrays take the tensor's dtype."""
        own = isinstance(grad, GradTensor) or (hasattr(grad, "dtype") and number_kind(np.asarray(grad)) != "f")
        array, spec = given(grad, None if own else self._spec.dtype, what)
        if spec.shape != self._spec.shape:
            raise ShapeError.here(f"{what}: the gradient is {spec!r}, the tensor is {self._spec!r}")
        if spec is not self._spec.requiring(False):
            raise DTypeError.here(f"{what}: the gradient is {spec!r}, the tensor is {self._spec!r}")
        return array

    # methods with Deepbox's names
    def slice(self, *ranges: int | slice | Sequence[int | None]) -> GradTensor:
        """Return the part at `ranges`, one for each axis: an integer, a slice, (start, stop) or (start, stop, step).

        `x.slice(0, (1, 3))` is x[0, 1:3] of NumPy.
        """
        keys = tuple(slice(*r) if isinstance(r, (tuple, list)) else r for r in ranges)
        return cast("GradTensor", self[keys])

    def gather(self, indices: Any, axis: int = 0) -> GradTensor:
        """Return the slices at `indices`, which can be whole floats, along `axis`. As `tg.take`, not torch.gather."""
        if np.ndim(axis):
            raise CallError.here("gather: takes indices, axis; torch.gather is tg.take_along_axis(x, indices, axis)")
        at = as_array(indices)
        at = at.astype(np.int64) if at.dtype.kind == "f" and bool((at == np.floor(at)).all()) else at
        return cast("GradTensor", METHODS["take"](self, at, axis))

    def view(self, *shape: int | Sequence[int]) -> GradTensor:
        """Return the elements in another shape, as `reshape`: `x.view(2, -1)`. As torch.Tensor.view."""
        return cast("GradTensor", self.reshape(*shape))

    def at(self, *indices: int) -> float | int | bool:
        """Return the element at `indices`, one for each axis, as a number: `x.at(1, 0)`. As numpy.ndarray.item."""
        return cast("GradTensor", self[indices]).item()

    # protocols of Python and NumPy
    def constant(self) -> Array:
        """Return the values for use in a traced graph. Raises TraceError if the tensor requires a gradient."""
        if self._spec.requires:
            raise TraceError(
                f"the eager tensor {self.type} requires a gradient, which a trace cannot compute: make it a "
                "parameter of the model or an input, or pass x.detach() as a constant"
            )
        return np.ascontiguousarray(self._array) if self._spec.shape else np.asarray(self._array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        x = self.data
        return np.array(x, dtype) if copy or (dtype is not None and np.dtype(dtype) != x.dtype) else x

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return foreign.ufunc(function, method, inputs, options)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError.here(f"{self.type} has {self.size} truth values, not one: write tg.all(x) or tg.any(x)")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if not self._spec.dtype.is_int:
            raise DTypeError.here(f"only i32 and u32 can be an index, got {self.type}")
        return int(self.item())

    def __len__(self) -> int:
        if not self._spec.shape:
            raise ShapeError.here("a tensor of rank 0 has no length, and you cannot iterate over it")
        return self._spec.shape[0]

    if not TYPE_CHECKING:  # hidden from type checkers, so that they still find misspelled names

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise foreign.missing(self, name, f"a tensor {self.type}")

    __iadd__, __isub__ = _in_place("add"), _in_place("sub")
    __imul__, __itruediv__ = _in_place("mul"), _in_place("div")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TraceError.here(
            f"a tensor cannot be changed in place, as {self.type} here; make a new one, with tg.where or tg.concat"
        )

    def __repr__(self) -> str:
        text = np.array2string(np.asarray(self._array), separator=", ", prefix="tensor(")
        kind = "" if self._spec.dtype.name == "f32" else f", dtype={self._spec.dtype.name}"
        return f"tensor({text}{kind}{', requires_grad=True' if self._spec.requires else ''})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __copy__(self) -> GradTensor:
        return self

    def __reduce__(self) -> Any:
        return GradTensor, (self.numpy(), self._spec.requires, self._spec.dtype.name)


_new = cast("Callable[[type[GradTensor]], GradTensor]", object.__new__)


def wrap(array: Array, spec: Any) -> GradTensor:
    """Return a tensor with a value that never changes, and no history."""
    t = _new(GradTensor)
    t._array = array
    t._spec = spec
    t._record = None
    t._grad = None
    return t
