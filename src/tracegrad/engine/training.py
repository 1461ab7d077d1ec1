"""CompiledTraining: what `tg.compile` gives."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from tracegrad import checkpoints, safetensors
from tracegrad.arrays import handed_out
from tracegrad.compiler.build import Built, TracedStep, trace_step
from tracegrad.compiler.inputtypes import declared
from tracegrad.engine import params
from tracegrad.engine.drives import beside
from tracegrad.engine.fit import History, fit
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.inputs import Given, check_inputs, checked_seed, merge, seed_or_new
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.memory import CopyPool
from tracegrad.engine.results import Pending, StepResult, failure, resolved
from tracegrad.engine.steps import StepCall, Stepper, number_of_steps, split_steps
from tracegrad.engine.worker import Worker
from tracegrad.errors import InputError
from tracegrad.export import Contents, export
from tracegrad.files import replace_file
from tracegrad.introspection.inspection import Inspected
from tracegrad.lr import Schedule, as_schedule
from tracegrad.program import Program
from tracegrad.refusals import helpful
from tracegrad.runtime.base import Session
from tracegrad.runtime.storage import from_storage

Array = Any
EMA = "ema"  # the optimizer state of the parameters' averages


class CompiledTraining(Inspected):
    """A model, its loss and its optimizer, compiled for one device; made by `tg.compile`.

    Calls are queued on a worker thread and run in order. `step` and `run_steps` copy their inputs, so that the
    caller's arrays can be reused at once. A context manager; `close` frees the device.
    """

    def __init__(
        self,
        *,
        model: Any,
        loss: Callable[..., Any],
        inputs: Mapping[str, Any],
        optimizer: Any,
        session_factory: Callable[[], Callable[[], Session]],
        seed: int | None = None,
        keep_grads: bool = False,
        precision: str = "f32",
    ):
        """For `tg.compile`. Traces first; then the worker's thread opens the device, while this one compiles."""
        self._loss, self._declared, self._keep_grads, self._precision = loss, declared(inputs), keep_grads, precision
        self._lock, self._memory = threading.Lock(), CopyPool()
        self.model, self._optimizer = model, optimizer
        seed = seed_or_new(seed)
        traced = self._traced(model, optimizer)
        self.worker = Worker(session_factory())
        self._finalizer = weakref.finalize(self, self.worker.close)  # also at exit, before the interpreter goes
        try:
            self._stepper = self._compiled(traced, seed)
            self._knobs = self._fresh_knobs(self._stepper, optimizer)
            self.worker.opened().begin(self._stepper.install)
        except BaseException:
            self.close()
            raise

    def _traced(self, model: Any, optimizer: Any) -> TracedStep:
        return trace_step(model, self._loss, self._declared, optimizer, self._precision)

    def _compiled(self, traced: TracedStep, seed: int) -> Stepper:
        built = traced.compiled()
        self.warnings = built.warnings  # for whoever compiles to say, with the user's line
        first = beside(partial(params.drawn, built.program.params, seed))  # pipelines are compiled meanwhile
        return Stepper(built.program, built.graph, seed, built.sites, first)

    @staticmethod
    def _fresh_knobs(stepper: Stepper, optimizer: Any) -> Knobs:
        return Knobs(Rate(as_schedule(optimizer.lr)), {**stepper.program.meta.get("hyper", {}), **optimizer.hyper})

    # --- running ---

    def step(self, mapping: Given = None, /, *more: Any, **inputs: Any) -> Pending[StepResult]:
        """One training step, queued; inputs by keyword, in one dict, or both.

        Waits while 8 steps are queued, or, where steps are short, as many as may be under way (96, in a tab 128).
        Never raises for what happens while executing: bad inputs, a non-finite loss and device errors come back as
        `Failed`, and change nothing.
        """
        return self._run("step", 1, mapping, inputs, more)

    def run_steps(self, n: int, batch: Given = None, /, *more: Any, **inputs: Any) -> Pending[StepResult]:
        """`n` steps in one call: inputs with a leading axis of length `n` are split, others used for every step.

        The result is that of the last step, with `losses`, a float32 array of length `n`. If a step fails, those
        before it were applied, those after it do not run, and the result is `Failed`.
        """
        return self._run("run_steps", n, batch, inputs, more)

    def _run(self, what: str, n: int, mapping: Given, inputs: dict[str, Any], more: tuple[Any, ...]) -> Pending[Any]:
        if (refusal := self.worker.refusal) is not None:
            return resolved(refusal, what)
        stepper, knobs = self._stepper, self._knobs
        pending: Pending[StepResult] = Pending(what, self.worker.ident)
        try:
            lead = None if what == "step" else (n := number_of_steps(n))
            given = merge(mapping, inputs, what, more, self._declared)
            arrays = check_inputs(stepper.inputs, given, what, lead, self._memory.copied)
            call = StepCall(stepper, knobs, pending, n, what)
            runs = [call.run(0, arrays)] if lead is None else call.runs(split_steps(arrays, stepper.inputs, n))
        except Exception as e:
            pending.resolve(failure(e, what))
            return pending
        self.worker.enqueue(runs, pending)
        return pending

    @helpful
    def fit(
        self,
        data: Iterable[Any],
        *,
        epochs: int = 1,
        steps: int | None = None,
        progress: bool = True,
        evaluate: Callable[[CompiledTraining], Mapping[str, float]] | None = None,
        every: int | None = None,
        callbacks: Iterable[Callable[[Any], object]] = (),
        log: Any = None,
    ) -> History:
        """Train on `data`, and give the history: `h.loss`, and `h.metrics` of the evaluations.

        data:       an iterable of dicts by input name, or of tuples in the order of `inputs`; a torch DataLoader too.
        epochs:     passes over the data. More than one needs an iterable that can be iterated again.
        steps:      run exactly so many steps instead, over as many passes as they take.
        progress:   a bar on stderr; a line every few seconds where that is no terminal and no notebook.
        evaluate:   function of the training that returns metrics by name, called every `every` steps and at the end,
                    or, without `every`, after each epoch.
        callbacks:  functions of a `FitState`, called after each step in order; `state.stop = True` ends the loop.
        log:        path of a file that gets one line of JSON a step and evaluation, or a function of such a dict.
        Raises:     the error of the first step that fails, AbortedError if the training is closed meanwhile, and what
                    `data`, `evaluate` and callbacks raise. The steps that were queued behind it are applied.
        """
        return fit(self, data, epochs=epochs, steps=steps, progress=progress, evaluate=evaluate, every=every,
                   callbacks=callbacks, log=log)  # fmt: skip

    # --- parameters and state ---

    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite parameters by name, after the steps queued so far. Names missing in `record` keep their values.

        strict:  every parameter must be there.
        Raises:  InputError naming every unknown name, wrong shape, wrong dtype and value that is not finite (a
                 parameter that is not trained may be infinite), before anything is written.
        """
        stepper = self._stepper
        arrays = params.check_record(stepper.program.params, record, strict, "upload_params")

        def write(session: Session) -> None:
            params.upload(session, stepper.program, stepper.program.params, arrays)
            if stepper.counter == 0:
                stepper.clear(session)  # averages begin at the parameters that the first step finds

        self._call(write, stepper)

    def download_params(self, *, ema: bool = False) -> dict[str, Array]:
        """Parameters by name, after the steps queued so far.

        ema:     the running averages that an optimizer made with `ema=` keeps, instead of the values of the last step.
        Raises:  InputError for `ema` where the optimizer keeps none.
        """
        stepper = self._stepper
        if ema and EMA not in {f.name for f in stepper.program.states}:
            raise InputError.here("download_params: no averages are kept; make the optimizer with ema=0.999, or so")

        def read(session: Session) -> dict[str, Array]:
            now = params.download(session, stepper.program, stepper.program.params)
            if ema:  # in the layout of the trainable parameters
                flat = session.read(EMA)
                now |= {f.name: params.from_storage(flat, f) for f in stepper.program.params if f.spec["trainable"]}
            return now

        return {name: handed_out(x) for name, x in self._call(read, stepper).items()}

    def download_grads(self) -> dict[str, Array]:
        """Gradients of the last step by parameter name; needs `keep_grads=True` at compile, else InputError."""
        stepper = self._stepper
        if not self._keep_grads:
            raise InputError.here("download_grads: compile with keep_grads=True to keep the gradients")
        kept = next(b.name for b in stepper.program.buffers if b.role == "grad")
        trainable = [f for f in stepper.program.params if f.spec.get("trainable", True)]

        def read(session: Session) -> dict[str, Array]:
            flat = session.read(kept)
            return {f.name: handed_out(from_storage(flat, f)) for f in trainable}

        return self._call(read, stepper)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file: parameters, optimizer state, step, seed, schedule. The folder must exist.

        The file is replaced as a whole: a crash, a kill or a full disk leaves the old one. A symbolic link is followed,
        permissions stay, and a device or pipe gets the bytes.

        Raises: OSError naming the file; the training goes on.
        """
        replace_file(path, checkpoints.parts(self._state()))

    def _state(self) -> checkpoints.Checkpoint:
        """The training after the steps queued so far."""
        stepper, knobs, spec = self._stepper, self._knobs, self._optimizer.spec()
        return self._call(lambda session: checkpoints.take(session, stepper, knobs, spec), stepper)

    def digest(self, losses: Sequence[float] = ()) -> str:
        """SHA-256 of the training after the steps queued so far, 64 hexadecimal digits.

        losses:   losses to include, such as `history.loss` of `fit`; rounded to f32.
        Returns:  a hash of these, the parameters, optimizer state, step, seed, schedule and hyperparameters. Equal
                  hashes mean equal bits. A seed gives the same hash on a device in every process, and after a resume.
        """
        return checkpoints.digest(self._state(), losses)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Resume from a file that `save` wrote, bit-exact on the same device.

        Loading executes nothing of the file. Tensors and metadata are checked before anything changes.

        Raises: InputError, with nothing changed, if it is no checkpoint, is damaged, or belongs to another model or
                optimizer.
        """
        stepper = self._stepper
        file = safetensors.read(path)
        optimizer, built = self._with_on(checkpoints.hyper_of(file))  # the file's may have what is off here
        state, knobs = checkpoints.read(path, file, built.program if built else stepper.program, self._knobs)

        def restore(session: Session) -> None:
            if built is not None:
                stepper.take_over(session, built)
            checkpoints.restore(session, stepper, state)
            self._knobs, self._optimizer = knobs, optimizer  # here: an interrupt must not part them from the rest

        self._call(restore, stepper)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        forwards: Mapping[str, CompiledForward] | None = None,
        single_file: bool = False,
        title: str | None = None,
        data: Mapping[str, Any] | None = None,
        labels: Sequence[str] | None = None,
        vocabulary: Sequence[str] | None = None,
    ) -> Path:
        """Write a static site that goes on with this training in a browser, without Python; its HTML file.

        forwards:     attached forwards by name, each shown by a demo suited to its inputs.
        single_file:  one HTML file that works by double-click, instead of a folder.
        data:         for each input, examples along a leading axis, from which the page draws its batches. Without
                      them the page shows the forwards and cannot train.
        labels:       names of the classes that an image forward tells apart.
        vocabulary:   the text of each token, for a forward that continues texts.
        Raises:       InputError for data that do not fit, and for a schedule that is not one of `tracegrad.lr`.
        """
        stepper, knobs, spec = self._stepper, self._knobs, self._optimizer.spec()
        state = self._call(lambda session: checkpoints.take(session, stepper, knobs, spec), stepper)
        return export(state, self, path, Contents(title, forwards, data, labels, vocabulary), single_file=single_file)

    def reset(self, params: bool = True, optimizer: bool = True) -> None:
        """Start over from the same seed.

        params:     draw the parameters again.
        optimizer:  clear its state, the step counter and with it the random stream; schedules begin again.
        """
        stepper, knobs = self._stepper, self._knobs

        def restart(session: Session) -> None:
            if params:
                stepper.draw(session)
            if optimizer:
                stepper.clear(session)
                knobs.rate.start = None

        self._call(restart, stepper)

    def set_lr(self, lr: Schedule | float) -> None:
        """Change the learning rate from the next `step` on. A schedule without an explicit start begins there."""
        with self.worker.own(self._lock):
            self._knobs = self._knobs.with_rate(lr)

    def set(self, **hyper: Any) -> None:
        """Change hyperparameters from the next `step` on: `weight_decay`, `beta1`, ... and those of `tg.hyper`.

        Nothing is compiled, but for a weight_decay, momentum or clip_grad_norm that was off so far: `set` then compiles
        the step once more, and training goes on from where it stands. `clip_grad_norm=None` switches it off.
        Raises: InputError for unknown names and values out of range; nothing is changed then.
        """
        with self.worker.own(self._lock):
            stepper = self._stepper
            knobs, switched = self._knobs.changed(hyper, stepper.program, self._optimizer.off)
            optimizer, built = self._with_on(switched)
            if built is not None:
                self._call(partial(stepper.take_over, built=built), stepper)
            self._knobs, self._optimizer = knobs, optimizer

    def _with_on(self, values: Mapping[str, float]) -> tuple[Any, Built | None]:
        """The optimizer with those of `values` that it lacks, and its program; None if it lacks none."""
        optimizer = self._optimizer.switched_on(values)
        return optimizer, None if optimizer is self._optimizer else self._traced(self.model, optimizer).compiled()

    def replace_model(self, model: Any, *, seed: int | None = None, optimizer: Any = None) -> None:
        """Train another model on the same handle; it starts at step 0, with parameters from `seed` or the same seed.

        What is in flight resolves as Aborted; attached forwards compile again on their next run. Learning rate and
        hyperparameters stay as set, unless an optimizer is given.
        Raises: what compiling raises; the old model and all its state then stay.
        """
        old = self._stepper
        seed = old.seed if seed is None else checked_seed(seed)
        new = self._compiled(self._traced(model, optimizer or self._optimizer), seed)
        for text in self.warnings:
            warnings.warn(text, stacklevel=2)
        fresh = self._fresh_knobs(new, optimizer or self._optimizer)
        if optimizer is None:
            fresh = Knobs(Rate(self._knobs.rate.schedule), {**fresh.values, **self._knobs.values})

        def load(session: Session) -> None:
            new.install(session)
            self._stepper.replaced = "displaced by replace_model"  # not `old`: another call may have replaced that
            self._stepper, self._knobs, self.model = new, fresh, model
            self._optimizer = optimizer or self._optimizer

        self.worker.check_open("CompiledTraining")
        self.worker.swap(load, "displaced by replace_model")

    @helpful
    def attach(
        self,
        *,
        forward: Callable[..., Any],
        inputs: Mapping[str, Any],
        max_cached_shapes: int = 8,
        precision: str = "f32",
    ) -> CompiledForward:
        """A forward that shares this training's parameters: a run sees every step queued before it.

        forward, inputs: as for `tg.compile_forward`. It is compiled by the first run, and once for each size of `None`.
        max_cached_shapes: programs kept at a time, the latest used; one more size drops the oldest.
        precision: as for `tg.compile_forward`; the training's own is no default.
        Raises: InputError for inputs that are no types or that `forward` does not take. Its first run raises the rest.
        """
        return CompiledForward(self, forward, inputs, max_cached_shapes, precision=precision)

    def close(self) -> None:
        """Free the device; what is in flight resolves as Aborted. Closing twice is fine."""
        self._finalizer()

    # --- for forwards attached to it ---

    @property
    def version(self) -> Stepper:
        """Changes with `replace_model`."""
        return self._stepper

    @property
    def layout(self) -> Program | None:
        """The program whose parameters attached forwards share."""
        return self._stepper.program

    @property
    def knobs(self) -> Knobs:
        """The hot values of the next step."""
        return self._knobs

    def loaded(self, session: Session, program: Program) -> None:
        """An attached forward was loaded: it shares the buffers, so there is nothing to write."""

    def unloaded(self) -> None:
        """An attached forward was unloaded: the training's program keeps the buffers."""

    def __repr__(self) -> str:
        state = self.worker.closed if self.worker.closed is not None else f"on {self.device}"
        program, step = self._stepper.program, self._stepper.counter
        size = f"{sum(f.size for f in program.params)} parameters, {len(program.dispatches)} dispatches a step"
        return f"<CompiledTraining {state}; {size}, step {step}, seed {self.seed}>"

    def __enter__(self) -> CompiledTraining:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
