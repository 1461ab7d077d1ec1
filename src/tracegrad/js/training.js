// A training: hot values, checkpoints, forwards. loss.js has the steps of each loss, queue.js decides when each is done.
// It runs in a worker (see tracegrad.js) or without one, for instance in Node. tracegrad/training is the Python version.

import { checkInputs } from "./arrays.js";
import { HYPER, asSchedule, checkFinite, checkNumber, checkType, chosen, fault, inputError, isGiven, isHyper, isRecord, mapped, readHypers, shown, within } from "./checks.js";
import { assembled, inRoom, mostOf, roomsOf } from "./rooms.js";
import { examplesOf, metadataOf, readCheckpoint, withoutUnit, writeSafetensors } from "./checkpoint.js";
import { Loss, named, unfinished, uploadHot } from "./loss.js";
import { lossesOf, readManifest } from "./manifest.js";
import { draw } from "./random.js";
import { Queue } from "./queue.js";
import { readSafetensors } from "./safetensors.js";
import { afterMetric, lastOf } from "./schedules.js";
import { Session } from "./session.js";
import { UNIT, bound } from "./trial.js";
import { loadVerified } from "./verify.js";

const STATE = "state/"; // prefix of a state's path in the model
const MOST_STEPS = 1_000_000; // of one call, which holds an object for each; as in Python

const baseName = (f) => f.name.slice(HYPER.length).replace(/^1-/, "");

export class Training {
  #queue = new Queue(this);
  #data = null;
  #good = null; // {bytes, step} to return to if the device is lost; null: the parameters of the seed
  #runs = 0;
  #checks; // of kernels: bytes or a URL, then a promise of the contents

  /**
   * manifest: the program.json of `train.export`.
   * weights:  the bytes of a checkpoint. Without them the seed draws the parameters.
   * data:     as for `setData`.
   * checks:   of kernels, bytes or a URL. Without them no kernel is checked.
   * gpu:      navigator.gpu, or Dawn's in Node.
   */
  static async open({ manifest, weights, data, checks, gpu, progress }) {
    const made = new Training(readManifest(manifest), gpu);
    try {
      made.#checks = checks;
      if (data) made.#data = made.#rows(data);
      if (weights) made.#good = { bytes: weights };
      await made.#open(progress);
      return made;
    } catch (e) {
      made.session?.destroy();
      throw e;
    }
  }

  /** For `open`. */
  constructor(manifest, gpu) {
    const { train: program, seed } = manifest;
    Object.assign(this, { manifest, gpu, program, seed });
    this.losses = lossesOf(manifest).map((each, k) => new Loss(this, k, each)); // they share parameters and states
    this.inputs = [...new Map(this.losses.flatMap((x) => x.inputs.map((f) => [f.name, f]))).values()];
    this.rooms = mapped(manifest.forwards, (f, name) => roomsOf(f, `forwards.${name}`));
    this.forwards = mapped(manifest.forwards, (f, name) => ({ run: (inputs) => this.run(name, inputs), inputs: f.program.inputs.filter(isGiven), sizes: mostOf(this.rooms[name]) }));
  }

  /** Open a device, and load the programs of the next steps and the last good state. */
  async #open(progress) {
    const all = [...this.losses.flatMap((x) => [...x.rooms, x.drawn]), ...Object.values(this.rooms).flat()];
    for (const each of all) each.loaded = null;
    this.session = await Session.open(all.map((x) => x.program).filter(Boolean), this.gpu);
    if (this.#data) this.#hold(this.#data);
    for (const x of this.losses) await (this.#data ? x.drawn : x.given).load(progress);
    if (this.#good) return this.#checkpoint(this.#good.bytes, "weights")();
    this.#draw();
    for (const x of this.losses) {
      await x.clear();
      x.restart(0);
    }
  }

  /** Steps applied, over all losses. */
  get counter() {
    return this.#total((x) => x.counter);
  }

  #total(count) {
    return this.losses.reduce((sum, x) => sum + count(x), 0);
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
      losses: this.losses.map((x) => x.name).filter(Boolean),
      inputs: describe(this.inputs),
      params: describe(this.program.params),
      sizes: mostOf(this.losses.flatMap((x) => x.rooms)),
      forwards: mapped(this.forwards, (f) => ({ inputs: describe(f.inputs), sizes: f.sizes })),
      hyper: Object.fromEntries(this.losses[0].knobs.values),
      kernels: this.#total((x) => x.program.kernels.length),
      dispatches: this.#total((x) => (x.drawn.loaded ?? x.given.loaded).launches.length),
    };
  }

  /** Return the progress of the training. */
  get state() {
    const { counter, losses } = this;
    const each = Object.fromEntries(losses.map((x) => [x.name, { stepCount: x.counter, lr: x.lr }]));
    return { stepCount: counter, lr: losses[0].lr, losses: losses[0].name ? each : {} };
  }

  /**
   * Do one training step: `step(inputs)`, or with several losses `step(name, inputs)`. Never rejects for errors of
   * executing: the result is completed, aborted or failed.
   */
  step(...args) {
    return this.#call("step", args);
  }

  /** Do `n` steps: inputs with a leading axis of length n are split. Without any inputs, steps draw from the data. */
  runSteps(...args) {
    return this.#call("runSteps", args);
  }

  /**
   * Set the examples from which steps without inputs draw, on the device. They are by name, or the bytes of a
   * safetensors file: for each input with data in the export {dtype, shape, data}, with a leading axis of any length.
   */
  async setData(given) {
    const data = this.#rows(given), before = this.#data;
    this.#data = data;
    await this.#queue.alone(async () => this.#hold(data)).catch((e) => {
      if (this.#data === data) this.#data = before;
      throw e;
    });
  }

  /** Change the learning rate from the next call on: a number or a schedule's specification. loss: with several, a name. */
  setLR(lr, { loss } = {}) {
    const own = this.#loss(loss, "setLR");
    own.knobs = { ...own.knobs, rate: { spec: asSchedule(lr), start: null } };
  }

  /** Report a metric, such as a held-out loss, to a plateau schedule. */
  async lrMetric(value, { loss } = {}) {
    const own = this.#loss(loss, "lrMetric"), { spec } = own.knobs.rate;
    if (lastOf(spec).kind !== "plateau") throw inputError(`lrMetric: the schedule ${spec.kind} takes no metric; use plateau`);
    if (!Number.isNaN(value)) checkNumber("lrMetric", value);
    await this.#queue.alone(async () => {
      const { rate } = own.knobs;
      own.knobs = { ...own.knobs, rate: { ...rate, spec: afterMetric(rate.spec, value) } };
    });
  }

  /** Change hyperparameters from the next call on. Throw InputError, and change nothing, for a bad name or value. */
  set(hyper, { loss } = {}) {
    const own = this.#loss(loss, "set");
    const { ranges, optimizer } = own.program.meta;
    const every = new Set([...own.hypers.map(baseName), ...Object.keys(ranges ?? {})]);
    const names = [...every].filter((n) => !["step", "seed", UNIT].includes(n) && !n.includes(" "));
    const { lr, values } = readHypers(hyper, names.filter((n) => !n.includes("@")), ranges, optimizer?.options?.groups);
    if (lr !== undefined) this.setLR(lr, { loss });
    own.knobs = { ...own.knobs, values: new Map([...own.knobs.values, ...Object.entries(values)]) };
  }

  /** Freeze parameters from now on: no update, no decay. A pattern such as "backbone.*", or a list of patterns. */
  freeze(parameters) {
    return this.#leave("freeze", parameters, (frozen, named) => [...frozen, ...named]);
  }

  /** Train frozen parameters again. */
  unfreeze(parameters = "*") {
    return this.#leave("unfreeze", parameters, (frozen, named) => frozen.filter((name) => !named.includes(name)));
  }

  async #leave(what, parameters, change) {
    const all = this.program.params.filter((f) => f.spec.trainable !== false).map((f) => f.name);
    const meant = this.losses.map((x) => [x, x.trained.map((f) => f.name)]).filter(([x, own]) => x.program.meta.freeze && own.length);
    if (!meant.length) throw inputError(`${what}: this export has no masks; call train.unfreeze("*") in Python before train.export`);
    const named = chosen(all, parameters, what);
    await this.#queue.alone(async () => {
      for (const [x, own] of meant) x.mask(change(x.frozen, named.filter((name) => own.includes(name))));
    });
  }

  /** Start over from `seed`: draw the parameters again, clear the optimizer and the step counter. */
  async reset(what = {}) {
    const { params = true, optimizer = true, seed = this.seed, ...unknown } = isRecord(what) ? what : { what };
    const [name] = Object.keys(unknown);
    if (name) throw inputError(`reset: ${shown(unknown[name])} is given as ${name}; pass {params, optimizer, seed}`);
    checkType("reset: seed", seed, "count");
    await this.#queue.alone(async () => {
      this.seed = seed;
      if (params) this.#draw();
      for (const x of optimizer ? this.losses : []) {
        await x.clear();
        x.restart(0);
        x.rewind();
      }
      if (params && optimizer) this.#good = null;
    });
  }

  /** Overwrite parameters by name. Throw InputError with every problem, before anything is written. */
  uploadParams(record, options) {
    return this.#overwrite("uploadParams", this.program.params, record, options, async () => {
      for (const x of this.losses) {
        bound(this.session, x.program);
        if (!x.counter) await x.clear(); // averages begin at the parameters of the first step
      }
    });
  }

  /** Return parameters by name, {dtype, shape, data} each. */
  downloadParams() {
    return this.#download(this.program.params);
  }

  /** Return states of the model by name, {dtype, shape, data} each. */
  states() {
    return this.#download(this.#states);
  }

  /** Overwrite states by name. Throw InputError with every problem, before anything is written. */
  setStates(record, options) {
    return this.#overwrite("setStates", this.#states, record, options);
  }

  #download(fields) {
    return this.#queue.alone(async () => Object.fromEntries(await this.session.download(this.program, fields)));
  }

  /** Overwrite the fields in a record; `strict` demands all of them. `then` is work on the device afterwards. */
  async #overwrite(method, fields, record, { strict = false } = {}, then = () => {}) {
    const what = `${method}: nothing was written`;
    const values = checkInputs(fields, record, what, 0, !strict);
    within(what, () => checkFinite(fields, values));
    await this.#queue.alone(async () => {
      this.session.upload(this.program, fields, values);
      await then();
    });
  }

  /** Return the places of the model's states, by path. */
  get #states() {
    const own = this.program.states.filter((f) => f.name.startsWith(STATE));
    return own.map((f) => ({ ...f, name: f.name.slice(STATE.length), spec: { ...f.spec, trainable: false } })); // can be infinite
  }

  /** Return the bytes of a checkpoint, which Python's `train.load` reads. */
  saveCheckpoint() {
    return this.#queue.alone(async () => {
      const now = new Map();
      for (const { program, checkpoint } of this.losses) {
        const missing = checkpoint.filter((f) => !now.has(f.name));
        for (const [name, x] of await this.session.download(program, missing)) now.set(name, x);
      }
      const bytes = writeSafetensors([...now], metadataOf(this.losses, this.seed));
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
    const { program: { meta }, structure } = this.manifest.forwards[name];
    const run = ++this.#runs;
    const { rate, values } = this.losses[0].knobs;
    const hot = { rate, values: new Map([...Object.entries(meta.hyper ?? {}), ...values]) };
    try {
      const { on, arrays, numbers, cut } = inRoom(this.rooms[name], inputs, `${name}.run`), fields = on.program.inputs;
      return await this.#queue.alone(async () => {
        on.loaded ??= await this.right(on);
        const [found] = await this.session.run(on.loaded, [(set) => {
          for (const f of fields) if (arrays.has(f.name)) set(f, arrays.get(f.name));
          uploadHot(fields.filter(isHyper), hot, run, this.seed, set, numbers);
        }]);
        const outputs = cut(found);
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

  // --- for the losses and the queue ---

  #call(what, args) {
    return new Promise((resolve) => {
      try {
        const loss = this.#loss(this.losses[0].name || typeof args[0] === "string" ? args.shift() : "", what), { knobs } = loss;
        const n = what === "step" ? 1 : args.shift();
        const [inputs = {}] = args;
        const data = isRecord(inputs) && !Object.keys(inputs).length ? this.#data : null;
        if (!(Number.isInteger(n) && n > 0 && n <= MOST_STEPS)) throw inputError(`${what}: n must be an integer from 1 to ${MOST_STEPS}, got ${n}`);
        const { on, ...room } = inRoom(loss.rooms, data ? undefined : inputs, what, what === "runSteps" ? n : 0);
        const of = data ? loss.drawn : on;
        const call = { what, n, knobs, data, ...room, losses: new Float32Array(n), done: false };
        call.answer = (result) => {
          call.done = true;
          resolve(result);
        };
        this.#queue.add(Array.from({ length: n }, (_, index) => ({ of, call, index, step: 0 })));
      } catch (e) {
        resolve(unfinished(e));
      }
    });
  }

  /** Return the loss of this name; without a name, the only one. */
  #loss(name = "", what) {
    const found = this.losses.find((x) => x.name === name);
    if (found) return found;
    const names = this.losses.map((x) => shown(x.name)).join(", ");
    const said = typeof name === "string" && name ? `there is no loss ${shown(name)}` : "say which loss is meant";
    throw inputError(this.losses[0].name ? `${what}: ${said}; the losses are ${names}` : `${what}: there is one loss, without a name`);
  }

  /** Load a program, and check that its kernels compute correctly. */
  async right({ name, program }, progress, step) {
    const load = () => this.session.load(program, progress, step);
    return this.#checks ? loadVerified(this.session, program, name, () => (this.#checks = contents(this.#checks)), load) : load();
  }

  /** Replace a lost device: continue on another one from the last good state. Return the error to report. */
  async rebuilt(message) {
    const kept = this.losses.map((x) => x.knobs);
    try {
      await this.#open();
      this.losses.forEach((x, k) => {
        const { rate } = kept[k];
        if (rate.start > x.counter) rate.start = null;
        x.knobs = kept[k];
      });
      return fault("DeviceLostError", `${message}. A new device continues from the last checkpoint, step ${this.counter}: call again to go on`);
    } catch (e) {
      this.session.destroy(); // half set up: the next call tries again
      const kept = this.lastCheckpoint ? `; lastCheckpoint has that of step ${this.lastCheckpoint.step}` : "";
      return fault("DeviceLostError", `${message}, and no new device is available: ${e.message} Reload the page and load a checkpoint${kept}`);
    }
  }

  // --- inputs and state ---

  #rows(given) {
    return examplesOf(given, this.inputs, this.losses.map((x) => x.drawn.program).filter(Boolean));
  }

  #hold({ rows }) {
    for (const [name, values] of rows) this.session.hold(name, values);
    for (const { drawn } of this.losses) {
      if (drawn.loaded) this.session.unload(drawn.loaded); // its bind groups refer to the old arrays
      drawn.loaded = null;
    }
  }

  #draw() {
    const { session, program } = this, drawn = [...program.params, ...program.states.filter((f) => f.spec.init)];
    session.upload(program, drawn, draw(drawn, this.seed));
    for (const x of this.losses) bound(session, x.program);
  }

  /** Check a checkpoint against the programs; return a function that loads it. */
  #checkpoint(bytes, what) {
    const { losses, session } = this;
    const { values, facts } = readCheckpoint(bytes, losses, what);
    const knobs = facts.map(({ lr, lr_start: start, hyper }, k) => ({ rate: { spec: lr, start }, values: new Map([...losses[k].knobs.values, ...withoutUnit(Object.entries(hyper))]) }));
    return () => {
      this.seed = facts[0].seed;
      losses.forEach((x, k) => {
        session.upload(x.program, x.checkpoint, values);
        bound(session, x.program);
        x.knobs = knobs[k];
        x.mask(facts[k].frozen);
        x.restart(facts[k].step);
      });
    };
  }
}

/** Return the contents of a URL, by this method of the response. */
export async function fetched(url, read) {
  const response = await fetch(url);
  if (!response.ok) throw inputError(`${url}: ${response.status} ${response.statusText}`);
  return response[read]();
}

/** Return the contents of a file of checks; it is read only if some kernel was not checked before. */
async function contents(checks) {
  if (checks instanceof Promise) return checks;
  const bytes = typeof checks === "string" ? await fetched(checks, "arrayBuffer") : checks;
  return within("checks", () => readSafetensors(bytes));
}
