"""CompiledForward: the result of `tg.compile_forward` and `train.attach`."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import Array
from tracegrad.compiler.build import ForwardSource, check_precision
from tracegrad.compiler.inputtypes import as_read, input_types
from tracegrad.compiler.tracing import check_function, check_signature
from tracegrad.dtypes import InputType
from tracegrad.engine.faces import HasStates
from tracegrad.engine.forward_runs import ForwardPrograms, ForwardRun
from tracegrad.engine.inputs import (
    Given,
    check_inputs,
    check_patches,
    given_or_blank,
    merge,
    sizes_of,
    unchanged,
)
from tracegrad.engine.pending import Pending, resolved
from tracegrad.engine.results import Aborted, Failed, RunResult
from tracegrad.engine.run_program import RunProgram
from tracegrad.engine.stores import OwnParameters, ParameterStore
from tracegrad.errors import AbortedError
from tracegrad.hypers import checked_whole
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.runtime.base import Session, check_precision_of
from tracegrad.sites import SiteInfo
from tracegrad.wrong_calls import helpful

if TYPE_CHECKING:
    from tracegrad.introspection.explain import Explanation
    from tracegrad.introspection.profile import Profile
    from tracegrad.introspection.why import Why

UNSET = (
    "the parameters of this forward were never set: they are random. Write infer.load(path), infer.set_params(record) "
    "or tg.load_forward(path, ...); seed= of tg.compile_forward says that random ones are wanted"
)


class CompiledForward(HasStates):
    """A model and a forward function, compiled for one device. `tg.compile_forward` and `train.attach` make it.

    Each call chooses the sizes that `inputs` gives as None or a name. The first call compiles a program for its own
    sizes. The first call with other sizes compiles a second program, which serves all sizes up to a capacity. A call
    beyond the capacity compiles a larger program. If the device or the forward does not allow that, each choice of
    sizes gets its own program, and `explain` says why. The `max_cached_shapes` programs used last are kept.

    A context manager: leaving the `with` block calls `close`.

    >>> predict = lambda m, x: m(x)    # train: as in the example of tg.compile
    >>> infer = train.attach(forward=predict, inputs={"x": (None, 2)})
    >>> infer.run(x=np.zeros((3, 2))).output.shape
    (3, 1)
    """

    remedies = "forwards"
    called = "write infer.run(x=x).output"

    def __init__(
        self,
        store: ParameterStore,
        forward: Callable[..., Any],
        inputs: Mapping[str, Any],
        max_cached_shapes: int = 8,
        *,
        owner: bool = False,
        precision: str = "f32",
        writes: bool = False,
        training: Any = None,
    ):
        """Compile for `tg.compile_forward` and `attach`. `owner`: closing this closes the store's worker.

        training: the training that this is attached to, kept alive.

        If no call chooses sizes, the program is built here, so that its errors are raised here.
        """
        self.store: ParameterStore = store
        check_precision(precision)
        check_precision_of(store.worker.info, precision)
        types = input_types(inputs)
        check_function(forward, "forward")
        check_signature(forward, types, "forward")
        self.source = ForwardSource(store.model, forward, types, precision, writes)
        self._programs = ForwardPrograms(self.source, store, checked_whole("max_cached_shapes", max_cached_shapes))
        self._owner, self._training = owner, training
        self._lock = threading.RLock()  # never held while waiting for the worker; a signal handler may run this again
        if owner:
            weakref.finalize(self, store.worker.close)  # also at exit, before the interpreter ends
        if not self._programs.free.axes:
            with store.worker.own(self._lock):
                self._programs.of(())

    def run(self, mapping: Any = None, /, *more: Any, patches: Given = None, **inputs: Any) -> Pending[RunResult]:
        """Queue one run of the forward, and return a `Pending`: its `output` waits for the result.

        Pass inputs by keyword, by position in the order of `inputs`, or in one dict. `run` copies them, so you can
        change your arrays at once. `run` itself does not raise if inputs do not fit, if compiling for new sizes fails,
        or if the device fails. The result is then `Failed`, and reading `output` raises its error.

        patches: {"attn.0": array} or {"attn.0": (mask, array)}. In this run, `array` replaces the value at
                 `tg.patch("attn.0", x)`, or only those elements where the bool `mask` is True. Both broadcast to the
                 shape of x, so 0.0 replaces all of x by zeros. At each choice of sizes, the first run with patches
                 compiles a second program, which has memory of its own. All later runs with patches use that program.
                 Runs without patches cost the same as without `tg.patch`.

        >>> infer.run(x=np.zeros((5, 2))).output.shape
        (5, 1)
        """
        worker, programs, free = self.store.worker, self._programs, self._programs.free
        refusal = Aborted(programs.closed) if programs.closed else worker.refusal
        if refusal is not None:
            return resolved(refusal, "run")
        pending: Pending[RunResult] = worker.pending("run")
        waits, self.__dict__["waited"] = self.waited, False
        try:
            if patches is not None and "patches" in free.types:
                inputs, patches = {**inputs, "patches": patches}, None
            sizes, given = sizes_of(free, merge(mapping, inputs, "run", more, free.types), "run")
            with worker.own(self._lock):
                program = programs.of(sizes)
                programs.runs += 1
                # the caller waits, so the arrays need no copy; only another thread could change a checked index
                lent = waits and program.direct is not None and not program.indexed
                copied = unchanged if lent else programs.copies.copied
                arrays = check_inputs(program.inputs, given, "run", copied=copied)
                patched = check_patches(program.built.sites, patches, "run") if patches is not None else {}
                if patched:
                    program = programs.with_patches(program)
                    arrays |= {name: patched.get(name, x) for name, x in program.unpatched.items()}
                arrays |= programs.hyper(program)
        except Exception as e:
            pending.resolve(Failed(e))  # any error of the user's code: `forward` is traced here for new sizes
            return pending
        pending.owner = self
        if isinstance(self.store, OwnParameters) and self.store.unset:
            self.store.unset = False
            warnings.warn(UNSET, RuntimeWarning, stacklevel=2)
        one = ForwardRun(programs, program, arrays, pending)
        if not (waits and one.computed()):
            if lent:
                one.keep()
            worker.enqueue([one], pending)
        return pending

    def graph_for(self, mapping: Any = None, /, *more: Any, **inputs: Any) -> Graph:
        """Return the graph that a run with these inputs executes. Only the inputs' sizes matter.

        inputs: as for `run`.
        Raises: InputError if a size is missing; the errors of `tg.compile_forward` if these sizes have no program yet.

        >>> infer.graph_for(x=x).outputs
        {'output': <f32[4,1] add>}
        """
        free = self._programs.free
        sizes, _ = sizes_of(free, merge(mapping, inputs, "graph_for", more, free.types), "graph_for")
        with self.store.worker.own(self._lock):
            return self._programs.of(sizes).graph

    @helpful
    def explain(self, mapping: Any = None, /, *more: Any, verbose: bool = False, **inputs: Any) -> Explanation:
        """Return a report of a run, to print: its dispatches (launches of kernels) with their costs, and its memory.

        inputs:  as for `run`; without any, the sizes used last.
        verbose: True makes the report also list the kernels, the values and the graph.
        As `CompiledTraining.explain`.

        >>> print(infer.explain(x=x).title)
        forward: 7 nodes, 1 kernels, 1 dispatches; 20 FLOP, 44 B read, 16 B written
        """
        program, _ = self._looked_at(merge(mapping, inputs, "explain", more, self._programs.free.types), "explain")
        from tracegrad.introspection.explain import explained

        return explained(program.built, self.store.worker.info, self._programs.sized.note, verbose)

    @helpful
    def why(self, name_or_node: str | Tensor, mapping: Any = None, /, *more: Any, **inputs: Any) -> Why:
        """Explain, as text to print, why a value of the forward is stored or inlined, and where.

        A stored value is written to memory. An inlined value is computed inside each kernel that uses it.

        name_or_node: "output"; the name of an input, parameter or capture; or a node, such as "%6" in the printed
                      graph.
        inputs:       as for `run`; without any, the sizes used last.
        As `CompiledTraining.why`.

        >>> print(str(infer.why("output", x=x)).splitlines()[1])
          stored: the program delivers it
        """
        program, _ = self._looked_at(merge(mapping, inputs, "why", more, self._programs.free.types), "why")
        from tracegrad.introspection.why import why

        return why(program.built.graph, program.built.program, name_or_node)

    @helpful
    def profile(self, steps: int = 10, mapping: Any = None, *more: Any, **inputs: Any) -> Profile:
        """Run the forward `steps` times, and return the median time of each dispatch, as a table to print.

        inputs: as for `run`; without any, zeros of the sizes used last.
        As `CompiledTraining.profile`.

        >>> len(infer.profile(steps=1, x=x).rows)
        1
        """
        from tracegrad.introspection.profile import profiled

        steps, worker = checked_whole("steps", steps, "profile"), self.store.worker
        program, arrays = self._looked_at(merge(mapping, inputs, "profile", more, self._programs.free.types), "profile")
        arrays |= self._programs.hyper(program)

        def measure(session: Session) -> Profile:
            timings = session.timings(program.load(session), arrays, steps)
            return profiled(program.built, timings, session, worker)

        return worker.call(measure)

    @helpful
    def download_params(self) -> dict[str, Array]:
        """Return the parameters by name, as NumPy arrays, after the steps and runs queued so far.

        >>> sorted(infer.download_params())
        ['W', 'b']
        """
        return self.store.download_params()

    @helpful
    def load(self, path: str | os.PathLike[str]) -> None:
        """Load the parameters and the model's states, such as running means, from a file.

        The optimizer's state stays as it is. A forward of `train.attach` has the training's arrays, so this replaces
        the parameters of the training too.

        path:    a checkpoint that `train.save` wrote, or any safetensors file with the parameters by name.
        Raises:  InputError for a damaged file, and for parameters that are missing, unknown or of another type, which
                 the error names. Nothing has changed then. OSError for a file that cannot be read.
        As load_state_dict of PyTorch.

        >>> train.save("checkpoint.safetensors")
        >>> own = tg.compile_forward(model=nn.Linear(2, 1), forward=predict, inputs={"x": (None, 2)}, seed=0)
        >>> own.load("checkpoint.safetensors")
        """
        from tracegrad import safetensors

        self.store.load(path, safetensors.read(path))

    def redraw(self) -> None:
        """Begin the random numbers anew: the next run draws those of the first one, and so on.

        The seed and the parameters stay. In PyTorch, call torch.manual_seed again.

        >>> infer.redraw()
        """
        self._programs.runs = 0

    @property
    def cached_shapes(self) -> list[int | None | dict[str, int]]:
        """The sizes whose programs are kept, least recently used first: [4, 2] after a run of 4 rows and a run of 2.

        If calls choose several sizes, an entry is a dict such as {"B": 4, "T": 16}. If they choose none, it is None.
        """
        return [as_read(sizes) for sizes in list(self._programs.sized.kept)]  # other threads add some

    @helpful
    def close(self) -> None:
        """Free the forward's programs. Queued runs resolve as `Aborted`. You can close twice.

        The parameters of a forward of `train.attach` belong to the training and stay.

        >>> infer.close()
        >>> infer.run(x=x).result()
        Aborted(reason='closed')
        """
        worker, programs = self.store.worker, self._programs
        if programs.closed or worker.forked:
            return
        programs.closed = "closed"
        with worker.own(self._lock):
            programs.close(unload=not self._owner)
        if self._owner:
            worker.close()

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """The calls of `tg.capture` and `tg.patch` in the forward, in order.

        Each has a `kind`, "capture" or "patch", its `name`, the `type` of its value, and `site`, your line of code.
        If calls choose sizes, the types have the sizes of the last run; before the first run, the sizes are 1.
        """
        with self.store.worker.own(self._lock):
            latest = self._programs.current.latest
        if latest is not None:
            return latest.built.sites
        programs = self._programs
        return programs.at(programs.free.all(1))._replace(writes=True).traced().sites

    @property
    def input_types(self) -> Mapping[str, InputType]:
        """The declared type of each input, by name."""
        return self._programs.free.types

    @property
    def closed(self) -> str:
        """The reason why new runs are `Aborted`, such as "closed"; "" while the forward accepts runs."""
        return self._programs.closed

    def __repr__(self) -> str:
        name = getattr(self.source.forward, "__name__", "forward")
        types = ", ".join(f"{n}: {t}" for n, t in self._programs.free.types.items())
        where = self.closed or self.store.worker.closed or f"on {self.store.worker.info}"
        return f"<CompiledForward {name}({types}) {where}>"

    def _looked_at(self, values: dict[str, Any], what: str) -> tuple[RunProgram, dict[str, Any]]:
        """Return the program for some inputs, and the arrays to run it on: the inputs, or zeros without any."""
        if self.closed:
            raise AbortedError.here(f"this CompiledForward is {self.closed}; use it before close()")
        with self.store.worker.own(self._lock):
            kept = list(self._programs.sized.kept)
            sizes, given = (kept[-1], values) if kept and not values else sizes_of(self._programs.free, values, what)
            program = self._programs.of(sizes)
            return program, given_or_blank(program.inputs, given, what)
