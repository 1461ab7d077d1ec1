"""A random program as plain data, so that it can be kept, replayed and made smaller.

Step k makes value k, and input k is value ~k, which is -1 - k. A step names an op, the numbers of its arguments and its
attributes; a step with a body is a transform of that body, which is a program itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True)
class Input:
    """One argument: its type, and how its values are made.

    kind:  uniform in [low, high), integers (small, with many ties), eighths, below (i32 in [0, high)), bools,
           special (zeros, infinities, NaN), wild (integers that wrap around), or given by `values`
    """

    dtype: str
    shape: tuple[int, ...]
    kind: str
    seed: int = 0
    low: float = -2.0
    high: float = 2.0
    values: tuple[float, ...] = ()

    def array(self) -> Array:
        """The values, as f32, i32, u32 or bool."""
        rng = np.random.default_rng(self.seed)
        dtype = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "bool": np.bool_}[self.dtype]
        if self.kind == "given":
            return np.array(self.values, dtype).reshape(self.shape)
        if self.kind == "below":
            return rng.integers(int(self.low), int(self.high), self.shape).astype(dtype)
        if self.kind == "wild":
            ends = np.array([0, 1, -1, 2, 7, -7, 2**31 - 1, 1 - 2**31, 65536, -46341, 2**30, -5], np.int64)
            return ends[rng.integers(0, len(ends), self.shape)].astype(np.int32).astype(dtype)
        if self.kind == "bools":
            return rng.integers(0, 2, self.shape).astype(dtype)
        if self.kind == "integers":
            return rng.integers(-3, 4, self.shape).astype(dtype)
        if self.kind == "eighths":
            return (rng.integers(-16, 17, self.shape) / 8).astype(dtype)
        if self.kind == "special":
            some = np.array([0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan, 1e30, 1e-30])
            return some[rng.integers(0, len(some), self.shape)].astype(dtype)
        return rng.uniform(self.low, self.high, self.shape).astype(dtype)


@dataclass(frozen=True)
class Step:
    """One op on values that exist already."""

    op: str
    args: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    body: Program | None = None


@dataclass(frozen=True)
class Program:
    """Inputs, steps, and the numbers of the values that are results.

    mode: "forward", "gradient" (results, and the gradients of all f32 inputs) or "train"
    ct:   how the weights of the results in the sum that is differentiated are made
    train: of mode "train": optimizer, its arguments, number of steps
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    mode: str = "forward"
    ct: str = "uniform"
    train: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def to_json(self) -> str:
        """One line; `from_json` reads it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Program:
        """The program of a file of the corpus."""
        return _program(json.loads(text))

    def arrays(self) -> dict[str, Array]:
        """The inputs by name."""
        return {f"x{k}": x.array() for k, x in enumerate(self.inputs)}


def _program(data: Mapping[str, Any]) -> Program:
    inputs = tuple(Input(**{**x, "shape": tuple(x["shape"]), "values": tuple(x["values"])}) for x in data["inputs"])
    steps = tuple(
        Step(s["op"], tuple(s["args"]), s["attrs"], _program(s["body"]) if s["body"] else None) for s in data["steps"]
    )
    rest = {k: data[k] for k in ("mode", "ct", "train", "seed")}
    return Program(inputs, steps, tuple(data["outputs"]), **rest)


def frozen(value: Any) -> Any:
    """JSON's lists as tuples, in attributes."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(v) for v in value)
    return value
