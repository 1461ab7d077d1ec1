// First values of parameters: Mulberry32 and Box-Muller, the same numbers as tracegrad/runtime/draw.py and shaped.py, bit
// for bit.
// Math.log and Math.cos differ between browsers in the last bit, so both are implemented here (fdlibm's).

import { prod, storage } from "./checks.js";

const STEP = 0x6d2b79f5;
const SMALLEST = 1e-10;
const LN2_HI = 6.93147180369123816490e-1;
const LN2_LO = 1.90821492927058770002e-10;
const TWO_OVER_PI = 6.36619772367581382433e-1;
const PIO2_HI = 1.57079632673412561417;
const ROUND = 6755399441055744; // 1.5 * 2^52: adding and subtracting it rounds halves to even, as rint does
const PIO2_LO = 6.07710050650619224932e-11;

/** Return draw `at` (from 0) of the stream of `seed`, in [0, 1). */
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

/** Return cos(x) for 0 <= x < 2 pi. */
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

/** Return inputs and outputs of a weight: a matrix is [in, out], more axes are [out, in/groups, ...kernel]. */
function fans(shape) {
  if (shape.length < 2) return [shape[0] ?? 1, shape[0] ?? 1];
  if (shape.length === 2) return shape;
  const area = prod(shape.slice(2));
  return [shape[1] * area, shape[0] * area];
}

/** Return mean and deviation of normal numbers. */
const NORMAL = {
  randn: (init) => [0, init.scale],
  normal: (init) => [init.mean, init.std],
  kaiming: (init, [fanIn]) => [0, init.gain / Math.sqrt(fanIn)],
  lecun: (init, [fanIn]) => [0, 1 / Math.sqrt(fanIn)],
  xavier: (init, [fanIn, fanOut]) => [0, init.gain * Math.sqrt(2 / (fanIn + fanOut))],
  orthogonal: () => [0, 1],
};

const around = (c) => [-c, c];
/** Return the range of uniform numbers. */
const EVEN = {
  uniform: (init) => [init.low, init.high],
  kaiming_uniform: (init, [fanIn]) => around(init.gain * Math.sqrt(3 / fanIn)),
  xavier_uniform: (init, [fanIn, fanOut]) => around(init.gain * Math.sqrt(6 / (fanIn + fanOut))),
  truncated_normal: () => [0, 1],
};

// AS 241: numerator and denominator, from the constant on
const MIDDLE = [
  [3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
    4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3],
  [1, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3],
];
const TAIL = [
  [1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
    1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4],
  [1, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1,
    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9],
];
const FAR = [
  [6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 2.96560571828504891230e-1,
    2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7],
  [1, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
    7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15],
];

const LARGEST = 1 - 2 ** -53;

function ratio(x, rows) {
  const [above, below] = rows.map((row) => row.reduceRight((sum, c) => sum * x + c));
  return above / below;
}

/** Return the number that a normal number is below with probability p. */
function quantile(p) {
  const q = p - 0.5;
  if (Math.abs(q) <= 0.425) return q * ratio(0.180625 - q * q, MIDDLE);
  const r = Math.sqrt(-log(q <= 0 ? p : 1 - p));
  const tail = r <= 5 ? ratio(r - 1.6, TAIL) : ratio(r - 5, FAR);
  return q < 0 ? -tail : tail;
}

function probability(z) {
  let a = 1e-300, b = LARGEST;
  for (let k = 0; k < 64; k++) {
    const middle = Math.sqrt(a) * Math.sqrt(b);
    if (quantile(middle) <= z) a = middle;
    else b = middle;
  }
  return a;
}

function truncate(out, { mean, std, low, high }) {
  const a = (low - mean) / std, b = (high - mean) / std;
  const mirrored = a + b > 0;
  const [first, last] = (mirrored ? [-b, -a] : [a, b]).map(probability);
  out.forEach((u, k) => {
    const z = quantile(Math.min(first + (last - first) * u, LARGEST));
    out[k] = Math.min(Math.max(mean + std * (mirrored ? -z : z), low), high);
  });
}

const dot = (a, b) => {
  let sum = a[0] * b[0];
  for (let k = 1; k < a.length; k++) sum += a[k] * b[k];
  return sum;
};

/** Orthogonalise the rows by Gram-Schmidt, or the columns if these are fewer. */
function orthogonalize(out, shape, { gain, stacked }) {
  const n = shape[stacked], m = prod(shape.slice(stacked + 1));
  const at = (r, c) => (n > m ? c * m + r : r * m + c);
  for (let first = 0; first < out.length; first += n * m) {
    const part = out.subarray(first, first + n * m);
    const rows = Array.from({ length: Math.min(n, m) }, (_, r) => Float64Array.from({ length: Math.max(n, m) }, (_, c) => part[at(r, c)]));
    rows.forEach((row, r) => {
      const length = Math.sqrt(dot(row, row));
      row.forEach((x, c) => (row[c] = x / length));
      for (const other of rows.slice(r + 1)) {
        const share = dot(other, row);
        row.forEach((x, c) => (other[c] -= share * x));
      }
      row.forEach((x, c) => (part[at(r, c)] = x * gain));
    });
  }
}

function literal(init) {
  const bytes = Uint8Array.from(atob(init.data), (c) => c.charCodeAt(0));
  return init.dtype === "bool" ? Int32Array.from(bytes) : new (storage(init.dtype))(bytes.buffer);
}

/** Return every field's values by name, in buffer form, in order from one stream; a copy comes after its source. */
export function draw(fields, seed) {
  let at = 0;
  const made = new Map();
  const first = ({ shape, spec: { init }, dtype }) => {
    if (init.kind === "copy") return made.get(init.of).slice();
    if (init.kind === "literal") return init.dtype === dtype ? literal(init) : storage(dtype).from(literal(init));
    const size = prod(shape);
    const out = new (storage(dtype))(size);
    const [kind, sizes] = [init.kind, fans(shape)];
    if (kind in NORMAL) {
      const [mean, deviation] = NORMAL[kind](init, sizes);
      for (let k = 0; k < size; k++, at += 2) out[k] = normal(seed, at) * deviation + mean;
    } else if (kind in EVEN) {
      const [low, high] = EVEN[kind](init, sizes);
      for (let k = 0; k < size; k++, at++) out[k] = low + (high - low) * uniform(seed, at);
    } else if (kind === "ones") out.fill(1);
    if (kind === "truncated_normal") truncate(out, init);
    if (kind === "orthogonal") orthogonalize(out, shape, init);
    return out;
  };
  for (const f of fields) made.set(f.name, first(f));
  return made;
}

/** Return a seed for the loss of this number: the finalizer of MurmurHash3, in its 32-bit variant. */
export function streamOf(seed, number) {
  if (!number) return seed;
  let x = (seed + Math.imul(0x9e3779b9, number)) >>> 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b) >>> 0;
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35) >>> 0;
  return (x ^ (x >>> 16)) >>> 0;
}
