// The same bench under Node with Dawn (npm `webgpu`), which is how it meets a real GPU without a screen.
// `run.py --node` bundles and runs it; `run.py --pack FILE` makes an archive of it that needs nothing but a driver:
//
//     node node.mjs sites [share] [seconds] [libraries] [models]

import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { create, globals } from "webgpu";
import { measure } from "./measure.mjs";

const [, , folder, share = "1", seconds = "3", libraries = "tracegrad,jax-js,TensorFlow.js", models = "sine,mlp,cnn,gpt"] = process.argv;
const LIBRARIES = { tracegrad: () => import("./ours.mjs"), "jax-js": () => import("./jaxjs.mjs"), "TensorFlow.js": () => import("./tfjs.mjs") };
// jax-js uses iterator helpers, which Node has from 22 on.
const iterator = Object.getPrototypeOf(Object.getPrototypeOf([][Symbol.iterator]()));
iterator.map ??= function* (f) { for (const x of this) yield f(x); };
iterator.filter ??= function* (f) { for (const x of this) if (f(x)) yield x; };
iterator.toArray ??= function () { return [...this]; };
const gpu = create([]);
Object.assign(globalThis, globals);
Object.defineProperty(globalThis, "navigator", { value: { gpu, userAgent: "Node", language: "en" }, configurable: true });
const { info } = await gpu.requestAdapter();
console.log(`adapter: ${info.description || [info.vendor, info.architecture].join(" ")}`);

for (const name of models.split(",")) {
  for (const library of libraries.split(",")) {
    const site = resolve(folder, name);
    const read = (file) => readFile(join(site, file), "utf8");
    let row;
    try {
      const { open } = await LIBRARIES[library]();
      row = await measure(open, name, { share: Number(share), seconds: Number(seconds), folder: pathToFileURL(site).href, gpu, read });
    } catch (e) {
      row = { name, error: String(e.message ?? e).split("\n")[0] };
    }
    console.log(JSON.stringify({ library, ...row }));
  }
}
process.exit(0); // Dawn's threads would keep Node alive
