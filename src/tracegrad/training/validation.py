"""The loss and metrics of held-out data, which change nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from tracegrad.arrays import np
from tracegrad.engine.forward import CompiledForward
from tracegrad.errors import InputError
from tracegrad.training.data import Rows, as_inputs

if TYPE_CHECKING:
    from tracegrad.training.compiled import CompiledTraining


class Validation:
    """Runs the loss on held-out batches. States that it writes are put back."""

    def __init__(self, train: CompiledTraining, data: Rows | Iterable[Any], metrics: Mapping[str, Callable[..., Any]]):
        self.train, self.data, self.metrics = train, data, metrics
        self._forwards: dict[tuple[tuple[int, ...], ...], CompiledForward] = {}

    def __call__(self) -> dict[str, float]:
        """`val_loss`, and `val_<name>` of metrics and scalars beside the loss: means over all examples."""
        train, total, count = self.train, dict[str, float](), 0
        names = train.input_names
        before = train.states()
        batches: Iterable[Any] = self.data.batches(1) if isinstance(self.data, Rows) else self.data
        try:
            for batch in batches:
                given = {n: np.asarray(x) for n, x in as_inputs(batch, names).items()}
                n = next((len(x) for x in given.values() if x.ndim), 1)
                output = cast("Mapping[str, Any]", self._forward(given).run(given).output)
                for name, value in output.items():
                    if np.asarray(value).ndim == 0:
                        total[name] = total.get(name, 0.0) + n * float(value)
                    elif name in self.metrics:
                        shape = list(np.asarray(value).shape)
                        raise InputError.here(f"fit: the metric {name!r} must be one number, is {shape}; take its mean")
                count += n
        finally:
            if before:
                train.set_states(before)
        if not count:
            raise InputError.here("fit: validation has no batch; give one or more, in something to iterate again")
        return {f"val_{name}": value / count for name, value in total.items()}

    def _forward(self, given: Mapping[str, Any]) -> CompiledForward:
        """Compiled for the sizes of these; the last, smaller batch has a program of its own."""
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
            out: Any = loss(model, **inputs, **fixed)
            value, aux = cast("tuple[Any, Any]", out if isinstance(out, tuple) else (out, {}))
            more = {name: fn(model, **inputs) for name, fn in metrics.items()}
            beside = {"loss": value, **cast("Mapping[str, Any]", aux if isinstance(aux, Mapping) else {})}
            if both := [name for name in more if name in beside]:
                raise InputError.here(f"fit: the loss gives {both[0]!r} already; give the metric another name")
            return {**beside, **more}

        return values

    def close(self) -> None:
        """Free the programs."""
        for forward in self._forwards.values():
            forward.close()
