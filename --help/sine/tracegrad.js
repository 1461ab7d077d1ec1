import { fault, inputError, SHOWN, HYPER, PERSISTENT, storage, prod, isRecord, mapped, shown, within, checkNumber, checkHypers, readHypers, chosen, checkRate, asSchedule, PAIR, need, checkType, fetched, parsed, checkFinite, readFacts, readHeader, checkRange } from "./checks.js";
import { readManifest, checkProgram } from "./manifest.js";
import { UNIT, DRAWN, bound, tried, notFinite } from "./trial.js";
import { uniform, draw } from "./random.js";
import { loadVerified, pattern } from "./verify.js";
// Values on the host: checked against a program's fields, cast without loss, and converted to the device's form.
// An array is {dtype, shape, data}; inputs can also be typed arrays, nested lists and numbers.


const typed = (f) => `${f.dtype}[${f.shape.join(",")}]`;

const CASTS = {
  f32: Float32Array,
  i32: Int32Array,
  u32: Uint32Array,
  bool: Int32Array,
};
const RANGES = { i32: [-(2 ** 31), 2 ** 31 - 1], u32: [0, 2 ** 32 - 1], bool: [0, 1] };

/** Return every value of the call in its field's type. Throw InputError with all problems. */
function checkInputs(fields, given, what, lead) {
  const problems = [];
  const out = new Map();
  const unknown = Object.keys(given).filter((name) => !fields.some((f) => f.name === name));
  if (unknown.length) problems.push(`${unknown.slice(0, SHOWN).join(", ")}: unknown; known are ${fields.slice(0, SHOWN).map((f) => `${f.name} ${typed(f)}`).join(", ") || "none"}`);
  for (const f of fields) {
    try {
      if (!Object.hasOwn(given, f.name)) throw inputError(`missing, expected ${typed(f)}`);
      out.set(f.name, fit(f, given[f.name], lead));
    } catch (e) {
      problems.push(`${f.name}: ${e.message}`);
    }
  }
  if (problems.length) throw inputError([`${what}: ${problems.length} values do not fit`, ...problems.slice(0, SHOWN)].join("\n  "));
  return out;
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

function flat(value) {
  if (typeof value === "number" || typeof value === "boolean") return { data: [value], shape: [] };
  if (ArrayBuffer.isView(value)) return { data: value };
  if (ArrayBuffer.isView(value?.data)) {
    if (value.shape && prod(value.shape) !== value.data.length) throw inputError(`${value.data.length} values cannot have shape [${value.shape}]`);
    return { data: value.data, shape: value.shape };
  }
  if (!Array.isArray(value)) throw inputError("it is no array, typed array, number or {data, shape}");
  const shape = [];
  for (let v = value; Array.isArray(v); v = v[0]) shape.push(v.length);
  const data = value.flat(Infinity);
  if (data.length !== prod(shape)) throw inputError("its rows differ in length");
  return { data, shape };
}

function cast(data, dtype) {
  if (data.constructor === CASTS[dtype]) return data.slice();
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

/** Return the same values as the 32 bits of device memory. */
function toStorage(values, dtype) {
  return dtype === "u32" ? new Int32Array(values.buffer, values.byteOffset, values.length) : values;
}

/** Return the array of a field from a copy of its bytes. */
function fromStorage(bytes, at, f) {
  return { dtype: f.dtype, shape: f.shape, data: new CASTS[f.dtype](bytes.slice(at, at + 4 * prod(f.shape))) };
}

// Learning-rate schedules from their specifications: tracegrad/lr.py has the formulas and their sources.

const line = (a, b, share) => a + (b - a) * share;
const cosine = (a, b, share) => b + ((a - b) * (1 + Math.cos(Math.PI * share))) / 2;

/** Return the rate at the schedule's own step `s`, from 1 on. */
const VALUE = {
  constant: (c) => c.rate,
  linear: (c, s) => c.peak + ((c.final - c.peak) * Math.min(s - 1, c.steps)) / c.steps,
  cosine_annealing: (c, s) => cosine(c.peak, c.final, Math.min(s - 1, c.steps) / c.steps),
  warmup: (c, s) => (s <= c.steps ? (c.peak * s) / c.steps : rateAt(c.after, s - c.steps)),
  staircase: (c, s) => c.peak * c.gamma ** Math.floor((s - 1) / c.every),
  multi_step: (c, s) => c.peak * c.gamma ** c.milestones.filter((m) => m < s).length,
  exponential: (c, s) => c.peak * c.gamma ** (s - 1),
  plateau: (c) => c.now ?? c.peak,
  one_cycle(c, s) {
    const between = c.anneal === "cos" ? cosine : line;
    const first = c.peak / c.div_factor;
    const top = c.pct_start * c.steps - 1;
    const last = c.steps - 1;
    const e = Math.min(s - 1, last);
    if (e <= top) return between(first, c.peak, top > 0 ? e / top : 1);
    return between(c.peak, first / c.final_div_factor, (e - top) / (last - top));
  },
};

/** Return the plateau after one more metric. */
function afterMetric(c, metric) {
  const sign = c.mode === "max" ? 1 : -1;
  const margin = c.threshold * (c.threshold_mode === "rel" ? c.best : 1);
  const better = !Number.isNaN(metric) && (c.best === null || sign * metric > sign * (c.best + sign * margin));
  const next = { ...c, now: c.now ?? c.peak, best: better ? metric : c.best };
  next.bad = better || c.cooling ? 0 : c.bad + 1;
  next.cooling = Math.max(0, c.cooling - 1);
  if (next.bad > c.patience) {
    const lower = Math.max(next.now * c.factor, c.min_lr);
    if (next.now - lower > c.eps) next.now = lower;
    Object.assign(next, { bad: 0, cooling: c.cooldown });
  }
  return next;
}

/** Return the schedule without its metrics. */
const restarted = (c) => (c.kind === "plateau" ? { ...c, now: null, best: null, bad: 0, cooling: 0 } : c);

/** Return the rate at `step`; a schedule without its own start begins at `start`. A number is a constant rate. */
function rateAt(spec, step, start = 1) {
  if (typeof spec === "number") return spec;
  return VALUE[spec.kind](spec, Math.max(1, step - ((spec.start ?? start) || 1) + 1));
}

// safetensors files: F32 and I32, read strictly. The whole header is validated before any data is used.


const READS = { F32: Float32Array, I32: Int32Array };

/** Return {tensors: Map of name to {dtype, shape, data}, metadata}. InputError for anything the format forbids. */
function readSafetensors(input) {
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
    if (at !== data.byteLength) throw inputError(`${data.byteLength - at} bytes belong to no tensor`);
    return { tensors, metadata };
  });
}

function headerOf(bytes) {
  if (bytes.length < 8) throw inputError(`${bytes.length} bytes are too short`);
  const start = 8 + Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (start > bytes.length) throw inputError(`its header has ${start - 8} bytes, all of it ${bytes.length}`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(8, start));
  } catch {
    throw inputError("the header is not UTF-8");
  }
  return { start, ...readHeader(text) };
}

/** Return the file of `tensors`, [name, {shape, data}] in order; data are Float32Array or Int32Array. */
function writeSafetensors(tensors, metadata) {
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

// A WebGPU device with named, persistent buffers, and the Programs loaded into it: one pass a step, one submission for
// any number of steps. tracegrad/runtime/base.py documents it; the native runtime executes the same Programs.
// A buffer of role "data" holds examples: `hold` sets its size, whatever the Program says.


const MAP_READ = 1, COPY_SRC = 4, COPY_DST = 8, UNIFORM = 64, STORAGE = 128, COMPUTE = 4; // GPUBufferUsage, GPUShaderStage
const ALIGN = 256; // of offsets into a uniform buffer, accepted by every device

const LIMITS = {
  maxBufferSize: "buffer_bytes",
  maxStorageBufferBindingSize: "binding_bytes",
  maxStorageBuffersPerShaderStage: "storage_buffers",
  maxComputeWorkgroupStorageSize: "workgroup_memory",
}; // every device accepts such grids

const deviceError = (message) => fault("DeviceError", message);

const NO_WEBGPU = "This browser does not offer WebGPU; Chrome or Edge from 113, Firefox from 141 and Safari from 26 do. "
  + "On Linux, see chrome://flags/#enable-unsafe-webgpu. Pages must come from https, localhost or a file.";
const NO_ADAPTER = "This browser found no graphics adapter for WebGPU: update its driver, or allow hardware acceleration in its settings; chrome://gpu says more.";

/** Return the adapter, or throw a DeviceError in plain words. */
async function findAdapter(gpu = globalThis.navigator?.gpu) {
  if (!gpu) throw deviceError(NO_WEBGPU);
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw deviceError(NO_ADAPTER);
  return adapter;
}

const words = (info) => [info?.vendor, info?.architecture, info?.device].filter(Boolean).join(" ");

/** Return an adapter's name for users. */
function adapterName({ info }) {
  return info?.description || words(info) || "WebGPU";
}

/** Return whether an adapter runs on a CPU. */
function isSoftware({ info }) {
  return info?.isFallbackAdapter || /swiftshader|llvmpipe|basic render/i.test(words(info) + info?.description);
}

/** Throw a DeviceError naming what a device, or its adapter, lacks for `programs`. */
function demand(programs, { limits, features }, name) {
  for (const [limit, need] of Object.entries(LIMITS)) {
    const most = Math.max(...programs.map((p) => p.needs[need]));
    if (most > limits[limit]) throw deviceError(`the model is too large for ${name}: ${limit} is ${limits[limit]}, ${most} is needed`);
  }
  if (programs.some((p) => p.buffers.some(isHalf)) && !features.has(F16)) throw deviceError(`${name} lacks ${F16}: use precision="f32"`);
}

const F16 = "shader-f16";
const isHalf = (b) => b.dtype === "f16";

class Session {
  /** Open a device with the largest limits. Throw a DeviceError naming what it lacks for `programs`. */
  static async open(programs, gpu) {
    const adapter = await findAdapter(gpu);
    demand(programs, adapter, adapterName(adapter));
    const requiredLimits = Object.fromEntries(Object.keys(LIMITS).map((k) => [k, adapter.limits[k]]));
    return new Session(await adapter.requestDevice({ requiredLimits, requiredFeatures: [F16].filter((f) => adapter.features.has(f)) }), adapter);
  }

  constructor(device, adapter) {
    const identity = `${words(adapter.info)} ${adapter.info?.description}`; // all that a page can learn
    Object.assign(this, { device, adapter: adapterName(adapter), software: isSoftware(adapter), identity, lost: "", error: "", arrays: new Map(), layouts: new Map(), pipelines: new Map() });
    device.lost.then((info) => (this.lost ||= info.message || info.reason || "lost"));
    device.onuncapturederror = (e) => {
      e.preventDefault();
      this.error ||= e.error.message;
    };
  }

  /**
   * Allocate, and compile every kernel in parallel; `progress(done, all)`. Throw CompileError naming a refused kernel.
   * A program that feeds `step`, which is loaded, becomes one program with it: the step reads its inputs from the buffers
   * of role "fed".
   */
  async load(program, progress = () => {}, step) {
    this.check();
    this.device.pushErrorScope("out-of-memory");
    const own = [];
    const buffers = program.buffers.map((b) => (b.role === "fed" ? step.buffers[step.program.buffers.findIndex((x) => x.name === b.name)] : this.#array(b, own)));
    const memory = this.device.popErrorScope();
    let done = 0;
    const pipelines = await Promise.all(program.kernels.map(async (kernel) => {
      const found = await this.#pipeline(kernel);
      progress(++done, program.kernels.length);
      return found;
    }));
    if (await memory) throw deviceError(`out of memory: ${(await memory).message}`);
    const launches = this.#launches(program, buffers, pipelines, own);
    this.check();
    const given = program.inputs.map((f) => [f, buffers[f.buffer]]);
    if (step) {
      const hypers = step.inputs.fields.filter(([f]) => f.name.startsWith("hyper."));
      return { ...step, own, slots: [], staging: null, launches: [...launches, ...step.launches], inputs: lay([...hypers, ...given]) };
    }
    const inputs = lay(given), outputs = lay(program.outputs.map((f) => [f, buffers[f.buffer]]));
    return { program, buffers, own, slots: [], inputs, outputs, launches, bytes: Math.max(inputs.bytes, outputs.bytes) };
  }

  /** Free what only this program uses. */
  unload(loaded) {
    for (const buffer of [...loaded.own, ...loaded.slots, loaded.staging]) buffer?.destroy();
  }

  /** Throw if the device is lost or has refused something. */
  check() {
    if (this.lost) throw fault("DeviceLostError", `the device was lost: ${this.lost}`);
    const { error } = this;
    this.error = "";
    if (error) throw deviceError(error);
  }

  /**
   * Run a program once for each of `inputs`, in one submission; return a promise of the outputs, Maps by name. Each of
   * `inputs` is a function that sets the values of a run by `set(field, values)`; it is called at once.
   */
  run(loaded, inputs) {
    return this.#outputs(loaded, inputs.length, this.#submit(loaded, inputs));
  }

  /** Return the outputs of `n` runs, once their slot is mapped. */
  async #outputs({ program, outputs, slots }, n, slot) {
    const bytes = await this.#mapped(slot, n * outputs.bytes);
    slots.push(slot);
    return Array.from({ length: n }, (_, k) => new Map(program.outputs.map((f) =>
      [f.name, fromStorage(bytes, k * outputs.bytes + outputs.at.get(f), f)])));
  }

  /** Submit the runs; return the buffer for their outputs. */
  #submit(loaded, given) {
    this.check();
    const { device } = this;
    const { inputs, outputs, program } = loaded;
    const n = given.length, size = n * inputs.bytes;
    if (!(loaded.upload?.byteLength >= size)) loaded.upload = new ArrayBuffer(size); // writeBuffer copies it at once
    const { upload } = loaded;
    given.forEach((fill, k) => fill((f, values) => {
      new (storage(f.dtype))(upload, k * inputs.bytes + inputs.at.get(f), values.length).set(values);
    }));
    const encoder = device.createCommandEncoder();
    if (n === 1) for (const h of inputs.parts) device.queue.writeBuffer(h.buffer, h.from, upload, h.at, h.size);
    else {
      loaded.staging = this.#grown(loaded.staging, size, COPY_SRC | COPY_DST);
      device.queue.writeBuffer(loaded.staging, 0, upload, 0, size);
    }
    const slot = this.#grown(loaded.slots.pop(), n * outputs.bytes, MAP_READ | COPY_DST);
    for (let k = 0; k < n; k++) {
      if (n > 1) for (const h of inputs.parts) encoder.copyBufferToBuffer(loaded.staging, k * inputs.bytes + h.at, h.buffer, h.from, h.size);
      const pass = encoder.beginComputePass();
      let bound;
      for (const { pipeline, group, offsets, at, grid } of loaded.launches) {
        if (pipeline !== bound) pass.setPipeline((bound = pipeline));
        pass.setBindGroup(0, group);
        if (offsets) pass.setBindGroup(1, offsets, at);
        pass.dispatchWorkgroups(...grid);
      }
      pass.end();
      for (const [a, b] of program.copies) encoder.copyBufferToBuffer(loaded.buffers[a], 0, loaded.buffers[b], 0, loaded.buffers[a].size);
      for (const c of outputs.parts) encoder.copyBufferToBuffer(c.buffer, c.from, slot, k * outputs.bytes + c.at, c.size);
    }
    device.queue.submit([encoder.finish()]);
    return slot;
  }

  /** Return a copy of a persistent buffer's bytes, after everything queued so far. */
  async read(name) {
    this.check();
    const source = this.arrays.get(name);
    const target = this.#buffer(source.size, MAP_READ | COPY_DST);
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(source, 0, target, 0, source.size);
    this.device.queue.submit([encoder.finish()]);
    try {
      return await this.#mapped(target, source.size);
    } finally {
      target.destroy();
    }
  }

  /** Put examples on the device as the buffer `name`; programs that read it must be loaded again. DeviceError if too many. */
  hold(name, values) {
    const { maxBufferSize, maxStorageBufferBindingSize } = this.device.limits;
    const most = Math.min(maxBufferSize, maxStorageBufferBindingSize);
    if (values.byteLength > most) throw deviceError(`${name} has ${values.byteLength} bytes; ${this.adapter} holds at most ${most}`);
    this.arrays.get(name)?.destroy();
    this.arrays.set(name, this.#buffer(values.byteLength, STORAGE | COPY_SRC | COPY_DST));
    this.write(name, values);
  }

  /** Overwrite part of a persistent buffer, from element `at` on. */
  write(name, values, at = 0) {
    if (values.length) this.device.queue.writeBuffer(this.arrays.get(name), 4 * at, values);
  }

  /** Return the values of `fields` by name. */
  async download(program, fields) {
    const bytes = new Map();
    for (const f of fields) if (!bytes.has(f.buffer)) bytes.set(f.buffer, await this.read(program.buffers[f.buffer].name));
    return new Map(fields.map((f) => [f.name, fromStorage(bytes.get(f.buffer), 4 * f.offset, f)]));
  }

  /** Write `values`, a Map by field name, to the places of `fields`. */
  upload(program, fields, values) {
    for (const f of fields) if (values.has(f.name)) this.write(program.buffers[f.buffer].name, toStorage(values.get(f.name), f.dtype), f.offset);
  }

  destroy() {
    this.lost ||= "destroyed";
    this.device.destroy();
  }

  async #mapped(buffer, size) {
    try {
      await buffer.mapAsync(MAP_READ, 0, size);
    } catch (e) {
      await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, 100))]); // gives the reason
      this.check();
      throw deviceError(e.message);
    }
    const bytes = buffer.getMappedRange(0, size).slice(0);
    buffer.unmap();
    this.check();
    return bytes;
  }

  /** Return a buffer of whole vectors. */
  #buffer(size, usage) {
    return this.device.createBuffer({ size: size + (-size & 15) || 16, usage });
  }

  /** Return `buffer` if it is large enough, else replace it by a larger one. */
  #grown(buffer, size, usage) {
    if (buffer?.size >= size) return buffer;
    buffer?.destroy();
    return this.#buffer(Math.max(size, 2 * (buffer?.size ?? 0)), usage);
  }

  #array(b, own) {
    const shared = PERSISTENT.includes(b.role);
    const found = shared && this.arrays.get(b.name);
    if (found) return found;
    const made = this.#buffer((isHalf(b) ? 2 : 4) * b.size, STORAGE | COPY_SRC | COPY_DST);
    if (shared) this.arrays.set(b.name, made);
    else own.push(made);
    if (b.role === "const") this.device.queue.writeBuffer(made, 0, Uint8Array.from(atob(b.data), (c) => c.charCodeAt(0)));
    else if (shared && +b.fill) this.device.queue.writeBuffer(made, 0, filled(b));
    return made;
  }

  #layout(kinds) {
    const key = kinds.join();
    if (!this.layouts.has(key)) {
      const entries = kinds.map((type, binding) => ({ binding, visibility: COMPUTE, buffer: { type, hasDynamicOffset: type === "uniform" } }));
      this.layouts.set(key, this.device.createBindGroupLayout({ label: key, entries }));
    }
    return this.layouts.get(key);
  }

  #pipeline(kernel) {
    const layout = this.#layout(kernel.bindings.map((b) => (b.written ? "storage" : "read-only-storage")));
    const layouts = kernel.slots ? [layout, this.#layout(["uniform"])] : [layout];
    const code = (this.software && kernel.serial_wgsl) || kernel.wgsl; // barriers are very slow on a CPU
    const key = `${layouts.map((l) => l.label)} ${code}`;
    if (!this.pipelines.has(key)) {
      const { device } = this;
      const made = device.createComputePipelineAsync({
        label: kernel.label,
        layout: device.createPipelineLayout({ bindGroupLayouts: layouts }),
        compute: { module: device.createShaderModule({ code }), entryPoint: "main" },
      });
      this.pipelines.set(key, made.then((pipeline) => ({ pipeline, layout }), (e) => {
        if (this.lost) this.check();
        throw fault("CompileError", `kernel ${kernel.label} was refused by the device: ${e.message}`);
      }));
    }
    return this.pipelines.get(key);
  }

  /** Build every dispatch with its pipeline, its bind groups (equal ones are shared), and its offsets' position. */
  #launches(program, buffers, pipelines, own) {
    const { device } = this;
    const dispatches = [...unrolled(program)];
    const size = 16 * Math.max(0, ...program.kernels.map((k) => k.slots && (k.slots >> 2) + 1)); // and the first workgroup's number
    const stride = ALIGN * Math.ceil(size / ALIGN);
    let offsetsGroup;
    if (size) {
      const table = new Int32Array((dispatches.length * stride) / 4);
      dispatches.forEach((d, k) => table.set(d.offsets, (k * stride) / 4));
      const buffer = this.#buffer(table.byteLength, UNIFORM | COPY_DST);
      own.push(buffer);
      device.queue.writeBuffer(buffer, 0, table);
      offsetsGroup = device.createBindGroup({ layout: this.#layout(["uniform"]), entries: [{ binding: 0, resource: { buffer, size } }] });
    }
    const groups = new Map();
    return dispatches.map((d, k) => {
      const { pipeline, layout } = pipelines[d.kernel];
      const key = layout.label + d.buffers;
      if (!groups.has(key)) groups.set(key, device.createBindGroup({ layout, entries: d.buffers.map((id, binding) => ({ binding, resource: { buffer: buffers[id] } })) }));
      const { slots, serial_wgsl: serial, serial_grid: grid } = program.kernels[d.kernel];
      return { pipeline, group: groups.get(key), offsets: slots && offsetsGroup, at: [k * stride], grid: this.software && serial ? grid : d.grid };
    });
  }
}

/** Return the first contents of a buffer. */
function filled(b) {
  return new (storage(b.dtype))(b.size).fill(b.fill);
}

/** Yield all dispatches in the order they run: in loops once per iteration, with its offsets. */
function* unrolled(p, at = [], n = 0, end = p.dispatches.length) {
  while (n < end) {
    const loop = p.loops.filter((x) => x.begin <= n && n < x.end)[at.length];
    if (loop) {
      for (let k = 0; k < loop.count; k++) yield* unrolled(p, [...at, k], n, loop.end);
      n = loop.end;
    } else {
      const d = p.dispatches[n++], offsets = [...d.offsets];
      for (const [k, m] of d.moves) offsets[k] += m.step * (at[m.depth] % m.ring);
      yield { ...d, offsets };
    }
  }
}

/** Lay out the fields, [field, its buffer], of one run: for each buffer, the range that covers all of them. */
function lay(fields) {
  const parts = new Map();
  for (const [{ offset, shape }, buffer] of fields) {
    const part = parts.get(buffer) ?? { buffer, from: Infinity, to: 0 };
    part.from = Math.min(part.from, 4 * offset);
    part.to = Math.max(part.to, 4 * (offset + prod(shape)));
    parts.set(buffer, part);
  }
  let bytes = 0;
  for (const part of parts.values()) {
    part.at = bytes;
    bytes += part.size = part.to - part.from;
  }
  const at = new Map(fields.map(([f, buffer]) => [f, parts.get(buffer).at + 4 * f.offset - parts.get(buffer).from]));
  return { fields, parts: [...parts.values()].filter((p) => p.size), bytes, at };
}

// Do runs in batches, and work between them, in order; repeat the runs after a step that was not applied. Only this file
// decides how many runs go together. tracegrad/engine/worker.py is its Python version.


const AHEAD = 3; // batches under way: one returns, one runs, one waits
const BATCH_RUNS = 64;
const BATCH_MS = 100; // browsers reset devices that seem to hang
const BATCH_BYTES = 2 ** 26; // of inputs or outputs

const answer = (x, error) => (x.work ? x.reject(error) : x.of.fail(x, error));

/**
 * A run is {of, call}: one of those that a call requests, unless `call.done`. `of`, a program, handles its runs:
 * {loaded, load, begin, finish, recover, fail}. Runs of one program share batches. `begin(run)` returns a function that
 * sets its inputs. `finish(run, outputs)` is false if neither the run nor later ones changed anything; then
 * `recover(run, outputs)` makes the session ready for the later ones. `fail(run, error)` resolves the run.
 */
class Queue {
  #host;
  #waiting = []; // runs not yet in a batch, and work
  #batches = []; // under way: {of, runs, outputs, began}
  #busy = false; // work is being done
  #reading = false;
  #landed = 0; // when the last batch's outputs arrived
  #ended;

  /** host: {session, rebuilt}; gives another session when the device is lost. */
  constructor(host) {
    this.#host = host;
  }

  /** Do `work`; return a promise of its result. */
  alone(work) {
    return new Promise((resolve, reject) => this.add([{ work, resolve, reject }]));
  }

  /** Queue runs, or work. */
  add(items) {
    for (const x of items) this.#ended ? answer(x, this.#ended) : this.#waiting.push(x);
    this.#advance();
  }

  /** Resolve everything under way, and later calls, with AbortedError. */
  end(reason) {
    this.#ended ??= fault("AbortedError", reason);
    this.#fail([]);
  }

  /** Begin as much as there is room for, and read its outputs. */
  #advance() {
    while (!this.#busy && this.#waiting.length) {
      const [first] = this.#waiting;
      if (first.call?.done) this.#waiting.shift();
      else if (first.work || !first.of.loaded) {
        if (!this.#batches.length) this.#alone(first);
        break;
      } else if (this.#batches.length < AHEAD) this.#run(first.of);
      else break;
    }
    if (this.#batches.length && !this.#reading) this.#read();
  }

  /** Do requested work, or load the program of the next runs. */
  async #alone(first) {
    this.#busy = true;
    try {
      this.#host.session.check();
      if (first.work) {
        this.#waiting.shift();
        first.resolve(await first.work());
      } else await first.of.load();
    } catch (e) {
      await this.#fail([first], e);
    }
    this.#busy = false;
    this.#advance();
  }

  /** Return the next runs of a program, as many as one batch should have. */
  #run(of) {
    const most = Math.max(1, Math.min(of.atOnce ?? 1, BATCH_RUNS, BATCH_BYTES / of.loaded.bytes) | 0);
    const runs = [], inputs = [], began = performance.now();
    while (runs.length < most && this.#waiting[0]?.of === of) {
      const run = this.#waiting.shift();
      if (run.call.done) continue; // an earlier run of the call failed
      try {
        inputs.push(of.begin(run));
        runs.push(run);
      } catch (e) {
        answer(run, e);
      }
    }
    if (!runs.length) return;
    const outputs = (async () => this.#host.session.run(of.loaded, inputs))();
    outputs.catch(() => {}); // the reader of the outputs reports the error
    this.#batches.push({ of, runs, outputs, began });
  }

  /** Take the outputs of batches under way, the oldest first. */
  async #read() {
    this.#reading = true;
    while (this.#batches.length) {
      const [{ of, runs, outputs, began }] = this.#batches;
      try {
        const results = await outputs;
        if (this.#ended) break;
        const now = performance.now();
        of.atOnce = (runs.length * BATCH_MS) / (now - Math.max(began, this.#landed));
        this.#landed = now;
        const bad = results.findIndex((x, k) => !of.finish(runs[k], x));
        if (bad >= 0) await this.#replay(of, runs, bad, results[bad]);
        else this.#batches.shift();
      } catch (e) {
        // It is unknown whether the device did these runs and later ones, so none is repeated
        await this.#fail(this.#under(), e);
      }
      this.#advance();
    }
    this.#reading = false;
  }

  /** Repeat the runs after the k-th, which was not applied. */
  async #replay(of, runs, k, outputs) {
    this.#busy = true;
    try {
      for (const later of this.#batches) await later.outputs;
      const behind = this.#under().slice(k + 1); // the rest of this batch, the oldest, and later batches
      this.#waiting.unshift(...behind);
      await of.recover(runs[k], outputs);
    } catch (e) {
      await this.#fail([runs[k], ...this.#under()], e);
    } finally {
      this.#busy = false;
    }
  }

  /** Return and forget the runs of all batches. */
  #under() {
    return this.#batches.splice(0).flatMap((x) => x.runs);
  }

  /** Resolve `items` with the error; everything, if the device is lost or this has ended. */
  async #fail(items, error) {
    const { session } = this.#host;
    if (session.lost && !this.#ended) {
      this.#busy = true;
      error = await this.#host.rebuilt(error.message);
      this.#busy = false;
      if (this.#ended) this.#host.session.destroy();
    }
    if (session.lost || this.#ended) items = [...items, ...this.#under(), ...this.#waiting.splice(0)];
    this.#waiting = this.#waiting.filter((x) => !items.includes(x));
    for (const x of items) answer(x, this.#ended ?? error);
  }
}

// A training: steps, hot values, checkpoints, forwards. queue.js decides when each is done. It runs in a worker (see
// tracegrad.js) or without one, for instance in Node. tracegrad/training and engine/steps.py are the Python versions.


const COUNT = "data.count"; // the hot value that counts the examples, for a program that draws its batch
const STATE = "state/"; // prefix of a state's path in the model
const MOST_EXAMPLES = 2 ** 24; // the most that a draw in f32 can distinguish
const HALTED = "halted"; // lets the device skip steps queued after one that was not applied

const isHyper = (f) => f.name.startsWith(HYPER);
const isGiven = (f) => !isHyper(f);
const baseName = (f) => f.name.slice(HYPER.length).replace(/^1-/, "");
const withoutUnit = (values) => [...values].filter(([name]) => name !== UNIT); // no file can set it

class Training {
  #queue = new Queue(this);
  counter = 0; // steps applied
  #begun = 0; // number of the last step begun, if all steps under way are applied
  #data = null;
  #good = null; // {bytes, step} to return to if the device is lost; null: the parameters of the seed
  #runs = 0;
  #checks; // of kernels: bytes or a URL, then a promise of the contents
  frozen = []; // names of parameters that steps do not change

  /**
   * manifest: the program.json of `train.export`. weights: the bytes of a checkpoint, or none: then the seed draws the
   * parameters. data: as for `setData`. checks: of kernels, bytes or a URL; without them no kernel is checked. gpu:
   * navigator.gpu, or Dawn's in Node.
   */
  static async open({ manifest, weights, data, checks, gpu, progress }) {
    const made = new Training(readManifest(manifest), gpu);
    try {
      made.#checks = checks;
      if (data) made.#data = made.#rows(data);
      made.#good = weights ? { bytes: weights } : null;
      await made.#open(progress);
      return made;
    } catch (e) {
      made.session?.destroy();
      throw e;
    }
  }

  /** For `open`. */
  constructor(manifest, gpu) {
    const program = manifest.train;
    Object.assign(this, { manifest, gpu, program, seed: manifest.seed });
    this.hypers = program.inputs.filter(isHyper);
    this.inputs = program.inputs.filter(isGiven);
    this.knobs = { rate: { spec: asSchedule(manifest.lr), start: null }, values: new Map(Object.entries(manifest.hyper)) };
    this.given = this.#steps(program); // takes its batch from the host
    this.drawn = this.#steps(manifest.feed); // draws it from the data
    this.forwards = mapped(manifest.forwards, (f, name) => ({ run: (inputs) => this.run(name, inputs), inputs: f.program.inputs.filter(isGiven) }));
  }

  /** Open a device, and load the program of the next steps and the last good state. */
  async #open(progress) {
    const all = [this.given, this.drawn, ...Object.values(this.manifest.forwards)];
    for (const each of all) each.loaded = null;
    this.session = await Session.open(all.map((x) => x.program).filter(Boolean), this.gpu);
    if (this.#data) this.#hold(this.#data);
    await (this.#data ? this.drawn : this.given).load(progress);
    if (this.#good) return this.#checkpoint(this.#good.bytes, "weights")();
    this.#draw();
    await this.#clear();
    this.#restart(0);
  }

  /** {bytes, step} of the last checkpoint saved or loaded, even when the device is lost; null: there was none. */
  get lastCheckpoint() {
    return this.#good?.step >= 0 ? this.#good : null;
  }

  /** Return facts about this training, as plain data. */
  get info() {
    const describe = (fields) => fields.filter(isGiven).map(({ name, dtype, shape, spec }) => ({ name, dtype, shape, spec }));
    return {
      adapter: this.session.adapter,
      title: this.manifest.title,
      seed: this.seed,
      inputs: describe(this.inputs),
      params: describe(this.program.params),
      forwards: mapped(this.forwards, (f) => ({ inputs: describe(f.inputs) })),
      hyper: Object.fromEntries(this.knobs.values),
      kernels: this.program.kernels.length,
      dispatches: (this.drawn.loaded ?? this.given.loaded).launches.length,
    };
  }

  /** Return the progress of the training. */
  get state() {
    const { counter, knobs: { rate: { spec, start } } } = this;
    return { stepCount: counter, lr: rateAt(spec, counter + 1, start ?? counter + 1) };
  }

  /** Do one training step. Never rejects for errors of executing: the result is completed, aborted or failed. */
  step(inputs) {
    return this.#call("step", 1, inputs);
  }

  /** Do `n` steps: inputs with a leading axis of length n are split. Without any inputs, steps draw from the data. */
  runSteps(n, inputs) {
    return this.#call("runSteps", n, inputs);
  }

  /**
   * Set the examples from which steps without inputs draw, on the device: {dtype, shape, data} with a leading axis of
   * any length for each input with data in the export; by name, or as the bytes of a safetensors file.
   */
  async setData(given) {
    const data = this.#rows(given), before = this.#data;
    this.#data = data;
    await this.#queue.alone(async () => this.#hold(data)).catch((e) => {
      if (this.#data === data) this.#data = before;
      throw e;
    });
  }

  /** Change the learning rate from the next call on: a number or a schedule's specification. */
  setLR(lr) {
    this.knobs = { ...this.knobs, rate: { spec: asSchedule(lr), start: null } };
  }

  /** Report a metric, such as a held-out loss, to a plateau schedule. */
  async lrMetric(value) {
    const { spec } = this.knobs.rate;
    if (spec.kind !== "plateau") throw inputError(`lrMetric: the schedule ${spec.kind} takes no metric; use plateau`);
    if (!Number.isNaN(value)) checkNumber("lrMetric", value);
    await this.#queue.alone(async () => {
      const { rate } = this.knobs;
      this.knobs = { ...this.knobs, rate: { ...rate, spec: afterMetric(rate.spec, value) } };
    });
  }

  /** Change hyperparameters from the next call on. Throw InputError, and change nothing, for a bad name or value. */
  set(hyper) {
    const names = [...new Set(this.hypers.map(baseName))].filter((n) => !["step", "seed", UNIT].includes(n));
    const { ranges, optimizer } = this.program.meta;
    const { lr, values } = readHypers(hyper, names.filter((n) => !n.includes("@")), ranges, optimizer?.options?.groups);
    if (lr !== undefined) this.setLR(lr);
    this.knobs = { ...this.knobs, values: new Map([...this.knobs.values, ...Object.entries(values)]) };
  }

  /** Freeze parameters from now on: no update, no decay. A pattern such as "backbone.*", or a list of patterns. */
  freeze(parameters) {
    return this.#leave("freeze", parameters, (named) => [...this.frozen, ...named]);
  }

  /** Train frozen parameters again. */
  unfreeze(parameters = "*") {
    return this.#leave("unfreeze", parameters, (named) => this.frozen.filter((name) => !named.includes(name)));
  }

  async #leave(what, parameters, change) {
    const { params, meta } = this.program;
    if (!meta.freeze) throw inputError(`${what}: this export has no masks; call train.unfreeze("*") in Python before train.export`);
    const named = chosen(params.filter((f) => f.spec.trainable !== false).map((f) => f.name), parameters, what);
    await this.#queue.alone(async () => this.#mask(change(named)));
  }

  /** Tell the device which parameters are frozen. */
  #mask(frozen) {
    const { meta, buffers } = this.program;
    this.frozen = [...new Set(frozen)];
    for (const [name, parts] of Object.entries(meta.freeze ?? {})) {
      const mask = new Float32Array(buffers.find((b) => b.name === name).size);
      for (const [parameter, offset, size] of parts) if (this.frozen.includes(parameter)) mask.fill(1, offset, offset + size);
      this.session.write(name, mask);
    }
  }

  /** Start over from `seed`: draw the parameters again, clear the optimizer and the step counter. */
  async reset({ params = true, optimizer = true, seed = this.seed } = {}) {
    checkType("reset: seed", seed, "count");
    const { rate } = this.knobs;
    await this.#queue.alone(async () => {
      this.seed = seed;
      if (params) this.#draw();
      if (optimizer) {
        await this.#clear();
        this.#restart(0);
        this.knobs = { ...this.knobs, rate: { spec: restarted(rate.spec), start: null } };
      }
      if (params && optimizer) this.#good = null;
    });
  }

  /** Overwrite parameters by name. Throw InputError with every problem, before anything is written. */
  async uploadParams(record, { strict = false } = {}) {
    const { params } = this.program;
    const values = checkInputs(strict ? params : params.filter((f) => Object.hasOwn(record, f.name)), record, "uploadParams: nothing was written");
    within("uploadParams: nothing was written", () => checkFinite(params, values));
    await this.#queue.alone(async () => {
      this.session.upload(this.program, params, values);
      bound(this.session, this.program);
      if (!this.counter) await this.#clear(); // averages begin at the parameters of the first step
    });
  }

  /** Return parameters by name, {dtype, shape, data} each. */
  downloadParams() {
    return this.#queue.alone(async () => Object.fromEntries(await this.session.download(this.program, this.program.params)));
  }

  /** Return states of the model by name, {dtype, shape, data} each. */
  states() {
    return this.#queue.alone(async () => Object.fromEntries(await this.session.download(this.program, this.#states)));
  }

  /** Overwrite states by name. Throw InputError with every problem, before anything is written. */
  async setStates(record, { strict = false } = {}) {
    const fields = this.#states, what = "setStates: nothing was written";
    const values = checkInputs(strict ? fields : fields.filter((f) => Object.hasOwn(record, f.name)), record, what);
    within(what, () => checkFinite(fields, values));
    await this.#queue.alone(async () => this.session.upload(this.program, fields, values));
  }

  /** Return the places of the model's states, by path. */
  get #states() {
    const own = this.program.states.filter((f) => f.name.startsWith(STATE));
    return own.map((f) => ({ ...f, name: f.name.slice(STATE.length), spec: { ...f.spec, trainable: false } })); // can be infinite
  }

  /** Return the bytes of a checkpoint, which Python's `train.load` reads. */
  saveCheckpoint() {
    const { rate, values } = this.knobs;
    return this.#queue.alone(async () => {
      const { manifest, program } = this;
      const now = await this.session.download(program, manifest.checkpoint);
      const facts = { step: this.counter, seed: this.seed, lr: rate.spec, lr_start: rate.start, hyper: Object.fromEntries(withoutUnit(values)), optimizer: program.meta.optimizer };
      if (this.frozen.length) facts.frozen = this.frozen;
      const bytes = writeSafetensors([...now], { tracegrad: "1", ...mapped(facts, (x) => JSON.stringify(x)) });
      this.#good = { bytes, step: this.counter };
      return bytes.slice();
    });
  }

  /** Resume from a checkpoint of this model, made here or in Python. Throw InputError, and change nothing, otherwise. */
  async loadCheckpoint(bytes) {
    const apply = this.#checkpoint(bytes, "loadCheckpoint: nothing was changed");
    await this.#queue.alone(async () => {
      apply();
      this.#good = { bytes: new Uint8Array(bytes.slice(0)), step: this.counter };
    });
  }

  /** Do one run of a forward; see `forwards.<name>.run`. */
  async run(name, inputs = {}) {
    const forward = this.manifest.forwards[name];
    const { program, structure } = forward;
    const run = ++this.#runs;
    const { rate, values } = this.knobs;
    const hot = { rate, values: new Map([...Object.entries(program.meta.hyper ?? {}), ...values]) };
    try {
      const arrays = checkInputs(program.inputs.filter(isGiven), inputs, `${name}.run`);
      return await this.#queue.alone(async () => {
        forward.loaded ??= await this.#right(`forwards.${name}`, program);
        const [outputs] = await this.session.run(forward.loaded, [(set) => {
          for (const f of program.inputs) if (arrays.has(f.name)) set(f, arrays.get(f.name));
          this.#upload(program.inputs.filter(isHyper), hot, run, set);
        }]);
        return { kind: "completed", output: assembled(outputs, structure), captures: named(outputs, "capture.") };
      });
    } catch (e) {
      return unfinished(e);
    }
  }

  /** Free the device. Calls under way, and later calls, are aborted. */
  destroy() {
    this.#queue.end("destroyed");
    this.session.destroy();
  }

  // --- steps ---

  #call(what, n, inputs = {}) {
    const { knobs } = this;
    const data = Object.keys(inputs).length ? null : this.#data;
    return new Promise((resolve) => {
      const settle = (e) => resolve(unfinished(e));
      try {
        if (!(Number.isInteger(n) && n > 0)) throw inputError(`${what}: n must be a whole number from 1 on, got ${n}`);
        const given = data ? new Map() : checkInputs(this.inputs, inputs, what, what === "runSteps" ? n : 0);
        const on = data ? this.drawn : this.given;
        const call = { what, n, knobs, data, given, losses: new Float32Array(n), done: false };
        call.answer = (result) => {
          call.done = true;
          resolve(result);
        };
        this.#queue.add(Array.from({ length: n }, (_, index) => ({ of: on, call, index, step: 0 })));
      } catch (e) {
        settle(e);
      }
    });
  }

  /** Return a program whose runs are steps, for the queue. A run's `step` is its number, once it has begun. */
  #steps(program) {
    const on = {
      program,
      load: (progress) => this.#load(on, progress),
      begin: (run) => {
        const { call, index } = run;
        run.step = 0;
        this.#start(call.knobs.rate, this.#begun + 1);
        run.step = ++this.#begun;
        return (set) => this.#inputs(on, call, index, run.step, set);
      },
      finish: ({ call, index, step }, outputs) => {
        if (outputs.get(HALTED).data[0]) return false;
        const { losses, n } = call;
        const [loss] = outputs.get("loss").data;
        losses[index] = loss;
        this.counter = step;
        if (index === n - 1) call.answer({ kind: "completed", loss, losses, step, aux: named(outputs, "aux."), captures: named(outputs, "capture.") });
        return true;
      },
      recover: async (run, outputs) => {
        const { call, index, step } = run;
        const { rate } = call.knobs;
        if (rate.start >= step) rate.start = null;
        const found = [];
        const done = isFinite(outputs.get("loss").data[0]) && (await this.#tried(on, call, index, step, found));
        if (!done) return call.answer(failed(await this.#refused(on, call, index, step, outputs, found)));
        this.#start(rate, step);
        this.#begun = step;
        on.finish(run, done);
      },
      fail: ({ call, step }, e) => {
        if (step) this.#begun = this.counter; // none is under way
        call.answer(unfinished(e));
      },
    };
    return on;
  }

  /** Make sure that a program can run. */
  async #load(on, progress) {
    const feeds = on === this.drawn;
    if (feeds) await this.#load(this.given, progress);
    on.loaded ??= await this.#right(feeds ? "feed" : "train", on.program, feeds ? undefined : progress, feeds ? this.given.loaded : undefined);
    on.hypers = feeds ? [...this.hypers, ...on.program.inputs] : this.hypers;
  }

  /** Load a program, and check that its kernels compute correctly. */
  async #right(name, program, progress, step) {
    const load = () => this.session.load(program, progress, step);
    return this.#checks ? loadVerified(this.session, program, name, () => (this.#checks = contents(this.#checks)), load) : load();
  }

  /** Begin a schedule at `step`, unless it has begun. Throw if it has no rate for the step. */
  #start(rate, step) {
    const start = Math.min(rate.start ?? step, step); // after a failed step, steps are repeated with lower numbers
    checkRate(rateAt(rate.spec, step, start), step);
    rate.start = start;
  }

  /** See `tried`. */
  #tried(on, call, index, step, found) {
    return tried(this.session, this.program, found, async (unit) => {
      const knobs = { ...call.knobs, values: new Map([...call.knobs.values, ...unit]) };
      return (await this.session.run(on.loaded, [(set) => this.#inputs(on, { ...call, knobs }, index, step, set)]))[0];
    });
  }

  /** Find why a step was not applied: run it once more, while `halted` still protects the old values. */
  async #refused(on, call, index, step, outputs, found) {
    const { session, program } = this;
    const look = (what, name, data) => {
      const bad = data.reduce((count, x) => count + !isFinite(x), 0);
      if (bad) found.push(`${what} ${name} (${bad} of ${data.length} values)`);
    };
    await session.run(on.loaded, [(set) => this.#inputs(on, call, index, step, (f, x) => (look("input", f.name, x), set(f, x)))]);
    const buffer = program.buffers.findIndex((b) => b.role === "grad");
    const trained = program.params.filter((f) => f.spec.trainable !== false).map((f) => ({ ...f, buffer }));
    for (const [what, fields] of [["parameter", program.params], ["gradient of", trained]]) {
      for (const [name, { data }] of await session.download(program, fields)) look(what, name, data);
    }
    this.#restart(this.counter);
    return notFinite(`${call.what}: step ${step}`, outputs.get("loss").data[0], found);
  }

  /** Replace a lost device: continue on another one from the last good state. Return the error to report. */
  async rebuilt(message) {
    const { knobs } = this;
    try {
      await this.#open();
      if (knobs.rate.start > this.counter) knobs.rate.start = null;
      this.knobs = knobs;
      return fault("DeviceLostError", `${message}. Another is set up with the last checkpoint, of step ${this.counter}: call again to go on`);
    } catch (e) {
      this.session.destroy(); // half set up: the next call tries again
      const kept = this.lastCheckpoint ? `; lastCheckpoint has that of step ${this.lastCheckpoint.step}` : "";
      return fault("DeviceLostError", `${message}, and no other can be set up: ${e.message} Reload the page and load a checkpoint${kept}`);
    }
  }

  /** Record that `counter` steps are applied and none is under way. */
  #restart(counter) {
    this.counter = this.#begun = counter;
    this.session.write(HALTED, new Int32Array(1));
  }

  // --- inputs and state ---

  /** Return checked examples: {rows: [name, values], count}. */
  #rows(given) {
    const { feed } = this.manifest;
    if (!feed) throw inputError("setData: export with examples first: train.export(path, data={...})");
    const data = ArrayBuffer.isView(given) || given instanceof ArrayBuffer ? Object.fromEntries(readSafetensors(given).tensors) : given;
    const drawn = (f) => !feed.buffers.find((b) => b.name === `data.${f.name}`).size;
    const count = data[this.inputs.find(drawn)?.name]?.shape?.[0] || 1;
    if (count > MOST_EXAMPLES) throw inputError(`setData: ${count} examples; at most ${MOST_EXAMPLES} can be`);
    const values = checkInputs(this.inputs.map((f) => (drawn(f) ? { ...f, shape: [count, ...f.shape.slice(1)] } : f)), data, "setData");
    return { rows: this.inputs.map((f) => [`data.${f.name}`, toStorage(values.get(f.name), f.dtype)]), count };
  }

  #hold({ rows }) {
    for (const [name, values] of rows) this.session.hold(name, values);
    if (this.drawn.loaded) this.session.unload(this.drawn.loaded); // its bind groups refer to the old arrays
    this.drawn.loaded = null;
  }

  /** Return the inputs of step `step`, which has this index in `call`: the call's, split or whole, and hot values. */
  #inputs(on, call, index, step, set) {
    for (const f of this.inputs) {
      const x = call.given.get(f.name);
      const size = prod(f.shape);
      if (x) set(f, toStorage(x.length > size ? x.subarray(index * size, (index + 1) * size) : x, f.dtype));
    }
    this.#upload(on.hypers, call.knobs, step, set, call.data);
  }

  /** Return the values of hyperparameters at `step`. */
  #upload(fields, { rate, values }, step, set, data) {
    const hot = { __proto__: null, step, seed: this.seed, lr: rateAt(rate.spec, step, rate.start ?? step), [COUNT]: data?.count };
    for (const f of fields) {
      const name = f.name.slice(HYPER.length);
      const value = hot[name] ?? (name.startsWith("1-") ? 1 - values.get(name.slice(2)) : values.get(name));
      set(f, [f.dtype === "f32" ? value : value | 0]);
    }
  }

  #draw() {
    const { session, program } = this, drawn = [...program.params, ...program.states.filter((f) => f.spec.init)];
    session.upload(program, drawn, draw(drawn, this.seed));
    bound(session, program);
  }

  /** Reset every optimizer array to its first values. */
  async #clear() {
    for (const b of this.program.buffers.filter((x) => x.role === "state" && x.fill !== DRAWN)) {
      this.session.write(b.name, b.fill === "params" ? new Float32Array(await this.session.read("params")) : filled(b));
    }
    this.#mask(this.frozen);
    bound(this.session, this.program);
  }

  /** Check a checkpoint against the program; return a function that loads it. */
  #checkpoint(bytes, what) {
    const { manifest: { checkpoint }, program } = this;
    const { values, step, seed, lr, lr_start: start, hyper, frozen } = within(what, () => {
      const { tensors, metadata } = readSafetensors(bytes);
      if (metadata.tracegrad !== "1") throw inputError("this is no checkpoint of tracegrad");
      const values = checkInputs(checkpoint, Object.fromEntries(tensors), "the file");
      checkFinite(program.params, values, "param/");
      const facts = readFacts(metadata, program.meta.ranges);
      if (frozenBeyond(facts.frozen, program)) throw inputError("it has frozen parameters that this export cannot freeze");
      return { values, ...facts };
    });
    const knobs = { rate: { spec: lr, start }, values: new Map([...this.knobs.values, ...withoutUnit(Object.entries(hyper))]) };
    return () => {
      this.session.upload(program, checkpoint, values);
      bound(this.session, this.program);
      Object.assign(this, { seed, knobs });
      this.#mask(frozen);
      this.#restart(step);
    };
  }
}

/** Return the contents of a file of checks; it is read only if some kernel was not checked before. */
async function contents(checks) {
  if (checks instanceof Promise) return checks;
  const bytes = typeof checks === "string" ? await fetched(checks, "arrayBuffer") : checks;
  return within("checks", () => readSafetensors(bytes));
}
const frozenBeyond = (frozen, { params, meta }) => frozen.some((name) => !meta.freeze || !params.some((f) => f.name === name && f.spec.trainable !== false));

const aborted = (reason) => ({ kind: "aborted", reason });
const failed = (error) => ({ kind: "failed", error });
/** Return the result of a call that ended with this error. */
const unfinished = (e) => (e.name === "AbortedError" ? aborted(e.message) : failed(e));

function named(outputs, prefix) {
  return Object.fromEntries([...outputs].filter(([name]) => name.startsWith(prefix)).map(([name, x]) => [name.slice(prefix.length), x]));
}

/** Return an array, or a list or record of arrays, in the forward's form. */
function assembled(outputs, structure) {
  if (!structure) return outputs.get("output");
  if (Array.isArray(structure)) return structure.map((name) => outputs.get(name));
  return mapped(structure, (name) => outputs.get(name));
}

// The worker's side: a training, and the messages that reach it.


/** Serve a training in the worker: answer the messages of `load` in tracegrad.js. */
function serve(scope) {
  let training;
  let told = null; // the last checkpoint sent to the page, which must outlive this worker
  const held = `tracegrad ${Math.random()}`; // a lock that is released when this worker ends in any way
  const granted = new Promise((resolve) => {
    const keep = () => (resolve(), new Promise(() => {}));
    scope.navigator.locks ? scope.navigator.locks.request(held, keep).catch(resolve) : resolve();
  });
  scope.onmessage = async ({ data: { id, method, args } }) => {
    try {
      let result;
      if (method === "open") {
        const progress = (done, all) => scope.postMessage({ progress: [done, all] });
        training = await Training.open({ ...args[0], progress });
        await granted;
        result = { ...training.info, held };
      } else result = await training[method](...args);
      if (result?.error) result = { ...result, error: plain(result.error) };
      const { state, lastCheckpoint } = training;
      const news = lastCheckpoint === told ? {} : { checkpoint: (told = lastCheckpoint) };
      scope.postMessage({ id, result, state, ...news }, [...new Set(buffers(result))]);
    } catch (e) {
      scope.postMessage({ id, error: plain(e) });
    }
  };
}

const plain = ({ name, message }) => ({ name, message });

function buffers(value) {
  if (ArrayBuffer.isView(value)) return [value.buffer];
  return value && typeof value === "object" ? Object.values(value).flatMap(buffers) : [];
}
// The page's side: a training in a worker, reached by messages; and functions that need no training.


export { Training, readManifest, serve };

const METHODS = "setData setLR lrMetric set freeze unfreeze reset uploadParams downloadParams states setStates saveCheckpoint loadCheckpoint".split(" ");
const ANSWERED = ["step", "runSteps"]; // always resolve to a result

/** Return {ok, adapter} or {ok: false, message}, with a message that tells what is missing and what to do. */
export async function checkWebGPU(gpu) {
  try {
    return { ok: true, adapter: adapterName(await findAdapter(gpu)) };
  } catch (e) {
    return { ok: false, message: e.message };
  }
}

/**
 * Load the training that `train.export` wrote to the folder `url`, in a worker of its own.
 *
 * `progress(done, all)` reports how many kernels are compiled. manifest, weights, data, checks, worker: the parts, if
 * they do not come from that folder. `weights: null` draws the parameters from the seed, `data: null` omits the
 * examples, `checks: null` does not check kernels.
 */
export async function load(url, { manifest, weights, data, checks, worker, progress } = {}) {
  const place = (name) => new URL(name, new URL(`${url}/`.replace(/\/+$/, "/"), globalThis.location?.href)).href;
  const part = (name, read) => fetched(place(name), read);
  manifest ??= await part("program.json", "text");
  const { feed, checked } = readManifest(manifest);
  if (checked && checks === undefined) checks = place("checks.safetensors");
  if (weights === undefined) weights = await part("weights.safetensors", "arrayBuffer");
  if (feed && data === undefined) data = await part("data.safetensors", "arrayBuffer");
  worker ??= new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const remote = new Remote(worker, progress);
  try {
    return proxy(remote, await remote.call("open", { manifest, weights, data, checks }));
  } catch (e) {
    remote.end(e.message);
    throw e;
  }
}

/** Return a function that runs one call of `fn` and queues one more; the newest wins, a displaced one is aborted. */
export function singleFlight(fn) {
  let running = false;
  let queued = null;
  const start = async ({ args, resolve }) => {
    running = true;
    try {
      resolve(await fn(...args));
    } catch (error) {
      resolve(failed(error));
    }
    running = false;
    const next = queued;
    queued = null;
    if (next) start(next);
  };
  return (...args) => new Promise((resolve) => {
    if (!running) return start({ args, resolve });
    queued?.resolve(aborted("displaced by a newer call"));
    queued = { args, resolve };
  });
}

const revived = ({ name, message }) => fault(name, message); // an error from a message

/** Calls by message; every call is resolved, also when the worker dies. */
class Remote {
  constructor(worker, progress) {
    Object.assign(this, { worker, state: {}, checkpoint: null, waiting: new Map(), next: 0 });
    worker.onmessage = ({ data }) => {
      if (data.progress) return progress?.(...data.progress);
      this.state = data.state ?? this.state;
      if (data.checkpoint !== undefined) this.checkpoint = data.checkpoint;
      const { resolve, reject } = this.waiting.get(data.id) ?? {};
      this.waiting.delete(data.id);
      if (data.error) reject?.(revived(data.error));
      else resolve?.(data.result?.error ? failed(revived(data.result.error)) : data.result);
    };
    worker.onerror = (event) => this.end(`the worker ended: ${event.message || "it could not be started"}. Reload the page`);
  }

  call(method, ...args) {
    if (this.ended) return Promise.reject(this.ended);
    return new Promise((resolve, reject) => {
      const id = this.next++;
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, method, args });
    });
  }

  /** Resolve all waiting calls, and end the worker. */
  end(reason, aborting = false) {
    if (this.ended) return;
    this.ended = fault(aborting ? "AbortedError" : "DeviceLostError", reason);
    this.worker.terminate();
    for (const { reject } of this.waiting.values()) reject(this.ended);
    this.waiting.clear();
  }
}

function proxy(remote, { held, ...info }) {
  const answer = (method, ...args) => remote.call(method, ...args).catch(unfinished);
  const train = {
    info,
    get stepCount() {
      return remote.state.stepCount ?? 0;
    },
    get lr() {
      return remote.state.lr;
    },
    get lastCheckpoint() {
      return remote.checkpoint;
    },
    destroy: () => remote.end("destroyed", true),
    forwards: mapped(info.forwards, (f, name) => ({ ...f, run: (inputs) => answer("run", name, inputs) })),
  };
  for (const method of METHODS) train[method] = (...args) => remote.call(method, ...args);
  for (const method of ANSWERED) train[method] = (...args) => answer(method, ...args);
  navigator.locks?.request(held, () => remote.end("the worker was ended. Reload the page")).catch(() => {});
  return train;
}
