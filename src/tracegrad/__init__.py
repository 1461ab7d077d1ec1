"""tracegrad: train small models anywhere, from Python.

Write a model as a tree of parameters, and a loss as a plain function. `compile` turns the whole training step into one
Program, and runs it on any vendor's GPU through WebGPU, or on the CPU.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tracegrad import alignment, errors, foreign, functional, init as init, lr as lr, nn as nn, ops, optim as optim
from tracegrad.alignment import *
from tracegrad.dtypes import (
    DType as DType,
    InputType as InputType,
    TensorType as TensorType,
    bool_ as bool_,
    f32 as f32,
    i32 as i32,
    u32 as u32,
)
from tracegrad.errors import *
from tracegrad.functional import *
from tracegrad.hypers import hyper as hyper
from tracegrad.imperative import creation
from tracegrad.imperative.creation import parameter as parameter, tensor as tensor
from tracegrad.imperative.keys import install
from tracegrad.imperative.streams import manual_seed as manual_seed
from tracegrad.imperative.tape import no_grad as no_grad
from tracegrad.imperative.tensors import GradTensor as GradTensor
from tracegrad.ir.graph import Graph as Graph
from tracegrad.ir.nodes import Tensor as Tensor
from tracegrad.nn.module import Module as Module
from tracegrad.nn.parameters import Parameter as Parameter
from tracegrad.ops import *

if TYPE_CHECKING:
    from tracegrad import (
        extend as extend,
        linalg as linalg,
        metrics as metrics,
        safetensors as safetensors,
        testing as testing,
    )
    from tracegrad.engine.forward import CompiledForward as CompiledForward
    from tracegrad.engine.pending import Pending as Pending
    from tracegrad.engine.results import (
        Aborted as Aborted,
        Captures as Captures,
        Completed as Completed,
        Failed as Failed,
    )
    from tracegrad.engine.single_flight import single_flight as single_flight
    from tracegrad.entrypoints import (
        compile as compile,
        compile_forward as compile_forward,
        devices as devices,
        load_forward as load_forward,
        trace as trace,
        trace_forward as trace_forward,
    )
    from tracegrad.imperative.stepwise import eager as eager, instantiate as instantiate
    from tracegrad.introspection.tables import summary as summary
    from tracegrad.program import Program as Program
    from tracegrad.pytorch import from_torch as from_torch, to_torch as to_torch
    from tracegrad.runtime.adapters import WebGPUSupport as WebGPUSupport, check_webgpu as check_webgpu
    from tracegrad.runtime.base import DeviceInfo as DeviceInfo
    from tracegrad.runtime.webgpu import is_webgpu_available as is_webgpu_available
    from tracegrad.sweeps import Sweep as Sweep, sweep as sweep
    from tracegrad.training.callbacks import (
        Checkpoint as Checkpoint,
        CSVLogger as CSVLogger,
        EarlyStopping as EarlyStopping,
        TensorBoard as TensorBoard,
    )
    from tracegrad.training.compiled import CompiledTraining as CompiledTraining

asarray = creation.asarray
repeat = functional.repeat  # repeats elements, as ops.repeat, or a function

# The modules that compile and run programs are half of the code: each is loaded when one of its names is first used
LATER = {
    "engine.forward": "CompiledForward",
    "engine.pending": "Pending",
    "engine.results": "Aborted Captures Completed Failed",
    "engine.single_flight": "single_flight",
    "entrypoints": "compile compile_forward devices load_forward trace trace_forward",
    "imperative.stepwise": "eager instantiate",
    "introspection.tables": "summary",
    "program": "Program",
    "pytorch": "from_torch to_torch",
    "runtime.adapters": "WebGPUSupport check_webgpu",
    "runtime.base": "DeviceInfo",
    "runtime.webgpu": "is_webgpu_available",
    "sweeps": "Sweep sweep",
    "training.callbacks": "CSVLogger Checkpoint EarlyStopping TensorBoard",
    "training.compiled": "CompiledTraining",
}
MODULES = ("extend", "linalg", "metrics", "safetensors", "testing")
OTHER_NAMES = {"adaptive_avg_pool": "adaptive_avg_pool2d", "hinge": "hinge_loss", "huber": "huber_loss"}
OTHER_NAMES["smooth_l1"] = "smooth_l1_loss"

__version__ = "0.2.0"

install()

# Type checkers export what a star brings or `as` repeats, and are to report unknown names themselves
if not TYPE_CHECKING:
    __all__ = [
        "DType", "GradTensor", "Graph", "InputType", "Module", "Parameter", "Tensor", "TensorType", "bool_", "f32",
        "hyper", "i32", "init", "lr", "manual_seed", "nn", "no_grad", "optim", "parameter", "tensor", "u32",
    ]  # fmt: skip
    __all__ += " ".join(LATER.values()).split()
    __all__ += errors.__all__
    __all__ += alignment.__all__
    __all__ += ops.__all__
    __all__ += functional.__all__

    def __dir__():
        return [*__all__, "__version__", *MODULES]  # for tab completion, without internal modules

    def __getattr__(name):
        for module, names in LATER.items():
            if name in names.split():
                globals()[name] = value = getattr(import_module(f"tracegrad.{module}"), name)
                return value
        if name in OTHER_NAMES:
            return globals()[OTHER_NAMES[name]]
        if name in MODULES:
            return import_module(f"tracegrad.{name}")
        others = {"nn": nn.__all__, "optim": optim.__all__, "lr": lr.__all__, "init": init.__all__}
        raise foreign.no_such_name("tracegrad", name, {"tg": __all__, **others})
