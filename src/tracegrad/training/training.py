"""The base of CompiledTraining: a model, its step and its parameters, with calls run in order."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from tracegrad.arrays import Array, checked_seed, seed_or_new
from tracegrad.compiler.build import StepSource, traced_first
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.inputs import Owned, check_inputs, merge, own_rows, unchanged
from tracegrad.engine.pending import Pending, resolved
from tracegrad.engine.results import Failed, StepResult
from tracegrad.engine.stepper import Stepper, take_all
from tracegrad.engine.steps import StepCall, number_of_steps, split_steps
from tracegrad.engine.stores import TrainedParameters
from tracegrad.engine.worker import Worker
from tracegrad.errors import InputError
from tracegrad.hypers import checked_whole
from tracegrad.patterns import Selection
from tracegrad.runtime.base import Session, check_precision_of
from tracegrad.runtime.copy_pool import CopyPool
from tracegrad.schedule import Schedule
from tracegrad.training.between import changed, freeze, lr_metric, replace_model
from tracegrad.training.parts import Parts
from tracegrad.training.saving import Saving, load
from tracegrad.wrong_calls import helpful

if TYPE_CHECKING:
    from tracegrad.training.data import Position

WHOLE = (0, 1)  # the share of a process that is alone


class Training(Parts):
    """A model, its step and its parameters. `CompiledTraining` adds the methods that fit, explain and export."""

    remedies = "trainings"
    fitted: Position | None = None  # of the last `fit`, for checkpoints
    placed = False  # does a `fit` keep its examples on the device? Used on the worker's thread
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
        """Trace, then compile in this thread while the worker thread opens the device. `tg.compile` calls this.

        sources: one for each loss.
        """
        self._lock, self.copies, self._keep_grads = threading.Lock(), CopyPool(), keep_grads
        self._saving = Saving()
        seed = seed_or_new(seed)
        most_sizes = checked_whole("max_cached_shapes", max_cached_shapes)
        traced = [(source, traced_first(source)) for source in sources]
        self.worker = Worker(session_factory())
        self._finalizer = weakref.finalize(self, self.worker.close)  # also at exit, before the interpreter ends
        try:
            first = Stepper.all_of(traced, seed, most_sizes)[0]
            self.store: TrainedParameters = TrainedParameters(self.worker, first)
            check_precision_of(self.worker.info, sources[0].precision)
            self.worker.begin(self.store.stepper.install)
            self._share: tuple[int, int] = self.worker.info.share
        except BaseException:
            self.close()
            raise

    # --- running ---

    def step(self, mapping: Any = None, /, *more: Any, **inputs: Any) -> Pending[StepResult]:
        """Queue one training step, and return a `Pending`: its `loss` waits for the result.

        Pass inputs by keyword, by position in the order of `inputs`, or in one dict. With several losses, pass the name
        of a loss first: `train.step("d", x=x, z=z)`. `step` does not raise for inputs that do not fit, a non-finite
        loss or device errors. The result is then `Failed`, and reading `loss` raises its error. Inputs that do not fit
        and a non-finite loss change nothing.

        At most 8 steps are queued, or 96 short ones (128 in a browser tab). A further `step` waits for its turn.
        In PyTorch: the loss, zero_grad(), backward() and optimizer.step(). As train_on_batch of a Keras model.

        >>> train.step(x=x, y=y).result().step
        1
        """
        return self._run("step", (mapping, *more), inputs)

    @helpful
    def run_steps(self, n: int | str, /, *batch: Any, **inputs: Any) -> Pending[StepResult]:
        """Queue `n` training steps in one call, and return a `Pending` of the last one.

        n:        the number of steps, at most a million. With several losses, pass the name of a loss before `n`.
        inputs:   as for `step`, in `batch` too: each step gets the same arrays. Or arrays with a new axis 0 of length
                  `n`: step k gets element k of that axis.
        Returns:  the result of the last step, with `losses`, a float32 array of length `n`. If a step fails, the
                  result is `Failed`: earlier steps were applied, and later steps do not run.
        As jax.lax.scan over a training step.

        >>> train.run_steps(3, x=x, y=y).losses.shape
        (3,)
        """
        return self._run("run_steps", (n, *batch), inputs)

    def _run(self, what: str, given: tuple[Any, ...], inputs: dict[str, Any]) -> Pending[Any]:
        if (refusal := self.worker.refusal) is not None:
            return resolved(refusal, what)
        pending: Pending[StepResult] = self.worker.pending(what)
        try:
            stepper, n, lead = self.store.stepper, 1, None
            if stepper.source.part is not None:
                loss = given[0] if isinstance(given[0], str) else None
                stepper, given = self.store.stepper_of(loss, what), given[1:]
            if what == "run_steps":
                lead = n = number_of_steps(given[0] if given else None)
                given = given[1:]
            mapping, *more = given or (None,)
            copied = unchanged if isinstance(mapping, Owned) else self.copies.copied
            merged = merge(mapping, inputs, what, more, stepper.source.inputs)
            program, merged = self.store.program_for(stepper, merged, what, lead is not None)
            fields = program.inputs
            if self._share != WHOLE:
                fields, merged = own_rows(fields, merged, self._share)
            arrays = check_inputs(fields, merged, what, lead, copied)
            call = StepCall(stepper, stepper.knobs, pending, n, what, program)
            runs = call.runs([arrays] if lead is None else split_steps(arrays, program.inputs, n))
        except Exception as e:
            pending.resolve(Failed(e))  # any error of the user's code: the loss is traced here for new sizes
            return pending
        pending.owner = self
        self.worker.enqueue(runs, pending)
        return pending

    # --- parameters and state ---

    @helpful
    def download_params(self, *, ema: bool = False) -> dict[str, Array]:
        """Return the parameters by name, as NumPy arrays, after the steps queued so far.

        ema:     True returns the running averages of an optimizer made with `ema=`, instead of the current values.
        Raises:  InputError for `ema` if the optimizer keeps no averages.

        >>> {name: array.shape for name, array in train.download_params().items()}
        {'W': (2, 1), 'b': (1,)}
        """
        return self.store.download_params(ema)

    @helpful
    def download_grads(self, *, loss: str | None = None) -> dict[str, Array]:
        """Return the gradients of the last step by parameter name, as NumPy arrays.

        loss:   the name of a loss. Required if there are several losses; leave it out if there is one.
        Raises: InputError unless `tg.compile` got keep_grads=True.

        >>> r = train.step(x=x, y=y).result()
        >>> sorted(train.download_grads())
        ['W', 'b']
        """
        if not self._keep_grads:
            raise InputError.here("download_grads: compile with keep_grads=True to keep the gradients")
        return self.store.download_grads(self.store.stepper_of(loss, "download_grads"))

    @overload
    def save(self, path: str | os.PathLike[str]) -> None: ...

    @overload
    def save(
        self, path: str | os.PathLike[str], *, wait: bool = True, sharded: bool = False
    ) -> Pending[Any] | None: ...

    @helpful
    def save(self, path: str | os.PathLike[str], *, wait: bool = True, sharded: bool = False) -> Pending[Any] | None:
        """Write a checkpoint, one safetensors file: parameters, states, optimizer state, step, seed, schedule.

        The folder must exist. The file is replaced as a whole: after a crash, a kill or a full disk, the old file is
        intact. Symbolic links are followed, permissions are kept, and a device or pipe gets the bytes. With several
        processes, all must call `save`; process 0 writes.
        wait:    False copies the values after the steps queued so far, and writes the file while the training goes on.
                 `save` then returns a `Pending` that resolves to the path, or to `Failed`. Files are written in the
                 order of calls.
        sharded: write a folder instead, for models on a mesh: each process writes the parts of arrays that it holds,
                 and no host needs memory for all. The old checkpoint in the folder is deleted when the new one is
                 complete. Only with device="jax" and Orbax (`pip install "tracegrad[orbax]"`).
        Raises:  OSError naming the file; the training can go on. DeviceError for `sharded` on other devices.
        As torch.save of the state_dict of model, optimizer and scheduler.

        >>> train.save("checkpoint.safetensors")
        >>> train.save("checkpoint.safetensors", wait=False).result()
        'checkpoint.safetensors'
        """
        return self._saving.save(self.store, path, wait, sharded, self.fitted)

    @helpful
    def digest(self, losses: Sequence[float] = ()) -> str:
        """Return a hash of the training after the steps queued so far: SHA-256, as 64 hexadecimal digits.

        losses:   losses to include, such as `history.loss` of `fit`; rounded to f32.
        Returns:  the hash of `losses`, parameters, states, optimizer state, step, seed, schedule and hyperparameters.

        Equal hashes mean equal bits. On one device, a seed gives the same hash in every process, and after a resume.

        >>> len(train.digest())
        64
        """
        from tracegrad.files import checkpoints

        return checkpoints.digest(self.store.call(take_all), losses)

    @helpful
    def load(self, path: str | os.PathLike[str], optimizer: bool = True) -> None:
        """Resume from the file or folder `path` that `save` wrote.

        On the same device, all further steps equal those of the training that was saved, bit for bit. A folder loads on
        a mesh of any shape, or on any other device; all processes must call `load`. Loading executes no code from the
        file.

        optimizer: False loads only parameters and the model's states, such as running means, as to train on with
                   another optimizer. The optimizer's state, step counter and schedule stay as they are, and so do
                   averages (`ema=`) until `train.reset(params=False)`. The path can then be of any safetensors file
                   with the parameters by name.
        Raises:    InputError, with nothing changed, if the file is not a checkpoint, is damaged, or belongs to another
                   model or optimizer; OSError for a file that cannot be read.
        As torch.load, and load_state_dict of model, optimizer and scheduler.

        >>> r = train.step(x=x, y=y).result()
        >>> train.save("checkpoint.safetensors")
        >>> train.reset()
        >>> train.load("checkpoint.safetensors")
        >>> train.step(x=x, y=y).step             # goes on after step 1
        2
        """
        load(self.store, path, optimizer)

    @helpful
    def reset(self, params: bool = True, optimizer: bool = True, seed: int | None = None) -> None:
        """Start over without compiling, after the steps queued so far.

        params:     True draws the parameters again.
        optimizer:  True clears the optimizer state and the step counter, and so restarts random numbers and schedules.
        seed:       use this seed from now on; None keeps the current one.
        Raises:     InputError unless `seed` is an integer from 0 to 2^32 - 1.

        >>> train.reset(seed=1)
        >>> train.step(x=x, y=y).step
        1
        """
        new = None if seed is None else checked_seed(seed)
        self.store.call(lambda session, s: s.reset(session, params, optimizer, s.seed if new is None else new))

    @helpful
    def set_lr(self, lr: Schedule | float, *, loss: str | None = None) -> None:
        """Change the learning rate from the next `step` on.

        lr:   a number, or a schedule of `tg.lr`. A schedule without `start` begins with the next step as its step 1.
        loss: the name of a loss. Required if there are several losses; leave it out if there is one.
        Raises: InputError for a negative number, for an `lr` that is neither a number nor a schedule, and if `loss` is
                missing or unknown.
        In PyTorch, assign to optimizer.param_groups[0]["lr"], or make another scheduler.

        >>> train.set_lr(lr.linear(peak=1e-2, final=0.0, steps=100))
        >>> train.lr
        0.01
        """
        with self.worker.own(self._lock):
            stepper = self.store.stepper_of(loss, "set_lr")
            stepper.knobs = stepper.knobs.with_rate(lr)

    @helpful
    def lr_metric(self, value: float, *, loss: str | None = None) -> None:
        """Pass a metric to the schedule `lr.plateau`, after the steps queued so far.

        value:  such as a held-out loss.
        loss:   the name of a loss. Required if there are several losses; leave it out if there is one.
        Raises: InputError if the schedule is not `lr.plateau`. As `step` of ReduceLROnPlateau of PyTorch.

        >>> train.set_lr(lr.plateau(1e-2, factor=0.5, patience=0))
        >>> train.lr_metric(0.5)
        >>> train.lr_metric(0.6)                  # not better than 0.5
        >>> train.lr
        0.005
        """
        lr_metric(self.store, self.store.stepper_of(loss, "lr_metric"), value)

    @helpful
    def set(self, *, loss: str | None = None, **hyper: Any) -> None:
        """Change hyperparameters from the next `step` on: `weight_decay`, `beta1`, ... and those of `tg.hyper`.

        loss:   the name of a loss. Required if there are several losses; leave it out if there is one.
        groups: values for some parameters, such as {"backbone.*": {"lr": 0.01}}; see `optim.Options`.
        hyper:  the new values by name. `clip_grad_norm=None` switches clipping off.
        Raises: InputError for unknown names and values out of range. Then nothing has changed.

        Two changes compile the step once more: a value that a group did not have, and a weight_decay, momentum or
        clip_grad_norm that was off. Training then goes on from its current state.

        >>> train.set(momentum=0.5)
        >>> try:
        ...     train.set(momentum=-1.0)
        ... except tg.InputError as error:
        ...     print(str(error).splitlines()[0])
        set: momentum must be at least 0, got -1.0
        """
        with self.worker.own(self._lock):
            changed(self.store, self.store.stepper_of(loss, "set"), hyper)

    @helpful
    def freeze(self, parameters: Selection) -> None:
        """Freeze parameters from the next step on: no update, no decay, no change of their optimizer state.

        parameters: a pattern such as "backbone.*", a list of patterns, or a function of the name.
        Raises:     InputError if no parameter matches.

        The first call compiles the step once more, later calls compile nothing. Gradients of frozen parameters
        are 0. As requires_grad_(False) on parameters of PyTorch.

        >>> train.freeze("b")
        >>> r = train.step(x=x, y=y).result()
        >>> train.params()["b"]                   # as before the step
        array([0.], dtype=float32)
        """
        with self.worker.own(self._lock):
            freeze(self.store, parameters, "freeze")

    @helpful
    def unfreeze(self, parameters: Selection = "*") -> None:
        """Train frozen parameters again from the next step on, with the optimizer state that they had when frozen.

        parameters: as for `freeze`, by default all. Raises InputError if no parameter matches.
        As requires_grad_() on parameters of PyTorch.

        >>> train.freeze("b")
        >>> train.unfreeze("b")
        >>> r = train.step(x=x, y=y).result()
        >>> bool(train.params()["b"] == 0)        # b began as 0
        False
        """
        with self.worker.own(self._lock):
            freeze(self.store, parameters, "unfreeze")

    @helpful
    def replace_model(self, model: Any, *, seed: int | None = None, optimizer: Any = None) -> None:
        """Train another model in this training, from step 0, with new parameters. The loss and the inputs stay.

        model:     a tree of modules, for the same loss.
        seed:      the seed of the parameters; None keeps the current one.
        optimizer: a new optimizer. None keeps the old one, with the current learning rate and hyperparameters.
        Raises:    errors of compiling. Then the old model and all its state are kept.

        Queued steps resolve as `Aborted`. Attached forwards compile again on their next run.

        >>> train.replace_model(nn.Linear(2, 1, bias=False))
        >>> train.param_names
        ['W']
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
        """Return a forward that uses this training's parameters and states. Each run sees all steps queued before it.

        forward, inputs: as for `tg.compile_forward`. The first run compiles the forward.
        max_cached_shapes, precision, writes: as for `tg.compile_forward`. The default precision is "f32", also if the
                                              training has another one.
        Raises: InputError for inputs that are not types, or that `forward` does not take; AbortedError if this is
                closed; DeviceError for a precision that the device lacks. The first run's result raises all others.

        >>> train.attach(forward=predict, inputs={"x": (None, 2)}).run(x=np.zeros((5, 2))).output.shape
        (5, 1)
        """
        self.worker.check_open("CompiledTraining")
        return CompiledForward(
            self.store, forward, inputs, max_cached_shapes, precision=precision, writes=writes, training=self
        )

    @helpful
    def close(self) -> None:
        """Free the device. Queued steps and runs resolve as `Aborted`. You can close twice.

        >>> train.close()
        >>> train.step(x=x, y=y).result()
        Aborted(reason='closed')
        """
        self._finalizer()
        self.copies.clear()
