"""Optuna proposes learning rates and weight decays, and `tg.sweep` trains a round of proposals in one program.

Run: pip install optuna; python examples/optuna_sweep.py

On several machines, pass `optuna.create_study` a storage that all of them can reach, such as a database, and run the
program on each. They then share one study.
"""

from __future__ import annotations

import numpy as np
import optuna

import tracegrad as tg
from tracegrad import nn, optim


class Net(tg.Module):
    def __init__(self) -> None:
        self.l1, self.l2 = nn.Linear(4, 32), nn.Linear(32, 1)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.tanh(self.l1(x)))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(m(x), y)


def main(rounds: int = 5, members: int = 16, steps: int = 300, storage: str | None = None) -> optuna.Study:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(192, 4)).astype(np.float32)
    y = np.sin(x[:, :1]) * x[:, 1:2] + 0.1 * rng.normal(size=(192, 1)).astype(np.float32)
    study = optuna.create_study(
        study_name="rates", storage=storage, load_if_exists=True, sampler=optuna.samplers.TPESampler(seed=0)
    )
    inputs = {"x": (128, 4), "y": (128, 1)}
    start = [1e-3] * members
    with tg.sweep(model=Net(), loss=loss, inputs=inputs, optimizer=optim.adamw(), seeds=list(range(members)), lr=start,
                  weight_decay=start) as sweep:  # fmt: skip
        held_out = sweep.attach(forward=loss, inputs={"x": (64, 4), "y": (64, 1)})
        for _ in range(rounds):
            trials = [study.ask() for _ in range(members)]
            rates = [t.suggest_float("lr", 1e-4, 1.0, log=True) for t in trials]
            decays = [t.suggest_float("weight_decay", 1e-4, 1.0, log=True) for t in trials]
            sweep.reset()
            sweep.set(lr=rates, weight_decay=decays)  # compiles nothing
            sweep.run_steps(steps, x=x[:128], y=y[:128]).result()
            for trial, score in zip(trials, held_out.run(x=x[128:], y=y[128:]).output, strict=True):
                finite = bool(np.isfinite(score))  # a rate that diverges is a failed trial
                study.tell(trial, float(score) if finite else None, None if finite else optuna.trial.TrialState.FAIL)
    print(f"best of {len(study.trials)} trials: {study.best_value:.4f} at {study.best_params}")
    return study


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    main()
