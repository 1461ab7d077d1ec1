"""The results of a call: Completed, Aborted or Failed. To wait for a result, see `pending.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from tracegrad.arrays import handed_out, np
from tracegrad.errors import DeviceError, InputError, MissingKeyError, TracegradError
from tracegrad.nn.module import like
from tracegrad.refusals import Value, absent


class Captures(Mapping[str, Any]):
    """The values that `tg.capture(name, x)` recorded in one step or run: a mapping from names to NumPy arrays.

    An unknown name raises `MissingKeyError`, which is also a KeyError.

    >>> def forward(m, x):
    ...     return tg.sum(tg.capture("hidden", m(x)))
    >>> infer = tg.compile_forward(model=nn.Linear(2, 1), forward=forward, inputs={"x": (4, 2)}, seed=0)
    >>> infer.run(x=np.ones((4, 2))).captures["hidden"].shape
    (4, 1)
    """

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Mapping[str, Any] | None = None):
        self._arrays = dict(arrays or {})

    def __getitem__(self, name: str) -> Any:
        try:
            return self._arrays[name]
        except KeyError:
            known = ", ".join(self._arrays) or "none; tg.capture(name, x) in the loss or forward makes one"
            raise MissingKeyError.here(f"captures: there is no {name!r}; there are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Captures({', '.join(f'{k}{list(v.shape)}' for k, v in self._arrays.items())})"

    def per_head(self, name: str) -> list[Any]:
        """Split a captured attention map into one array for each head.

        name:    the capture's name. An array [B,H,T,T] gives H arrays [B,T,T], and [H,T,T] gives H arrays [T,T].
        Raises:  KeyError for an unknown name; InputError for an array of another rank.

        >>> maps = tg.Captures({"attn": np.zeros((2, 8, 5, 5))}).per_head("attn")
        >>> len(maps), maps[0].shape
        (8, (2, 5, 5))
        """
        x = self[name]
        if x.ndim not in (3, 4):
            raise InputError(
                f"per_head({name!r}): an attention map is [B,H,T,T] or [H,T,T], got {x.ndim} dimensions {list(x.shape)}"
            )
        x = np.asarray(x)
        return [handed_out(x[..., h, :, :]) for h in range(x.shape[-3])]


class Aux(dict[str, Any], Value):
    """The extra outputs of a loss, by name. A dict whose KeyError lists the valid names."""

    def __missing__(self, name: str) -> Any:
        hint = ", ".join(self) or 'none; return (loss, {"name": tensor}) from the loss'
        raise MissingKeyError.here(f"aux: there is no {name!r}; there are: {hint}")


class Loss(float, Value):
    """The loss of a step, a float. Other attributes, such as `item` of PyTorch, raise an error with a remedy."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise absent("the loss of a step, a float,", name, (), "losses", "objects")

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)  # copies and pickles are plain


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of finished work. A step returns the subclass `CompletedStep`, a run of a forward `CompletedRun`.

    A `CompletedStep` has `loss`, `losses`, `aux`, `step` and `skipped`; a `CompletedRun` has `output`. Both have
    `captures`, the NumPy arrays of `tg.capture` by name, and `value`, the loss or the output.

    >>> match train.step(x=x, y=y).result():    # train: as in the example of tg.compile; x, y: a batch
    ...     case tg.Completed(loss=loss):
    ...         print(loss > 0)
    ...     case tg.Failed(error):
    ...         print(error)
    True
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("value",)

    captures: Captures

    @property
    def value(self) -> Any:
        """The loss of a step, a float; or the output of a run, NumPy arrays."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, match_args=False)
class CompletedStep(Completed):
    """A training step that was applied.

    loss:     the step's loss, computed before its update, a float.
    aux:      the tensors that the loss returned beside its value, as NumPy arrays by name.
    captures: see `Captures`.
    step:     the number of this step; the first is 1.
    losses:   NumPy array of float32, one element per step that the call ran.
    skipped:  how many steps of the call did not change parameters and optimizer state, because gradients overflowed in
              half precision; the loss scale was halved. 0 under precision="f32".

    For `run_steps`, `loss`, `aux`, `captures` and `step` are those of the last step.
    """

    loss: float
    aux: Mapping[str, Any]
    step: int
    losses: Any
    skipped: int = 0

    @property
    def value(self) -> float:
        """The loss, a float."""
        return self.loss


@dataclass(frozen=True, slots=True, match_args=False)
class CompletedRun(Completed):
    """A forward that was run.

    output: a NumPy array, or a tuple, named tuple or dict of them, as the forward returns it. A list becomes a tuple.
    """

    output: Any

    @property
    def value(self) -> Any:
        """The `output`."""
        return self.output


@dataclass(frozen=True, slots=True)
class Aborted:
    """The result of a step or run that was ended before it completed. Work that was still queued has changed nothing.

    `close` and `replace_model` end queued work; a newer call of a `tg.single_flight` function ends a queued one. A run
    that the device had begun when its forward was closed can have written states (`writes=True`).

    reason: why the work ended, in words, such as "closed".

    >>> train.close()    # train: as in the example of tg.compile
    >>> train.step(x=x, y=y).result()
    Aborted(reason='closed')
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of a step or run that failed.

    The failed step changed nothing, unless the device failed while it computed the step: after such a `DeviceError`,
    load a checkpoint, because the device may have applied the step. In `run_steps`, the steps before the failed one
    stay applied.

    error: the exception, such as a `tg.InputError` for inputs that do not fit. `result()` does not raise it.

    >>> result = train.step(x=np.ones((3, 2)), y=y).result()    # 3 rows, where tg.compile was given x of 4 rows
    >>> type(result).__name__, type(result.error).__name__
    ('Failed', 'InputError')
    """

    error: BaseException


StepResult = CompletedStep | Aborted | Failed
RunResult = CompletedRun | Aborted | Failed


def failure(error: BaseException, what: str) -> Failed:
    """Return `error` as a Failed. An error that is not tracegrad's becomes the cause of a DeviceError."""
    if isinstance(error, TracegradError):
        return Failed(error)
    wrapped = DeviceError(f"{what}: the work could not be executed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return Failed(wrapped)


def output_of(outputs: Mapping[str, Any], structure: Any) -> Any:
    """Return the result in the forward's form: an array, or a tuple or dict of arrays, as `Built.structure` tells."""
    if structure is None:
        return handed_out(outputs["output"])
    if isinstance(structure, tuple):
        return like(structure, [handed_out(outputs[name]) for name in cast("tuple[str, ...]", structure)])
    return {key: handed_out(outputs[name]) for key, name in cast("dict[Any, str]", structure).items()}
