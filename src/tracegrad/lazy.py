"""A `dataclass` decorator that generates the methods at the first use of the class.

The decorator of the standard library generates and compiles the methods at once, in about 450 calls. Most processes use
few of the hundred classes that `import tracegrad` and `tg.compile` load.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

C = TypeVar("C", bound=type)
LOCK = threading.RLock()  # reentrant: generating the methods of a class can generate those of its bases
WRITTEN = (
    "__repr__",
    "__eq__",
    "__hash__",
    "__match_args__",
    "__replace__",
    "__init__",
)  # used by others: __init__ last


class Unwritten:
    """A placeholder for `__dataclass_fields__`. Reading it, as `replace` and `fields` do, generates the methods."""

    def __init__(self, cls: type, parts: dict[str, Any], options: dict[str, bool]):
        """parts: the body of the class, with defaults. options: options of the standard decorator."""
        self.cls, self.parts, self.options = cls, parts, options

    def __get__(self, instance: Any, owner: type) -> Any:
        self.write()
        return self.cls.__dict__["__dataclass_fields__"]

    def write(self) -> None:
        """Let the standard decorator generate the methods in a separate class without slots, and copy them."""
        cls = self.cls
        with LOCK:
            if cls.__dict__["__dataclass_fields__"] is not self:
                return  # another thread has done it
            own = {k: v for k, v in self.parts.items() if k not in ("__slots__", "__dict__", "__weakref__")}
            model: Any = dataclasses.dataclass(**self.options)(type(cls)(cls.__name__, cls.__bases__, own))
            for name in WRITTEN:
                if name in vars(model) and (name not in own or name == "__hash__"):
                    setattr(cls, name, vars(model)[name])
            type.__setattr__(cls, "__dataclass_params__", model.__dataclass_params__)
            type.__setattr__(cls, "__dataclass_fields__", model.__dataclass_fields__)


class Signature:
    """A placeholder for `__signature__`. It generates the methods, and is None, so that `inspect` uses `__init__`."""

    def __get__(self, instance: Any, owner: type) -> None:
        dataclasses.fields(owner)


SIGNATURE = Signature()


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(*, slots: bool = False, **options: bool) -> Callable[[C], C]:
    """Make a class a dataclass, as `dataclasses.dataclass` with the same options."""

    def make(cls: C) -> C:
        parts = dict(vars(cls))
        made: Any = _with_slots(cls, parts) if slots else cls

        def first(self: Any, *args: Any, **kwargs: Any) -> None:
            dataclasses.fields(made)
            made.__init__(self, *args, **kwargs)

        made.__init__ = first
        made.__signature__ = SIGNATURE
        if options.get("frozen"):
            made.__setattr__, made.__delattr__ = _refuse_to_assign, _refuse_to_delete
            if slots:
                made.__getstate__, made.__setstate__ = _values, _restore
        made.__dataclass_fields__ = Unwritten(made, parts, options)
        return made

    return make


def _with_slots(cls: type, parts: dict[str, Any]) -> type:
    """Return a copy of the class with a slot for each field of its own, without defaults, which conflict with slots."""
    taken = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    names = [x for x, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)]
    body = {k: v for k, v in parts.items() if k not in names and k not in ("__dict__", "__weakref__")}
    new = type(cls)(cls.__name__, cls.__bases__, body | {"__slots__": tuple(x for x in names if x not in taken)})
    new.__qualname__ = cls.__qualname__
    return new


def _refuse_to_assign(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _values(self: Any) -> list[Any]:
    return [getattr(self, x.name) for x in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for x, value in zip(dataclasses.fields(self), state):
        object.__setattr__(self, x.name, value)
