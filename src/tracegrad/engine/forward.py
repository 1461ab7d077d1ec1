"""CompiledForward: what `tg.compile_forward` and `train.attach` give."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

from tracegrad.compiler.build import Built, build_forward, check_precision, trace_sites
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.inputtypes import input_types
from tracegrad.compiler.signatures import check_function, check_signature
from tracegrad.dtypes import InputType
from tracegrad.engine import indexcheck, params, reference
from tracegrad.engine.inputs import Given, as_array, blank, check_inputs, merge
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.own import Host
from tracegrad.engine.patches import check_patches
from tracegrad.engine.results import Aborted, CompletedRun, Failed, Pending, RunResult, failure, output_of, resolved
from tracegrad.engine.steps import by_role, captures_of
from tracegrad.errors import AbortedError, DeviceError, InputError
from tracegrad.hypers import PREFIX, whole
from tracegrad.introspection.explain import Explanation, explained
from tracegrad.introspection.profile import Profile, checked_steps, make_profile
from tracegrad.introspection.why import Why
from tracegrad.ir import Graph, Tensor
from tracegrad.program import Field
from tracegrad.refusals import Helped
from tracegrad.runtime.base import Session
from tracegrad.sites import PATCH, SiteInfo

Array = Any


@dataclass(slots=True, eq=False)
class _Entry:
    """The program of one size."""

    built: Built
    version: object
    handle: int | None = None  # the worker's own: loaded at the first run
    at_once: int = 1  # runs worth one batch
    inputs: tuple[Field, ...] = ()
    hyper: tuple[Field, ...] = ()
    patched: _Entry | None = None  # the program with its patch sites, made at the first run that patches
    unpatched: dict[str, Any] = field(default_factory=dict[str, Any])  # of a `patched`: inputs of sites left alone

    def __post_init__(self) -> None:
        fields = self.built.program.inputs
        self.hyper = tuple(f for f in fields if f.name.startswith(PREFIX))
        self.unpatched = blank([f for f in fields if f.name.startswith(PATCH)])
        self.inputs = tuple(f for f in fields if not f.name.startswith((PREFIX, PATCH)))

    def load(self, session: Session, host: Host) -> int:
        """The handle of the program, loaded now if it was not yet. On the worker's thread."""
        if self.handle is None:
            with blamed_lines(self.built.graph, self.built.program):
                self.handle = session.load(self.built.program)
            host.loaded(session, self.built.program)
        return self.handle


class CompiledForward(Helped):
    """A forward compiled for one device; made by `tg.compile_forward` and `train.attach`. A context manager.

    A None dimension of `inputs` is chosen by each call: one program is compiled and kept per size, and the one that was
    least recently used is dropped when there are more than `max_cached_shapes`.
    """

    called = "write infer.run(x=x).output"

    def __init__(
        self,
        host: Host,
        forward: Callable[..., Any],
        inputs: Mapping[str, Any],
        max_cached_shapes: int = 8,
        *,
        owner: bool = False,
        precision: str = "f32",
    ):
        """For `tg.compile_forward` and `attach`. `owner`: closing this closes the host's worker.

        Without None dimensions the program is built here, so that its errors are raised here.
        """
        check_precision(precision)
        self._host, self._forward, self._owner, self.precision = host, forward, owner, precision
        self._types = input_types(inputs)
        check_function(forward, "forward")
        check_signature(forward, inputs, "forward")
        self._free = [(n, d) for n, t in self._types.items() for d, size in enumerate(t.shape) if size is None]
        self._capacity = whole("max_cached_shapes", max_cached_shapes)
        self._lock = threading.Lock()  # never held while waiting for the worker
        self._entries: OrderedDict[int | None, _Entry] = OrderedDict()
        self._closed = ""
        self._runs = 0
        if owner:
            weakref.finalize(self, host.worker.close)  # also at exit, before the interpreter goes
        if not self._free:
            with self._host.worker.own(self._lock):
                self._entry(None)

    def run(self, mapping: Given = None, /, *more: Any, patches: Given = None, **inputs: Any) -> Pending[RunResult]:
        """One forward, queued; inputs by keyword, in one dict, or both.

        patches: {"attn.0": array} or {"attn.0": (mask, array)}: values that stand in for those of `tg.patch` sites, in
                 this run only. Both broadcast to the site's shape, so that 0.0 blanks a site; where the mask, of bool,
                 is False the site keeps its own values. The first run with patches (of each size of a None dimension)
                 compiles a second program, once, which takes as long as the first did and has memory of its own; any
                 later choice of sites and values uses it. Runs without patches execute a program without patch
                 sites, so that sites cost them nothing.

        Never raises for what happens while executing: bad inputs, and what compiling for a new size raises, come back
        as `Failed`. Inputs are copied: the caller's arrays can be reused at once.
        """
        worker = self._host.worker
        refusal = Aborted(self._closed) if self._closed else worker.refusal
        if refusal is not None:
            return resolved(refusal, "run")
        pending: Pending[RunResult] = Pending("run", worker.ident)
        try:
            if patches is not None and "patches" in self._types:
                inputs, patches = {**inputs, "patches": patches}, None
            given = self._given(merge(mapping, inputs, "run", more, self._types))
            with self._host.worker.own(self._lock):
                entry = self._entry(self._size(given))
                self._runs += 1
                arrays = check_inputs(entry.inputs, given, "run")
                patched = check_patches(entry.built.sites, patches, "run") if patches is not None else {}
                if patched:
                    entry = self._patched(entry)
                    arrays |= {name: patched.get(name, x) for name, x in entry.unpatched.items()}
                arrays |= self._hyper(entry)
        except Exception as e:
            pending.resolve(failure(e, "run"))
            return pending
        worker.enqueue([ForwardRun(self, entry, arrays, pending)], pending)
        return pending

    def graph_for(self, mapping: Given = None, /, **inputs: Any) -> Graph:
        """The graph that a run with these inputs executes; compiled if it was not yet. Raises what compiling raises."""
        with self._host.worker.own(self._lock):
            return self._entry(self._size(self._given(merge(mapping, inputs, "graph_for")))).built.graph

    def explain(self, mapping: Given = None, /, **inputs: Any) -> Explanation:
        """As `CompiledTraining.explain`, of the program for these inputs; without any, for the size used last."""
        built = self._looked_at(merge(mapping, inputs, "explain"), "explain")[0].built
        return explained(built.graph, built.program, self._host.worker.info)

    def why(self, name_or_node: str | Tensor, mapping: Given = None, /, **inputs: Any) -> Why:
        """As `CompiledTraining.why`, of the program for these inputs; without any, for the size used last."""
        return self.explain(mapping, **inputs).why(name_or_node)

    def profile(self, steps: int = 10, mapping: Given = None, **inputs: Any) -> Profile:
        """As `CompiledTraining.profile`, of a run with these inputs; without any, zeros of the size used last."""
        steps = checked_steps(steps)
        entry, arrays = self._looked_at(merge(mapping, inputs, "profile"), "profile")
        host, built = self._host, entry.built
        arrays |= self._hyper(entry)

        def measure(session: Session) -> Profile:
            timings = session.timings(entry.load(session, host), arrays, steps)
            return make_profile(built.graph, built.program, timings, session.info, host.worker.limits())

        return host.worker.call(measure)

    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite parameters by name, as `CompiledTraining.upload_params`; of an attached forward, the training's."""
        self._host.upload_params(record, strict)

    def download_params(self) -> dict[str, Array]:
        """Parameters by name."""
        return self._host.download_params()

    @property
    def param_names(self) -> list[str]:
        """Names of the parameters, in declaration order."""
        return self._host.param_names

    @property
    def cached_shapes(self) -> list[int | None]:
        """Sizes of the None dimension whose programs are kept, least recently used first."""
        return list(self._entries)

    @property
    def forward(self) -> Callable[..., Any]:
        """The user's function."""
        return self._forward

    @property
    def input_types(self) -> dict[str, InputType]:
        """The declared inputs."""
        return dict(self._types)

    def close(self) -> None:
        """Free its programs; what is in flight resolves as Aborted. Closing twice is fine.

        The parameters of an attached forward belong to its training and stay.
        """
        if self._closed or self._host.worker.forked:
            return
        self._closed = "closed"
        with self._host.worker.own(self._lock):
            dropped = list(self._entries.values())
            self._entries.clear()
        if self._owner:
            self._host.worker.close()
        else:
            self._unload(dropped)

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """Sites of `tg.capture` and `tg.patch`, in order; each has `kind name type site`, site being your line.

        With a None dimension, types are those of the size used last; before the first run, of size 1.
        """
        with self._host.worker.own(self._lock):
            known = [e for e in self._entries.values() if e.version is self._host.version]
        if known:
            return known[-1].built.sites
        return trace_sites(self._host.model, self._forward, self._concrete(1))

    @property
    def closed(self) -> str:
        """Why no run is done any more; empty while they are."""
        return self._closed

    @property
    def host(self) -> Host:
        """Who has the parameters."""
        return self._host

    def __repr__(self) -> str:
        name = getattr(self._forward, "__name__", "forward")
        types = ", ".join(f"{n}: {t}" for n, t in self._types.items())
        where = self._closed or self._host.worker.closed or f"on {self._host.worker.info}"
        return f"<CompiledForward {name}({types}) {where}>"

    def __enter__(self) -> CompiledForward:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _looked_at(self, values: dict[str, Any], what: str) -> tuple[_Entry, dict[str, Any]]:
        """The program for some inputs, and what to run it on: these, or zeros where there are none."""
        if self._closed:
            raise AbortedError.here(f"this CompiledForward is {self._closed}; use it before close()")
        given = self._given(values)
        with self._host.worker.own(self._lock):
            again = self._entries and not values
            entry = self._entry(next(reversed(self._entries)) if again else self._size(given))
            return entry, check_inputs(entry.inputs, given, what) if values else blank(entry.inputs)

    def _given(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values, those whose size matters as arrays."""
        named = {name for name, _ in self._free}
        return {n: _array_or_same(v, self._types[n].shape) if n in named else v for n, v in values.items()}

    def _size(self, given: Mapping[str, Any]) -> int | None:
        """What None stands for in this call. InputError naming every problem if the inputs do not agree on it."""
        if not self._free:
            return None
        sizes = {
            (n, d): given[n].shape[d]
            for n, d in self._free
            if n in given and len(getattr(given[n], "shape", ())) == len(self._types[n].shape)
        }
        if len(sizes) == len(self._free) and len(set(sizes.values())) == 1 and all(sizes.values()):
            return next(iter(sizes.values()))
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{n} axis {d} is {size}" for (n, d), size in sizes.items())
            raise InputError.here(f"run: all None dimensions of a call must agree, give equal sizes: {shown}")
        if 0 in sizes.values():
            raise InputError.here("run: an input is empty: a None dimension must be at least 1")
        fields = [Field(n, 0, 0, t.dtype.name, cast("tuple[int, ...]", t.shape)) for n, t in self._types.items()]
        check_inputs(fields, given, "run")
        raise AssertionError("an input without the declared rank passed the check")

    def _entry(self, size: int | None) -> _Entry:
        """The program for a size, built if need be; others are dropped for it. Called with the lock held."""
        version = self._host.version
        dropped: list[_Entry] = []
        if any(e.version is not version for e in self._entries.values()):
            self._entries.clear()  # their session is gone, and their programs with it
        entry = self._entries.pop(size, None)
        if entry is None:
            entry = self._made(size, version)
            while len(self._entries) >= self._capacity:
                dropped.append(self._entries.popitem(last=False)[1])
        self._entries[size] = entry
        self._unload(dropped)
        return entry

    def _made(self, size: int | None, version: object, patching: bool = False) -> _Entry:
        types, host = self._concrete(size), self._host
        entry = _Entry(build_forward(host.model, self._forward, types, host.layout, patching, self.precision), version)
        if "patches" in types and any(s.kind == "patch" for s in entry.built.sites):
            raise InputError.here("an input of a forward with patch sites cannot be named 'patches': rename it")
        return entry

    def _patched(self, entry: _Entry) -> _Entry:
        """The program with patch sites that goes with `entry`. Called with the lock held."""
        if entry.patched is None:
            entry.patched = self._made(next(n for n, e in self._entries.items() if e is entry), entry.version, True)
        return entry.patched

    def _concrete(self, size: int | None) -> dict[str, InputType]:
        """The inputs, None dimensions being `size`."""
        return {n: InputType(t.dtype, tuple(size if d is None else d for d in t.shape)) for n, t in self._types.items()}

    def _hyper(self, entry: _Entry) -> dict[str, Any]:
        """Hot values of a forward: those of the training, else the defaults; each run has random numbers of its own."""
        if not entry.hyper:
            return {}
        knobs = self._host.knobs
        values = {**entry.built.program.meta.get("hyper", {}), **knobs.values}
        # A rate of its own: only training steps decide where a schedule begins.
        return Knobs(Rate(knobs.rate.schedule), values).upload(entry.hyper, self._runs, self._host.seed)

    def _unload(self, entries: Sequence[_Entry]) -> None:
        """Free the programs, after the runs queued so far."""

        def unload(session: Session) -> None:
            for entry in [e for pair in entries for e in (pair, pair.patched) if e is not None]:
                if entry.handle is not None and entry.version is self._host.version:
                    session.unload(entry.handle)
                    self._host.unloaded()
                entry.handle = None

        if entries:
            self._host.worker.post(unload)


@dataclass(slots=True, eq=False)
class ForwardRun:
    """One forward, as the worker runs it; `batches.Run` has the meaning of each method."""

    owner: CompiledForward
    of: _Entry
    arrays: Mapping[str, Any]
    pending: Pending[RunResult]
    checked: reference.Checked | None = None  # under TRACEGRAD_CHECK
    differs: str = ""  # from the reference, and how

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """Load the program if it was not yet."""
        if self._displaced():
            return None
        handle = self.of.load(session, self.owner.host)
        if indexcheck.enabled():
            self.checked = self._checked(session)
        return handle, self.arrays

    def _checked(self, session: Session) -> reference.Checked:
        """What the run is compared by; InputError for indices out of range."""
        graph, program = self.of.built.graph, self.of.built.program
        values = params.download(session, program, program.params)
        given = {n: x for n, x in self.arrays.items() if not n.startswith(PREFIX)}
        hyper = {n: x for n, x in self.arrays.items() if n.startswith(PREFIX)}
        env = by_role("param", values) | by_role("frozen", values) | by_role("input", given) | by_role("patch", given)
        indexcheck.check_indices(graph, env | hyper)
        return reference.Checked(graph, program, self.arrays, env | hyper, {})

    def finish(self, session: Session, outputs: dict[str, Any]) -> bool:
        """Resolve the call."""
        self.differs = self.checked.differs(session, outputs) if self.checked is not None else ""
        if self.differs:
            return False
        if not self._displaced():
            self.pending.resolve(CompletedRun(captures_of(outputs), output_of(outputs, self.of.built.structure)))
        return True

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """The device computed something else than the reference. A forward changes nothing."""
        assert self.checked is not None
        found = self.checked.blame(session)
        self.pending.resolve(Failed(DeviceError(f"run: {self.differs} (TRACEGRAD_CHECK)\n{found}")))

    def fail(self, error: BaseException) -> None:
        """The run raised."""
        self.pending.resolve(failure(error, "run"))

    def _displaced(self) -> bool:
        if self.owner.closed:
            self.pending.resolve(Aborted(self.owner.closed))
        elif self.of.version is not self.owner.host.version:
            self.pending.resolve(Aborted("displaced by replace_model"))
        return self.pending.done()


def _array_or_same(value: Any, shape: tuple[int | None, ...]) -> Any:
    try:
        return as_array(value, [shape])
    except InputError:
        return value  # the check names it, together with every other problem
