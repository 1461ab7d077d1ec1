// The steps of one loss: its program, hot values and progress. Losses of a training share parameters and states.
// tracegrad/engine/stepper.py and steps.py are the Python versions.

import { HYPER, asSchedule, checkRate, isGiven, isHyper, prod } from "./checks.js";
import { trainedBy } from "./manifest.js";
import { streamOf } from "./random.js";
import { rateAt, restarted } from "./schedules.js";
import { filled, toStorage } from "./session.js";
import { DRAWN, bound, notFinite, tried } from "./trial.js";

const COUNT = "data.count"; // the hot value that counts the examples, for a program that draws its batch
const HALTED = "halted"; // lets the device skip steps queued after one that was not applied; all losses share it

export class Loss {
  counter = 0; // steps applied
  begun = 0; // number of the last step begun, if all steps under way are applied
  frozen = []; // names of parameters that steps do not change

  /** training: has session, seed, losses and right. number: index among the losses. The rest is that of program.json. */
  constructor(training, number, { train: program, rooms = [], feed, checkpoint, lr, hyper }) {
    const { name = "", first = 0 } = program.meta.part ?? {}; // where its run of parameters begins
    Object.assign(this, { training, number, program, checkpoint, name, first });
    this.hypers = program.inputs.filter(isHyper);
    this.inputs = program.inputs.filter(isGiven);
    this.knobs = { rate: { spec: asSchedule(lr), start: null }, values: new Map(Object.entries(hyper)) };
    this.rooms = [program, ...rooms].map((p, k) => this.#steps(p, `${k || ""}train`)); // take their batch from the host
    [this.given] = this.rooms;
    this.drawn = this.#steps(feed, "feed"); // draws it from the data
    this.trained = trainedBy(program);
  }

  get session() {
    return this.training.session;
  }

  /** Return the learning rate of the next step. */
  get lr() {
    const { counter, knobs: { rate: { spec, start } } } = this;
    return rateAt(spec, counter + 1, start ?? counter + 1);
  }

  /** Return a program whose runs are steps, for the queue. A run's `step` is its number, once it has begun. */
  #steps(program, name) {
    const on = {
      program,
      name: (this.number ? `${this.name}.` : "") + name,
      load: (progress) => this.#load(on, progress),
      begin: (run) => {
        const { call, index } = run;
        run.step = 0;
        this.#start(call.knobs.rate, this.begun + 1);
        run.step = ++this.begun;
        return (set) => this.#inputs(on, call, index, run.step, set);
      },
      finish: ({ call, index, step }, outputs) => {
        if (outputs.get(HALTED).data[0]) return false;
        const { losses, n } = call;
        const [loss] = outputs.get("loss").data;
        losses[index] = loss;
        this.counter = step;
        if (index < n - 1) return true;
        const found = call.cut(outputs);
        call.answer({ kind: "completed", loss, losses, step, aux: named(found, "aux."), captures: named(found, "capture.") });
        return true;
      },
      recover: async (run, outputs) => {
        const { call, index, step } = run;
        const { rate } = call.knobs;
        if (rate.start >= step) rate.start = null;
        this.#forget(); // the device skipped all later steps
        const found = [];
        const done = isFinite(outputs.get("loss").data[0]) && (await this.#tried(on, call, index, step, found));
        if (!done) return call.answer({ kind: "failed", error: await this.#refused(on, call, index, step, outputs, found) });
        this.#start(rate, step);
        this.begun = step;
        on.finish(run, done);
      },
      fail: ({ call, step }, e) => {
        if (step) this.begun = this.counter; // none is under way
        call.answer(unfinished(e));
      },
    };
    return on;
  }

  /** Make sure that a program can run. */
  async #load(on, progress) {
    const feeds = on === this.drawn;
    if (feeds) await this.#load(this.given, progress);
    on.loaded ??= await this.training.right(on, feeds ? undefined : progress, feeds ? this.given.loaded : undefined);
    on.hypers = feeds ? [...this.hypers, ...on.program.inputs] : on.program.inputs.filter(isHyper);
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
    for (const [what, fields] of [["parameter", program.params], ["gradient of", this.trained]]) {
      for (const [name, { data }] of await session.download(program, fields)) look(what, name, data);
    }
    this.restart(this.counter);
    return notFinite(`${call.what}: step ${step}`, outputs.get("loss").data[0], found);
  }

  #forget() {
    for (const x of this.training.losses) x.begun = x.counter;
  }

  /** Record that `counter` steps are applied and none is under way. */
  restart(counter) {
    this.counter = counter;
    this.#forget();
    this.session.write(HALTED, new Int32Array(1));
  }

  /** Return the inputs of step `step`, which has this index in `call`: the call's, split or whole, and hot values. */
  #inputs(on, call, index, step, set) {
    for (const f of on.program.inputs) {
      const x = call.arrays.get(f.name);
      const size = prod(f.shape);
      if (x) set(f, toStorage(x.length > size ? x.subarray(index * size, (index + 1) * size) : x, f.dtype));
    }
    uploadHot(on.hypers, call.knobs, step, streamOf(this.training.seed, this.number), set, { ...call.numbers, [COUNT]: call.data?.count });
  }

  /** Reset every optimizer array to its first values, and the step to 0. */
  async clear() {
    for (const b of this.program.buffers.filter((x) => x.role === "state" && x.fill !== DRAWN)) {
      const copied = async () => new Float32Array(await this.session.read("params")).subarray(this.first, this.first + b.size);
      this.session.write(b.name, b.fill === "params" ? await copied() : filled(b));
    }
    this.mask(this.frozen);
    bound(this.session, this.program);
  }

  /** Start the schedule over. */
  rewind() {
    this.knobs = { ...this.knobs, rate: { spec: restarted(this.knobs.rate.spec), start: null } };
  }

  /** Tell the device which parameters are frozen. */
  mask(frozen) {
    const { meta, buffers } = this.program;
    this.frozen = [...new Set(frozen)];
    for (const [name, parts] of Object.entries(meta.freeze ?? {})) {
      const mask = new Float32Array(buffers.find((b) => b.name === name).size);
      for (const [parameter, offset, size] of parts) if (this.frozen.includes(parameter)) mask.fill(1, offset, offset + size);
      this.session.write(name, mask);
    }
  }
}

/** Set the hot values at `step`. */
export function uploadHot(fields, { rate, values }, step, seed, set, more) {
  const hot = { __proto__: null, step, seed, lr: rateAt(rate.spec, step, rate.start ?? step), ...more };
  for (const f of fields) {
    const name = f.name.slice(HYPER.length);
    const value = hot[name] ?? (name.startsWith("1-") ? 1 - values.get(name.slice(2)) : values.get(name));
    set(f, [f.dtype === "f32" ? value : value | 0]);
  }
}

/** Return the result of a call that ended with this error. */
export const unfinished = (e) => (e.name === "AbortedError" ? { kind: "aborted", reason: e.message } : { kind: "failed", error: e });

export function named(outputs, prefix) {
  return Object.fromEntries([...outputs].filter(([name]) => name.startsWith(prefix)).map(([name, x]) => [name.slice(prefix.length), x]));
}
