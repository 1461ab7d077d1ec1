"""Ray Tune proposes learning rates, and each of its trials trains a sweep of seeds in one program.

Run: pip install "ray[tune]"; python examples/ray_sweep.py

On several machines, `ray start --head` on one and `ray start --address=...` on the others make a cluster; call
`ray.init(address="auto")` instead. Trials then run on all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
from ray import tune

import tracegrad as tg
from tracegrad import nn, optim

SEEDS = (0, 1, 2, 3)


class Net(tg.Module):
    def __init__(self) -> None:
        self.l1, self.l2 = nn.Linear(4, 32), nn.Linear(32, 1)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.tanh(self.l1(x)))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(m(x), y)


def trial(config: dict[str, Any]) -> dict[str, float]:
    """The mean loss on held-out data over the seeds; infinite if a member diverged."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(192, 4)).astype(np.float32)
    y = np.sin(x[:, :1]) * x[:, 1:2] + 0.1 * rng.normal(size=(192, 1)).astype(np.float32)
    inputs = {"x": (128, 4), "y": (128, 1)}
    with tg.sweep(model=Net(), loss=loss, inputs=inputs, optimizer=optim.adamw(), seeds=SEEDS,
                  lr=[config["lr"]] * len(SEEDS), device="cpu") as sweep:  # fmt: skip
        sweep.run_steps(config["steps"], x=x[:128], y=y[:128]).result()
        held_out = sweep.attach(forward=loss, inputs={"x": (64, 4), "y": (64, 1)})
        scores = held_out.run(x=x[128:], y=y[128:]).output
    return {"score": float(np.mean(scores)) if np.isfinite(scores).all() else float("inf")}


def main(samples: int = 8, steps: int = 300, cpus: int = 2, folder: str | None = None) -> Any:
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        space = {"lr": tune.loguniform(1e-4, 1.0), "steps": steps}
        config = tune.TuneConfig(num_samples=samples, metric="score", mode="min")
        run = tune.RunConfig(storage_path=folder, verbose=0)
        results = tune.Tuner(trial, param_space=space, tune_config=config, run_config=run).fit()
        best = results.get_best_result()
        print(f"best of {len(results)} trials: {best.metrics['score']:.4f} at lr {best.config['lr']:.4f}")
        return results
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
