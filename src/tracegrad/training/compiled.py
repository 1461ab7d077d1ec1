"""CompiledTraining: what `tg.compile` gives. A model, its step and its parameters; the rest are functions of these."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracegrad import checkpoints
from tracegrad.compiler.build import StepSource
from tracegrad.dtypes import InputType
from tracegrad.engine.copy_pool import CopyPool
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.inputs import Given, check_inputs, checked_seed, given_or_blank, merge, seed_or_new
from tracegrad.engine.results import Pending, StepResult, failure, resolved
from tracegrad.engine.snapshots import take, take_all
from tracegrad.engine.step_programs import StepProgram
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.steps import StepCall, number_of_steps, split_steps
from tracegrad.engine.stores import HasStates, TrainedParameters
from tracegrad.engine.worker import Worker
from tracegrad.errors import InputError
from tracegrad.export import Contents, export, exportable
from tracegrad.habits import TRAININGS
from tracegrad.hypers import whole
from tracegrad.introspection.explain import Explanation, explained
from tracegrad.introspection.memory import Memory
from tracegrad.introspection.profile import Profile, checked_steps
from tracegrad.introspection.why import Why, why
from tracegrad.ir import Graph, Tensor
from tracegrad.lr import Schedule, starting_at
from tracegrad.patterns import Selection
from tracegrad.program import KernelSource, Program
from tracegrad.refusals import helpful
from tracegrad.runtime.base import DeviceInfo, Session
from tracegrad.sites import SiteInfo
from tracegrad.training.between import changed, freeze, lr_metric, profile, replace_model, to_jax

if TYPE_CHECKING:
    from tracegrad.training.fit import Position
    from tracegrad.training.history import History

Array = Any


class CompiledTraining(HasStates):
    """A model, its loss and its optimizer, compiled for one device; made by `tg.compile`.

    Calls are queued on a worker thread and run in order. `step` and `run_steps` copy their inputs, so that the
    caller's arrays can be reused at once. A context manager; `close` frees the device.

    >>> loss = lambda m, x, y: tg.mse_loss(m(x), y)
    >>> train = tg.compile(model=nn.Linear(2, 1), loss=loss, inputs={"x": (4, 2), "y": (4, 1)}, optimizer=optim.adam())
    >>> train.param_names
    ['W', 'b']
    """

    remedies = TRAININGS
    fitted: Position | None = None  # of the last `fit`, for checkpoints
    called = "train.step(x=..., y=...) trains, train.attach(forward=..., inputs=...) makes a forward"

    def __init__(
        self,
        *,
        sources: Sequence[StepSource],
        session_factory: Callable[[], Callable[[], Session]],
        seed: int | None = None,
        keep_grads: bool = False,
        max_cached_shapes: int = 8,
    ):
        """For `tg.compile`. Traces first; then the worker's thread opens the device, while this one compiles.

        sources: one for each loss.
        """
        self._lock, self._memory, self._keep_grads = threading.Lock(), CopyPool(), keep_grads
        seed = seed_or_new(seed)
        most_sizes = whole("max_cached_shapes", max_cached_shapes)
        traced = [(source, source.traced()) for source in sources]
        self.worker = Worker(session_factory())
        self._finalizer = weakref.finalize(self, self.worker.close)  # also at exit, before the interpreter goes
        try:
            first = Stepper.all_of(traced, seed, most_sizes)[0]
            self.store: TrainedParameters = TrainedParameters(self.worker, first)
            self.worker.opened().begin(self.store.stepper.install)
        except BaseException:
            self.close()
            raise

    # --- running ---

    def step(self, mapping: Given | str = None, /, *more: Any, **inputs: Any) -> Pending[StepResult]:
        """One training step, queued; inputs by keyword, in one dict, or both.

        Where there are several losses, the name of one comes first: `train.step("d", x=x, z=z)`.
        Waits while 8 steps are queued, or, where steps are short, as many as may be under way (96, in a tab 128).
        Never raises for what happens while executing: bad inputs, a non-finite loss and device errors come back as
        `Failed`, and change nothing.

        >>> train.step(x=x, y=y).result().step
        1
        """
        return self._run("step", (mapping, *more), inputs)

    def run_steps(self, n: int | str, /, *batch: Any, **inputs: Any) -> Pending[StepResult]:
        """`n` steps in one call: inputs with a leading axis of length `n` are split, others used for every step.

        n, batch: the number comes first, then a dict if there is one; before both the name of one of several losses.
        The result is that of the last step, with `losses`, a float32 array of length `n`. If a step fails, those
        before it were applied, those after it do not run, and the result is `Failed`.

        >>> train.run_steps(3, x=x, y=y).result().losses.shape
        (3,)
        """
        return self._run("run_steps", (n, *batch), inputs)

    def _run(self, what: str, given: tuple[Any, ...], inputs: dict[str, Any]) -> Pending[Any]:
        if (refusal := self.worker.refusal) is not None:
            return resolved(refusal, what)
        pending: Pending[StepResult] = Pending(what, self.worker.ident)
        try:
            stepper, n, lead = self.store.stepper, 1, None
            if stepper.source.part is not None:
                loss = given[0] if isinstance(given[0], str) else None
                stepper, given = self.store.stepper_of(loss, what), given[1:]
            if what == "run_steps":
                lead = n = number_of_steps(given[0] if given else None)
                given = given[1:]
            mapping, *more = given or (None,)
            merged = merge(mapping, inputs, what, more, stepper.source.inputs)
            program, merged = self.store.program_for(stepper, merged, what, lead is not None)
            arrays = check_inputs(program.inputs, merged, what, lead, self._memory.copied)
            call = StepCall(stepper, stepper.knobs, pending, n, what, program)
            runs = [call.run(0, arrays)] if lead is None else call.runs(split_steps(arrays, program.inputs, n))
        except Exception as e:
            pending.resolve(failure(e, what))
            return pending
        pending.owner = self
        self.worker.enqueue(runs, pending)
        return pending

    @helpful
    def fit(
        self,
        data: Any = None,
        *,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        steps: int | None = None,
        shuffle: bool = True,
        validation: Any = None,
        evaluate: Callable[[CompiledTraining], Mapping[str, float]] | None = None,
        every: int | None = None,
        metrics: Any = None,
        progress: bool = True,
        on_step: Any = None,
        on_epoch: Any = None,
        on_evaluate: Any = None,
        callbacks: Iterable[Any] = (),
        log: Any = None,
        resume: Any = None,
        schedule: Sequence[str] | None = None,
    ) -> History:
        """Train, and give the history: `h.loss`, `h.metrics` of the evaluations. Ctrl-C ends it with the history, too.

        data:       an iterable of dicts by input name, or of tuples in the order of `inputs`; a torch DataLoader too.
                    Or whole arrays: a tuple or dict of them, a data frame, a dataset of Hugging Face.
        x, y:       whole arrays instead: one for the first and one for the second input, or dicts by input name.
        batch_size: of whole arrays; that of `inputs`, or 32 where it leaves that open. A last, smaller batch is
                    trained on where `inputs` leaves the size open. Else it is dropped, or refused of an iterable.
        epochs:     passes over the data. More than one needs an iterable that can be iterated again.
        steps:      run exactly so many steps instead, over as many passes as they take.
        shuffle:    whole arrays anew in each epoch, by the seed. Iterables keep their order.
        validation: a share of the whole arrays, their last examples; arrays as `data`; or batches. It gives `val_loss`,
                    `val_<name>` of scalars beside the loss, and tells `lr.plateau` (mode="max": the first metric).
                    A loss that takes `training` gets False. States that it writes are put back.
        metrics:    {"name": function of the model and the inputs}, traced, for `val_<name>`. A function of `tg.metrics`
                    is that of the whole set; anything else is the mean over the examples.
        evaluate:   function of the training that returns metrics by name, called every `every` steps and at the end,
                    or, without `every`, after each epoch, as validation is.
        on_step, on_epoch, on_evaluate: functions of a `FitState`, called before the next step begins. Those that read
                    no loss wait for none. `state.stop()` ends the loop at once.
        callbacks:  objects that have some of these as methods, such as `tg.EarlyStopping("val_loss")`; a function is
                    called after each step.
        log:        path of a file that gets one line of JSON a step and evaluation, a function of such a dict, or an
                    object with `log(dict)` or TensorBoard's `add_scalar(name, value, step)`.
        resume:     path of a file that was saved while `fit` ran, or after it was interrupted: loads it and goes on at
                    its epoch and batch. Give the same arguments again; callbacks count anew.
        schedule:   of several losses, whose turn it is: ("d", "d", "g"). Each step takes the next batch, and of it the
                    inputs of its loss. The training's step counter says where in the turn a `fit` begins.
        Raises:     the error of the first step that fails, AbortedError if the training is closed meanwhile, and what
                    `data`, `evaluate` and hooks raise. The steps that were queued behind it are applied.

        >>> history = train.fit(x=np.tile(x, (4, 1)), y=np.tile(y, (4, 1)), epochs=2, progress=False)
        >>> len(history.loss)
        8
        """
        from tracegrad.training.fit import Options, fit

        hooks = {"on_step": on_step, "on_epoch": on_epoch, "on_evaluate": on_evaluate}
        options = Options(epochs, steps, evaluate, every, schedule, hooks)
        return fit(
            self, data, x, y, batch_size, shuffle, validation, metrics, progress, log, resume, callbacks, options
        )

    # --- parameters and state ---

    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite parameters by name, after the steps queued so far. Names missing in `record` keep their values.

        strict:  every parameter must be there.
        Raises:  InputError naming every unknown name, wrong shape, wrong dtype and value that is not finite (a
                 parameter that is not trained may be infinite), before anything is written.

        >>> train.upload_params({"W": np.ones((2, 1))})
        """
        self.store.upload_params(record, strict)

    def download_params(self, *, ema: bool = False) -> dict[str, Array]:
        """Parameters by name, after the steps queued so far.

        ema:     the running averages that an optimizer made with `ema=` keeps, instead of the values of the last step.
        Raises:  InputError for `ema` where the optimizer keeps none.

        >>> {name: array.shape for name, array in train.download_params().items()}
        {'W': (2, 1), 'b': (1,)}
        """
        return self.store.download_params(ema)

    def download_grads(self, *, loss: str | None = None) -> dict[str, Array]:
        """Gradients of the last step by parameter name; needs `keep_grads=True` at compile, else InputError.

        loss: of several losses, whose step.

        >>> r = train.step(x=x, y=y).result()
        >>> sorted(train.download_grads())
        ['W', 'b']
        """
        if not self._keep_grads:
            raise InputError.here("download_grads: compile with keep_grads=True to keep the gradients")
        return self.store.download_grads(self.store.stepper_of(loss, "download_grads"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file: parameters, optimizer state, step, seed, schedule. The folder must exist.

        The file is replaced as a whole: a crash, a kill or a full disk leaves the old one. A symbolic link is followed,
        permissions stay, and a device or pipe gets the bytes.

        Raises: OSError naming the file; the training goes on.

        >>> train.save("checkpoint.safetensors")
        """
        snapshots = self.store.call(take_all)
        place = self.fitted.at(sum(s.step for s in snapshots)) if self.fitted else None
        checkpoints.save(snapshots, path, {"fit": place} if place else {})

    def digest(self, losses: Sequence[float] = ()) -> str:
        """SHA-256 of the training after the steps queued so far, 64 hexadecimal digits.

        losses:   losses to include, such as `history.loss` of `fit`; rounded to f32.
        Returns:  a hash of these, the parameters, optimizer state, step, seed, schedule and hyperparameters. Equal
                  hashes mean equal bits. A seed gives the same hash on a device in every process, and after a resume.

        >>> len(train.digest())
        64
        """
        return checkpoints.digest(self.store.call(take_all), losses)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Resume from a file that `save` wrote, bit-exact on the same device.

        Loading executes nothing of the file. Tensors and metadata are checked before anything changes.

        Raises: InputError, with nothing changed, if it is no checkpoint, is damaged, or belongs to another model or
                optimizer.

        >>> train.save("checkpoint.safetensors")
        >>> train.load("checkpoint.safetensors")
        """
        checkpoints.load(path, self.store)

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

        >>> train.export("site", forwards={"predict": infer}).name
        'index.html'
        """
        shown = Contents(title or f"{type(self.model).__name__} training", forwards, data, labels, vocabulary)
        exportable(self.store.stepper.source)
        graph = self.store.stepper.built.graph
        return export(self.store.call(take), graph, path, shown, single_file=single_file)

    def reset(self, params: bool = True, optimizer: bool = True, seed: int | None = None) -> None:
        """Start over, without compiling.

        params:     draw the parameters again.
        optimizer:  clear its state, the step counter and with it the random stream; schedules begin again.
        seed:       another seed from now on; None keeps the one that there is.
        Raises:     InputError unless `seed` is an integer from 0 to 2**32 - 1.

        >>> train.reset(seed=1)
        """
        new = None if seed is None else checked_seed(seed)
        self.store.call(lambda session, s: s.reset(session, params, optimizer, s.seed if new is None else new))

    def set_lr(self, lr: Schedule | float, *, loss: str | None = None) -> None:
        """Change the learning rate from the next `step` on. A schedule without an explicit start begins there.

        loss: of several losses, whose rate.

        >>> train.set_lr(lr.linear(peak=1e-2, final=0.0, steps=100))
        """
        with self.worker.own(self._lock):
            stepper = self.store.stepper_of(loss, "set_lr")
            stepper.knobs = stepper.knobs.with_rate(lr)

    def lr_metric(self, value: float, *, loss: str | None = None) -> None:
        """Tell `lr.plateau` a metric, such as a held-out loss, behind the steps queued so far. loss: see `set_lr`.

        >>> train.set_lr(lr.plateau(1e-2))
        >>> train.lr_metric(0.5)
        """
        lr_metric(self.store, self.store.stepper_of(loss, "lr_metric"), value)

    def set(self, *, loss: str | None = None, **hyper: Any) -> None:
        """Change hyperparameters from the next `step` on: `weight_decay`, `beta1`, ... and those of `tg.hyper`.

        loss: of several losses, whose values.
        `groups={"backbone.*": {"lr": 0.01}}` sets those of groups. Nothing is compiled, with two exceptions: a group's
        value that is new, and a weight_decay, momentum or clip_grad_norm that was off so far. `set` then compiles the
        step once more, and training goes on. `clip_grad_norm=None` switches it off.
        Raises: InputError for unknown names and values out of range; nothing is changed then.

        >>> train.set(momentum=0.5)
        """
        with self.worker.own(self._lock):
            changed(self.store, self.store.stepper_of(loss, "set"), hyper)

    def freeze(self, parameters: Selection) -> None:
        """Leave parameters alone from the next step on: no update, no decay, no change of their optimizer state.

        parameters: a pattern such as "backbone.*", a list of patterns, or a function of the name; it must fit some. The
                    first call compiles the step once more, later ones nothing. Gradients are still computed.

        >>> train.freeze("b")
        """
        with self.worker.own(self._lock):
            freeze(self.store, parameters, "freeze")

    def unfreeze(self, parameters: Selection = "*") -> None:
        """Train frozen parameters again, from the state that was left.

        >>> train.freeze("b")
        >>> train.unfreeze()
        """
        with self.worker.own(self._lock):
            freeze(self.store, parameters, "unfreeze")

    def replace_model(self, model: Any, *, seed: int | None = None, optimizer: Any = None) -> None:
        """Train another model on the same handle; it starts at step 0, with parameters from `seed` or the same seed.

        What is in flight resolves as Aborted; attached forwards compile again on their next run. Learning rate and
        hyperparameters stay as set, unless an optimizer is given.
        Raises: what compiling raises; the old model and all its state then stay.

        >>> train.replace_model(nn.Sequential(nn.Linear(2, 8), tg.relu, nn.Linear(8, 1)))
        >>> train.param_names
        ['layers.0.W', 'layers.0.b', 'layers.2.W', 'layers.2.b']
        """
        replace_model(self.store, model, seed, optimizer)

    @helpful
    def attach(
        self,
        *,
        forward: Callable[..., Any],
        inputs: Mapping[str, Any],
        max_cached_shapes: int = 8,
        precision: str = "f32",
        writes: bool = False,
    ) -> CompiledForward:
        """A forward that shares this training's parameters and states: a run sees every step queued before it.

        forward, inputs: as for `tg.compile_forward`. It is compiled by the first run.
        max_cached_shapes, precision, writes: as for `tg.compile_forward`; the training's precision is no default.
        Raises: InputError for inputs that are no types or that `forward` does not take. Its first run raises the rest.

        >>> train.attach(forward=predict, inputs={"x": (None, 2)}).run(x=np.zeros((5, 2))).output.shape
        (5, 1)
        """
        return CompiledForward(
            self.store, forward, inputs, max_cached_shapes, precision=precision, writes=writes, training=self
        )

    def close(self) -> None:
        """Free the device; what is in flight resolves as Aborted. Closing twice is fine.

        >>> train.close()
        """
        self._finalizer()

    def explain(self, verbose: bool = False, *, loss: str | None = None) -> Explanation:
        """What a step consists of: its dispatches with bytes, FLOPs and your lines, memory, kernels, and the graph.

        Printing shows what fits a screen; with `verbose` all kernels, values and the graph, too. It shows as HTML in
        notebooks, and `.save(path)` writes an HTML file. No device is touched. loss: of several losses, whose step.

        >>> "dispatches" in str(train.explain())
        True
        """
        sized = self.store.stepper_of(loss, "explain").sized
        return explained(self._looked_at(loss, "explain").built, self.device, sized.note if sized else "", verbose)

    def why(self, name_or_node: str | Tensor, *, loss: str | None = None) -> Why:
        """Why a value of the step is stored or inlined, what merged or split the kernels around it, where it lies.

        name_or_node: a result such as "loss", a capture, a parameter, an input, an optimizer state, "grads.NAME" for a
                      parameter's gradient, "%12" as `print(train.graph)` numbers nodes, or a node of `train.graph`.
        loss:         of several losses, whose step.
        Returns:      text to print. `.values` has an entry for each value that the node was compiled to: its rule, its
                      dispatches, the values of the same kernel, its place and lifetime, and your line. It says, too,
                      what refused to merge the value with each neighbour.
        Raises:       MissingNameError for an unknown name, with the nearest one.

        >>> "loss" in str(train.why("loss"))
        True
        """
        built = self._looked_at(loss, "why").built
        return why(built.graph, built.program, name_or_node)

    def profile(self, steps: int = 10, mapping: Given = None, *, loss: str | None = None, **inputs: Any) -> Profile:
        """Time every dispatch of a step, after the steps queued so far; see `Profile`.

        steps:    how often; a dispatch's time is the median.
        inputs:   a batch as for `step`, by keyword, in one dict, or both; zeros if none is given.
        loss:     of several losses, whose step.
        Returns:  a table with the device's limits and your lines; `.save(path)` writes a Chrome trace.
        Raises:   InputError for inputs that do not fit; DeviceError in a browser's Python.

        Changes nothing: parameters, optimizer state, step counter, random stream and kept gradients stay.

        >>> "dispatches" in str(train.profile(steps=1))
        True
        """
        stepper, given = self.store.stepper_of(loss, "profile"), merge(mapping, inputs, "profile")
        program = stepper.main if given else self._looked_at(loss, "profile")
        if given:
            program, given = self.store.program_for(stepper, given, "profile")
        arrays = given_or_blank(program.inputs, given, "profile")
        return profile(self.store, stepper, program, checked_steps(steps), arrays)

    def to_jax(self, *, loss: str | None = None) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The training step as a pure function of JAX, and the state that it begins with. Needs device="jax".

        step, state = train.to_jax();  state, outputs = step(state, {"x": x, "y": y})

        step:    traceable by `jax.jit`, `jax.lax.scan` and `jax.export`. Its inputs have the shapes of the last call.
        state:   nested dicts of arrays: "arrays" (parameters and what the optimizer keeps), "hyper" (scalars: "lr",
                 "weight_decay", ..., and "1-beta1" for 1 - beta1) and "step" (how many steps were applied). They are
                 copies. A schedule stays on the host: set `state["hyper"]["lr"]` yourself.
        outputs: "loss", "aux.NAME", "capture.NAME", and "applied": False where something was not finite, so that the
                 step changed nothing.
        loss:    of several losses, whose step.
        Raises:  DeviceError on other devices. The function raises InputError for inputs that do not fit.

        >>> try:
        ...     step, state = train.to_jax()
        ... except tg.DeviceError as e:
        ...     print(str(e)[:45])
        to_jax: this training is on 'cpu'; compile wi
        """
        stepper = self.store.stepper_of(loss, "to_jax")
        return to_jax(self.store, stepper, self._looked_at(loss, "to_jax"))

    def _looked_at(self, loss: str | None, what: str) -> StepProgram:
        """The step's program: where calls choose sizes, that of the sizes used last."""
        stepper = self.store.stepper_of(loss, what)
        if stepper.sized is not None and stepper.sized.latest is None:
            raise InputError.here(f"{what}: no call has chosen sizes yet: take a step first, as in train.step(x=...)")
        return stepper.latest

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.store.model

    @property
    def graph(self) -> Graph:
        """The step's graph: forward, gradients and update. Of several losses, the first one's; see `explain`."""
        return self.store.stepper.latest.built.graph

    @property
    def program(self) -> Program:
        """The compiled step, as plain data; where calls choose sizes, for those used last. Of several, the first."""
        return self.store.stepper.latest.program

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """The program's kernels."""
        return self.program.kernels

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """Sites of `tg.capture` and `tg.patch` in the loss, in order; each has `kind name type site`.

        Steps give back what is captured. Only runs of a forward can patch: in a step, `tg.patch` does nothing.
        """
        return self.store.stepper.latest.built.sites

    @property
    def param_names(self) -> list[str]:
        """Names of the parameters, in declaration order."""
        return [f.name for f in self.store.fields]

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, as declared."""
        return list(dict.fromkeys(n for s in self.store.stepper.together for n in s.source.inputs))

    @property
    def input_types(self) -> Mapping[str, InputType]:
        """Types of the inputs, by name, as declared."""
        return {n: t for s in self.store.stepper.together for n, t in s.source.free.types.items()}

    @property
    def loss_function(self) -> Callable[..., Any]:
        """The loss, as given to `tg.compile`."""
        return self.store.stepper.source.loss

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""

        def read(session: Session, stepper: Stepper) -> float:
            step, rate = stepper.counter + 1, stepper.knobs.rate
            return starting_at(rate.schedule, rate.start or step).at(step)

        return self.store.call(read)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the loss: ()."""
        return ()

    @property
    def seed(self) -> int:
        """What pins initialisation and all randomness."""
        return self.store.seed

    @property
    def device(self) -> DeviceInfo:
        """The device in use."""
        return self.worker.info

    @property
    def memory(self) -> Memory:
        """Bytes on the device by role, and their "total"; prints as a table. Attached forwards add their own."""
        return Memory(*(stepper.latest.program for stepper in self.store.stepper.together))

    def __repr__(self) -> str:
        state = f"on {self.device}" if self.worker.closed is None else self.worker.closed
        program, steppers = self.program, self.store.steppers
        size = f"{sum(f.size for f in program.params)} parameters, {len(program.dispatches)} dispatches a step"
        step = ", ".join(
            [f"step {s.counter} of {name}" if name else f"step {s.counter}" for name, s in steppers.items()]
        )
        return f"<CompiledTraining {state}; {size}, {step}, seed {self.seed}>"

    def __enter__(self) -> CompiledTraining:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
