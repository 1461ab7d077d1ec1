"""A table of a model's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracegrad.introspection.tables import Table
from tracegrad.nn.module import named_parameters
from tracegrad.nn.parameters import Parameter
from tracegrad.shapes import show


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Parameters by name; prints as a table. `total` and `trainable` count elements."""

    parameters: dict[str, Parameter]

    @property
    def total(self) -> int:
        """Elements of all parameters."""
        return sum(p.size for p in self.parameters.values())

    @property
    def trainable(self) -> int:
        """Elements of the parameters that steps change."""
        return sum(p.size for p in self.parameters.values() if p.trainable)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = []
        for name, p in self.parameters.items():
            kind = p.init.spec()["kind"] if p.trainable else f"{p.init.spec()['kind']}, fixed"
            rows.append((name, f"{p.dtype}{show(p.shape)}", f"{p.size:,}", kind))
        rows.append(("total", "", f"{self.total:,}", f"{4 * self.total / 1e6:.2f} MB"))
        table = Table(("name", "type", "count", "init"), rows, left=("name", "type", "init"), total=True)
        rest = f"\nof which trainable: {self.trainable:,}" if self.trainable != self.total else ""
        return table.text(widest=max(len(x) for row in rows for x in row)) + rest

    __repr__ = __str__


def summary(model: Any) -> Summary:
    """List names, types and sizes of a model's parameters, as a table to print. A shared parameter counts once.

    Raises TraceError if `model` is not a tree of modules. As `summary` of Keras and of torchinfo for PyTorch.

    >>> print(tg.summary(nn.Linear(2, 1)))
    name   type      count  init
    -------------------------------
    W      f32[2,1]      2  kaiming
    b      f32[1]        1  zeros
    -------------------------------
    total                3  0.00 MB
    """
    return Summary(named_parameters(model))
