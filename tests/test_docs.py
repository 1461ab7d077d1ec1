"""The pages of docs/: their code runs, the site builds strictly, and every public name has a place in it.

docs/transforms.md and docs/eager.md are run by the tests of these subjects, the cookbook by tests/test_cookbook.py.
A block behind the comment `<!-- not-run: reason -->` is no program.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from pages import DOCS, HOME, blocks, run
from tracegrad import lr, nn, optim

ELSEWHERE = {"transforms.md", "eager.md", "architecture.md"}


def basics() -> dict[str, Any]:
    """What every page takes for granted."""
    return {"np": np, "tg": tg, "nn": nn, "optim": optim, "lr": lr, "__name__": "__main__"}


def classifier() -> dict[str, Any]:
    """Images, labels and batches that the guide speaks of."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(128, 784)).astype(np.float32), rng.integers(0, 10, 128).astype(np.int32)

    class Classifier(tg.Module):
        def __init__(self) -> None:
            self.l1, self.l2 = nn.Linear(784, 64), nn.Linear(64, 10)

        def __call__(self, x: Any) -> Any:
            return self.l2(tg.relu(self.l1(x)))

    def logits(m: Any, x: Any) -> Any:
        return m(x)

    def loss(m: Any, x: Any, y: Any) -> Any:
        guesses = tg.argmax(logits(m, x), axis=-1)
        return tg.cross_entropy(logits(m, x), y), {"guesses": guesses}

    inputs = {"x": (64, 784), "y": tg.i32[64]}
    train = tg.compile(model=Classifier(), loss=loss, inputs=inputs, optimizer=optim.adamw(lr=1e-3), seed=0)
    return {
        "images": images, "labels": labels, "test_images": images, "test_labels": labels, "logits": logits,
        "loss": loss, "inputs": inputs, "train": train, "x": images[:64], "y": labels[:64], "model": Classifier(),
        "Net": Classifier, "Wider": Classifier, "batches": [{"x": images[:64], "y": labels[:64]}],
        "history": train.fit(x=images, y=labels, progress=False),
    }  # fmt: skip


def sine() -> dict[str, Any]:
    """The training that docs/browser.md exports."""
    xs = np.linspace(-3, 3, 64, dtype=np.float32).reshape(-1, 1)

    def predict(m: Any, x: Any) -> Any:
        return m(x)

    def loss(m: Any, x: Any, y: Any) -> Any:
        return tg.mse_loss(predict(m, x), y)

    train = tg.compile(
        model=nn.Linear(1, 1), loss=loss, inputs={"x": (8, 1), "y": (8, 1)}, optimizer=optim.adam(lr=1e-3)
    )
    return {"train": train, "predict": predict, "xs": xs, "ys": np.sin(xs)}


def recurrent() -> dict[str, Any]:
    """The cell that docs/scan.md runs."""

    class Cell(tg.Module):
        input, state, output = (staticmethod(lambda x: x) for _ in range(3))

    width = 4
    return {"m": Cell, "batch": 2, "width": width, "xs": np.ones((5, 2, width), np.float32)}


# Pages that are not here take a classifier for granted
SETUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "index.md": dict,
    "tutorial.md": dict,
    "browser.md": sine,
    "scan.md": recurrent,
}
PAGES = sorted(p.name for p in DOCS.glob("*.md") if p.name not in ELSEWHERE and blocks(p.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGRAD_DEVICE", "cpu")
    names = basics() | SETUPS.get(name, classifier)()
    for block in blocks((DOCS / name).read_text(encoding="utf-8")):
        if block.note == "anew":
            names = basics() | SETUPS.get(name, classifier)()
        if block.note != "not-run":
            try:
                run(block.code, f"{Path(name).stem}_{block.line}", tmp_path, monkeypatch, names)
            except Exception as e:
                raise AssertionError(f"docs/{name}, line {block.line}: {e}") from e


def test_the_guide_and_the_numerics_list_every_optimizer() -> None:
    """Those without bounds, which `Transform.bounds` gives, are in the second table."""
    guide, numerics = ((DOCS / name).read_text(encoding="utf-8") for name in ("guide.md", "numerics.md"))
    made = [n for n in optim.__all__ if (getattr(optim, n).__doc__ or "").startswith("Make ")]
    for page, text in (("guide.md", guide), ("numerics.md", numerics)):
        rows = " ".join(line for line in text.splitlines() if line.startswith("| `"))
        lacking = [n for n in made if n != "custom" and f"`{n}`" not in rows]
        assert not lacking, f"add these optimizers to the table of docs/{page}: {lacking}"


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs the extra docs")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """Broken links and anchors are errors. Nothing in the pages is loaded from another host."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=HOME, capture_output=True, text=True, timeout=240, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for loaded in ('src="http', 'rel="stylesheet" href="http', "url(http", "fonts.googleapis"):
        assert loaded not in index
    assert "tg.softmax" in (tmp_path / "site" / "llms.txt").read_text(encoding="utf-8")
    training = (tmp_path / "site" / "reference" / "training.html").read_text(encoding="utf-8")
    assert all(f'id="tracegrad.CompiledTraining.{name}"' in training for name in ("step", "states", "explain"))
    assert "select" in (tmp_path / "site" / "one-op.html").read_text(encoding="utf-8")


@pytest.mark.skipif(importlib.util.find_spec("codespell_lib") is None, reason="needs the extra docs")
def test_words_are_spelled_as_in_the_dictionary() -> None:
    done = subprocess.run(["bash", "tools/docs", "spelling"], cwd=HOME, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
