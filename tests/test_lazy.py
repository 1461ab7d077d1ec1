"""Dataclasses whose methods are written when they are used first: what users of one see is what the library's give."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tracegrad.lazy import Unwritten, dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    kind: ClassVar[str] = "point"

    x: int
    y: int = 2
    tags: list[str] = dataclasses.field(default_factory=list[str], compare=False)
    note: str = dataclasses.field(default="", repr=False)

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclass(frozen=True, slots=True)
class Point3(Point):
    """A point with a third coordinate."""

    z: int = 3


@dataclass(slots=True, eq=False)
class Box:
    """A box that may change."""

    held: Any
    double: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.held


def written(cls: type) -> bool:
    return not isinstance(cls.__dict__["__dataclass_fields__"], Unwritten)


def fresh() -> Any:
    """The class `Point`, made anew, so that none of its methods is written."""

    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int
        y: int = 2

    return Fresh


def test_nothing_is_written_before_the_first_use():
    assert not written(fresh())


USES: dict[str, Callable[[Any], Any]] = {
    "call": lambda c: c(1),
    "fields": dataclasses.fields,
    "signature": inspect.signature,
    "is_dataclass": dataclasses.is_dataclass,
    "restore": lambda c: object.__new__(c).__setstate__([1, 2]),
}


@pytest.mark.parametrize("use", USES)
def test_the_first_use_writes_all(use: str):
    cls = fresh()
    USES[use](cls)
    assert written(cls)
    assert repr(cls(1)).endswith("Fresh(x=1, y=2)") and cls(1) == cls(1, 2) != cls(2)
    assert str(inspect.signature(cls)) == "(x: 'int', y: 'int' = 2) -> None"


def test_it_is_a_dataclass_of_the_library():
    p = Point(1)
    assert repr(p) == "Point(x=1, y=2, tags=[])" and p.sum == 3 and Point.kind == "point"
    assert p == Point(1, tags=["a"]) and hash(p) == hash(Point(1)) and p != Point(2)
    assert p.tags is not Point(1).tags
    assert dataclasses.replace(p, y=5) == Point(1, 5)
    assert dataclasses.asdict(p) == {"x": 1, "y": 2, "tags": [], "note": ""}
    assert Point.__match_args__ == ("x", "y", "tags", "note")
    assert pickle.loads(pickle.dumps(p)) == copy.deepcopy(p) == p
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        p.x = 3  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del p.x  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        Point()  # pyright: ignore[reportCallIssue]
    assert not hasattr(p, "__dict__")


def test_a_field_may_come_from_a_base():
    p = Point3(1)
    assert Point3.__slots__ == ("z",) and (p.x, p.y, p.z) == (1, 2, 3)
    assert repr(p) == "Point3(x=1, y=2, tags=[], z=3)" and p != Point(1)


def test_one_that_may_change_is_compared_by_identity_if_it_says_so():
    b = Box(4)
    assert b.double == 8 and b != Box(4) and b in {b}
    b.held = 5
    assert b.held == 5
    with pytest.raises(AttributeError):
        b.other = 1  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]


def test_threads_may_be_first_together():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            cls, found, start = fresh(), list[Any](), threading.Barrier(4)

            def make(cls: Any = cls, found: list[Any] = found, start: threading.Barrier = start) -> None:
                start.wait()
                found.append(cls(7))

            threads = [threading.Thread(target=make) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert found == [cls(7)] * 4
    finally:
        sys.setswitchinterval(interval)
