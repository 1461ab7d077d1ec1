// Time a step of exported sites under Node with Dawn (npm `webgpu`), which is how the runtime meets a real GPU:
//
//     python bench/browser/export.py /tmp/sites && npm install webgpu && node bench/browser/node.mjs /tmp/sites [seconds]
//
// `read`: the loss awaited after every step, inputs from the host. `queued`: 64 steps a call. Medians of 9 blocks.

import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [, , folder, seconds = "3"] = process.argv;
const { create, globals } = await import(pathToFileURL(createRequire(join(process.cwd(), "x.js")).resolve("webgpu")));
Object.assign(globalThis, globals);
const gpu = create([]);
const BLOCKS = 9;

/** Median milliseconds that one step takes, `call` doing `steps` of them. */
async function median(call, steps) {
  const times = [];
  const began = performance.now();
  for (let block = 0; block < BLOCKS; block++) {
    let done = 0;
    const start = performance.now();
    while (!done || performance.now() - start < (1000 * Number(seconds)) / BLOCKS) {
      const result = await call();
      if (result.kind !== "completed") throw result.error ?? new Error(result.reason);
      done += steps;
    }
    times.push((performance.now() - start) / done);
    if (performance.now() - began > 4000 * Number(seconds)) break;
  }
  return times.sort((a, b) => a - b)[times.length >> 1];
}

for (const name of readdirSync(folder).filter((n) => !n.includes("."))) {
  const file = (part) => readFileSync(join(folder, name, part));
  const { Training } = await import(pathToFileURL(resolve(folder, name, "tracegrad.js")));
  const began = performance.now();
  const train = await Training.open({ manifest: JSON.parse(file("program.json")), weights: file("weights.safetensors"), gpu });
  train.setData(file("data.safetensors"));
  const opened = performance.now() - began;
  const first = await train.step();
  const ready = performance.now() - began;
  const read = await median(() => train.step(), 1);
  const queued = await median(() => train.runSteps(64), 64);
  const { dispatches, adapter } = train.info;
  console.log(`${adapter} | ${name}: ${dispatches} dispatches; open ${opened.toFixed(0)} ms, first step ${ready.toFixed(0)} ms; `
    + `read ${read.toFixed(3)} ms, queued ${queued.toFixed(3)} ms a step; loss ${first.loss.toFixed(4)}`);
  train.destroy();
}
process.exit(0); // Dawn's threads would keep Node alive
