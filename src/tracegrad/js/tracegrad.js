// The page's side: a training in a worker, reached by messages; and functions that need no training.

import { fault, mapped, send } from "./checks.js";
import { lossesOf, readManifest } from "./manifest.js";
import { adapterName, findAdapter } from "./session.js";
import { serve } from "./serve.js";
import { unfinished } from "./loss.js";
import { Training, fetched } from "./training.js";

export { Training, readManifest, serve };

const METHODS = "setData setLR lrMetric set freeze unfreeze reset uploadParams downloadParams states setStates saveCheckpoint loadCheckpoint".split(" ");
const ANSWERED = ["step", "runSteps"]; // always resolve to a result
const aborted = (reason) => ({ kind: "aborted", reason });
const failed = (error) => ({ kind: "failed", error });

/** Return {ok, adapter} or {ok: false, message}, with a message that tells what is missing and what to do. */
export async function checkWebGPU(gpu) {
  try {
    return { ok: true, adapter: adapterName(await findAdapter(gpu)) };
  } catch (e) {
    return { ok: false, message: e.message };
  }
}

/**
 * Load the training that `train.export` wrote to the folder `url`, in a worker of its own.
 *
 * `progress(done, all)` reports how many kernels are compiled. manifest, weights, data, checks, worker: the parts, if
 * they do not come from that folder. `weights: null` draws the parameters from the seed, `data: null` omits the
 * examples, `checks: null` does not check kernels.
 */
export async function load(url, { manifest, weights, data, checks, worker, progress } = {}) {
  const place = (name) => new URL(name, new URL(`${url}/`.replace(/\/+$/, "/"), globalThis.location?.href)).href;
  const part = (name, read) => fetched(place(name), read);
  manifest ??= await part("program.json", "text");
  const read = readManifest(manifest), { checked } = read;
  const feed = lossesOf(read).some((x) => x.feed);
  if (checked && checks === undefined) checks = place("checks.safetensors");
  if (weights === undefined) weights = await part("weights.safetensors", "arrayBuffer");
  if (feed && data === undefined) data = await part("data.safetensors", "arrayBuffer");
  worker ??= new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const remote = new Remote(worker, progress);
  try {
    return proxy(remote, await remote.call("open", { manifest, weights, data, checks }));
  } catch (e) {
    remote.end(e.message);
    throw e;
  }
}

/** Return a function that runs one call of `fn` and queues one more; the newest wins, a displaced one is aborted. */
export function singleFlight(fn) {
  let running = false;
  let queued = null;
  const start = async ({ args, resolve }) => {
    running = true;
    try {
      resolve(await fn(...args));
    } catch (error) {
      resolve(failed(error));
    }
    running = false;
    const next = queued;
    queued = null;
    if (next) start(next);
  };
  return (...args) => new Promise((resolve) => {
    if (!running) return start({ args, resolve });
    queued?.resolve(aborted("displaced by a newer call"));
    queued = { args, resolve };
  });
}

const revived = ({ name, message }) => fault(name, message); // an error from a message

/** Calls by message; every call is resolved, also when the worker dies. */
class Remote {
  constructor(worker, progress) {
    Object.assign(this, { worker, state: {}, checkpoint: null, waiting: new Map(), next: 0 });
    worker.onmessage = ({ data }) => {
      if (data.progress) return progress?.(...data.progress);
      this.state = data.state ?? this.state;
      if (data.checkpoint !== undefined) this.checkpoint = data.checkpoint;
      const { resolve, reject } = this.waiting.get(data.id) ?? {};
      this.waiting.delete(data.id);
      if (data.error) reject?.(revived(data.error));
      else resolve?.(data.result?.error ? failed(revived(data.result.error)) : data.result);
    };
    worker.onerror = (event) => this.end(`the worker ended: ${event.message || "it could not be started"}. Reload the page`);
  }

  call(method, ...args) {
    if (this.ended) return Promise.reject(this.ended);
    return new Promise((resolve, reject) => {
      const id = this.next++;
      send(this.worker, { id, method, args }); // if this throws, the promise rejects
      this.waiting.set(id, { resolve, reject });
    });
  }

  /** Resolve all waiting calls, and end the worker. */
  end(reason, aborting = false) {
    if (this.ended) return;
    this.ended = fault(aborting ? "AbortedError" : "DeviceLostError", reason);
    this.worker.terminate();
    for (const { reject } of this.waiting.values()) reject(this.ended);
    this.waiting.clear();
  }
}

function proxy(remote, { held, ...info }) {
  const answer = (method, ...args) => remote.call(method, ...args).catch(unfinished);
  const train = {
    info,
    get stepCount() {
      return remote.state.stepCount ?? 0;
    },
    get lr() {
      return remote.state.lr;
    },
    get losses() {
      return remote.state.losses ?? {};
    },
    get lastCheckpoint() {
      return remote.checkpoint;
    },
    destroy: () => remote.end("destroyed", true),
    forwards: mapped(info.forwards, (f, name) => ({ ...f, run: (inputs) => answer("run", name, inputs) })),
  };
  for (const method of METHODS) train[method] = (...args) => remote.call(method, ...args);
  for (const method of ANSWERED) train[method] = (...args) => answer(method, ...args);
  navigator.locks?.request(held, () => remote.end("the worker was ended. Reload the page")).catch(() => {});
  return train;
}
