// Check program.json before use: the type of every part, and that every index, size and offset stays in bounds.
// tracegrad/program.py is the Python version.

import { checkRooms } from "./rooms.js";
import { HYPER, PAIR, PERSISTENT, asSchedule, bytesOfBuffer, checkHypers, checkType, inputError, isRecord, largest, mapped, need, parsed, prod, shown, within } from "./checks.js";

const VERSION = 2; // of tracegrad/program.py
const MOST_LAUNCHES = 2 ** 20; // in a step: their offsets fill 256 MiB, the largest buffer of every device
const MOST_NESTED = 8; // loops
const MOST_GROUPS = 65535; // of a launch along an axis, the limit of every device
const RANGE = { low: "bound", high: "bound", above: "flag" };
const FIELD = { name: "text", buffer: "size", offset: "size", dtype: new Set(["f32", "i32", "u32", "bool"]), shape: ["size"], spec: "record" };
const MOVE = ["size", { depth: "size", step: "whole", ring: "size" }];
const PROGRAM = {
  kernels: [{
    label: "text", bindings: [{ dtype: "text", written: "flag", size: "size" }], slots: "size", wgsl: "text",
    serial_wgsl: "text", serial_grid: PAIR,
  }],
  buffers: [{
    name: "text", dtype: new Set(["f32", "i32", "f16"]), size: "size", data: "text",
    role: new Set([...PERSISTENT, "input", "fed", "output", "temp", "const"]),
  }],
  dispatches: [{ kernel: "size", buffers: ["size"], offsets: ["size"], grid: PAIR, moves: [MOVE] }],
  inputs: [FIELD],
  outputs: [FIELD],
  params: [FIELD],
  states: [FIELD],
  meta: "record",
  loops: [{ begin: "size", end: "size", count: "size" }],
};
const MANIFEST = {
  title: "text", forwards: "record", seed: "count", labels: ["text"],
  vocabulary: ["text"],
};
const LOSS = { train: "record", checkpoint: [FIELD], hyper: "record" };
const PART = { name: "text", first: "size", trains: ["text"] };
const DEMOS = {
  values: {},
  image: { height: "size", width: "size" },
  curve: { low: "number", high: "number", points: [["number", "number"]] },
  tokens: { context: "size", size: "size" },
};

/**
 * Return the manifest of a program.json, given as text or as the result of JSON.parse. Throw InputError for another
 * version, or if any type, index, size or offset in it is wrong.
 */
export function readManifest(json) {
  const manifest = typeof json === "string" ? parsed("program.json", json) : json;
  const version = isRecord(manifest) ? manifest.version : undefined;
  if (version === undefined) throw inputError("program.json was not written by train.export of tracegrad");
  if (version !== VERSION) throw inputError(`program.json has version ${shown(version)}, and this runtime reads ${VERSION}: use both files of one export`);
  return within("program.json is damaged", () => checkManifest(manifest));
}

/** Return the programs and first values of all losses. Those of the first, or only, loss are at the manifest's top. */
export const lossesOf = (manifest) => [manifest, ...(manifest.losses ?? [])];

function checkManifest(manifest) {
  checkType("", manifest, MANIFEST);
  const shared = new Map(); // persistent buffers of all programs, by name
  const { forwards, hyper, losses = [], schedule = [] } = manifest;
  checkType("losses", losses, ["record"]);
  lossesOf(manifest).forEach((each, k) => checkLoss(k ? `losses[${k - 1}].` : "", each, shared));
  const names = lossesOf(manifest).map((x) => x.train.meta.part?.name ?? "");
  need(new Set(names).size === names.length && !(losses.length && names.includes("")), "losses", "lack names of their own");
  need(Array.isArray(schedule) && schedule.every((name) => names.includes(name)), "schedule", "must name losses");
  for (const [name, forward] of Object.entries(forwards)) checkForward(`forwards[${shown(name)}]`, forward, shared, hyper);
  return manifest;
}

/** Check the program of a loss, and its first values. */
function checkLoss(at, loss, shared) {
  checkType(at.slice(0, -1), loss, LOSS);
  const { train, rooms = [], feed, hyper, checkpoint, lr } = loss;
  checkType(`${at}train`, train, PROGRAM);
  const ranges = train.meta.ranges ?? {};
  checkType(`${at}train.meta.ranges`, ranges, "record");
  checkType(`${at}train.meta.ranges`, ranges, mapped(ranges, () => RANGE));
  asSchedule(lr);
  checkHypers(`${at}hyper`, hyper, ranges);
  checkRooms(`${at}train`, [train, ...rooms], (where, p) => {
    checkProgram(where, p, shared, hyper);
    checkTraining(where, p, shared);
  });
  checkFields(`${at}checkpoint`, checkpoint, train.buffers, true);
  if (feed !== undefined) checkFeed(`${at}feed`, feed, shared, hyper, train);
}

/** Return the parameters that a program trains, with their places among the gradients. */
export function trainedBy({ params, buffers, meta: { part } }) {
  const buffer = buffers.findIndex((b) => b.role === "grad");
  const own = params.filter((f) => f.spec.trainable !== false && (part?.trains.includes(f.name) ?? true));
  return own.map((f) => ({ ...f, buffer, offset: f.offset - (part?.first ?? 0) })); // from where the part's run of parameters begins
}

/** Check the parts of a step besides its program. */
function checkTraining(where, program, shared) {
  const { outputs, buffers, meta } = program;
  const { bounds = [], part } = meta;
  const halted = shared.get("halted");
  for (const name of ["loss", "halted"]) need(outputs.some((f) => f.name === name), `${where}.outputs`, `lacks ${name}`);
  need(halted?.dtype === "i32" && halted.size, `${where}.buffers`, "lacks the flag halted");
  need(Array.isArray(bounds) && bounds.every((name) => shared.get(name)?.dtype === "f32"), `${where}.meta.bounds`, "names something that is not an array");
  if (part !== undefined) checkType(`${where}.meta.part`, part, PART);
  const guard = shared.get(`${part ? `${part.name}/` : ""}bounds.${bounds.length}`);
  need(!bounds.length || (guard?.dtype === "f32" && guard.size === bounds.length), `${where}.buffers`, "lacks the bounds");
  const trained = trainedBy(program);
  checkFreeze(`${where}.meta`, meta, buffers);
  need(trained.every((f) => f.offset >= 0), `${where}.meta.part.first`, `is ${part?.first}, behind a parameter`);
  checkFields(`${where}.params`, trained, buffers, true);
}

/** Check groups of the optimizer, and the place of each parameter in the masks. */
function checkFreeze(at, { freeze = {}, optimizer }, buffers) {
  checkType(`${at}.optimizer.options.groups`, optimizer?.options?.groups ?? [], [["text", "record"]]);
  checkType(`${at}.freeze`, freeze, "record");
  for (const [name, parts] of Object.entries(freeze)) {
    const where = `${at}.freeze[${shown(name)}]`, b = buffers.find((x) => x.name === name && x.role === "state");
    checkType(where, parts, [["text", "size", "size"]]);
    need(b?.dtype === "f32" && parts.every(([, offset, size]) => offset + size <= b.size), where, "is not a mask");
  }
}

function checkFeed(where, feed, shared, hyper, train) {
  checkProgram(where, feed, shared, hyper, train);
  for (const { name } of train.inputs) {
    const held = name.startsWith(HYPER) || feed.buffers.some((b) => b.name === `data.${name}` && b.role === "data");
    need(held, `${where}.buffers`, `lacks data.${name}`);
  }
}

function checkForward(where, forward, shared, hyper) {
  checkType(where, forward, { program: { meta: "record" }, demo: { kind: new Set(Object.keys(DEMOS)) } });
  const { program, rooms = [], structure, demo } = forward;
  checkType(`${where}.demo`, demo, DEMOS[demo.kind]);
  checkHypers(`${where}.program.meta.hyper`, program.meta.hyper ?? {});
  checkRooms(`${where}.program`, [program, ...rooms], (at, p) => checkProgram(at, p, shared, { ...hyper, ...program.meta.hyper }));
  const names = isRecord(structure) ? Object.values(structure) : structure ?? ["output"];
  const known = Array.isArray(names) && names.every((name) => program.outputs.some((f) => f.name === name));
  need(known, `${where}.structure`, "names something that is not an output");
}

/** Check a program. `step`: the program that this one feeds. */
export function checkProgram(where, p, shared, hyper, step) {
  checkType(where, p, PROGRAM);
  const { buffers, params, states } = p;
  buffers.forEach((b, k) => checkBuffer(`${where}.buffers[${k}]`, b, p.meta, shared, step));
  for (const part of ["inputs", "outputs", "params", "states"]) checkFields(`${where}.${part}`, p[part], buffers, part === "params" || part === "states");
  params.forEach((f, k) => checkParam(`${where}.params[${k}]`, f));
  states.forEach((f, k) => f.spec.init && checkParam(`${where}.states[${k}]`, f, params));
  p.inputs.forEach(({ name }, k) => need(isKnown(name, { ...hyper, ...p.meta.room?.numbers }, step), `${where}.inputs[${k}].name`, `is ${shown(name)}, which has no value`));
  p.kernels.forEach((kernel, k) => need(Math.max(...kernel.serial_grid) <= MOST_GROUPS, `${where}.kernels[${k}].serial_grid`, `is above ${MOST_GROUPS}`));
  checkLaunches(where, p);
}

/** Check that an input comes from the caller, or is a known hot value. */
function isKnown(name, hyper, feeds) {
  if (!name.startsWith(HYPER)) return true;
  const hot = name.slice(HYPER.length).replace(/^1-/, "");
  return ["step", "seed", "lr"].includes(hot) || Object.hasOwn(hyper, hot) || (feeds && hot === "data.count");
}

function checkBuffer(where, b, meta, shared, step) {
  const alike = (other) => other && other.size === b.size && other.dtype === b.dtype;
  if (PERSISTENT.includes(b.role)) {
    need(alike(shared.get(b.name) ?? b), where, `and another program's buffer ${shown(b.name)} differ`);
    shared.set(b.name, b);
    const copied = b.fill === "params" && b.dtype === "f32" && (meta.part?.first ?? 0) + b.size <= shared.get("params")?.size;
    need(copied || b.fill === "init" || Number.isFinite(b.fill), `${where}.fill`, "is neither a number nor the parameters");
  }
  const fed = b.role === "fed" && step?.buffers.find((other) => other.name === b.name);
  if (b.role === "fed") need(fed && fed.role === "input" && fed.dtype === b.dtype && fed.size >= b.size, where, "is not an input of the step");
  if (b.role === "const") need(decodedLength(b.data) === bytesOfBuffer(b), `${where}.data`, `is not ${bytesOfBuffer(b)} bytes in base64`);
}

function decodedLength(base64) {
  try {
    return atob(base64).length;
  } catch {
    return -1;
  }
}

function checkFields(where, fields, buffers, persistent) {
  fields.forEach(({ buffer, offset, shape, dtype }, k) => {
    const b = buffers[buffer];
    need(b, `${where}[${k}].buffer`, `is ${buffer}; there are ${buffers.length} buffers`);
    need(!persistent || PERSISTENT.includes(b.role), `${where}[${k}].buffer`, `has the role ${b.role}, which is not kept`);
    need(offset + prod(shape) <= b.size, `${where}[${k}]`, `ends after its buffer, which has ${b.size} elements`);
    need(b.dtype === (dtype === "f32" ? "f32" : "i32"), `${where}[${k}].dtype`, `is ${dtype}, in a buffer of ${b.dtype}`);
  });
}

/** Check the initialiser of a parameter. */
const INITS = {
  randn: { scale: "number" },
  normal: { mean: "number", std: "number" },
  truncated_normal: { mean: "number", std: "number", low: "number", high: "number" },
  kaiming: { gain: "number" },
  lecun: {},
  xavier: { gain: "number" },
  uniform: { low: "number", high: "number" },
  kaiming_uniform: { gain: "number" },
  xavier_uniform: { gain: "number" },
  orthogonal: { gain: "number", stacked: "size" },
  zeros: {},
  ones: {},
  literal: { dtype: new Set(["f32", "i32", "u32", "bool"]), data: "text" },
  copy: { of: "text" },
};

function checkParam(where, { shape, dtype, spec: { init } }, params = []) {
  checkType(`${where}.spec.init`, init, { kind: new Set(Object.keys(INITS)) });
  checkType(`${where}.spec.init`, init, INITS[init.kind]);
  if (init.kind === "orthogonal") need(shape.length > init.stacked + 1, `${where}.shape`, "is not a matrix");
  const alike = ({ name, ...f }) => name === init.of && f.dtype === dtype && f.shape.join() === shape.join();
  if (init.kind === "copy") need(params.some(alike), `${where}.spec.init.of`, "is not a parameter of its type");
  if (init.kind !== "literal") return;
  const size = prod(shape) * (init.dtype === "bool" ? 1 : 4);
  need(decodedLength(init.data) === size, `${where}.spec.init.data`, `is not ${size} bytes in base64`);
}

/** Check that every dispatch stays within its arrays, in every iteration of the loops around it. */
function checkLaunches(where, { kernels, buffers, dispatches, loops }) {
  const around = [{ end: dispatches.length, times: 1 }];
  let next = 0, launches = 0;
  dispatches.forEach((d, n) => {
    const at = `${where}.dispatches[${n}]`;
    while (around.length > 1 && around.at(-1).end <= n) around.pop();
    for (; loops[next]?.begin === n; next++) {
      const { end, count } = loops[next];
      need(end > n && end <= around.at(-1).end && around.length <= MOST_NESTED, `${where}.loops[${next}]`, "is not nested in those around it");
      around.push({ end, count, times: around.at(-1).times * count });
    }
    launches += around.at(-1).times;
    checkDispatch(at, d, kernels, buffers, around);
  });
  need(next === loops.length, `${where}.loops[${next}]`, "has no dispatch to begin at");
  need(launches <= MOST_LAUNCHES, `${where}.loops`, `make ${launches} launches; the limit is ${MOST_LAUNCHES}`);
}

function checkDispatch(at, d, kernels, buffers, around) {
  const kernel = kernels[d.kernel];
  need(kernel, `${at}.kernel`, `is ${d.kernel}; there are ${kernels.length} kernels`);
  const { bindings, slots } = kernel;
  need(d.buffers.length === bindings.length, `${at}.buffers`, `are ${d.buffers.length}; its kernel takes ${bindings.length}`);
  need(d.offsets.length === slots, `${at}.offsets`, `are ${d.offsets.length}; its kernel takes ${slots}`);
  need(Math.max(...d.grid) <= MOST_GROUPS, `${at}.grid`, `is above ${MOST_GROUPS}`);
  d.buffers.forEach((id, k) => {
    const b = buffers[id], { dtype, size } = bindings[k];
    need(b, `${at}.buffers[${k}]`, `is ${id}; there are ${buffers.length} buffers`);
    need(b.dtype === dtype && size <= b.size, `${at}.buffers[${k}]`, `is ${b.dtype}[${b.size}]; its kernel takes ${dtype}[${size}]`);
  });
  checkOffsets(at, d, largest(d.buffers.map((id) => (buffers[id].role === "data" ? Infinity : buffers[id].size))), around);
}

/** Check each offset's least and greatest value in loops. Its buffer is unknown: none is larger than `most`. */
function checkOffsets(at, { offsets, moves }, most, around) {
  const low = [...offsets], high = [...offsets];
  moves.forEach(([slot, { depth, step, ring }], k) => {
    const loop = around[depth + 1];
    need(slot < offsets.length && loop && ring, `${at}.moves[${k}]`, "moves no offset, or is in no loop");
    const last = step * Math.max(0, Math.min(ring, loop.count) - 1);
    low[slot] += Math.min(0, last);
    high[slot] += Math.max(0, last);
  });
  offsets.forEach((_, k) => need(low[k] >= 0 && high[k] <= most, `${at}.offsets[${k}]`, "is outside its buffers"));
}
