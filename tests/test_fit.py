"""The training loop: what it iterates, when it stops, what it calls, and what it shows."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.training.progress import Progress


class Line(tg.Module):
    def __init__(self):
        self.l = nn.Linear(1, 1)


def loss(m, x, y):
    return tg.mean(tg.square(m.l(x) - y))


RNG = np.random.default_rng(0)
BATCHES = [(x, 3 * x + 1) for x in RNG.standard_normal((5, 8, 1)).astype(np.float32)]


def compiled():
    return tg.compile(
        model=Line(), loss=loss, inputs={"x": (8, 1), "y": (8, 1)}, optimizer=optim.sgd(lr=0.1), seed=0, device="cpu"
    )


@pytest.fixture
def train():
    with compiled() as t:
        yield t


def test_epochs_over_tuples(train):
    history = train.fit(BATCHES, epochs=4, progress=False)
    assert len(history.loss) == 20 and history.step == list(range(1, 21)) and history.epochs == 4
    assert history.loss[-1] < 0.1 * history.loss[0] and history.seconds > 0
    with compiled() as by_hand:
        assert history.loss == [by_hand.step(x=x, y=y).loss for _ in range(4) for x, y in BATCHES]


def test_dicts_and_generators(train):
    assert len(train.fit(({"x": x, "y": y} for x, y in BATCHES), progress=False).loss) == 5


def test_a_number_of_steps_cycles_through_the_data(train):
    history = train.fit(BATCHES, steps=12, progress=False)
    assert len(history.loss) == 12 and history.epochs == 3
    drawn = []

    def endless():
        while True:
            drawn.append(1)
            yield BATCHES[0]

    assert len(train.fit(endless(), steps=7, progress=False).loss) == 7 and len(drawn) == 7


def test_an_exhausted_generator_is_an_error_not_an_endless_loop(train):
    with pytest.raises(tg.InputError, match=r"no batch in epoch 2.*iterated once only"):
        train.fit(iter(BATCHES), epochs=2, progress=False)
    with pytest.raises(tg.InputError, match="no batch in epoch 1"):
        train.fit([], progress=False)


def test_a_torch_data_loader(train):
    torch = pytest.importorskip("torch")
    data = torch.utils.data
    xs = torch.tensor(np.concatenate([x for x, _ in BATCHES]))
    loader = data.DataLoader(data.TensorDataset(xs, 3 * xs + 1), batch_size=8, shuffle=True)
    assert len(train.fit(loader, epochs=2, progress=False).loss) == 10


def test_evaluation_every_so_often_and_at_the_end(train):
    seen = []

    def evaluate(t):
        seen.append(t)
        return {"w": t.download_params()["l.W"].item()}

    history = train.fit(BATCHES, epochs=2, every=4, evaluate=evaluate, progress=False)
    assert [m["step"] for m in history.metrics] == [4, 8, 10] and all(t is train for t in seen)
    assert abs(history.metrics[-1]["w"] - 3) < abs(history.metrics[0]["w"] - 3)
    assert [m["step"] for m in train.fit(BATCHES, epochs=2, evaluate=evaluate, progress=False).metrics] == [15, 20]


def test_callbacks_see_every_step_and_can_stop(train):
    seen = []

    def callback(state):
        seen.append((state.step, state.epoch, state.loss))
        if state.step == 7:
            state.stop = True
        assert state.train is train and state.history.loss[-1] == state.loss

    history = train.fit(BATCHES, epochs=100, callbacks=[callback], progress=False)
    assert [s[:2] for s in seen] == [(k, 1 + (k - 1) // 5) for k in range(1, 8)]
    assert history.loss == [s[2] for s in seen] and train.step(x=BATCHES[0][0], y=BATCHES[0][1]).step == 8


def test_a_failed_step_ends_it_with_its_error(train):
    bad = [BATCHES[0], (BATCHES[1][0] * np.nan, BATCHES[1][1]), *BATCHES[2:]]
    with pytest.raises(tg.NonFiniteError, match="step 2"):
        train.fit(bad, progress=False)
    assert np.isfinite(train.download_params()["l.W"]).all()
    with pytest.raises(tg.InputError, match="drop_last"):
        train.fit([(x[:3], y[:3]) for x, y in BATCHES], progress=False)
    with pytest.raises(tg.InputError, match="a batch has 3 values, but the inputs are x, y"):
        train.fit([(1, 2, 3)], progress=False)
    for wrong in ({"epochs": 0}, {"steps": -1}, {"every": 1.5}):
        with pytest.raises(tg.InputError, match="must be an integer of at least 1"):
            train.fit(BATCHES, progress=False, **wrong)


def test_the_log_is_one_json_line_a_record(train, tmp_path):
    path = tmp_path / "log.jsonl"
    history = train.fit(BATCHES, evaluate=lambda t: {"score": np.float32(0.5)}, log=path, progress=False)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["loss"] for r in records[:5]] == history.loss and records[5] == {"step": 5, "score": 0.5}
    seen = []
    train.fit(BATCHES, log=seen.append, progress=False)
    assert [r["step"] for r in seen] == [6, 7, 8, 9, 10]


class Terminal(io.StringIO):
    def isatty(self):
        return True


class OutStream(io.StringIO):
    """What stderr is in a cell of Jupyter."""

    __module__ = "ipykernel.iostream"


@pytest.mark.parametrize("stream", [Terminal, OutStream])
def test_the_bar_on_a_terminal_and_in_a_notebook(stream, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = stream()
    bar = Progress(True, 4, out)
    for value in (2.0, 4.0):
        bar.update(value)
    bar.metrics({"accuracy": 0.75})
    bar.close()
    text = out.getvalue()
    assert text.endswith("\n") and "[============            ] 2/4  loss 3 " in text
    assert "steps/s" in text and "s left" in text and "accuracy 0.75" in text


def test_the_bar_in_a_pipe_is_plain_lines_and_may_be_off():
    out = io.StringIO()
    bar = Progress(True, None, out)
    bar.update(1.5)
    bar.close()
    assert out.getvalue().startswith("1  loss 1.5  ") and "\r" not in out.getvalue() and out.getvalue().count("\n") == 1
    off = io.StringIO()
    quiet = Progress(False, 4, off)
    quiet.update(1.0)
    quiet.close()
    assert off.getvalue() == ""


def test_progress_goes_to_stderr(train, capsys):
    train.fit(BATCHES)
    captured = capsys.readouterr()
    assert captured.out == "" and "5/5" in captured.err
