"""A session on JAX. A program's graph is one function under `jax.jit`, which reuses the memory of the old state.

`to_jax` returns a program as a pure function of JAX's arrays, for use in other JAX code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.dtypes import DTYPES
from tracegrad.errors import DeviceError, InputError
from tracegrad.hypers import PREFIX
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.optim.guard import PARAMS
from tracegrad.passes.pieces import Piece, in_pieces
from tracegrad.program import Field, Program
from tracegrad.runtime.base import DeviceInfo, Timings, check_open
from tracegrad.runtime.jax_calls import MOST_RUNS, Begun, Calls, Function
from tracegrad.runtime.jax_graph import PRODUCTS, Split, computed_once, for_xla, kept_if_refused, read_stored, run_graph
from tracegrad.runtime.jax_memory import JaxError, Memory, Part, follows, jax, jnp, leaf_keys, run_of_optimizer
from tracegrad.runtime.jax_mesh import Layout
from tracegrad.runtime.jax_shards import held_by

SITES = re.compile(r"  #.*")  # lines of the user's files, in the text of a graph
SAME_PROGRAM = "every process must call tg.compile with the same model, loss, inputs, optimizer, mesh and layout"
SAME_VALUES = "every process must pass the same seed=, and write and load the same values"


class JaxBatch:
    """Runs under way: JAX computes while Python continues."""

    def __init__(self, calls: Calls, begun: Sequence[Begun]) -> None:
        self._calls, self._begun = calls, begun

    def outputs(self) -> list[dict[str, Array]]:
        """Wait for the results. Raises DeviceError if JAX failed."""
        try:
            return self._calls.outputs(self._begun)
        except JaxError as e:
            raise DeviceError(f"JAX: {e}") from e


class JaxSession:
    """Named arrays on JAX's devices, and programs that compute on them."""

    batch_seconds, door = 0.03, None

    def __init__(self, layout: Layout | None = None) -> None:
        """layout: the placement of arrays on a mesh of devices; else all are on the first device."""
        self.device = layout.mesh.devices.flat[0] if layout else jax.devices()[0]
        self._layout = layout
        self._memory = Memory(lambda part, x: layout.put(x, layout.of_part(part)), layout.fetch) if layout else Memory()
        # After a step that was not applied, the steps under way are dropped. Several processes must have begun the same
        # steps.
        self.ahead = 1 if self._several else 2
        self._loaded: dict[int, tuple[Program, Calls]] = {}
        self._next = 0
        self._closed = False

    @property
    def _several(self) -> bool:
        return self._layout is not None and self._layout.processes > 1

    @property
    def info(self) -> DeviceInfo:
        """The device that JAX computes on."""
        kind, platform = self.device.device_kind, self.device.platform
        mesh = f", a mesh of {dict(self._layout.mesh.shape)}" if self._layout else ""
        more = f" in {self._layout.processes} processes" if self._layout and self._several else ""
        return DeviceInfo(
            "jax",
            f"JAX {jax.__version__} on {kind}{mesh}{more}",
            gpu=platform != "cpu",
            sizes="one" if self._layout else "room",  # each device of a mesh has a part of a batch and of its padding
            precisions=tuple(PRODUCTS),
            share=self._layout.share if self._layout else (0, 1),
            process=jax.process_index() if self._several else 0,
        )

    def load(self, program: Program, like: int | None = None) -> int:
        """Allocate new memory. XLA compiles at the first run.

        Raises DeviceError for a program of another process, or too little memory.
        """
        check_open(self._closed)
        if program.graph is None:
            raise DeviceError("the program was not compiled by this process; JAX runs the graph that it came from")
        if self._layout is not None:
            self._layout.check([f.name for f in program.params])
            for f in program.inputs:
                self._layout.of_input(f)
            text = [
                str(program.graph),
                *map(str, (program.inputs, program.params, self._layout.mesh, self._layout.specs)),
            ]
            self._layout.agree("the program", SITES.sub("", "\n".join(text)).encode(), SAME_PROGRAM)
        known = set(self._memory.parts)
        try:
            parts = self._memory.allocate(program)
        except (MemoryError, JaxError) as e:
            self._memory.forget(known)
            raise DeviceError(f"not enough memory for the arrays of the program: {e}") from e
        graph, writes, gradients = graph_of(program, parts)
        self._next += 1
        self._loaded[self._next] = program, self._compiled(program, graph, parts, writes, gradients)
        return self._next

    def _compiled(
        self, program: Program, graph: Graph, parts: Mapping[str, tuple[Part, ...]], writes: Mapping[str, str],
        gradients: Set[int],
    ) -> Calls:  # fmt: skip
        keys = {**leaf_keys(program, parts), **{p.key: p.key for ps in parts.values() for p in ps}}
        written = sorted(set(writes.values()))
        leaves = graph.leaves("param", "frozen", "state")
        read = sorted({keys[t.name] for t in leaves} - set(written))
        n_results = len(graph.results)
        layout = self._layout

        def step(old: list[Array], held: list[Array], inputs: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
            arrays = dict(zip((*written, *read), (*old, *held)))

            def leaf(t: Tensor) -> Array:
                role = t.attrs["role"]
                if role in ("param", "frozen", "state"):
                    return arrays[keys[t.name]]
                return inputs[PREFIX + t.name if role == "hyper" else t.name]

            elements = sum(f.size for f in program.params)
            split = Split(layout, gradients, elements) if layout is not None and layout.fsdp else None
            values = run_graph(graph, leaf, layout, split)
            new = dict(zip(graph.writes, values[n_results:]))
            found = {writes[name]: x for name, x in new.items()}
            return [found[key] for key in written], values[:n_results]

        outputs = [Field(name, 0, 0, t.dtype.name, t.shape) for name, t in graph.results.items()]
        kept = kept_if_refused(graph.writes, HALTED) if HALTED in graph.writes else set[str]()
        function = Function(step, written, read, program.inputs, outputs, {writes[name] for name in kept})
        return Calls(function, self.device.platform, self._placed(program), self._layout)

    def _placed(self, program: Program) -> dict[str, Any]:
        """Return the placement of each array and each input of a program on a mesh."""
        layout = self._layout
        if layout is None:
            return {}
        parts = [p for b in program.buffers for p in self._memory.parts.get(b.name, ())]
        return {p.key: layout.of_part(p) for p in parts} | {f.name: layout.of_input(f) for f in program.inputs}

    def function(self, handle: int, hyper: Mapping[str, Any], step: int) -> tuple[PureStep, State]:
        """Return a program as a pure function, and copies of its arrays. hyper: the inputs outside of the batch."""
        check_open(self._closed)
        program, calls = self._loaded[handle]
        made = PureStep(calls.function, program.inputs, self._placed(program))
        arrays = {key: self._memory.arrays[key] for key in (*calls.function.written, *calls.function.read)}
        return made, first_state(arrays, hyper, step)

    def tensors(self, program: Program, fields: Sequence[Field]) -> dict[str, Array]:
        """Return tensors of a checkpoint where they are, on the devices. The next step deletes them."""
        return {name: held.read(self._memory) for name, held in held_by(program, fields).items()}

    def wanted(self, program: Program, fields: Sequence[Field]) -> dict[str, Any]:
        """Return shape, dtype and placement of the tensors of a checkpoint, as `jax.ShapeDtypeStruct`."""
        found: dict[str, Any] = {}
        for name, held in held_by(program, fields).items():
            if self._layout is None:
                where = jax.sharding.SingleDeviceSharding(self.device)
            else:
                where = self._layout.of_part(held.part) if held.whole else self._layout.whole()
            found[name] = jax.ShapeDtypeStruct(held.shape, DTYPES[held.part.dtype].numpy, sharding=where)
        return found

    def replace(self, program: Program, fields: Sequence[Field], tensors: Mapping[str, Array]) -> None:
        """Replace tensors of a checkpoint by others in the form that `wanted` describes."""
        for name, held in held_by(program, fields).items():
            held.write(self._memory, tensors[name])

    def unload(self, handle: int) -> None:
        """Free what only this program uses."""
        if (gone := self._loaded.pop(handle, None)) is not None:
            gone[1].close()
            names = {b.name for program, _ in self._loaded.values() for b in program.buffers}
            self._memory.forget(names)

    def capacity(self, handle: int) -> int:
        """Return the number of runs that is worth one wait: full calls of JAX; 1 in several processes."""
        most = self._loaded[handle][1].most
        return 1 if self._several else MOST_RUNS // most * most

    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> JaxBatch:
        """Begin the runs. Raises DeviceError if JAX failed."""
        check_open(self._closed)
        _, calls = self._loaded[handle]
        try:
            return JaxBatch(calls, calls.run(self._memory.arrays, inputs))
        except JaxError as e:
            raise DeviceError(f"JAX: {e}") from e

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """Raise DeviceError: XLA does not report which of its kernels belong to which op."""
        raise DeviceError(
            "device='jax' cannot be profiled here: XLA compiles a step as a whole. jax.profiler.trace(folder) around "
            "some steps records what it runs"
        )

    def read(self, name: str) -> Array:
        """Return a copy of a persistent array."""
        check_open(self._closed)
        return self._memory.read(name)

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite part of a persistent array."""
        check_open(self._closed)
        if self._layout is not None:
            self._layout.agree(f"what {name!r} gets", np.ascontiguousarray(values).tobytes(), SAME_VALUES)
        self._memory.write(name, values, offset)

    def interrupt(self) -> None:
        """Do nothing, because XLA's compiler cannot be ended."""

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        self._closed = True
        for _, calls in self._loaded.values():
            calls.close()
        self._loaded.clear()
        self._memory.forget(set())


def graph_of(program: Program, parts: Mapping[str, tuple[Part, ...]]) -> tuple[Graph, dict[str, str], set[int]]:
    """Return a program's graph for XLA, in which flat arrays are split into their parts.

    Also return the key of the array that each write replaces, and the serials of the gradients of single parameters.
    """
    assert program.graph is not None
    flat: dict[str, list[Piece]] = {}
    own = run_of_optimizer(program, parts)
    if own:
        flat = {PARAMS: [p.piece._replace(offset=p.offset - program.first) for p in own]}
        like = [b.name for b in program.buffers if b.name in parts and follows(b, own)]
        flat |= {name: [p.piece for p in parts[name]] for name in like}
    states = {f.name for f in program.model_states}
    graph, gradients = in_pieces(for_xla(program.graph), flat)
    graph = replace(graph, writes=read_stored(graph.writes))
    named = {p.name: p.key for ps in parts.values() for p in ps if p.name in states}
    return graph, {name: named.get(name, name) for name in graph.writes}, gradients


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
        applied = computed_once(told.pop(HALTED).reshape(()) == 0, len(f.written))
        # After a refused step, the host measures the bounds again; here they stay. The program itself keeps the arrays
        # of `f.kept`: selecting them again here would make XLA copy the optimizer's states.
        changed = {key: x if key in f.kept else jnp.where(applied, x, arrays[key]) for key, x in zip(f.written, new)}
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
    """Return a first state with copies of the arrays. The training reuses the memory of its own arrays in each step."""
    return {
        "arrays": {key: jnp.copy(x) for key, x in arrays.items() if key != HALTED},
        "hyper": {n.removeprefix(PREFIX): jnp.array(x) for n, x in hyper.items() if n != f"{PREFIX}step"},
        "step": jnp.array(step, jnp.uint32),
    }
