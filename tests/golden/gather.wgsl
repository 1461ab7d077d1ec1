// 0: sum
@group(0) @binding(0) var<storage, read> mem0: array<f32, 36>;
@group(0) @binding(1) var<storage, read> mem1: array<i32, 15>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 12>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 12) { return; }
  let i0 = (row / 4);
  let i1 = row % 4;
  var ta0 = 0f;
  {
    for (var j = lane; j < 5; j += 1) {
      let j0 = j;
      let xa0 = mem0[o0 + (i1 + clamp(mem1[o1 + (i0 * 5 + j0)], 0, 8) * 4)];
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 12 && lane == 0) {
    let s2 = a0;
    mem2[o2 + (i0 * 4 + i1)] = s2;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}
