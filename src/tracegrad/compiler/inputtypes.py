"""Read the types in `inputs=`, and find which inputs are indices, whose ranges the host checks at each batch.

Each call chooses the sizes that are None or a name. Before the first call, a step is traced with stand-in sizes. Errors
print the name of such a size, not its number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from tracegrad.dtypes import Dimension, DType, InputType, Shape, TensorType, f32, whole
from tracegrad.errors import InputError
from tracegrad.ir.graph import Graph
from tracegrad.passes.indexed import indexed
from tracegrad.refusals import article, shown

# Losses can refuse some sizes, so the first accepted one counts. 840 has all divisors up to 8; the small sizes are
# within most limits.
TRIED = (16, 840, 64, 12, 4, 1)
Terms = Mapping[tuple[str, ...], int]  # factors, sorted -> how often their product is counted


class StandIn(int):
    """A number that stands for a size that calls choose. It computes like an int, and prints as the size's name.

    terms: the sum of products of names that it stands for, such as 2*B*T-1
    """

    terms: Terms

    @property
    def text(self) -> str:
        """The size as a sum of products of names, such as 2*B*T-1."""
        made = ""
        for factors, n in self.terms.items():
            parts = [*factors] if n == 1 and len(factors) == 1 else [_enclosed(f) for f in factors]
            parts = parts if parts and abs(n) == 1 else [str(abs(n)), *parts]
            made += ("-" if n < 0 else "+") + "*".join(parts)
        return made.removeprefix("+")

    def note(self) -> None:
        """Do nothing when code branches on the size: each call is traced again, at its own sizes."""

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else self.text


def stand_in(value: int, terms: Terms) -> int:
    """Return the number `value` that stands for `terms`; a plain int if no name is left in them."""
    terms = {factors: n for factors, n in terms.items() if n}
    if not any(terms):
        return value
    made = StandIn(value)
    made.terms = terms
    return made


def tried(names: Mapping[str, Dimension]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield sizes to trace with, by name. Different names get different numbers, so that errors can tell them apart.

    names: each name, and what the user wrote. All that were written as None get the same number.

    The last name gets the smallest number: the first is mostly the batch, on which models put few conditions.
    """
    told = [name for name, written in names.items() if written is not None]
    for least in TRIED:
        least = max(least, min(2, len(told)))  # a size of 1 would be broadcast, which would hide the name
        numbers = {name: least * max(2, 2 * k + 1) // 2 for k, name in enumerate(reversed(told))}
        yield tuple([(n, stand_in(numbers.get(n, least), {(str(written),): 1})) for n, written in names.items()])


def _terms(n: int) -> Terms:
    return n.terms if isinstance(n, StandIn) else {(): int(n)}


def _sum(a: Terms, b: Terms, sign: int = 1) -> Terms:
    return {factors: a.get(factors, 0) + sign * b.get(factors, 0) for factors in (*a, *b)}


def _product(a: Terms, b: Terms) -> Terms:
    made: Terms = {}
    for f, n in a.items():
        for g, m in b.items():
            made = _sum(made, {tuple(sorted(f + g)): n * m})
    return made


def _quotient(a: Terms, b: Terms) -> Terms | None:
    """Return a / b if b is one product that divides each term of a; else None."""
    if len(b) != 1:
        return None
    ((divisor, by),) = b.items()
    made: dict[tuple[str, ...], int] = {}
    for factors, n in a.items():
        left = list(factors)
        if n % by or any(left.count(f) < divisor.count(f) for f in divisor):
            return None
        for f in divisor:
            left.remove(f)
        made[tuple(left)] = n // by
    return made


def _named(a: int, sign: str, b: int) -> Terms:
    """Return a result that is not a sum of products of sizes, such as a quotient, as a new name."""
    return {(f"{_enclosed(str(a))}{sign}{_enclosed(str(b))}",): 1}


def _enclosed(text: str) -> str:
    """Return a name, a number or a product as it is, and anything else in parentheses."""
    return text if re.fullmatch(r"[\w*]+", text) else f"({text})"


OPERATIONS: dict[str, Callable[[int, int], Terms]] = {
    "add": lambda a, b: _sum(_terms(a), _terms(b)),
    "sub": lambda a, b: _sum(_terms(a), _terms(b), -1),
    "mul": lambda a, b: _product(_terms(a), _terms(b)),
    "floordiv": lambda a, b: _quotient(_terms(a), _terms(b)) or _named(a, "//", b),
    "mod": lambda a, b: _named(a, "%", b),
}


def _computed(name: str, terms: Callable[[int, int], Terms], back: bool) -> Callable[[StandIn, Any], Any]:
    of_int: Callable[..., Any] = getattr(int, f"__r{name}__" if back else f"__{name}__")

    def compute(self: StandIn, other: Any) -> Any:
        value = of_int(self, other)
        operands: Sequence[Any] = (other, self) if back else (self, other)
        # other results, such as floats, stay plain
        return stand_in(value, terms(*operands)) if isinstance(value, int) else value

    return compute


for _name, _rule in OPERATIONS.items():
    setattr(StandIn, f"__{_name}__", _computed(_name, _rule, back=False))
    setattr(StandIn, f"__r{_name}__", _computed(_name, _rule, back=True))
setattr(StandIn, "__neg__", lambda self: self * -1)  # noqa: B010


InputSpec = InputType | TensorType | Sequence[Dimension] | int
Sizes = tuple[tuple[str, int], ...]  # of a call: each name and its size, in the order of the declaration


def input_type(name: str, spec: Any) -> InputType:
    """Return the type of a spec: `(B, 784)` is f32; `tg.i32[B, T]` names its dtype. Raise InputError otherwise."""
    if hasattr(spec, "shape") and not isinstance(spec, (InputType, TensorType, type)):
        raise InputError.here(
            f"input {name!r}: declare a shape or a type, not {article(type(spec).__name__)} of shape {spec.shape}; "
            "pass values to step and run"
        )
    dtype, dims = f32, (spec,) if whole(spec) is not None or _is_name(spec) else spec
    if isinstance(spec, (InputType, TensorType)):
        dtype, dims = spec
    sizes = list(cast("Sequence[Any]", dims)) if isinstance(dims, (tuple, list)) else None
    if sizes is None or not all(d is None or _is_name(d) or (whole(d) or 0) > 0 for d in sizes):
        raise InputError.here(
            f"input {name!r}: {shown(spec)} is not a shape such as (64, 784), nor a type such as tg.i32[64, 128]"
            f"{_hint(spec, sizes or [])}"
        )
    return InputType(dtype, tuple([d if d is None or isinstance(d, str) else whole(d) for d in sizes]))


def _is_name(d: Any) -> bool:
    return isinstance(d, str) and d.isidentifier()


# What a wrong size is, and how to write what was probably meant; the first that fits counts
HINTS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda d: isinstance(d, DType), "; the shape goes in brackets behind the dtype, as in tg.i32[64, 128]"),
    (lambda d: isinstance(d, float), "; sizes are integers, write // for a division"),
    (lambda d: whole(d) == 0, "; sizes are at least 1"),
    (lambda d: (whole(d) or 0) < 0, "; a size that each call chooses is None, or a name such as 'B'"),
    (lambda d: isinstance(d, str), "; the name of a size is made of letters, digits and _"),
)


def _hint(spec: Any, sizes: Sequence[Any]) -> str:
    """Suggest how to write what was probably meant."""
    if spec is None:
        return "; the shape of one axis of any size is (None,)"
    if isinstance(spec, DType):
        return f"; a dtype alone has no shape, write tg.{spec}[...]"
    for wrong, hint in HINTS:
        if any(map(wrong, sizes)):
            return hint
    return "; f32 is the dtype of a shape alone" if isinstance(spec, type) else ""


def declared(inputs: Any) -> dict[str, Any]:
    """Return a copy of `inputs=`. Raises: InputError unless it gives each input by name."""
    types = cast("Mapping[str, Any]", inputs)
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[Any, Any]", inputs)):
        raise InputError.here(
            f'inputs must be a dict from names to shapes or types, such as {{"x": (64, 784)}}; got {inputs!r}'
        )
    for name in types:
        if not name.isidentifier():
            own = re.sub(r"\W", "_", name)
            hint = f", such as {own!r}" if own.isidentifier() else ""
            raise InputError.here(
                f"input {name!r} needs another name{hint}: inputs are arguments of the loss or forward, so a name "
                "must be a Python identifier: letters, digits and _"
            )
    return dict(types)


def input_types(inputs: Mapping[str, Any]) -> dict[str, InputType]:
    """Return the types of all inputs of a call."""
    return {name: input_type(name, spec) for name, spec in declared(inputs).items()}


def concrete_type(name: str, spec: Any) -> TensorType:
    """Return the type of an input whose sizes are all known. Raises InputError for an open size."""
    t = input_type(name, spec)
    sizes = tuple([d for d in t.shape if isinstance(d, int)])
    if len(sizes) < len(t.shape):
        raise InputError.here(
            f"input {name!r}: {t} has an open size, which only a call can choose; write a number instead"
        )
    return TensorType(t.dtype, sizes)


class FreeSizes(NamedTuple):
    """The inputs of a step or forward, and where each size that calls choose occurs in them."""

    types: Mapping[str, InputType]
    axes: Mapping[str, tuple[tuple[str, int], ...]]  # each name -> inputs and their axes
    names: tuple[str, ...]  # the inputs that have such axes
    known: dict[tuple[Any, ...], Sizes]  # the sizes of calls so far, by the shapes of these inputs

    @staticmethod
    def of(types: Mapping[str, InputType]) -> FreeSizes:
        """Return the free sizes of inputs. All None at the same axis are one size, in all inputs."""
        axes: dict[str, list[tuple[str, int]]] = {}
        for n, t in types.items():
            for d, size in enumerate(t.shape):
                if not isinstance(size, int):
                    axes.setdefault(name_of(size, d), []).append((n, d))
        names = tuple(dict.fromkeys([n for found in axes.values() for n, _ in found]))
        return FreeSizes(types, {name: tuple(found) for name, found in axes.items()}, names, {})

    def sized(self, sizes: Sizes) -> dict[str, InputType]:
        """Return the inputs with these sizes."""
        known = dict(sizes)
        return {
            n: InputType(
                t.dtype, tuple(s if isinstance(s, int) else known[name_of(s, d)] for d, s in enumerate(t.shape))
            )
            for n, t in self.types.items()
        }

    def all(self, size: int) -> Sizes:
        """Return a choice of sizes in which every size is `size`."""
        return tuple((name, size) for name in self.axes)

    def tried(self) -> Iterator[Sizes]:
        """Yield the sizes to trace with before a call has chosen any."""
        return tried({name: self.types[found[0][0]].shape[found[0][1]] for name, found in self.axes.items()})


def name_of(size: Dimension, axis: int) -> str:
    """Return the name of a size that calls choose."""
    return size if isinstance(size, str) else f"None at axis {axis}"


def as_read(sizes: Sizes) -> int | None | dict[str, int]:
    """Return sizes as users read them: the size alone if there is one name, None if there is none."""
    return dict(sizes) if len(sizes) > 1 else sizes[0][1] if sizes else None


Spec = dict[str, Any]


def input_ranges(graph: Graph) -> dict[str, Mapping[str, Any]]:
    """Return name -> {"range": [lo, hi]}, both included, for i32 inputs that reach an index unchanged.

    "exempt" is one more allowed value, such as the `ignore_index` of a loss. "box" is the part of the input that is
    used, [first, last] on each axis; without "box", all of the input is used. "others" lists such entries for other
    parts of the input, such as columns that are indices into another table.
    """
    found: dict[str, list[Spec]] = {}
    shapes: dict[str, Shape] = {}
    for source, box, size, exempt in indexed(graph.nodes, {}):
        shapes[source.name] = source.shape
        new: Spec = {"range": [0, size - 1], "box": box} | ({} if exempt is None else {"exempt": exempt})
        if not any(_joined(old, new) for old in found.setdefault(source.name, [])):
            found[source.name].append(new)
    for name, specs in found.items():
        for spec in specs:
            if all(first == 0 and last == n - 1 for (first, last), n in zip(spec["box"], shapes[name])):
                del spec["box"]
    return {n: {**first, **({"others": others} if others else {})} for n, (first, *others) in found.items()}


def _joined(old: Spec, new: Spec) -> bool:
    """Extend the entry `old` by `new` if one entry can describe both. Return whether it can.

    Both must be about the same part of the input, or about adjacent or overlapping parts with the same range.
    """
    if old.get("exempt") != new.get("exempt"):
        return False
    if old["box"] == new["box"]:
        old["range"] = min(old["range"], new["range"])
        return True
    apart = [k for k, (a, b) in enumerate(zip(old["box"], new["box"])) if a != b]
    (a, b), (c, d) = old["box"][apart[0]], new["box"][apart[0]]
    if old["range"] != new["range"] or len(apart) > 1 or max(a, c) > min(b, d) + 1:
        return False
    old["box"] = [[min(a, c), max(b, d)] if k == apart[0] else x for k, x in enumerate(old["box"])]
    return True
