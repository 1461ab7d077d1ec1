"""Small things that users reach for: names, completion, temporaries, a report that fits a screen, the version."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import init, lr, nn, optim
from tracegrad.commands import cli


class Model(tg.Module):
    def __init__(self) -> None:
        self.blocks = [nn.TransformerBlock(8, 2) for _ in range(3)]


def forward(m: Model, x: Any) -> Any:
    for block in m.blocks:
        x = tg.remat(block)(x)
    return x


def loss(m: Model, x: Any) -> Any:
    return tg.sum(tg.square(forward(m, x)))


X = np.ones((2, 3, 8), np.float32)


def compiled() -> tg.CompiledTraining:
    return tg.compile(model=Model(), loss=loss, inputs={"x": X.shape}, optimizer=optim.sgd(0.0), seed=0, device="cpu")


def test_a_temporary_lives_until_its_result_is_there() -> None:
    value = compiled().step(x=X).loss
    assert value == pytest.approx(
        float(np.sum(compiled().attach(forward=forward, inputs={"x": X.shape}).run(x=X).output ** 2))
    )
    pending = compiled().step(x=X)
    worker = pending.owner.worker
    assert pending.loss == value
    gc.collect()
    assert pending.owner is None and worker.closed  # and no longer than that


def test_an_explanation_fits_a_screen_unless_all_is_wanted() -> None:
    with compiled() as train:
        lines, everything = str(train.explain()).splitlines(), str(train.explain(verbose=True))
        assert len(train.explain().dispatches) > 16  # so that some are left out
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert any("dispatches more" in line for line in lines) and "@compute" in everything and len(everything) > 20_000


def test_completion_lists_what_is_public() -> None:
    with compiled() as train:
        names = dir(train)
        assert {"step", "fit", "attach", "seed"} <= {*names}
        assert not {"store", "worker", "remedies", "called"} & {*names} and not [n for n in names if n[0] == "_"]
    assert {"GRU", "MultiheadAttention", "Linear"} <= {*dir(nn)}


NAMES = [
    (lr, "cosine", "lr.cosine_annealing"), (lr, "StepLR", "lr.staircase"), (lr, "ReduceLROnPlateau", "lr.plateau"),
    (lr, "LambdaLR", "derive tg.lr.Schedule"), (lr, "get_cosine_schedule_with_warmup", "lr.warmup(peak, 100, after="),
    (init, "he", "init.kaiming()"), (init, "constant", "init.literal"), (init, "kaiming_normal_", "init.kaiming()"),
    (tg, "scaled_dot_product_attention", "tg.attention"),
    (tg, "fit", "train.fit"), (nn, "Transformer", "nn.TransformerBlock"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "remedy"), NAMES, ids=[n for _, n, _ in NAMES])
def test_names_of_other_libraries_say_what_to_write(module: Any, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match="has no") as e:
        getattr(module, name)
    assert remedy in str(e.value)


def test_remat_is_the_name_and_checkpoint_still_works() -> None:
    assert tg.checkpoint is tg.remat and tg.remat.__name__ == "remat"


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"tracegrad {tg.__version__}\n"
