"""A program of two launches with known results: a session uses it to check that it calls a device correctly."""

from __future__ import annotations

from tracegrad.kernel_source import Binding, KernelSource, Texts
from tracegrad.program import Buffer, Dispatch, Field, Needs, Program

SELF_TEST = Program(
    kernels=(
        KernelSource(
            label="self_test",
            bindings=(Binding("f32", False), Binding("f32", True)),
            slots=2,
            workgroup_memory=0,
            texts=Texts.filed("""
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) wid: vec3u) {
  b1[at[0].y + i32(wid.x)] = 2.0 * b0[at[0].x + i32(wid.x)];
}
"""),
            own=True,
        ),
    ),
    buffers=(Buffer("x", "f32", 4, "input"), Buffer("y", "f32", 8, "output")),
    dispatches=(Dispatch(0, (0, 1), (1, 5), (1, 1)), Dispatch(0, (0, 1), (2, 5), (2, 1))),
    inputs=(Field("x", 0, 0, "f32", (4,)),),
    outputs=(Field("y", 1, 5, "f32", (2,)),),
    params=(),
    states=(),
    needs=Needs(storage_buffers=2, binding_bytes=32, buffer_bytes=32, workgroup_memory=0, largest="y"),
)
