"""CompiledTraining: what `tg.compile` gives. A training, and one line for each thing that looks at it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.inputs import Given, given_or_blank, merge
from tracegrad.engine.snapshots import take
from tracegrad.engine.step_programs import StepProgram
from tracegrad.errors import InputError
from tracegrad.export import Contents, export, exportable
from tracegrad.introspection.explain import Explanation, explained
from tracegrad.introspection.memory import Memory
from tracegrad.introspection.profile import Profile, checked_steps
from tracegrad.introspection.why import Why, why
from tracegrad.ir import Tensor
from tracegrad.refusals import helpful
from tracegrad.training.between import profile, to_jax
from tracegrad.training.training import Training

if TYPE_CHECKING:
    from tracegrad.training.history import History

Array = Any


class CompiledTraining(Training):
    """A model, its loss and its optimizer, compiled for one device; made by `tg.compile`.

    Calls are queued on a worker thread and run in order. `step` and `run_steps` copy their inputs, so that the
    caller's arrays can be reused at once. A context manager; `close` frees the device.

    >>> loss = lambda m, x, y: tg.mse_loss(m(x), y)
    >>> train = tg.compile(model=nn.Linear(2, 1), loss=loss, inputs={"x": (4, 2), "y": (4, 1)}, optimizer=optim.adam())
    >>> train.param_names
    ['W', 'b']
    """

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

    def explain(self, verbose: bool = False, *, loss: str | None = None) -> Explanation:
        """What a step consists of: its dispatches with bytes, FLOPs and your lines, memory, kernels, and the graph.

        Printing shows what fits a screen; with `verbose` all kernels, values and the graph, too. It shows as HTML in
        notebooks, and `.save(path)` writes an HTML file. No device is touched. loss: of several losses, whose step.

        >>> "dispatches" in str(train.explain())
        True
        """
        sized = self.store.stepper_of(loss, "explain").sized
        return explained(
            self.program_looked_at(loss, "explain").built, self.device, sized.note if sized else "", verbose
        )

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
        built = self.program_looked_at(loss, "why").built
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
        program = stepper.main if given else self.program_looked_at(loss, "profile")
        if given:
            program, given = self.store.program_for(stepper, given, "profile")
        arrays = given_or_blank(program.inputs, given, "profile")
        return profile(self.store, stepper, program, checked_steps(steps), arrays)

    def to_jax(self, *, loss: str | None = None) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the training step as a pure function of JAX, and the state that it begins with. Needs device="jax".

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
        return to_jax(self.store, stepper, self.program_looked_at(loss, "to_jax"))

    def program_looked_at(self, loss: str | None, what: str) -> StepProgram:
        """Return the step's program: where calls choose sizes, that of the sizes used last."""
        stepper = self.store.stepper_of(loss, what)
        if stepper.sized is not None and stepper.sized.latest is None:
            raise InputError.here(f"{what}: no call has chosen sizes yet: take a step first, as in train.step(x=...)")
        return stepper.latest

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
