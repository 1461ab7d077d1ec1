// 0: sum+sub+rsqrt+add+mul
@group(0) @binding(0) var<storage, read> mem0: array<f32, 120>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 120>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 120>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 2>;
var<workgroup> sf: array<f32, 160>;
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let o4 = at[1].x;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 2);
  let i0 = r;
  let j = lane;
  let j_0 = min(j + 0, 39);
  let j0_0 = j_0;
  let j_1 = min(j + 32, 39);
  let j0_1 = j_1;
  var ta0 = 0f;
  let v0_0 = mem0[o0 + (i0 * 40 + j0_0)];
  let xa0_0 = v0_0;
  let v1_1 = mem0[o0 + (i0 * 40 + j0_1)];
  let xa0_1 = v1_1;
  if (j + 0 < 40) {
    ta0 = (ta0 + xa0_0);
  }
  if (j + 32 < 40) {
    ta0 = (ta0 + xa0_1);
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  let v2_0 = div_(a0, 40f);
  var ta1 = 0f;
  let v3_0 = (v0_0 - v2_0);
  let xa1_0 = (v3_0 * v3_0);
  let v4_1 = (v1_1 - v2_0);
  let xa1_1 = (v4_1 * v4_1);
  if (j + 0 < 40) {
    ta1 = (ta1 + xa1_0);
  }
  if (j + 32 < 40) {
    ta1 = (ta1 + xa1_1);
  }
  sf[lid] = ta1;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta1 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a1 = ta1;
  let v5_0 = (1.0 / sqrt((div_(a1, 40f) + 9.99999975e-06f)));
  var ta2 = 0f;
  let v6_0 = (((v3_0 * v5_0) * mem1[o1 + j0_0]) + mem1[o2 + j0_0]);
  let xa2_0 = (v6_0 * v6_0);
  let v7_1 = (((v4_1 * v5_0) * mem1[o1 + j0_1]) + mem1[o2 + j0_1]);
  let xa2_1 = (v7_1 * v7_1);
  if (j + 0 < 40) {
    ta2 = (ta2 + xa2_0);
  }
  if (j + 32 < 40) {
    ta2 = (ta2 + xa2_1);
  }
  sf[lid] = ta2;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta2 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a2 = ta2;
  let v8_0 = (1.0 / sqrt((div_(a2, 40f) + 9.99999997e-07f)));
  if (row < 3) {
    let s4_0 = ((v6_0 * v8_0) * mem1[o3 + j0_0]);
    let s4_1 = ((v7_1 * v8_0) * mem1[o3 + j0_1]);
    if (j + 0 < 40) {
      mem2[o4 + (i0 * 40 + j0_0)] = s4_0;
    }
    if (j + 32 < 40) {
      mem2[o4 + (i0 * 40 + j0_1)] = s4_1;
    }
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}

// without barriers, (1, 1)
@group(0) @binding(0) var<storage, read> mem0: array<f32, 120>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 120>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 120>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 2>;
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let o4 = at[1].x;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 3) { return; }
  let i0 = row;
  var ta0 = 0f;
  var a0_0 = ta0;
  var a0_1 = ta0;
  var a0_2 = ta0;
  var a0_3 = ta0;
  var a0_4 = ta0;
  for (var turn = 0; turn < 32; turn += 1) {
    let lane = i32(reverseBits(u32(turn)) >> 27u);
    ta0 = 0f;
    {
      for (var j = lane; j < 40; j += 32) {
        let j0 = j;
        let xa0 = mem0[o0 + (i0 * 40 + j0)];
        ta0 = (ta0 + xa0);
      }
    }
    if ((turn & 1) == 0) { a0_0 = ta0; continue; }
    ta0 = (a0_0 + ta0);
    if ((turn & 2) == 0) { a0_1 = ta0; continue; }
    ta0 = (a0_1 + ta0);
    if ((turn & 4) == 0) { a0_2 = ta0; continue; }
    ta0 = (a0_2 + ta0);
    if ((turn & 8) == 0) { a0_3 = ta0; continue; }
    ta0 = (a0_3 + ta0);
    if ((turn & 16) == 0) { a0_4 = ta0; continue; }
    ta0 = (a0_4 + ta0);
  }
  let a0 = ta0;
  let v0 = div_(a0, 40f);
  var ta1 = 0f;
  var a1_0 = ta1;
  var a1_1 = ta1;
  var a1_2 = ta1;
  var a1_3 = ta1;
  var a1_4 = ta1;
  for (var turn = 0; turn < 32; turn += 1) {
    let lane = i32(reverseBits(u32(turn)) >> 27u);
    ta1 = 0f;
    {
      for (var j = lane; j < 40; j += 32) {
        let j0 = j;
        let xa1 = ((mem0[o0 + (i0 * 40 + j0)] - v0) * (mem0[o0 + (i0 * 40 + j0)] - v0));
        ta1 = (ta1 + xa1);
      }
    }
    if ((turn & 1) == 0) { a1_0 = ta1; continue; }
    ta1 = (a1_0 + ta1);
    if ((turn & 2) == 0) { a1_1 = ta1; continue; }
    ta1 = (a1_1 + ta1);
    if ((turn & 4) == 0) { a1_2 = ta1; continue; }
    ta1 = (a1_2 + ta1);
    if ((turn & 8) == 0) { a1_3 = ta1; continue; }
    ta1 = (a1_3 + ta1);
    if ((turn & 16) == 0) { a1_4 = ta1; continue; }
    ta1 = (a1_4 + ta1);
  }
  let a1 = ta1;
  let v1 = (1.0 / sqrt((div_(a1, 40f) + 9.99999975e-06f)));
  var ta2 = 0f;
  var a2_0 = ta2;
  var a2_1 = ta2;
  var a2_2 = ta2;
  var a2_3 = ta2;
  var a2_4 = ta2;
  for (var turn = 0; turn < 32; turn += 1) {
    let lane = i32(reverseBits(u32(turn)) >> 27u);
    ta2 = 0f;
    {
      for (var j = lane; j < 40; j += 32) {
        let j0 = j;
        let xa2 = (((((mem0[o0 + (i0 * 40 + j0)] - v0) * v1) * mem1[o1 + j0]) + mem1[o2 + j0]) * ((((mem0[o0 + (i0 * 40 + j0)] - v0) * v1) * mem1[o1 + j0]) + mem1[o2 + j0]));
        ta2 = (ta2 + xa2);
      }
    }
    if ((turn & 1) == 0) { a2_0 = ta2; continue; }
    ta2 = (a2_0 + ta2);
    if ((turn & 2) == 0) { a2_1 = ta2; continue; }
    ta2 = (a2_1 + ta2);
    if ((turn & 4) == 0) { a2_2 = ta2; continue; }
    ta2 = (a2_2 + ta2);
    if ((turn & 8) == 0) { a2_3 = ta2; continue; }
    ta2 = (a2_3 + ta2);
    if ((turn & 16) == 0) { a2_4 = ta2; continue; }
    ta2 = (a2_4 + ta2);
  }
  let a2 = ta2;
  let v2 = (1.0 / sqrt((div_(a2, 40f) + 9.99999997e-07f)));
  if (row < 3) {
    for (var j = lane; j < 40; j += 1) {
      let j0 = j;
      let s4 = ((((((mem0[o0 + (i0 * 40 + j0)] - v0) * v1) * mem1[o1 + j0]) + mem1[o2 + j0]) * v2) * mem1[o3 + j0]);
      mem2[o4 + (i0 * 40 + j0)] = s4;
    }
  }
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}
