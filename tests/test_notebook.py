"""The example notebook runs from top to bottom, as in Jupyter: one namespace, the last expression of a cell shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def run(source: str, scope: dict[str, Any]) -> Any:
    """Execute a cell; the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope) if last is not None else None


def test_the_tour_runs(capsys):
    scope: dict[str, Any] = {"__name__": "__main__"}
    shown = [
        run("".join(cell["source"]), scope)
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    assert "hidden layer: (5, 32)" in capsys.readouterr().out
    assert max(scope["losses"]) < 0.02 and "share" in str(scope["table"])
    np.testing.assert_allclose(shown[-1][1], -np.sin(shown[-1][0]), atol=1e-6)
