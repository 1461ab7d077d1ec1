// safetensors files: F32 and I32, read strictly. The whole header is validated before any data is used.

import { inputError, prod, readHeader, shown, within } from "./checks.js";

const READS = { F32: Float32Array, I32: Int32Array };

/** Return {tensors: Map of name to {dtype, shape, data}, metadata}. InputError for anything the format forbids. */
export function readSafetensors(input) {
  if (typeof input?.byteLength !== "number") throw inputError(`expected the bytes of a file, as await file.arrayBuffer() gives them, got ${shown(input)}`);
  const bytes = new Uint8Array(input.buffer ?? input, input.byteOffset ?? 0, input.byteLength);
  return within("not a valid safetensors file", () => {
    const { entries, metadata, start } = headerOf(bytes);
    const data = bytes.slice(start).buffer;
    const tensors = new Map();
    let at = 0;
    const rows = Object.entries(entries).sort(([, { data_offsets: a }], [, { data_offsets: b }]) => a[0] - b[0] || a[1] - b[1]);
    for (const [name, { dtype, shape, data_offsets: [begin, end] }] of rows) {
      const size = prod(shape);
      if (begin !== at || end - begin !== 4 * size || end > data.byteLength) throw inputError(`${shown(name)}: its bytes overlap, leave a gap, or do not fit its shape`);
      tensors.set(name, { dtype, shape, data: new READS[dtype](data, begin, size) });
      at = end;
    }
    if (at !== data.byteLength) throw inputError(`${data.byteLength - at} bytes follow the last tensor`);
    return { tensors, metadata };
  });
}

function headerOf(bytes) {
  if (bytes.length < 8) throw inputError(`${bytes.length} bytes are too short`);
  const start = 8 + Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (start > bytes.length) throw inputError(`its header has ${start - 8} bytes, the file only ${bytes.length}`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(8, start));
  } catch {
    throw inputError("the header is not UTF-8");
  }
  return { start, ...readHeader(text) };
}
