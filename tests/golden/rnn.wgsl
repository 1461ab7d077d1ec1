// 0: matmul | copy | copy | copy | maximum+nonfinite+where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 45>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 22>;
@group(0) @binding(2) var<storage, read_write> mem2: array<f32, 289>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32>;
@group(0) @binding(4) var<storage, read> mem4: array<f32, 2>;
@group(0) @binding(5) var<storage, read_write> mem5: array<i32, 1>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 4>;
fn max_f32(a: f32, b: f32) -> f32 {
  let nan = max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;
  return select(max(a, b), a + b, nan);
}
fn max_i32(a: i32, b: i32) -> i32 { return max(a, b); }
fn max_u32(a: u32, b: u32) -> u32 { return max(a, b); }
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 42) { return; }
  let m0 = (row / 3);
  let n0 = row % 3;
  var ta0 = 0f;
  {
    for (var j = lane; j < 2; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 2 + k0)] * mem1[o1 + (n0 + k0 * 3)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 42 && lane == 0) {
    let s2 = a0;
    mem2[o2 + (m0 * 3 + n0)] = s2;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[0].w;
  let o1 = at[1].x;
  let e = w * 128 + lid;
  if (e >= 9) { return; }
  let i0 = (e / 3);
  let i1 = e % 3;
  let s1 = mem1[o0 + (i1 * 3 + i0)];
  mem3[o1 + (i0 * 3 + i1)] = s1;
}
fn k2(w: i32, lid: i32, n: i32, first: i32) {
  let o0 = at[(first + 0) / 4][(first + 0) % 4];
  let e = w * 128 + lid;
  if (e >= 6) { return; }
  let i0 = e;
  let s0 = 0f;
  mem2[o0 + i0] = s0;
}
fn k3(w: i32, lid: i32) {
  let o0 = at[1].w;
  let o1 = at[2].x;
  let o2 = at[2].y;
  let o3 = at[2].z;
  let o4 = at[2].w;
  let o5 = at[3].x;
  let e = w * 128 + lid;
  if (e >= 1) { return; }
  let v0 = mem4[o0 + 0];
  let v1 = mem0[o2 + 0];
  let v2 = mem4[o0 + 1];
  let v3 = ((v1 * v2) + 3.6028797e+16f);
  let v4 = max_f32(v0, ((v0 + (mem0[o1 + 0] * v3)) * 1.00000095f));
  let v5 = max_f32(v2, (select(v3, v2, (v1 == 0f)) * 1.00000095f));
  let v6 = ((bitcast<u32>((v4 + v5)) & 0x7f800000u) == 0x7f800000u);
  let s3 = v6;
  let s4 = select(v4, v0, v6);
  let s5 = select(v5, v2, v6);
  mem5[o3 + 0] = select(0, 1, s3);
  mem2[o4 + 0] = s4;
  mem2[o5 + 0] = s5;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
  if (w >= 2 && w < 4) { let n = (w - 2) / 1; k2(w - 2 - n * 1, i32(lid), n, 5 + n * 1); }
  if (w >= 4 && w < 5) { k3(w - 4, i32(lid)); }
}

// 1: matmul+tanh
@group(0) @binding(0) var<storage, read_write> mem0: array<f32, 289>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 22>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 2>;
fn near_exp_(x: f32) -> f32 { return exp(x); }
fn signed_(y: f32, x: f32) -> f32 {  // y >= 0 with the sign of x
  return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u));
}
fn tanh_(x: f32) -> f32 {
  let a = abs(x);
  let z = x * x;
  let y = 1.0 - 2.0 / (near_exp_(2.0 * min(a, 15.0)) + 1.0);
  return select(x * (1.0 + z * ((((((-0.00035845203092321754 * z + 0.0023013646714389324) * z + -0.007946106605231762) * z + 0.021486658602952957) * z + -0.05387980118393898) * z + 0.13332344591617584) * z + -0.33333295583724976)), signed_(y, x), a >= 1.0);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let o4 = at[1].x;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 6) { return; }
  let m0 = (row / 3);
  let n0 = row % 3;
  var ta0 = 0f;
  {
    for (var j = lane; j < 3; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 3 + k0)] * mem1[o1 + (n0 + k0 * 3)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 6 && lane == 0) {
    let s4 = tanh_(((mem0[o2 + (m0 * 3 + n0)] + mem1[o3 + n0]) + a0));
    mem0[o4 + (m0 * 3 + n0)] = s4;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}

// 2: matmul+sub | where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 289>;
@group(0) @binding(1) var<storage, read> mem1: array<f32, 22>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 45>;
@group(0) @binding(3) var<storage, read_write> mem3: array<f32>;
@group(0) @binding(4) var<storage, read> mem4: array<i32, 1>;
@group(0) @binding(5) var<storage, read> mem5: array<f32, 2>;
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
  let o4 = at[1].x;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 14) { return; }
  let m0 = row;
  let n0 = row % 1;
  var ta0 = 0f;
  {
    for (var j = lane; j < 3; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 3 + k0)] * mem1[o1 + k0]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 14 && lane == 0) {
    let s4 = ((a0 + mem1[o2 + 0]) - mem2[o3 + m0]);
    mem3[o4 + m0] = s4;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[1].y;
  let o1 = at[1].z;
  let o2 = at[1].w;
  let o3 = at[2].x;
  let o4 = at[2].y;
  let e = w * 128 + lid;
  if (e >= 3) { return; }
  let i0 = e;
  let v0 = i0;
  let s4 = select(select(select(0f, bitcast<f32>(inf_bits), ((mem4[o2 + 0] != 0) & less_equal_f32(0f, mem5[o3 + 0]))), mem0[o1 + 0], (v0 == 1)), mem0[o0 + 0], (v0 == 2));
  mem3[o4 + i0] = s4;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
}

// 3: matmul | matmul | sum+div+where | sum | copy
@group(0) @binding(0) var<storage, read_write> mem0: array<f32, 289>;
@group(0) @binding(1) var<storage, read> mem1: array<f32>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 22>;
@group(0) @binding(3) var<storage, read> mem3: array<i32, 1>;
@group(0) @binding(4) var<storage, read> mem4: array<f32>;
@group(0) @binding(5) var<storage, read_write> mem5: array<f32, 1>;
@group(0) @binding(6) var<storage, read_write> mem6: array<f32, 2>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 4>;
var<workgroup> sf: array<f32, 160>;
var<private> inf_bits: u32 = 0x7f800000u;
fn div_(a: f32, b: f32) -> f32 {
  let s = select(1.0, 0.0625, abs(b) > 8.5e37);
  return (a * s) / (b * s);
}
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 21) { return; }
  let b0 = (row / 3);
  let m0 = row % 3;
  let n0 = row % 1;
  let h0 = b0 * 6 + m0;
  var ta0 = 0f;
  {
    for (var j = lane; j < 2; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (h0 + k0 * 3)] * (0.0714285746f * (2f * mem1[o1 + (b0 * 2 + k0)])));
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 21 && lane == 0) {
    let s2 = a0;
    mem0[o2 + (b0 * 3 + m0)] = s2;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[0].w;
  let o1 = at[1].x;
  let o2 = at[1].y;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 42) { return; }
  let m0 = (row / 3);
  let n0 = row % 3;
  let v0 = ((0.0714285746f * (2f * mem1[o0 + m0])) * mem2[o1 + n0]);
  var ta0 = 0f;
  {
    for (var j = lane; j < 1; j += 1) {
      let k0 = j;
      let xa0 = v0;
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 42 && lane == 0) {
    let s2 = a0;
    mem0[o2 + (m0 * 3 + n0)] = s2;
  }
}
fn k2(w: i32, lid: i32) {
  let o0 = at[1].z;
  let o1 = at[1].w;
  let o2 = at[2].x;
  let o3 = at[2].y;
  let o4 = at[2].z;
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 0);
  var ta0 = 0f;
  {
    for (var j = lane; j < 14; j += 32) {
      let j0 = j;
      let xa0 = (mem1[o0 + j0] * mem1[o0 + j0]);
      ta0 = (ta0 + xa0);
    }
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  let v0 = div_(a0, 14f);
  if (row < 1 && lane == 0) {
    let s3 = v0;
    let s4 = select(mem4[o2 + 0], bitcast<f32>(inf_bits), (((bitcast<u32>(v0) & 0x7f800000u) == 0x7f800000u) | (!(mem3[o1 + 0] == 0))));
    mem5[o3 + 0] = s3;
    mem0[o4 + 0] = s4;
  }
}
fn k3(w: i32, lid: i32) {
  let o0 = at[2].w;
  let o1 = at[3].x;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 7) { return; }
  let i0 = row;
  var ta0 = 0f;
  {
    for (var j = lane; j < 2; j += 1) {
      let j0 = j;
      let xa0 = (0.0714285746f * (2f * mem1[o0 + (i0 * 2 + j0)]));
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 7 && lane == 0) {
    let s1 = a0;
    mem0[o1 + i0] = s1;
  }
}
fn k4(w: i32, lid: i32) {
  let o0 = at[3].y;
  let o1 = at[3].z;
  let e = w * 128 + lid;
  if (e >= 2) { return; }
  let i0 = e;
  let s1 = mem4[o0 + (i0 + 1)];
  mem6[o1 + i0] = s1;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
  if (w >= 2 && w < 3) { k2(w - 2, i32(lid)); }
  if (w >= 3 && w < 4) { k3(w - 3, i32(lid)); }
  if (w >= 4 && w < 5) { k4(w - 4, i32(lid)); }
}

// without barriers, (6, 1)
@group(0) @binding(0) var<storage, read_write> mem0: array<f32, 289>;
@group(0) @binding(1) var<storage, read> mem1: array<f32>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 22>;
@group(0) @binding(3) var<storage, read> mem3: array<i32, 1>;
@group(0) @binding(4) var<storage, read> mem4: array<f32>;
@group(0) @binding(5) var<storage, read_write> mem5: array<f32, 1>;
@group(0) @binding(6) var<storage, read_write> mem6: array<f32, 2>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 4>;
var<private> inf_bits: u32 = 0x7f800000u;
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
  if (row >= 21) { return; }
  let b0 = (row / 3);
  let m0 = row % 3;
  let n0 = row % 1;
  let h0 = b0 * 6 + m0;
  var ta0 = 0f;
  {
    for (var j = lane; j < 2; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (h0 + k0 * 3)] * (0.0714285746f * (2f * mem1[o1 + (b0 * 2 + k0)])));
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 21 && lane == 0) {
    let s2 = a0;
    mem0[o2 + (b0 * 3 + m0)] = s2;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[0].w;
  let o1 = at[1].x;
  let o2 = at[1].y;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 42) { return; }
  let m0 = (row / 3);
  let n0 = row % 3;
  let v0 = ((0.0714285746f * (2f * mem1[o0 + m0])) * mem2[o1 + n0]);
  var ta0 = 0f;
  {
    for (var j = lane; j < 1; j += 1) {
      let k0 = j;
      let xa0 = v0;
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 42 && lane == 0) {
    let s2 = a0;
    mem0[o2 + (m0 * 3 + n0)] = s2;
  }
}
fn k2(w: i32, lid: i32) {
  let o0 = at[1].z;
  let o1 = at[1].w;
  let o2 = at[2].x;
  let o3 = at[2].y;
  let o4 = at[2].z;
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
      for (var j = lane; j < 14; j += 32) {
        let j0 = j;
        let xa0 = (mem1[o0 + j0] * mem1[o0 + j0]);
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
  let v0 = div_(a0, 14f);
  if (row < 1 && lane == 0) {
    let s3 = v0;
    let s4 = select(mem4[o2 + 0], bitcast<f32>(inf_bits), (((bitcast<u32>(v0) & 0x7f800000u) == 0x7f800000u) | (!(mem3[o1 + 0] == 0))));
    mem5[o3 + 0] = s3;
    mem0[o4 + 0] = s4;
  }
}
fn k3(w: i32, lid: i32) {
  let o0 = at[2].w;
  let o1 = at[3].x;
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 7) { return; }
  let i0 = row;
  var ta0 = 0f;
  {
    for (var j = lane; j < 2; j += 1) {
      let j0 = j;
      let xa0 = (0.0714285746f * (2f * mem1[o0 + (i0 * 2 + j0)]));
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 7 && lane == 0) {
    let s1 = a0;
    mem0[o1 + i0] = s1;
  }
}
fn k4(w: i32, lid: i32) {
  let o0 = at[3].y;
  let o1 = at[3].z;
  let e = w * 32 + lid;
  if (e >= 2) { return; }
  let i0 = e;
  let s1 = mem4[o0 + (i0 + 1)];
  mem6[o1 + i0] = s1;
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 3) { k1(w - 1, i32(lid)); }
  if (w >= 3 && w < 4) { k2(w - 3, i32(lid)); }
  if (w >= 4 && w < 5) { k3(w - 4, i32(lid)); }
  if (w >= 5 && w < 6) { k4(w - 5, i32(lid)); }
}

// 4: mul
@group(0) @binding(0) var<storage, read_write> mem0: array<f32, 289>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let o3 = at[0].w;
  let e = w * 128 + lid;
  if (e >= 6) { return; }
  let i0 = e;
  let v0 = mem0[o2 + i0];
  let s3 = ((mem0[o0 + i0] + mem0[o1 + i0]) * (1f - (v0 * v0)));
  mem0[o3 + i0] = s3;
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}

// 5: matmul
@group(0) @binding(0) var<storage, read_write> mem0: array<f32, 289>;
@group(0) @binding(1) var<storage, read> mem1: array<f32>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 6) { return; }
  let m0 = (row / 3);
  let n0 = row % 3;
  var ta0 = 0f;
  {
    for (var j = lane; j < 3; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 * 3 + k0)] * mem1[o1 + (n0 + k0 * 3)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 6 && lane == 0) {
    let s2 = a0;
    mem0[o2 + (m0 * 3 + n0)] = s2;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}

// 6: matmul+add | matmul+add | sum+add | sum+add | sum+add
@group(0) @binding(0) var<storage, read> mem0: array<f32, 289>;
@group(0) @binding(1) var<storage, read_write> mem1: array<f32, 22>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 45>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 3>;
fn k0(w: i32, lid: i32) {
  let o0 = at[0].x;
  let o1 = at[0].y;
  let o2 = at[0].z;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 9) { return; }
  let m0 = (row / 3);
  let n0 = row % 3;
  var ta0 = 0f;
  {
    for (var j = lane; j < 14; j += 1) {
      let k0 = j;
      let xa0 = (mem0[o0 + (m0 + k0 * 3)] * mem0[o1 + (n0 + k0 * 3)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 9 && lane == 0) {
    let s2 = (0f + a0);
    mem1[o2 + (m0 * 3 + n0)] = s2;
  }
}
fn k1(w: i32, lid: i32) {
  let o0 = at[0].w;
  let o1 = at[1].x;
  let o2 = at[1].y;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 6) { return; }
  let m0 = (row / 3);
  let n0 = row % 3;
  var ta0 = 0f;
  {
    for (var j = lane; j < 14; j += 1) {
      let k0 = j;
      let xa0 = (mem2[o0 + (m0 + k0 * 2)] * mem0[o1 + (n0 + k0 * 3)]);
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 6 && lane == 0) {
    let s2 = (0f + a0);
    mem1[o2 + (m0 * 3 + n0)] = s2;
  }
}
fn k2(w: i32, lid: i32) {
  let o0 = at[1].z;
  let o1 = at[1].w;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 3) { return; }
  let i0 = row;
  var ta0 = 0f;
  {
    for (var j = lane; j < 14; j += 1) {
      let j0 = j;
      let xa0 = mem0[o0 + (i0 + j0 * 3)];
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 3 && lane == 0) {
    let s1 = (0f + a0);
    mem1[o1 + i0] = s1;
  }
}
fn k3(w: i32, lid: i32) {
  let o0 = at[2].x;
  let o1 = at[2].y;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 3) { return; }
  let i0 = row;
  var ta0 = 0f;
  {
    for (var j = lane; j < 7; j += 1) {
      let j0 = j;
      let xa0 = mem0[o0 + (i0 + j0 * 3)];
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 3 && lane == 0) {
    let s1 = (0f + a0);
    mem1[o1 + i0] = s1;
  }
}
fn k4(w: i32, lid: i32) {
  let o0 = at[2].z;
  let o1 = at[2].w;
  let row = w * 128 + lid;
  let lane = 0;
  if (row >= 1) { return; }
  var ta0 = 0f;
  {
    for (var j = lane; j < 7; j += 1) {
      let j0 = j;
      let xa0 = mem0[o0 + j0];
      ta0 = (ta0 + xa0);
    }
  }
  let a0 = ta0;
  if (row < 1 && lane == 0) {
    let s1 = (0f + a0);
    mem1[o1 + 0] = s1;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
  if (w >= 1 && w < 2) { k1(w - 1, i32(lid)); }
  if (w >= 2 && w < 3) { k2(w - 2, i32(lid)); }
  if (w >= 3 && w < 4) { k3(w - 3, i32(lid)); }
  if (w >= 4 && w < 5) { k4(w - 4, i32(lid)); }
}

// 7: add+sum+where
@group(0) @binding(0) var<storage, read> mem0: array<f32, 45>;
@group(0) @binding(1) var<storage, read_write> mem1: array<f32, 22>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 22>;
@group(0) @binding(3) var<storage, read> mem3: array<f32, 289>;
@group(0) @binding(4) var<storage, read_write> mem4: array<f32, 22>;
@group(0) @binding(5) var<storage, read_write> mem5: array<i32, 1>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 3>;
var<workgroup> sf: array<f32, 160>;
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
  let row = w * 4 + lid / 32;
  let lane = lid % 32;
  let r = min(row, 0);
  let v0 = mem0[o3 + 0];
  var ta0 = 0f;
  {
    for (var j = lane; j < 22; j += 32) {
      let j0 = j;
      let xa0 = ((mem2[o2 + j0] * v0) * (mem2[o2 + j0] * v0));
      ta0 = (ta0 + xa0);
    }
  }
  sf[lid] = ta0;
  workgroupBarrier();
  if (lane < 8) { sf[128 + (lid / 32) * 8 + lane] = ((sf[lid] + sf[lid + 16]) + (sf[lid + 8] + sf[lid + 24])); }
  workgroupBarrier();
  ta0 = (((sf[128 + (lid / 32) * 8] + sf[128 + (lid / 32) * 8 + 4]) + (sf[128 + (lid / 32) * 8 + 2] + sf[128 + (lid / 32) * 8 + 6])) + ((sf[128 + (lid / 32) * 8 + 1] + sf[128 + (lid / 32) * 8 + 5]) + (sf[128 + (lid / 32) * 8 + 3] + sf[128 + (lid / 32) * 8 + 7])));
  let a0 = ta0;
  let v1 = (!((bitcast<u32>((a0 + mem3[o4 + 0])) & 0x7f800000u) == 0x7f800000u));
  let v2 = mem0[o0 + 0];
  let v3 = (v2 == 0f);
  let v7 = (-mem0[o6 + 0]);
  if (row < 1) {
    for (var j = lane; j < 22; j += 32) {
      let j0 = j;
      let v4 = mem1[o1 + j0];
      let v5 = ((v2 * v4) + mem2[o2 + j0]);
      let v6 = mem4[o5 + j0];
      let s8 = select(v4, select(v5, v4, v3), v1);
      let s9 = select(v6, (v6 + (v7 * v5)), v1);
      mem1[o8 + j0] = s8;
      mem4[o9 + j0] = s9;
    }
  }
  storageBarrier();
  if (row < 1 && lane == 0) {
    let s10 = select(0, (mem5[o7 + 0] + 1), ((bitcast<u32>((a0 + mem3[o4 + 0])) & 0x7f800000u) == 0x7f800000u));
    mem5[o10 + 0] = s10;
  }
}
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}

// without barriers, (1, 1)
@group(0) @binding(0) var<storage, read> mem0: array<f32, 45>;
@group(0) @binding(1) var<storage, read_write> mem1: array<f32, 22>;
@group(0) @binding(2) var<storage, read> mem2: array<f32, 22>;
@group(0) @binding(3) var<storage, read> mem3: array<f32, 289>;
@group(0) @binding(4) var<storage, read_write> mem4: array<f32, 22>;
@group(0) @binding(5) var<storage, read_write> mem5: array<i32, 1>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 3>;
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
  let row = w * 32 + lid;
  let lane = 0;
  if (row >= 1) { return; }
  let v0 = mem0[o3 + 0];
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
      for (var j = lane; j < 22; j += 32) {
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
  let v1 = (!((bitcast<u32>((a0 + mem3[o4 + 0])) & 0x7f800000u) == 0x7f800000u));
  let v2 = mem0[o0 + 0];
  let v3 = (v2 == 0f);
  let v7 = (-mem0[o6 + 0]);
  if (row < 1) {
    for (var j = lane; j < 22; j += 1) {
      let j0 = j;
      let v4 = mem1[o1 + j0];
      let v5 = ((v2 * v4) + mem2[o2 + j0]);
      let v6 = mem4[o5 + j0];
      let s8 = select(v4, select(v5, v4, v3), v1);
      let s9 = select(v6, (v6 + (v7 * v5)), v1);
      mem1[o8 + j0] = s8;
      mem4[o9 + j0] = s9;
    }
  }
  if (row < 1 && lane == 0) {
    let s10 = select(0, (mem5[o7 + 0] + 1), ((bitcast<u32>((a0 + mem3[o4 + 0])) & 0x7f800000u) == 0x7f800000u));
    mem5[o10 + 0] = s10;
  }
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = i32(wid.x + wid.y * 32768u);
  if (w >= 0 && w < 1) { k0(w - 0, i32(lid)); }
}
