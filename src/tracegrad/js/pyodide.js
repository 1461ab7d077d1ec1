// The device of Python in this page or worker (Pyodide): tracegrad/runtime/browser.py calls it, and is the engine.
// Calls are done in order, one at a time. Every promise resolves to {value} or to {error: {name, message, kernel}}.

import { demand, prod } from "./checks.js";
import { draw } from "./random.js";
import { readSafetensors } from "./safetensors.js";
import { Session, adapterName, findAdapter } from "./session.js";
import { loadVerified } from "./verify.js";

const LOST = ". Reload the page and load a checkpoint to go on";
const told = (promise) => promise.then((value) => ({ value }), ({ name, message, kernel }) =>
  ({ error: { name, kernel, message: message + (name === "DeviceLostError" ? LOST : "") } }));
const bytesOf = (x) => new Uint8Array(x.buffer, x.byteOffset, x.byteLength);

export class Tab {
  #opened;
  #last;
  #loaded = new Map(); // handle -> a promise, so that a run reports why its program could not be loaded
  adapter = "";

  constructor(gpu) {
    this.#opened = Session.open([], gpu);
    this.#last = this.#opened.then((session) => (this.adapter = session.adapter), () => {});
  }

  /** Load a program. `check()` gives the check of its kernels if this browser has no verdict; null: they run unchecked. */
  load(handle, json, check) {
    return this.#do(async (session) => {
      const program = JSON.parse(json);
      const loading = (async () => {
        demand([program], session.device, session.adapter);
        const load = () => session.load(program);
        return check ? loadVerified(session, program, "program", async () => readSafetensors(check()), load) : load();
      })().finally(() => check?.destroy());
      this.#loaded.set(handle, loading);
      await loading;
    });
  }

  /** Free what only this program uses. */
  unload(handle) {
    return this.#do(async (session) => {
      const loading = this.#loaded.get(handle);
      this.#loaded.delete(handle);
      const gone = await loading;
      const kept = new Set((await Promise.allSettled(this.#loaded.values())).flatMap((l) => l.value?.buffers ?? []));
      for (const [name, buffer] of session.arrays) {
        if (!gone.buffers.includes(buffer) || kept.has(buffer)) continue;
        session.arrays.delete(name);
        buffer.destroy();
      }
      session.unload(gone);
    });
  }

  /** Do `n` runs in one submission. Inputs and outputs are in the order of the runs, field after field in each run. */
  run(handle, n, bytes) {
    return this.#do(async (session) => {
      const loaded = await this.#loaded.get(handle);
      const { inputs, outputs } = loaded.program;
      let at = bytes.byteOffset;
      const results = await session.run(loaded, Array(n).fill((set) => {
        for (const f of inputs) {
          set(f, new (f.dtype === "f32" ? Float32Array : Int32Array)(bytes.buffer, at, prod(f.shape)));
          at += 4 * prod(f.shape);
        }
      }));
      const out = new Uint8Array(4 * n * outputs.reduce((sum, f) => sum + prod(f.shape), 0));
      at = 0;
      for (const result of results) {
        for (const f of outputs) {
          const { data } = result.get(f.name);
          out.set(bytesOf(data), at);
          at += data.byteLength;
        }
      }
      return out;
    });
  }

  read(name) {
    return this.#do(async (session) => new Uint8Array(await session.read(name)));
  }

  write(name, bytes, at) {
    return this.#do((session) => session.write(name, new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4), at));
  }

  /** Free the device. Calls under way fail. */
  destroy() {
    this.#opened.then((session) => session.destroy(), () => {});
  }

  #do(fn) {
    const done = this.#last.catch(() => {}).then(() => this.#opened).then(fn);
    this.#last = done;
    return told(done);
  }
}

/** Draw first values of parameters, described in JSON by different names; return their bytes one after the other. */
export function drawn(json, seed) {
  return [...draw(JSON.parse(json), seed).values()].map(bytesOf);
}

/** Return the adapter's name, or why there is none. */
export function support(gpu) {
  return told(findAdapter(gpu).then(adapterName));
}
