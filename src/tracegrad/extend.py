"""What the library's own parts are made with, for packages that add to it. CONTRIBUTING.md has the recipes.

An op:          a plain function of ops, behind `op`; else `composite`, `elementwise` or `register(Primitive(...))`,
                with the rules that most rows take: `symmetric`, `multilinear`, `linear`; `alike`, `shifted`, `merged`.
An optimizer:   a `Transform`, given to `tracegrad.optim.custom`; parts of one are joined by `chain`. State of another
                shape than the parameters, such as rows and columns, is a `PerParameter`.
A schedule:     a frozen dataclass that inherits `Schedule`.
A graph pass:   a function of roots over `rewrite`.
"""

from tracegrad.dtypes import TensorType
from tracegrad.ir import Graph, Primitive, Tensor, bind, register, rewrite, toposort
from tracegrad.lr import Schedule
from tracegrad.methods import op
from tracegrad.optim.host import Host
from tracegrad.optim.transform import PerParameter, Transform, chain
from tracegrad.prims.composites import composite
from tracegrad.prims.elementwise import elementwise, typed
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.rules import alike, linear, merged, multilinear, shifted, symmetric

__all__ = [
    "Graph", "Host", "PerParameter", "Primitive", "Schedule", "Tensor", "TensorType", "Transform", "alike",
    "as_tensor", "bind", "chain", "composite", "elementwise", "linear", "merged", "multilinear", "op", "register",
    "rewrite", "shifted", "symmetric", "toposort", "typed",
]  # fmt: skip
