"""Files that TensorBoard reads, and the scalars beside the loss in history, log and data frame."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.training import events

rng = np.random.default_rng(0)
X = rng.standard_normal((40, 3)).astype(np.float32)
Y = X[:, :1] - 0.5 * X[:, 1:2]


def loss(m: Any, x: Any, y: Any) -> Any:
    found = m(x)
    return tg.mse_loss(found, y), {"mae": tg.l1_loss(found, y), "each": found}


def training() -> tg.CompiledTraining:
    inputs: dict[str, Any] = {"x": (None, 3), "y": (None, 1)}
    return tg.compile(model=nn.Linear(3, 1), loss=loss, inputs=inputs, optimizer=optim.adam(1e-2), seed=0, device="cpu")


def sum_of(data: bytes) -> int:
    """CRC-32C bit by bit, by its definition."""
    c = 0xFFFFFFFF
    for bit in [byte >> k & 1 for byte in data for k in range(8)]:
        c = c >> 1 ^ (0x82F63B78 if (c ^ bit) & 1 else 0)
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data: bytes) -> dict[int, Any]:
    """A message of protocol buffers, whose fields occur once each."""
    found: dict[int, Any] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return n

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found[key >> 3] = varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        found[key >> 3] = data[at : at + size]
        at += size
    return found


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Tag, step and value of each event."""
    (path,) = folder.iterdir()
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + size]
        assert struct.unpack("<I", data[8:12])[0] == sum_of(data[:8])
        assert struct.unpack("<I", data[12 + size : 16 + size])[0] == sum_of(body)
        data = data[16 + size :]
        event = fields(body)
        assert struct.unpack("<d", event[1])[0] > 1.7e9
        if 5 not in event:
            assert event[3] == b"brain.Event:2" and not found
            continue
        value = fields(fields(event[5])[1])
        found.append((value[1].decode(), event[2], struct.unpack("<f", value[2])[0]))
    return found


def test_the_checksum_is_castagnolis() -> None:
    unmasked = (events.checksum(b"123456789") - events.MASK) & 0xFFFFFFFF
    assert (unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF == 0xE3069283  # the check value of its catalogue


@pytest.mark.parametrize("value", [1e39, -1e39, math.inf, 0.0, 1e-46])
def test_values_beyond_f32_are_infinite(value: float) -> None:
    event = fields(events.scalar("a", value, 300, 0.0))
    got = struct.unpack("<f", fields(fields(event[5])[1])[2])[0]
    with np.errstate(over="ignore"):
        assert got == np.float64(value).astype(np.float32) and event[2] == 300


def test_tensorboard_gets_losses_scalars_metrics_and_rates(tmp_path: Path) -> None:
    board = tg.TensorBoard(tmp_path / "runs" / "one")
    with training() as train:
        h = train.fit(x=X, y=Y, batch_size=8, epochs=2, validation=0.2, callbacks=[board], progress=False)
    found = scalars(tmp_path / "runs" / "one")
    by_tag = {tag: [(step, value) for t, step, value in found if t == tag] for tag, _, _ in found}
    assert by_tag.keys() == {"loss", "mae", "val_loss", "val_mae", "lr"}
    assert by_tag["loss"] == list(zip(h.step, h.loss, strict=True))
    assert by_tag["mae"] == [(step, aux["mae"]) for step, aux in zip(h.step, h.aux, strict=True)]
    assert by_tag["val_loss"] == [(m["step"], pytest.approx(m["val_loss"], rel=1e-6)) for m in h.metrics]
    assert by_tag["lr"] == [(4, pytest.approx(1e-2)), (8, pytest.approx(1e-2))]


def test_the_file_is_whole_after_an_error(tmp_path: Path) -> None:
    ended: list[str] = []

    class Ends:
        def on_end(self) -> None:
            ended.append("end")

    def stop(state: Any) -> None:
        raise RuntimeError("of a hook")

    with training() as train, pytest.raises(RuntimeError, match="of a hook"):
        train.fit(x=X, y=Y, on_epoch=stop, callbacks=[tg.TensorBoard(tmp_path), Ends()], progress=False)
    assert [tag for tag, *_ in scalars(tmp_path)] == ["loss", "mae"] * 2 and ended == ["end"]


def test_history_log_and_frame_have_the_scalars_beside_the_loss(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    with training() as train:
        h = train.fit(x=X, y=Y, batch_size=10, log=tmp_path / "log", evaluate=lambda t: {"mae": 2.0}, progress=False)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[:4] == [{"step": k + 1, "loss": h.loss[k], "mae": h.aux[k]["mae"]} for k in range(4)]
    frame = h.to_frame()
    assert list(frame.columns) == ["loss", "mae", "mae_evaluated"]
    assert list(frame["mae"]) == [aux["mae"] for aux in h.aux] and frame["mae_evaluated"].iloc[-1] == 2.0
