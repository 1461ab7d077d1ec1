"""A program as a pure function of JAX's arrays, for use in other JAX code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracegrad.dtypes import DTYPES
from tracegrad.errors import InputError
from tracegrad.hypers import PREFIX
from tracegrad.program import Field
from tracegrad.runtime.jax_calls import Function
from tracegrad.runtime.jax_memory import jax, jnp

Array = Any
State = dict[str, Any]
HALTED = "halted"  # the array and the output that report a refused step; other JAX code sees them as `applied`


@dataclass(frozen=True, eq=False)  # compared by identity, like a function, because JAX keeps weak references to it
class PureStep:
    """`step(state, inputs) -> (state, outputs)`; see `CompiledTraining.to_jax`."""

    function: Function
    fields: Sequence[Field]  # all inputs of the program
    shardings: Mapping[str, Any]  # on a mesh, of arrays and of inputs

    def __call__(self, state: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[State, dict[str, Array]]:
        """Return the new state and the step's outputs. Raise InputError for inputs that do not fit."""
        arrays = {**state["arrays"], HALTED: jnp.zeros(1, jnp.int32)}
        hyper = {PREFIX + name: x for name, x in state["hyper"].items()} | {f"{PREFIX}step": state["step"] + 1}
        given = self._checked(inputs)
        f = self.function
        new, outputs = f.compute([arrays[k] for k in f.written], [arrays[k] for k in f.read], hyper | given)
        told = dict(zip([v.name for v in f.outputs], outputs))
        applied = told.pop(HALTED).reshape(()) == 0
        # the program itself keeps the old parameters of a refused step, but not the bounds, which the host measures
        # again
        changed = {key: jnp.where(applied, x, arrays[key]) for key, x in zip(f.written, new)}
        after = arrays | {key: self._placed(key, x) for key, x in changed.items()}
        del after[HALTED]
        number = state["step"] + applied.astype(jnp.uint32)
        return {"arrays": after, "hyper": dict(state["hyper"]), "step": number}, {**told, "applied": applied}

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        fields = {f.name: f for f in self.fields if not f.name.startswith(PREFIX)}
        if inputs.keys() != fields.keys():
            raise InputError(f"the step takes a dict of {', '.join(fields)}; got {', '.join(inputs) or 'none'}")
        given = {name: jnp.asarray(x, DTYPES[fields[name].dtype].numpy) for name, x in inputs.items()}
        for name, x in given.items():
            if x.shape != fields[name].shape:
                raise InputError(f"input {name!r} has shape {x.shape}; the step takes {fields[name].type}")
        return {name: self._placed(name, x) for name, x in given.items()}

    def _placed(self, key: str, x: Array) -> Array:
        where = self.shardings.get(key)
        return x if where is None else jax.lax.with_sharding_constraint(x, where)


def first_state(arrays: Mapping[str, Array], hyper: Mapping[str, Any], step: int) -> State:
    """Return copies: the training continues with its own arrays, whose memory each step passes to the next."""
    return {
        "arrays": {key: jnp.copy(x) for key, x in arrays.items() if key != HALTED},
        "hyper": {n.removeprefix(PREFIX): jnp.array(x) for n, x in hyper.items() if n != f"{PREFIX}step"},
        "step": jnp.array(step, jnp.uint32),
    }
