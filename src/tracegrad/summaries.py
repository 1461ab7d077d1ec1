"""A table of a model's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracegrad.nn.module import Parameter, named_parameters
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
        rows = [("name", "type", "count", "init")]
        for name, p in self.parameters.items():
            kind = p.init.spec()["kind"] if p.trainable else f"{p.init.spec()['kind']}, fixed"
            rows.append((name, f"{p.dtype}{show(p.shape)}", f"{p.size:,}", kind))
        rows.append(("total", "", f"{self.total:,}", f"{4 * self.total / 1e6:.2f} MB"))
        a, b, c, _ = (max(len(row[k]) for row in rows) for k in range(4))
        lines = [f"{name:<{a}}  {kind:<{b}}  {count:>{c}}  {init}".rstrip() for name, kind, count, init in rows]
        rule = "-" * max(map(len, lines))
        text = [lines[0], rule, *lines[1:-1], rule, lines[-1]]
        if self.trainable != self.total:
            text.append(f"of which trainable: {self.trainable:,}")
        return "\n".join(text)

    __repr__ = __str__


def summary(model: Any) -> Summary:
    """Names, types and sizes of a model's parameters; print it. A shared parameter counts once.

    Raises TraceError if `model` is no tree of modules.
    """
    return Summary(named_parameters(model))
