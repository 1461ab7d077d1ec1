"""Transforms of the raw gradient: clipping, normalising, accumulating over steps."""

from __future__ import annotations

from math import inf

from tracegrad.errors import InputError
from tracegrad.hypers import LARGE, NORMAL, checked_whole
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.optim.transform import Host, State, Transform, check_transform
from tracegrad.patterns import Selection, chosen, matcher
from tracegrad.prims.elementwise import maximum, minimum, nonfinite, round, sqrt, square, where
from tracegrad.prims.folds import SUM
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.views import reshape
from tracegrad.refusals import shown

__all__ = ["accumulate", "clip_by_global_norm", "normalize_gradients"]

CLIP_EPS = 1e-6  # PyTorch's clip_grad_norm_
NORMALIZE_EPS = 1e-8
EXACT_STEPS = 2**24  # a device counts steps in f32


def sum_of_squares(x: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Return the sum of (unit x)^2 over all elements, a scalar."""
    flat = reshape(x, (x.size,))
    return reshape(bind(SUM, square(flat if isinstance(unit, float) and unit == 1.0 else flat * unit), axes=(0,)), ())


def norm(x: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Return the Euclidean length of unit * x over all elements, a scalar."""
    return sqrt(sum_of_squares(x, unit))


def length(x: Tensor, host: Host) -> tuple[Tensor, Tensor]:
    """Return the Euclidean length of unit * x, and the unit. The length of x itself can overflow f32.

    If `x` is the raw gradient, the result shares its reduction with the guard, which sums the same squares in the unit
    of the host. For any other `x`, both units are tried.
    """
    if x is host.guarded:
        return norm(x, host.unit), host.unit
    normal, large = _units(host)
    usual, wide = norm(x, normal), norm(x, large)
    overflows = nonfinite(usual)
    return where(overflows, wide, usual), where(overflows, large, normal)


def _units(host: Host) -> tuple[Tensor, Tensor]:
    """Return the usual unit and the one for large gradients, computed from the unit that the host gives.

    Literals would fail: NVIDIA's driver rewrites the square of x c as x x (c c), and LARGE squared is 0.
    """
    given = host.unit
    is_large = given < 1.0
    return where(is_large, given * (NORMAL / LARGE), given), where(is_large, given, given * (LARGE / NORMAL))


def clip_by_global_norm(max_norm: float) -> Transform:
    """Scale the gradient to the norm `max_norm` if its norm is larger: g * min(1, max_norm / (norm(g) + 1e-6)).

    g is the gradient of all parameters, and norm(g) its Euclidean length. To change `max_norm` during training, call
    `train.set(clip_grad_norm=...)` on the training that `tg.compile` returns.
    As torch.nn.utils.clip_grad_norm_ (Pascanu et al. 2013). Raises InputError unless `max_norm` is above 0.

    >>> optim.custom(optim.chain(optim.clip_by_global_norm(1.0), optim.scale_by_momentum(0.9)), lr=0.1)
    optim.custom(lr=0.1, clip_grad_norm=1.0, momentum=0.9)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        measured, unit = length(g, host)
        factor = minimum(1.0 / unit, host.hyper("clip_grad_norm") / (measured + CLIP_EPS * unit))
        return g * unit * factor, {}

    def bounds(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        return minimum(g, 2.0 * host.hyper("clip_grad_norm")), {}  # twice the norm, because of rounding

    return Transform.made({}, update, bounds, clip_grad_norm=max_norm)


def normalize_gradients(only: Selection | None = None) -> Transform:
    """Divide each parameter's gradient g by its Euclidean length: g / (norm(g) + 1e-8).

    only: the parameters whose gradient to divide: a pattern of names such as "body.*", a list of patterns, or a
          function of the name. None: all.
    optax.normalize_by_update_norm divides all by the length of the whole gradient instead.
    Raises InputError if `only` is anything else, and, when the step is traced, if it matches no parameter.

    >>> optim.custom(optim.chain(optim.normalize_gradients(), optim.scale_by_momentum(0.9)), lr=0.1)
    optim.custom(lr=0.1, momentum=0.9)
    """
    what, selected = "normalize_grads", "*" if only is None else only
    matcher(selected, what)  # raises for anything but a selection

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        arena, views = host.arena, host.arena.views(g)

        def normalized(x: Tensor) -> Tensor:
            measured, unit = length(x, host)
            return x * unit / (measured + NORMALIZE_EPS * unit)

        return arena.pack(views | {name: normalized(views[name]) for name in chosen(views, selected, what)}), {}

    def bounds(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        return (as_tensor(2.0) if only is None else maximum(g, 2.0)), {}  # twice the norm, because of rounding

    return Transform({}, update, bounds=bounds)


def _at(host: Host, update: Tensor, every: int) -> Host:
    missed = None if host.missed is None else round(host.missed / float(every))
    return host._replace(updates=maximum(update, 1.0), guarded=None, missed=missed)


def accumulate(every: int, inner: Transform) -> Transform:
    """Apply `inner` at every `every`-th step, to the mean of the gradients since the last update.

    every:  an integer from 1 to 2^24. Steps are counted exactly up to step 2^24.
    inner:  a transform, such as `scale_by_adam()` or a chain. It counts updates, not steps, so its bias corrections are
            those of one large batch. Schedules of the learning rate count steps.
    Raises: InputError unless `every` is in this range and `inner` a transform, and for `accumulate` in `accumulate`.

    In all other steps the parameters and the state of `inner` do not change. As optax.MultiSteps.

    >>> optimizer = optim.custom(optim.accumulate(4, optim.scale_by_adam()), lr=1e-3)
    """
    every = checked_whole("accumulate", every)
    if every > EXACT_STEPS:
        raise InputError.here(f"accumulate must be at most {EXACT_STEPS}, got {shown(every)}")
    check_transform("optim.accumulate", inner)
    if "accumulated" in inner.state:
        raise InputError.here("accumulate cannot be nested")

    def updates_at(host: Host) -> Tensor:
        # round, not floor: a device may divide with an error of a few ulp, and 5.9999995 is the 6th update
        return round(host.step / float(every))

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        count = updates_at(host)
        applies = count * float(every) == host.step
        total = state["accumulated"] + g
        old = {name: state[name] for name in inner.state}
        # The first steps round to update 0, where the bias correction would divide by 0
        updates, new = inner.update(total / float(every), p, old, _at(host, count, every))
        kept = {name: where(applies, value, old[name]) for name, value in new.items()}
        return where(applies, updates, 0.0), {"accumulated": where(applies, 0.0, total), **kept}

    def bounds(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        assert inner.bounds is not None
        # Once the total has reached about `largest`, it stays below 3 * largest, also after it restarts from 0
        largest = g * float(every)
        total = where(state["accumulated"] <= 1.5 * largest, largest, inf)
        old = {name: state[name] for name in inner.state}
        step, new = inner.bounds(g * 3.0, p, old, _at(host, updates_at(host), every))
        return step, {"accumulated": total, **new}

    rule = bounds if inner.bounds is not None else None
    return Transform({"accumulated": 0.0, **inner.state}, update, inner.hyper, inner.ranges, rule, inner.counts)
