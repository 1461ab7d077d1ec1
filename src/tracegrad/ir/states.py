"""States of a model inside a trace: arrays that a step can replace and that no optimizer changes.

A state is a leaf of role "state" named `state/<path>`. States of one element type share an array, as parameters do. A
write is an entry of `Graph.writes` under the same name, as for optimizer states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad.dtypes import TensorType
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import TensorMethods

STATE = "state/"  # prefix of the names of leaves, writes, program fields and checkpoint tensors


class StateTensor(TensorMethods):
    """A state in a trace. Reading it gives `now`: the tensor assigned last, at first the state's leaf."""

    __slots__ = ("lanes", "name", "now")
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __init__(self, name: str, now: Tensor, lanes: int | None = None):
        """Describe a state by its path in the model, `name`.

        now:   the value that a read gives.
        lanes: how many `tg.vmap` and `tg.scan` were open when a function made the state; None for a model's state.
        """
        self.name, self.now, self.lanes = name, now, lanes

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self.now.type

    def __repr__(self) -> str:
        return f"<state {self.name!r} {self.type}>"

    def __pos__(self) -> Any:
        return self.now

    if not TYPE_CHECKING:  # all other attributes, and their errors, are those of the tensor `now`

        def __getattr__(self, name: str) -> Any:
            return getattr(self.now, name)


def _of_now(name: str) -> Any:
    """Return a special method that calls that of the tensor `now`. Python looks up special methods on the class."""

    def method(self: StateTensor, *args: Any, **options: Any) -> Any:
        return getattr(self.now, name)(*args, **options)

    return method


for _name in ("len", "bool", "float", "int", "index", "setitem", "array", "array_ufunc"):
    setattr(StateTensor, f"__{_name}__", _of_now(f"__{_name}__"))
