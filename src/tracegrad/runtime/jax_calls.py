"""Run a program as calls of JAX: scalars are sent in one array, batches as NumPy arrays; short steps share a call.

The number of operations of a step, estimated from the traced function, determines how the step is called.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.dtypes import DTYPES
from tracegrad.program import Field
from tracegrad.runtime.jax_memory import jax, jnp
from tracegrad.runtime.jax_mesh import Layout
from tracegrad.runtime.process import in_background

MOST_RUNS = 32  # of one call
LONGER_RUNS = 8  # the same, of longer steps: a few of them hide the overhead of their call
WORTH = 0.1  # share of the first compilation's time: after single runs that take so long, their loop is compiled
LOOPED_BYTES = 4 << 20  # of the inputs and outputs of one call: stacking more would cost more than a call
LEAST_RUNS = 4  # a loop over fewer saves nothing
KEPT_BYTES = 1 << 16  # an input that comes again stays on the device if it is larger


@dataclass(frozen=True, slots=True)
class Function:
    """A program as a function of JAX, and what it reads and writes."""

    compute: Callable[..., Any]  # (arrays written, arrays read, inputs by name) -> (new arrays, outputs)
    written: Sequence[str]
    read: Sequence[str]
    inputs: Sequence[Field]
    outputs: Sequence[Field]
    kept: Set[str]  # arrays of `written` that a refused step leaves as they were


class Words:
    """Values of one element each, as 32-bit words of one array: transferring all costs as much as transferring one."""

    def __init__(self, values: Sequence[Field]) -> None:
        self.values = values
        self._last: list[Any] = [None] * len(values)
        self._words = np.zeros(len(values), np.uint32)

    def packed(self, given: Mapping[str, Array]) -> Array:
        """Return the words of these inputs. An array that was passed the last time too is not read again."""
        last, words = self._last, self._words
        for k, v in enumerate(self.values):
            x = given[v.name]
            if x is not last[k]:
                words[k] = _word(x, v)
                last[k] = x
        return words.copy()  # JAX can read it later

    def taken(self, words: Array) -> dict[str, Array]:
        """Return the values that the words hold, by name, under `jax.jit`."""
        found: dict[str, Array] = {}
        for k, v in enumerate(self.values):
            x = words[k] != 0 if v.dtype == "bool" else jax.lax.bitcast_convert_type(words[k], _numpy(v))
            found[v.name] = x.reshape(v.shape)
        return found

    @staticmethod
    def joined(values: Sequence[Array]) -> Array:
        """Join values in the order of their words, under `jax.jit`."""
        flat = [x.reshape(()) for x in values]
        bits = [x.astype(jnp.uint32) if x.dtype == bool else jax.lax.bitcast_convert_type(x, jnp.uint32) for x in flat]
        return jnp.stack(bits) if bits else jnp.zeros(0, jnp.uint32)

    def told(self, words: Array) -> dict[str, Array]:
        """Return the values that words hold, by name, after they were read back to the host."""
        found: dict[str, Array] = {}
        for k, v in enumerate(self.values):
            one = words[k : k + 1]
            found[v.name] = (one != 0 if v.dtype == "bool" else one.view(_numpy(v))).reshape(v.shape)
        return found


def _numpy(v: Field) -> str:
    return DTYPES[v.dtype].numpy


def _word(x: Array, v: Field) -> Any:
    one = np.asarray(x, _numpy(v)).reshape(1)
    return (one if v.dtype == "bool" else one.view(np.uint32))[0]


class Begun(NamedTuple):
    """A call under way: one run, or `n` runs along a new axis 0."""

    words: Array
    large: Sequence[Array]
    n: int | None


class Loop:
    """A loop over several runs. XLA compiles the loop at its first call (`at_once`), or in the background.

    In the second case runs are called one by one until the loop is compiled. Compilation begins when such runs have
    taken WORTH of the time of the first compilation.
    """

    def __init__(self, run_many: Callable[..., Any], at_once: bool) -> None:
        """run_many: (arrays, held, inputs, words, runs) -> (arrays, outputs, words)."""
        self._function, self._at_once = jax.jit(run_many, donate_argnums=0), at_once
        self._compiled: Future[Callable[..., Any]] | None = None
        self._spent = 0.0

    def ready(self) -> Callable[..., Any] | None:
        """Return the loop if it is compiled; else None."""
        if self._at_once:
            return self._function
        return self._compiled.result() if self._compiled is not None and self._compiled.done() else None

    def spend(self, seconds: float, compiling: float, given: Callable[[], Sequence[Any]]) -> None:
        """Add the seconds that single runs took; begin to compile the loop if they took long enough.

        compiling: seconds of the first compilation. given: returns arguments of the loop, for their shapes.
        """
        self._spent += seconds
        if self._compiled is None and self._spent > WORTH * compiling:
            shapes = jax.tree.map(_shaped, given())
            self._compiled = in_background(lambda: self._function.lower(*shapes).compile())

    def close(self) -> None:
        """Wait for a compilation under way, which an interpreter that exits must not interrupt."""
        if self._compiled is not None:
            with contextlib.suppress(Exception):  # no run needs it any more
                self._compiled.result()


def _shaped(x: Array) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


class Calls:
    """The runs of a program. Short steps that are queued together share a call: a loop on the device.

    A GPU's host checks after each iteration of a loop whether there is another one, unless XLA knows their number. So
    full calls have a loop of a known number of iterations there, and few steps are called one by one. Barriers around a
    step keep XLA from fusing it with what surrounds it, so that it gives the same bits in loops and outside of them. On
    a CPU a barrier does not always ensure this, so all steps are in the loop.
    """

    def __init__(
        self, function: Function, platform: str, placed: Mapping[str, Any], layout: Layout | None = None
    ) -> None:
        """placed: on a mesh, the sharding of each array and each input."""
        self.function, self._platform, self._placed, self._layout = function, platform, placed, layout
        self._scalars = Words([v for v in function.inputs if v.size == 1])
        self._batch = [v for v in function.inputs if v.size != 1]
        self._told = Words([v for v in function.outputs if v.size == 1])
        self._large = [k for k, v in enumerate(function.outputs) if v.size != 1]
        self._small = [k for k, v in enumerate(function.outputs) if v.size == 1]
        self._given: dict[str, tuple[Any, Array]] = {}
        how: dict[str, Any] = {}
        if layout is not None:
            whole = layout.whole()
            how = {"out_shardings": ([placed[key] for key in function.written], [whole] * len(self._large), whole)}
        self._once = jax.jit(self._run_one, donate_argnums=0, **how)
        self._loops: list[Loop] = []  # of full calls, and of the others
        self._compiling = 0.0  # seconds of the first compilation
        self._decided = False
        self.most = 1  # runs of one call

    def run(self, arrays: MutableMapping[str, Array], runs: Sequence[Mapping[str, Any]]) -> list[Begun]:
        """Begin the runs; afterwards `arrays` holds the new values."""
        if not self._decided:
            self._decide(arrays)
        begun = list[Begun]()
        for at in range(0, len(runs), self.most):
            begun += self._begin(arrays, runs[at : at + self.most])
        return begun

    def _begin(self, arrays: MutableMapping[str, Array], runs: Sequence[Mapping[str, Any]]) -> list[Begun]:
        """Begin at most `most` runs: by one call if its loop is compiled, else one by one."""
        began, n = time.perf_counter(), len(runs)
        alone = self._platform != "cpu" and n < LEAST_RUNS
        loop = self._loops[n < self.most] if self._loops and not alone else None
        if loop is not None and (ready := loop.ready()) is not None:
            return [self._call(ready, arrays, (*self._stacked(runs), np.int32(n)), n)]
        begun = list[Begun]()
        for run in runs:
            given = [self._put(v, run[v.name]) for v in self._batch], self._words(run)
            begun.append(self._call(self._once, arrays, given, None))
            self._compiling = self._compiling or time.perf_counter() - began
        if loop is not None:
            took = time.perf_counter() - began
            loop.spend(took, self._compiling, lambda: (*self._held(arrays), *self._stacked(runs), np.int32(n)))
        return begun

    def _held(self, arrays: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
        return [arrays[k] for k in self.function.written], [arrays[k] for k in self.function.read]

    def _call(
        self, call: Callable[..., Any], arrays: MutableMapping[str, Array], given: Sequence[Any], n: int | None
    ) -> Begun:
        """Begin a call; afterwards `arrays` holds the new values."""
        new, large, words = call(*self._held(arrays), *given)
        arrays.update(zip(self.function.written, new))
        if self._platform != "cpu":
            for x in (words, *large):
                x.copy_to_host_async()
        return Begun(words, large, n)

    def close(self) -> None:
        """Wait for compilations in the background."""
        for loop in self._loops:
            loop.close()

    def outputs(self, begun: Sequence[Begun]) -> list[dict[str, Array]]:
        """Wait for calls, and return the outputs of each run by name."""
        names = [self.function.outputs[k].name for k in self._large]
        found: list[dict[str, Array]] = []
        for one in begun:
            words, large = np.array(one.words), [np.array(x) for x in one.large]
            if one.n is None:
                found.append({**self._told.told(words), **dict(zip(names, large))})
            else:
                found += [
                    {**self._told.told(words[k]), **{n: x[k] for n, x in zip(names, large)}} for k in range(one.n)
                ]
        return found

    def _run_one(
        self, old: list[Array], held: list[Array], batch: list[Array], words: Array
    ) -> tuple[list[Array], list[Array], Array]:
        inputs = {**dict(zip([v.name for v in self._batch], batch)), **self._scalars.taken(words)}
        new, outputs = self.function.compute(old, held, inputs)
        return new, [outputs[k] for k in self._large], Words.joined([outputs[k] for k in self._small])

    def _run_apart(
        self, old: list[Array], held: list[Array], batch: list[Array], words: Array
    ) -> tuple[list[Array], list[Array], Array]:
        apart = jax.lax.optimization_barrier
        return apart(self._run_one(*apart((old, held, batch, words))))

    def _run_many(self, old: list[Array], held: list[Array], rows: list[Any], words: Array, n: Any) -> Any:
        stacks = [jnp.stack(x) if isinstance(x, list) else x for x in rows]

        def body(k: Array, carried: Any) -> Any:
            arrays, large, small = carried
            arrays, some, told = self._run_apart(arrays, held, [x[k] for x in stacks], words[k])
            return arrays, [all_.at[k].set(x) for all_, x in zip(large, some)], small.at[k].set(told)

        outputs = [self.function.outputs[k] for k in self._large]
        large = [jnp.zeros((self.most, *v.shape), _numpy(v)) for v in outputs]
        small = jnp.zeros((self.most, len(self._small)), jnp.uint32)
        return jax.lax.fori_loop(0, n, body, (old, large, small))

    def _run_all(self, old: list[Array], held: list[Array], rows: list[Any], words: Array, _: Any) -> Any:
        return self._run_many(old, held, rows, words, self.most)

    def _decide(self, arrays: Mapping[str, Array]) -> None:
        """Decide how many runs share a call, by the operations of a step, and make their loops."""
        self._decided, f = True, self.function
        moved = 4 * sum(v.size for v in (*self._batch, *[f.outputs[k] for k in self._large]))
        most = min(MOST_RUNS, LOOPED_BYTES // max(moved, 1))
        if self._layout is not None or not f.written or most < LEAST_RUNS:
            return
        shaped = [jax.ShapeDtypeStruct(v.shape, _numpy(v)) for v in self._batch]
        words = jax.ShapeDtypeStruct((len(self._scalars.values),), jnp.uint32)
        traced = jax.make_jaxpr(self._run_one)(
            [arrays[k] for k in f.written], [arrays[k] for k in f.read], shaped, words
        )
        self.most = min(most, runs_of(traced.jaxpr, self._platform))
        if self.most > 1:
            cpu = self._platform == "cpu"
            some = Loop(self._run_many, cpu)
            self._loops = [some if cpu else Loop(self._run_all, cpu), some]
            self._once = jax.jit(self._run_apart, donate_argnums=0)

    def _stacked(self, runs: Sequence[Mapping[str, Any]]) -> tuple[list[Any], Array]:
        """Return the inputs of some runs, with room for the largest number of runs.

        Each small input is one array with a new axis 0. A large input is a list of arrays. For missing runs the list
        repeats the first run's array, which is transferred once.
        """
        stacks: list[Any] = []
        for v in self._batch:
            rows = [np.asarray(run[v.name], _numpy(v)).reshape(v.shape) for run in runs]
            lacking = self.most - len(rows)
            if rows[0].nbytes >= KEPT_BYTES:
                first = jax.device_put(rows[0]) if lacking else rows[0]
                stacks.append([first, *rows[1:], *[first] * lacking])
                continue
            stack = np.empty((self.most, *v.shape), _numpy(v))
            np.stack(rows, out=stack[: len(rows)])
            stacks.append(stack)
        words = np.zeros((self.most, len(self._scalars.values)), np.uint32)
        for k, run in enumerate(runs):
            words[k] = self._scalars.packed(run)
        return stacks, words

    def _words(self, inputs: Mapping[str, Any]) -> Array:
        words = self._scalars.packed(inputs)
        return words if self._layout is None else self._layout.put(words, self._layout.whole())

    def _put(self, v: Field, x: Any) -> Array:
        """Return an input on the device, or an array to transfer. Large arrays that come again stay on the device."""
        before, there = self._given.get(v.name, (None, None))
        if before is x and there is not None:
            return there
        if self._layout is not None:
            there = self._layout.put_batch(np.array(x, _numpy(v)), v.shape, self._placed[v.name])
            self._given[v.name] = x, there
            return there
        fits = hasattr(x, "dtype") and x.dtype == _numpy(v) and x.shape == v.shape
        made: Array = x if fits else np.asarray(x, _numpy(v)).reshape(v.shape)
        if before is x and made.nbytes > KEPT_BYTES:
            there = jax.device_put(np.array(made))  # a copy, because JAX can share NumPy's memory
        self._given[v.name] = x, there
        return made if there is None else there


# Steps of fewer FLOPs share a loop on the device. On a CPU (two cores of an x86-64 VM), a step of 7e6
# takes 0.08 ms in a loop and 0.12 ms without, one of 5e8 takes 5.9 and 4.2 ms. A call costs a GPU's host 0.2 ms, and
# each kernel of a step outside of a loop some microseconds.
LOOPED = {"cpu": 2e7}
LOOPED_ELSEWHERE, LONGER = 5e10, 1e9
# Ops that XLA's CPU passes to a library, but computes on one thread inside a loop: a small CNN took 361 instead of 27
# ms.
SLOW_IN_LOOPS = {"cpu": {"conv_general_dilated"}}


def runs_of(jaxpr: Any, platform: str) -> int:
    """Return how many runs one call should do at most: 1 if a run is long, or slow inside a loop."""
    work = flops(jaxpr, SLOW_IN_LOOPS.get(platform, set()))
    if work >= LOOPED.get(platform, LOOPED_ELSEWHERE):
        return 1
    return LONGER_RUNS if work >= LONGER else MOST_RUNS


def flops(jaxpr: Any, never: set[str]) -> float:
    """Return roughly the number of arithmetic operations of a function; infinite if it uses a primitive of `never`."""
    total = 0.0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inner = sum(flops(one, never) for one in _inner(eqn.params))
        total += inner * eqn.params.get("length", 1) if inner else 0.0
        size = float(sum(prod(v.aval.shape) for v in eqn.outvars))
        if name in never:
            return inf
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            size *= 2 * prod(eqn.invars[0].aval.shape[k] for k in contracted)
        elif name == "conv_general_dilated":
            kernel = eqn.invars[1].aval.shape
            size *= 2 * prod(kernel) / kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        total += size
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the functions that an equation calls."""
    for value in params.values():
        for one in list(value) if type(value) in (tuple, list) else [value]:
            called = getattr(one, "jaxpr", one)
            if hasattr(called, "eqns"):
                yield called
