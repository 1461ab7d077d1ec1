"""Transforms of the raw gradient: clipping, normalising, accumulating over steps."""

from __future__ import annotations

from collections.abc import Callable

from tracegrad.errors import InputError
from tracegrad.hypers import whole
from tracegrad.ir import Tensor, bind
from tracegrad.optim.host import Host
from tracegrad.optim.transform import State, Transform
from tracegrad.prims.elementwise import maximum, minimum, round, sqrt, square, where
from tracegrad.prims.folds import SUM
from tracegrad.prims.views import reshape

CLIP_EPS = 1e-6  # PyTorch's clip_grad_norm_
NORMALIZE_EPS = 1e-8


def sum_of_squares(x: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """The sum of (unit x)^2 over all elements, a scalar."""
    flat = reshape(x, (x.size,))
    return reshape(bind(SUM, square(flat if isinstance(unit, float) and unit == 1.0 else flat * unit), axes=(0,)), ())


def norm(x: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Euclidean length of all elements of unit * x, a scalar."""
    # Over the flat arena this is the very fold that the non-finite guard computes, so that the two share it.
    return sqrt(sum_of_squares(x, unit))


def clip_by_global_norm(max_norm: float) -> Transform:
    """Scale the gradient down to `max_norm` if it is longer: g * min(1, c / (norm(g) + 1e-6)).

    One norm over all parameters, as PyTorch's clip_grad_norm_. c is the hyperparameter "clip_grad_norm".
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        unit = host.unit  # all of it in that unit: the length itself, as of 10^6 times 1e37, may be no f32
        factor = minimum(1.0 / unit, host.hyper("clip_grad_norm") / (norm(g, unit) + CLIP_EPS * unit))
        return g * unit * factor, {}

    return Transform.made({}, update, "units", clip_grad_norm=max_norm)


def normalize_gradients(only: Callable[[str], bool] | None = None) -> Transform:
    """Give each parameter's gradient length 1: g / (norm(g) + 1e-8), each parameter for itself.

    only: parameters by name; None means all. InputError, when the step is traced, if it matches none.
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        arena = host.arena
        chosen = [slot.name for slot in arena.slots if only is None or only(slot.name)]
        if not chosen:
            raise InputError.here(
                f"normalize_grads: the filter matches no parameter; they are {', '.join(s.name for s in arena.slots)}"
            )
        views = arena.views(g)
        unit = host.unit if only is None else 1.0

        def normalized(x: Tensor) -> Tensor:
            return x * unit / (norm(x, unit) + NORMALIZE_EPS * unit)

        return arena.pack(views | {name: normalized(views[name]) for name in chosen}), {}

    return Transform({}, update, takes="squares" if only is not None else "units")


def accumulate(every: int, inner: Transform) -> Transform:
    """Apply `inner` at every `every`-th step, to the average of the gradients since; other steps only collect.

    `inner` counts its own updates (`host.step`), so bias corrections are those of one large batch. Schedules go on
    counting steps. Exact for the first 2^24 steps.
    """
    every = whole("accumulate", every)
    if "accumulated" in inner.state:
        raise InputError.here("accumulate cannot be nested")

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        # round, not floor: a device may divide with an error of some ulp, and 5.9999995 is the 6th update too
        count = round(host.step / float(every))
        applies = count * float(every) == host.step
        total = state["accumulated"] + g
        old = {name: state[name] for name in inner.state}
        # The first steps round to update 0, whose bias correction would be a division by 0
        updates, new = inner.update(total / float(every), p, old, Host(host.arena, maximum(count, 1.0)))
        kept = {name: where(applies, value, old[name]) for name, value in new.items()}
        return where(applies, updates, 0.0), {"accumulated": where(applies, 0.0, total), **kept}

    return Transform({"accumulated": 0.0, **inner.state}, update, inner.hyper, inner.ranges)
