// Values on the host: checked against a program's fields, cast without loss, and converted to the device's form.
// An array is {dtype, shape, data}; inputs can also be typed arrays, nested lists and numbers.

import { SHOWN, checkRange, inputError, isRecord, prod, shown } from "./checks.js";

export const typed = (f) => `${f.dtype}[${f.shape.join(",")}]`;

const CASTS = {
  f32: Float32Array,
  i32: Int32Array,
  u32: Uint32Array,
  bool: Int32Array,
};
const NUMBERS = ["number", "boolean", "bigint"]; // types of elements
const RANGES = { i32: [-(2 ** 31), 2 ** 31 - 1], u32: [0, 2 ** 32 - 1], bool: [0, 1] };

/** Return every value of the call in its field's type; if `some`, without missing ones. Throw InputError with all problems. */
export function checkInputs(fields, given, what, lead, some) {
  if (!isRecord(given)) throw inputError(`${what}: pass values by name, such as {${fields[0]?.name ?? "x"}: [...]}; got ${shown(given)}`);
  const problems = [];
  const out = new Map();
  const unknown = Object.keys(given).filter((name) => !fields.some((f) => f.name === name));
  if (unknown.length) problems.push(`${unknown.slice(0, SHOWN).join(", ")}: unknown; known are ${fields.slice(0, SHOWN).map((f) => `${f.name} ${typed(f)}`).join(", ") || "none"}`);
  for (const f of fields) {
    if (some && !Object.hasOwn(given, f.name)) continue;
    try {
      if (!Object.hasOwn(given, f.name)) throw inputError(`missing, expected ${typed(f)}`);
      out.set(f.name, fit(f, given[f.name], lead));
    } catch (e) {
      problems.push(`${f.name}: ${e.message}`);
    }
  }
  refuse(what, problems);
  return out;
}

/** Throw InputError if there are problems. */
export function refuse(what, problems) {
  if (problems.length) throw inputError([`${what}: ${problems.length > 1 ? `${problems.length} values do` : "a value does"} not fit`, ...problems.slice(0, SHOWN)].join("\n  "));
}

/** Return a copy of `value` as the field's typed array. `lead`: allow one more axis in front, of this length. */
function fit(f, value, lead) {
  const { data, shape } = flat(value);
  const size = prod(f.shape);
  const fits = (s) => (shape ? shape.join() === s.join() : data.length === prod(s));
  if (!fits(f.shape) && !(lead && fits([lead, ...f.shape]))) {
    throw inputError(`expected ${typed(f)}${lead ? ` or ${lead} of them` : ""}, got ${shape ? `shape [${shape}]` : `${data.length} values`}`);
  }
  const out = cast(data, f.dtype);
  if (f.spec?.range && size) checkRange(out, f);
  return out;
}

/** Return the elements of a value, and its shape if it has one. */
export function flat(value) {
  if (typeof value === "number" || typeof value === "boolean") return { data: [value], shape: [] };
  if (ArrayBuffer.isView(value)) return { data: value };
  if (ArrayBuffer.isView(value?.data)) {
    if (value.shape && !(Array.isArray(value.shape) && prod(value.shape) === value.data.length)) throw inputError(`${value.data.length} values cannot have shape [${value.shape}]`);
    return { data: value.data, shape: value.shape };
  }
  if (!Array.isArray(value)) throw inputError("expected an array, typed array, number or {data, shape}");
  const shape = [];
  for (let v = value; Array.isArray(v); v = v[0]) shape.push(v.length);
  const data = value.flat(Infinity);
  if (data.length !== prod(shape)) throw inputError("its rows differ in length");
  return { data, shape };
}

function cast(data, dtype) {
  if (data.constructor === CASTS[dtype]) return data.slice();
  const odd = Array.isArray(data) ? data.findIndex((x) => !NUMBERS.includes(typeof x)) : -1; // null would be 0
  if (odd >= 0) throw inputError(`the value ${shown(data[odd])} at position ${odd} is not a number`);
  const out = new CASTS[dtype](data.length);
  const limits = RANGES[dtype];
  for (let k = 0; k < out.length; k++) {
    const x = Number(data[k]);
    if (limits && !(Number.isInteger(x) && x >= limits[0] && x <= limits[1])) throw inputError(`the value ${x} does not fit ${dtype}`);
    out[k] = x;
    if (!limits && Math.abs(x) < Infinity && Math.abs(out[k]) === Infinity) throw inputError(`${x} exceeds the largest f32`);
  }
  return out;
}

/** Return the array of a field from a copy of its bytes. */
export function fromStorage(bytes, at, f) {
  return { dtype: f.dtype, shape: f.shape, data: new CASTS[f.dtype](bytes.slice(at, at + 4 * prod(f.shape))) };
}
