// safetensors files: F32 and I32, read strictly. Nothing of a file is used before all of its header is validated.

import { inputError, prod } from "./arrays.js";

const READS = { F32: Float32Array, I32: Int32Array };

/** {tensors: Map of name to {dtype, shape, data}, metadata}. InputError for anything the format forbids. */
export function readSafetensors(input) {
  const bytes = new Uint8Array(input.buffer ?? input, input.byteOffset ?? 0, input.byteLength);
  const bad = (why) => inputError(`not a valid safetensors file: ${why}`);
  if (bytes.length < 8) throw bad(`${bytes.length} bytes are too short`);
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (!(length <= bytes.length - 8)) throw bad(`the header is said to have ${length} bytes, the file has ${bytes.length}`);
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + length)));
  } catch (e) {
    throw bad(`the header is not JSON: ${e.message}`);
  }
  const tensors = new Map();
  const data = bytes.slice(8 + length).buffer;
  let at = 0;
  const natural = (n) => Number.isSafeInteger(n) && n >= 0;
  const rows = Object.entries(header).filter(([name]) => name !== "__metadata__");
  for (const [name, row] of rows) {
    const offsets = row?.data_offsets;
    if (![row?.shape, offsets].every((x) => Array.isArray(x) && x.every(natural)) || offsets.length !== 2) throw bad(`${name}: damaged entry`);
  }
  rows.sort(([, a], [, b]) => a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1]);
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of rows) {
    if (!Object.hasOwn(READS, dtype)) throw bad(`${name}: dtype ${dtype} is not read here; F32 and I32 are`);
    if (begin !== at || end - begin !== 4 * prod(shape) || end > data.byteLength) throw bad(`${name}: its bytes overlap, leave a gap, or do not fit its shape`);
    tensors.set(name, { dtype, shape, data: new READS[dtype](data, begin, prod(shape)) });
    at = end;
  }
  if (at !== data.byteLength) throw bad(`${data.byteLength - at} bytes belong to no tensor`);
  return { tensors, metadata: header.__metadata__ ?? {} };
}

/** The file of `tensors`, [name, {shape, data}] in order; data are Float32Array or Int32Array. */
export function writeSafetensors(tensors, metadata) {
  let at = 0;
  const rows = tensors.map(([name, { shape, data }]) => {
    const row = { dtype: data instanceof Float32Array ? "F32" : "I32", shape, data_offsets: [at, at + data.byteLength] };
    at += data.byteLength;
    return [name, row];
  });
  let text = new TextEncoder().encode(JSON.stringify(Object.fromEntries([["__metadata__", metadata], ...rows])));
  const padded = Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(8 + padded + at).fill(32, 8, 8 + padded);
  new DataView(out.buffer).setBigUint64(0, BigInt(padded), true);
  out.set(text, 8);
  at = 8 + padded;
  for (const [, { data }] of tensors) {
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return out;
}
