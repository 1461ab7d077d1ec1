// A WebGPU device with named, persistent buffers, and the Programs loaded into it: one pass a step, one submission for
// any number of steps. See tracegrad/runtime/base.py; the native runtime executes the same Programs.
// A buffer of role "data" holds examples: `hold` sets its size, whatever the Program says.

import { fromStorage } from "./arrays.js";
import { F16, LIMITS, PERSISTENT, demand, fault, prod, storage } from "./checks.js";

const MAP_READ = 1, COPY_SRC = 4, COPY_DST = 8, UNIFORM = 64, STORAGE = 128, COMPUTE = 4; // GPUBufferUsage, GPUShaderStage
const ANSWER = 30_000; // ms that the browser has to give an adapter or a device; a cold driver took seconds
const ALIGN = 256; // of offsets into a uniform buffer, accepted by every device

const deviceError = (message) => fault("DeviceError", message);

const NO_WEBGPU = "This browser does not offer WebGPU; Chrome or Edge from 113, Firefox from 141 and Safari from 26 do. "
  + "On Linux, see chrome://flags/#enable-unsafe-webgpu. Pages must come from https, localhost or a file.";
const NO_ADAPTER = "This browser found no graphics adapter for WebGPU: update its driver, or allow hardware acceleration in its settings; chrome://gpu says more.";

/** Return what a promise of the browser gives. Throw a DeviceError if it does not answer, as with a driver that hangs. */
async function answered(asked, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => {
      asked.then((x) => x?.destroy?.(), () => {}); // a device that comes later is not used
      reject(deviceError(`This browser did not answer within ${ANSWER / 1000} s when asked for ${what}: its graphics driver may hang. Close other tabs, or restart the browser.`));
    }, ANSWER);
  });
  return Promise.race([asked, late]).finally(() => clearTimeout(timer));
}

/** Return the adapter, or throw a DeviceError in plain words. */
export async function findAdapter(gpu = globalThis.navigator?.gpu) {
  if (!gpu) throw deviceError(NO_WEBGPU);
  const adapter = await answered(gpu.requestAdapter({ powerPreference: "high-performance" }), "a graphics adapter");
  if (!adapter) throw deviceError(NO_ADAPTER);
  return adapter;
}

const words = (info) => [info?.vendor, info?.architecture, info?.device].filter(Boolean).join(" ");

/** Return an adapter's name for users. */
export function adapterName({ info }) {
  return info?.description || words(info) || "WebGPU";
}

/** Return whether an adapter runs on a CPU. */
function isSoftware({ info }) {
  return info?.isFallbackAdapter || /swiftshader|llvmpipe|basic render/i.test(words(info) + info?.description);
}

export class Session {
  /** Open a device with the largest limits. Throw a DeviceError naming what it lacks for `programs`. */
  static async open(programs, gpu) {
    const adapter = await findAdapter(gpu);
    demand(programs, adapter, adapterName(adapter));
    const requiredLimits = Object.fromEntries(Object.keys(LIMITS).map((k) => [k, adapter.limits[k]]));
    const asked = adapter.requestDevice({ requiredLimits, requiredFeatures: [F16].filter((f) => adapter.features.has(f)) });
    return new Session(await answered(asked, "a device"), adapter);
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
      // A device can be lost between the two
      const bytes = buffer.getMappedRange(0, size).slice(0);
      buffer.unmap();
      this.check();
      return bytes;
    } catch (e) {
      await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, 100))]); // gives the reason
      this.check();
      throw deviceError(e.message);
    }
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
    const made = this.#buffer((b.dtype === "f16" ? 2 : 4) * b.size, STORAGE | COPY_SRC | COPY_DST);
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

/** Return the same values as the 32 bits of device memory. */
export function toStorage(values, dtype) {
  return dtype === "u32" ? new Int32Array(values.buffer, values.byteOffset, values.length) : values;
}

/** Return the first contents of a buffer. */
export function filled(b) {
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
