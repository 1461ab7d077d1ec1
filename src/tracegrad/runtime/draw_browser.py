"""Draw first values of parameters by JavaScript, for Python in a browser's tab without NumPy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tracegrad.arrays import np
from tracegrad.dtypes import DTYPES, Shape
from tracegrad.init import Initializer, Literal
from tracegrad.runtime.tab import javascript


def draw(specs: Sequence[tuple[Shape, Initializer]], seed: int) -> list[Any]:
    """Return first values of parameters from js/random.js, which match `runtime.draw` bit for bit."""
    dtypes = [init.dtype.name if isinstance(init, Literal) else "f32" for _, init in specs]
    fields = [
        {"name": str(k), "shape": shape, "dtype": dtype, "spec": {"init": init.spec()}}
        for k, ((shape, init), dtype) in enumerate(zip(specs, dtypes, strict=True))
    ]
    parts = javascript().drawn(json.dumps(fields), seed)
    return [
        np.frombuffer(init.data if isinstance(init, Literal) else part.to_bytes(), DTYPES[dtype].numpy).reshape(shape)
        for part, (shape, init), dtype in zip(parts, specs, dtypes, strict=True)
    ]
