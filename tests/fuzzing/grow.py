"""A random program from a seed. Each step is tried on the reference first, so that values stay of a useful size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

import tracegrad as tg
from fuzzing.apply import applied
from fuzzing.bounds import Known
from fuzzing.drawing import LIMIT, Pool, UnfitError
from fuzzing.exact import analysed
from fuzzing.nested import NESTED, arguments
from fuzzing.program import Input, Program, Step
from fuzzing.table import OPS
from fuzzing.training import OURS, SCHEDULES
from tracegrad.dtypes import TensorType, as_dtype
from tracegrad.ir.ambient import tracing
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf

TRIES = 12  # draws for one step
LARGEST = 1e5
BLURRED = 1e-3  # a value whose bound is larger than this, in parts of it, says nothing
FLAVOURS = ("uniform",) * 11 + ("integers",) * 5 + ("eighths",) * 3 + ("special",)
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", *sorted(OURS))


class RefusedError(Exception):
    """tracegrad does not take a step that is drawn as a valid one."""


def grow(seed: int) -> Program:
    """The program of a seed: the same one on every machine. A step that is refused ends it."""
    rng = np.random.default_rng([seed, 16])
    pool = Pool(rng, flavour=FLAVOURS[int(rng.integers(0, len(FLAVOURS)))])
    pool.new("f32", pool.shape(pool.one((1, 2, 2, 3))))
    try:
        _steps(pool, pool.one((1, 2, 3, 4, 5, 6, 8, 10, 12)))
    except RefusedError as e:
        return pruned(Program(tuple(pool.inputs), (*pool.steps, e.args[0]), (len(pool.steps),), seed=seed))
    if not pool.steps:
        return grow(seed + 2**40)
    n = len(pool.steps)
    outputs = sorted({n - 1, *(pool.below(n) for _ in range(pool.below(3)))})
    program = pruned(Program(tuple(pool.inputs), tuple(pool.steps), tuple(outputs), seed=seed))
    return replace(program, **_mode(pool, program, outputs))


def _mode(pool: Pool, program: Program, outputs: Sequence[int]) -> dict[str, object]:
    """Forward alone, with gradients, or a few training steps."""
    floats = [k for k in outputs if pool.dtype(k) == "f32" and pool.known[k].v.size]
    if not floats or not any(x.dtype == "f32" for x in program.inputs) or pool.flavour == "special" or pool.chance(5):
        return {"mode": "forward"}
    if pool.chance(8):
        return {"mode": "train", "train": _training(pool)}
    return {"mode": "gradient", "ct": pool.flavour}


def _training(pool: Pool) -> dict[str, object]:
    """An optimizer, mostly with options, a schedule or a state of the model."""
    plain = {"optimizer": pool.one(OPTIMIZERS), "lr": 0.125, "steps": 2}
    if pool.chance(3):
        return plain
    options: dict[str, object] = {}
    if pool.chance(2):
        options["clip_grad_norm"] = pool.one((0.5, 4.0))
    if pool.chance(3):
        options["ema"] = pool.one((0.5, 0.875))
    if pool.chance(3):
        options["accumulate"] = 2
    if pool.chance(6):
        options["normalize_grads"] = True
    if pool.chance(2):
        plain["reload"] = 1 + pool.below(2)
    more = {"schedule": pool.one(("", "", *sorted(SCHEDULES))), "state": bool(pool.chance(2))}
    more |= {"steps": 4 if "accumulate" in options else 3, "options": options}
    return {**plain, **more, **(_losses(pool, options) if pool.chance(3) else {})}


def _losses(pool: Pool, options: Mapping[str, object]) -> dict[str, object]:
    """Two losses of the same results: each trains some of the parameters, which may be the other's too."""
    held = [f"x{k}" for k in range(len(pool.inputs))]
    losses = {
        name: {"optimizer": pool.one(OPTIMIZERS), "trains": [x for x in held if not pool.chance(3)]} for name in "ab"
    }
    order = [pool.one("ab") for _ in range(4)]
    options = {k: v for k, v in options.items() if k != "ema"}  # averages are of one optimizer's parameters
    return {"losses": losses, "order": order, "steps": len(order), "options": options}


def _steps(pool: Pool, count: int) -> None:
    """Adds steps to a pool."""
    names = sorted(OPS)
    weights = np.array([OPS[n].weight for n in names], float)
    if pool.depth:
        weights[[k for k, n in enumerate(names) if n == "case" or (n in NESTED and pool.depth > 1)]] = 0
    weights /= weights.sum()
    for _ in range(count):
        for _ in range(TRIES):
            name = names[int(pool.rng.choice(len(names), p=weights))]
            before = len(pool.inputs)
            try:
                step = _nested(pool, name) if name in NESTED else Step(name, *OPS[name].draw(pool))
                pool.known[len(pool.steps)] = _useful(tried(step, [pool.known[k] for k in step.args]), pool)
            except (UnfitError, RefusedError) as e:
                if isinstance(e, RefusedError) and not pool.depth:
                    raise
                for k in range(before, len(pool.inputs)):
                    del pool.known[~k]
                del pool.inputs[before:]
                continue
            pool.steps.append(step)
            break


def _nested(pool: Pool, op: str) -> Step:
    """A transform, with a body that grows from what it is given."""
    args, attrs, given = arguments(pool, op)
    body = Pool(pool.rng, pool.depth + 1, pool.flavour, fresh=False)
    for k, known in enumerate(given):
        body.known[~k] = known
        body.inputs.append(Input(body.dtype(~k), known.v.shape, "uniform"))
    _steps(body, pool.between(1, 3))
    if not body.steps:
        raise UnfitError
    results = [len(body.steps) - 1]
    if op == "scan":
        alike = [k for k in body.known if body.dtype(k) == "f32" and body.of(k) == given[0].v.shape]
        results = [alike[-1], *results]
    elif op != "vmap" and body.dtype(results[0]) != "f32":
        raise UnfitError
    if op in ("grad", "jvp", "hessian", "custom_vjp") and body.dtype(~0) != "f32":
        raise UnfitError
    return Step(op, args, attrs, Program(tuple(body.inputs), tuple(body.steps), tuple(results)))


def tried(step: Step, args: Sequence[Known]) -> Known:
    """One step, by the reference."""
    with tracing():
        leaves = [leaf("input", f"{k}", TensorType(as_dtype(_dtype(x)), x.v.shape)) for k, x in enumerate(args)]
        try:
            y = applied(step, "ours", tg, leaves)
        except tg.TracegradError as e:
            raise RefusedError(step) from e
        if not isinstance(y, Tensor) or y.size > LIMIT or y.ndim > 5:
            raise UnfitError
        return analysed([y], {f"{k}": x for k, x in enumerate(args)})[0]


def _dtype(known: Known) -> str:
    return {"f": "f32", "i": "i32", "b": "bool", "u": "u32"}[known.v.dtype.kind]


def _useful(known: Known, pool: Pool) -> Known:
    """UnfitError, if rounding alone could make anything of it."""
    if known.v.dtype.kind != "f" or pool.flavour == "special" or not known.v.size:
        return known
    if not np.all(np.isfinite(known.v)):
        raise UnfitError
    largest = float(np.abs(known.v).max())
    if largest > LARGEST or float(np.median(known.e)) > BLURRED * max(largest, 1e-3):
        raise UnfitError
    return known


def pruned(program: Program) -> Program:
    """Without the steps and inputs that no result needs, and numbered anew. One input stays."""
    needed: set[int] = set()
    stack = list(program.outputs)
    while stack:
        k = stack.pop()
        if k not in needed:
            needed.add(k)
            stack += program.steps[k].args if k >= 0 else ()
    inputs = [k for k in range(len(program.inputs)) if ~k in needed] or [0]
    steps = [k for k in range(len(program.steps)) if k in needed]
    number = {~k: ~new for new, k in enumerate(inputs)} | {k: new for new, k in enumerate(steps)}
    kept = [replace(s, args=tuple(number[a] for a in s.args)) for s in (program.steps[k] for k in steps)]
    return replace(
        program,
        inputs=tuple(program.inputs[k] for k in inputs),
        steps=tuple(kept),
        outputs=tuple(number[k] for k in program.outputs),
    )
