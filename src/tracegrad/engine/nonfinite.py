"""Find the op that first computed a NaN or an infinity, by running the graph again on the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.compiler.pipeline import rounded
from tracegrad.errors import located
from tracegrad.evaluate import evaluate, iterations, named_by_role, run
from tracegrad.graph import Graph
from tracegrad.ir import Tensor, reached
from tracegrad.passes.expand import with_array_rules
from tracegrad.prims.elementwise import HALF

ROLES = {"param": "parameter", "frozen": "parameter", "input": "input", "state": "state", "hyper": "hyperparameter"}
FINITE, MEANT, BAD = range(3)  # MEANT: infinite because of a constant, such as the fill of a mask


def blame(graph: Graph, env: Mapping[str, Any]) -> str:
    """Describe the first node with a non-finite value whose inputs were all finite, with the user's line.

    env: an array for each leaf of the graph, by role and name: "param.l1.W", "input.x", "hyper.lr". A leaf that is not
         finite itself is named.
    """
    if not HAVE_NUMPY:
        return "Load NumPy before tracegrad, and the first op with a non-finite value is named here"
    culprit = _first(with_array_rules(named_by_role(graph.roots)), env)
    if culprit is None and graph.precision == "f16":  # a stored value can overflow
        culprit = _first(named_by_role(rounded(graph).roots), env)
    if culprit is None:
        return (
            "The reference computes only finite values from the same parameters and inputs, so the device's own "
            "rounding or overflow decided; no op can be named"
        )
    t, value = culprit
    nan, infinite = int(np.isnan(value).sum()), int(np.isinf(value).sum())
    kinds = " and ".join(f"{n} {kind}" for n, kind in ((nan, "NaN"), (infinite, "infinite")) if n)
    if t.prim.name == "leaf":
        role, _, name = t.name.partition(".")
        return f"{ROLES[role]} {name!r}, {t.type}, is not finite itself: {kinds} of {value.size} values"
    if t.prim is HALF:
        what = f"{t.inputs[0].name}, {t.type}: {kinds} of {value.size} values"
        return located(f'first value too large for precision="f16", which stores up to 65504: {what}', t.site)
    return located(f"first non-finite value: {t.name}, {t.type}, {kinds} of {value.size} values", t.site)


def _first(roots: Sequence[Tensor], env: Mapping[str, Any]) -> tuple[Tensor, Any] | None:
    """Return the first node that made a root non-finite, and its value."""
    state: dict[int, int] = {}
    suspects: list[tuple[Tensor, Any]] = []
    with np.errstate(all="ignore"):
        for t, value in run(roots, env, np):
            x = np.concatenate([np.ravel(v) for v in value]) if t.prim.family == "scan" else np.asarray(value)
            state[t.serial] = _judge(t, x, state)
            if state[t.serial] == BAD and not any(state[i.serial] == BAD for i in t.inputs):
                suspects.append((t, x))
    reached = _not_finite_paths(roots, state)
    found = next(((t, x) for t, x in suspects if t.serial in reached), None)
    return found if found is None or found[0].prim.family != "scan" else _inside(found[0], env) or found


def _inside(scan: Tensor, env: Mapping[str, Any]) -> tuple[Tensor, Any] | None:
    """Return the first node to blame in the first iteration that has one."""
    roots = scan.attrs["body"].roots
    with np.errstate(all="ignore"):
        steps = iterations(scan, evaluate(scan.inputs, env, np), np)
        return next(filter(None, (_first(roots, given) for given, _ in steps)), None)


def _judge(t: Tensor, x: Any, state: Mapping[int, int]) -> int:
    if x.dtype.kind != "f" or bool(np.isfinite(x).all()):
        return FINITE
    if bool(np.isnan(x).any()):
        return BAD
    # exp(-inf) is a valid 0: a constant infinity is not to blame until it makes a NaN.
    return MEANT if t.prim.name in ("const", "literal") or any(state[i.serial] == MEANT for i in t.inputs) else BAD


def _not_finite_paths(roots: Sequence[Tensor], state: Mapping[int, int]) -> set[int]:
    """Return nodes whose non-finite value reaches a root through non-finite values, or through a test of them."""

    def odd(nodes: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in nodes if not (t.dtype.is_float and state[t.serial] == FINITE)]

    return {t.serial for t in reached(odd(roots), lambda t: odd(t.inputs))}
