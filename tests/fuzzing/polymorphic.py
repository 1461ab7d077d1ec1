"""Random functions of f32[B,T,4] that are defined for all B and T, to compare programs for many sizes with others.

Each choice follows from the seed and from the names of axes, never from a size, so a function is the same at all sizes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import tracegrad as tg
from tracegrad.engine import room_programs
from tracegrad.engine.results import CompletedRun

D = 4
STEPS = 7
SIZES = ((4, 9), (7, 5), (3, 12), (2, 2), (5, 16), (1, 6), (6, 1), (9, 3), (8, 8))
DEVICES = {"c": "cpu", "numpy": "cpu", "webgpu": "webgpu"}  # by runner


class Named(NamedTuple):
    """A value and the names of its axes; equal names mean equal sizes. A merged axis is named "B*T"."""

    x: Any
    axes: tuple[str, ...]


class Drawing:
    """One function, while it is traced."""

    def __init__(self, seed: int, m: Any, x: Any) -> None:
        self.rng, self.m = np.random.default_rng(seed), m
        self.size: dict[str, int] = dict(zip("BTD", x.shape))
        self.known = [Named(x, ("B", "T", "D"))]

    def pick(self, n: int) -> int:
        return int(self.rng.integers(n))

    def axis(self, v: Named) -> int:
        return self.pick(len(v.axes))

    def named(self, x: Any, axes: tuple[str, ...]) -> Named:
        self.size |= dict(zip(axes, x.shape))
        return Named(x, axes)

    def replaced(self, v: Named, x: Any, d: int, *new: str) -> Named:
        return self.named(x, (*v.axes[:d], *new, *v.axes[d + 1 :]))

    def run(self) -> list[Any]:
        for _ in range(STEPS):
            v = self.known[self.pick(len(self.known))]
            if v.axes:
                made = OPS[self.pick(len(OPS))](self, v)
                if made is not None and len(made.axes) < 5:
                    self.known.append(Named(tg.tanh(made.x), made.axes))
        return [v.x for v in self.known[1:]]


def unary(d: Drawing, v: Named) -> Named:
    x = v.x
    choices: list[Callable[[], Any]] = [
        lambda: tg.sin(x), lambda: tg.square(x) - 0.1, lambda: tg.exp(-tg.abs(x)), lambda: tg.relu(x - 0.1),
        lambda: tg.where(x > 0, x, -0.5), lambda: tg.log(tg.abs(x)) * 0.1, lambda: 1 / (2 + x),
        lambda: tg.dropout(x, 0.3, True), lambda: x + 0.1 * tg.randn(x.shape), lambda: x * tg.uniform(x.shape),
    ]  # fmt: skip
    return Named(choices[d.pick(len(choices))](), v.axes)


def binary(d: Drawing, v: Named) -> Named | None:
    same = [w for w in d.known if w.axes == v.axes]
    w = same[d.pick(len(same))].x
    return Named((v.x + w, v.x * w, tg.maximum(v.x, w))[d.pick(3)], v.axes)


def reduced(d: Drawing, v: Named) -> Named:
    fold = (tg.sum, tg.mean, tg.max, tg.min, tg.std, tg.logsumexp, tg.prod, tg.var)[d.pick(8)]
    k = d.axis(v)
    if len(v.axes) > 1 and d.pick(3) == 0:
        j = (k + 1) % len(v.axes)
        return d.named(tg.sum(v.x, (j, k)), tuple([a for n, a in enumerate(v.axes) if n not in (j, k)]))
    if d.pick(3) == 0:
        return Named(v.x - fold(v.x, k, keepdims=True), v.axes)
    return d.replaced(v, fold(v.x, k), k)


def along(d: Drawing, v: Named) -> Named:
    k, x = d.axis(v), v.x
    choices: list[Callable[[], Any]] = [
        lambda: tg.softmax(x, k), lambda: tg.log_softmax(x, k), lambda: tg.flip(x, k), lambda: tg.cumsum(x, k),
        lambda: tg.roll(x, 1, k), lambda: tg.sort(x, k)[0], lambda: x * tg.cast(tg.argmax(x, k, keepdims=True), tg.f32),
        lambda: x * tg.cast(tg.arange(x.shape[k]), tg.f32).reshape([-1 if n == k else 1 for n in range(x.ndim)]),
    ]  # fmt: skip
    return Named(choices[d.pick(len(choices))](), v.axes)


def sliced(d: Drawing, v: Named) -> Named:
    k = d.axis(v)
    a = v.axes[k]
    at, name = [
        (slice(1, None), f"({a}-1)"), (slice(None, -1), f"({a}-1)"), (slice(None, None, -1), a), (slice(-1, None), "1"),
        (slice(None, 1), "1"),
    ][d.pick(5 if d.size[a] != 1 and "-" not in a else 3) if "-" not in a else 2]  # fmt: skip
    return d.replaced(v, v.x[(*[slice(None)] * k, at)], k, name)


def one_of(d: Drawing, v: Named) -> Named:
    k = d.axis(v)
    return d.replaced(v, v.x[(*[slice(None)] * k, -d.pick(2))], k)


def grown(d: Drawing, v: Named) -> Named | None:
    k = d.axis(v)
    a = v.axes[k]
    if "+" in a or "-" in a:
        return None
    front = d.pick(3)
    if d.pick(2):
        x = tg.pad(v.x, [(front, 2 - front) if n == k else (0, 0) for n in range(len(v.axes))])
        return d.replaced(v, x, k, f"({a}+2)")
    row = v.x[(*[slice(None)] * k, slice(0, 1))]
    return d.replaced(v, tg.concat([row, v.x, row * 2], k), k, f"({a}+2)")


def moved(d: Drawing, v: Named) -> Named:
    order = [int(k) for k in d.rng.permutation(len(v.axes))]
    return Named(tg.permute(v.x, order), tuple([v.axes[k] for k in order]))


def merged(d: Drawing, v: Named) -> Named | None:
    k = d.axis(v)
    if k + 1 == len(v.axes):
        return None
    a, b = v.axes[k : k + 2]
    shape = (*v.x.shape[:k], -1, *v.x.shape[k + 2 :])
    return d.named(v.x.reshape(shape), (*v.axes[:k], f"{a}*{b}", *v.axes[k + 2 :]))


def split(d: Drawing, v: Named) -> Named | None:
    k = d.axis(v)
    a, star, b = v.axes[k].partition("*")
    if not star or a not in d.size or b not in d.size:
        return None
    x = v.x.reshape((*v.x.shape[:k], d.size[a], d.size[b], *v.x.shape[k + 1 :]))
    return d.replaced(v, x, k, a, b)


def product(d: Drawing, v: Named) -> Named | None:
    if len(v.axes) < 2:
        return None
    if v.axes[-1] == "D" and d.pick(2):
        return Named(d.m.a(v.x), v.axes)
    x = v.x / v.x.shape[-1]
    if d.pick(2):
        return d.named(x @ v.x.swapaxes(-1, -2), (*v.axes[:-1], v.axes[-2]))
    return d.named(v.x.swapaxes(-1, -2) @ v.x * 0.1, (*v.axes[:-2], v.axes[-1], v.axes[-1]))


def masked(d: Drawing, v: Named) -> Named | None:
    if len(v.axes) < 2 or v.axes[-1] != v.axes[-2]:
        return None
    return Named((tg.tril if d.pick(2) else tg.triu)(v.x), v.axes)


def looked_up(d: Drawing, v: Named) -> Named:
    k = d.axis(v)
    rows = tg.argmax(v.x.swapaxes(0, k).reshape(v.x.shape[k], -1), 1) % v.x.shape[k]
    if d.pick(2):
        return Named(tg.take(v.x, tg.cast(rows, tg.i32), k), v.axes)
    return d.replaced(v, tg.segment_sum(v.x.swapaxes(0, k), tg.cast(rows % 3, tg.i32), 3).swapaxes(0, k), k, "3")


def thinned(d: Drawing, v: Named) -> Named | None:
    """Half as many elements, rounded up, along an axis."""
    k, x = d.axis(v), v.x
    a, n = v.axes[k], v.x.shape[k]
    if {*a} & {*"+-*/"}:
        return None
    kinds = [slice(None, None, 2), slice(None, None, -2), slice(None, (n + 1) // 2), slice(n // 2, None)]
    choices: list[Callable[[], Any]] = [lambda at=at: x[(*[slice(None)] * k, at)] for at in kinds]
    if len(v.axes) == 3 and k == 2:
        choices.append(lambda: tg.max_pool1d(x, 3, stride=2, padding=1))
        choices.append(lambda: tg.avg_pool1d(tg.pad(x, [(0, 0), (0, 0), (1, 1)]), 3, stride=2))
        if v.axes[1] == "D":
            choices.append(lambda: tg.conv1d(x, d.m.w, stride=2, padding=1))
    return d.replaced(v, choices[d.pick(len(choices))](), k, f"({a}/2)")


def windowed(d: Drawing, v: Named) -> Named | None:
    if len(v.axes) != 3 or "-" in v.axes[2] or v.axes[1] != "D":
        return None
    return Named(tg.conv1d(v.x, d.m.w, padding=1), v.axes)


def scanned(d: Drawing, v: Named) -> Named | None:
    if len(v.axes) < 2:
        return None

    def each(h: Any, z: Any) -> Any:
        h = tg.tanh(0.5 * h + z - tg.mean(z, 0))
        return h, h * z

    last, ys = tg.scan(each, tg.zeros(v.x.shape[1:]), v.x, reverse=bool(d.pick(2)))
    return Named(ys, v.axes) if d.pick(2) else d.named(last, v.axes[1:])


def counted(d: Drawing, v: Named) -> Named:
    number = tg.cast(tg.arange(v.x.size), tg.f32).reshape(v.x.shape)
    return Named(v.x * tg.sin(number) + v.x.shape[0] / (1 + v.x.shape[-1]), v.axes)


def doubled(d: Drawing, v: Named) -> Named | None:
    k = d.axis(v)
    a = v.axes[k]
    if {*a} & {*"+-*"}:
        return None
    d.size["2"] = 2
    return d.replaced(v, tg.concat([v.x, tg.sin(v.x)], k), k, f"2*{a}")


def half(d: Drawing, v: Named) -> Named | None:
    k = d.axis(v)
    two, _, a = v.axes[k].partition("*")
    if two != "2":
        return None
    n, second = d.size[a], d.pick(2)
    return d.replaced(v, v.x[(*[slice(None)] * k, slice(n * second, n * (1 + second)))], k, a)


OPS: list[Callable[[Drawing, Named], Named | None]] = [
    unary, unary, binary, reduced, reduced, along, along, sliced, one_of, grown, moved, moved, merged, merged, split,
    split, product, product, masked, looked_up, windowed, scanned, counted,
    doubled, half, thinned, thinned,
]  # fmt: skip


class Model(tg.Module):
    def __init__(self) -> None:
        self.a = tg.nn.Linear(D, D)
        self.w = self.param((D, D, 3), init=tg.init.randn(0.3))


def forward_of(seed: int) -> Callable[..., Any]:
    """The values of a function, and the gradients of their sum."""

    def forward(m: Any, x: Any) -> Any:
        def total(x: Any) -> Any:
            found = Drawing(seed, m, x).run()
            return sum([tg.sum(y) for y in found], tg.sum(x)), found

        slope, found = tg.grad(total, has_aux=True)(x)
        return {"slope": slope, **{str(k): y for k, y in enumerate(found)}}

    return forward


def loss_of(seed: int) -> Callable[..., Any]:
    """A loss of a function's values."""

    def loss(m: Any, x: Any) -> Any:
        return sum([tg.mean(y) for y in Drawing(seed, m, x).run()], tg.mean(m.a(x)))

    return loss


def programs_of(forward: Any) -> Any:
    """What a compiled forward keeps of its programs."""
    return forward._programs


def _none(_: Any) -> list[str | None]:
    return [None]


def _with_room(self: Any, *args: Any, choices: Any = room_programs.RoomPrograms._choices) -> Any:
    """Yield the choices in which more than one size varies."""
    return (key for key in choices(self, *args) if max(key) > 0)


def on_numpy() -> Any:
    """A context in which programs are compiled for NumPy. One that is entered twice would not be left."""
    return patch.dict(os.environ, {"TRACEGRAD_CC": "off"})


def compared(seed: int, device: str, exact: bool = True) -> tuple[int, list[str]]:
    """Return how many runs a program for many sizes served, and how they differ from programs for each size.

    NumPy's programs come first, because they compile nothing. Rounding can decide a choice, so the device has a say.

    exact: let one of the sizes be exact in runs, where that can be proved.
    """
    forward, served, found = forward_of(seed), 0, list[str]()
    search = patch.object(room_programs, "exact_first", room_programs.exact_first if exact else _none)
    alone = patch.object(room_programs.RoomPrograms, "_choices", _with_room)
    with (
        search,
        alone,
        tg.compile_forward(
            model=Model(), forward=forward, inputs={"x": ("B", "T", D)}, device=device, seed=seed
        ) as made,
    ):
        for n, t in SIZES:
            x = np.random.default_rng(n * 100 + t).standard_normal((n, t, D)).astype(np.float32)
            given = made.run(x=x).result()
            served += bool(programs_of(made).current.latest.base)
            runs = programs_of(made).runs - 1  # for the same random numbers
            with on_numpy():
                differ = differing(given, of_one_size(seed, x, "cpu", runs))
            if differ:
                differ = differing(given, of_one_size(seed, x, device, runs))
            found += [f"seed {seed}, {n} x {t}: {name}" for name in differ]
    return served, found


def of_one_size(seed: int, x: Any, device: str, runs: int) -> Any:
    """The result of a program for one size; None if it is refused, as a maximum of no elements is."""
    try:
        one = tg.compile_forward(
            model=Model(), forward=forward_of(seed), inputs={"x": x.shape}, device=device, seed=seed
        )
    except tg.TracegradError:
        return None
    with one:
        programs_of(one).runs = runs
        return one.run(x=x).result()


def differing(given: Any, wanted: Any) -> list[str]:
    """The names of results that differ, or why there are none to compare."""
    if not isinstance(given, CompletedRun) or not isinstance(wanted, CompletedRun):
        refused = wanted is None and not isinstance(given, CompletedRun)
        return [] if refused or type(given) is type(wanted) else [f"{given}, alone {wanted}"]
    return [k for k, y in wanted.output.items() if not close(np.asarray(given.output[k]), np.asarray(y))]


def explored(seeds: range, runner: str, seconds: float) -> list[str]:
    """Print and return the differences of the functions of some seeds, of which none begins after so many seconds."""
    served, done, found, end = 0, 0, list[str](), time.monotonic() + seconds
    with on_numpy() if runner == "numpy" else contextlib.nullcontext():
        for seed in seeds:
            if time.monotonic() > end:
                break
            done += 1
            here, differences = compared(seed, DEVICES[runner], exact=seed % 2 == 0)
            served += here
            found += differences
            print("\n".join(differences), end="\n" if differences else "", flush=True)
    many = f"{served} runs in programs for many sizes"
    print(f"{runner}: {done} of {len(seeds)} functions, {many}, {len(found)} differences")
    return found


def close(a: Any, b: Any) -> bool:
    """Whether two arrays are equal but for rounding, relative to the largest value."""
    with np.errstate(all="ignore"):
        most = max(1e-3, float(np.max(np.abs(np.where(np.isfinite(b), b, 0)), initial=0)))
        if a.shape != b.shape:
            return False
        return bool(np.all((np.abs(a - b) <= 2e-4 * most) | (a == b) | (np.isnan(a) & np.isnan(b))))
