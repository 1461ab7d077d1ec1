// Do runs in batches, and work between them, in order; repeat the runs after a step that was not applied. Only this file
// decides how many runs go together. tracegrad/engine/worker.py is its Python version.

import { fault } from "./checks.js";

const AHEAD = 3; // batches under way: one returns, one runs, one waits
const BATCH_RUNS = 64;
const BATCH_MS = 100; // browsers reset devices that seem to hang
const BATCH_BYTES = 2 ** 26; // of inputs or outputs

const answer = (x, error) => (x.work ? x.reject(error) : x.of.fail(x, error));

/**
 * A run is {of, call}: one of the runs that a call requests, unless `call.done`. `of`, a program, handles its runs:
 * {loaded, load, begin, finish, recover, fail}. Runs of one program share batches. `begin(run)` returns a function that
 * sets its inputs. `finish(run, outputs)` is false if neither the run nor later ones changed anything; then
 * `recover(run, outputs)` makes the session ready for the later ones. `fail(run, error)` resolves the run.
 */
export class Queue {
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
