// A WebGPU device with named, persistent buffers, and the Programs loaded into it: one pass a step, one submission for
// any number of steps. tracegrad/runtime/base.py has the meaning; the native runtime executes the same Programs.

import { fault, fromStorage, prod, toStorage } from "./arrays.js";

const MAP_READ = 1, COPY_SRC = 4, COPY_DST = 8, UNIFORM = 64, STORAGE = 128, COMPUTE = 4; // GPUBufferUsage, GPUShaderStage
const ALIGN = 256; // of offsets into a uniform buffer: what every device accepts
const PERSISTENT = ["param", "grad", "state"];

const LIMITS = [
  ["maxBufferSize", (p) => Math.max(p.needs.buffer_bytes, ...p.buffers.map((b) => 4 * b.size)), "bytes in one buffer"],
  ["maxStorageBufferBindingSize", (p) => Math.max(p.needs.binding_bytes, ...p.buffers.map((b) => 4 * b.size)), "bytes in one binding"],
  ["maxStorageBuffersPerShaderStage", (p) => p.needs.storage_buffers, "arrays in one kernel"],
  ["maxComputeWorkgroupStorageSize", (p) => p.needs.workgroup_memory, "bytes of workgroup memory"],
  ["maxComputeWorkgroupsPerDimension", (p) => Math.max(1, ...p.dispatches.flatMap((d) => d.grid)), "workgroups in one dimension"],
];

export const NO_WEBGPU = "This browser does not offer WebGPU. Chrome or Edge 113, Firefox 141 and Safari 26, or newer, "
  + "do; on Linux it may have to be switched on at chrome://flags/#enable-unsafe-webgpu. Pages must come from https, "
  + "localhost or a file.";
export const NO_ADAPTER = "This browser knows WebGPU but found no graphics adapter that it trusts. Update the graphics "
  + "driver, or allow hardware acceleration in the browser's settings; chrome://gpu says more.";

/** The adapter, or a DeviceError in plain words. */
export async function findAdapter(gpu = globalThis.navigator?.gpu) {
  if (!gpu) throw fault("DeviceError", NO_WEBGPU);
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw fault("DeviceError", NO_ADAPTER);
  return adapter;
}

/** What to call an adapter in front of people. */
export function adapterName({ info }) {
  return info?.description || [info?.vendor, info?.architecture, info?.device].filter(Boolean).join(" ") || "WebGPU";
}

/** Does it run on a CPU? */
export function isSoftware({ info }) {
  const words = [info?.vendor, info?.architecture, info?.device, info?.description].join(" ");
  return Boolean(info?.isFallbackAdapter) || /swiftshader|llvmpipe|lavapipe|basic render/i.test(words);
}

/** The same program without barriers, which are ruinous there: the same sums, bit for bit. */
function withoutBarriers(program) {
  const { kernels, dispatches } = program;
  return {
    ...program,
    kernels: kernels.map((k) => (k.serial_wgsl ? { ...k, wgsl: k.serial_wgsl } : k)),
    dispatches: dispatches.map((d) => (kernels[d.kernel].serial_wgsl ? { ...d, grid: kernels[d.kernel].serial_grid } : d)),
  };
}

/** The limits that `programs` need; DeviceError naming what `limits` lack. */
export function demand(programs, limits, name) {
  const needed = {};
  for (const [limit, need, what] of LIMITS) {
    const most = Math.max(...programs.map(need));
    if (most > limits[limit]) throw fault("DeviceError", `the program needs ${most} ${what}; ${name} allows ${limits[limit]} (${limit})`);
    needed[limit] = most;
  }
  return needed;
}

export class Session {
  /** A device large enough for all `programs`, or as large as there is; DeviceError naming what it lacks. */
  static async open(programs, gpu) {
    const adapter = await findAdapter(gpu);
    const most = () => Object.fromEntries(LIMITS.map(([limit]) => [limit, adapter.limits[limit]]));
    const requiredLimits = programs ? demand(programs, adapter.limits, adapterName(adapter)) : most();
    return new Session(await adapter.requestDevice({ requiredLimits }), adapterName(adapter), isSoftware(adapter));
  }

  constructor(device, adapter, software) {
    Object.assign(this, { device, adapter, software, lost: "", error: "", arrays: new Map(), layouts: new Map(), pipelines: new Map() });
    device.lost.then((info) => (this.lost ||= info.message || info.reason || "lost"));
    device.onuncapturederror = (event) => {
      event.preventDefault();
      this.error ||= event.error.message;
    };
  }

  /** Allocate, and compile every kernel in parallel; `progress(done, all)`. CompileError naming a kernel refused. */
  async load(program, progress = () => {}) {
    if (this.software) program = withoutBarriers(program);
    this.device.pushErrorScope("out-of-memory");
    const buffers = program.buffers.map((b) => this.#array(b));
    const [memory, pipelines] = [this.device.popErrorScope(), await this.#pipelines(program.kernels, progress)];
    if (await memory) throw fault("DeviceError", `out of memory: ${(await memory).message}`);
    const hosts = this.#hosts(program, buffers);
    const outputs = planOutputs(program, buffers);
    const launches = this.#launches(program, buffers, pipelines);
    this.check();
    return { program, buffers, ...hosts, ...outputs, launches };
  }

  /** Throws if the device is gone or has refused something. */
  check() {
    if (this.lost) throw fault("DeviceLostError", `the device was lost: ${this.lost}. Reload the page and load a checkpoint to go on`);
    const { error } = this;
    this.error = "";
    if (error) throw fault("DeviceError", error);
  }

  /**
   * `n` runs in one submission. `fill(k, set)` gives the inputs of the k-th by `set(name, values)`.
   * Resolves to an array of n Maps of outputs by name.
   */
  async run(loaded, n, fill) {
    this.check();
    const { device } = this;
    const { inputBytes, outputBytes, hosts, program } = loaded;
    const upload = new ArrayBuffer(n * inputBytes);
    for (let k = 0; k < n; k++) {
      fill(k, (name, values) => {
        const { at, ints } = loaded.places.get(name);
        new (ints ? Int32Array : Float32Array)(upload, k * inputBytes + at, values.length).set(values);
      });
    }
    const encoder = device.createCommandEncoder();
    if (n === 1) for (const h of hosts) device.queue.writeBuffer(h.buffer, 0, upload, h.at, h.size);
    else device.queue.writeBuffer(this.#grown(loaded, "staging", upload.byteLength, COPY_SRC | COPY_DST), 0, upload);
    const slot = this.#grown(loaded, "slot", Math.max(4, n * outputBytes), MAP_READ | COPY_DST);
    for (let k = 0; k < n; k++) {
      if (n > 1) for (const h of hosts) encoder.copyBufferToBuffer(loaded.staging, k * inputBytes + h.at, h.buffer, 0, h.size);
      const pass = encoder.beginComputePass();
      let bound;
      for (const { pipeline, group, offsets, at, grid } of loaded.launches) {
        if (pipeline !== bound) pass.setPipeline((bound = pipeline));
        pass.setBindGroup(0, group);
        if (offsets) pass.setBindGroup(1, offsets, at);
        pass.dispatchWorkgroups(grid[0], grid[1]);
      }
      pass.end();
      for (const [a, b] of program.copies) encoder.copyBufferToBuffer(loaded.buffers[a], 0, loaded.buffers[b], 0, loaded.buffers[a].size);
      for (const c of loaded.copies) encoder.copyBufferToBuffer(c.buffer, c.from, slot, k * outputBytes + c.to, c.size);
    }
    device.queue.submit([encoder.finish()]);
    const bytes = await this.#mapped(slot, n * outputBytes);
    return Array.from({ length: n }, (_, k) => new Map(program.outputs.map((f) =>
      [f.name, fromStorage(bytes, k * outputBytes + loaded.outputAt.get(f.name), f)])));
  }

  /** A copy of a persistent buffer's bytes, after everything queued so far. */
  async read(name) {
    this.check();
    const source = this.arrays.get(name);
    const target = this.device.createBuffer({ size: source.size, usage: MAP_READ | COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(source, 0, target, 0, source.size);
    this.device.queue.submit([encoder.finish()]);
    try {
      return await this.#mapped(target, source.size);
    } finally {
      target.destroy();
    }
  }

  /** Overwrite part of a persistent buffer, from element `at` on. */
  write(name, values, at = 0) {
    if (values.length) this.device.queue.writeBuffer(this.arrays.get(name), 4 * at, values);
  }

  /** The values of `fields` by name. */
  async download(program, fields) {
    const bytes = new Map();
    for (const f of fields) if (!bytes.has(f.buffer)) bytes.set(f.buffer, await this.read(program.buffers[f.buffer].name));
    return new Map(fields.map((f) => [f.name, fromStorage(bytes.get(f.buffer), 4 * f.offset, f)]));
  }

  /** Write `values`, a Map by field name, to where `fields` lie. */
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
      await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, 100))]); // says why
      this.check();
      throw fault("DeviceError", e.message);
    }
    const bytes = buffer.getMappedRange(0, size).slice(0);
    buffer.unmap();
    this.check();
    return bytes;
  }

  #buffer(size, usage) {
    return this.device.createBuffer({ size: Math.max(size, 4), usage });
  }

  /** A buffer of `loaded` that grows with the number of steps a submission. */
  #grown(loaded, name, size, usage) {
    const had = loaded[name]?.size ?? 0;
    if (had < size) {
      loaded[name]?.destroy();
      loaded[name] = this.#buffer(had ? Math.max(size, Math.min(2 * had, this.device.limits.maxBufferSize)) : size, usage);
    }
    return loaded[name];
  }

  #array(b) {
    const shared = PERSISTENT.includes(b.role);
    const found = shared && this.arrays.get(b.name);
    if (found) return found;
    const made = this.#buffer(4 * b.size, STORAGE | COPY_SRC | COPY_DST);
    if (shared) this.arrays.set(b.name, made);
    if (b.role === "const") this.device.queue.writeBuffer(made, 0, Uint8Array.from(atob(b.data), (c) => c.charCodeAt(0)));
    else if (shared && typeof b.fill === "number" && b.fill) this.device.queue.writeBuffer(made, 0, filled(b));
    return made;
  }

  #layout(kinds) {
    const key = kinds.join();
    if (!this.layouts.has(key)) {
      const entries = kinds.map((type, binding) => ({ binding, visibility: COMPUTE, buffer: { type, hasDynamicOffset: type === "uniform" } }));
      this.layouts.set(key, this.device.createBindGroupLayout({ entries }));
    }
    return this.layouts.get(key);
  }

  #pipelines(kernels, progress) {
    let done = 0;
    return Promise.all(kernels.map(async (kernel) => {
      const found = await this.#pipeline(kernel);
      progress(++done, kernels.length);
      return found;
    }));
  }

  #pipeline(kernel) {
    const layout = this.#layout(kernel.bindings.map((b) => (b.written ? "storage" : "read-only-storage")));
    const layouts = kernel.slots ? [layout, this.#layout(["uniform"])] : [layout];
    const key = `${kernel.bindings.map((b) => +b.written)} ${kernel.slots > 0} ${kernel.wgsl}`;
    if (!this.pipelines.has(key)) {
      const { device } = this;
      const made = device.createComputePipelineAsync({
        label: kernel.label,
        layout: device.createPipelineLayout({ bindGroupLayouts: layouts }),
        compute: { module: device.createShaderModule({ label: kernel.label, code: kernel.wgsl }), entryPoint: "main" },
      });
      this.pipelines.set(key, made.then((pipeline) => ({ pipeline, layout }), (e) => {
        if (this.lost) this.check();
        throw fault("CompileError", `kernel ${kernel.label} was refused by the device: ${e.message}`);
      }));
    }
    return this.pipelines.get(key);
  }

  /** Where each input lies among the bytes of one run, and which part goes to which buffer. */
  #hosts(program, buffers) {
    const hosts = new Map();
    let inputBytes = 0;
    for (const f of program.inputs) {
      if (hosts.has(f.buffer)) continue;
      const size = 4 * program.buffers[f.buffer].size;
      hosts.set(f.buffer, { buffer: buffers[f.buffer], at: inputBytes, size });
      inputBytes += size;
    }
    const places = new Map(program.inputs.map((f) => [f.name, { at: hosts.get(f.buffer).at + 4 * f.offset, ints: f.dtype !== "f32" }]));
    return { hosts: [...hosts.values()], inputBytes, places };
  }

  /** Every dispatch with its pipeline and bind groups; equal groups are one, equal offsets lie once. */
  #launches(program, buffers, pipelines) {
    const { device } = this;
    const span = 16 * Math.max(0, ...program.kernels.map((k) => Math.ceil(k.slots / 4)));
    const stride = ALIGN * Math.ceil(span / ALIGN);
    const rows = new Map();
    for (const d of program.dispatches) if (d.offsets.length && !rows.has(`${d.offsets}`)) rows.set(`${d.offsets}`, { at: stride * rows.size, offsets: d.offsets });
    let offsetsGroup;
    if (rows.size) {
      const table = new Int32Array((rows.size * stride) / 4);
      for (const { at, offsets } of rows.values()) table.set(offsets, at / 4);
      const buffer = this.#buffer(table.byteLength, UNIFORM | COPY_DST);
      device.queue.writeBuffer(buffer, 0, table);
      offsetsGroup = device.createBindGroup({ layout: this.#layout(["uniform"]), entries: [{ binding: 0, resource: { buffer, size: span } }] });
    }
    const groups = new Map();
    return program.dispatches.filter((d) => d.grid[0] && d.grid[1]).map((d) => {
      const { pipeline, layout } = pipelines[d.kernel];
      const known = groups.get(layout) ?? groups.set(layout, new Map()).get(layout);
      if (!known.has(`${d.buffers}`)) {
        known.set(`${d.buffers}`, device.createBindGroup({ layout, entries: d.buffers.map((id, binding) => ({ binding, resource: { buffer: buffers[id] } })) }));
      }
      const offsets = program.kernels[d.kernel].slots ? offsetsGroup : undefined;
      return { pipeline, group: known.get(`${d.buffers}`), offsets, at: [rows.get(`${d.offsets}`)?.at ?? 0], grid: d.grid };
    });
  }
}

/** The first contents of a buffer. */
export function filled(b) {
  return new (b.dtype === "f32" ? Float32Array : Int32Array)(b.size).fill(b.fill);
}

/** Where each output lies among the bytes of one run, and the copies that bring it there; neighbours in one copy. */
function planOutputs(program, buffers) {
  const copies = [];
  const outputAt = new Map();
  let outputBytes = 0;
  const inOrder = [...program.outputs].sort((a, b) => a.buffer - b.buffer || a.offset - b.offset);
  for (const f of inOrder) {
    const from = 4 * f.offset, size = 4 * prod(f.shape), last = copies.at(-1);
    if (last && last.buffer === buffers[f.buffer] && from <= last.from + last.size) {
      last.size = Math.max(last.size, from + size - last.from);
    } else copies.push({ buffer: buffers[f.buffer], from, to: outputBytes, size });
    const { from: first, to, size: whole } = copies.at(-1);
    outputAt.set(f.name, to + from - first);
    outputBytes = to + whole;
  }
  return { copies: copies.filter((c) => c.size), outputAt, outputBytes };
}
