"""What the user calls first: compile, compile_forward, trace, and which devices there are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tracegrad.arrays import HAVE_NUMPY
from tracegrad.compiler.build import trace_forward as _trace_forward
from tracegrad.compiler.build import trace_training
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.inputs import seed_or_new
from tracegrad.engine.stores import OwnParameters
from tracegrad.errors import DeviceError, Site, call_site, located
from tracegrad.ir import Graph
from tracegrad.optim.optimizer import Optimizer
from tracegrad.refusals import helpful
from tracegrad.runtime.adapters import AdapterInfo, Search, adapters, check_webgpu, opened, search
from tracegrad.runtime.base import DeviceInfo, Session
from tracegrad.runtime.browser import BrowserSession
from tracegrad.runtime.tab import IN_TAB
from tracegrad.training.compiled import CompiledTraining

DEVICES = ("auto", "webgpu", "cpu")


@helpful
def compile(
    *,
    model: Any,
    loss: Callable[..., Any],
    inputs: Mapping[str, Any],
    optimizer: Optimizer,
    seed: int | None = None,
    device: str = "auto",
    keep_grads: bool = False,
    precision: str = "f32",
) -> CompiledTraining:
    """Trace `loss` once and compile a whole training step of `model`.

    model:     any tree of modules; it is read, never changed.
    loss:      loss(m, **inputs) -> f32[], or (loss, {"name": tensor}); called once, with tensors that have no values.
    inputs:    name -> shape (f32) or type such as tg.i32[B, T].
    optimizer: one of tg.optim.
    seed:      of the initialisation and all randomness; drawn if None, see `train.seed`.
    device:    "auto" (a GPU through WebGPU, else the CPU), "webgpu" or "cpu"; TRACEGRAD_DEVICE says what "auto" means.
    keep_grads: make `download_grads` available.
    precision: "f32", or "f16": what kernels pass to each other is stored in half precision, which halves that memory
               and its traffic, and the loss is scaled so that gradients fit. Parameters, optimizer state, sums and the
               loss stay f32. A step whose gradients overflow is skipped; see `CompletedStep.skipped`.
    Raises:    CompileError, InputError, ShapeError, DTypeError, TraceError with the line of your code; DeviceError.
    """
    train = CompiledTraining(
        model=model,
        loss=loss,
        inputs=inputs,
        optimizer=optimizer,
        session_factory=session_factory(device),
        seed=seed,
        keep_grads=keep_grads,
        precision=precision,
    )
    for text in train.store.stepper.built.warnings:
        warnings.warn(text, stacklevel=3)  # of the user: past `helpful`
    warn_if_slow(train.worker.info)
    return train


@helpful
def compile_forward(
    *,
    model: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    seed: int | None = None,
    device: str = "auto",
    max_cached_shapes: int = 8,
    precision: str = "f32",
) -> CompiledForward:
    """Compile a forward with parameters of its own, drawn from `seed`; `upload_params` sets them.

    forward:  forward(m, **inputs) -> tensor, or a tuple or dict of tensors.
    inputs:   as for `compile`; a None dimension is chosen by each call, and one program is kept per size. All
              Nones of one call must agree.
    max_cached_shapes: programs kept at a time, the latest used; one more size drops the oldest.
    seed, device: as for `compile`.
    precision: "f32", or "f16": what kernels pass to each other is stored in half precision.
    Raises:   InputError for inputs that are no types or that `forward` does not take, DeviceError. What is wrong
              inside of `forward` fails its first run.
    """
    store = OwnParameters(model, seed_or_new(seed), session_factory(device))
    try:
        warn_if_slow(store.worker.info)
        return CompiledForward(store, forward, inputs, max_cached_shapes, owner=True, precision=precision)
    except BaseException:
        store.worker.close()
        raise


@helpful
def trace(
    *, model: Any, loss: Callable[..., Any], inputs: Mapping[str, Any], optimizer: Optimizer | None = None
) -> Graph:
    """The graph of a loss, or of the whole step if there is an optimizer. No device is touched."""
    return trace_training(model, loss, inputs, optimizer)


@helpful
def trace_forward(*, model: Any, forward: Callable[..., Any], inputs: Mapping[str, Any]) -> Graph:
    """The graph of a forward. No device is touched."""
    return _trace_forward(model, forward, inputs)


def is_webgpu_available() -> bool:
    """True if `device="webgpu"` can work here."""
    return check_webgpu().ok


def devices() -> list[DeviceInfo]:
    """Every usable device, in the order in which "auto" tries them. Software adapters come last: it never takes one."""
    from tracegrad.runtime.c_compiler import compiler
    from tracegrad.runtime.cpu import cpu_info

    found = [DeviceInfo("webgpu", a.description, a.software) for a in adapters()]
    cpu = [cpu_info(compiler())] if HAVE_NUMPY else []
    return [*(d for d in found if IN_TAB or not d.software), *cpu, *(d for d in found if d.software and not IN_TAB)]


def session_factory(device: str) -> Callable[[], Callable[[], Session]]:
    """Call it to begin to open `device`, and what it gives on the thread that will own the session.

    Raises: DeviceError, here for an unknown name, and at opening.
    """
    wanted = device if device != "auto" else os.environ.get("TRACEGRAD_DEVICE") or "auto"
    if wanted not in DEVICES:
        source = "device" if device != "auto" else "TRACEGRAD_DEVICE"
        raise DeviceError.here(
            f"{source} is {wanted!r}; it must be one of {', '.join(map(repr, DEVICES))}; "
            "'webgpu' runs on any vendor's GPU"
        )
    if IN_TAB and wanted != "cpu":
        return lambda: BrowserSession
    if not HAVE_NUMPY:
        raise DeviceError.here(f"device={device!r} needs NumPy, which is not installed")
    site = call_site()
    return lambda: begin_session(wanted, site)


def begin_session(wanted: str, site: Site | None) -> Callable[[], Session]:
    """Look for the device, and import what will open it; what this gives opens it, on the session's own thread.

    The imports come first because whoever calls this compiles next: that keeps Python busy, and they would wait for it.
    """
    found = search(wanted) if wanted != "cpu" else None
    if found is not None and found.loaded:
        native_runtime()
    return partial(open_session, found, site)


def open_session(found: Search | None, site: Site | None) -> Session:
    """A session on what was searched for, else on the CPU. DeviceError with the line of the call that wanted it.

    A runtime is imported when it is wanted: together they would be a tenth of `import tracegrad`.
    """
    if found is not None:
        try:
            session = opened(found, lambda adapter: native_runtime()(adapter))
        except DeviceError as e:
            raise type(e)(located(str(e), site)) from e
        if session is not None:
            return session
    from tracegrad.runtime.c_compiler import compiler
    from tracegrad.runtime.cpu import CpuSession

    return CpuSession(compiler())


def native_runtime() -> Callable[[AdapterInfo], Session]:
    """What opens an adapter, imported when it is first asked for."""
    from tracegrad.runtime.native import NativeSession

    return NativeSession


def warn_if_slow(info: DeviceInfo) -> None:
    """For what users call: that a software adapter was chosen, which "auto" never does."""
    if info.software and not IN_TAB:
        warnings.warn(
            f"{info.description} is a software adapter: correct, but much slower than device='cpu'",
            RuntimeWarning,
            stacklevel=4,
        )
