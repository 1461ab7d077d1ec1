"""Transform functions of tensors. `tracegrad.functional` makes the transforms work on arrays too."""

from tracegrad.transforms.custom import CustomVJP, custom_vjp, remat
from tracegrad.transforms.derivatives import grad, hessian, jacobian, jvp, value_and_grad, vjp
from tracegrad.transforms.recurrence import scan
from tracegrad.transforms.trees import tree_leaves, tree_map
from tracegrad.transforms.vmap import vmap

__all__ = [
    "CustomVJP", "custom_vjp", "grad", "hessian", "jacobian", "jvp", "remat", "scan", "tree_leaves",
    "tree_map", "value_and_grad", "vjp", "vmap",
]  # fmt: skip
