"""The building blocks of the library's own ops and optimizers, for extension packages. CONTRIBUTING.md has recipes.

An op:          a plain function of ops, decorated with `op`; or `composite`, `elementwise`, `register(Primitive(...))`,
                with common rules: `symmetric`, `multilinear`, `linear` for `jvp`; `alike`, `shifted`, `merged` for
                `batch`.
An optimizer:   a `Transform`, passed to `tracegrad.optim.custom`. `chain` joins several. State in another shape than
                the parameters, such as rows and columns, is a `PerParameter`.
A schedule:     a frozen dataclass that inherits from `Schedule`.
A graph pass:   a function of roots that calls `rewrite`.
"""

from tracegrad.dtypes import TensorType
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Primitive, Tensor, bind, register, rewrite, toposort
from tracegrad.methods import op
from tracegrad.optim.transform import Host, PerParameter, Transform, chain
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import composite, elementwise, typed
from tracegrad.prims.rules import alike, linear, merged, multilinear, shifted, symmetric
from tracegrad.schedule import Schedule

__all__ = [
    "Graph", "Host", "PerParameter", "Primitive", "Schedule", "Tensor", "TensorType", "Transform", "alike",
    "as_tensor", "bind", "chain", "composite", "elementwise", "linear", "merged", "multilinear", "op", "register",
    "rewrite", "shifted", "symmetric", "toposort", "typed",
]  # fmt: skip
