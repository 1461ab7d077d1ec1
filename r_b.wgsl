@group(0) @binding(0) var<storage, read> mem0: array<f32, 65536>;
@group(0) @binding(1) var<storage, read_write> mem1: array<f32, 66048>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
var<workgroup> sf: array<f32, 160>;
var<private> inf_bits: u32 = 0x7f800000u;
fn max_f32(a: f32, b: f32) -> f32 {
  let nan = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;
  return select(max(a, b), a + b, nan);
}
fn max_i32(a: i32, b: i32) -> i32 { return max(a, b); }
fn max_u32(a: u32, b: u32) -> u32 { return max(a, b); }
fn is_nan_(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn scale_(x: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}
fn exp_(x: f32) -> f32 {
  let c = clamp(x, -105.0, 89.0);
  let n = round(c * 1.4426950408889634);
  let r = c - n * 0.693359375 - n * (-0.00021219444);
  let y = (((((0.000198756915 * r + 0.0013981999507) * r + 0.0083334519073) * r + 0.041665795894) * r + 0.16666665459) * r + 0.50000001201) * r * r + r + 1.0;
  return select(scale_(y, i32(n)), x, is_nan_(x));
}
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
  let r = min(row, 511);
  let i0 = (r / 128);
  let i1 = r % 128;
  let j = lane;
  let j_0 = j + 0;
  let j0_0 = j_0;
  let j_1 = j + 32;
  let j0_1 = j_1;
  let j_2 = j + 64;
  let j0_2 = j_2;
  let j_3 = j + 96;
  let j0_3 = j_3;
  let v0_0 = i1;
  let h2_0 = i0 * 16384 + i1 * 128;
  var ta0 = (-bitcast<f32>(inf_bits));
  let v1_0 = (j0_0 <= v0_0);
  let v3_0 = mem0[o0 + (h2_0 + j0_0)];
  let v4_0 = select((-1e+09f), (v3_0 * 2f), v1_0);
  let xa0_0 = v4_0;
  let v5_1 = (j0_1 <= v0_0);
  let v6_1 = mem0[o0 + (h2_0 + j0_1)];
  let v7_1 = select((-1e+09f), (v6_1 * 2f), v5_1);
  let xa0_1 = v7_1;
  let v8_2 = (j0_2 <= v0_0);
  let v9_2 = mem0[o0 + (h2_0 + j0_2)];
  let v10_2 = select((-1e+09f), (v9_2 * 2f), v8_2);
  let xa0_2 = v10_2;
  let v11_3 = (j0_3 <= v0_0);
  let v12_3 = mem0[o0 + (h2_0 + j0_3)];
  let v13_3 = select((-1e+09f), (v12_3 * 2f), v11_3);
  let xa0_3 = v13_3;
  ta0 = max_f32(ta0, xa0_0);
  ta0 = max_f32(ta0, xa0_1);
  ta0 = max_f32(ta0, xa0_2);
  ta0 = max_f32(ta0, xa0_3);
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = max_f32(max_f32(sf[lid], sf[lid + 16]), max_f32(sf[lid + 8], sf[lid + 24])); }
  workgroupBarrier();
  ta0 = max_f32(max_f32(max_f32(sf[128 + (lid / 32) * 8], sf[128 + (lid / 32) * 8 + 4]), max_f32(sf[128 + (lid / 32) * 8 + 2], sf[128 + (lid / 32) * 8 + 6])), max_f32(max_f32(sf[128 + (lid / 32) * 8 + 1], sf[128 + (lid / 32) * 8 + 5]), max_f32(sf[128 + (lid / 32) * 8 + 3], sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  var ta1 = 0f;
  let v14_0 = exp_((v4_0 - a0));
  let xa1_0 = v14_0;
  let v15_1 = exp_((v7_1 - a0));
  let xa1_1 = v15_1;
  let v16_2 = exp_((v10_2 - a0));
  let xa1_2 = v16_2;
  let v17_3 = exp_((v13_3 - a0));
  let xa1_3 = v17_3;
  ta1 = (ta1 + xa1_0);
  ta1 = (ta1 + xa1_1);
  ta1 = (ta1 + xa1_2);
  ta1 = (ta1 + xa1_3);
  sf[lid] = ta1;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta1 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a1 = ta1;
  var ta2 = 0f;
  let v18_0 = div_(v14_0, a1);
  let xa2_0 = select(0f, (exp_(v18_0) * v3_0), v1_0);
  let v19_1 = div_(v15_1, a1);
  let xa2_1 = select(0f, (exp_(v19_1) * v6_1), v5_1);
  let v20_2 = div_(v16_2, a1);
  let xa2_2 = select(0f, (exp_(v20_2) * v9_2), v8_2);
  let v21_3 = div_(v17_3, a1);
  let xa2_3 = select(0f, (exp_(v21_3) * v12_3), v11_3);
  ta2 = (ta2 + xa2_0);
  ta2 = (ta2 + xa2_1);
  ta2 = (ta2 + xa2_2);
  ta2 = (ta2 + xa2_3);
  sf[lid] = ta2;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta2 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a2 = ta2;
  if (row < 512) {
    let s1_0 = v18_0;
    let s1_1 = v19_1;
    let s1_2 = v20_2;
    let s1_3 = v21_3;
    mem1[o1 + (h2_0 + j0_0)] = s1_0;
    mem1[o1 + (h2_0 + j0_1)] = s1_1;
    mem1[o1 + (h2_0 + j0_2)] = s1_2;
    mem1[o1 + (h2_0 + j0_3)] = s1_3;
  }
  if (row < 512 && lane == 0) {
    let s2 = a2;
    mem1[o2 + (i0 * 128 + i1)] = s2;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 128) { k0(w - 0, i32(lid)); }
}
