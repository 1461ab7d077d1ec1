"""Plans run on tensors: arrays in, a GradTensor out, and what `backward` will need if a gradient is asked for."""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.imperative import tape
from tracegrad.imperative.plans import Plan
from tracegrad.imperative.tensors import GradTensor, wrap

# What `tensors.wrap` does, in the plan's own function: a call of Python costs as much as all of it
WRAPPED = (
    "{t} = new(GradTensor)",
    "{t}._array = {value}",
    "{t}._spec = {spec}",
    "{t}._record = {t}._grad = None",
    "{t}._requires = False",
)


def written(plan: Plan, takes: Sequence[Callable[[Any], Any] | None] = ()) -> Callable[..., Any]:
    """The plan without gradients as one function of arrays. takes: what makes an operand of each as it comes."""
    writer, names = plan.computed([f"x{k} = take{k}(x{k})" for k, take in enumerate(takes) if take is not None])
    writer.scope |= {"new": object.__new__, "GradTensor": GradTensor, "pack": plan.pack}
    writer.scope |= {f"take{k}": take for k, take in enumerate(takes)}
    tensors: list[str] = []
    for k, (name, spec) in enumerate(zip(names, plan.specs)):
        tensors.append(f"t{k}")
        writer.scope[f"spec{k}"] = spec
        writer.lines += [line.format(t=f"t{k}", value=name, spec=f"spec{k}") for line in WRAPPED]
    return writer.function(plan.parameters, tensors[0] if plan.pack is None else f"pack([{', '.join(tensors)}])")


def ran(plan: Plan, arrays: Sequence[Any], tensors: Sequence[Any]) -> Any:
    """The result of a plan. `tensors`: whose gradients it passes on, in the order of `arrays`."""
    for t in tensors:
        if type(t) is GradTensor and t._requires:
            if tape.recording.get():
                return recorded(plan, arrays, tensors)
            break
    if plan.run is None:
        plan.run = written(plan)
    return plan.run(*arrays)


def recorded(plan: Plan, arrays: Sequence[Any], tensors: Sequence[Any]) -> Any:
    """As `ran`, where gradients are asked for."""
    record = plan.recorded(tuple([type(t) is GradTensor and t._requires for t in tensors]))
    values, saved = record.forward(*arrays)
    if plan.spec is not None:
        y = wrap(values, plan.spec)
        pullback = record.pullbacks[0]
        if pullback is not None:
            y._record = tape.Record(pullback, saved, tuple([tensors[k]._record or tensors[k] for k in record.sources[0]]))
            y._requires = True
        return y
    results: list[GradTensor] = []
    for x, spec, pullback, kept, sources in zip(values, plan.specs, record.pullbacks, saved, record.sources):
        y = wrap(x, spec)
        if pullback is not None:
            y._record = tape.Record(pullback, kept, tuple([tensors[k]._record or tensors[k] for k in sources]))
            y._requires = True
        results.append(y)
    assert plan.pack is not None
    return plan.pack(results)
