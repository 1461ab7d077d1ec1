// What the bench's page runs: one library on one model, by name, on request of run.py.

import { measure } from "./measure.mjs";

const LIBRARIES = { tracegrad: () => import("./ours.mjs"), "jax-js": () => import("./jaxjs.mjs"), "TensorFlow.js": () => import("./tfjs.mjs") };

globalThis.adapter = async () => {
  const { info } = await navigator.gpu.requestAdapter();
  return [info.vendor, info.architecture, info.description].filter(Boolean).join(" ");
};
globalThis.bench = async (library, name, options) => {
  const began = performance.now();
  const { open } = await LIBRARIES[library](); // its code is part of the time to the first step
  const loaded = performance.now() - began;
  const folder = new URL(`sites/${name}`, location).href;
  const row = await measure(open, name, { ...options, folder, gpu: navigator.gpu, read: async (file) => (await fetch(`${folder}/${file}`)).text() });
  return { library, ...row, first: row.first + loaded };
};
