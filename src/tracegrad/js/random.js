// First values of parameters: Mulberry32 and Box-Muller, the same numbers as tracegrad/runtime/draw.py, bit for bit.
// Math.log and Math.cos differ between browsers in the last bit, so both are written out (fdlibm's).

import { storage } from "./arrays.js";
import { inputError, prod } from "./checks.js";

const STEP = 0x6d2b79f5;
const SMALLEST = 1e-10;
const LN2_HI = 6.93147180369123816490e-1;
const LN2_LO = 1.90821492927058770002e-10;
const TWO_OVER_PI = 6.36619772367581382433e-1;
const PIO2_HI = 1.57079632673412561417;
const ROUND = 6755399441055744; // 1.5 * 2^52: adding and subtracting it rounds halves to even, as rint does
const PIO2_LO = 6.07710050650619224932e-11;

/** Draw `at` (from 0) of the stream of `seed`, in [0, 1). */
export function uniform(seed, at) {
  const a = (seed + Math.imul(at + 1, STEP)) | 0;
  let t = Math.imul(a ^ (a >>> 15), a | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}

const double = new Float64Array(1);
const halves = new Uint32Array(double.buffer); // little-endian, as every device with WebGPU is

function log(x) {
  double[0] = x;
  let e = ((halves[1] >>> 20) & 0x7ff) - 1022;
  halves[1] = (halves[1] & 0x800fffff) | (1022 << 20);
  let m = double[0];
  if (m < Math.SQRT1_2) {
    m += m;
    e -= 1;
  }
  const f = m - 1;
  const s = f / (2 + f);
  const z = s * s;
  const w = z * z;
  const odd = z * (6.666666666666735130e-1 + w * (2.857142874366239149e-1 + w * (1.818357216161805012e-1 + w * 1.479819860511658591e-1)));
  const even = w * (3.999999999940941908e-1 + w * (2.222219843214978396e-1 + w * 1.531383769920937332e-1));
  const r = odd + even;
  const h = 0.5 * f * f;
  return e * LN2_HI - (h - (s * (h + r) + e * LN2_LO) - f);
}

/** Of 0 <= x < 2 pi. */
function cos(x) {
  const q = x * TWO_OVER_PI + ROUND - ROUND;
  const r = x - q * PIO2_HI;
  const w = q * PIO2_LO;
  const y = r - w;
  const d = r - y - w;
  const z = y * y;
  let value;
  if (q % 2 === 0) {
    const h = 0.5 * z;
    const v = 1 - h;
    const tail = z * (4.16666666666666019037e-2 + z * (-1.38888888888741095749e-3 + z * (2.48015872894767294178e-5
      + z * (-2.75573143513906633035e-7 + z * (2.08757232129817482790e-9 + z * -1.13596475577881948265e-11)))));
    value = v + (1 - v - h + (z * tail - y * d));
  } else {
    const cube = z * y;
    const tail = 8.33333333332248946124e-3 + z * (-1.98412698298579493134e-4 + z * (2.75573137070700676789e-6
      + z * (-2.50507602534068634195e-8 + z * 1.58969099521155010221e-10)));
    value = y - (z * (0.5 * d - cube * tail) - d - cube * -1.66666666666666324348e-1);
  }
  return q === 1 || q === 2 ? -value : value;
}

function normal(seed, at) {
  const radius = Math.sqrt(-2 * log(Math.max(uniform(seed, at), SMALLEST)));
  return radius * cos(2 * Math.PI * uniform(seed, at + 1));
}

/** Inputs and outputs of a weight: a matrix is [in, out], more axes are [out, in/groups, ...kernel]. */
function fans(shape) {
  if (shape.length < 2) return [shape[0] ?? 1, shape[0] ?? 1];
  if (shape.length === 2) return shape;
  const area = prod(shape.slice(2));
  return [shape[1] * area, shape[0] * area];
}

const DEVIATION = {
  randn: (init) => init.scale,
  kaiming: (init, [fanIn]) => init.gain / Math.sqrt(fanIn),
  xavier: (init, [fanIn, fanOut]) => init.gain * Math.sqrt(2 / (fanIn + fanOut)),
};

function literal(init) {
  const bytes = Uint8Array.from(atob(init.data), (c) => c.charCodeAt(0));
  return init.dtype === "bool" ? Int32Array.from(bytes) : new (storage(init.dtype))(bytes.buffer);
}

/** Values of every parameter field, as its buffer stores them, in declaration order from one stream. */
export function draw(fields, seed) {
  let at = 0;
  return fields.map(({ shape, spec, dtype }) => {
    const { init } = spec;
    const size = prod(shape);
    if (init.kind === "literal") return init.dtype === dtype ? literal(init) : storage(dtype).from(literal(init));
    const out = new (storage(dtype))(size);
    if (init.kind in DEVIATION) {
      const deviation = DEVIATION[init.kind](init, fans(shape));
      for (let k = 0; k < size; k++, at += 2) out[k] = normal(seed, at) * deviation;
    } else if (init.kind === "uniform") {
      for (let k = 0; k < size; k++, at++) out[k] = init.low + (init.high - init.low) * uniform(seed, at);
    } else if (init.kind === "ones") out.fill(1);
    else if (init.kind !== "zeros") throw inputError(`initialiser of unknown kind ${init.kind}`);
    return out;
  });
}
