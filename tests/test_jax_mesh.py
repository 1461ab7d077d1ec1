"""A mesh of eight devices computes what one device does, step by step, for each layout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from xla import devices

pytest.importorskip("jax", reason="JAX is not installed")
import jax
from jax.sharding import PartitionSpec as P

CHILD = Path(__file__).parent / "mesh_child.py"
LAYOUTS = ("data", "fsdp", "tensor")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    ran = subprocess.run([sys.executable, str(CHILD)], capture_output=True, text=True, env=devices(8))
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["devices"] == 8
    return result


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_mesh_computes_what_one_device_does(found: dict[str, Any], name: str) -> None:
    """With dropout: random numbers are those of the element of the whole batch."""
    np.testing.assert_allclose(found[name]["losses"], found["one"], rtol=1e-5)
    assert found[name]["far"] < 1e-5


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_goes_on_on_another_mesh(found: dict[str, Any], name: str) -> None:
    np.testing.assert_allclose(found[name]["resumed"], found["one"][4:], rtol=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_exported_step_does_what_the_training_does(found: dict[str, Any], name: str) -> None:
    """`train.to_jax()` on a mesh, exported as StableHLO."""
    np.testing.assert_allclose(found[name]["pure"], found["one"][4:], rtol=1e-5)


def test_convolutions_in_groups_compute_what_one_device_does(found: dict[str, Any]) -> None:
    assert len(found["grouped"]) == 3
    assert max(found["grouped"].values()) < 1e-5, found["grouped"]


def test_attention_in_bf16_computes_what_one_device_does(found: dict[str, Any]) -> None:
    assert len(found["attending"]) == 3
    assert max(found["attending"].values()) < 1e-3, found["attending"]  # a value may round to its neighbour


def test_layouts_split_parameters_and_optimizer_state(found: dict[str, Any]) -> None:
    whole = 8 * 32
    assert found["data"]["held"] == [whole, whole]
    assert found["fsdp"]["held"] == [whole // 8, whole // 8]
    assert found["tensor"]["held"] == [whole // 4, whole // 4]


def test_fsdp_gathers_each_parameter_once_and_sums_each_gradient_once(found: dict[str, Any]) -> None:
    """A large model gathers each parameter for each reader: l2.W again in the backward pass."""
    moved, apart = found["fsdp"]["moved"], found["apart"]["moved"]
    assert moved["all-gather"] == pytest.approx(1, abs=0.05)
    assert moved["all-reduce"] + moved["reduce-scatter"] == pytest.approx(1, abs=0.05)
    assert found["data"]["moved"]["all-gather"] == moved["all-to-all"] == apart["all-to-all"] == 0
    assert 1.3 < apart["all-gather"] < 2.05 and apart["all-reduce"] == moved["all-reduce"]
    np.testing.assert_allclose(found["apart"]["losses"], found["one"], rtol=1e-5)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "no mesh": (8, None, r"mesh must be a mesh of JAX, as from jax.make_mesh\(\(8,\), \('data',\)\), got 8"),
    "a list": ("data", ["W"], r"layout must be 'fsdp', or a dict .* got \['W'\]"),
    "no spec": ("data", {"W": "data"}, r"layout: 'W' needs a jax.sharding.PartitionSpec, .* got 'data'"),
    "twice": ("data", {"W": P("data", "data")}, r"splits W, f32\[4,4\], twice over one axis of the mesh"),
    "no data": ("x", None, "the mesh has x=1, and no layout= uses it: name the axis .* 'data'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mesh_and_no_layout_is_told(name: str) -> None:
    mesh, layout, said = WRONG[name]
    with pytest.raises(tg.InputError, match=said):
        tg.compile(
            model=nn.Linear(4, 4), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 4)}, optimizer=optim.sgd(0.1),
            mesh=jax.make_mesh((1,), (mesh,)) if isinstance(mesh, str) else mesh, layout=layout, seed=0,
        )  # fmt: skip


def test_errors_say_what_does_not_fit(found: dict[str, Any]) -> None:
    nothing, axis, word, batch = found["errors"]
    assert "'nothing.*' matches no parameter" in nothing and "l1.W" in nothing
    assert "the mesh has no axis 'model'; it has data=8" in axis
    assert "layout must be 'fsdp'" in word
    assert "input 'x' is f32[12,8]: its axis 0 must be a multiple of 8" in batch
