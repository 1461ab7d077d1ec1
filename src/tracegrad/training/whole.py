"""Metrics of a whole set of data, from what `tg.metrics` notes of each batch: many are no means over batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.arrays import np

Array = Any
Parts = Sequence[Sequence[Array]]  # of each batch, what the metric noted


def share(parts: Parts) -> float:
    """How many of all counted."""
    return _total(parts, 0) / _total(parts, 1)


def counts(parts: Parts) -> Array:
    """The sum of matrices of counts."""
    return np.sum([np.asarray(p[0], np.int64) for p in parts], axis=0)


def exp_mean(parts: Parts) -> float:
    """The exponential of a sum over its count."""
    with np.errstate(over="ignore"):
        return float(np.exp(_total(parts, 0) / _total(parts, 1)))


def explained(parts: Parts) -> float:
    """1 minus squared errors over squares around the mean; those of batches are joined as by Chan et al. (1983)."""
    n = mean = squares = 0.0
    for _, more, its_mean, its_squares in [[float(x) for x in p] for p in parts]:
        away = its_mean - mean
        squares += its_squares + away * away * n * more / (n + more)
        n += more
        mean += away * more / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(1.0 - np.float64(_total(parts, 0)) / np.float64(squares))


def ranked(parts: Parts) -> float:
    """How likely a positive one has a larger score than a negative one, by ranks."""
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
