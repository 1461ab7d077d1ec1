"""The data of `fit`, whole arrays or an iterable of batches, and the position in the data, for checkpoints."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from tracegrad import safetensors
from tracegrad.arrays import Array, as_array, np
from tracegrad.dtypes import InputType, whole
from tracegrad.engine.inputs import Owned
from tracegrad.errors import InputError
from tracegrad.refusals import shown
from tracegrad.runtime.copy_pool import CopyPool

DEFAULT = 32  # batch size if neither `fit` nor `inputs` gives one


class Rows:
    """Whole arrays by input name, with examples along the first axis.

    size: batch size.
    drop: leave out a smaller last batch, because the compiled sizes are fixed.
    key:  seed of shuffling, used with the number of the epoch; None keeps the order.
    """

    def __init__(self, arrays: Mapping[str, Any], size: int, drop: bool, key: tuple[int, int] | None = None):
        self.arrays, self.size, self.drop, self.key = arrays, size, drop, key

    def __len__(self) -> int:
        n = self.count
        return n // self.size if self.drop else -(-n // self.size)

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(next(iter(self.arrays.values())))

    def orders(self, epoch: int = 1, begin: int = 0) -> Iterator[Array]:
        """Yield the numbers of the rows of each batch of an epoch, counted from 1, starting with batch `begin`."""
        order = np.arange(self.count)
        if self.key:
            order = np.random.default_rng([*self.key, epoch]).permutation(self.count)
        for k in range(begin, len(self)):
            yield order[k * self.size : (k + 1) * self.size]

    def batch(self, at: Array, names: Collection[str], memory: CopyPool) -> dict[str, Any]:
        """Return these rows of some arrays: copies in `memory`, or views if the rows are in order."""
        if self.key is None:
            return {name: self.arrays[name][at[0] : at[-1] + 1] for name in names}
        return Owned({name: memory.rows(self.arrays[name], at) for name in names})

    def split(self, share: float) -> tuple[Rows, Rows]:
        """Split off the last `share` of the examples, before shuffling, as Keras. Raises InputError if one is empty."""
        held = round(self.count * share)
        if not 0 < held < self.count:
            raise InputError.here(
                f"fit: validation={share:g} of {self.count} examples leaves one part empty; use another fraction, or "
                "more examples"
            )
        cut = self.count - held
        first = {name: x[:cut] for name, x in self.arrays.items()}
        last = {name: x[cut:] for name, x in self.arrays.items()}
        return Rows(first, self.size, self.drop, self.key).checked(), Rows(last, self.size, False)

    def checked(self) -> Rows:
        """Return the rows themselves. Raises InputError unless they fill at least one batch."""
        if not len(self):
            raise InputError.here(
                f"fit: {self.count} examples do not fill a batch of {self.size}; compile with inputs= of a smaller "
                "batch, or of None"
            )
        return self


def rows(
    given: Mapping[str, Any], types: Mapping[str, Any], batch_size: int | None, key: tuple[int, int] | None
) -> Rows:
    """Make `Rows` of whole arrays by input name. Raises InputError for wrong names, lengths or batch sizes."""
    _check_names(given, types)
    arrays = {name: _array(name, given[name], types[name]) for name in types}
    lengths = {name: len(x) if x.ndim else 0 for name, x in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        said = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise InputError.here(f"fit: arrays must have the same number of examples, at least one: {said}")
    firsts = {t.shape[:1] for t in types.values()}
    if len(firsts) != 1 or () in firsts:
        raise InputError.here("fit: the inputs have no batch axis in common; give an iterable of batches instead")
    ((size,),) = firsts
    fixed = isinstance(size, int)
    if fixed and batch_size not in (None, size):
        raise InputError.here(f"fit: batch_size is {batch_size}, inputs= has {size}; write None there for any size")
    return Rows(arrays, size if fixed else batch_size or DEFAULT, fixed, key).checked()


def _check_names(given: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    missing, unknown = [n for n in types if n not in given], [str(n) for n in given if n not in types]
    if missing or unknown:
        said = f"there is no array for {missing[0]!r}" if missing else f"{unknown[0]!r} is not one of them"
        raise InputError.here(
            f"fit: the inputs are {', '.join(types)}; {said}. Pass an array for each, such as "
            f"{{{', '.join(f'{n!r}: ...' for n in types)}}}, or columns of a data frame, x=frame[columns]"
        )


def _array(name: str, value: Any, t: Any) -> Any:
    """Return `value`, or the columns of a data frame, as an array. The first step checks its rank."""
    if hasattr(value, "to_numpy"):  # pandas, polars
        value = value.to_numpy()
        if value.dtype == object and any(isinstance(v, (str, bytes)) for v in value.flat):
            raise InputError.here(
                f"fit: {name} has text in it; write frame.astype('float32') if all of it are numbers; of categories, "
                "take their codes, as frame.y.astype('category').cat.codes"
            )
        try:
            value = value.astype(np.float32) if value.dtype == object and t.dtype.name == "f32" else value
        except (TypeError, ValueError) as e:  # a missing value of pandas
            raise InputError.here(
                f"fit: {name} has values that are not numbers: {e}; fill or drop missing values"
            ) from None
    try:
        return as_array(value)
    except InputError as e:
        raise InputError.here(f"fit: {name}: {e}") from None


def from_arguments(x: Any, y: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return `x=` and `y=` by input name: dicts of inputs, or an array each. InputError for an array too many."""
    given: dict[str, Any] = {}
    left = list(names)
    for what, value in (("x", x), ("y", y)):
        if value is None:
            continue
        if isinstance(value, Mapping):
            given |= cast("Mapping[str, Any]", value)
            left = [n for n in left if n not in given]
        elif left:
            given[left.pop(0)] = value
        else:
            raise InputError.here(f"fit: the inputs are {', '.join(names)}: {what} is not one of them; leave it out")
    return given


def whole_arrays(data: Any, types: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return `data` by input name if it is whole arrays (a dict, a tuple, one array, a data frame), else None."""
    names = list(types)
    if isinstance(data, Mapping):
        return cast("Mapping[str, Any]", data)
    if hasattr(data, "column_names") and hasattr(data, "with_format"):  # Hugging Face
        table: Any = data.with_format("numpy")[:]
        return {name: np.asarray(table[name]) for name in names if name in table}
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        return {name: data[name] for name in names if name in data.columns}
    if isinstance(data, tuple) and len(cast("Any", data)) == len(names):
        values = dict(zip(names, cast("tuple[Any, ...]", data), strict=True))
        if all(_is_whole(v, types[n]) for n, v in values.items()):
            return values
    if len(names) == 1 and _is_whole(data, types[names[0]]):
        return {names[0]: data}
    return None


def _is_whole(value: Any, t: Any) -> bool:
    """Return whether `value` is an array of examples, with the rank of the input, not an iterable of batches."""
    return hasattr(value, "to_numpy") or len(getattr(value, "shape", ())) == len(t.shape) > 0


def in_order(given: tuple[Any, ...], x: Any, y: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the whole arrays of `fit(x, y)` and `fit(x, y=y)` by input name; None for calls of another form.

    Raises InputError for arguments by position that are no arrays, and for too many.
    """
    if y is not None and x is None and len(given) == 1 and _is_array(given[0]):
        given, y = (*given, y), None
    if len(given) < 2:
        return None
    if not names:
        raise InputError.here(f"fit: the loss has no inputs, so it takes no data; got {len(given)} values")
    odd = [v for v in given[1:] if not _is_array(v)] if _is_array(given[0]) else [given[1]]
    if odd or len(given) > len(names) or x is not None or y is not None:
        kind = "a tuple of arrays" if odd and isinstance(odd[0], tuple) else shown(odd[0]) if odd else ""
        beside = "x= or y= beside arrays by position" if len(given) <= len(names) else f"{len(given)} arrays"
        raise InputError.here(
            f"fit: by position it takes one array for each input, fit({', '.join(names)}, batch_size=...), or batches "
            f"alone, fit(batches, epochs=..., validation=...); got {kind or beside}"
        )
    return dict(zip(names, given))


def _is_array(value: Any) -> bool:
    """Return whether `value` can be an array of examples: not batches in a list."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return not (items and isinstance(items[0], (tuple, Mapping)))
    return hasattr(value, "shape") or hasattr(value, "to_numpy")


def sources(
    types: Mapping[str, InputType], given: tuple[Any, ...], x: Any, y: Any, batch_size: int | None, key: Any,
    validation: Any,
) -> tuple[Rows | Iterable[Any], Rows | Iterable[Any] | None]:  # fmt: skip
    """Return the data to train on, and the data to validate on. Raises InputError for data of another kind.

    given: the arguments of `fit` by position.
    """
    if (several := in_order(given, x, y, list(types))) is not None:
        given, x, y = (several,), None, None
    data = given[0]
    if not types and data is None and x is None and y is None and validation is None:
        return [{}], None  # the loss has no inputs: a pass is one step
    if data is not None and (x is not None or y is not None):
        raise InputError.here("fit: give data, or x= and y=, not both")
    named = x is not None or y is not None
    arrays = from_arguments(x, y, list(types)) if named else whole_arrays(data, types)
    source: Any = data if arrays is None else rows(arrays, types, batch_size, key)
    if not (hasattr(source, "__iter__") or hasattr(source, "__getitem__") or isinstance(source, Rows)):
        hint = (
            "; call it, for its batches"
            if callable(source)
            else "; for example, pass a list of batches, [{'x': x, 'y': y}, ...]"
        )
        raise InputError.here(f"fit: data must be an iterable of batches, got {shown(source)}{hint}")
    if arrays is None and batch_size is not None:
        raise InputError.here(
            "fit: batch_size is for whole arrays, fit(x=..., y=...); leave it out for an iterable of batches"
        )
    return (source, None) if validation is None else _split(source, validation, types, batch_size)


def _split(
    source: Any, validation: Any, types: Mapping[str, InputType], batch_size: int | None
) -> tuple[Rows | Iterable[Any], Rows | Iterable[Any]]:
    """Return the data to train on and the data to validate on: a share of `source`, or data of their own."""
    if isinstance(validation, (int, float)):
        if not isinstance(source, Rows) or not 0 < validation < 1:
            raise InputError.here(
                f"fit: validation={validation!r} must be a fraction of whole arrays, between 0 and 1; otherwise "
                "pass a tuple or an iterable of batches"
            )
        return source.split(validation)
    found = whole_arrays(validation, types)
    if found is None:
        return source, cast("Iterable[Any]", validation)
    first = next(iter(types.values())).shape
    size = source.size if isinstance(source, Rows) else None if first and isinstance(first[0], int) else batch_size
    free = {n: t._replace(shape=(None, *t.shape[1:])) for n, t in types.items()}
    return source, rows(found, free, size or (first[0] if first and isinstance(first[0], int) else None), None)


def size_of(data: Rows | Iterable[Any]) -> list[int] | None:
    """Return [examples, batches] of whole arrays, or [batches] of an iterable; None if it has no length."""
    if isinstance(data, Rows):
        return [data.count, len(data)]
    try:
        return [len(cast("Sequence[Any]", data))]
    except TypeError:  # no length, or `len` fails, as for a DataLoader over an iterable
        return None


def as_inputs(batch: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Return a batch of a data iterable as a dict by input name. Raises InputError for a wrong number of values."""
    if isinstance(batch, Mapping):
        return cast("Mapping[str, Any]", batch)
    values = cast("Sequence[Any]", batch) if isinstance(batch, (tuple, list)) else (batch,)
    if len(values) != len(names):
        count = f"{len(values)} value{'s' * (len(values) != 1)}"
        raise InputError.here(
            f"fit: a batch has {count}, but the inputs are {', '.join(names)}. Pass an iterable of batches, "
            f"such as [({', '.join(names)}), ...], or whole arrays as fit({', '.join(names)})"
        )
    return dict(zip(names, values, strict=True))


class Position:
    """The position of a `fit`, for checkpoints: the current epoch, the steps before it, and its finished batches.

    key: seed of shuffling, and the steps that the training had done before the `fit`.
    size: numbers of examples and batches in the data, if known.
    told: whether `lr.plateau` has got the metric of the last step.
    sums: returns the means that `lr.plateau` will get: for each, the number of losses so far, and their sum.
    earlier: the sums in the checkpoint that this `fit` continues, to which the loop adds.
    """

    told = False
    sums: Callable[[], dict[str, list[float]]] = dict

    def __init__(self, epoch: int, first: int, key: tuple[int, int], size: list[int] | None = None, done: int = 0):
        self.epoch, self.first, self.key, self.size, self.done = epoch, first, key, size, done
        self.earlier: dict[str, list[float]] = {}

    @property
    def steps(self) -> int:
        """The number of steps that the training has done."""
        return self.first + self.done

    @property
    def own(self) -> int:
        """The number of steps that the `fit` has done, also those before an interrupt."""
        return max(self.steps - self.key[1], 0)

    def at(self, steps: int) -> str | None:
        """Return text for a checkpoint after `steps` steps; None if other steps were done, or after a load or reset."""
        if steps != self.steps:
            return None
        place = {"epoch": self.epoch, "batch": self.done, "key": self.key, "size": self.size}
        sums = self.sums()
        return json.dumps(place | ({"told": True} if self.told else {}) | ({"sums": sums} if sums else {}))

    def check_size(self, size: list[int] | None, path: Any) -> None:
        """Raise InputError if the data have another size than those of the run that wrote the checkpoint `path`."""
        if size != self.size or (size is not None and self.done > size[-1]):
            said = f"examples and batches were {self.size}, and are {size}"
            raise InputError.here(
                f"fit: {path} was saved with other data: {said}; to go on with new data, use train.load(path)"
            )

    @staticmethod
    def read(path: Any) -> Position:
        """Read the position from a checkpoint, except `first`, which `fit` sets. Raises InputError if there is none."""
        text = _metadata(path).get("fit")
        if text is None:
            raise InputError.here(
                f"fit: {path} was not saved while fit ran, or steps were taken by hand since; "
                "use train.load(path), then fit"
            )
        try:
            d = json.loads(text)
            numbers = [d["epoch"], d["batch"], *d["key"], *(d["size"] or ())]
            if not all(whole(n) is not None and n >= 0 for n in numbers) or len(d["key"]) != 2 or d["epoch"] < 1:
                raise ValueError
            sums = {str(n): [float(x) for x in xs] for n, xs in d.get("sums", {}).items()}
            if not all(len(xs) == 2 and xs[0] >= 1 and all(map(math.isfinite, xs)) for xs in sums.values()):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError.here(f"fit: {path} is damaged: 'fit' in its metadata is {shown(text)}") from None
        where = Position(d["epoch"], 0, (d["key"][0], d["key"][1]), d["size"], d["batch"])
        where.told, where.earlier = bool(d.get("told")), sums
        return where


def _metadata(path: Any) -> Mapping[str, str]:
    """Return the metadata of a checkpoint, a file or a folder."""
    if not os.path.isdir(path):
        return safetensors.read_header(path)[1]
    from tracegrad.files import sharded

    return sharded.metadata(path)
