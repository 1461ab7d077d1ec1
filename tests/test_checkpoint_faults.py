"""A checkpoint with anything wrong in it is refused in one clear message, and changes nothing of the training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim, safetensors
from tracegrad.hypers import UNIT
from tracegrad.lr import Schedule

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def loss(m: Any, x: Any) -> Any:
    return tg.mean(tg.square(m(x)))


def compiled(optimizer: Any = None, **more: Any) -> tg.CompiledTraining:
    return tg.compile(
        model=nn.Linear(3, 2), loss=loss, inputs={"x": (4, 3)}, seed=5, device="cpu",
        optimizer=optimizer or optim.adamw(lr=lr.linear(0.1, 0.01, 9)), **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def train() -> Iterator[tg.CompiledTraining]:
    with compiled() as t:
        t.step(x=X).result()
        yield t


@pytest.fixture(scope="module")
def saved(train: tg.CompiledTraining, tmp_path_factory: pytest.TempPathFactory) -> safetensors.File:
    path = tmp_path_factory.mktemp("saved") / "c"
    train.save(path)
    return safetensors.read(path)


LINEAR = {"kind": "linear", "peak": 0.1, "final": 0.01, "steps": 9}
FAULTS: list[tuple[str, Any, str]] = [
    ("step", 2**32, r"step: expected an integer from 0 to 2\*\*32 - 1, got 4294967296"),
    ("step", -1, r"step: expected an integer .* got -1"),
    ("step", 1.5, r"step: .* got 1.5"),
    ("step", 1e3, r"step: .* got 1000.0"),
    ("step", True, r"step: .* got True"),
    ("step", "3", r"step: .* got '3'"),
    ("step", None, r"step: .* got None"),
    ("step", [[[]]], r"step: .* got \[\[\[\]\]\]"),
    ("step", 10**4000, r"step: .* got a number of thousands of digits|step: .* got 10000"),
    ("seed", 2**32, r"seed: expected .* got 4294967296"),
    ("seed", -7, r"seed: .* got -7"),
    ("seed", 0.0, r"seed: .* got 0.0"),
    ("lr_start", 0, r"lr_start: expected an integer from 1 to"),
    ("lr_start", "soon", r"lr_start: .* got 'soon'"),
    ("lr", [], r"lr: expected an object, got \[\]"),
    ("lr", 0.1, r"lr: expected an object, got 0.1"),
    ("lr", {}, r"lr: schedule of unknown kind None"),
    ("lr", {**LINEAR, "kind": "evil"}, r"lr: schedule of unknown kind 'evil'; known are constant, linear"),
    ("lr", {**LINEAR, "kind": ["x"]}, r"lr: schedule of unknown kind"),
    ("lr", {**LINEAR, "peak": 1e300}, r"lr: lr.linear: peak must be finite in f32"),
    ("lr", {**LINEAR, "peak": -1}, r"lr: lr.linear: peak must be at least 0"),
    ("lr", {**LINEAR, "peak": "x"}, r"lr: lr.linear: peak must be a number"),
    ("lr", {**LINEAR, "steps": 0}, r"lr: lr.linear: steps must be"),
    ("lr", {**LINEAR, "more": 0}, r"lr: schedule linear: more is unknown"),
    ("lr", {"kind": "linear"}, r"lr: schedule linear: peak is missing, final is missing"),
    ("lr", {"kind": "multi_step", "peak": 0.1, "milestones": 5}, r"lr: "),
    ("lr", {"kind": "multi_step", "peak": 0.1, "milestones": [None, "x"]}, r"lr: "),
    ("lr", {"kind": "warmup", "peak": 0.1, "steps": 3, "after": {"kind": "x"}}, r"lr: schedule of unknown kind 'x'"),
    ("lr", {"kind": "warmup", "peak": 0.1, "steps": 3, "after": []}, r"lr: "),
    ("hyper", [], r"hyper: expected an object"),
    ("hyper", {"beta1": 1.0}, r"hyper: beta1 must be at least 0 and below 1, got 1.0"),
    ("hyper", {"beta1": None}, r"hyper: beta1 must be a number, got None"),
    ("hyper", {"eps": 1e39}, r"hyper: eps must be finite in f32"),
    ("hyper", {"bogus\x1b[2J": 1.0}, r"hyper: 'bogus\\x1b\[2J' is not a value of this training; its values are beta1"),
    ("optimizer", 3, r"optimizer: expected an object, got 3"),
    ("optimizer", {}, r"optimizer: the kind is None, here it is 'adamw'\n  the parameters fit"),
    ("optimizer", {"kind": "adam", "state": {"m": 0, "v": 0}}, r"optimizer: the kind is 'adam', here it is 'adamw'"),
    ("optimizer", {"kind": "adamw", "state": {"m": 0}}, r"optimizer: the state is \{'m': 0\}, here it is"),
]  # fmt: skip
RAW: list[tuple[str, str | None, str]] = [
    ("step", None, "step: missing"),
    ("optimizer", None, "optimizer: missing"),
    ("step", "", "step: it is not JSON"),
    ("step", "{", "step: it is not JSON"),
    ("step", "NaN", "step: it holds NaN"),
    ("hyper", '{"eps": Infinity}', "hyper: it holds Infinity"),
    ("hyper", '{"eps": 1, "eps": 2}', "hyper: it names 'eps' twice"),
    ("lr", "[" * 100_000, "lr: it is nested more than 64 levels"),
    ("lr", '{"kind":"warmup","peak":0.1,"steps":3,"after":' * 80 + "0.1" + "}" * 80, "lr: it is nested more than 64"),
    ("tracegrad", "9", r"has layout '9', this library reads '1'"),
    ("tracegrad", "\x1b[31m", r"has layout '\\x1b\[31m'"),
]  # fmt: skip


def refused(train: tg.CompiledTraining, path: Path, message: str) -> None:
    before = train.digest()
    with pytest.raises(tg.InputError, match=message) as e:
        train.load(path)
    assert train.digest() == before
    text = str(e.value)
    assert text.startswith(f"load: {path}") and "\x1b" not in text and len(text.splitlines()) <= 6


@pytest.mark.parametrize(("name", "value", "message"), FAULTS, ids=[f"{row[0]}{k}" for k, row in enumerate(FAULTS)])
def test_absurd_metadata_change_nothing(
    train: tg.CompiledTraining, saved: safetensors.File, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    safetensors.write(tmp_path / "c", saved.tensors, {**saved.metadata, name: json.dumps(value)})
    refused(train, tmp_path / "c", message)


@pytest.mark.parametrize(("name", "text", "message"), RAW, ids=[f"{row[0]}{k}" for k, row in enumerate(RAW)])
def test_damaged_metadata_change_nothing(
    train: tg.CompiledTraining, saved: safetensors.File, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    metadata = {k: v for k, v in {**saved.metadata, name: text}.items() if v is not None}
    safetensors.write(tmp_path / "c", saved.tensors, metadata)
    refused(train, tmp_path / "c", message)


@pytest.mark.parametrize("unit", [0.0, -1.0, 1e-300, 3e38, None, "1", [1.0], {"beta1": 0.5}], ids=str)
def test_no_file_sets_the_unit_of_squares(
    train: tg.CompiledTraining, saved: safetensors.File, tmp_path: Path, unit: Any
) -> None:
    """The host chooses it, whatever a file says: the next step is the same, and no file is written with it."""

    def after(file: safetensors.File, path: Path) -> tuple[str, Mapping[str, str]]:
        safetensors.write(path, file.tensors, file.metadata)
        train.load(path)
        train.step(x=X).result()
        train.save(path)
        return train.digest(), safetensors.read(path).metadata

    assert UNIT not in json.loads(saved.metadata["hyper"])
    hyper = json.dumps({**json.loads(saved.metadata["hyper"]), UNIT: unit})
    hostile = safetensors.File(saved.tensors, {**saved.metadata, "hyper": hyper})
    assert after(hostile, tmp_path / "hostile") == after(saved, tmp_path / "honest")
    train.load(tmp_path / "honest")


def test_parameters_that_are_not_finite_and_odd_names_change_nothing(
    train: tg.CompiledTraining, saved: safetensors.File, tmp_path: Path
) -> None:
    for name, value, message in (
        ("param/W", np.full((3, 2), np.nan, np.float32), r"param/W: 6 NaN of 6 values"),
        ("opt/v/b", np.float32([np.nan, 1]), r"opt/v/b: 1 NaN of 2 values"),
        ("param/W", np.zeros((3, 2), np.int32), r"param/W: expected f32\[3,2\], got i32\[3,2\]"),
        ("\x1b[2J" + "x" * 500, np.zeros(1, np.float32), r"\\x1b\[2Jxxx.*\.\.\.: not in this training"),
    ):
        safetensors.write(tmp_path / "c", {**saved.tensors, name: value}, saved.metadata)
        refused(train, tmp_path / "c", message)


def test_a_checkpoint_of_another_optimizer_with_the_same_states_is_refused(tmp_path: Path) -> None:
    with compiled(optim.adam(lr=0.1)) as a, compiled(optim.adamw(lr=0.1, weight_decay=0.1)) as b:
        a.save(tmp_path / "c")
        with pytest.raises(tg.InputError, match=r"the kind is 'adam', here it is 'adamw'\n.*optimizer=False"):
            b.load(tmp_path / "c")


@dataclass(frozen=True)
class Halving(Schedule):
    """A schedule that no file can describe."""

    first: float
    start: int | None = None

    def value(self, s: int) -> float:
        return self.first / 2**s


def test_a_schedule_of_the_users_own_is_kept(tmp_path: Path) -> None:
    with compiled(optim.sgd(lr=Halving(0.5))) as a, compiled(optim.sgd(lr=Halving(0.5))) as b:
        a.step(x=X).result()
        a.save(tmp_path / "c")
        b.load(tmp_path / "c")
        assert a.digest() == b.digest()
        with compiled(optim.sgd(lr=0.5)) as c, pytest.raises(tg.InputError, match="lr: schedule of unknown kind 'halv"):
            c.load(tmp_path / "c")


def test_a_flipped_bit_anywhere_is_found(train: tg.CompiledTraining, tmp_path: Path) -> None:
    """Parameters with another bit were taken: the file had no checksum."""
    path = tmp_path / "c"
    train.save(path)
    good, before = path.read_bytes(), train.digest()
    for at in range(0, len(good), 7):  # header, metadata and values
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        if safetensors.SUM.encode() in bad:  # without this name, nothing is compared, and all else is as it was
            with pytest.raises(tg.InputError) as told:
                train.load(path)
            assert str(path) in str(told.value)
        assert train.digest() == before
    path.write_bytes(good)
    train.load(path)


def test_a_checksum_follows_what_our_writer_writes_and_refuses_what_others_changed(
    train: tg.CompiledTraining, saved: safetensors.File, tmp_path: Path
) -> None:
    path, halved = tmp_path / "c", {n: x / 2 if n == "param/W" else x for n, x in saved.tensors.items()}
    safetensors.write(path, {n: x.astype(x.dtype.newbyteorder(">")) for n, x in halved.items()}, saved.metadata)
    train.load(path)
    assert (train.params()["W"] == halved["param/W"]).all()
    numpy = pytest.importorskip("safetensors.numpy")
    other_order = dict(reversed(saved.tensors.items()))
    numpy.save_file(other_order, path, saved.metadata)
    train.load(path)
    numpy.save_file(halved, path, saved.metadata)
    with pytest.raises(tg.InputError, match=r"is damaged or was changed; .* take tracegrad_crc32 out"):
        train.load(path)
    numpy.save_file(halved, path, {n: x for n, x in saved.metadata.items() if n != safetensors.SUM})
    train.load(path)
    assert (train.params()["W"] == halved["param/W"]).all()


def test_options_from_numpy_are_saved(tmp_path: Path) -> None:
    """They were kept as given: the save failed with TypeError."""
    made = (optim.rmsprop(lr=0.1, centered=np.bool_(True)), optim.muon(lr=0.1, adjust_lr=np.array("original")))  # pyright: ignore
    for optimizer in made:
        with compiled(optimizer) as train:
            train.save(tmp_path / "c")
            train.load(tmp_path / "c")
