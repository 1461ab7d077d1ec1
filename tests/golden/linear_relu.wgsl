// 0: matmul+where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 30>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 24>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 20>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
fn less_equal_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a <= b && largest <= 0x7f800000u;
}
fn less_equal_i32(a: i32, b: i32) -> bool { return a <= b; }
fn less_equal_u32(a: u32, b: u32) -> bool { return a <= b; }
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 20) { return; }
  let m0 = (row / 4);
  let n0 = row % 4;
  var ta0 = 0f;
  {
    for (var j = lane; j < 6; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 6 + k0)] * mem1[o1 + (n0 + k0 * 4)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  let v0 = (a0 + 1f);
  if (row < 20 && lane == 0) {
    let s2 = select(v0, 0f, less_equal_f32(v0, 0f));
    mem2[o2 + (m0 * 4 + n0)] = s2;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}
