// A training: steps counted when applied, hot values, checkpoints, forwards. Calls are done in order, one at a time.
// It runs in a worker (see tracegrad.js) or by itself, in Node for one. tracegrad/training.py is its Python twin.

import { checkInputs, fault, fit, prod, toStorage, typed } from "./arrays.js";
import { draw, uniform } from "./random.js";
import { readSafetensors, writeSafetensors } from "./safetensors.js";
import { asSchedule, rateAt } from "./schedules.js";
import { Session, filled } from "./session.js";

const HYPER = "hyper.";
const HALTED = "halted"; // by which the device skips what is queued behind a step that was not applied
const STEPS_AT_ONCE = 64; // in one submission
const MS_AT_ONCE = 100; // that one submission should take: browsers give up on devices that seem to hang
const BYTES_AT_ONCE = 2 ** 26; // of inputs or outputs in one submission
const BATCHES = 0x5bd1e995; // keeps the stream that draws batches apart from the one that draws parameters

const starting = (fields, prefix) => fields.filter((f) => f.name.startsWith(prefix));
const baseName = (f) => f.name.slice(HYPER.length).replace(/^1-/, "");

export class Training {
  #queue = Promise.resolve();
  #ended = "";
  #data = null;
  #runs = 0;

  /**
   * manifest: what `train.export` writes as program.json. weights: the bytes of a checkpoint, or none: the parameters
   * are then drawn from the seed. gpu: navigator.gpu, or Dawn's in Node.
   */
  static async open({ manifest, weights, gpu, progress }) {
    const forwards = Object.entries(manifest.forwards ?? {});
    const session = await Session.open([manifest.train, ...forwards.map(([, f]) => f.program)], gpu);
    try {
      const made = new Training(manifest, session, await session.load(manifest.train, progress));
      await made.#install(weights);
      return made;
    } catch (e) {
      session.destroy();
      throw e;
    }
  }

  /** For `open`. */
  constructor(manifest, session, loaded) {
    const program = manifest.train;
    Object.assign(this, { manifest, session, loaded, program, seed: manifest.seed, counter: 0 });
    this.hypers = starting(program.inputs, HYPER);
    this.inputs = program.inputs.filter((f) => !this.hypers.includes(f));
    this.states = program.states.filter((f) => f.name !== HALTED);
    this.knobs = { rate: { spec: asSchedule(manifest.lr), start: null }, values: new Map(Object.entries(manifest.hyper)) };
    const names = Object.entries(manifest.forwards ?? {}).map(([name, f]) => [name, { run: (inputs) => this.run(name, inputs), inputs: f.program.inputs }]);
    this.forwards = Object.fromEntries(names);
    const perRun = Math.max(1, loaded.inputBytes, loaded.outputBytes);
    this.most = Math.max(1, Math.min(STEPS_AT_ONCE, Math.floor(BYTES_AT_ONCE / perRun)));
    this.atOnce = 1; // steps a submission, by what the last one took
  }

  /** Facts about this training, as plain data. */
  get info() {
    const describe = (fields) => fields.filter((f) => !f.name.startsWith(HYPER)).map(({ name, dtype, shape, spec }) => ({ name, dtype, shape, spec }));
    return {
      adapter: this.session.adapter,
      title: this.manifest.title,
      seed: this.seed,
      inputs: describe(this.inputs),
      params: describe(this.program.params),
      forwards: Object.fromEntries(Object.entries(this.forwards).map(([name, f]) => [name, { inputs: describe(f.inputs) }])),
      hyper: Object.fromEntries(this.knobs.values),
      kernels: this.program.kernels.length,
      dispatches: this.program.dispatches.length,
    };
  }

  /** Where the training stands. */
  get state() {
    return { stepCount: this.counter, lr: rateAt(this.knobs.rate.spec, this.counter + 1, this.knobs.rate.start ?? this.counter + 1) };
  }

  /** One training step. Never rejects for what happens while executing: the result is completed, aborted or failed. */
  step(inputs) {
    return this.#steps("step", 1, inputs);
  }

  /** `n` steps: inputs with a leading axis of length n are split. Those that are not given come from `setData`. */
  runSteps(n, inputs) {
    return this.#steps("runSteps", n, inputs);
  }

  /**
   * Rows from which steps draw their batches: {dtype, shape, data} with a leading axis of examples, or of an input's
   * own shape; by name, or as the bytes of a safetensors file.
   */
  setData(given) {
    const data = ArrayBuffer.isView(given) || given instanceof ArrayBuffer ? Object.fromEntries(readSafetensors(given).tensors) : given;
    const rows = new Map();
    let count = 0;
    for (const [name, value] of Object.entries(data)) {
      const f = this.inputs.find((x) => x.name === name);
      if (!f) throw fault("InputError", `setData: ${name}: unknown; inputs are ${this.inputs.map((x) => `${x.name} ${typed(x)}`).join(", ")}`);
      const row = f.shape.slice(1);
      const whole = String(value.shape) === String(f.shape);
      const values = fit(whole ? f : { ...f, shape: [value.data.length / prod(row), ...row] }, value);
      if (!whole && count && count !== value.shape[0]) throw fault("InputError", `setData: ${name} has ${value.shape[0]} rows, others have ${count}`);
      if (!whole) count = value.shape[0];
      rows.set(name, { values, whole, size: prod(row) });
    }
    this.#data = { rows, count };
  }

  /** Change the learning rate from the next call on: a number or a schedule's specification. */
  setLR(lr) {
    this.knobs = { ...this.knobs, rate: { spec: asSchedule(lr), start: null } };
  }

  /** Change hyperparameters from the next call on; nothing is changed if any name is unknown. */
  set(hyper) {
    const names = [...new Set(this.hypers.map(baseName))].filter((n) => n !== "step" && n !== "seed");
    const unknown = Object.keys(hyper).filter((n) => !names.includes(n));
    if (unknown.length) throw fault("InputError", `set: ${unknown.join(", ")}: not a value of this program; what can be set is ${names.join(", ")}`);
    for (const [name, value] of Object.entries(hyper)) {
      if (name !== "lr" && !Number.isFinite(value)) throw fault("InputError", `set: ${name} must be a finite number, got ${value}`);
    }
    const { lr, ...values } = hyper;
    if (lr !== undefined) this.setLR(lr);
    this.knobs = { ...this.knobs, values: new Map([...this.knobs.values, ...Object.entries(values)]) };
  }

  /** Start over from the same seed: draw the parameters again, clear the optimizer and the step counter. */
  reset({ params = true, optimizer = true } = {}) {
    const { rate } = this.knobs;
    return this.#serial(async () => {
      if (params) this.#draw();
      if (optimizer) {
        await this.#clear();
        this.counter = 0;
        rate.start = null;
      }
    });
  }

  /** Overwrite parameters by name. InputError naming every problem; nothing was written then. */
  uploadParams(record, { strict = false } = {}) {
    const { params } = this.program;
    const values = checkInputs(strict ? params : params.filter((f) => Object.hasOwn(record, f.name)), record, "uploadParams: nothing was written");
    return this.#serial(() => this.session.upload(this.program, params, values));
  }

  /** Parameters by name, {dtype, shape, data} each. */
  downloadParams() {
    return this.#serial(async () => Object.fromEntries(await this.session.download(this.program, this.program.params)));
  }

  /** The bytes of a checkpoint, which Python's `train.load` reads. */
  saveCheckpoint() {
    const { rate, values } = this.knobs;
    return this.#serial(async () => {
      const { program, session } = this;
      const params = await session.download(program, program.params);
      const tensors = program.params.map((f) => [`param/${f.name}`, stored(params.get(f.name))]);
      const states = await session.download(program, this.states);
      for (const f of this.states) {
        const { data } = states.get(f.name);
        for (const [name, part] of this.#parts(f)) {
          tensors.push([name, { shape: part.shape, data: data.subarray(part.offset, part.offset + prod(part.shape)) }]);
        }
      }
      const facts = { step: this.counter, seed: this.seed, lr: rate.spec, lr_start: rate.start, hyper: Object.fromEntries(values), optimizer: program.meta.optimizer };
      return writeSafetensors(tensors, { tracegrad: "1", ...Object.fromEntries(Object.entries(facts).map(([k, v]) => [k, JSON.stringify(v)])) });
    });
  }

  /** Resume from a checkpoint of this model, saved here or by Python. InputError if it is none; nothing changed then. */
  async loadCheckpoint(bytes) {
    const apply = this.#checkpoint(bytes);
    await this.#serial(apply);
  }

  /** One run of a forward; see `forwards.<name>.run`. */
  run(name, inputs = {}) {
    const forward = this.manifest.forwards[name];
    const run = ++this.#runs;
    const { knobs } = this;
    return this.#answer(async () => {
      const { program, structure } = forward;
      const hypers = starting(program.inputs, HYPER);
      const values = checkInputs(program.inputs.filter((f) => !hypers.includes(f)), inputs, `${name}.run`);
      return () => this.#serial(async () => {
        forward.loaded ??= await this.session.load(program);
        const rate = { ...knobs.rate };
        const hot = { rate, values: new Map([...Object.entries(program.meta.hyper ?? {}), ...knobs.values]) };
        const [outputs] = await this.session.run(forward.loaded, 1, (_, set) => {
          for (const [key, x] of values) set(key, x);
          this.#upload(hypers, hot, run, set);
        });
        return { kind: "completed", output: assembled(outputs, structure), captures: named(outputs, "capture.") };
      });
    });
  }

  /** Free the device. What is under way, and every later call, is aborted. */
  destroy() {
    this.#ended ||= "destroyed";
    this.session.destroy();
  }

  #steps(what, n, inputs = {}) {
    const { knobs } = this;
    return this.#answer(async () => {
      if (!(Number.isInteger(n) && n > 0)) throw fault("InputError", `${what}: n must be a whole number from 1 on, got ${n}`);
      const drawn = this.#data;
      const fields = this.inputs.filter((f) => !drawn?.rows.has(f.name) || Object.hasOwn(inputs, f.name));
      const given = checkInputs(fields, inputs, what, what === "runSteps" ? n : 0);
      return () => this.#serial(() => this.#apply(what, n, given, drawn, knobs));
    });
  }

  async #apply(what, n, given, drawn, knobs) {
    const losses = new Float32Array(n);
    let last;
    for (let done = 0, count; done < n; done += count) {
      count = Math.min(this.atOnce, n - done);
      const before = this.counter;
      const began = performance.now();
      const results = await this.session.run(this.loaded, count, (k, set) => {
        this.#batch(given, drawn, done + k, before + k, set);
        this.#upload(this.hypers, knobs, before + k + 1, set);
      });
      this.atOnce = Math.max(1, Math.min(this.most, Math.floor((count * MS_AT_ONCE) / (performance.now() - began))));
      for (const outputs of results) {
        const loss = outputs.get("loss").data[0];
        if (outputs.get(HALTED).data[0]) return this.#refused(what, loss, knobs);
        losses[this.counter - before + done] = loss;
        this.counter += 1;
        last = outputs;
      }
      if (this.#ended) throw fault("AbortedError", this.#ended);
    }
    return { kind: "completed", loss: losses[n - 1], losses, step: this.counter, aux: named(last, "aux."), captures: named(last, "capture.") };
  }

  /** The step behind the counter was not finite: it and those queued behind it changed nothing. */
  #refused(what, loss, knobs) {
    const step = this.counter + 1;
    if (knobs.rate.start >= step) knobs.rate.start = null;
    this.session.write(HALTED, new Int32Array(1));
    const why = Number.isFinite(loss) ? `the loss is ${loss}, but a gradient is not finite` : `the loss is ${loss}`;
    return failed(fault("NonFiniteError", `${what}: step ${step}: ${why}; nothing was changed by it. Those before it were applied`));
  }

  /** The inputs of one step: given for all, the k-th of those given, or rows drawn from the data. */
  #batch(given, drawn, k, step, set) {
    for (const f of this.inputs) {
      const size = prod(f.shape);
      const x = given.get(f.name);
      if (x) {
        set(f.name, toStorage(x.length > size ? x.subarray(k * size, (k + 1) * size) : x, f.dtype));
        continue;
      }
      const { values, whole, size: row } = drawn.rows.get(f.name);
      if (whole) {
        set(f.name, toStorage(values, f.dtype));
        continue;
      }
      const out = new values.constructor(size);
      for (let i = 0; i < f.shape[0]; i++) {
        const at = Math.floor(uniform(this.seed ^ BATCHES, step * f.shape[0] + i) * drawn.count) * row;
        out.set(values.subarray(at, at + row), i * row);
      }
      set(f.name, toStorage(out, f.dtype));
    }
  }

  /** The values of hyperparameters at `step`; the first step under a learning rate fixes where its schedule begins. */
  #upload(fields, { rate, values }, step, set) {
    for (const f of fields) {
      const name = f.name.slice(HYPER.length);
      let value;
      if (name === "step") value = step;
      else if (name === "seed") value = this.seed;
      else if (name === "lr") value = rateAt(rate.spec, step, (rate.start ??= step));
      else value = name.startsWith("1-") ? 1 - values.get(name.slice(2)) : values.get(name);
      set(f.name, [f.dtype === "f32" ? value : value | 0]);
    }
  }

  async #install(weights) {
    if (weights) return this.#checkpoint(weights)();
    this.#draw();
    return this.#clear();
  }

  #draw() {
    const { params } = this.program;
    const values = draw(params, this.seed);
    this.session.upload(this.program, params, new Map(params.map((f, k) => [f.name, values[k]])));
  }

  /** Every optimizer array as it was at first. */
  async #clear() {
    for (const b of this.program.buffers.filter((x) => x.role === "state")) {
      this.session.write(b.name, b.fill === "params" ? new Float32Array(await this.session.read("params")) : filled(b));
    }
  }

  /** The tensors of one state: a slice for each trainable parameter if it has their layout, else itself. */
  #parts(state) {
    const trainable = this.program.params.filter((f) => f.spec.trainable !== false && f.dtype === "f32");
    const size = trainable.reduce((sum, f) => sum + prod(f.shape), 0);
    if (state.dtype !== "f32" || !trainable.length || prod(state.shape) !== size) return [[`opt/${state.name}`, state]];
    return trainable.map((f) => [`opt/${state.name}/${f.name}`, f]);
  }

  /** Check a checkpoint against the program; a function that takes it over. */
  #checkpoint(bytes) {
    const { tensors, metadata } = readSafetensors(bytes);
    if (metadata.tracegrad !== "1") throw fault("InputError", "loadCheckpoint: this is no checkpoint of tracegrad");
    const problems = [];
    const take = (name, f) => {
      const x = tensors.get(name);
      tensors.delete(name);
      if (!x) problems.push(`${name}: missing, expected ${typed(f)}`);
      else if (String(x.shape) !== String(f.shape) || (x.dtype === "F32") !== (f.dtype === "f32")) problems.push(`${name}: expected ${typed(f)}, got ${x.dtype}[${x.shape}]`);
      return x?.data;
    };
    const { program, session } = this;
    const writes = program.params.map((f) => [program.buffers[f.buffer].name, take(`param/${f.name}`, f), f.offset]);
    for (const f of this.states) for (const [name, part] of this.#parts(f)) writes.push([f.name, take(name, part), part.offset]);
    for (const name of tensors.keys()) problems.push(`${name}: not in this training`);
    if (problems.length) throw fault("InputError", ["loadCheckpoint: the file does not fit; nothing was changed", ...problems.slice(0, 12)].join("\n  "));
    const facts = Object.fromEntries(["step", "seed", "lr", "lr_start", "hyper"].map((k) => [k, JSON.parse(metadata[k] ?? "null")]));
    const knobs = { rate: { spec: asSchedule(facts.lr), start: facts.lr_start }, values: new Map([...this.knobs.values, ...Object.entries(facts.hyper ?? {})]) };
    if (!(facts.step >= 0 && facts.seed >= 0)) throw fault("InputError", "loadCheckpoint: the metadata are damaged");
    return async () => {
      for (const [name, data, at] of writes) session.write(name, data, at);
      session.write(HALTED, new Int32Array(1));
      Object.assign(this, { counter: facts.step, seed: facts.seed, knobs });
    };
  }

  /** Run `fn` when everything called before is done. */
  #serial(fn) {
    const result = this.#queue.then(() => {
      if (this.#ended) throw fault("AbortedError", this.#ended);
      this.session.check();
      return fn();
    });
    this.#queue = result.catch(() => {});
    return result;
  }

  /** What `prepare` gives, run; errors become results. */
  async #answer(prepare) {
    try {
      return await (await prepare())();
    } catch (e) {
      return this.#ended ? aborted(this.#ended) : failed(e);
    }
  }
}

export const aborted = (reason) => ({ kind: "aborted", reason });
export const failed = (error) => ({ kind: "failed", error });

function named(outputs, prefix) {
  return Object.fromEntries([...outputs].filter(([name]) => name.startsWith(prefix)).map(([name, x]) => [name.slice(prefix.length), x]));
}

/** An array, or a list or record of them, as the forward returned it. */
function assembled(outputs, structure) {
  if (!structure) return outputs.get("output");
  if (Array.isArray(structure)) return structure.map((name) => outputs.get(name));
  return Object.fromEntries(Object.entries(structure).map(([key, name]) => [key, outputs.get(name)]));
}

function stored({ shape, dtype, data }) {
  return { shape, data: toStorage(data, dtype) };
}
