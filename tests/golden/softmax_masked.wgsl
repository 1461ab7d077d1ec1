// 0: peak+exp+sum+where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 3200>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 24>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 3200>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
var<workgroup> sf: array<f32, 160>;
var<private> inf_bits: u32 = 0x7f800000u;
fn less_equal_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a <= b && largest <= 0x7f800000u;
}
fn less_equal_i32(a: i32, b: i32) -> bool { return a <= b; }
fn less_equal_u32(a: u32, b: u32) -> bool { return a <= b; }
fn is_nan_(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn scale_(x: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}
fn exp_times_(x: f32, power: i32) -> f32 {  // e^x 2^power
  let c = clamp(x, -105.0, 90.0);
  let n = round(c * 1.4426950408889634);
  let r = c - n * 0.693359375 - n * (-0.00021219444);
  let y = ((((0.0013820732 * r + 0.008368677) * r + 0.041668266) * r + 0.16666521) * r + 0.49999994) * r * r + r + 1.0;
  return select(scale_(y, i32(n) + power), x, is_nan_(x));
}
fn exp_(x: f32) -> f32 { return exp_times_(x, 0); }
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 79);
  let i0 = (r / 40);
  let i1 = r % 40;
  let j = lane;
  let j_0 = min(j + 0, 39);
  let j0_0 = j_0;
  let j_1 = min(j + 32, 39);
  let j0_1 = j_1;
  let v0_0 = i1;
  let h2_0 = i0 * 1600 + i1 * 40;
  let v3_0 = mem1[o1 + 0];
  var ta0 = (-bitcast<f32>(inf_bits));
  let v1_0 = less_equal_i32(j0_0, v0_0);
  let v4_0 = (mem0[o0 + (h2_0 + j0_0)] * v3_0);
  let xa0_0 = select((-bitcast<f32>(inf_bits)), v4_0, v1_0);
  let v5_1 = less_equal_i32(j0_1, v0_0);
  let v6_1 = (mem0[o0 + (h2_0 + j0_1)] * v3_0);
  let xa0_1 = select((-bitcast<f32>(inf_bits)), v6_1, v5_1);
  if (j + 0 < 40) {
    ta0 = max(ta0, xa0_0);
  }
  if (j + 32 < 40) {
    ta0 = max(ta0, xa0_1);
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = max(max(sf[lid], sf[lid + 16]), max(sf[lid + 8], sf[lid + 24])); }
  workgroupBarrier();
  ta0 = max(max(max(sf[128 + (lid / 32) * 8], sf[128 + (lid / 32) * 8 + 4]), max(sf[128 + (lid / 32) * 8 + 2], sf[128 + (lid / 32) * 8 + 6])), max(max(sf[128 + (lid / 32) * 8 + 1], sf[128 + (lid / 32) * 8 + 5]), max(sf[128 + (lid / 32) * 8 + 3], sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  var ta1 = 0f;
  let v7_0 = exp_((v4_0 - a0));
  let xa1_0 = select(0f, v7_0, v1_0);
  let v8_1 = exp_((v6_1 - a0));
  let xa1_1 = select(0f, v8_1, v5_1);
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
  if (row < 80) {
    let s2_0 = select(0f, div_(v7_0, a1), v1_0);
    let s2_1 = select(0f, div_(v8_1, a1), v5_1);
    if (j + 0 < 40) {
      mem2[o2 + (h2_0 + j0_0)] = s2_0;
    }
    if (j + 32 < 40) {
      mem2[o2 + (h2_0 + j0_1)] = s2_1;
    }
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 20) { k0(w - 0, i32(lid)); }
}

// without barriers, (3, 1)
@group(0) @binding(0) var<storage, read> mem0: array<f32, 3200>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 24>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 3200>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
var<private> inf_bits: u32 = 0x7f800000u;
fn less_equal_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a <= b && largest <= 0x7f800000u;
}
fn less_equal_i32(a: i32, b: i32) -> bool { return a <= b; }
fn less_equal_u32(a: u32, b: u32) -> bool { return a <= b; }
fn is_nan_(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn scale_(x: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}
fn exp_times_(x: f32, power: i32) -> f32 {  // e^x 2^power
  let c = clamp(x, -105.0, 90.0);
  let n = round(c * 1.4426950408889634);
  let r = c - n * 0.693359375 - n * (-0.00021219444);
  let y = ((((0.0013820732 * r + 0.008368677) * r + 0.041668266) * r + 0.16666521) * r + 0.49999994) * r * r + r + 1.0;
  return select(scale_(y, i32(n) + power), x, is_nan_(x));
}
fn exp_(x: f32) -> f32 { return exp_times_(x, 0); }
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 80) { return; }
  let i0 = (row / 40);
  let i1 = row % 40;
  let v0 = i1;
  let h1 = i0 * 1600 + i1 * 40;
  let v2 = mem1[o1 + 0];
  var ta0 = (-bitcast<f32>(inf_bits));
  var a0_0 = ta0;
  var a0_1 = ta0;
  var a0_2 = ta0;
  var a0_3 = ta0;
  var a0_4 = ta0;
  for (var turn = 0; turn < 32; turn += 1) {
    let lane = i32(reverseBits(u32(turn)) >> 27u);
    ta0 = (-bitcast<f32>(inf_bits));
    {
      for (var j = lane; j < 40; j += 32) {
        let j0 = j;
        let xa0 = select((-bitcast<f32>(inf_bits)), (mem0[o0 + (h1 + j0)] * v2), less_equal_i32(j0, v0));
        ta0 = max(ta0, xa0);
      }
    }
    if ((turn & 1) == 0) { a0_0 = ta0; continue; }
    ta0 = max(a0_0, ta0);
    if ((turn & 2) == 0) { a0_1 = ta0; continue; }
    ta0 = max(a0_1, ta0);
    if ((turn & 4) == 0) { a0_2 = ta0; continue; }
    ta0 = max(a0_2, ta0);
    if ((turn & 8) == 0) { a0_3 = ta0; continue; }
    ta0 = max(a0_3, ta0);
    if ((turn & 16) == 0) { a0_4 = ta0; continue; }
    ta0 = max(a0_4, ta0);
  }
  let a0 = ta0;
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
        let xa1 = select(0f, exp_(((mem0[o0 + (h1 + j0)] * v2) - a0)), less_equal_i32(j0, v0));
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
  if (row < 80) {
    for (var j = lane; j < 40; j += 1) {
      let j0 = j;
      let s2 = select(0f, div_(exp_(((mem0[o0 + (h1 + j0)] * v2) - a0)), a1), less_equal_i32(j0, v0));
      mem2[o2 + (h1 + j0)] = s2;
    }
  }
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 3) { k0(w - 0, i32(lid)); }
}
