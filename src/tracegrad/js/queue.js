// Calls in order: steps, submitted ahead of their results, and again behind one that was not applied; and work to be done
// alone, when everything before it is done. tracegrad/engine/worker.py is its Python twin.

import { fault } from "./checks.js";

const AHEAD = 3; // submissions under way: one comes back, one runs, one waits behind it
const STEPS_AT_ONCE = 64; // in one submission
const MS_AT_ONCE = 100; // that one submission should take: browsers give up on devices that seem to hang
const BYTES_AT_ONCE = 2 ** 26; // of inputs or outputs in one submission

const callsOf = (submissions) => submissions.flatMap((x) => x.steps.map(([call]) => call));

/** The host, a Training, knows what a step is: see its `load`, `refusal`, `submit`, `applied`, `refused` and `rebuilt`. */
export class Queue {
  counter = 0; // steps applied
  #host;
  #jobs = []; // steps that are not all submitted, and work
  #window = []; // submissions under way
  #busy = false; // work is being done
  #collecting = false;
  #idle = 0; // when the last submission was done
  #atOnce = 1; // steps in one submission, by what the last one took
  #submitted = 0; // number of the last step submitted, if all those under way are applied
  #ended;

  constructor(host) {
    this.#host = host;
  }

  /** Do `work`; a promise of what it gives. */
  alone(work) {
    return new Promise((resolve, settle) => this.add({ work, resolve, settle }));
  }

  /** A call of `n` steps of `on`, a program; `settle` takes an error, and the host's `applied` the results. */
  add(job) {
    if (this.#ended) return job.settle(this.#ended);
    this.#jobs.push(job);
    this.#advance();
  }

  /** Answer everything that is under way or comes later with AbortedError. */
  end(reason) {
    this.#ended ??= fault("AbortedError", reason);
    this.#fail([]);
  }

  /** `counter` steps are applied, none is under way. */
  restart(counter) {
    this.counter = this.#submitted = counter;
  }

  /** Submit as much as there is room for, and see that it is collected. */
  #advance() {
    while (!this.#busy && this.#jobs.length) {
      const [job] = this.#jobs;
      if (job.work || !job.on.loaded || this.#host.refusal(job, this.#submitted + 1)) {
        if (!this.#window.length) this.#work(job);
        break;
      }
      if (this.#window.length === AHEAD) break;
      this.#submit(job.on);
    }
    if (this.#window.length && !this.#collecting) this.#collect();
  }

  /** Work that was asked for, or to load the program of the steps to come. */
  async #work(job) {
    this.#busy = true;
    try {
      this.#host.session.check();
      if (!job.work) {
        const refusal = this.#host.refusal(job, this.#submitted + 1);
        if (refusal) throw refusal;
        await this.#host.load(job.on);
      } else {
        this.#jobs.shift();
        job.resolve(await job.work());
      }
    } catch (e) {
      await this.#fail([job], e);
    }
    this.#busy = false;
    this.#advance();
  }

  /** The next steps of the calls that wait, as many as one submission should have. */
  #submit(on) {
    const most = Math.min(this.#atOnce, STEPS_AT_ONCE, BYTES_AT_ONCE / on.loaded.bytes);
    const steps = [], first = this.#submitted + 1;
    do {
      const [call] = this.#jobs;
      steps.push([call, call.sent++]);
      if (call.sent === call.n) this.#jobs.shift();
    } while (this.#jobs[0]?.on === on && steps.length + 1 <= most && !this.#host.refusal(this.#jobs[0], first + steps.length));
    const entry = { on, steps, first, began: performance.now() };
    try {
      entry.ticket = this.#host.submit(entry);
    } catch (e) {
      entry.error = e;
    }
    this.#submitted += steps.length;
    this.#window.push(entry);
  }

  /** Take the results of what is under way, the oldest first. */
  async #collect() {
    this.#collecting = true;
    while (this.#window.length) {
      const [entry] = this.#window;
      try {
        const results = await this.#collected(entry);
        if (this.#ended) break;
        this.#window.shift();
        const now = performance.now();
        this.#atOnce = (results.length * MS_AT_ONCE) / (now - Math.max(entry.began, this.#idle));
        this.#idle = now;
        const bad = results.findIndex((outputs, k) => {
          const applied = this.#host.applied(...entry.steps[k], entry.first + k, outputs);
          if (applied) this.counter = entry.first + k;
          return !applied;
        });
        if (bad >= 0) await this.#refused(entry, bad, results[bad]);
      } catch (e) {
        // Whether the device did this and what is behind it is unknown, so nothing is run a second time
        const calls = callsOf([entry, ...this.#window.splice(0)]);
        this.restart(this.counter);
        await this.#fail(calls, e);
      }
      this.#advance();
    }
    this.#collecting = false;
  }

  #collected({ ticket, error }) {
    if (error) throw error;
    return this.#host.session.collect(ticket);
  }

  /** A step was not applied, nor what is behind it. Its call fails, the others' steps come again. */
  async #refused({ on, steps }, k, outputs) {
    this.#busy = true;
    for (const entry of this.#window) await this.#collected(entry);
    const [call, index] = steps[k];
    const again = [...steps.slice(k), ...this.#window.splice(0).flatMap((x) => x.steps)];
    for (const [other, at] of again) other.sent = Math.min(other.sent, at);
    this.#jobs = [...new Set([...again.map(([other]) => other), ...this.#jobs])];
    const error = await this.#host.refused(on, call, index, this.counter + 1, outputs, this.#jobs);
    this.restart(this.counter);
    this.#busy = false;
    this.#fail([call], error);
  }

  /** Answer `jobs` with the error; everything, if the device is lost or this has ended. */
  async #fail(jobs, error) {
    const { session } = this.#host;
    if (session.lost && !this.#ended) {
      const { message } = error;
      this.#busy = true;
      error = await this.#host.rebuilt(message);
      this.#busy = false;
      if (this.#ended) this.#host.session.destroy();
    }
    if (session.lost || this.#ended) jobs = [...jobs, ...callsOf(this.#window.splice(0)), ...this.#jobs];
    this.#jobs = this.#jobs.filter((job) => !jobs.includes(job));
    for (const job of jobs) job.settle(this.#ended ?? error);
  }
}
