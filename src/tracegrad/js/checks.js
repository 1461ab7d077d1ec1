// What files and callers bring, checked before anything is made of it: numbers, schedules, program.json.
// Every problem is an InputError of one sentence, which names the field. tracegrad/hypers.py, lr.py and program.py are
// the Python twins.

/** An Error whose `name` says what kind, as tracegrad/errors.py names them. */
export function fault(name, message) {
  return Object.assign(new Error(message), { name });
}

export const inputError = (message) => fault("InputError", message);

export const SHOWN = 12; // names in an error
const LONGEST = 60; // characters of a value in an error

export const prod = (shape) => shape.reduce((a, b) => a * b, 1);
export const isRecord = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const isText = (x) => typeof x === "string";
const isCount = (x) => x === x >>> 0; // of 32 bits
const isSize = (x) => Number.isSafeInteger(x) && x >= 0;

/** A record with `fn(value, name)` for every value. */
export const mapped = (record, fn) => Object.fromEntries(Object.entries(record).map(([name, x]) => [name, fn(x, name)]));

/** A value for an error. An object may come from a file, so its own toString must not run. */
export function shown(x) {
  if (Array.isArray(x)) return `a list of ${x.length}`;
  if (isRecord(x) || typeof x === "function") return `${/^[aeiou]/.test(typeof x) ? "an" : "a"} ${typeof x}`;
  return isText(x) ? JSON.stringify(x.slice(0, LONGEST)) : String(x);
}

const largest = (sizes) => sizes.reduce((a, b) => Math.max(a, b), 0);

/** What `check` gives; an InputError says where it came up. */
export function within(what, check) {
  try {
    return check();
  } catch (e) {
    throw e.name === "InputError" ? inputError(`${what}: ${e.message}`) : e;
  }
}

// --- numbers ---

const RATE = { low: 0 };

/** InputError unless `x` is a number within a range of tracegrad/hypers.py, and finite in f32. */
export function checkNumber(what, x, { low, high, above } = {}) {
  const inside = () => (low ?? x) <= x && x < (high ?? Infinity) && !(above && x === low);
  if (typeof x === "number" && Number.isFinite(Math.fround(x)) && inside()) return;
  const bounds = [low != null && ` ${above ? "above" : "of at least"} ${low}`, high != null && ` below ${high}`];
  throw inputError(`${what} must be a number${bounds.filter(Boolean).join(" and")} that is finite in f32, got ${shown(x)}`);
}

/** InputError for a hyperparameter, of a record, out of its range. */
export function checkHypers(what, hyper, ranges = {}) {
  if (!isRecord(hyper)) throw inputError(`${what}: hyperparameters go by name, such as {weight_decay: 0.1}, got ${shown(hyper)}`);
  for (const [name, x] of Object.entries(hyper)) {
    checkNumber(`${what}: ${name}`, x, Object.hasOwn(ranges, name) ? ranges[name] : {});
  }
}

/** {lr, values} of what is given to `set`; InputError for names that are not among `names`. */
export function readHypers(hyper, names, ranges) {
  const { lr, ...values } = isRecord(hyper) ? hyper : {};
  const unknown = Object.keys(values).filter((name) => !names.includes(name)).slice(0, SHOWN);
  if (unknown.length) throw inputError(`set: ${unknown.join(", ")}: unknown; what can be set is ${names.join(", ")}`);
  checkHypers("set", isRecord(hyper) ? values : hyper, ranges);
  return { lr, values };
}

/** InputError unless a device can take `rate`, what a schedule gave for `step`. */
export function checkRate(rate, step) {
  checkNumber(`the schedule at step ${step}: lr`, rate, RATE);
}

// --- schedules ---

const DEEPEST = 8; // schedules, one within another
const SCHEDULES = {
  constant: ["rate"],
  linear: ["peak", "final", "steps"],
  cosine_annealing: ["peak", "final", "steps"],
  warmup: ["peak", "steps", "after"],
  staircase: ["peak", "every", "gamma"],
  multi_step: ["peak", "milestones", "gamma"],
  exponential: ["peak", "gamma"],
  one_cycle: ["peak", "steps", "pct_start", "div_factor", "final_div_factor", "anneal"],
};
const ABOVE_0 = ["steps", "every", "div_factor", "final_div_factor"];
/** Fields that are neither rates nor above 0. */
const OTHERS = {
  start: ["the number of a step", (x) => x === null || Number.isSafeInteger(x)],
  milestones: ["a list of steps", (x) => Array.isArray(x) && x.every(Number.isSafeInteger)],
  pct_start: ["a number in [0, 1]", (x) => typeof x === "number" && x >= 0 && x <= 1],
  anneal: ['"cos" or "linear"', (x) => x === "cos" || x === "linear"],
};

/** A copy of a schedule's specification, or the constant of a number. InputError naming the fields that are wrong. */
export function asSchedule(lr, depth = 0) {
  if (typeof lr === "number") {
    checkNumber("lr", lr, RATE);
    return { kind: "constant", rate: lr };
  }
  const kind = isRecord(lr) ? lr.kind : undefined;
  if (!isText(kind) || !Object.hasOwn(SCHEDULES, kind)) {
    const kinds = Object.keys(SCHEDULES).join(", ");
    throw inputError(`lr must be a number, or a schedule whose kind is one of ${kinds}; got ${shown(kind === undefined ? lr : kind)}`);
  }
  if (depth > DEEPEST) throw inputError(`schedule ${kind}: more than ${DEEPEST} schedules one within another`);
  const known = SCHEDULES[kind], given = Object.keys(lr).filter((name) => name !== "kind");
  const missing = known.filter((name) => !given.includes(name)).map((name) => `${name} is missing`);
  const unknown = given.filter((name) => name !== "start" && !known.includes(name)).map((name) => `${shown(name)} is unknown`);
  const wrong = [...missing, ...unknown].slice(0, SHOWN).join(", ");
  if (wrong) throw inputError(`schedule ${kind}: ${wrong}; its fields are ${known.join(", ")}`);
  for (const name of given) checkField(`schedule ${kind}: ${name}`, name, lr[name], depth);
  return structuredClone(lr);
}

function checkField(what, name, x, depth) {
  const [words, takes] = OTHERS[name] ?? [];
  if (name === "after" && isRecord(x)) within(what, () => asSchedule(x, depth + 1));
  else if (!words) checkNumber(what, x, { low: 0, above: ABOVE_0.includes(name) });
  else if (!takes(x)) throw inputError(`${what} must be ${words}, got ${shown(x)}`);
}

// --- checkpoints ---

/** {step, seed, lr, lr_start, hyper} of a checkpoint's metadata. */
export function readFacts(metadata, ranges) {
  const facts = {};
  for (const name of ["step", "seed", "lr_start", "lr", "hyper"]) {
    try {
      facts[name] = JSON.parse(metadata[name]);
    } catch {
      throw inputError(`${name} in the metadata is ${shown(metadata[name])}, which is no JSON`);
    }
  }
  const { step, seed, lr_start: start, hyper } = facts;
  for (const [name, x] of Object.entries({ step, seed, lr_start: start ?? 0 })) {
    if (!isCount(x)) throw inputError(`${name} in the metadata must be a whole number below 2^32, got ${shown(x)}`);
  }
  checkHypers("hyper in the metadata", hyper, ranges);
  return { ...facts, lr: asSchedule(facts.lr) };
}

// --- program.json ---

const VERSION = 1; // of tracegrad/program.py
const MOST_LAUNCHES = 2 ** 20; // in a step: their offsets fill 256 MiB, the largest buffer that every device has
const MOST_NESTED = 8; // loops
const MOST_GROUPS = 65535; // of a launch along an axis, on every device
export const HYPER = "hyper.";
export const PERSISTENT = ["param", "grad", "state", "data"];

/** A type is a row of this table, a set of texts, a list of one type, a tuple, or a record of types. */
const TYPES = {
  text: ["a text", isText],
  flag: ["true or false", (x) => typeof x === "boolean"],
  size: ["a whole number of at least 0", isSize],
  count: ["a whole number below 2^32", isCount],
  whole: ["a whole number", Number.isSafeInteger],
  number: ["a finite number", Number.isFinite],
  bound: ["a number or null", (x) => x === null || Number.isFinite(x)],
  record: ["a record", isRecord],
};
const RANGE = { low: "bound", high: "bound", above: "flag" };
const PAIR = ["size", "size"];
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
  needs: { storage_buffers: "size", binding_bytes: "size", buffer_bytes: "size", workgroup_memory: "size" },
  meta: "record",
  copies: [PAIR],
  loops: [{ begin: "size", end: "size", count: "size" }],
};
const MANIFEST = {
  title: "text", train: "record", checkpoint: [FIELD], forwards: "record", seed: "count", hyper: "record", labels: ["text"],
  vocabulary: ["text"],
};
const DEMOS = {
  values: {},
  image: { height: "size", width: "size" },
  curve: { low: "number", high: "number", points: [["number", "number"]] },
  tokens: { context: "size", size: "size" },
};

function need(fits, where, why) {
  if (!fits) throw inputError(`${where} ${why}`);
}

function checkType(where, x, type) {
  const expect = (words, fits) => need(fits, where, x === undefined ? `is missing, expected ${words}` : `is ${shown(x)}, expected ${words}`);
  if (isText(type)) return expect(TYPES[type][0], TYPES[type][1](x));
  if (type instanceof Set) return expect(`one of ${[...type].join(", ")}`, type.has(x));
  if (Array.isArray(type)) {
    const tuple = type.length > 1;
    expect(tuple ? `a list of ${type.length}` : "a list", Array.isArray(x) && !(tuple && x.length !== type.length));
    return x.forEach((part, k) => checkType(`${where}[${k}]`, part, type[k % type.length]));
  }
  expect("a record", isRecord(x));
  for (const [name, part] of Object.entries(type)) checkType(where ? `${where}.${name}` : name, x[name], part);
}

/**
 * The manifest that a program.json holds, a text or what JSON.parse made of it. InputError if it is of another version,
 * or if any type, index, size or offset in it is wrong.
 */
export function readManifest(json) {
  const manifest = isText(json) ? parsed("program.json", json) : json;
  const version = isRecord(manifest) ? manifest.version : undefined;
  if (version === undefined) throw inputError("program.json is not what train.export of tracegrad writes");
  if (version !== VERSION) throw inputError(`program.json has version ${shown(version)}, and this runtime reads ${VERSION}: take both from one export`);
  return within("program.json is damaged", () => checkManifest(manifest));
}

function parsed(what, text) {
  try {
    return JSON.parse(text);
  } catch (e) {
    throw inputError(`${what} is not JSON: ${e.message.slice(0, 200)}`);
  }
}

function checkManifest(manifest) {
  checkType("", manifest, MANIFEST);
  const shared = new Map(); // persistent buffers of all programs, by name
  const { train, feed, forwards, hyper, checkpoint } = manifest;
  checkType("train", train, PROGRAM);
  const ranges = train.meta.ranges ?? {};
  checkType("train.meta.ranges", ranges, "record");
  checkType("train.meta.ranges", ranges, mapped(ranges, () => RANGE));
  asSchedule(manifest.lr);
  checkHypers("hyper", hyper, ranges);
  checkProgram("train", train, shared, hyper);
  checkTraining(train, shared.get("halted"));
  checkFields("checkpoint", checkpoint, train.buffers, true);
  if (feed !== undefined) checkFeed(feed, shared, hyper, train);
  for (const [name, forward] of Object.entries(forwards)) checkForward(`forwards[${shown(name)}]`, forward, shared, hyper);
  return manifest;
}

/** What a step needs besides its program. */
function checkTraining({ outputs, params, buffers }, halted) {
  for (const name of ["loss", "halted"]) need(outputs.some((f) => f.name === name), "train.outputs", `lacks ${name}`);
  need(halted?.dtype === "i32" && halted.size, "train.buffers", "lacks the flag halted");
  const buffer = buffers.findIndex((b) => b.role === "grad");
  const trained = params.filter((f) => f.spec.trainable !== false);
  checkFields("train.params", trained.map((f) => ({ ...f, buffer })), buffers, true);
}

function checkFeed(feed, shared, hyper, train) {
  checkProgram("feed", feed, shared, hyper, train);
  for (const { name } of train.inputs) {
    const held = name.startsWith(HYPER) || feed.buffers.some((b) => b.name === `data.${name}` && b.role === "data");
    need(held, "feed.buffers", `lacks data.${name}`);
  }
}

function checkForward(where, forward, shared, hyper) {
  checkType(where, forward, { program: { meta: "record" }, demo: { kind: new Set(Object.keys(DEMOS)) } });
  const { program, structure, demo } = forward;
  checkType(`${where}.demo`, demo, DEMOS[demo.kind]);
  checkHypers(`${where}.program.meta.hyper`, program.meta.hyper ?? {});
  checkProgram(`${where}.program`, program, shared, { ...hyper, ...program.meta.hyper });
  const names = isRecord(structure) ? Object.values(structure) : structure ?? ["output"];
  const known = Array.isArray(names) && names.every((name) => program.outputs.some((f) => f.name === name));
  need(known, `${where}.structure`, "names what is no output");
}

/** `step`: the program that this one feeds. */
function checkProgram(where, p, shared, hyper, step) {
  checkType(where, p, PROGRAM);
  const { buffers, needs, params } = p;
  buffers.forEach((b, k) => checkBuffer(`${where}.buffers[${k}]`, b, buffers, shared, step));
  const bytes = largest(buffers.map(bytesOfBuffer));
  need(needs.buffer_bytes >= bytes && needs.binding_bytes >= bytes, `${where}.needs`, `asks for less than its largest buffer, ${bytes} bytes`);
  for (const part of ["inputs", "outputs", "params", "states"]) checkFields(`${where}.${part}`, p[part], buffers, part === "params" || part === "states");
  params.forEach((f, k) => checkParam(`${where}.params[${k}]`, f));
  p.inputs.forEach(({ name }, k) => need(isKnown(name, hyper, step), `${where}.inputs[${k}].name`, `is ${shown(name)}, which has no value`));
  p.kernels.forEach((kernel, k) => need(Math.max(...kernel.serial_grid) <= MOST_GROUPS, `${where}.kernels[${k}].serial_grid`, `is above ${MOST_GROUPS}`));
  p.copies.forEach(([a, b], k) => need(buffers[a]?.size <= buffers[b]?.size, `${where}.copies[${k}]`, "copies what there is not"));
  checkLaunches(where, p);
}

/** Is an input given by the caller, or a hot value that there is? */
function isKnown(name, hyper, feeds) {
  if (!name.startsWith(HYPER)) return true;
  const hot = name.slice(HYPER.length).replace(/^1-/, "");
  return ["step", "seed", "lr"].includes(hot) || Object.hasOwn(hyper, hot) || (feeds && hot === "data.count");
}

const bytesOfBuffer = (b) => (b.dtype === "f16" ? 2 : 4) * b.size;

function checkBuffer(where, b, buffers, shared, step) {
  const alike = (other) => other && other.size === b.size && other.dtype === b.dtype;
  if (PERSISTENT.includes(b.role)) {
    need(alike(shared.get(b.name) ?? b), where, `and another program's buffer ${shown(b.name)} differ`);
    shared.set(b.name, b);
    const copied = b.fill === "params" && alike(buffers.find((other) => other.name === "params" && other.role === "param"));
    need(copied || Number.isFinite(b.fill), `${where}.fill`, "is neither a number nor the parameters");
  }
  const fed = b.role === "fed" && step?.buffers.find((other) => other.name === b.name);
  if (b.role === "fed") need(fed && fed.role === "input" && fed.dtype === b.dtype && fed.size >= b.size, where, "is no input of the step");
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
    need(!persistent || PERSISTENT.includes(b.role), `${where}[${k}].buffer`, `is of role ${b.role}, which is not kept`);
    need(offset + prod(shape) <= b.size, `${where}[${k}]`, `ends behind its buffer, which has ${b.size} elements`);
    need(b.dtype === (dtype === "f32" ? "f32" : "i32"), `${where}[${k}].dtype`, `is ${dtype}, in a buffer of ${b.dtype}`);
  });
}

/** The initialiser of a parameter. */
const INITS = {
  randn: { scale: "number" },
  kaiming: { gain: "number" },
  xavier: { gain: "number" },
  uniform: { low: "number", high: "number" },
  zeros: {},
  ones: {},
  literal: { dtype: new Set(["f32", "i32", "u32", "bool"]), data: "text" },
};

function checkParam(where, { shape, spec: { init } }) {
  checkType(`${where}.spec.init`, init, { kind: new Set(Object.keys(INITS)) });
  checkType(`${where}.spec.init`, init, INITS[init.kind]);
  if (init.kind !== "literal") return;
  const size = prod(shape) * (init.dtype === "bool" ? 1 : 4);
  need(decodedLength(init.data) === size, `${where}.spec.init.data`, `is not ${size} bytes in base64`);
}

/** Every dispatch within its arrays, in every iteration of the loops around it. */
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
  need(next === loops.length, `${where}.loops[${next}]`, "begins nowhere");
  need(launches <= MOST_LAUNCHES, `${where}.loops`, `make ${launches} launches; at most ${MOST_LAUNCHES} can be`);
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

/** Each offset, the least and the most it becomes in loops. A Program does not say into which buffer: none is larger than `most`. */
function checkOffsets(at, { offsets, moves }, most, around) {
  const low = [...offsets], high = [...offsets];
  moves.forEach(([slot, { depth, step, ring }], k) => {
    const loop = around[depth + 1];
    need(slot < offsets.length && loop && ring, `${at}.moves[${k}]`, "moves no offset, or in no loop");
    const last = step * Math.max(0, Math.min(ring, loop.count) - 1);
    low[slot] += Math.min(0, last);
    high[slot] += Math.max(0, last);
  });
  offsets.forEach((_, k) => need(low[k] >= 0 && high[k] <= most, `${at}.offsets[${k}]`, "lies outside of its buffers"));
}

// --- safetensors ---

const ENTRY = { dtype: new Set(["F32", "I32"]), shape: ["size"], data_offsets: PAIR };

/** The header of a safetensors file: every entry has its types, and no name stands twice. */
export function readHeader(text) {
  const header = parsed("the header", text);
  checkType("the header", header, "record");
  const { __metadata__: metadata = {}, ...entries } = header;
  need(isRecord(metadata) && Object.values(metadata).every(isText), "__metadata__", "does not map text to text");
  for (const [name, entry] of Object.entries(entries)) {
    checkType(shown(name), entry, ENTRY);
    need(Object.keys(entry).length === 3, shown(name), "has other parts than dtype, shape and data_offsets");
  }
  const records = [header, metadata, ...Object.values(entries)];
  const keys = records.reduce((sum, record) => sum + Object.keys(record).length, 0);
  need(keys === text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"/g, "").split(":").length - 1, "the header", "names something twice");
  return { entries, metadata };
}
