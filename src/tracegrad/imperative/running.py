"""Plans run on tensors: arrays in, a GradTensor out, and what `backward` will need if a gradient is asked for."""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.imperative import tape
from tracegrad.imperative.plans import Mask, Plan
from tracegrad.imperative.spell import Writer
from tracegrad.imperative.tensors import GradTensor

Take = Callable[[Any], Any]  # a user's array as an operand
# What `tensors.wrap` and `tape.Record` do, in the plan's own function: calls of Python cost more than all of it
WRAPPED = """\
t{k} = new(GradTensor)
t{k}._array = {value}
t{k}._spec = spec{k}
t{k}._grad = None
"""
PLAIN = """\
t{k}._record = None
t{k}._requires = False
"""
RECORDED = """\
t{k}._record = r{k} = new(Record)
t{k}._requires = True
r{k}.pullback = pullback{k}
r{k}.saved = {saved}
r{k}.sources = {sources}
r{k}.serial = serial()
r{k}.retained = None
"""


def written(plan: Plan, takes: Sequence[Take | None] = ()) -> Callable[..., Any]:
    """The plan without gradients as one function of arrays. takes: what makes an operand of each as it comes."""
    writer, values = plan.computed([f"x{k} = take{k}(x{k})" for k, take in enumerate(takes) if take is not None])
    writer.scope |= {f"take{k}": take for k, take in enumerate(takes)}
    for k, value in enumerate(values):
        writer.lines += (WRAPPED + PLAIN).format(k=k, value=value).splitlines()
    return _finished(plan, writer, plan.parameters)


def recorder(plan: Plan, mask: Mask) -> Callable[..., Any]:
    """The plan that remembers what a backward needs, as one function of arrays and their tensors."""
    found = plan.recorded(mask)
    writer = found.writer
    writer.scope |= {"Record": tape.Record, "serial": tape.serial}
    for k, (value, saved, pullback, sources) in enumerate(
        zip(found.values, found.saved, found.pullbacks, found.sources)
    ):
        owners = "".join([f"o{n}._record or o{n}, " for n in sources])
        text = WRAPPED + (PLAIN if pullback is None else RECORDED)
        writer.lines += text.format(k=k, value=value, saved=saved, sources=f"({owners})").splitlines()
        writer.scope[f"pullback{k}"] = pullback
    owners = ", ".join([f"o{k}" for k in range(len(plan.inputs))])
    return _finished(plan, writer, f"{plan.parameters}, {owners}")


def _finished(plan: Plan, writer: Writer, parameters: str) -> Callable[..., Any]:
    tensors = [f"t{k}" for k in range(len(plan.specs))]
    writer.scope |= {"new": object.__new__, "GradTensor": GradTensor, "pack": plan.pack}
    writer.scope |= {f"spec{k}": spec for k, spec in enumerate(plan.specs)}
    return writer.function(parameters, tensors[0] if plan.pack is None else f"pack([{', '.join(tensors)}])")


def ran(plan: Plan, arrays: Sequence[Any], tensors: Sequence[Any]) -> Any:
    """The result of a plan. `tensors`: whose gradients it passes on, in the order of `arrays`."""
    mask = tuple([type(t) is GradTensor and t._requires for t in tensors])
    if True in mask and tape.recording.get():
        return recording(plan, mask)(*arrays, *tensors)
    if plan.run is None:
        plan.run = written(plan)
    return plan.run(*arrays)


def recording(plan: Plan, mask: Mask) -> Callable[..., Any]:
    """As `recorder`, which is asked once for each choice of inputs."""
    if mask not in plan.recorders:
        plan.recorders[mask] = recorder(plan, mask)
    return plan.recorders[mask]
