"""Sweeps: many independent trainings of one model in one compiled step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tracegrad import entrypoints, safetensors
from tracegrad.arrays import Array, np
from tracegrad.compiler.tracing import check_function, check_signature
from tracegrad.engine.faces import Closing
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.pending import Pending
from tracegrad.engine.results import StepResult
from tracegrad.errors import InputError
from tracegrad.ir.nodes import Tensor
from tracegrad.ir.states import StateTensor
from tracegrad.nn.module import bound
from tracegrad.optim.optimizer import Optimizer
from tracegrad.refusals import shown
from tracegrad.sweep_plan import LOSSES, MODELS, STATES, VALUES, SweepPlan, checked_values, is_list
from tracegrad.training.compiled import CompiledTraining
from tracegrad.transforms.vmap import vmap
from tracegrad.wrong_calls import helpful


@helpful
def sweep(
    *,
    model: Any,
    loss: Callable[..., Any],
    inputs: Mapping[str, Any],
    optimizer: Optimizer,
    seeds: int | Sequence[int] = 0,
    each: Sequence[str] = (),
    device: str = "auto",
    max_cached_shapes: int = 8,
    **values: float | Sequence[float],
) -> Sweep:
    """Compile many independent trainings of `model` into one step. They differ in seed and hyperparameters.

        sweep = tg.sweep(model=Net(), loss=loss, inputs=inputs, optimizer=optim.adamw(),
                         seeds=[0, 1, 2, 3], lr=[1e-3, 1e-3, 1e-2, 1e-2], weight_decay=[0.0, 0.1, 0.0, 0.1])

    These are four trainings, the members of the sweep. Each trains as it would alone, up to rounding and to random ops
    (see `seeds`): `vmap` maps the loss, its gradient and the optimizer over the members. Clipping and all other norms
    are computed per member.

    model, loss, inputs: as for `tg.compile`, written for one member. Each member has states of its own.
    optimizer: one of `tg.optim`. All its options apply to each member.
    seeds:     seeds of the members' parameters, which equal those of `tg.compile(seed=...)` bit for bit. A number
               instead of a list gives all members the same parameters. Random ops such as dropout draw other numbers
               for each member, and not the numbers of a single training.
    each:      names of inputs that differ between members. Declare these with the axis of the members in front.
    values:    hyperparameters of the optimizer by name, such as `lr`, `weight_decay`, `momentum`, `beta1` or
               `clip_grad_norm`: a list with a number for each member, or a number for all of them. At least one of
               `seeds` and the values is a list. All lists have one length, the number of members. With a schedule as
               the optimizer's rate, `lr` is a factor on it.
    device, max_cached_shapes: as for `tg.compile`.
    Returns:   a `Sweep`. Its `losses` are the members' losses, and `params(k)` the parameters of member k.

    A member whose loss, gradient or new values are not finite keeps its parameters and optimizer state in that step.
    The other members go on. `losses` still has the loss that the failed member computed; it is finite if only the
    gradient or the new values were not. The step fails only if no member has a finite loss and a finite gradient.
    Gradient: each member's is exact, and depends on this member only.
    Raises:    InputError without a list, for lists that are empty or of different lengths, for unknown
               hyperparameters, and for numbers out of range; errors of `tg.compile`. As jax.vmap of a training step.

    >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x, y: tg.mse_loss(m(x), y),
    ...                  inputs={"x": (4, 2), "y": (4, 1)}, optimizer=optim.sgd(), seeds=[0, 0, 1], lr=[0.01, 0.1, 0.1])
    >>> r = sweep.run_steps(10, x=np.ones((4, 2)), y=np.zeros((4, 1)))
    >>> sweep.losses.shape, sweep.best() in (1, 2)
    ((3,), True)
    >>> sweep.params(1)["W"].shape
    (2, 1)
    """
    if not isinstance(cast("object", optimizer), Optimizer):
        raise InputError.here(
            f"tg.sweep: optimizer must come from tracegrad.optim, such as optim.adam(); got {shown(optimizer)}"
        )
    check_function(loss, "loss")
    check_signature(loss, inputs, "loss")
    if unknown := [name for name in each if name not in inputs]:
        raise InputError.here(
            f"tg.sweep: each names {unknown[0]!r}, which is not an input; the inputs are {', '.join(inputs)}"
        )
    plan = SweepPlan.of(model, optimizer, seeds, values)
    train = entrypoints.compile(
        model=plan.stacked(model),
        loss=plan.loss(model, loss, list(inputs), each),
        inputs=inputs,
        optimizer=plan.optimizer(model),
        seed=plan.seeds[0],
        device=device,
        max_cached_shapes=max_cached_shapes,
    )
    return Sweep(train, model, plan)


class Sweep(Closing):
    """Many trainings, the members of the sweep, in one compiled step. `tg.sweep` makes it.

    train:   the `CompiledTraining` of all members, for all other methods: `fit`, `profile`, `explain`, `memory`. Its
             parameters are named "models.NAME", with the axis of the members in front. Its loss is the mean over
             the members whose loss and gradient are finite.
    members: number of members.
    seeds:   seeds of the members' parameters.

    >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
    ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
    >>> sweep.members, sweep.seeds
    (3, (0, 1, 2))
    """

    train: CompiledTraining
    members: int
    seeds: tuple[int, ...]
    remedies = "sweeps"
    called = "sweep.step(x=..., y=...) trains, sweep.attach(forward=..., inputs=...) makes a forward"

    def __init__(self, train: CompiledTraining, model: Any, plan: SweepPlan) -> None:
        """Make a sweep. `tg.sweep` calls this."""
        vars(self).update(train=train, members=len(plan.seeds), seeds=plan.seeds)  # users cannot assign to them
        self._model, self._plan, self._values = model, plan, dict(plan.values)
        self._last: Pending[StepResult] | None = None

    def step(self, *given: Any, **inputs: Any) -> Pending[StepResult]:
        """Queue one step of every member. Arguments, result and failures are as for `CompiledTraining.step`.

        The result's `loss` is the mean of the members' finite losses; its `aux["losses"]` has the loss of each member.
        Each aux of the loss has the axis of the members in front.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.step(x=np.ones((4, 2))).aux["losses"].shape
        (3,)
        """
        self._last = self.train.step(*given, **inputs)
        return self._last

    def run_steps(self, n: int, *batch: Any, **inputs: Any) -> Pending[StepResult]:
        """Queue `n` steps of every member, as `CompiledTraining.run_steps`.

        The result's `aux`, with the members' losses as `aux["losses"]`, is that of the last step.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.run_steps(5, x=np.ones((4, 2))).step
        5
        """
        self._last = self.train.run_steps(n, *batch, **inputs)
        return self._last

    @property
    def losses(self) -> Array:
        """The members' losses in the last `step` or `run_steps`, float32[members]. Waits for them.

        Raises InputError before the first step, and the error of a step that failed.
        """
        if self._last is None:
            raise InputError.here("losses: no step was taken yet; call sweep.step(...) first")
        return self._last.aux[LOSSES]

    @property
    def values(self) -> dict[str, tuple[float, ...]]:
        """The members' hyperparameters by name, as given to `tg.sweep` or `set`: a number for each member."""
        return dict(self._values)

    def params(self, member: int) -> dict[str, Array]:
        """Return the parameters of one member by name, as `CompiledTraining.download_params`.

        member: its index, from 0. Raises InputError unless there is such a member.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.params(2)["W"].shape
        (2, 1)
        """
        k = self._checked(member, "params")
        return {name.removeprefix(f"{MODELS}."): x[k].copy() for name, x in self.train.download_params().items()}

    def states(self, member: int) -> dict[str, Array]:
        """Return the states of one member by path, such as the running means of its batch normalisation.

        member: its index, from 0. Raises InputError unless there is such a member.

        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3))
        >>> sweep = tg.sweep(model=net, loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.states(1)["layers.1.mean"].shape
        (3,)
        """
        k, own = self._checked(member, "states"), f"{STATES}."
        return {n.removeprefix(own): x[k].copy() for n, x in self.train.states().items() if n.startswith(own)}

    def best(self, scores: Sequence[float] | None = None) -> int:
        """Return the index, from 0, of the member with the lowest loss in the last step, or the lowest of `scores`.

        scores: a number for each member, such as losses on held-out data. NaN and infinity are never the lowest.
        Raises InputError if no number is finite, or unless there is one number for each member.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.best([0.3, float("nan"), 0.1])
        2
        """
        found = np.asarray(self.losses if scores is None else scores, np.float64)
        if found.shape != (self.members,) or not np.isfinite(found).any():
            raise InputError.here(
                f"best: needs {self.members} numbers, one for each member, at least one of them finite; got {found}; "
                "leave scores out for the losses of the last step, sweep.losses"
            )
        return int(np.where(np.isfinite(found), found, np.inf).argmin())

    def set(self, **values: float | Sequence[float]) -> None:
        """Change hyperparameters that were passed to `tg.sweep`, from the next step on, without compiling.

        values: a list with one number for each member, or one number for all.
        Raises InputError for other names, numbers out of range, and lists without one number for each member.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=0, lr=[0.1, 0.2])
        >>> sweep.set(lr=[0.01, 0.02])
        >>> sweep.values
        {'lr': (0.01, 0.02)}
        """
        full: dict[str, list[Any]] = {}
        for name, given in values.items():
            full[name] = list(cast("Sequence[Any]", given)) if is_list(given) else [given] * self.members
            if name not in self._values or len(full[name]) != self.members:
                raise InputError.here(
                    f"set: needs {self.members} numbers, or one for all, for {' or '.join(self._values) or 'nothing'}; "
                    f"got {name} with {len(full[name])}. tg.sweep({name}=[...]) makes a hyperparameter settable"
                )
        new = checked_values(self._plan.base, full)
        self._upload(new)
        self._values |= new

    def reset(self) -> None:
        """Start over without compiling, from the first parameters at step 0. The members' hyperparameters are kept.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.reset()
        >>> sweep.step(x=np.ones((4, 2))).step
        1
        """
        self.train.reset()
        self._upload(self._values)
        self._last = None

    def _upload(self, values: Mapping[str, tuple[float, ...]]) -> None:
        states = self._plan._replace(values=values).states()
        self.train.set_states({f"{VALUES}.{n}": x for n, x in states.items()})

    @helpful
    def attach(self, *, forward: Callable[..., Any], inputs: Mapping[str, Any], **options: Any) -> CompiledForward:
        """Return a forward that runs every member on the same inputs. Outputs have the members' axis in front.

        forward, inputs, options: as for `CompiledTraining.attach`, written for one member.
        Raises errors of `CompiledTraining.attach`.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.attach(forward=lambda m, x: m(x), inputs={"x": (None, 2)}).run(x=np.ones((5, 2))).output.shape
        (3, 5, 1)
        """
        check_function(forward, "forward")
        check_signature(forward, inputs, "forward")

        def of_all(m: Any, **given: Tensor) -> Any:
            def of_one(own: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> Any:
                held = {name: StateTensor(name, x) for name, x in states.items()}
                return forward(bound(self._model, {**own, **held}), **given)

            return vmap(of_one)(m[MODELS], {name: x.now for name, x in m[STATES].items()})

        return self.train.attach(forward=of_all, inputs=inputs, **options)

    def save(self, path: str | os.PathLike[str], member: int | None = None) -> None:
        """Write a checkpoint of all members to `path`, for `load`; or the parameters and states of one member.

        member: the index, from 0, of the member to write, for `tg.load_forward` and `CompiledForward.load`. None: all.
        Both are safetensors files.
        Raises InputError unless there is such a member; OSError, with the old file unchanged, if writing fails.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.save("best.safetensors", member=1)
        >>> infer = tg.load_forward("best.safetensors", model=nn.Linear(2, 1), forward=lambda m, x: m(x),
        ...                         inputs={"x": (4, 2)})
        """
        if member is None:
            self.train.save(path)
        else:
            safetensors.write(path, {**self.params(member), **self.states(member)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Resume from a file that `save(path)` wrote, including the members' hyperparameters.

        Raises InputError, with nothing changed, for a file of another model, optimizer or number of members; OSError
        for a file that cannot be read.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.save("sweep.safetensors")
        >>> sweep.load("sweep.safetensors")
        """
        self.train.load(path)
        found = self.train.states()
        self._values = {n: tuple(map(float, found[f"{VALUES}.{n}"])) for n in self._values}
        self._last = None

    def close(self) -> None:
        """Free the device. Queued steps resolve as `Aborted`. As `CompiledTraining.close`.

        >>> sweep = tg.sweep(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)},
        ...                  optimizer=optim.adam(), seeds=[0, 1, 2])
        >>> sweep.close()
        """
        self.train.close()

    def _checked(self, member: int, what: str) -> int:
        if isinstance(member, bool) or not 0 <= member < self.members:
            raise InputError.here(f"{what}: there is no member {member!r}; they are 0 to {self.members - 1}")
        return int(member)

    def __repr__(self) -> str:
        return f"<Sweep of {self.members}: {self.train!r}>"
