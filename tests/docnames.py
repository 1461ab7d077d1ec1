"""What the examples in docstrings take for granted: modules by their usual names, and a small training."""

from __future__ import annotations

from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import extend, init, lr, metrics, nn, optim


def predict(m: Any, x: Any) -> Any:
    return m(x)


def loss(m: Any, x: Any, y: Any) -> Any:
    return tg.mse_loss(predict(m, x), y)


class Names(dict[str, Any]):
    """Names of an example. `train` and `infer` are compiled when they are read first."""

    def __missing__(self, name: str) -> Any:
        if name == "train":
            self[name] = tg.compile(
                model=nn.Linear(2, 1), loss=loss, inputs={"x": (4, 2), "y": (4, 1)}, keep_grads=True, seed=0,
                optimizer=optim.sgd(lr=0.1, momentum=0.9), device="cpu",
            )  # fmt: skip
        elif name == "infer":
            self[name] = self["train"].attach(forward=predict, inputs={"x": (None, 2)})
        else:
            raise KeyError(name)
        return self[name]


def names(source: str = "") -> dict[str, Any]:
    """The names for an example; a training only where `source` speaks of one."""
    tg.manual_seed(0)
    found = Names(np=np, tg=tg, nn=nn, optim=optim, lr=lr, init=init, metrics=metrics, extend=extend, predict=predict)
    found |= {"x": np.ones((4, 2), np.float32), "y": np.zeros((4, 1), np.float32)}
    for name in ("train", "infer"):
        if name in source:
            found[name]
    return dict(found)
