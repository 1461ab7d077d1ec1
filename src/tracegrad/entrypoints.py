"""The entry points: compile, compile_forward, load_forward, trace, and the list of devices."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tracegrad.arrays import seed_or_new
from tracegrad.compiler.build import ForwardSource, StepSource, trace_loss
from tracegrad.compiler.inputtypes import declared
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.stores import OwnParameters
from tracegrad.errors import DeviceError, InputError, Site, call_site, located
from tracegrad.ir.graph import Graph
from tracegrad.optim.optimizer import Optimizer
from tracegrad.patterns import Selection
from tracegrad.runtime.base import DEVICES, RUNTIMES, DeviceInfo, Session, runtime
from tracegrad.runtime.tab import IN_TAB
from tracegrad.training.compiled import CompiledTraining
from tracegrad.wrong_calls import helpful


@helpful
def compile(
    *,
    model: Any,
    loss: Callable[..., Any] | None = None,
    inputs: Mapping[str, Any],
    optimizer: Optimizer | Mapping[str, Optimizer],
    losses: Mapping[str, Callable[..., Any]] | None = None,
    params: Mapping[str, Selection] | None = None,
    seed: int | None = None,
    device: str = "auto",
    keep_grads: bool = False,
    precision: str = "f32",
    frozen: Selection | None = None,
    max_cached_shapes: int = 8,
    mesh: Any = None,
    layout: Mapping[str, Any] | str | None = None,
) -> CompiledTraining:
    """Compile a training step of `model`: the loss, its gradients and the optimizer's update.

    model:     a `tg.Module`, or a list, tuple or dict of modules. It is not changed.
    loss:      loss(m, **inputs) -> f32[], or (loss, {"name": tensor}). m is the model with its current parameters.
               The function is traced: called when a program is compiled, not at each step, on tensors without values.
    losses:    several losses instead, by name, such as {"d": d_loss, "g": g_loss}. `train.step("d", ...)` does a step
               of one loss, on the same parameters and states. Each loss takes the `inputs` that it names, and has a
               step counter and a random stream of its own.
    inputs:    name -> shape (f32) or type such as tg.i32[64, 128]. Each call chooses the sizes that are None or a name,
               as in {"x": ("B", "T", 8), "n": tg.i32["B"]}. Within a call, equal names must have equal sizes, and so
               must all Nones at the same axis. One program serves many sizes where it can; otherwise each choice of
               sizes has a program, compiled at its first call.
    optimizer: one of tg.optim. With several losses, one for each by name, or one for all; states are separate.
    params:    with several losses, by name, the parameters that each trains: a pattern of names such as "D.*", a list
               of patterns, or a function of the name. Default: all. Only these parameters get optimizer state.
    seed:      an integer that determines the first parameters and all numbers of random ops. None draws one; see
               `train.seed`.
    device:    "auto" (a GPU through WebGPU, else the CPU), "webgpu", "cpu", or "jax" (XLA compiles the step for the
               devices of JAX). The environment variable TRACEGRAD_DEVICE sets what "auto" means.
    keep_grads: True makes `download_grads` available.
    precision: "f32" or "f16". With "f16", kernels store intermediate values in half precision, which halves this memory
               and its traffic, and the loss is scaled so that gradients fit. Parameters, optimizer state, sums and the
               loss stay f32. A step whose gradients overflow is skipped; see `CompletedStep.skipped`. With
               device="jax", precision applies to matmuls: "f16" and "bf16" round the operands, and "tf32" lets GPUs
               round them.
    frozen:    parameters that are never trained: a pattern of names such as "backbone.*", a list of patterns, or a
               function of the name; an empty list is none. Their gradients are not computed. (`train.freeze` can be
               undone, `frozen` cannot.)
    max_cached_shapes: number of programs to keep if calls choose sizes. A further choice drops the least recently used.
    mesh:      jax.make_mesh(...): train on all devices of the mesh, with device="jax". Batches are split over the axis
               "data". The loss is still the mean over the whole batch. The mesh changes results by rounding only.
    layout:    how the mesh stores parameters and their optimizer state. By default every device has all of them. "fsdp"
               splits each over "data". A dict of patterns, such as {"*.W": P(None, "model")}, splits the parameters of
               a pattern as P, a jax.sharding.PartitionSpec, says; the first matching pattern counts.
    Raises:    InputError for arguments that do not fit. Errors of ops in `loss`, such as ShapeError and DTypeError,
               with the line of your code. CompileError for a loss that is not an f32[], or a model without parameters.
               DeviceError for a device that is missing or too small.

    >>> loss = lambda m, x, y: tg.mse_loss(m(x), y)
    >>> train = tg.compile(model=nn.Linear(2, 1), loss=loss, inputs={"x": (4, 2), "y": (4, 1)},
    ...                    optimizer=optim.sgd(lr=0.1), seed=0)
    >>> r = train.step(x=np.zeros((4, 2)), y=np.ones((4, 1)))
    >>> r.step, round(r.loss, 3)
    (1, 1.0)
    """
    if layout is not None and mesh is None:
        raise InputError.here("layout= places parameters on a mesh; pass mesh=jax.make_mesh(...) too")
    sources = _step_sources(model, loss, losses, inputs, optimizer, params, precision, frozen)
    factory = session_factory(device) if mesh is None else mesh_factory(device, mesh, layout)
    if not keep_grads and (mesh is not None or wanted_device(device) == "jax"):  # XLA fuses a step as a whole
        sources = [source._replace(grads=False) for source in sources]
    train = CompiledTraining(
        sources=sources, session_factory=factory, seed=seed, keep_grads=keep_grads, max_cached_shapes=max_cached_shapes
    )
    for text in dict.fromkeys(text for s in train.store.stepper.together for text in s.built.warnings):
        warnings.warn(text, stacklevel=3)  # the user's line, past `helpful`
    warn_if_slow(train.worker.info)
    return train


def _step_sources(
    model: Any, loss: Any, losses: Any, inputs: Any, optimizer: Any, params: Any, precision: str, frozen: Any
) -> list[StepSource]:
    """Return the source of each loss's program. The arguments are those of `compile`."""
    if loss is None or losses is not None:
        from tracegrad.compiler.several import step_sources

        return step_sources(model, loss, losses, inputs, optimizer, params, precision, frozen)
    if params is not None:
        raise InputError.here(
            "params= is for losses=; with one loss, name the parameters that are not trained in frozen="
        )
    return [StepSource(model, loss, declared(inputs), optimizer, precision, frozen)]


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
    writes: bool = False,
) -> CompiledForward:
    """Compile a forward function with parameters of its own. `load` or `set_params` gives them values.

    model:    a `tg.Module`, or a list, tuple or dict of modules. It is not changed. One without parameters, such as
              {}, makes `forward` a function of its inputs alone.
    forward:  forward(m, **inputs) -> tensor, or a tuple or dict of tensors. `m` is the model with its current
              parameters.
    inputs:   as for `compile`: each call chooses the sizes that are None or a name. The first choice gets a program
              for exactly these sizes. Where possible, all further choices share one program; otherwise each gets its
              own. `explain` of the result says which.
    seed:     an integer that determines the first parameters and all numbers of random ops. None draws one; the first
              run then warns that parameters are random, unless you have loaded or set parameters.
    device:   as for `compile`.
    max_cached_shapes: number of programs to keep. A further program replaces the least recently used one.
    precision: "f32" or "f16": with "f16", kernels store intermediate values in half precision. "bf16" and "tf32" need
              device="jax", as in `compile`.
    writes:   True allows `forward` to assign states, the arrays that `tg.Module.state` declares; `states` and
              `set_states` of the result read and write them. With False, a forward that assigns one raises TraceError.
    Raises:   InputError for inputs that are neither shapes nor types, or that `forward` does not take. DeviceError
              for a device that is missing or too small. Errors inside `forward`; if calls choose sizes, reading the
              first run's result raises them.

    >>> infer = tg.compile_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (None, 2)}, seed=0)
    >>> infer.run(x=np.zeros((3, 2))).output.shape
    (3, 1)
    """
    store = OwnParameters(model, seed_or_new(seed), session_factory(device))
    store.unset = seed is None and bool(store.fields)
    try:
        warn_if_slow(store.worker.info)
        return CompiledForward(
            store, forward, inputs, max_cached_shapes, owner=True, precision=precision, writes=writes
        )
    except BaseException:
        store.worker.close()
        raise


@helpful
def load_forward(
    path: str | os.PathLike[str],
    *,
    model: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    device: str = "auto",
    max_cached_shapes: int = 8,
    precision: str = "f32",
    writes: bool = False,
) -> CompiledForward:
    """Compile a forward with the parameters and states of a file: `compile_forward`, then `load`.

        infer = tg.load_forward("digits.safetensors", model=Net(), forward=logits, inputs={"x": (None, 784)})

    path:    a checkpoint that `train.save` wrote, or any safetensors file with the parameters by name.
    model:   a model with the same parameters. Its own first values are not used.
    forward, inputs, device, max_cached_shapes, precision, writes: as for `compile_forward`.
    Raises:  errors of `compile_forward` and `CompiledForward.load`.

    >>> train.save("model.safetensors")    # train: as in the example of tg.compile; x: a batch; predict(m, x): m(x)
    >>> infer = tg.load_forward("model.safetensors", model=nn.Linear(2, 1), forward=predict, inputs={"x": (None, 2)})
    >>> infer.run(x=x).output.shape
    (4, 1)
    """
    infer = compile_forward(model=model, forward=forward, inputs=inputs, device=device, precision=precision,
                            max_cached_shapes=max_cached_shapes, writes=writes)  # fmt: skip
    try:
        infer.load(path)
    except BaseException:
        infer.close()
        raise
    return infer


@helpful
def trace(
    *, model: Any, loss: Callable[..., Any], inputs: Mapping[str, Any], optimizer: Optimizer | None = None
) -> Graph:
    """Return the graph of a loss; with an optimizer, the graph of a training step. Uses no device.

    model, loss, inputs, optimizer: as for `compile`.
    Returns: a `Graph`, to print or to look into.
    Raises:  the errors of `compile` about these arguments, and errors inside `loss`.
    As jax.make_jaxpr.

    >>> graph = tg.trace(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)})
    >>> graph.params, graph.outputs
    ([<f32[2,1] W>, <f32[1] b>], {'loss': <f32[] div>})
    """
    if optimizer is None:
        return trace_loss(model, loss, inputs)
    return StepSource(model, loss, inputs, optimizer).at_once().graph


@helpful
def trace_forward(*, model: Any, forward: Callable[..., Any], inputs: Mapping[str, Any]) -> Graph:
    """Return the graph of a forward. Uses no device.

    model, forward, inputs: as for `compile_forward`.
    Returns: a `Graph`, to print or to look into.
    Raises:  the errors of `compile_forward` about these arguments, and errors inside `forward`.
    As jax.make_jaxpr, and torch.fx.symbolic_trace.

    >>> graph = tg.trace_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (4, 2)})
    >>> graph.outputs
    {'output': <f32[4,1] add>}
    """
    return ForwardSource(model, forward, inputs, writes=True).traced().graph


@helpful
def devices() -> list[DeviceInfo]:
    """Return every usable device as a `DeviceInfo`. device="auto" takes the first one.

    That is a GPU if there is one, else the CPU; the environment variable TRACEGRAD_DEVICE overrides it. "auto" takes
    neither JAX nor an adapter with `software=True`, a CPU that acts as a GPU. As jax.devices.

    >>> "cpu" in [device.name for device in tg.devices()]
    True
    """
    found = [device for name in RUNTIMES for device in runtime(name).devices()]
    return sorted(found, key=lambda d: d.software and not IN_TAB)


def session_factory(device: str) -> Callable[[], Callable[[], Session]]:
    """Return a function that begins to open `device`. It returns a function to call on the session's thread.

    Raises: DeviceError at once for an unknown name, and in the second function if the device does not open.
    """
    wanted = wanted_device(device)
    if wanted not in DEVICES:
        source = "device" if device != "auto" else "TRACEGRAD_DEVICE"
        name = getattr(wanted, "name", None)  # of an entry of `devices()`
        hint = f"pass its name, {name!r}" if name in DEVICES else "'webgpu' runs on any vendor's GPU"
        what = "an entry of tg.devices()" if name in DEVICES else repr(wanted)
        raise DeviceError.here(f"{source} is {what}; it must be one of {', '.join(map(repr, DEVICES))}; {hint}")
    first, *others = RUNTIMES if wanted == "auto" else (wanted,)
    site = call_site()

    def begin() -> Callable[[], Session]:
        with errors_at(site):
            begun = runtime(first).begin(wanted)
        return partial(open_session, begun, others, site)

    return begin


def wanted_device(device: str) -> str:
    """Return `device`; for "auto", the value of TRACEGRAD_DEVICE if set."""
    return device if device != "auto" else os.environ.get("TRACEGRAD_DEVICE") or "auto"


def mesh_factory(device: str, mesh: Any, layout: Mapping[str, Any] | str | None) -> Callable[[], Callable[[], Session]]:
    """As `session_factory`, for a mesh of JAX. Raises DeviceError or InputError if mesh or layout do not fit."""
    if device not in ("auto", "jax"):
        raise DeviceError.here(f'mesh= is for device="jax", got device={device!r}')
    from tracegrad.runtime.jax import begin_on_mesh

    site = call_site()
    with errors_at(site):
        begun = begin_on_mesh(mesh, layout)
    return lambda: partial(open_session, begun, (), site)


@contextmanager
def errors_at(site: Site | None) -> Generator[None]:
    """Add the user's line to an error of a device."""
    try:
        yield
    except (DeviceError, InputError) as e:
        raise type(e)(located(str(e), site)) from e


def open_session(first: Callable[[], Session | None], others: Sequence[str], site: Site | None) -> Session:
    """Open the first available device, and return its session. Raises DeviceError with the line `site`."""
    with errors_at(site):
        session = first()
        for name in others:
            session = runtime(name).begin("auto")() if session is None else session
    assert session is not None
    return session


def warn_if_slow(info: DeviceInfo) -> None:
    """Warn at the user's line if the chosen device is a software adapter, except in a browser's tab."""
    if info.software and not IN_TAB:
        warnings.warn(
            f"{info.description} is a software adapter: correct, but much slower than device='cpu'",
            RuntimeWarning,
            stacklevel=4,
        )
