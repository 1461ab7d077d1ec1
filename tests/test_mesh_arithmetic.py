"""The arithmetic of docs/scaling.md: sizes are those of the real model, and the measured points lie near."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import mesh
import mesh_arithmetic as arithmetic


@pytest.mark.parametrize(("k", "name"), [(0, "gpt256"), (1, "large")])
def test_parameters_are_those_of_the_model_that_is_measured(k: int, name: str) -> None:
    assert arithmetic.MODELS[k].parameters == mesh.parameters(name)


@pytest.mark.parametrize("point", arithmetic.MEASURED)
def test_measured_steps_are_near(point: arithmetic.Measured) -> None:
    """Within 10 %, and never faster than predicted by more than the noise: what is left out costs time."""
    for predicted, got, name in arithmetic.checked(point):
        assert 0.99 < got / predicted < 1.10, name


def test_the_page_has_these_tables() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert arithmetic.report() in page


def test_each_way_costs_what_it_must() -> None:
    """FSDP gathers once or twice and holds an n-th of what is kept; more GPUs never take less time."""
    for m in arithmetic.MODELS:
        alone = 1.0
        few, many = ({w.name: w for w in arithmetic.ways(m, n, alone)} for n in (2, 64))
        assert few["FSDP"].seconds == pytest.approx((1.5 if m.parameters > 1e9 else 1.0) * few["data"].seconds)
        assert few["FSDP"].memory < few["data"].memory and many["FSDP"].memory < few["FSDP"].memory
        assert all(many[name].seconds >= few[name].seconds for name in few)
