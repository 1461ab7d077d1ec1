"""What trainings and forwards have in common for their users: closing, and the parameters and states of their model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from tracegrad.arrays import Array
from tracegrad.errors import CallError, MissingNameError, call_site, located
from tracegrad.refusals import INNER, Helped, article, found, shown
from tracegrad.runtime.base import DeviceInfo
from tracegrad.wrong_calls import helpful


class Closing(Helped):
    """A context manager: leaving the `with` block calls `close`."""

    close: Callable[[], None]

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_") and name not in INNER:  # these are set in each step
                self._check_assigned(name, value)
            object.__setattr__(self, name, value)

        def _check_assigned(self, name: str, value: Any) -> None:
            own = found(name, self.remedies) if self.remedies == "sweeps" else None
            remedy = own or found(name, "settings")
            if remedy or hasattr(type(self), name) or name in type(self).__annotations__:
                remedy = remedy or found(self.remedies, "settings")
                what = f"{name} of {article(type(self).__name__)} cannot be assigned"
                raise MissingNameError.here(f"{what}: {remedy.replace('NAME', name).replace('{}', shown(value))}")

    def __reduce__(self) -> Any:
        remedy = "train.save(path) writes a training, and train.load(path) or tg.load_forward(path, ...) reads it"
        site = call_site(os.path.dirname(os.__file__))  # not a line of the module copy
        raise CallError(located(f"{article(type(self).__name__)} cannot be pickled or copied: {remedy}", site))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HasStates(Closing):
    """The common part of trainings and forwards: their device, and the parameters and states of their model."""

    store: Any  # a ParameterStore; each class declares which
    waited = False  # has a caller read the result of the latest call?

    @property
    def param_names(self) -> list[str]:
        """The names of the parameters, in declaration order."""
        return [f.name for f in self.store.fields]

    @property
    def device(self) -> DeviceInfo:
        """The device in use.

        >>> train.device.name
        'cpu'
        """
        return self.store.worker.info

    @helpful
    def upload_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite parameters by name, after the steps queued so far. Parameters missing from `record` do not change.

        record:  arrays by name. For a forward of `train.attach`, these are the parameters of the training.
        strict:  True requires every parameter in `record`.
        Raises:  InputError naming every unknown name, wrong shape, wrong dtype and value that is not finite, before
                 anything is written. A parameter that is not trained can be infinite.

        >>> train.upload_params({"W": np.ones((2, 1))})
        >>> train.params()["W"].tolist()
        [[1.0], [1.0]]
        """
        self.store.upload_params(record, strict, "upload_params")

    @helpful
    def params(self) -> dict[str, Array]:
        """Return the parameters by name, as NumPy arrays, after the steps and runs queued so far. As `download_params`.

        >>> sorted(train.params())
        ['W', 'b']
        """
        return self.store.download_params()

    @helpful
    def set_params(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite parameters by name: another name for `upload_params`.

        >>> train.set_params({"W": np.ones((2, 1))})
        >>> train.params()["W"].tolist()
        [[1.0], [1.0]]
        """
        self.store.upload_params(record, strict, "set_params")

    @helpful
    def states(self) -> dict[str, Array]:
        """Return the states of the model by name, as NumPy arrays, after the steps and runs queued so far.

        `tg.Module.state` declares a state; the running means of `nn.BatchNorm` are states.

        >>> train.states()
        {}
        """
        return self.store.states()

    @helpful
    def set_states(self, record: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite states by name, after the steps and runs queued so far. States missing from `record` do not change.

        record:  arrays by name.
        strict:  True requires every state in `record`.
        Raises:  InputError naming every unknown name, wrong shape, wrong dtype and NaN, before anything is written.
        As load_state_dict of PyTorch, for the buffers only.

        >>> train.set_states(train.states())     # all of them, as they are
        """
        self.store.set_states(record, strict)
