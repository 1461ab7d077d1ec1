"""Loss and metrics of held-out data. Validation changes neither parameters nor states."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, cast

from tracegrad.arrays import Array, np
from tracegrad.compiler.several import named_by
from tracegrad.compiler.tracing import check_signature
from tracegrad.engine.forward import CompiledForward
from tracegrad.errors import InputError
from tracegrad.ir.ambient import require
from tracegrad.training.data import Rows, as_inputs
from tracegrad.training.training import Training

Parts = Sequence[Sequence[Array]]  # for each batch, the values that the metric recorded


class Validation:
    """Runs the loss on held-out batches. States that the loss writes are restored."""

    def __init__(self, train: Training, data: Rows | Iterable[Any], metrics: Mapping[str, Callable[..., Any]]):
        self.train, self.data, self.metrics = train, data, metrics
        self._forwards: dict[tuple[tuple[int, ...], ...], CompiledForward] = {}
        # metrics that are not means over batches: how their parts are joined, and the number of parts per batch
        self._joined: dict[str, tuple[str, int]] = {}
        self._order: list[str] = []

    def __call__(self) -> dict[str, Any]:
        """Return `val_loss`, and `val_<name>` of metrics and of further scalars of the loss.

        Functions of `tg.metrics` are computed over all examples together; anything else is a mean over the examples.
        Raises InputError for a metric that is not one number, and for data without a batch.
        """
        train, total, count = self.train, dict[str, float](), 0
        noted: dict[str, list[Sequence[Any]]] = {}
        names = train.input_names
        before = train.states()
        data = self.data
        rows = isinstance(data, Rows)
        batches = (data.batch(at, names, train.copies) for at in data.orders()) if rows else data
        for forward in self._forwards.values():
            forward.redraw()
        try:
            for batch in batches:
                given = {n: np.asarray(x) for n, x in as_inputs(batch, names).items()}
                n = next((len(x) for x in given.values() if x.ndim), 1)
                output = cast("Mapping[Any, Any]", self._forward(given).run(given).output)
                for name, (_, parts) in self._joined.items():
                    noted.setdefault(name, []).append([output[name, k] for k in range(parts)])
                for name, value in self._scalars(output):
                    total[name] = total.get(name, 0.0) + n * value
                count += n
        finally:
            if before:
                train.set_states(before)
        if not count:
            raise InputError.here(
                "fit: validation has no batch; pass a list of at least one (a generator can be iterated once only)"
            )
        found: dict[str, Any] = {name: value / count for name, value in total.items()}
        found |= {name: JOINED[self._joined[name][0]](parts) for name, parts in noted.items()}
        return {f"val_{name}": found[name] for name in self._order if name in found}

    def _scalars(self, output: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
        """Yield the outputs that are one number. Raises InputError for a metric that is not."""
        for name, value in output.items():
            if isinstance(name, str) and np.asarray(value).ndim == 0:
                yield name, float(value)
            elif name in self.metrics:
                shape = list(np.asarray(value).shape)
                raise InputError.here(f"fit: the metric {name!r} must be one number, got {shape}; take its mean")

    def _forward(self, given: Mapping[str, Any]) -> CompiledForward:
        """Return the forward compiled for the sizes of `given`. A smaller last batch has a program of its own."""
        key = tuple(x.shape for x in given.values())
        if key not in self._forwards:
            types = self.train.input_types
            sized = {name: t.dtype[given[name].shape] for name, t in types.items()}
            writes = bool(self.train.states())
            self._forwards[key] = self.train.attach(forward=self._function(), inputs=sized, writes=writes)
        return self._forwards[key]

    def _function(self) -> Callable[..., Any]:
        loss, metrics = self.train.loss_function, self.metrics
        fixed = {"training": False} if "training" in signature(loss).parameters else {}

        @functools.wraps(loss)
        def values(model: Any, **inputs: Any) -> dict[str, Any]:
            trace = require("validation")
            trace.measured = {}

            def called(fn: Callable[..., Any], given: Mapping[str, Any]) -> Any:
                result = fn(model, **given)
                trace.sites.clear()  # loss and metrics can call one model, whose sites they would name twice
                trace.captures.clear()
                return result

            out: Any = called(loss, {**inputs, **fixed})
            value, aux = cast("tuple[Any, Any]", out if isinstance(out, tuple) else (out, {}))
            aux = cast("Mapping[str, Any]", aux if isinstance(aux, Mapping) else {})
            more = {name: called(fn, _given(fn, {**inputs, **fixed}, name)) for name, fn in metrics.items()}
            beside = {"loss": value, **aux}
            if both := [name for name in more if name in beside]:
                raise InputError.here(f"fit: the loss gives {both[0]!r} already; give the metric another name")
            return self._parts({**beside, **more}, trace.measured)

        return values

    def _parts(self, outputs: dict[str, Any], measured: Mapping[int, tuple[str, Sequence[Any]]]) -> dict[Any, Any]:
        """Return the outputs by name. A metric joined over batches is replaced by its parts, named (name, number)."""
        self._order, found = list(outputs), dict[Any, Any]()
        for name, value in outputs.items():
            how, parts = measured.get(getattr(value, "serial", -1), ("", ()))
            if how:
                self._joined[name] = how, len(parts)
                found |= {(name, k): x for k, x in enumerate(parts)}
            else:
                found[name] = value
        return found

    def close(self) -> None:
        """Free the programs."""
        for forward in self._forwards.values():
            forward.close()


def _given(metric: Callable[..., Any], inputs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the inputs that the metric names. Raises InputError if it takes others, or no model."""
    own = named_by(metric, inputs)
    check_signature(metric, own, f"the metric {name!r}", inputs)
    return own


# Metrics of a whole set, from the parts that `tg.metrics` records for each batch: many are not means over batches


def share(parts: Parts) -> float:
    """Return the sum of part 0 over all batches, divided by the sum of part 1."""
    return _total(parts, 0) / _total(parts, 1)


def counts(parts: Parts) -> Array:
    """Return the sum of part 0, a matrix of counts, over all batches."""
    return np.sum([np.asarray(p[0], np.int64) for p in parts], axis=0)


def exp_mean(parts: Parts) -> float:
    """Return exp(sum of part 0 / sum of part 1), with sums over all batches."""
    with np.errstate(over="ignore"):
        return float(np.exp(_total(parts, 0) / _total(parts, 1)))


def explained(parts: Parts) -> float:
    """Return 1 - (squared errors / squared distances from the mean), joined over batches as in Chan et al. (1983)."""
    n = mean = squares = 0.0
    for _, more, its_mean, its_squares in [[float(x) for x in p] for p in parts]:
        away = its_mean - mean
        squares += its_squares + away * away * n * more / (n + more)
        n += more
        mean += away * more / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(1.0 - np.float64(_total(parts, 0)) / np.float64(squares))


def ranked(parts: Parts) -> float:
    """Return the probability that a positive example has a larger score than a negative one, by ranks."""
    scores, positive = (np.concatenate([np.asarray(p[k]) for p in parts]) for k in (0, 1))
    own, others = scores[positive], scores[~positive]
    known = np.sort(others[~np.isnan(others)])
    own_known = own[~np.isnan(own)]
    won = np.searchsorted(known, own_known, "left").sum() + np.searchsorted(known, own_known, "right").sum()
    with np.errstate(invalid="ignore"):
        return float(np.float64(0.5 * won) / np.float64(len(own) * len(others)))


def _total(parts: Parts, k: int) -> float:
    return float(np.sum([np.float64(p[k]) for p in parts]))


JOINED: dict[str, Callable[[Parts], Any]] = {
    "share": share, "counts": counts, "exp_mean": exp_mean, "explained": explained, "ranked": ranked,
}  # fmt: skip
