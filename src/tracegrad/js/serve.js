// The worker's side: a training, and the messages that reach it.

import { Training } from "./training.js";

/** Serve a training in the worker: answer the messages of `load` in tracegrad.js. */
export function serve(scope) {
  let training;
  let told = null; // the last checkpoint sent to the page, which must outlive this worker
  const held = `tracegrad ${Math.random()}`; // a lock that is released when this worker ends in any way
  const granted = new Promise((resolve) => {
    const keep = () => (resolve(), new Promise(() => {}));
    scope.navigator.locks ? scope.navigator.locks.request(held, keep).catch(resolve) : resolve();
  });
  scope.onmessage = async ({ data: { id, method, args } }) => {
    let result, error;
    try {
      if (method === "open") {
        const progress = (done, all) => scope.postMessage({ progress: [done, all] });
        training = await Training.open({ ...args[0], progress });
        await granted;
        result = { ...training.info, held };
      } else result = await training[method](...args);
      if (result?.error) result = { ...result, error: plain(result.error) };
    } catch (e) {
      error = plain(e);
    }
    // A call that failed can have lost the device, and steps
    const { state, lastCheckpoint = null } = training ?? {};
    const news = lastCheckpoint === told ? {} : { checkpoint: (told = lastCheckpoint) };
    scope.postMessage({ id, result, error, state, ...news }, [...new Set(buffers(result))]);
  };
}

const plain = ({ name, message }) => ({ name, message });

function buffers(value) {
  if (ArrayBuffer.isView(value)) return [value.buffer];
  return value && typeof value === "object" ? Object.values(value).flatMap(buffers) : [];
}
