"""The smallest program that still fails in the same way: fewer steps, smaller shapes, simpler values.

Every candidate is smaller in some sense, and replaces the program if it still fails; so the search ends. What a
candidate breaks, tracegrad refuses with another error, and then it does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import tracegrad as tg
from fuzzing.apply import applied
from fuzzing.compare import Finding
from fuzzing.differentiated import leaves_of
from fuzzing.grow import pruned
from fuzzing.program import Input, Program, Step
from fuzzing.search import failure, kind
from tracegrad.ir.ambient import tracing

SECONDS = 90.0
PLAIN = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0, "keepdims": False, "label_smoothing": 0.0,
         "ignore_index": None, "reverse": False, "causal": False, "value": 0.0}  # fmt: skip


def shrunk(finding: Finding, seconds: float = SECONDS) -> Finding:
    """The same failure of a smaller program."""
    end, wanted = time.monotonic() + seconds, kind(finding)
    while time.monotonic() < end:
        smaller = _first(candidates(finding.program), finding.runner, wanted, end)
        if smaller is None:
            return finding
        finding = smaller
    return finding


def _first(programs: Iterator[Program], runner: str, wanted: str, end: float) -> Finding | None:
    for program in programs:
        if time.monotonic() > end:
            return None
        found = failure(program, runner)
        if found is not None and kind(found) == wanted:
            return found
    return None


def candidates(program: Program) -> Iterator[Program]:
    """Yield smaller programs, the smallest first."""
    yield from _fewer_results(program)
    yield from _fewer_steps(program)
    yield from _simpler_bodies(program)
    yield from _smaller_shapes(program)
    yield from _simpler_attributes(program)
    yield from _simpler_values(program)


def _fewer_results(program: Program) -> Iterator[Program]:
    if program.mode != "forward":
        yield replace(program, mode="forward", train={})
    if program.mode == "train":
        yield replace(program, mode="gradient", train={})
        for optimizer, steps in (("sgd", 1), ("sgd", program.train["steps"]), (program.train["optimizer"], 1)):
            simpler = {**program.train, "optimizer": optimizer, "steps": steps}
            if simpler != program.train:
                yield replace(program, train=simpler)
        options = program.train.get("options", {})
        for fewer in ({k: v for k, v in options.items() if k != left_out} for left_out in options):
            yield replace(program, train={**program.train, "options": fewer})
        for name in ("schedule", "state"):
            if program.train.get(name):
                yield replace(program, train={**program.train, name: ""})
        if program.train.get("losses"):
            for own in program.train["losses"].values():
                rest = {k: v for k, v in program.train.items() if k not in ("losses", "order")}
                yield replace(program, train={**rest, "optimizer": own["optimizer"]})
            for order in (program.train["order"][:-1], program.train["order"][1:]):
                yield replace(program, train={**program.train, "order": order, "steps": len(order)})
    for k in range(len(program.outputs)) if len(program.outputs) > 1 else ():
        yield pruned(replace(program, outputs=(program.outputs[k],)))
    for k in range(len(program.outputs)) if len(program.outputs) > 2 else ():
        yield pruned(replace(program, outputs=(*program.outputs[:k], *program.outputs[k + 1 :])))


def _types(program: Program) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Of each step's result, as far as tracegrad takes the steps."""
    found: dict[int, tuple[str, tuple[int, ...]]] = {}
    with tracing():
        values: dict[int, Any] = {~k: x for k, x in enumerate(leaves_of(program.arrays()).values())}
        for k, step in enumerate(program.steps):
            try:
                values[k] = applied(step, "ours", tg, [values[n] for n in step.args])
            except Exception:
                break
            found[k] = values[k].type.dtype.name, values[k].shape
    return found


def _fewer_steps(program: Program) -> Iterator[Program]:
    """An earlier value as the result; a step's value as an input of its own; an argument in the place of a step."""
    types = _types(program)
    if len(program.outputs) == 1:
        for k in range(len(program.steps) - 1):
            yield pruned(replace(program, outputs=(k,)))
    for k in reversed(range(len(program.steps))):
        if k not in types:
            continue
        dtype, shape = types[k]
        for n in program.steps[k].args:
            known = types.get(n) if n >= 0 else (program.inputs[~n].dtype, program.inputs[~n].shape)
            if known == (dtype, shape):
                yield from _without(program, k, n)
        if dtype in ("f32", "bool") and 0 not in shape and (k,) != program.outputs:
            x = Input(dtype, shape, "bools" if dtype == "bool" else "uniform", k)
            yield from _without(replace(program, inputs=(*program.inputs, x)), k, ~len(program.inputs))


def _without(program: Program, k: int, n: int) -> Iterator[Program]:
    """Value `n` wherever value `k` is used; a result must stay the value of a step."""
    steps = [replace(s, args=tuple(n if a == k else a for a in s.args)) for s in program.steps]
    outputs = tuple(dict.fromkeys(n if a == k else a for a in program.outputs))
    if all(a >= 0 for a in outputs):
        yield pruned(replace(program, steps=tuple(steps), outputs=outputs))


def _simpler_bodies(program: Program) -> Iterator[Program]:
    """Steps of a body in the place of the transform, and bodies with fewer steps."""
    for k, step in enumerate(program.steps):
        if step.body is None:
            continue
        if step.op == "checkpoint":
            yield _inlined(program, k, step.body)
        types = _types(step.body)
        for j in reversed(range(len(step.body.steps))):
            for n in step.body.steps[j].args:
                known = types.get(n) if n >= 0 else (step.body.inputs[~n].dtype, step.body.inputs[~n].shape)
                if known == types.get(j) and j not in step.body.outputs:
                    body = step.body
                    steps = [replace(s, args=tuple(n if a == j else a for a in s.args)) for s in body.steps]
                    yield _with_step(program, k, replace(step, body=_pruned_steps(replace(body, steps=tuple(steps)))))


def _pruned_steps(body: Program) -> Program:
    """A body without steps that nothing needs; its inputs stay, because the transform gives them."""
    used = set(body.outputs)
    for j in reversed(range(len(body.steps))):
        if j in used:
            used.update(body.steps[j].args)
    kept = [j for j in range(len(body.steps)) if j in used]
    number = {j: new for new, j in enumerate(kept)}
    steps = [replace(body.steps[j], args=tuple(number.get(a, a) for a in body.steps[j].args)) for j in kept]
    return replace(body, steps=tuple(steps), outputs=tuple(number.get(a, a) for a in body.outputs))


def _inlined(program: Program, k: int, body: Program) -> Program:
    """The steps of a body in the place of step `k`."""
    args, n = program.steps[k].args, len(body.steps)

    def inner(a: int) -> int:
        return a + k if a >= 0 else args[~a]

    def outer(a: int) -> int:
        return inner(body.outputs[0]) if a == k else a if a < k else a + n - 1

    steps = [*program.steps[:k], *(replace(s, args=tuple(map(inner, s.args))) for s in body.steps)]
    steps += [replace(s, args=tuple(map(outer, s.args))) for s in program.steps[k + 1 :]]
    return pruned(replace(program, steps=tuple(steps), outputs=tuple(map(outer, program.outputs))))


def _with_step(program: Program, k: int, step: Step) -> Program:
    return replace(program, steps=(*program.steps[:k], step, *program.steps[k + 1 :]))


def _smaller_shapes(program: Program) -> Iterator[Program]:
    """A size, wherever it occurs, or one axis of one input, made smaller."""
    sizes = sorted({n for x in program.inputs for n in x.shape if n > 1}, reverse=True)
    for n in sizes:
        for m in _smaller(n):
            yield renamed(program, lambda _, size, n=n, m=m: m if size == n else size)
    for k, x in enumerate(program.inputs):
        for axis, n in enumerate(x.shape):
            for m in _smaller(n):
                shape = (*x.shape[:axis], m, *x.shape[axis + 1 :])
                yield replace(program, inputs=(*program.inputs[:k], reshaped(x, shape), *program.inputs[k + 1 :]))


def reshaped(x: Input, shape: tuple[int, ...]) -> Input:
    """An input of another shape; values that were written out are drawn again."""
    return replace(x, shape=shape, kind="uniform" if x.kind == "given" else x.kind, values=())


def _smaller(n: int) -> list[int]:
    return sorted({m for m in (1, 2, 3, n // 2, n - 2, n - 1) if 0 < m < n})


def renamed(program: Program, new: Callable[[str, int], int]) -> Program:
    """With other sizes, also in the attributes that are shapes."""
    inputs = [reshaped(x, tuple(new("shape", n) for n in x.shape)) for x in program.inputs]
    steps = []
    for s in program.steps:
        attrs = dict(s.attrs)
        if "shape" in attrs:
            attrs["shape"] = [new("shape", n) for n in attrs["shape"]]
        if "n" in attrs:
            attrs["n"] = new("n", attrs["n"])
        steps.append(replace(s, attrs=attrs, body=None if s.body is None else renamed(s.body, new)))
    return replace(program, inputs=tuple(inputs), steps=tuple(steps))


def _simpler_attributes(program: Program) -> Iterator[Program]:
    for k, step in enumerate(program.steps):
        for name, value in step.attrs.items():
            for simpler in _plainer(name, value):
                yield _with_step(program, k, replace(step, attrs={**step.attrs, name: simpler}))


def _plainer(name: str, value: Any) -> Iterator[Any]:
    """Values of an attribute that say less."""
    if name in PLAIN:
        plain = [PLAIN[name]] * len(value) if isinstance(value, list) else PLAIN[name]
        if value != plain:
            yield plain
    if name == "index":
        for j, i in enumerate(value):
            if i != [None, None, None]:
                yield [*value[:j], [None, None, None], *value[j + 1 :]]
    if name == "widths":
        for j, (before, after) in enumerate(value):
            for pair in ([0, 0], [before, 0], [0, after], [min(before, 1), min(after, 1)]):
                if sum(pair) < before + after:
                    yield [*value[:j], pair, *value[j + 1 :]]


def _simpler_values(program: Program) -> Iterator[Program]:
    """Small integers, then values that are written out."""
    for k, x in enumerate(program.inputs):
        rank = {"special": 3, "uniform": 2, "eighths": 2, "integers": 1}.get(x.kind, 0)
        simpler = [replace(x, kind="integers")] if rank > 1 else []
        size = int(np.prod(x.shape))
        if rank and x.dtype == "f32" and size <= 256:
            simpler.append(replace(x, kind="given", values=tuple(float(n) for n in range(1, size + 1))))
        for new in simpler:
            yield replace(program, inputs=(*program.inputs[:k], new, *program.inputs[k + 1 :]))
    if program.mode == "gradient" and program.ct != "integers":
        yield replace(program, ct="integers")
