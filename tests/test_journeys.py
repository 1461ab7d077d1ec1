"""One training on several runtimes: steps of other sizes, forwards that write states, checkpoints taken elsewhere.

After each action the runtimes are compared, and all go on from the checkpoint that one of them wrote. So a difference
is that of one action, and each runtime reads what each other one wrote.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.engine import stepper
from tracegrad.runtime.c_compiler import VARIABLE, compiler_named
from tracegrad.testing import switched
from xla import quickly

SCALE = int(os.environ.get("TRACEGRAD_EXAMPLES", "1"))
EPS = 0.1  # of the optimizers, which divide by no less
WIDTH = 4
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": lambda **how: optim.sgd(0.05, momentum=0.5, weight_decay=0.125, **how),
    "nesterov": lambda **how: optim.sgd(0.05, momentum=0.5, nesterov=True, **how),
    "adamw": lambda **how: optim.adamw(0.05, eps=EPS, **how),
    "adam": lambda **how: optim.adam(tg.lr.staircase(0.05, 2, 0.5), eps=EPS, **how),
    "rmsprop": lambda **how: optim.rmsprop(0.05, eps=EPS, **how),
    "groups": lambda **how: optim.adamw(0.05, eps=EPS, groups={"parts.0.*": {"lr": 0.5, "weight_decay": 0.25}}, **how),
}


class Mean(tg.Module):
    """A layer with states of its own: a running mean, and the number of rows and times so far."""

    def __init__(self) -> None:
        self.shift = self.param((WIDTH,), init=tg.init.zeros())
        self.mean, self.seen = self.state((WIDTH,)), self.state((), dtype=tg.i32)

    def __call__(self, x: Any) -> Any:
        self.mean.assign(0.75 * self.mean + 0.25 * tg.mean(x, (0, 1)))
        self.seen.assign(self.seen + x.shape[0] * 100 + x.shape[1])
        return x - self.mean + self.shift


class Mixed(tg.Module):
    """Looks at all times of a row."""

    def __init__(self) -> None:
        self.q, self.k = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)

    def __call__(self, x: Any) -> Any:
        return x + tg.softmax(self.q(x) @ tg.swapaxes(self.k(x), 1, 2) / x.shape[1], -1) @ x


class Moved(tg.Module):
    """Reads behind and before each time, where there is none."""

    def __init__(self) -> None:
        self.w = self.param((3, WIDTH), init=tg.init.randn(0.5))

    def __call__(self, x: Any) -> Any:
        n = x.shape[1]
        padded = tg.pad(x, [(0, 0), (1, 1), (0, 0)])
        return sum(tg.tanh(padded[:, k : k + n] * self.w[k]) for k in range(3))


LAYERS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "mean": Mean,
    "mixed": Mixed,
    "moved": Moved,
    "norm": lambda: nn.LayerNorm(WIDTH),
    "gelu": lambda: tg.gelu,
    "sorted": lambda: lambda x: tg.sort(x, 1)[0],
    "first": lambda: lambda x: x - tg.topk(x, 1, axis=0)[0],
    "summed": lambda: lambda x: tg.cumsum(x, 1) / x.shape[1],
    "turned": lambda: lambda x: x + 0.5 * x[::-1],
    "scanned": lambda: nn.GRU(WIDTH, WIDTH),
}


class Net(tg.Module):
    """Some layers, one after the other."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.parts = [nn.Linear(WIDTH, WIDTH), *(LAYERS[kind]() for kind in kinds)]

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def loss(m: Net, x: Any, w: Any) -> Any:
    y = m(x)
    each = tg.mean(tg.square(y - 0.5), (1, 2))
    return tg.sum(each * w) / x.shape[0], {"largest": tg.max(y), "rows": tg.sum(tg.ones((x.shape[0],)))}


RUNTIMES = {"c": ("cpu", ""), "numpy": ("cpu", "off"), "webgpu": ("webgpu", ""), "jax": ("jax", "")}
SIZES = st.tuples(st.sampled_from((1, 2, 3, 5, 16, 17, 33)), st.sampled_from((1, 2, 3, 7)))
ACTIONS = st.one_of(
    st.tuples(st.just("step"), SIZES),
    st.tuples(st.just("step"), SIZES),
    st.tuples(st.just("several"), SIZES),
    st.tuples(st.just("forward"), SIZES),
    st.tuples(st.just("rate"), st.sampled_from((0.02, 0.1))),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "accumulate": st.sampled_from((2, 3)),
        "clip_grad_norm": st.sampled_from((0.1, 4.0)),
        "ema": st.sampled_from((0.5, 0.875)),
    },
)


def batch(size: tuple[int, int], turn: int, more: tuple[int, ...] = ()) -> dict[str, Any]:
    rng = np.random.default_rng([*size, turn])
    b, t = size
    return {
        "x": rng.standard_normal((*more, b, t, WIDTH), np.float32),
        "w": rng.uniform(0.5, 1.5, (*more, b)).astype(np.float32),
    }


class Runtime:
    """A training on one of the runtimes, and a forward attached to it."""

    def __init__(self, name: str, kinds: tuple[str, ...], make: str, options: dict[str, Any]) -> None:
        self.device, self.compiler = RUNTIMES[name]
        optimizer = OPTIMIZERS[make](**options)
        self.rate, self.averages = isinstance(optimizer.lr, float), "ema" in options
        inputs = {"x": ("B", "T", WIDTH), "w": ("B",)}
        with self.chosen():
            self.train = tg.compile(
                model=Net(kinds), loss=loss, inputs=inputs, optimizer=optimizer, seed=3, device=self.device,
                keep_grads=True,
            )  # fmt: skip
            self.infer = self.train.attach(forward=lambda m, x: m(x), inputs={"x": ("B", "T", WIDTH)}, writes=True)

    def chosen(self) -> Any:
        return switched({VARIABLE: self.compiler})

    def act(self, kind: str, how: Any, turn: int) -> dict[str, Any]:
        """Do one thing, and return everything that can be seen afterwards."""
        found: dict[str, Any] = {}
        with self.chosen():
            if kind == "step":
                r = self.train.step(batch(how, turn)).result()
                found |= {"loss": r.loss, **r.aux}
            elif kind == "several":
                r = self.train.run_steps(2, batch(how, turn, (2,))).result()
                found |= {"loss": r.loss, **r.aux}
            elif kind == "forward":
                found["output"] = self.infer.run(x=batch(how, turn)["x"]).output
            elif self.rate:
                self.train.set_lr(how)
        found |= {f"state {n}": x for n, x in self.train.states().items()}
        if kind == "step":
            found |= {f"gradient {n}": x for n, x in self.train.download_grads().items()}
        averages = self.train.download_params(ema=True) if self.averages else {}
        found |= {f"average {n}": x for n, x in averages.items()}
        return found | {f"parameter {n}": x for n, x in self.train.download_params().items()}


def far(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Which values are farther apart than their longest sum in another order, in parts of the largest value.

    Its 33 * 7 * 4 = 924 terms round to 924 u = 5.5e-5 of it at most. Updates divide by 0.1 or more, and rates are 0.1
    at most, so a parameter is no farther off than its gradient.
    """
    scale = max(1.0, *(float(np.abs(x).max(initial=0.0)) for x in expected.values()))
    told = []
    for n, x in expected.items():
        x, y = np.asarray(x, np.float64), np.asarray(found[n], np.float64)
        if x.shape != y.shape or not np.allclose(y, x, rtol=0, atol=6e-5 * scale):
            told.append(f"{n}: {y} where {x} is expected")
    return told


def journey(names: tuple[str, ...], kinds: tuple[str, ...], make: str, options: Any, own: int, actions: Any) -> None:
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(stepper, OWN_SIZES=own, OWN_SIZES_ON_GPU=own))
        file = Path(stack.enter_context(TemporaryDirectory())) / "at.safetensors"
        runtimes = [Runtime(n, kinds, make, options) for n in names]
        for r in runtimes:
            stack.enter_context(r.train)
        for turn, (kind, how) in enumerate(actions):
            first, *others = (r.act(kind, how, turn) for r in runtimes)
            for name, found in zip(names[1:], others, strict=True):
                assert not far(found, first), (name, turn, kind)
            runtimes[turn % len(runtimes)].train.save(file)
            for r in runtimes:
                r.train.load(file)
            assert len({r.train.digest() for r in runtimes}) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*software adapter")
@pytest.mark.parametrize("other", ["c", "webgpu", "jax"])
def test_runtimes_go_together_from_any_checkpoint(other: str, request: pytest.FixtureRequest) -> None:
    if other == "webgpu":
        request.getfixturevalue("webgpu")
    if other == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    if other == "c" and compiler_named("") is None:
        pytest.skip("no C compiler")

    @settings(
        max_examples=8 * SCALE, deadline=None, suppress_health_check=list(HealthCheck),
        derandomize="TRACEGRAD_EXAMPLES" not in os.environ,
    )  # fmt: skip
    @given(
        st.lists(st.sampled_from(sorted(LAYERS)), max_size=3).map(tuple),
        st.sampled_from(sorted(OPTIMIZERS)),
        OPTIONS,
        st.sampled_from((0, 0, 2)),
        st.lists(ACTIONS, min_size=2, max_size=6),
    )
    def goes(kinds: tuple[str, ...], make: str, options: Any, own: int, actions: Any) -> None:
        with quickly():
            journey(("numpy", other), kinds, make, options, own, actions)

    goes()
