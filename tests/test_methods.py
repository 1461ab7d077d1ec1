"""The methods of tensors: the file of an op says that it is one, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tracegrad as tg
from tracegrad.methods import METHODS, VARIADIC, TensorMethods

ROOT = Path(__file__).parents[1]


def test_type_checkers_know_the_methods_that_there_are() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "methods", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_method_is_the_public_op_itself() -> None:
    own = [n for n in tg.ops.__all__ if n in METHODS and n in vars(TensorMethods) and n not in VARIADIC]
    assert len(own) > 60
    assert [n for n in own if not vars(TensorMethods)[n] is METHODS[n] is getattr(tg.ops, n)] == []
    x = tg.tensor([1.0, -2.0])
    assert x.log1p is not None and x.abs().tolist() == [1.0, 2.0]
    assert +x is x
    assert x.clamp(0.0).tolist() == x.clip(0.0).tolist() == [1.0, 0.0]


def test_an_op_that_is_no_method_is_no_attribute_of_tensors() -> None:
    for name in ("less", "equal", "where", "cross_entropy", "getitem", "layer_norm"):
        assert not hasattr(TensorMethods, name), name
