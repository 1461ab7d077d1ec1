"""The reference: run a graph with its rows' array rules. NumPy makes it exact to read, jax.numpy makes it a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any

from tracegrad.ir import Tensor, toposort
from tracegrad.passes.expand import expand_composites


def evaluate(roots: Sequence[Tensor], env: Mapping[str, Any], xp: Any) -> list[Any]:
    """Arrays of `roots`; `env` maps each leaf's name to its array."""
    roots = expand_composites(roots)
    values: dict[int, Any] = {}
    for t, value in run(roots, env, xp):
        values[t.serial] = value
    return [values[t.serial] for t in roots]


def run(roots: Sequence[Tensor], env: Mapping[str, Any], xp: Any) -> Iterator[tuple[Tensor, Any]]:
    """Every node of an expanded graph with its value, in order."""
    values: dict[int, Any] = {}
    for t in toposort(roots):
        if t.prim.name == "leaf":
            value = xp.asarray(env[t.name])
        else:
            value = array_rule(t, xp)(*[values[x.serial] for x in t.inputs])
        values[t.serial] = value
        yield t, value


def array_rule(t: Tensor, xp: Any) -> Callable[..., Any]:
    """The function of arrays that computes node `t`."""
    rule, attrs = t.prim.array, t.attrs
    if isinstance(rule, str) and "{0}" in rule:
        code = _compiled(rule.format(*[f"x[{k}]" for k in range(len(t.inputs))], **attrs))
        return lambda *xs: eval(code, {"xp": xp, "x": xs})
    if isinstance(rule, str):
        return getattr(xp, rule)
    if rule is None:
        raise NotImplementedError(f"{t.prim.name} has no array rule; it must be expanded first")
    return lambda *xs: rule(xp, *xs, **attrs)


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<array rule>", "eval")
