"""The runtimes and the outside oracles. Each runs several programs and gives the results, or the error, of each."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

import tracegrad as tg
from fuzzing.apply import called
from fuzzing.differentiated import Outputs, graph_of, traced
from fuzzing.exact import double
from fuzzing.halves import BF16, F16, Format
from fuzzing.members import trained_in_a_sweep
from fuzzing.open_sizes import trained_at_open_sizes, with_open_sizes
from fuzzing.program import Array, Program
from fuzzing.table import NoCounterpartError
from fuzzing.training import naming, trained, trained_by_torch
from tracegrad import tuning
from tracegrad.compiler.joined import joined
from tracegrad.compiler.pipeline import optimize
from tracegrad.dtypes import TensorType, as_dtype
from tracegrad.introspection import explain, profile
from tracegrad.ir.evaluate import evaluate
from tracegrad.kernels import fuse, storage
from tracegrad.program import Program as Compiled
from tracegrad.render import c_pieces
from tracegrad.runtime import c_calls, wgpu_session
from tracegrad.runtime.adapters import check_webgpu
from tracegrad.runtime.base import DeviceInfo
from tracegrad.runtime.c_compiler import VARIABLE, compiler_named
from xla import options


@dataclass(frozen=True, eq=False)
class Given:
    """A program with everything it is given."""

    program: Program
    env: Mapping[str, Array]

    @property
    def finite(self) -> bool:
        """Are all its inputs finite and of usual size?"""
        return all(x.dtype != np.float32 or bool(np.all(np.abs(x) < 1e20)) for x in self.env.values())


Ran = Outputs | Exception
Several = Callable[[Sequence[Given]], list[Ran]]


@dataclass(frozen=True)
class Runner:
    """What runs programs: forward and gradients of several, and a training. None: it does not do that."""

    name: str
    several: Several
    training: Callable[[Program], Outputs] | None = None
    oracle: bool = False  # computes by formulas of its own; where it has none it says so by NoCounterpartError
    special: bool = True  # infinities and NaN go through it as docs/numerics.md says
    half: Format | None = None  # it may store any value in this format
    lacks: Callable[[], str] = str  # what this machine lacks for it, in words; empty if nothing

    def __call__(self, given: Sequence[Given]) -> list[Ran]:
        """The results of each, in order; NoCounterpartError where this runner has no answer."""
        results: list[Ran] = [NoCounterpartError(self.name) for _ in given]
        usual = [k for k, g in enumerate(given) if g.program.mode != "train" and (self.special or g.finite)]
        for k, ran in zip(usual, self.several([given[k] for k in usual]) if usual else []):
            results[k] = ran
        for k, g in enumerate(given):
            if g.program.mode == "train" and self.training is not None:
                try:
                    results[k] = self.training(g.program)
                except Exception as e:
                    results[k] = e
        return results


class Held(tg.Module):
    """A model that holds some of the inputs as its parameters; a forward must have one."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.held = {n: self.param(x.shape, init=tg.init.literal(x)) for n, x in arrays.items()}
        self.none = self.param((1,), init=tg.init.zeros())


def held_by_a_model(g: Given) -> list[str]:
    """The first f32 input of a program is a parameter: parameters lie behind each other, at any offset."""
    floats = [n for n, x in g.env.items() if n.startswith("x") and x.dtype == np.float32 and np.isfinite(x).all()]
    return floats[:1]


class FallbackError(Exception):
    """tracegrad found a kernel wrong itself, and ran NumPy instead: right numbers, but a finding."""


@contextmanager
def no_fallback() -> Iterator[None]:
    """Raises FallbackError with the warning of a kernel that computes wrongly; other warnings are dropped."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [str(w.message) for w in caught if "numbers are wrong" in str(w.message)]
    if told:
        raise FallbackError(told[0])


@contextmanager
def c_compiler(value: str) -> Iterator[None]:
    """Kernels in C (""), or in NumPy ("off")."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def together(given: Sequence[Given], device: str, precision: str) -> list[Ran]:
    """All programs as one, which saves the time of compiling each; their kernels share launches."""
    held = {f"p{k}_{n}": g.env[n] for k, g in enumerate(given) for n in held_by_a_model(g)}
    inputs = {f"p{k}_{n}": x for k, g in enumerate(given) for n, x in g.env.items()}
    inputs = {n: x for n, x in inputs.items() if n not in held}

    def forward(m: Held, **tensors: Any) -> Outputs:
        every = {**tensors, **m.held}
        results: Outputs = {}
        for k, g in enumerate(given):
            ys = traced(g.program)(**{n: every[f"p{k}_{n}"] for n in g.env})
            results |= {f"p{k}_{n}": y for n, y in ys.items()}
        return results

    types = {n: TensorType(as_dtype(x.dtype), x.shape) for n, x in inputs.items()}
    compiled = tg.compile_forward(
        model=Held(held), forward=naming(forward, inputs), inputs=types, device=device, precision=precision, seed=0
    )
    with compiled as run:
        found = run.run(**{n: as_halves(x) if precision == "f16" else x for n, x in inputs.items()}).output
    named = [(*n.split("_"), y) for n, y in found.items()]
    return [{n: y for p, n, y in named if p == f"p{k}"} for k in range(len(given))]


def as_halves(x: Array) -> Array:
    """An f32 array as float16, which a run takes too, if all its numbers are such."""
    return x.astype(np.float16) if x.dtype == np.float32 and F16.holds(x).all() else x


def as_on_a_gpu(program: Compiled, info: DeviceInfo) -> Compiled:
    """The form that a GPU runs, with loops in one launch; but kernels outside of loops have barriers, slow here."""
    return joined(program).without_barriers()


@contextmanager
def taken_for_a_gpu() -> Iterator[None]:
    """Sessions that take any adapter for a GPU, whose loops run in one launch."""
    with ExitStack() as stack:
        for module in (wgpu_session, profile, explain):
            stack.enter_context(patch.object(module, "as_run", as_on_a_gpu))
        yield


# Amounts of work, columns and rows that are worth a thread of their own, for `cut_between_threads`
FINE = {
    tuning: {"C_GRAIN": 1, "COLUMNS_GRAIN": 1, "FEWEST_COLUMNS": 8},
    c_pieces: {"PIECE_GRAIN": 16},
    c_calls: {"PRODUCT_GRAIN": 1, "PRODUCT_SIDE": 8, "PRODUCT_STACK": 2, "processors": lambda: 3},
}


@contextmanager
def cut_between_threads() -> Iterator[None]:
    """Three threads share each kernel of C, however small it is. Otherwise programs of this size run on one."""
    with ExitStack() as stack:
        for module, values in FINE.items():
            stack.enter_context(patch.multiple(module, **values))
        yield


@contextmanager
def everything_stored() -> Iterator[None]:
    """No kernel computes more than one value, so that all that may be stored in half precision is."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(storage, "worth_storing", lambda *_: storage.SHARED))
        stack.enter_context(patch.object(fuse.Schedule, "_merge", lambda *_: fuse.ELSEWHERE))
        yield


def on(
    device: str,
    compiler: str = "",
    during: Callable[[], AbstractContextManager[None]] = nullcontext,
    precision: str = "f32",
) -> Several:
    """A runner of compiled programs. Where all together fail, each runs alone."""

    def run(given: Sequence[Given]) -> list[Ran]:
        with c_compiler(compiler), during():
            try:
                with no_fallback():
                    return together(given, device, precision)
            except Exception as e:
                if len(given) == 1:
                    return [e]
                return [run([g])[0] for g in given]

    return run


def each(run: Callable[[Given], Outputs]) -> Several:
    """A runner that takes one program at a time."""

    def every(given: Sequence[Given]) -> list[Ran]:
        results: list[Ran] = []
        for g in given:
            try:
                results.append(run(g))
            except Exception as e:
                results.append(e)
        return results

    return every


def passes(g: Given) -> Outputs:
    """The graph that the compiler's passes leave, by the reference in float64: no device, so rounding hides nothing."""
    graph = optimize(graph_of(g.program, g.env)).graph
    env = {n: double(x) for n, x in g.env.items()}
    with np.errstate(all="ignore"):
        values = evaluate(list(graph.outputs.values()), env, np)
    return dict(zip(graph.outputs, map(np.asarray, values)))


def split(g: Given) -> tuple[list[Array], list[int], dict[int, Array]]:
    """The inputs in order, which of them are differentiated, and the weights by result."""
    xs = [g.env[f"x{k}"] for k in range(len(g.program.inputs))]
    cts = {int(n[1:]): x for n, x in g.env.items() if n.startswith("c")}
    return xs, [k for k, x in enumerate(xs) if x.dtype == np.float32] if cts else [], cts


def eager(g: Given) -> Outputs:
    """Ops at once, and `backward` by the tape."""
    xs, floats, cts = split(g)
    with np.errstate(all="ignore"):
        tensors = [tg.parameter(x) if k in floats else tg.tensor(x) for k, x in enumerate(xs)]
        ys = called(g.program, "ours", tg, tensors)
        results: Outputs = {f"y{k}": np.asarray(y.numpy()) for k, y in enumerate(ys)}
        total = sum(((ys[k] * c).sum() for k, c in cts.items()), start=tg.tensor(0.0))
        if floats and total.requires_grad:
            total.backward()
        for k in floats:
            gradient = tensors[k].grad
            results[f"g{k}"] = np.zeros(xs[k].shape) if gradient is None else np.asarray(gradient.numpy())
    return results


def pytorch_in_halves(half: Format) -> Callable[[Given], Outputs]:
    """PyTorch in float64, where the value of each step is stored as a half; so is its cotangent."""

    def run(g: Given) -> Outputs:
        import torch

        dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[half.name]
        return pytorch(g, lambda y: y.to(dtype).to(y.dtype) if y.is_floating_point() else y)

    return run


def pytorch(g: Given, stored: Callable[[Any], Any] = lambda y: y) -> Outputs:
    """PyTorch in float64."""
    import torch

    xs, floats, cts = split(g)
    tensors = [torch.tensor(double(x)).requires_grad_(k in floats) for k, x in enumerate(xs)]
    ys = called(g.program, "torch", torch, tensors, stored)
    results: Outputs = {f"y{k}": y.numpy(force=True) for k, y in enumerate(ys)}
    total: Any = sum((ys[k] * torch.tensor(double(c))).sum() for k, c in cts.items())
    if floats and getattr(total, "requires_grad", False):
        total.backward()
    for k in floats:
        gradient = tensors[k].grad
        results[f"g{k}"] = np.zeros(xs[k].shape) if gradient is None else gradient.numpy(force=True)
    return results


def jax(g: Given) -> Outputs:
    """JAX in float64, results and gradients compiled as one."""
    import jax
    import jax.scipy

    xs, floats, cts = split(g)

    def total(some: Sequence[Any], every: Sequence[Any]) -> Any:
        args = list(every)
        for k, x in zip(floats, some):
            args[k] = x
        ys = called(g.program, "jax", jax, args)
        return sum((ys[k] * double(c)).sum() for k, c in cts.items()), ys

    def run(*every: Any) -> Any:
        if not floats:
            return [], called(g.program, "jax", jax, every)
        return jax.grad(total, has_aux=True)([every[k] for k in floats], every)

    with jax.enable_x64(True):
        found, ys = jax.jit(run, compiler_options=options())(*map(double, xs))
        results = {f"y{k}": np.asarray(y) for k, y in enumerate(ys)}
        return results | {f"g{k}": np.asarray(x) for k, x in zip(floats, found)}


def sizes(g: Given) -> Outputs:
    """Each size of a batch by the kernels of C, where there is a compiler."""
    with c_compiler(""), no_fallback():
        return with_open_sizes(g.program, g.env, "cpu")


def trained_on(device: str, compiler: str = "") -> Callable[[Program], Outputs]:
    """A training on one of the runtimes."""

    def run(program: Program) -> Outputs:
        with c_compiler(compiler), no_fallback():
            return trained(program, device)

    return run


def trained_at_sizes(program: Program) -> Outputs:
    """A training whose steps have batches of other sizes, by the same kernels."""
    with c_compiler(""), no_fallback():
        return trained_at_open_sizes(program, "cpu")


def nothing(given: Sequence[Given]) -> list[Ran]:
    """Of a runner of trainings alone."""
    return [NoCounterpartError("no training") for _ in given]


def in_a_sweep(program: Program) -> Outputs:
    """A training as members of a sweep, by the kernels of C, where there is a compiler."""
    with c_compiler(""), no_fallback():
        return trained_in_a_sweep(program, "cpu")


def no_package(name: str) -> str:
    """Of an oracle that is not installed."""
    return "" if importlib.util.find_spec(name) else f"the package {name} is not installed"


no_torch, no_jax = partial(no_package, "torch"), partial(no_package, "jax")


def no_compiler() -> str:
    """Why there are no kernels in C."""
    return "" if compiler_named("") else "there is no C compiler"


def no_adapter() -> str:
    """Why there is no WebGPU."""
    found = check_webgpu()
    return "" if found.ok else found.message


RUNNERS = {
    r.name: r
    for r in (
        Runner("passes", each(passes)),
        Runner("eager", each(eager)),
        Runner("numpy", on("cpu", "off"), trained_on("cpu", "off")),
        Runner("c", on("cpu"), trained_on("cpu"), lacks=no_compiler),
        Runner("parts", on("cpu", during=cut_between_threads), lacks=no_compiler),
        Runner("sizes", each(sizes), trained_at_sizes, special=False),
        Runner("sweep", nothing, in_a_sweep),
        Runner("webgpu", on("webgpu"), trained_on("webgpu"), special=False, lacks=no_adapter),
        Runner("loops", on("webgpu", during=taken_for_a_gpu), special=False, lacks=no_adapter),
        Runner("xla", on("jax"), trained_on("jax"), special=False, lacks=no_jax),
        Runner("numpy16", on("cpu", "off", everything_stored, "f16"), special=False, half=F16),
        Runner("c16", on("cpu", precision="f16"), special=False, half=F16, lacks=no_compiler),
        Runner("webgpu16", on("webgpu", "", everything_stored, "f16"), special=False, half=F16, lacks=no_adapter),
        Runner("xla16", on("jax", precision="f16"), special=False, half=F16, lacks=no_jax),
        Runner("xlab16", on("jax", precision="bf16"), special=False, half=BF16, lacks=no_jax),
        Runner("torch16", each(pytorch_in_halves(F16)), oracle=True, special=False, half=F16, lacks=no_torch),
        Runner("torchb16", each(pytorch_in_halves(BF16)), oracle=True, special=False, half=BF16, lacks=no_torch),
        Runner("torch", each(pytorch), trained_by_torch, oracle=True, special=False, lacks=no_torch),
        Runner("jax", each(jax), oracle=True, special=False, lacks=no_jax),
    )
}
