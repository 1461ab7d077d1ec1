"""Runs a program in one library: tracegrad (traced or eager), PyTorch or JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuzzing import (  # noqa: F401 importing them fills the table
    case_steps,
    nested,
    ops_elementwise,
    ops_folds,
    ops_images,
    ops_layers,
    ops_loops,
    ops_more,
    ops_shapes,
)
from fuzzing.program import Program, Step, frozen
from fuzzing.table import OPS, NoCounterpartError


def attributes(step: Step, library: str, module: Any) -> dict[str, Any]:
    """The keyword arguments of a step's function."""
    attrs = {k: frozen(v) for k, v in step.attrs.items()}
    if step.body is not None:
        attrs["body"] = bodies(step.body, library, module)
    return attrs


def bodies(body: Program, library: str, module: Any) -> Callable[..., Any]:
    """The function of a body: of its inputs, to its one result, or to a tuple of several."""

    def function(*xs: Any) -> Any:
        results = called(body, library, module, xs)
        return results[0] if len(results) == 1 else tuple(results)

    return function


def applied(step: Step, library: str, module: Any, args: Sequence[Any]) -> Any:
    """One step."""
    function = getattr(OPS[step.op], library)
    if function is None:
        raise NoCounterpartError(f"{step.op} has no counterpart in {library}")
    return function(module, *args, **attributes(step, library, module))


def called(
    program: Program, library: str, module: Any, xs: Sequence[Any], stored: Callable[[Any], Any] = lambda y: y
) -> list[Any]:
    """The results of a program; `library` is ours, torch or jax, `module` what the rows get as such.

    stored: what becomes of the value of each step
    """
    values: dict[int, Any] = {~k: x for k, x in enumerate(xs)}
    for k, step in enumerate(program.steps):
        values[k] = stored(applied(step, library, module, [values[n] for n in step.args]))
    return [values[n] for n in program.outputs]
