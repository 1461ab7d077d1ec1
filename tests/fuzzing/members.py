"""A training of a program as a sweep: every second member has the program's own hyperparameters, and so its results.

The members between have half of each, so that a value which one member takes of another one shows.
"""

from __future__ import annotations

import numpy as np

import tracegrad as tg
from fuzzing.differentiated import Outputs
from fuzzing.open_sizes import farthest
from fuzzing.program import Program
from fuzzing.table import NoCounterpartError
from fuzzing.training import function_of, losses_of, model_of, optimizer_of, parts, types_of_inputs

COUNTS = (3, 1, 2, 64, 65)


def trained_in_a_sweep(program: Program, device: str) -> Outputs:
    """The losses and parameters of the members with the program's own values: what is farthest from the first's.

    Programs of odd seeds have all hyperparameters of their optimizer in lists, the others the rate alone.
    """
    losses = losses_of(program)
    if len(losses) > 1:
        raise NoCounterpartError("a sweep has one loss")
    count, optimizer = COUNTS[program.seed % len(COUNTS)], optimizer_of(losses[0].how)
    rate = 1.0 if program.train.get("schedule") else program.train["lr"]  # a factor on the schedule
    own = {**(optimizer.hyper if program.seed % 2 else {}), "lr": rate}
    values = {n: [x if k % 2 == 0 else 0.5 * x for k in range(count)] for n, x in own.items()}
    made = {"model": model_of(program), "loss": function_of(program, losses[0]), "inputs": types_of_inputs(program)}
    inputs = parts(program)[1]
    found: list[Outputs] = [{} for _ in range(0, count, 2)]
    with tg.sweep(**made, optimizer=optimizer, device=device, **values) as sweep:
        for step in range(program.train["steps"]):
            each = sweep.step(**inputs).aux["losses"]
            for k, results in enumerate(found):
                results[f"loss{step}"] = each[2 * k]
        averages = sweep.train.download_params(ema=True) if program.train.get("options", {}).get("ema") else {}
        for k, results in enumerate(found):
            results |= {n.removeprefix("held."): x for n, x in sweep.params(2 * k).items()}
            results |= {f"{n.removeprefix('models.held.')}.ema": x[2 * k] for n, x in averages.items()}
            results |= sweep.states(2 * k)
    return {n: farthest([np.asarray(one[n]) for one in found]) for n in found[0]}
