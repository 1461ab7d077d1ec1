"""The base classes of initialisers, which describe the first values of a parameter. `init.py` has all initialisers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracegrad.dtypes import Shape
from tracegrad.hypers import Range, checked, kind_of
from tracegrad.wrong_calls import check_call

NONE: Mapping[str, Range] = MappingProxyType({})


def fans(shape: Shape) -> tuple[int, int]:
    """Return (fan_in, fan_out): the number of inputs per output of a weight, and of outputs per input.

    A matrix is [in, out]. A shape with more axes is a convolution, [out, in/groups, *kernel]. For a vector [n], both
    numbers are n.
    """
    if len(shape) <= 1:
        n = shape[0] if shape else 1
        return n, n
    if len(shape) == 2:
        return shape[0], shape[1]
    area = math.prod(shape[2:])
    return shape[1] * area, shape[0] * area


class Initializer:
    """Base class of initialisers: frozen plain data. Two are equal if their values are."""

    # Not a dataclass: defining one takes 500 calls, and `import tracegrad` would define one per initialiser
    if not TYPE_CHECKING:

        def __init_subclass__(cls) -> None:
            cls.__init__ = cls.__init__  # `help` shows a method of the class itself before an inherited `__new__`

        def __new__(cls, *args: Any, **given: Any) -> Any:
            if args or given:  # copies are made without arguments
                check_call(f"init.{kind_of(cls)}", cls.__init__, args, given, bound=1)
            return super().__new__(cls)

        def __init__(self) -> None:
            """Take no arguments. `object.__init__` takes any, because the class has a `__new__`."""

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"an initialiser is fixed once it is made; {name} cannot be set")

    def spec(self) -> dict[str, Any]:
        """Return plain data, which `from_spec` and the browser read."""
        return {"kind": kind_of(type(self)), **vars(self)}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={x!r}' for name, x in vars(self).items())})"

    def _hold(self, ranges: Mapping[str, Range] = NONE, **values: Any) -> None:
        """Set the arguments. Raises InputError for one that is not a number in its range."""
        vars(self).update(values)
        for name, x in values.items():
            if name in ranges:
                checked(name, x, ranges[name], f"init.{kind_of(type(self))}")


class Gaussian(Initializer):
    """Normal numbers, with one mean and one standard deviation for a parameter."""

    def center(self) -> float:
        """Return the mean."""
        return 0.0

    def deviation(self, shape: Shape) -> float:
        """Return the deviation for a parameter of `shape`. Subclasses define it; here it raises NotImplementedError."""
        raise NotImplementedError


class Even(Initializer):
    """Uniform numbers, with one range for a parameter."""

    def bounds(self, shape: Shape) -> tuple[float, float]:
        """Return the range [low, high) for a parameter of `shape`. Subclasses define it; raises NotImplementedError."""
        raise NotImplementedError
