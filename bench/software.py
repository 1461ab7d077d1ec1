"""Kernels with and without barriers on a software adapter, beside the textbook's product: python bench/software.py

An adapter that runs on a CPU (Mesa's llvmpipe; SwiftShader through VK_DRIVER_FILES) is given the Program's kernels
without barriers. This script times products of n x n matrices and sums of rows, by kernels without barriers and by the
kernels for GPUs. The textbook's kernel for products has tiles of 16 x 16 in workgroup memory, one result a thread.
Times are milliseconds by the host's clock, the best of some runs. The last column is the textbook's time over that
without barriers; for sums of rows it is the time of the kernels with barriers instead.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.kernel_source import Binding, KernelSource, Texts
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer, Dispatch, Field, Program
from tracegrad.runtime.adapters import check_webgpu
from tracegrad.runtime.wgpu_session import NativeSession

SECONDS = 2.0  # of runs a row
TEXTBOOK = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
var<workgroup> left: array<array<f32, 16>, 16>;
var<workgroup> right: array<array<f32, 16>, 16>;
@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) wid: vec3u, @builtin(local_invocation_id) lid: vec3u) {
  let row = wid.y * 16u + lid.y;
  let column = wid.x * 16u + lid.x;
  var sum = 0.0;
  for (var k = 0u; k < SIZEu; k += 16u) {
    left[lid.y][lid.x] = a[row * SIZEu + k + lid.x];
    right[lid.y][lid.x] = b[(k + lid.y) * SIZEu + column];
    workgroupBarrier();
    for (var i = 0u; i < 16u; i++) { sum += left[lid.y][i] * right[i][lid.x]; }
    workgroupBarrier();
  }
  c[row * SIZEu + column] = sum;
}
"""


def textbook(n: int) -> Program:
    """c = a @ b, n a multiple of 16."""
    a, b, c = (Field(name, k, 0, "f32", (n, n)) for k, name in enumerate("abc"))
    return Program(
        kernels=(
            KernelSource(
                label="textbook",
                bindings=(Binding("f32", False), Binding("f32", False), Binding("f32", True)),
                slots=0,
                workgroup_memory=2048,
                texts=Texts.filed(TEXTBOOK.replace("SIZE", str(n))),
            ),
        ),
        buffers=tuple(
            Buffer(name, "f32", n * n, role) for name, role in (("a", "input"), ("b", "input"), ("c", "output"))
        ),
        dispatches=(Dispatch(0, (0, 1, 2), (), (n // 16, n // 16)),),
        inputs=(a, b),
        outputs=(c,),
        params=(),
        states=(),
    )


def with_barriers(program: Program) -> Program:
    """Return the program that a GPU runs."""
    kernels = [replace(k, texts=Texts(wgsl=k.texts["wgsl"])) for k in program.kernels]
    return replace(program, kernels=tuple(kernels))


def best(session: NativeSession, program: Program, inputs: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Milliseconds of a run, and its outputs."""
    handle = session.load(program)
    outputs = session.run(handle, [inputs]).outputs()[0]
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 3:
        began = time.perf_counter()
        outputs = session.run(handle, [inputs]).outputs()[0]
        times.append(time.perf_counter() - began)
    session.unload(handle)
    return 1000 * min(times), outputs


def forward(f: Callable[..., tg.Tensor], **inputs: np.ndarray[Any, Any]) -> Program:
    """The program of `f`."""
    with tracing():
        leaves = {name: leaf("input", name, TensorType(f32, x.shape)) for name, x in inputs.items()}
        return make_program(Graph({"y": f(**leaves)}), Persistent(), {}, {})


def rows(session: NativeSession, rng: np.random.Generator) -> None:
    """Print the table."""
    print("| what | without barriers, ms | with, ms | textbook, ms | ratio |\n|---|---|---|---|---|")
    for n in (128, 256, 512):
        inputs = {name: rng.standard_normal((n, n), np.float32) for name in "ab"}
        program = forward(lambda a, b: a @ b, **inputs)
        line(f"product of {n} x {n}", session, program, inputs, textbook(n))
    inputs = {"x": rng.standard_normal((8192, 64), np.float32)}
    line("sums of 8192 rows of 64", session, forward(lambda x: tg.sum(x, axis=1), **inputs), inputs)


def line(
    what: str, session: NativeSession, program: Program, inputs: Mapping[str, Any], old: Program | None = None
) -> None:
    """One row; all must compute the same."""
    results = [best(session, p, inputs) for p in (program, with_barriers(program))]
    if old is not None:
        results.append(best(session, old, inputs))
    first, *others = [next(iter(outputs.values())) for _, outputs in results]
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-3, atol=1e-3)
    times = [ms for ms, _ in results]
    book = f"{times[2]:.1f}" if old is not None else "–"
    print(f"| {what} | {times[0]:.2f} | {times[1]:.2f} | {book} | {times[-1] / times[0]:.1f} |", flush=True)


def main() -> None:
    adapter = check_webgpu().adapter
    if adapter is None or not adapter.software:
        sys.exit("the best adapter here is no software adapter: see VK_DRIVER_FILES")
    print(adapter.description, adapter.driver, sep=", ")
    session = NativeSession(adapter)
    rows(session, np.random.default_rng(0))
    session.close()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        main()
