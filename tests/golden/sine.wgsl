// 0: matmul+where | div+add+maximum+nonfinite+where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 39>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 97>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 321>;
@group(0) @binding(3) var<storage, read> mem3: array<i32, 1>;
@group(0) @binding(4) var<storage, read> mem4: array<f32, 3>;
@group(0) @binding(5) var<storage, read_write> mem5: array<i32, 1>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 5>;
var<private> inf_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;
fn less_equal_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a <= b && largest <= 0x7f800000u;
}
fn less_equal_i32(a: i32, b: i32) -> bool { return a <= b; }
fn less_equal_u32(a: u32, b: u32) -> bool { return a <= b; }
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
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
fn expm1_(x: f32) -> f32 {
  let c = clamp(x, -30.0, 80.0);
  let n = round(c * 1.4426950408889634);
  let r = c - n * 0.693359375 - n * (-0.00021219444);
  let y = ((((0.0013820732 * r + 0.008368677) * r + 0.041668266) * r + 0.16666521) * r + 0.49999994) * r * r + r;
  let s = scale_(1.0, i32(n));
  return select(select(s * y + (s - 1.0), x, abs(x) < 1e-8), exp_(x), !(x < 80.0));
}
fn log_sum_(f: f32, e: f32) -> f32 {
  let z = f * f;
  let y = ((((((((0.070376836292 * f + -0.1151461031) * f + 0.1167699874) * f + -0.12420140846) * f + 0.14249322787) * f + -0.16668057665) * f + 0.20000714765) * f + -0.24999993993) * f + 0.33333331174) * f * z + e * (-0.00021219444) - 0.5 * z;
  return f + y + e * 0.693359375;
}
fn log_special_(y: f32, x: f32, v: u32) -> f32 {
  let u = bitcast<u32>(x);
  let other = select(x, bitcast<f32>(nan_bits), u >> 31u == 1u);
  let at_zero = select(other, -bitcast<f32>(inf_bits), (v << 1u) == 0u);
  return select(y, at_zero, u - 1u >= 0x7f7fffffu || v == 0u);
}
fn log1p_(x: f32) -> f32 {
  let s = 1.0 + x;
  let v = bitcast<u32>(s);
  let m = bitcast<f32>((v & 0x7fffffu) | 0x3f000000u);
  let low = m < 0.7071067811865476;
  let e = i32(v >> 23u) - select(126, 127, low);
  let y = log_sum_(select(select(m, m + m, low) - 1.0, x, e == 0), f32(e));
  return select(log_special_(y, s, v), x, abs(x) < 1e-10);
}
fn max_f32(a: f32, b: f32) -> f32 {
  let nan = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;
  return select(max(a, b), a + b, nan);
}
fn max_i32(a: i32, b: i32) -> i32 { return max(a, b); }
fn max_u32(a: u32, b: u32) -> u32 { return max(a, b); }
fn min_f32(a: f32, b: f32) -> f32 {
  let nan = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;
  return select(min(a, b), a + b, nan);
}
fn min_i32(a: i32, b: i32) -> i32 { return min(a, b); }
fn min_u32(a: u32, b: u32) -> u32 { return min(a, b); }
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 128) { return; }
  let m0 = (row / 8);
  let n0 = row % 8;
  let v0 = (mem0[o0 + m0] * mem1[o1 + n0]);
  var ta0 = 0f;
  {
    for (var j = lane; j < 1; j += 1) {
      let k0 = j;
      let xa0 = v0;
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  let v1 = (a0 + mem1[o2 + n0]);
  if (row < 128 && lane == 0) {
    let s3 = select(v1, 0f, less_equal_f32(v1, 0f));
    mem2[o3 + (m0 * 8 + n0)] = s3;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[1].x;
  let o1 = at[1].y;
  let o2 = at[1].z;
  let o3 = at[1].w;
  let o4 = at[2].x;
  let o5 = at[2].y;
  let o6 = at[2].z;
  let o7 = at[2].w;
  let o8 = at[3].x;
  let o9 = at[3].y;
  let o10 = at[3].z;
  let o11 = at[3].w;
  let o12 = at[4].x;
  let e = w * 128 + lid;
  if (e >= 1) { return; }
  let v0 = mem0[o1 + 0];
  let v1 = div_(1f, (-expm1_((f32(bitcast<u32>(mem3[o0 + 0])) * log1p_((-v0))))));
  let v2 = mem4[o2 + 0];
  let v3 = mem4[o2 + 1];
  let v4 = min_f32(3.6028797e+16f, (2f * mem0[o3 + 0]));
  let v5 = (v3 + ((v4 - v3) * v0));
  let v6 = max_f32(v2, ((v2 + (mem0[o4 + 0] * (div_((v5 * v1), mem0[o5 + 0]) + (mem0[o6 + 0] * v2)))) * 1.00000095f));
  let v7 = max_f32(v3, (v5 * 1.00000095f));
  let v8 = mem4[o2 + 2];
  let v9 = max_f32(v8, ((v8 + (((v4 * v4) - v8) * mem0[o7 + 0])) * 1.00000095f));
  let v10 = ((bitcast<u32>(((v6 + v7) + v9)) & 0x7f800000u) == 0x7f800000u);
  let s8 = v1;
  let s9 = v10;
  let s10 = select(v6, v2, v10);
  let s11 = select(v7, v3, v10);
  let s12 = select(v9, v8, v10);
  mem2[o8 + 0] = s8;
  mem5[o9 + 0] = select(0, 1, s9);
  mem2[o10 + 0] = s10;
  mem2[o11 + 0] = s11;
  mem2[o12 + 0] = s12;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
}

// 1: matmul+where | where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 321>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 97>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32>;
@group(0) @binding(3) var<storage, read> mem3: array<i32, 1>;
@group(0) @binding(4) var<storage, read> mem4: array<f32, 3>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 3>;
var<private> inf_bits: u32 = 0x7f800000u;
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
  let o3 = at[0].w;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 128) { return; }
  let m0 = (row / 8);
  let n0 = row % 8;
  var ta0 = 0f;
  {
    for (var j = lane; j < 8; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 8 + k0)] * mem1[o1 + (n0 + k0 * 8)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  let v0 = (a0 + mem1[o2 + n0]);
  if (row < 128 && lane == 0) {
    let s3 = select(v0, 0f, less_equal_f32(v0, 0f));
    mem2[o3 + (m0 * 8 + n0)] = s3;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[1].x;
  let o1 = at[1].y;
  let o2 = at[1].z;
  let o3 = at[1].w;
  let o4 = at[2].x;
  let o5 = at[2].y;
  let e = w * 128 + lid;
  if (e >= 4) { return; }
  let i0 = e;
  let v0 = i0;
  let s5 = select(select(select(select(0f, bitcast<f32>(inf_bits), ((mem3[o3 + 0] != 0) & less_equal_f32(0f, mem4[o4 + 0]))), mem0[o2 + 0], (v0 == 1)), mem0[o1 + 0], (v0 == 2)), mem0[o0 + 0], (v0 == 3));
  mem2[o5 + i0] = s5;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
}

// 2: matmul+sub | copy
@group(0) @binding(0) var<storage, read> mem0: array<f32>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 97>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 39>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32, 321>;
@group(0) @binding(4) var<storage, read> mem4: array<f32>;
@group(0) @binding(5) var<storage, read_write> mem5: array<f32, 3>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 2>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let o4 = at[1].x;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 16) { return; }
  let m0 = row;
  let n0 = row % 1;
  var ta0 = 0f;
  {
    for (var j = lane; j < 8; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 8 + k0)] * mem1[o1 + k0]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 16 && lane == 0) {
    let s4 = ((a0 + mem1[o2 + 0]) - mem2[o3 + m0]);
    mem3[o4 + m0] = s4;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[1].y;
  let o1 = at[1].z;
  let e = w * 128 + lid;
  if (e >= 3) { return; }
  let i0 = e;
  let s1 = mem4[o0 + (i0 + 1)];
  mem5[o1 + i0] = s1;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
}

// 3: matmul+where | matmul | sum | sum+div+where
@group(0) @binding(0) var<storage, read_write> mem0: array<f32, 321>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 97>;
@group(0) @binding(2) var<storage, read> mem2: array<f32>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32, 97>;
@group(0) @binding(4) var<storage, read> mem4: array<i32, 1>;
@group(0) @binding(5) var<storage, read> mem5: array<f32>;
@group(0) @binding(6) var<storage, read_write> mem6: array<f32, 1>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 4>;
var<workgroup> sf: array<f32, 160>;
var<private> inf_bits: u32 = 0x7f800000u;
fn less_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a < b && largest <= 0x7f800000u;
}
fn less_i32(a: i32, b: i32) -> bool { return a < b; }
fn less_u32(a: u32, b: u32) -> bool { return a < b; }
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 128) { return; }
  let m0 = (row / 8);
  let n0 = row % 8;
  let v0 = ((0.0625f * (2f * mem0[o0 + m0])) * mem1[o1 + n0]);
  var ta0 = 0f;
  {
    for (var j = lane; j < 1; j += 1) {
      let k0 = j;
      let xa0 = v0;
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 128 && lane == 0) {
    let s3 = select(0f, a0, less_f32(0f, mem2[o2 + (m0 * 8 + n0)]));
    mem0[o3 + (m0 * 8 + n0)] = s3;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[1].x;
  let o1 = at[1].y;
  let o2 = at[1].z;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 7);
  let m0 = r;
  let n0 = r % 1;
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 32) {
      let k0 = j;
      let xa0 = (mem2[o0 + (m0 + k0 * 8)] * (0.0625f * (2f * mem0[o1 + k0])));
      ta0 = (ta0 + xa0);
    }
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  if (row < 8 && lane == 0) {
    let s2 = a0;
    mem3[o2 + m0] = s2;
  }
}
fn k2(w: i32, lid: i32) {
  let o0 = at[1].w;
  let o1 = at[2].x;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 0);
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 32) {
      let j0 = j;
      let xa0 = (0.0625f * (2f * mem0[o0 + j0]));
      ta0 = (ta0 + xa0);
    }
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  if (row < 1 && lane == 0) {
    let s1 = a0;
    mem3[o1 + 0] = s1;
  }
}
fn k3(w: i32, lid: i32) {
  let o0 = at[2].y;
  let o1 = at[2].z;
  let o2 = at[2].w;
  let o3 = at[3].x;
  let o4 = at[3].y;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 0);
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 32) {
      let j0 = j;
      let xa0 = (mem0[o0 + j0] * mem0[o0 + j0]);
      ta0 = (ta0 + xa0);
    }
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  let v0 = div_(a0, 16f);
  if (row < 1 && lane == 0) {
    let s3 = v0;
    let s4 = select(mem5[o2 + 0], bitcast<f32>(inf_bits), (((bitcast<u32>(v0) & 0x7f800000u) == 0x7f800000u) | (!(mem4[o1 + 0] == 0))));
    mem6[o3 + 0] = s3;
    mem0[o4 + 0] = s4;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 3) { k1(w - 1, i32(lid)); }
  if (w >= 3 && w < 4) { k2(w - 3, i32(lid)); }
  if (w >= 4 && w < 5) { k3(w - 4, i32(lid)); }
}

// without barriers, (7, 1)
@group(0) @binding(0) var<storage, read_write> mem0: array<f32, 321>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 97>;
@group(0) @binding(2) var<storage, read> mem2: array<f32>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32, 97>;
@group(0) @binding(4) var<storage, read> mem4: array<i32, 1>;
@group(0) @binding(5) var<storage, read> mem5: array<f32>;
@group(0) @binding(6) var<storage, read_write> mem6: array<f32, 1>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 4>;
var<private> inf_bits: u32 = 0x7f800000u;
fn less_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a < b && largest <= 0x7f800000u;
}
fn less_i32(a: i32, b: i32) -> bool { return a < b; }
fn less_u32(a: u32, b: u32) -> bool { return a < b; }
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 128) { return; }
  let m0 = (row / 8);
  let n0 = row % 8;
  let v0 = ((0.0625f * (2f * mem0[o0 + m0])) * mem1[o1 + n0]);
  var ta0 = 0f;
  {
    for (var j = lane; j < 1; j += 1) {
      let k0 = j;
      let xa0 = v0;
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 128 && lane == 0) {
    let s3 = select(0f, a0, less_f32(0f, mem2[o2 + (m0 * 8 + n0)]));
    mem0[o3 + (m0 * 8 + n0)] = s3;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[1].x;
  let o1 = at[1].y;
  let o2 = at[1].z;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 8) { return; }
  let m0 = row;
  let n0 = row % 1;
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
      for (var j = lane; j < 16; j += 32) {
        let k0 = j;
        let xa0 = (mem2[o0 + (m0 + k0 * 8)] * (0.0625f * (2f * mem0[o1 + k0])));
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
  if (row < 8 && lane == 0) {
    let s2 = a0;
    mem3[o2 + m0] = s2;
  }
}
fn k2(w: i32, lid: i32) {
  let o0 = at[1].w;
  let o1 = at[2].x;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 1) { return; }
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
      for (var j = lane; j < 16; j += 32) {
        let j0 = j;
        let xa0 = (0.0625f * (2f * mem0[o0 + j0]));
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
  if (row < 1 && lane == 0) {
    let s1 = a0;
    mem3[o1 + 0] = s1;
  }
}
fn k3(w: i32, lid: i32) {
  let o0 = at[2].y;
  let o1 = at[2].z;
  let o2 = at[2].w;
  let o3 = at[3].x;
  let o4 = at[3].y;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 1) { return; }
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
      for (var j = lane; j < 16; j += 32) {
        let j0 = j;
        let xa0 = (mem0[o0 + j0] * mem0[o0 + j0]);
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
  let v0 = div_(a0, 16f);
  if (row < 1 && lane == 0) {
    let s3 = v0;
    let s4 = select(mem5[o2 + 0], bitcast<f32>(inf_bits), (((bitcast<u32>(v0) & 0x7f800000u) == 0x7f800000u) | (!(mem4[o1 + 0] == 0))));
    mem6[o3 + 0] = s3;
    mem0[o4 + 0] = s4;
  }
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 4) { k0(w - 0, i32(lid)); }
  if (w >= 4 && w < 5) { k1(w - 4, i32(lid)); }
  if (w >= 5 && w < 6) { k2(w - 5, i32(lid)); }
  if (w >= 6 && w < 7) { k3(w - 6, i32(lid)); }
}

// 4: matmul | matmul+where | sum
@group(0) @binding(0) var<storage, read> mem0: array<f32, 321>;
@group(0) @binding(1) var<storage, read_write> mem1: array<f32, 97>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 97>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 3>;
fn less_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a < b && largest <= 0x7f800000u;
}
fn less_i32(a: i32, b: i32) -> bool { return a < b; }
fn less_u32(a: u32, b: u32) -> bool { return a < b; }
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 64) { return; }
  let m0 = (row / 8);
  let n0 = row % 8;
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 + k0 * 8)] * mem0[o1 + (n0 + k0 * 8)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 64 && lane == 0) {
    let s2 = a0;
    mem1[o2 + (m0 * 8 + n0)] = s2;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[0].w;
  let o1 = at[1].x;
  let o2 = at[1].y;
  let o3 = at[1].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 128) { return; }
  let m0 = (row / 8);
  let n0 = row % 8;
  var ta0 = 0f;
  {
    for (var j = lane; j < 8; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 8 + k0)] * mem2[o1 + (n0 * 8 + k0)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 128 && lane == 0) {
    let s3 = select(0f, a0, less_f32(0f, mem0[o2 + (m0 * 8 + n0)]));
    mem3[o3 + (m0 * 8 + n0)] = s3;
  }
}
fn k2(w: i32, lid: i32) {
  let o0 = at[1].w;
  let o1 = at[2].x;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 8) { return; }
  let i0 = row;
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 1) {
      let j0 = j;
      let xa0 = mem0[o0 + (i0 + j0 * 8)];
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 8 && lane == 0) {
    let s1 = a0;
    mem1[o1 + i0] = s1;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
  if (w >= 2 && w < 3) { k2(w - 2, i32(lid)); }
}

// 5: matmul | sum
@group(0) @binding(0) var<storage, read> mem0: array<f32, 39>;
@group(0) @binding(1) var<storage, read> mem1: array<f32>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 97>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 2>;
var<workgroup> sf: array<f32, 160>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 7);
  let m0 = (r / 8);
  let n0 = r % 8;
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 32) {
      let k0 = j;
      let xa0 = (mem0[o0 + k0] * mem1[o1 + (n0 + k0 * 8)]);
      ta0 = (ta0 + xa0);
    }
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  if (row < 8 && lane == 0) {
    let s2 = a0;
    mem2[o2 + n0] = s2;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[0].w;
  let o1 = at[1].x;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 8) { return; }
  let i0 = row;
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 1) {
      let j0 = j;
      let xa0 = mem1[o0 + (i0 + j0 * 8)];
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 8 && lane == 0) {
    let s1 = a0;
    mem2[o1 + i0] = s1;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 2) { k0(w - 0, i32(lid)); }
  if (w >= 2 && w < 3) { k1(w - 2, i32(lid)); }
}

// without barriers, (2, 1)
@group(0) @binding(0) var<storage, read> mem0: array<f32, 39>;
@group(0) @binding(1) var<storage, read> mem1: array<f32>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 97>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 2>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 8) { return; }
  let m0 = (row / 8);
  let n0 = row % 8;
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
      for (var j = lane; j < 16; j += 32) {
        let k0 = j;
        let xa0 = (mem0[o0 + k0] * mem1[o1 + (n0 + k0 * 8)]);
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
  if (row < 8 && lane == 0) {
    let s2 = a0;
    mem2[o2 + n0] = s2;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[0].w;
  let o1 = at[1].x;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 8) { return; }
  let i0 = row;
  var ta0 = 0f;
  {
    for (var j = lane; j < 16; j += 1) {
      let j0 = j;
      let xa0 = mem1[o0 + (i0 + j0 * 8)];
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 8 && lane == 0) {
    let s1 = a0;
    mem2[o1 + i0] = s1;
  }
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
}

// 6: div+sum+minimum+mul+add+logical_not
@group(0) @binding(0) var<storage, read> mem0: array<i32, 1>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 39>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 97>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32, 97>;
@group(0) @binding(4) var<storage, read_write> mem4: array<f32, 97>;
@group(0) @binding(5) var<storage, read_write> mem5: array<f32, 321>;
@group(0) @binding(6) var<storage, read_write> mem6: array<f32, 97>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 5>;
var<workgroup> sf: array<f32, 160>;
var<private> inf_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;
fn min_f32(a: f32, b: f32) -> f32 {
  let nan = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;
  return select(min(a, b), a + b, nan);
}
fn min_i32(a: i32, b: i32) -> i32 { return min(a, b); }
fn min_u32(a: u32, b: u32) -> u32 { return min(a, b); }
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
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
fn expm1_(x: f32) -> f32 {
  let c = clamp(x, -30.0, 80.0);
  let n = round(c * 1.4426950408889634);
  let r = c - n * 0.693359375 - n * (-0.00021219444);
  let y = ((((0.0013820732 * r + 0.008368677) * r + 0.041668266) * r + 0.16666521) * r + 0.49999994) * r * r + r;
  let s = scale_(1.0, i32(n));
  return select(select(s * y + (s - 1.0), x, abs(x) < 1e-8), exp_(x), !(x < 80.0));
}
fn log_sum_(f: f32, e: f32) -> f32 {
  let z = f * f;
  let y = ((((((((0.070376836292 * f + -0.1151461031) * f + 0.1167699874) * f + -0.12420140846) * f + 0.14249322787) * f + -0.16668057665) * f + 0.20000714765) * f + -0.24999993993) * f + 0.33333331174) * f * z + e * (-0.00021219444) - 0.5 * z;
  return f + y + e * 0.693359375;
}
fn log_special_(y: f32, x: f32, v: u32) -> f32 {
  let u = bitcast<u32>(x);
  let other = select(x, bitcast<f32>(nan_bits), u >> 31u == 1u);
  let at_zero = select(other, -bitcast<f32>(inf_bits), (v << 1u) == 0u);
  return select(y, at_zero, u - 1u >= 0x7f7fffffu || v == 0u);
}
fn log1p_(x: f32) -> f32 {
  let s = 1.0 + x;
  let v = bitcast<u32>(s);
  let m = bitcast<f32>((v & 0x7fffffu) | 0x3f000000u);
  let low = m < 0.7071067811865476;
  let e = i32(v >> 23u) - select(126, 127, low);
  let y = log_sum_(select(select(m, m + m, low) - 1.0, x, e == 0), f32(e));
  return select(log_special_(y, s, v), x, abs(x) < 1e-10);
}
fn less_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a < b && largest <= 0x7f800000u;
}
fn less_i32(a: i32, b: i32) -> bool { return a < b; }
fn less_u32(a: u32, b: u32) -> bool { return a < b; }
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let o4 = at[1].x;
  let o5 = at[1].y;
  let o6 = at[1].z;
  let o7 = at[1].w;
  let o8 = at[2].x;
  let o9 = at[2].y;
  let o10 = at[2].z;
  let o11 = at[2].w;
  let o12 = at[3].x;
  let o13 = at[3].y;
  let o14 = at[3].z;
  let o15 = at[3].w;
  let o16 = at[4].x;
  let o17 = at[4].y;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 0);
  let j = lane;
  let j_0 = min(j + 0, 96);
  let j0_0 = j_0;
  let j_1 = min(j + 32, 96);
  let j0_1 = j_1;
  let j_2 = min(j + 64, 96);
  let j0_2 = j_2;
  let j_3 = min(j + 96, 96);
  let j0_3 = j_3;
  let v0_0 = mem1[o3 + 0];
  var ta0 = 0f;
  let v1_0 = (mem2[o2 + j0_0] * v0_0);
  let xa0_0 = (v1_0 * v1_0);
  let v2_1 = (mem2[o2 + j0_1] * v0_0);
  let xa0_1 = (v2_1 * v2_1);
  let v3_2 = (mem2[o2 + j0_2] * v0_0);
  let xa0_2 = (v3_2 * v3_2);
  let v4_3 = (mem2[o2 + j0_3] * v0_0);
  let xa0_3 = (v4_3 * v4_3);
  if (j + 0 < 97) {
    ta0 = (ta0 + xa0_0);
  }
  if (j + 32 < 97) {
    ta0 = (ta0 + xa0_1);
  }
  if (j + 64 < 97) {
    ta0 = (ta0 + xa0_2);
  }
  if (j + 96 < 97) {
    ta0 = (ta0 + xa0_3);
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  let v5_0 = (!((bitcast<u32>((a0 + mem5[o8 + 0])) & 0x7f800000u) == 0x7f800000u));
  let v7_0 = min_f32(div_(1f, v0_0), div_(mem1[o4 + 0], (sqrt(a0) + (9.99999997e-07f * v0_0))));
  let v9_0 = mem1[o6 + 0];
  let v12_0 = mem1[o1 + 0];
  let v15_0 = (-mem1[o10 + 0]);
  let v16_0 = mem5[o11 + 0];
  let v17_0 = div_(1f, (-expm1_((f32(bitcast<u32>(mem0[o0 + 0])) * log1p_((-v12_0))))));
  let v18_0 = mem1[o12 + 0];
  let v19_0 = mem1[o13 + 0];
  if (row < 1) {
    let v6_0 = mem3[o5 + j0_0];
    let v8_0 = (v1_0 * v7_0);
    let v10_0 = (v6_0 + ((v8_0 - v6_0) * v9_0));
    let v11_0 = mem4[o7 + j0_0];
    let v13_0 = (v11_0 + (((v8_0 * v8_0) - v11_0) * v12_0));
    let v14_0 = mem6[o9 + j0_0];
    let s15_0 = select(v6_0, v10_0, v5_0);
    let s16_0 = select(v11_0, v13_0, v5_0);
    let s17_0 = select(v14_0, (v14_0 + (v15_0 * (div_((v10_0 * v16_0), (sqrt((v13_0 * v17_0)) + v18_0)) + (select(0f, v19_0, less_i32(j0_0, 80)) * v14_0)))), v5_0);
    let v20_1 = mem3[o5 + j0_1];
    let v21_1 = (v2_1 * v7_0);
    let v22_1 = (v20_1 + ((v21_1 - v20_1) * v9_0));
    let v23_1 = mem4[o7 + j0_1];
    let v24_1 = (v23_1 + (((v21_1 * v21_1) - v23_1) * v12_0));
    let v25_1 = mem6[o9 + j0_1];
    let s15_1 = select(v20_1, v22_1, v5_0);
    let s16_1 = select(v23_1, v24_1, v5_0);
    let s17_1 = select(v25_1, (v25_1 + (v15_0 * (div_((v22_1 * v16_0), (sqrt((v24_1 * v17_0)) + v18_0)) + (select(0f, v19_0, less_i32(j0_1, 80)) * v25_1)))), v5_0);
    let v26_2 = mem3[o5 + j0_2];
    let v27_2 = (v3_2 * v7_0);
    let v28_2 = (v26_2 + ((v27_2 - v26_2) * v9_0));
    let v29_2 = mem4[o7 + j0_2];
    let v30_2 = (v29_2 + (((v27_2 * v27_2) - v29_2) * v12_0));
    let v31_2 = mem6[o9 + j0_2];
    let s15_2 = select(v26_2, v28_2, v5_0);
    let s16_2 = select(v29_2, v30_2, v5_0);
    let s17_2 = select(v31_2, (v31_2 + (v15_0 * (div_((v28_2 * v16_0), (sqrt((v30_2 * v17_0)) + v18_0)) + (select(0f, v19_0, less_i32(j0_2, 80)) * v31_2)))), v5_0);
    let v32_3 = mem3[o5 + j0_3];
    let v33_3 = (v4_3 * v7_0);
    let v34_3 = (v32_3 + ((v33_3 - v32_3) * v9_0));
    let v35_3 = mem4[o7 + j0_3];
    let v36_3 = (v35_3 + (((v33_3 * v33_3) - v35_3) * v12_0));
    let v37_3 = mem6[o9 + j0_3];
    let s15_3 = select(v32_3, v34_3, v5_0);
    let s16_3 = select(v35_3, v36_3, v5_0);
    let s17_3 = select(v37_3, (v37_3 + (v15_0 * (div_((v34_3 * v16_0), (sqrt((v36_3 * v17_0)) + v18_0)) + (select(0f, v19_0, less_i32(j0_3, 80)) * v37_3)))), v5_0);
    if (j + 0 < 97) {
      mem3[o15 + j0_0] = s15_0;
      mem4[o16 + j0_0] = s16_0;
      mem6[o17 + j0_0] = s17_0;
    }
    if (j + 32 < 97) {
      mem3[o15 + j0_1] = s15_1;
      mem4[o16 + j0_1] = s16_1;
      mem6[o17 + j0_1] = s17_1;
    }
    if (j + 64 < 97) {
      mem3[o15 + j0_2] = s15_2;
      mem4[o16 + j0_2] = s16_2;
      mem6[o17 + j0_2] = s17_2;
    }
    if (j + 96 < 97) {
      mem3[o15 + j0_3] = s15_3;
      mem4[o16 + j0_3] = s16_3;
      mem6[o17 + j0_3] = s17_3;
    }
  }
  if (row < 1 && lane == 0) {
    let s14 = a0;
    mem5[o14 + 0] = s14;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}

// without barriers, (1, 1)
@group(0) @binding(0) var<storage, read> mem0: array<i32, 1>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 39>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 97>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32, 97>;
@group(0) @binding(4) var<storage, read_write> mem4: array<f32, 97>;
@group(0) @binding(5) var<storage, read_write> mem5: array<f32, 321>;
@group(0) @binding(6) var<storage, read_write> mem6: array<f32, 97>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 5>;
var<private> inf_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;
fn min_f32(a: f32, b: f32) -> f32 {
  let nan = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;
  return select(min(a, b), a + b, nan);
}
fn min_i32(a: i32, b: i32) -> i32 { return min(a, b); }
fn min_u32(a: u32, b: u32) -> u32 { return min(a, b); }
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
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
fn expm1_(x: f32) -> f32 {
  let c = clamp(x, -30.0, 80.0);
  let n = round(c * 1.4426950408889634);
  let r = c - n * 0.693359375 - n * (-0.00021219444);
  let y = ((((0.0013820732 * r + 0.008368677) * r + 0.041668266) * r + 0.16666521) * r + 0.49999994) * r * r + r;
  let s = scale_(1.0, i32(n));
  return select(select(s * y + (s - 1.0), x, abs(x) < 1e-8), exp_(x), !(x < 80.0));
}
fn log_sum_(f: f32, e: f32) -> f32 {
  let z = f * f;
  let y = ((((((((0.070376836292 * f + -0.1151461031) * f + 0.1167699874) * f + -0.12420140846) * f + 0.14249322787) * f + -0.16668057665) * f + 0.20000714765) * f + -0.24999993993) * f + 0.33333331174) * f * z + e * (-0.00021219444) - 0.5 * z;
  return f + y + e * 0.693359375;
}
fn log_special_(y: f32, x: f32, v: u32) -> f32 {
  let u = bitcast<u32>(x);
  let other = select(x, bitcast<f32>(nan_bits), u >> 31u == 1u);
  let at_zero = select(other, -bitcast<f32>(inf_bits), (v << 1u) == 0u);
  return select(y, at_zero, u - 1u >= 0x7f7fffffu || v == 0u);
}
fn log1p_(x: f32) -> f32 {
  let s = 1.0 + x;
  let v = bitcast<u32>(s);
  let m = bitcast<f32>((v & 0x7fffffu) | 0x3f000000u);
  let low = m < 0.7071067811865476;
  let e = i32(v >> 23u) - select(126, 127, low);
  let y = log_sum_(select(select(m, m + m, low) - 1.0, x, e == 0), f32(e));
  return select(log_special_(y, s, v), x, abs(x) < 1e-10);
}
fn less_f32(a: f32, b: f32) -> bool {
  let largest = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu);
  return a < b && largest <= 0x7f800000u;
}
fn less_i32(a: i32, b: i32) -> bool { return a < b; }
fn less_u32(a: u32, b: u32) -> bool { return a < b; }
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let o4 = at[1].x;
  let o5 = at[1].y;
  let o6 = at[1].z;
  let o7 = at[1].w;
  let o8 = at[2].x;
  let o9 = at[2].y;
  let o10 = at[2].z;
  let o11 = at[2].w;
  let o12 = at[3].x;
  let o13 = at[3].y;
  let o14 = at[3].z;
  let o15 = at[3].w;
  let o16 = at[4].x;
  let o17 = at[4].y;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 1) { return; }
  let v0 = mem1[o3 + 0];
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
      for (var j = lane; j < 97; j += 32) {
        let j0 = j;
        let xa0 = ((mem2[o2 + j0] * v0) * (mem2[o2 + j0] * v0));
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
  let v1 = (!((bitcast<u32>((a0 + mem5[o8 + 0])) & 0x7f800000u) == 0x7f800000u));
  let v3 = min_f32(div_(1f, v0), div_(mem1[o4 + 0], (sqrt(a0) + (9.99999997e-07f * v0))));
  let v5 = mem1[o6 + 0];
  let v8 = mem1[o1 + 0];
  let v11 = (-mem1[o10 + 0]);
  let v12 = mem5[o11 + 0];
  let v13 = div_(1f, (-expm1_((f32(bitcast<u32>(mem0[o0 + 0])) * log1p_((-v8))))));
  let v14 = mem1[o12 + 0];
  let v15 = mem1[o13 + 0];
  if (row < 1) {
    for (var j = lane; j < 97; j += 1) {
      let j0 = j;
      let v2 = mem3[o5 + j0];
      let v4 = ((mem2[o2 + j0] * v0) * v3);
      let v6 = (v2 + ((v4 - v2) * v5));
      let v7 = mem4[o7 + j0];
      let v9 = (v7 + (((v4 * v4) - v7) * v8));
      let v10 = mem6[o9 + j0];
      let s15 = select(v2, v6, v1);
      let s16 = select(v7, v9, v1);
      let s17 = select(v10, (v10 + (v11 * (div_((v6 * v12), (sqrt((v9 * v13)) + v14)) + (select(0f, v15, less_i32(j0, 80)) * v10)))), v1);
      mem3[o15 + j0] = s15;
      mem4[o16 + j0] = s16;
      mem6[o17 + j0] = s17;
    }
  }
  if (row < 1 && lane == 0) {
    let s14 = a0;
    mem5[o14 + 0] = s14;
  }
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}

// 7: where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 321>;
@group(0) @binding(1) var<storage, read_write> mem1: array<i32, 1>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let e = w * 128 + lid;
  if (e >= 1) { return; }
  let s3 = select(0, (mem1[o2 + 0] + 1), ((bitcast<u32>((mem0[o0 + 0] + mem0[o1 + 0])) & 0x7f800000u) == 0x7f800000u));
  mem1[o3 + 0] = s3;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}
