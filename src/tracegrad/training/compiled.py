"""CompiledTraining, which `tg.compile` returns: a training with methods to fit, export, explain and profile it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.inputs import given_or_blank, merge
from tracegrad.engine.run_program import RunProgram
from tracegrad.engine.stepper import Stepper, take_all
from tracegrad.errors import InputError
from tracegrad.hypers import checked_whole
from tracegrad.ir.nodes import Tensor
from tracegrad.runtime.base import Session
from tracegrad.runtime.jax import function_of
from tracegrad.training.between import turns
from tracegrad.training.training import Training
from tracegrad.wrong_calls import helpful

if TYPE_CHECKING:
    from pathlib import Path

    from tracegrad.introspection.explain import Explanation, Memory
    from tracegrad.introspection.profile import Profile
    from tracegrad.introspection.why import Why
    from tracegrad.training.history import History


class CompiledTraining(Training):
    """A model, its loss and its optimizer, compiled for one device. `tg.compile` makes it.

    Calls are queued on a worker thread and run in order. `step` and `run_steps` copy their inputs, so you can reuse
    your arrays at once. `close` frees the device; leaving a `with` block of the training calls it.

    >>> loss = lambda m, x, y: tg.mse_loss(m(x), y)
    >>> train = tg.compile(model=nn.Linear(2, 1), loss=loss, inputs={"x": (4, 2), "y": (4, 1)}, optimizer=optim.adam())
    >>> train.step(x=np.ones((4, 2)), y=np.zeros((4, 1))).step
    1
    """

    @helpful
    def fit(
        self,
        data: Any = None,
        *more: Any,
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
        resume: str | os.PathLike[str] | None = None,
        schedule: Sequence[str] | None = None,
    ) -> History:
        """Train on `data`, and return the history: losses, and metrics of the evaluations. Ctrl-C ends it early.

        data:       an iterable of dicts by input name, or of tuples in the order of `inputs`; a torch DataLoader too.
                    Or whole arrays: `fit(x, y)` in the order of `inputs`, a tuple or dict of arrays, a data
                    frame, a Hugging Face dataset. They are copied to a GPU once if they fit and are used more than
                    once.
        more:       the arrays of `fit(x, y)` after the first.
        x, y:       whole arrays by name: one for the first and one for the second input, or dicts by input name.
        batch_size: batch size for whole arrays. Default: the size in `inputs`, or 32 if that is None. A smaller last
                    batch is trained if the size in `inputs` is None or a name. If that is a number, the batch is
                    dropped; in an iterable it is an error.
        epochs:     passes over the data. For several passes, `data` must allow several loops over it.
        steps:      the number of steps, instead of `epochs`: `fit` makes as many passes as needed. With `resume`, the
                    steps of the interrupted run count too.
        shuffle:    shuffle whole arrays in each epoch, by the seed. Iterables keep their order.
        validation: a share of the whole arrays (their last examples), arrays as for `data`, or batches. The results are
                    `val_loss`, and `val_<name>` for each scalar in the dict that the loss returns beside its value. A
                    loss that takes an argument `training` gets False. States that the loss writes are restored. Each
                    validation draws the same random numbers. A schedule `lr.plateau` gets `val_loss`.
        metrics:    {"name": function}, whose results are `val_<name>`. A function takes the model and some inputs by
                    name, and is traced like the loss. Functions of `tg.metrics` are computed over the whole validation
                    set; the results of other functions are averaged over its examples.
        evaluate:   function of the training that returns metrics by name.
        every:      run the validation and `evaluate` every `every` steps and at the end. Default: after each epoch.
        progress:   False shows no progress bar.
        on_step, on_epoch, on_evaluate: functions of a `FitState`, called before the next step begins. A hook waits for
                    the step only if it reads a result. `state.stop()` ends `fit` at once.
        callbacks:  objects with some of these functions as methods, such as `tg.EarlyStopping("val_loss")`; further
                    methods are `on_begin()`, `on_end()` and `on_log(record)`. A plain function is called after each
                    step.
        log:        path of a file that gets one line of JSON per step and evaluation, a function of such a dict, or an
                    object with `log(dict)` or `add_scalar(name, value, step)`. A line also has the scalars of the
                    loss's dict.
        resume:     path of a checkpoint, saved while `fit` ran or after an interrupt. `fit` loads it and continues at
                    its epoch and batch. Pass the same arguments as before. The states of callbacks, such as the
                    patience of `EarlyStopping`, are not restored.
        schedule:   required with several losses: the order in which they take turns, such as ("d", "d", "g"). Each step
                    takes the next batch, and from it the inputs of its loss. A later `fit` continues the cycle.
        Returns:    a `History`: `loss` and `step` of each step, `metrics` of each evaluation.
        Raises:     the error of the first step that fails, AbortedError if the training is closed meanwhile, and errors
                    that `data`, `evaluate` or hooks raise. Steps that were queued after a failed step are still
                    applied.

        >>> history = train.fit(x=np.tile(x, (4, 1)), y=np.tile(y, (4, 1)), epochs=2, progress=False)
        >>> len(history.loss)
        8
        """
        from tracegrad.training.fit import Options, fit

        hooks = {"on_step": on_step, "on_epoch": on_epoch, "on_evaluate": on_evaluate}
        options = Options(
            batch_size=batch_size, epochs=epochs, steps=steps, shuffle=shuffle, validation=validation,
            evaluate=evaluate, every=every, metrics=metrics, progress=progress, log=log, resume=resume,
            schedule=schedule, hooks=hooks, callbacks=callbacks,
        )  # fmt: skip
        return fit(self, (data, *more), x, y, options)

    @helpful
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
        schedule: Sequence[str] | None = None,
        sizes: int | Sequence[int] | Mapping[str, int | Sequence[int]] | None = None,
    ) -> Path:
        """Write a static site that continues this training in a browser, without Python. Return the path of its page.

        path:         the folder to write; `tracegrad serve site` serves it. With `single_file`, the HTML file, or a
                      folder that gets index.html.
        forwards:     forwards that `attach` returned, by name. The page shows each with a demo that suits its inputs.
        single_file:  True writes one HTML file that opens by double-click, instead of a folder.
        title:        the page's title. Default: the name of the model's class, and "training".
        data:         for each input, an array of examples along axis 0, from which the page draws its batches. Without
                      data, the page shows the forwards and cannot train.
        labels:       names of the classes, for a forward with one input f32[1,1,h,w] and at most 100 results. The page
                      shows it with a canvas to draw on.
        vocabulary:   the text of each token, for a forward from i32[1,t] to f32[1,t,v]. The page continues texts.
        schedule:     with several losses, the order in which the page trains them, such as ("d", "d", "g"). Default:
                      each loss once, in turn.
        sizes:        the largest value of each size that is None or a name in `inputs` of the training: a dict such as
                      {"B": 64}, or one number for all. Leave `sizes` out if no call chooses a size. The page takes all
                      sizes up to the largest, and pads arrays to it. With a list, such as {"B": [8, 64]}, a call pads
                      to the smallest entry that fits. Training steps on `data` use the largest. If `sizes` names no
                      size of a forward, the page runs this forward only at the sizes of its demo: 1, or the number of
                      points of a curve.
        Raises:       InputError for an empty path, for an HTML file without `single_file`, and for a forward that
                      `attach` of this training did not return. InputError also for other arguments that do not fit,
                      for a learning rate that is a schedule of your own class, and if no program can serve all sizes.

        The page needs a browser with WebGPU.

        >>> train.export("site", forwards={"predict": infer}).name
        'index.html'
        """
        from tracegrad.files.export import Contents, export

        title = title or f"{type(self.model).__name__} training"
        names = [name for name in self.store.steppers if name]
        turned = turns(names, schedule or names or None, "export")
        shown = Contents(title, forwards, data, labels, vocabulary, turned, sizes)
        steppers = self.store.stepper.together
        return export(self.store.call(take_all), steppers, path, shown, single_file=single_file)

    @helpful
    def explain(self, verbose: bool = False, *, loss: str | None = None) -> Explanation:
        """Return a report of a step, to print: its dispatches (launches of kernels) with their costs, and its memory.

        verbose: True makes the report also list all kernels, values and the graph. False: the report fits on one
                 screen.
        loss:    the name of a loss. Required if there are several losses; leave it out if there is one.
        Returns: an `Explanation`. For each dispatch it gives bytes, FLOPs and your source lines. Notebooks show it as
                 HTML, and `.save(path)` writes an HTML file. Nothing runs on the device.
        Raises:  InputError if `loss` is missing or unknown, and before the first step if calls choose sizes.
        As cost_analysis and memory_analysis of a compiled function of JAX.

        >>> print(train.explain().title)
        training: 127 nodes, 4 kernels, 4 dispatches; 127 FLOP, 244 B read, 96 B written
        """
        from tracegrad.introspection.explain import explained

        stepper = self.store.stepper_of(loss, "explain")
        note = stepper.sized.note if stepper.sized else ""
        return explained(_latest(stepper, "explain").built, self.device, note, verbose)

    @helpful
    def why(self, name_or_node: str | Tensor, *, loss: str | None = None) -> Why:
        r"""Explain why a value of the step is stored or inlined, which rules formed its kernels, and where it is.

        A stored value is written to memory. An inlined value is computed inside each kernel that uses it.

        name_or_node: the name of a result such as "loss", a capture, a parameter, an input or an optimizer state.
                      "grads.NAME" is a parameter's gradient. "%12" names a node as `print(train.graph)` does. A node of
                      `train.graph` itself works too.
        loss:         the name of a loss. Required if there are several losses; leave it out if there is one.
        Returns:      text to print. `.values` has an entry for each value that the node was compiled to, with its rule,
                      dispatches, place, lifetime and source line. The text names the other values of the same kernel.
                      For each neighbour in another kernel, it names the rule that prevented a merge.
        Raises:       MissingNameError for an unknown name, with the nearest one.

        >>> print("\n".join(str(train.why("loss")).splitlines()[:3]))
        %13 div f32[]
          stored: the program delivers it
          computed by dispatch 2, kernel 2 (sum+div+where)
        """
        from tracegrad.introspection.why import why

        built = _latest(self.store.stepper_of(loss, "why"), "why").built
        return why(built.graph, built.program, name_or_node)

    @helpful
    def profile(
        self, steps: int = 10, mapping: Any = None, *more: Any, loss: str | None = None, **inputs: Any
    ) -> Profile:
        """Run a step `steps` times, and return the median time of each dispatch, as a table to print.

        steps:    the number of timed runs.
        inputs:   a batch as for `step`. Without inputs, zeros are used.
        loss:     the name of a loss. Required if there are several losses; leave it out if there is one.
        Returns:  a `Profile`: the times beside bytes, FLOPs, the device's limits and your source lines. `.save(path)`
                  writes a Chrome trace.
        Raises:   InputError for inputs that do not fit; DeviceError in Pyodide.

        The runs begin after the steps queued so far. They change no parameter, optimizer state, step counter, random
        stream or kept gradient. As torch.profiler.profile around `steps` steps.

        >>> len(train.profile(steps=1).rows)
        4
        """
        from tracegrad.introspection.profile import profiled

        steps, worker = checked_whole("steps", steps, "profile"), self.worker
        stepper = self.store.stepper_of(loss, "profile")
        given = merge(mapping, inputs, "profile", more, stepper.source.inputs)
        program = stepper.main if given else _latest(stepper, "profile")
        if given:
            program, given = self.store.program_for(stepper, given, "profile")
        arrays = given_or_blank(program.inputs, given, "profile")

        def measure(session: Session, stepper: Stepper) -> Profile:
            timings = stepper.timings(session, program, arrays, stepper.knobs, steps)
            return profiled(program.built, timings, session, worker)

        return self.store.call(measure, stepper)

    @helpful
    def to_jax(self, *, loss: str | None = None) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the training step as a pure function of JAX, and its first state. Needs device="jax".

            step, state = train.to_jax()
            state, outputs = step(state, {"x": x, "y": y})

        step:    a function that `jax.jit`, `jax.lax.scan` and `jax.export` can trace. Its inputs have the shapes in
                 `inputs`. Compile with fixed sizes: if calls choose sizes, the shapes are those of the last step's
                 program, and its arrays can be larger than the inputs of the step.
        state:   nested dicts of arrays, copied: "arrays" (parameters and optimizer states), "hyper" (scalars: "lr",
                 "weight_decay", ..., and "1-beta1" for 1 - beta1) and "step" (number of applied steps). Schedules are
                 not part of the function: set `state["hyper"]["lr"]` yourself.
        outputs: "loss", "aux.NAME", "capture.NAME" and "applied". If a value was not finite, "applied" is False and the
                 step changed nothing.
        loss:    the name of a loss. Required if there are several losses; leave it out if there is one.
        Raises:  DeviceError on other devices; InputError if calls choose sizes and no step has run yet. The function
                 raises InputError for inputs that do not fit.

        >>> try:
        ...     step, state = train.to_jax()
        ... except tg.DeviceError as e:
        ...     print(str(e)[:45])
        to_jax: this training is on 'cpu'; compile wi
        """
        stepper = self.store.stepper_of(loss, "to_jax")
        program = _latest(stepper, "to_jax")

        def made(session: Session, stepper: Stepper) -> tuple[Any, dict[str, Any]]:
            hyper = stepper.knobs.upload(program.hyper, stepper.counter + 1, stepper.stream)
            return function_of(session, program.load(session), {**hyper, **program.numbers}, stepper.counter)

        return self.store.call(made, stepper)

    @property
    def memory(self) -> Memory:
        """Bytes on the device by role, such as "param", "state" or "temp", and their "total". Prints as a table.

        Temporaries are those of the sizes used last, and of no size before the first call chooses one. Memory of
        forwards that `attach` made is not included. As torch.cuda.memory_summary.
        """
        from tracegrad.introspection.explain import Memory

        return Memory(*(stepper.latest.program for stepper in self.store.stepper.together))

    def __repr__(self) -> str:
        state = f"on {self.device}" if self.worker.closed is None else self.worker.closed
        program, steppers = self.program, self.store.steppers
        size = f"{sum(f.size for f in program.params)} parameters"
        if program.dispatches:  # none before the first call chose the sizes
            size += f", {len(program.dispatches)} dispatches a step"
        step = ", ".join(
            [f"step {s.counter} of {name}" if name else f"step {s.counter}" for name, s in steppers.items()]
        )
        return f"<CompiledTraining {state}; {size}, {step}, seed {self.seed}>"


def _latest(stepper: Stepper, what: str) -> RunProgram:
    """Return the program of a step, for the sizes used last. Raises InputError if none were used yet."""
    if stepper.sized is not None and stepper.sized.latest is None:
        raise InputError.here(
            f"{what}: the sizes are open until the first call: take a step first, as in train.step(x=...)"
        )
    return stepper.latest
