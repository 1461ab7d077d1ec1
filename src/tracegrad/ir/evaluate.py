"""The reference evaluation: run a graph by the array rules of its primitives, on NumPy or on jax.numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any

from tracegrad.ir.nodes import Primitive, Tensor, rewrite, toposort
from tracegrad.passes.expand import with_array_rules
from tracegrad.prims.leaves import LEAF
from tracegrad.transforms.loops import Body


def evaluate(roots: Sequence[Tensor], env: Mapping[str, Any], xp: Any) -> list[Any]:
    """Return the arrays of `roots`. `env` maps the name of each leaf to its array."""
    roots = with_array_rules(roots)
    values = {t.serial: value for t, value in run(roots, env, xp)}
    return [values[t.serial] for t in roots]


def named_by_role(roots: Sequence[Tensor]) -> list[Tensor]:
    """Return `roots` with leaves named "param.l1.W", "input.x", ...: leaves of different roles can share a name."""

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim is not LEAF:
            return None
        return Tensor(t.prim, inputs, {**t.attrs, "name": f"{t.attrs['role']}.{t.name}"}, t.type, t.site)

    return rewrite(roots, rule)


def run(roots: Sequence[Tensor], env: Mapping[str, Any], xp: Any) -> Iterator[tuple[Tensor, Any]]:
    """Yield every node of an expanded graph with its value, in order."""
    values: dict[int, Any] = {}
    for t in toposort(roots):
        if t.prim is LEAF:
            value = xp.asarray(env[t.name])
        elif t.prim.family == "scan":
            value = _scanned(t, [values[x.serial] for x in t.inputs], xp)
        else:
            value = array_rule(t, xp)(*[values[x.serial] for x in t.inputs])
        values[t.serial] = value
        yield t, value


def iterations(t: Tensor, inputs: Sequence[Any], xp: Any) -> Iterator[tuple[dict[str, Any], dict[int, Any]]]:
    """Yield, for each iteration of a scan, the arrays of the body's leaves by name, and of all nodes by serial."""
    body: Body = t.attrs["body"]
    carry, xs, consts = body.split(inputs)
    length = t.attrs["length"]
    for k in reversed(range(length)) if t.attrs["reverse"] else range(length):
        given = zip(body.leaves, (*carry, *(x[k] for x in xs), *consts))
        env = {leaf.name: x for leaf, x in given}
        values = {node.serial: x for node, x in run(body.roots, env, xp)}
        carry = [values[node.serial] for node in body.new]
        yield env, values


def _scanned(t: Tensor, inputs: Sequence[Any], xp: Any) -> list[Any]:
    """Return the results of a scan."""
    body: Body = t.attrs["body"]
    last: list[Any] = []
    rows: list[list[Any]] = []
    for _, values in iterations(t, inputs, xp):
        last = [values[node.serial] for node in body.new]
        rows.append([values[node.serial] for node in body.each])
    if t.attrs["reverse"]:
        rows.reverse()
    return [*last, *(xp.stack(list(column)) for column in zip(*rows))]


def array_rule(t: Tensor, xp: Any) -> Callable[..., Any]:
    """Return the function of arrays that computes node `t`."""
    return function_of(t.prim, len(t.inputs), t.attrs, xp)


def function_of(prim: Primitive, operands: int, attrs: Mapping[str, Any], xp: Any) -> Callable[..., Any]:
    """Return the function that computes a primitive with these attributes on `operands` arrays.

    Raises NotImplementedError for a composite without an array rule."""
    rule = prim.array
    if isinstance(rule, str) and "{0}" in rule:
        code = _compiled(spelled(rule, [f"x[{k}]" for k in range(operands)], attrs))
        return lambda *xs: eval(code, {"xp": xp, "x": xs})
    if isinstance(rule, str):
        return getattr(xp, rule)
    if rule is None:
        raise NotImplementedError(f"{prim.name} has no array rule; it must be expanded first")
    return lambda *xs: rule(xp, *xs, **attrs)


def spelled(rule: str, operands: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Return an array rule as an expression. Folds keep their axes unless `attrs` has keepdims=False."""
    return rule.format(*operands, **{"keepdims": True, **attrs})


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<array rule>", "eval")
