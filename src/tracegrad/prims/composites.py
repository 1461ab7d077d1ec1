"""Ops defined by other ops, each with its own derivative where that is better than the expansion's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.ir import Primitive, Tensor, register

if TYPE_CHECKING:
    from typing import Concatenate

    Expansion = Callable[Concatenate[Tensor, ...], Tensor]  # (*inputs, **attrs) -> the result
    Vjp = Callable[Concatenate[Tensor, Tensor, Tensor, ...], Sequence[Tensor | None]]  # (ct, y, *inputs, **attrs)


def composite(
    name: str,
    *,
    type: Any,
    expand: Expansion,
    vjp: Vjp | None = None,
    jvp: Any = None,
    batch: Any = None,
    indexes: Callable[..., tuple[int, int, int | None]] | None = None,
    xla: Callable[..., Any] | None = None,
) -> Primitive:
    """Register one composite: bound as one node, differentiated by `vjp`, then replaced by `expand`.

    jvp, batch: only if those of the expansion would be worse, or would differ from `vjp` at a kink.
    xla: if XLA compiles the whole op better than its expansion.

    As jax.custom_vjp on a jitted function.

    >>> double = extend.composite("doc_double", type=lambda x: x, expand=lambda x: x + x)
    """
    return register(Primitive(name, "composite", type, None, vjp, jvp, batch, expand=expand, indexes=indexes, xla=xla))
