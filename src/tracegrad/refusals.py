"""Refuse names, operators and values that do not exist here or do not fit. Each message says what to write instead."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from tracegrad.errors import CallError, MissingNameError, call_site, located

# attributes that only tracegrad itself uses: not listed, and not suggested in errors
INNER = ("called", "copies", "fitted", "placed", "remedies", "source", "store", "waited", "worker")
MOST = 12  # names listed in a message


@cache
def remedies() -> dict[str, dict[str, Any]]:
    """Return the tables of `remedies.toml`. Most processes never read them."""
    import tomllib

    with open(os.path.join(os.path.dirname(__file__), "remedies.toml"), "rb") as f:
        return tomllib.load(f)


def found(name: str, *tables: str) -> Any:
    """Return the entry for a name in the first of some tables of `remedies.toml` that has one, or None.

    SoftMarginLoss is looked up as soft_margin_loss too, and add_ as add.
    """
    entries = {
        k: entry for table in reversed(tables) for keys, entry in remedies()[table].items() for k in keys.split()
    }
    function = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return next((entries[n] for n in (name, function, name.removesuffix("_")) if n in entries), None)


def family(name: str) -> str | None:
    """Return the remedy of the first pattern in `remedies.toml` that the name matches, or None."""
    return next((remedy for pattern, remedy in remedies()["families"].items() if re.fullmatch(pattern, name)), None)


def absent(what: str, name: str, own: Iterable[str], *tables: str, hint: str = "") -> MissingNameError:
    """Return the error for an attribute that an object does not have. own: its existing attributes."""
    names = [n for n in own if not n.startswith("_")]
    remedy = found(name, *tables)
    if remedy is None:
        near = get_close_matches(name, names, n=1)
        listed = f"{', '.join(names[:MOST])}{', ...' if names[MOST:] else ''}"
        remedy = f"did you mean {near[0]!r}?" if near else f"it has {listed or 'no attributes'}{hint}"
    return MissingNameError.here(f"{what} has no {name!r}: {remedy}")


class NoNumber:
    """Base class of objects that are often mistaken for numbers: pending results, parameters of a model, models.

    instead:  the remedy: what to write instead of the object.
    """

    __slots__ = ()
    instead: ClassVar[str] = ""

    @property
    def refusal(self) -> str:
        """The message of the error that is raised if the object is used as a number or tensor."""
        what = f"{type(self).__name__} {shown(self)}" if hasattr(type(self), "type") else type(self).__name__
        return f"{what} is not a number or tensor: {self.instead}"

    def _refuse(self, *_: Any) -> Any:
        # if NumPy or a package beside it, such as matplotlib, called this, the user's line is the call of that package
        inside = getattr(sys.modules.get("numpy"), "__file__", None)
        site = call_site(os.path.dirname(os.path.dirname(inside)) if inside else None)
        raise CallError(located(self.refusal, site or call_site()))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __abs__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


class NoArray(NoNumber):
    """Base class of objects that are neither numbers nor arrays: pending results, and parameters of a model."""

    __slots__ = ()

    __getitem__ = __setitem__ = __iter__ = __len__ = NoNumber._refuse
    __float__ = __int__ = __array__ = NoNumber._refuse

    def __bool__(self) -> bool:
        return True  # as for any object; otherwise __len__ would decide

    def __format__(self, spec: str) -> str:
        return self._refuse() if spec else str(self)


class Helped:
    """Base class of objects with methods. Missing attributes, and calls of the object, raise an error with a remedy.

    remedies: remedies by attribute name.
    called:   the remedy for a call.
    """

    __slots__ = ()
    remedies: ClassVar[str] = "objects"
    called: ClassVar[str] = ""

    def __dir__(self) -> list[str]:
        """Return the public attributes, for tab completion."""
        return [n for n in object.__dir__(self) if not n.startswith("_") and n not in INNER]

    if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            if name.startswith("_") or hasattr(cls, name):  # the latter: a property that raised an AttributeError
                return object.__getattribute__(self, name)
            own = [n for c in cls.__mro__ for n in vars(c) if not hasattr(Helped, n) and n not in INNER]
            raise absent(article(cls.__name__), name, own, cls.remedies, "objects")

        def __call__(self, *_: Any, **__: Any) -> Any:
            raise CallError.here(f"{article(type(self).__name__)} cannot be called: {self.called}")

        def __getitem__(self, _: Any) -> Any:
            raise CallError.here(f"{article(type(self).__name__)} has no items: {self.called}")


class Value:
    """Base class of objects that properties return. A call raises CallError, because the property is not a method."""

    __slots__ = ()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise CallError.here(f"{article(type(self).__name__)} is a value, not a function: leave out the parentheses")


class Count(int):
    """The number of elements of a tensor, an int. PyTorch's x.size() calls it."""

    def __call__(self, *_: Any) -> Any:
        """Raise CallError with a remedy."""
        raise CallError.here(
            f"x.size is the number of elements, {self}, and not a function: write x.shape, or x.shape[0] for one axis"
        )


def branching() -> str:
    """Return the remedy for a branch on a traced tensor at the user's line."""
    site = call_site()
    line = linecache.getline(site.file, site.line) if site else ""
    return next(remedy for pattern, remedy in remedies()["branches"].items() if re.search(pattern, line))


def no_operand(value: object) -> str:
    """Return the message, with a remedy, for a value that cannot be an operand of an op."""
    if isinstance(value, NoNumber):
        return value.refusal
    hint = "; convert it with .numpy()" if hasattr(value, "numpy") else ""
    hint = "; call it" if callable(value) and hasattr(value, "__name__") else hint  # a function, not an instance
    remedy = found(type(value).__name__, "no_operands")
    return (
        f"{shown(value)} is neither a tensor, a number, a nested list nor an array{f'; {remedy}' if remedy else hint}"
    )


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the name of `names` that resembles `name` most, in letters of any case; None if none does."""
    plain = {n.lower(): n for n in names}
    near = get_close_matches(str(name).lower(), plain, n=1)
    return plain[near[0]] if near else None


def valid(below: int, n: int) -> str:
    """Return the part of a message that says which indices are valid: those in [-below, n)."""
    return f"valid are {-below} to {n - 1}" if n else "none is valid"


def article(noun: str) -> str:
    """Return `noun` with its article, as "an int" and "a uint8"."""
    return f"{'an' if noun[0] in 'aeioAEIO' else 'a'} {noun}"


def shown(value: Any) -> str:
    """Return `value` as text for an error message: the type of a tensor or array, else the start of its repr."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type):
        type_ = getattr(value, "type", None)
        if hasattr(type_, "dtype"):  # for PyTorch's tensors, `type` is a method
            return str(type_)
        return f"an array {value.dtype}[{','.join(map(str, value.shape))}]"
    if callable(value) and hasattr(value, "__name__"):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    text = re.sub(r"\w+\.<locals>\.", "", " ".join(repr(value).split()))
    if " object at 0x" in text:
        return article(type(value).__name__)
    return text if len(text) <= 60 else f"{text[:57]}..."
