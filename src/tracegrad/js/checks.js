// Check data of files and callers before use: numbers, schedules, checkpoints; manifest.js checks program.json. Every
// problem is an InputError of one sentence, which names the field. tracegrad/hypers.py and lr.py are the Python
// versions. A device that lacks something is a DeviceError.

/** Return an Error whose `name` is one of those in tracegrad/errors.py. */
export function fault(name, message) {
  return Object.assign(new Error(message), { name });
}

export const inputError = (message) => fault("InputError", message);

export const SHOWN = 12; // names in an error
export const HYPER = "hyper."; // prefix of hot values among the inputs of a program
export const isHyper = (f) => f.name.startsWith(HYPER);
export const isGiven = (f) => !isHyper(f);
export const PERSISTENT = ["param", "grad", "state", "data"]; // roles whose buffers outlive a step
const LONGEST = 60; // characters of a value in an error

/** Return the array type for values of a dtype: devices know two types, both of 32 bits. */
export const storage = (dtype) => (dtype === "f32" ? Float32Array : Int32Array);
export const prod = (shape) => shape.reduce((a, b) => a * b, 1);
export const isRecord = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const isText = (x) => typeof x === "string";
const isCount = (x) => x === x >>> 0; // of 32 bits
const isSize = (x) => Number.isSafeInteger(x) && x >= 0;

/** Return a record with `fn(value, name)` for every value. */
export const mapped = (record, fn) => Object.fromEntries(Object.entries(record).map(([name, x]) => [name, fn(x, name)]));

/** Return a value as text for an error. An object can come from a file, so its own toString must not run. */
export function shown(x) {
  if (Array.isArray(x)) return `a list of ${x.length}`;
  if (isRecord(x) || typeof x === "function") return `${/^[aeiou]/.test(typeof x) ? "an" : "a"} ${typeof x}`;
  return isText(x) ? JSON.stringify(x.slice(0, LONGEST)) : String(x);
}

/** Return the result of `check`; add to an InputError where the value came from. */
export function within(what, check) {
  try {
    return check();
  } catch (e) {
    throw e.name === "InputError" ? inputError(`${what}: ${e.message}`) : e;
  }
}

/** Send a call to a worker. Throw InputError for an argument that no worker can receive, such as a canvas. */
export function send(worker, call) {
  try {
    worker.postMessage(call);
  } catch (e) {
    throw inputError(`${call.method}: a worker cannot receive a value: pass numbers, nested lists, typed arrays or {data, shape}, and of a canvas getImageData(...).data. ${e.message}`);
  }
}

// --- numbers ---

const RATE = { low: 0 };

/** Throw InputError unless `x` is a number within a range of tracegrad/hypers.py, and finite in f32. */
export function checkNumber(what, x, { low, high, above } = {}) {
  const inside = () => (low ?? x) <= x && x < (high ?? Infinity) && !(above && x === low);
  if (typeof x === "number" && Number.isFinite(Math.fround(x)) && inside()) return;
  const bounds = [low != null && ` ${above ? "above" : "of at least"} ${low}`, high != null && ` below ${high}`];
  throw inputError(`${what} must be a number${bounds.filter(Boolean).join(" and")} that is finite in f32, got ${shown(x)}`);
}

/** Throw InputError for a hyperparameter, in a record, out of its range. */
export function checkHypers(what, hyper, ranges = {}) {
  if (!isRecord(hyper)) throw inputError(`${what}: pass hyperparameters by name, such as {weight_decay: 0.1}; got ${shown(hyper)}`);
  for (const [name, x] of Object.entries(hyper)) {
    checkNumber(`${what}: ${name}`, x, Object.hasOwn(ranges, name) ? ranges[name] : {});
  }
}

/** Return {lr, values} from the argument of `set`. Throw InputError for unknown names and groups. */
export function readHypers(hyper, names, ranges, known = []) {
  const { lr, groups, ...values } = isRecord(hyper) ? hyper : {};
  const unknown = Object.keys(values).filter((name) => !names.includes(name)).slice(0, SHOWN);
  if (unknown.length) throw inputError(`set: ${unknown.join(", ")}: unknown; these can be set: ${names.join(", ")}. Hyperparameters that were off in Python are not in this export`);
  checkHypers("set", isRecord(hyper) ? values : hyper, ranges);
  return { lr, values: { ...values, ...readGroups(groups ?? {}, known, ranges) } };
}

/** Return the groups' own values, named by the hyperparameter, "@" and the group's number. */
function readGroups(groups, known, ranges) {
  if (!isRecord(groups)) throw inputError(`set: pass groups by pattern, such as {"backbone.*": {lr: 0.1}}; got ${shown(groups)}`);
  const values = {};
  for (const [pattern, given] of Object.entries(groups)) {
    const k = known.findIndex(([name]) => name === pattern);
    if (k < 0) throw inputError(`set: there is no group ${shown(pattern)}; there are ${known.map(([name]) => shown(name)).join(", ") || "none"}`);
    const own = Object.keys(known[k][1]);
    const what = `set: groups[${shown(pattern)}]`;
    checkHypers(what, given, ranges);
    const unknown = Object.keys(given).filter((name) => !own.includes(name));
    if (unknown.length) throw inputError(`${what}: ${unknown.join(", ")}: unknown; it has ${own.join(", ")}`);
    for (const [name, x] of Object.entries(given)) values[`${name}@${k}`] = x;
  }
  return values;
}

/** Return the `names` that match a pattern or one of a list: `*` is any text, `?` one character. InputError if none. */
export function chosen(names, given, what) {
  const patterns = [given].flat();
  if (!patterns.every(isText)) throw inputError(`${what}: a pattern is a text such as "backbone.*", got ${shown(given)}`);
  const rule = (p) => p.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  const fits = new RegExp(`^(?:${patterns.map(rule).join("|") || "(?!)"})$`, "s");
  const found = names.filter((name) => fits.test(name));
  if (!found.length) throw inputError(`${what}: ${patterns.map(shown).join(", ")} matches no parameter; the parameters are ${names.slice(0, SHOWN).join(", ")}`);
  return found;
}

/** Throw InputError unless a device can take `rate`, which a schedule gave for `step`. */
export function checkRate(rate, step) {
  checkNumber(`the schedule at step ${step}: lr`, rate, RATE);
}

// --- schedules ---

const DEEPEST = 8; // most schedules inside one another
const SCHEDULES = {
  constant: ["rate"],
  linear: ["peak", "final", "steps"],
  cosine_annealing: ["peak", "final", "steps"],
  cosine_restarts: ["peak", "final", "steps", "growth"],
  warmup: ["peak", "steps", "after"],
  staircase: ["peak", "every", "gamma"],
  multi_step: ["peak", "milestones", "gamma"],
  exponential: ["peak", "gamma"],
  one_cycle: ["peak", "steps", "pct_start", "div_factor", "final_div_factor", "anneal"],
  plateau: [
    "peak", "factor", "patience", "threshold", "mode", "threshold_mode", "cooldown", "min_lr", "eps", "now", "best", "bad",
    "cooling",
  ],
};
const ABOVE_0 = ["div_factor", "final_div_factor"];
/** Types of fields that are neither rates nor positive. */
const OTHERS = {
  start: "step",
  milestones: ["whole"],
  pct_start: "share",
  anneal: new Set(["cos", "linear"]),
  factor: "fraction",
  growth: "growth",
  steps: "steps",
  every: "steps",
  mode: new Set(["min", "max"]),
  threshold_mode: new Set(["rel", "abs"]),
  best: "metric",
  patience: "count", cooldown: "count", bad: "count", cooling: "count",
};

/** Return a copy of a schedule's specification; a number is a constant rate. Throw InputError with the wrong fields. */
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
  if (depth > DEEPEST) throw inputError(`schedule ${kind}: schedules are nested deeper than ${DEEPEST}`);
  const known = SCHEDULES[kind], given = Object.keys(lr).filter((name) => name !== "kind");
  const missing = known.filter((name) => !given.includes(name)).map((name) => `${name} is missing`);
  const unknown = given.filter((name) => name !== "start" && !known.includes(name)).map((name) => `${shown(name)} is unknown`);
  const wrong = [...missing, ...unknown].slice(0, SHOWN).join(", ");
  if (wrong) throw inputError(`schedule ${kind}: ${wrong}; its fields are ${known.join(", ")}`);
  for (const name of given) checkField(`schedule ${kind}: ${name}`, name, lr[name], depth);
  return structuredClone(lr);
}

function checkField(what, name, x, depth) {
  if (name === "now" && x === null) return;
  if (name === "after" && isRecord(x)) within(what, () => asSchedule(x, depth + 1));
  else if (OTHERS[name]) checkType(what, x, OTHERS[name]);
  else checkNumber(what, x, { low: 0, above: ABOVE_0.includes(name) });
}

// --- types ---

/** A type is a row of this table, a set of texts, a list of one type, a tuple, or a record of types. */
const TYPES = {
  text: ["a text", isText],
  flag: ["true or false", (x) => typeof x === "boolean"],
  size: ["an integer of at least 0", isSize],
  count: ["an integer below 2^32", isCount],
  whole: ["an integer", Number.isSafeInteger],
  number: ["a finite number", Number.isFinite],
  share: ["a number in [0, 1]", (x) => Number.isFinite(x) && x >= 0 && x <= 1],
  fraction: ["a number in [0, 1)", (x) => Number.isFinite(x) && x >= 0 && x < 1],
  growth: ["an integer of at least 1", (x) => Number.isSafeInteger(x) && x >= 1],
  steps: ["an integer above 0", (x) => Number.isInteger(x) && x > 0 && Number.isFinite(Math.fround(x))],
  step: ["the number of a step", (x) => x === null || Number.isSafeInteger(x)],
  metric: ["a number or null", (x) => x === null || (Number.isFinite(x) && Number.isFinite(Math.fround(x)))],
  bound: ["a number or null", (x) => x === null || Number.isFinite(x)],
  record: ["a record", isRecord],
  list: ["a list", Array.isArray],
};
export const PAIR = ["size", "size"];

export function need(fits, where, why) {
  if (!fits) throw inputError(`${where} ${why}`);
}

/** Throw InputError unless `x`, found at `where`, is of a type. */
export function checkType(where, x, type) {
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

/** Return the value of a JSON text. */
export function parsed(what, text) {
  try {
    return JSON.parse(text);
  } catch (e) {
    throw inputError(`${what} is not JSON: ${e.message.slice(0, 200)}`);
  }
}

// --- checkpoints ---

/** Throw InputError for parameters with which every step would fail: NaN, or an infinity that a step changes. */
export function checkFinite(params, values, prefix = "") {
  for (const { name, spec } of params) {
    const wrong = (x) => Number.isNaN(x) || (spec.trainable !== false && !Number.isFinite(x));
    if (values.get(prefix + name)?.some(wrong)) {
      throw inputError(`${prefix}${name} has values that are not finite, so every later step would fail`);
    }
  }
}

/** Return the tensors by name. Files written before anything was frozen lack the arrays of missed steps: add zeros. */
export function withMissed(fields, tensors) {
  const given = Object.fromEntries(tensors);
  for (const { name, shape } of fields.values()) if (name.includes("/freeze-missed")) given[name] ??= new Float32Array(prod(shape));
  return given;
}

/** Return {step, seed, lr, lr_start, hyper} from a checkpoint's metadata. */
export function readFacts(metadata, ranges) {
  const facts = {};
  for (const name of ["step", "seed", "lr_start", "lr", "hyper"]) {
    try {
      facts[name] = JSON.parse(metadata[name]);
    } catch {
      throw inputError(`${name} in the metadata is ${shown(metadata[name])}, which is not valid JSON`);
    }
  }
  const { step, seed, lr_start: start, hyper } = facts;
  for (const [name, x] of Object.entries({ step, seed, lr_start: start ?? 1 })) {
    if (!isCount(x) || (name === "lr_start" && !x)) {
      throw inputError(`${name} in the metadata must be an integer below 2^32, got ${shown(x)}`);
    }
  }
  checkHypers("hyper in the metadata", hyper, ranges);
  const frozen = parsed("frozen in the metadata", metadata.frozen ?? "[]");
  checkType("frozen in the metadata", frozen, ["text"]);
  return { ...facts, frozen, lr: asSchedule(facts.lr) };
}

// --- safetensors ---

const ENTRY = { dtype: new Set(["F32", "I32"]), shape: ["size"], data_offsets: PAIR };

/** Return the header of a safetensors file: every entry has valid types, and no name occurs twice. */
export function readHeader(text) {
  const header = parsed("the header", text);
  checkType("the header", header, "record");
  const { __metadata__: metadata = {}, ...entries } = header;
  need(isRecord(metadata) && Object.values(metadata).every(isText), "__metadata__", "does not map text to text");
  for (const [name, entry] of Object.entries(entries)) {
    checkType(shown(name), entry, ENTRY);
    need(Object.keys(entry).length === 3, shown(name), "must have exactly dtype, shape and data_offsets");
    need(entry.shape.length <= 64, shown(name), "has more than 64 axes"); // the limit of NumPy, and so of Python
  }
  const texts = [...Object.keys(entries), ...Object.entries(metadata).flat()].join();
  need(!/\p{Surrogate}/u.test(texts), "the header", "has half of a surrogate pair, which is not valid text");
  const records = [header, metadata, ...Object.values(entries)];
  const keys = records.reduce((sum, record) => sum + Object.keys(record).length, 0);
  need(keys === text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"/g, "").split(":").length - 1, "the header", "names something twice");
  return { entries, metadata };
}

/** Check indices, because a device would clamp them silently. Where a part has a box, only elements in it are used. */
export function checkRange(values, { shape, spec }) {
  for (const { range: [low, high], exempt, box } of [spec, ...(spec.others ?? [])]) {
    const used = (k) => !box || shape.every((_, d) => {
      const c = Math.floor(k / prod(shape.slice(d + 1))) % shape[d];
      return c >= box[d][0] && c <= box[d][1];
    });
    const at = values.findIndex((x, k) => (x < low || x > high) && x !== exempt && used(k));
    if (at >= 0) throw inputError(`value ${values[at]} at position ${at} is out of range; valid values are ${low} to ${high}`);
  }
}

export const largest = (sizes) => sizes.reduce((a, b) => Math.max(a, b), 0);
export const bytesOfBuffer = (b) => (b.dtype === "f16" ? 2 : 4) * b.size;
const largestBuffer = (p) => largest(p.buffers.map(bytesOfBuffer));

export const LIMITS = {
  maxBufferSize: largestBuffer,
  maxStorageBufferBindingSize: largestBuffer,
  maxStorageBuffersPerShaderStage: (p) => largest(p.kernels.map((k) => k.bindings.length)),
  maxComputeWorkgroupStorageSize: (p) => largest(p.kernels.map((k) => k.workgroup_memory)),
}; // every device accepts such grids
export const F16 = "shader-f16";

/** Throw a DeviceError naming what a device, or its adapter, lacks for `programs`. */
export function demand(programs, { limits, features }, name) {
  for (const [limit, needed] of Object.entries(LIMITS)) {
    const most = largest(programs.map(needed));
    if (most > limits[limit]) throw fault("DeviceError", `the model is too large for ${name}: ${limit} is ${limits[limit]}, but the model needs ${most}`);
  }
  if (programs.some((p) => p.buffers.some((b) => b.dtype === "f16")) && !features.has(F16)) throw fault("DeviceError", `${name} lacks ${F16}: use precision="f32"`);
}
