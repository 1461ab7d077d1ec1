// A training: steps, hot values, checkpoints, forwards. queue.js decides when each is done. It runs in a worker (see
// tracegrad.js) or without one, for instance in Node. tracegrad/training and engine/steps.py are the Python versions.

import { checkInputs, toStorage } from "./arrays.js";
import { HYPER, asSchedule, checkFinite, checkNumber, checkType, chosen, checkRate, fault, inputError, mapped, prod, readFacts, readHypers, within } from "./checks.js";
import { readManifest } from "./manifest.js";
import { draw } from "./random.js";
import { Queue } from "./queue.js";
import { readSafetensors, writeSafetensors } from "./safetensors.js";
import { afterMetric, rateAt, restarted } from "./schedules.js";
import { Session, filled } from "./session.js";
import { DRAWN, UNIT, bound, notFinite, tried } from "./trial.js";
import { loadVerified } from "./verify.js";

const COUNT = "data.count"; // the hot value that counts the examples, for a program that draws its batch
const STATE = "state/"; // prefix of a state's path in the model
const MOST_EXAMPLES = 2 ** 24; // the most that a draw in f32 can distinguish
const HALTED = "halted"; // lets the device skip steps queued after one that was not applied

const isHyper = (f) => f.name.startsWith(HYPER);
const isGiven = (f) => !isHyper(f);
const baseName = (f) => f.name.slice(HYPER.length).replace(/^1-/, "");
const withoutUnit = (values) => [...values].filter(([name]) => name !== UNIT); // no file can set it

export class Training {
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
        if (!(Number.isInteger(n) && n > 0)) throw inputError(`${what}: n must be an integer of at least 1, got ${n}`);
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
      return fault("DeviceLostError", `${message}. A new device continues from the last checkpoint, step ${this.counter}: call again to go on`);
    } catch (e) {
      this.session.destroy(); // half set up: the next call tries again
      const kept = this.lastCheckpoint ? `; lastCheckpoint has that of step ${this.lastCheckpoint.step}` : "";
      return fault("DeviceLostError", `${message}, and no new device is available: ${e.message} Reload the page and load a checkpoint${kept}`);
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
    if (count > MOST_EXAMPLES) throw inputError(`setData: ${count} examples; the limit is ${MOST_EXAMPLES}`);
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
      if (metadata.tracegrad !== "1") throw inputError("this is not a checkpoint of tracegrad");
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

export const aborted = (reason) => ({ kind: "aborted", reason });
export const failed = (error) => ({ kind: "failed", error });
/** Return the result of a call that ended with this error. */
export const unfinished = (e) => (e.name === "AbortedError" ? aborted(e.message) : failed(e));

function named(outputs, prefix) {
  return Object.fromEntries([...outputs].filter(([name]) => name.startsWith(prefix)).map(([name, x]) => [name.slice(prefix.length), x]));
}

/** Return an array, or a list or record of arrays, in the forward's form. */
function assembled(outputs, structure) {
  if (!structure) return outputs.get("output");
  if (Array.isArray(structure)) return structure.map((name) => outputs.get(name));
  return mapped(structure, (name) => outputs.get(name));
}
