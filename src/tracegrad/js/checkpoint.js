// Checkpoints and examples: what files and callers give is checked here before a training changes.
// tracegrad/files/checkpoints.py is the Python version.

import { checkInputs } from "./arrays.js";
import { checkFinite, inputError, isRecord, mapped, need, parsed, readFacts, shown, withMissed, within } from "./checks.js";
import { readSafetensors } from "./safetensors.js";
import { toStorage } from "./session.js";
import { UNIT } from "./trial.js";

const MOST_EXAMPLES = 2 ** 24; // the most that a draw in f32 can distinguish
const LAYOUT = "1"; // of the layout

export const withoutUnit = (values) => [...values].filter(([name]) => name !== UNIT); // no file can set it

/** Return the metadata of a checkpoint of these losses. A training with one loss has no name for it. */
export function metadataOf(losses, seed) {
  const each = losses.map(({ name, counter, program, frozen, knobs: { rate, values } }) => {
    const facts = { step: counter, seed, lr: rate.spec, lr_start: rate.start, hyper: Object.fromEntries(withoutUnit(values)), optimizer: program.meta.optimizer };
    return [name, mapped(frozen.length ? { ...facts, frozen } : facts, (x) => JSON.stringify(x))];
  });
  const [[name, first]] = each;
  return { tracegrad: LAYOUT, ...(name ? { losses: JSON.stringify(Object.fromEntries(each)) } : first) };
}

/** Return the values in the bytes of a checkpoint, and the facts about each loss. Throw InputError unless all fit. */
export function readCheckpoint(bytes, losses, what) {
  return within(what, () => {
    const { tensors, metadata } = readSafetensors(bytes);
    if (metadata.tracegrad !== LAYOUT) throw inputError("this is not a checkpoint of tracegrad");
    const fields = new Map(losses.flatMap((x) => x.checkpoint.map((f) => [f.name, f])));
    const values = checkInputs([...fields.values()], withMissed(fields, tensors), "the file");
    checkFinite(losses[0].program.params, values, "param/");
    const texts = losses[0].name ? textsOf(metadata, losses) : [metadata];
    return { values, facts: losses.map(({ program }, k) => factsOf(texts[k], program)) };
  });
}

function textsOf(metadata, losses) {
  const given = parsed("losses in the metadata", metadata.losses ?? "{}");
  const names = losses.map((x) => x.name);
  const fits = isRecord(given) && Object.keys(given).length === names.length && names.every((name) => Object.hasOwn(given, name) && isRecord(given[name]));
  need(fits, "losses in the metadata", `are ${shown(isRecord(given) ? Object.keys(given) : given)}; this training has ${shown(names)}`);
  return names.map((name) => given[name]);
}

function factsOf(texts, { params, meta }) {
  const facts = readFacts(texts, meta.ranges);
  const known = (name) => meta.freeze && params.some((f) => f.name === name && f.spec.trainable !== false);
  if (!facts.frozen.every(known)) throw inputError("it has frozen parameters that this export cannot freeze");
  return facts;
}

/** Return checked examples: {rows: [name, values], count}. feeds: the programs that draw from them. */
export function examplesOf(given, inputs, feeds) {
  if (!feeds.length) throw inputError("setData: export with examples first: train.export(path, data={...})");
  const data = ArrayBuffer.isView(given) || given instanceof ArrayBuffer ? Object.fromEntries(readSafetensors(given).tensors) : given;
  const buffers = feeds.flatMap((x) => x.buffers);
  const drawn = (f) => !buffers.find((b) => b.name === `data.${f.name}`).size;
  const count = data[inputs.find(drawn)?.name]?.shape?.[0] || 1;
  if (count > MOST_EXAMPLES) throw inputError(`setData: ${count} examples; the limit is ${MOST_EXAMPLES}`);
  const values = checkInputs(inputs.map((f) => (drawn(f) ? { ...f, shape: [count, ...f.shape.slice(1)] } : f)), data, "setData");
  return { rows: inputs.map((f) => [`data.${f.name}`, toStorage(values.get(f.name), f.dtype)]), count };
}

/** Return the file of `tensors`, [name, {shape, data}] in order; data are Float32Array or Int32Array. */
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
