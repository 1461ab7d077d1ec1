"""States of a model: arrays that a step may replace and that no optimizer touches, inside of a trace.

Each is a leaf of role "state" named `state/<path>`. Those of one element type share an array, as parameters do. A write
is an entry of `Graph.writes` under the same name, as an optimizer's state is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad.dtypes import DType, Shape, TensorType
from tracegrad.ir import Tensor
from tracegrad.methods import TensorMethods

STATE = "state/"  # begins the names of leaves, writes, fields of programs, and tensors of checkpoints


def states_array(dtype: DType) -> str:
    """Return the array that the states of such elements share."""
    return f"state.{dtype.storage}"


class StateTensor(TensorMethods):
    """A state in a trace. It reads as `now`, the tensor that it was last assigned, and at first its leaf."""

    __slots__ = ("lanes", "name", "now")
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __init__(self, name: str, now: Tensor, lanes: int | None = None):
        """name:  its path in the model.
        lanes: of a state that only whoever made it reads, as `now`: how deep in `tg.vmap` and `tg.scan` it was made.
        """
        self.name, self.now, self.lanes = name, now, lanes

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self.now.type

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.now.dtype

    @property
    def shape(self) -> Shape:
        """Static shape."""
        return self.now.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.now.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.now.size

    def __repr__(self) -> str:
        return f"<state {self.name!r} {self.type}>"

    def __len__(self) -> int:
        return len(self.now)

    def __bool__(self) -> bool:
        return bool(self.now)

    def __float__(self) -> float:
        return float(self.now)

    def __int__(self) -> int:
        return int(self.now)

    def __index__(self) -> int:
        return self.now.__index__()

    def __iter__(self) -> Any:
        return iter(self.now)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.now[index] = value

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.now.__array__()

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return self.now.__array_ufunc__(function, method, *inputs, **options)

    if not TYPE_CHECKING:  # all else is as of the tensor that it stands for, and so are the errors

        def __getattr__(self, name: str) -> Any:
            return getattr(self.now, name)
