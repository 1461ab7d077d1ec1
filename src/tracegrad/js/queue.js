// Runs in batches, and work between them, in order; runs again behind a step that was not applied. Here, and nowhere else,
// is decided how many runs go together. tracegrad/engine/worker.py is its Python twin.

import { fault } from "./checks.js";

const AHEAD = 3; // batches under way: one comes back, one runs, one waits behind it
const BATCH_RUNS = 64;
const BATCH_MS = 100; // browsers give up on devices that seem to hang
const BATCH_BYTES = 2 ** 26; // of inputs or outputs

const answer = (x, error) => (x.work ? x.reject(error) : x.of.fail(x, error));

/**
 * A run is {of, call}: one of those that a call asks for, unless `call.done`. `of`, a program, says what its runs are:
 * {loaded, load, begin, finish, recover, fail}. Runs of the same one share batches. `begin(run)` gives a function that
 * sets its inputs. `finish(run, outputs)` is false if the run changed nothing, nor did those behind it; then
 * `recover(run, outputs)` makes the session ready for these. `fail(run, error)` answers it.
 */
export class Queue {
  #host;
  #waiting = []; // runs in no batch yet, and work
  #batches = []; // under way: {of, runs, outputs, began}
  #busy = false; // work is being done
  #reading = false;
  #landed = 0; // when the outputs of the last batch were there
  #ended;

  /** host: {session, rebuilt}, which is asked for another session when the device is lost. */
  constructor(host) {
    this.#host = host;
  }

  /** Do `work`; a promise of what it gives. */
  alone(work) {
    return new Promise((resolve, reject) => this.add([{ work, resolve, reject }]));
  }

  /** Queue runs, or work. */
  add(items) {
    for (const x of items) this.#ended ? answer(x, this.#ended) : this.#waiting.push(x);
    this.#advance();
  }

  /** Answer everything that is under way or comes later with AbortedError. */
  end(reason) {
    this.#ended ??= fault("AbortedError", reason);
    this.#fail([]);
  }

  /** Begin as much as there is room for, and see that its outputs are read. */
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

  /** Work that was asked for, or to load the program of the runs to come. */
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

  /** The next runs of a program, as many as one batch should have. */
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
    outputs.catch(() => {}); // whoever reads them hears of it
    this.#batches.push({ of, runs, outputs, began });
  }

  /** Take the outputs of what is under way, the oldest first. */
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
        // Whether the device did these runs and those behind is unknown, so none is run a second time
        await this.#fail(this.#under(), e);
      }
      this.#advance();
    }
    this.#reading = false;
  }

  /** The k-th run was not applied, nor what is behind it, which comes again. */
  async #replay(of, runs, k, outputs) {
    this.#busy = true;
    try {
      for (const later of this.#batches) await later.outputs;
      const behind = this.#under().slice(k + 1); // the rest of this batch, which is the oldest, and later ones
      this.#waiting.unshift(...behind);
      await of.recover(runs[k], outputs);
    } catch (e) {
      await this.#fail([runs[k], ...this.#under()], e);
    } finally {
      this.#busy = false;
    }
  }

  /** The runs of all batches, which are forgotten. */
  #under() {
    return this.#batches.splice(0).flatMap((x) => x.runs);
  }

  /** Answer `items` with the error; everything, if the device is lost or this has ended. */
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
