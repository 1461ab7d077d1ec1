// The page that `train.export` writes. All texts of the user reach it as data and the document as text, never as HTML.

const at = (id) => document.getElementById(id);
const embedded = at("core"); // a single file holds everything
const CALL = 80; // ms: target of one call to the worker, long enough to be efficient, short enough to react
const KEPT = 4000; // losses in the chart
const LEFT = 64; // margin of the chart: room for 0.001234
const SAFE = 20_000; // ms between checkpoints: the most training that a lost device can cost

const code = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
const short = (x) => (Number.isFinite(x) ? (x !== 0 && Math.abs(x) < 1e-3 ? x.toExponential(2) : x.toPrecision(4)) : "–");
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

let train;
let manifest;
let running = false;
let looping = false;
let perCall = 1;
const losses = []; // [step, loss]
const refreshers = []; // demos to refresh after training steps
let refresh; // runs them one at a time; the newest call runs last

/** Return the bytes of an element of this file, which holds base64. */
function bytes(id) {
  try {
    return Uint8Array.from(atob(at(id).textContent), (c) => c.charCodeAt(0));
  } catch {
    throw new Error(`the ${id} of this page are damaged: download the page again`);
  }
}

function say(text, problem = false) {
  at("status").textContent = text;
  at("status").classList.toggle("problem", problem);
  at("rescue").hidden = true;
}

/** Show an error in words. If the device was lost, stop, and offer the last checkpoint, to which the training returned. */
function tell(error) {
  say(error.message, true);
  if (error.name !== "DeviceLostError" || !train) return;
  running = false;
  while (losses.at(-1)?.[0] > train.stepCount) losses.pop();
  showFacts();
  const last = train.lastCheckpoint;
  if (!last) return;
  at("rescue").hidden = false;
  at("rescued").textContent = `Download the last checkpoint, of step ${last.step}`;
}

async function start() {
  const tracegrad = await import(embedded ? code(embedded.textContent + at("client").textContent) : "./tracegrad.js");
  refresh = tracegrad.singleFlight(async () => {
    for (const draw of refreshers) await draw();
  });
  const support = await tracegrad.checkWebGPU();
  if (!support.ok) return say(support.message, true);
  const parts = { progress: (done, all) => say(`Compiling kernels: ${done} of ${all}`) };
  if (embedded) {
    parts.manifest = at("program").textContent;
    parts.weights = bytes("weights");
    parts.worker = new Worker(code(`${embedded.textContent}\nserve(self);`)); // file:// allows no module here
  } else parts.manifest = await (await fetch("program.json")).text();
  manifest = tracegrad.readManifest(parts.manifest);
  if (embedded && manifest.feed) parts.data = bytes("data"); // each loss has a feed, or none has
  if (embedded && manifest.checked) parts.checks = bytes("checks");
  const data = manifest.feed;
  train = await tracegrad.load(new URL(".", document.baseURI).href, parts);
  globalThis.train = train; // for the console
  const count = train.info.params.reduce((n, p) => n + p.shape.reduce((a, b) => a * b, 1), 0);
  at("about").textContent = `${count.toLocaleString()} parameters, ${train.info.dispatches} dispatches a step. Trains in this page, on this device; nothing is sent anywhere.`;
  at("adapter").textContent = train.info.adapter;
  for (const id of ["start", "step", "reset", "rate", "save", "open"]) at(id).disabled = !data && (id === "start" || id === "step");
  showRate(train.lr);
  showFacts();
  Object.keys(train.forwards).forEach(addDemo);
  say(data ? "Ready." : "Ready. This export holds no training data (export with data={…} to train here).");
  refresh();
}

// --- training ---

async function loop() {
  if (looping) return; // the last loop has not noticed its end yet, so it continues
  looping = true;
  let saved = performance.now();
  while (running) {
    const began = performance.now();
    const result = await steps(perCall);
    const ms = performance.now() - began;
    if (!take(result)) break;
    at("speed").textContent = short((1000 * perCall) / ms);
    perCall = Math.max(1, Math.min(512, Math.round((perCall * CALL) / ms)));
    if (performance.now() - saved > SAFE) {
      await train.saveCheckpoint().catch(tell);
      saved = performance.now();
    }
    await new Promise((go) => (document.hidden ? setTimeout(go) : requestAnimationFrame(go)));
    refresh();
  }
  looping = false;
  pause();
}

/** Do `n` steps; with several losses, in turns. Return the result of the last, or the first that was not completed. */
async function steps(n) {
  const { schedule = [] } = manifest, begun = train.stepCount;
  if (!schedule.length) return train.runSteps(n);
  const turns = Array.from({ length: n }, (_, k) => schedule[(begun + k) % schedule.length]);
  const results = await Promise.all(turns.map((loss) => train.step(loss)));
  const bad = results.find((x) => x.kind !== "completed");
  return bad ?? { ...results.at(-1), step: train.stepCount, losses: results.map((x) => x.loss), turns };
}

function take(result) {
  if (result.kind !== "completed") {
    running = false;
    if (result.kind === "failed") tell(result.error);
    else say(`Aborted: ${result.reason}`, true);
    showFacts();
    return false;
  }
  result.losses.forEach((loss, k) => losses.push([result.step - result.losses.length + 1 + k, loss, result.turns?.[k] ?? ""]));
  losses.splice(0, losses.length - KEPT);
  showFacts();
  return true;
}

function pause() {
  running = false;
  at("start").textContent = "Start";
  showFacts();
}

function showFacts() {
  at("count").textContent = train.stepCount;
  const last = new Map(losses.map(([, loss, name]) => [name, loss]));
  at("loss").textContent = [...last].map(([name, loss]) => `${name} ${short(loss)}`.trim()).join(", ") || short();
  if (at("rate") !== document.activeElement) showRate(train.lr);
  drawChart();
}

function showRate(lr, moved = false) {
  if (!moved) at("rate").value = Math.log10(Math.max(lr, 1e-6));
  at("rate").setAttribute("aria-valuetext", short(lr)); // the slider's value is the logarithm
  at("rate-shown").textContent = short(lr);
}

at("start").onclick = () => {
  if (running) {
    pause();
    return say("Paused.");
  }
  running = true;
  at("start").textContent = "Pause";
  say("Training.");
  loop();
};
at("step").onclick = async () => {
  if (take(await steps(1))) say("One step.");
  refresh();
};
/** Return a handler that does `work` and shows its errors. */
const attempt = (work) => () => work().catch(tell);

at("reset").onclick = attempt(async () => {
  await train.reset();
  losses.length = 0;
  showFacts();
  refresh();
  say("Back at the start, with the parameters of the seed.");
});
at("rate").oninput = attempt(() => {
  const lr = 10 ** Number(at("rate").value);
  showRate(lr, true);
  const names = train.info.losses;
  return names.length ? Promise.all(names.map((loss) => train.setLR(lr, { loss }))) : train.setLR(lr);
});
function download(bytes, step) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  link.download = `checkpoint-${step}.safetensors`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

at("save").onclick = attempt(async () => {
  const bytes = await train.saveCheckpoint();
  download(bytes, train.stepCount);
  say(`Saved step ${train.stepCount}.`);
});
at("rescued").onclick = () => download(train.lastCheckpoint.bytes, train.lastCheckpoint.step);
at("open").onchange = attempt(async () => {
  const [file] = at("open").files;
  if (!file) return;
  const read = new Uint8Array(await file.arrayBuffer());
  at("open").value = ""; // allows choosing the same file again
  await train.loadCheckpoint(read);
  losses.length = 0;
  showFacts();
  refresh();
  say(`Loaded step ${train.stepCount}.`);
});

// --- drawing ---

/** Return a canvas in its own pixels, cleared, and its size in CSS pixels. */
function cleared(canvas) {
  const { clientWidth: w, clientHeight: h } = canvas;
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = w * ratio;
  canvas.height = h * ratio;
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.font = "12px system-ui, sans-serif";
  return [g, w, h];
}

function polyline(g, points, style, width = 1.5) {
  g.beginPath();
  points.forEach(([x, y]) => g.lineTo(x, y));
  Object.assign(g, { strokeStyle: style, lineWidth: width });
  g.stroke();
}

function drawChart() {
  const [g, w, h] = cleared(at("chart"));
  const signed = losses.some(([, y]) => y < 0); // such as a likelihood: no logarithm then
  const shown = signed ? losses : losses.filter(([, y]) => y > 0);
  if (shown.length < 2) return;
  const [first, last] = [shown[0][0], shown.at(-1)[0]];
  const ys = shown.map(([, y]) => (signed ? y : Math.log10(y)));
  const low = Math.min(...ys), high = Math.max(...ys, low + (signed ? Math.abs(low) / 100 : 0.01));
  const px = (step) => LEFT + ((w - LEFT - 10) * (step - first)) / (last - first);
  const py = (y) => 10 + ((h - 34) * (high - y)) / (high - low);
  g.fillStyle = color("--soft");
  for (let k = 0; k <= 3; k++) {
    const y = low + ((high - low) * k) / 3;
    g.fillText(short(signed ? y : 10 ** y), 4, py(y) + 4);
    polyline(g, [[LEFT, py(y)], [w - 10, py(y)]], color("--line"), 1);
  }
  g.fillText(`step ${first}`, LEFT, h - 6);
  g.textAlign = "right";
  g.fillText(`${last}`, w - 10, h - 6);
  const names = [...new Set(shown.map(([, , name]) => name))];
  names.forEach((name, n) => {
    const style = n ? `hsl(${(n * 137) % 360} 60% 50%)` : color("--accent");
    polyline(g, shown.flatMap(([x, , own], k) => (own === name ? [[px(x), py(ys[k])]] : [])), style);
    g.fillStyle = style;
    g.fillText(name, w - 10, 20 + 14 * n);
  });
  at("chart").setAttribute("aria-label", `Loss by step, from ${short(shown[0][1])} at step ${first} to ${short(shown.at(-1)[1])} at step ${last}`);
}

// --- demos ---

function element(parent, tag, properties = {}) {
  return parent.appendChild(Object.assign(document.createElement(tag), properties));
}

const DEMOS = { curve: curveDemo, image: imageDemo, tokens: tokensDemo, values: valuesDemo };

function addDemo(name) {
  at("forwards").hidden = false;
  const box = element(at("forwards"), "article");
  element(box, "h3", { textContent: name });
  DEMOS[manifest.forwards[name].demo.kind](box, name, manifest.forwards[name].demo, train.forwards[name]);
}

async function output(name, inputs) {
  const result = await train.forwards[name].run(inputs);
  if (result.kind === "completed") return result.output;
  if (result.kind === "failed") tell(result.error);
}

function curveDemo(box, name, demo, { inputs: [x] }) {
  const canvas = element(box, "canvas", { className: "curve" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `The curve that ${name} has learned, from ${short(demo.low)} to ${short(demo.high)}`);
  const n = x.shape[0];
  const xs = Float32Array.from({ length: n }, (_, k) => demo.low + ((demo.high - demo.low) * k) / (n - 1));
  refreshers.push(async () => {
    const y = await output(name, { [x.name]: xs });
    if (!y) return;
    const [g, w, h] = cleared(canvas);
    const all = [...y.data, ...demo.points.map((p) => p[1])];
    const low = Math.min(...all), high = Math.max(...all, low + 1e-6);
    const place = (a, b) => [10 + ((w - 20) * (a - demo.low)) / (demo.high - demo.low), 10 + ((h - 20) * (high - b)) / (high - low)];
    g.fillStyle = color("--soft");
    for (const [a, b] of demo.points) g.fillRect(...place(a, b), 2, 2);
    polyline(g, Array.from(y.data, (b, k) => place(xs[k], b)), color("--accent"), 2);
  });
}

function imageDemo(box, name, { height, width }, { inputs: [x] }) {
  element(box, "p", { className: "note", textContent: "Draw with the mouse or a finger, or with the arrow keys while holding the space bar." });
  const row = element(box, "div", { className: "drawing" });
  const pad = element(row, "canvas", { className: "pad", width, height, tabIndex: 0 });
  pad.setAttribute("aria-label", `Drawing for ${name}`);
  pad.setAttribute("role", "application");
  const bars = element(row, "ol", { className: "bars" });
  element(box, "button", { type: "button", textContent: "Clear", onclick: () => (ink.fill(0), show()) });
  const ink = new Float32Array(width * height);
  const pen = [width / 2, height / 2];
  let byKeys = false; // true while keys draw: then the pen is shown
  const dot = (cx, cy) => {
    for (let k = 0; k < ink.length; k++) {
      const distance = Math.hypot((k % width) + 0.5 - cx, Math.floor(k / width) + 0.5 - cy);
      ink[k] = Math.max(ink[k], Math.min(1, Math.max(0, 1 + width / 24 - distance)));
    }
  };
  const judge = async () => {
    const y = await output(name, { [x.name]: ink });
    if (y) showBars(bars, softmax(y.data));
  };
  const show = () => {
    const picture = new ImageData(width, height);
    ink.forEach((v, k) => picture.data.set([255 * v, 255 * v, 255 * v, 255], 4 * k));
    const [column, line] = [Math.min(width - 1, Math.floor(pen[0])), Math.min(height - 1, Math.floor(pen[1]))];
    if (byKeys) picture.data.set([240, 80, 80, 255], 4 * (line * width + column));
    pad.getContext("2d").putImageData(picture, 0, 0);
    refresh();
  };
  const follow = (event) => {
    if (!event.buttons) return;
    byKeys = false;
    dot((event.offsetX / pad.clientWidth) * width, (event.offsetY / pad.clientHeight) * height);
    show();
  };
  Object.assign(pad, { onpointerdown: follow, onpointermove: follow });
  let down = false;
  pad.onblur = () => ((byKeys = down = false), show());
  pad.onkeyup = (event) => (down = event.key === " " ? false : down);
  pad.onkeydown = (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === " ") down = true;
    else if (!move) return;
    event.preventDefault();
    byKeys = true;
    if (move) pen.forEach((_, k) => (pen[k] = Math.min([width, height][k], Math.max(0, pen[k] + move[k]))));
    if (down) dot(...pen);
    show();
  };
  refreshers.push(judge);
  show();
}

function softmax(logits) {
  const top = Math.max(...logits);
  const e = Array.from(logits, (v) => Math.exp(v - top));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((v) => v / sum);
}

function showBars(bars, shares) {
  while (bars.children.length < shares.length) {
    const item = element(bars, "li");
    element(item, "span", { textContent: manifest.labels[bars.children.length - 1] ?? bars.children.length - 1 });
    element(item, "progress", { max: 1 });
    element(item, "span");
  }
  shares.forEach((share, k) => {
    const [label, bar, number] = bars.children[k].children;
    bar.value = share;
    bar.setAttribute("aria-label", label.textContent);
    number.textContent = `${Math.round(100 * share)}%`;
  });
}

function tokensDemo(box, name, { context, size }, { inputs: [x] }) {
  const words = manifest.vocabulary;
  const label = element(box, "label", { textContent: words.length ? "Begin with " : "Begin with the token numbers " });
  const prompt = element(label, "input", { type: "text", value: words.length ? words.find((w) => /\p{L}/u.test(w)) ?? words[0] : "0" });
  const button = element(box, "button", { type: "button", textContent: "Continue the text" });
  const text = element(box, "pre", { ariaLive: "polite" });
  const read = () => (words.length ? [...prompt.value].map((c) => words.indexOf(c)) : prompt.value.split(/\D+/).filter(Boolean).map(Number)).filter((t) => t >= 0 && t < size);
  button.onclick = async () => {
    button.disabled = true;
    const tokens = read();
    if (!tokens.length) tokens.push(0);
    for (let n = 0; n < 120; n++) {
      const seen = tokens.slice(-context);
      const padded = new Int32Array(context);
      padded.set(seen);
      const y = await output(name, { [x.name]: padded });
      if (!y) break;
      const shares = softmax(y.data.subarray((seen.length - 1) * size, seen.length * size));
      let r = Math.random();
      tokens.push(Math.max(0, shares.findIndex((p) => (r -= p) <= 0)));
      text.textContent = words.length ? tokens.map((t) => words[t] ?? "?").join("") : tokens.join(" ");
    }
    button.disabled = false;
  };
}

function valuesDemo(box, name, _, { inputs }) {
  const boxes = inputs.map((f) => {
    const label = element(box, "label", { textContent: `${f.name}: ${f.dtype}[${f.shape}]` });
    return element(label, "textarea", { rows: 2, value: JSON.stringify(new Array(f.shape.reduce((a, b) => a * b, 1)).fill(0)) });
  });
  const button = element(box, "button", { type: "button", textContent: "Run" });
  const text = element(box, "pre", { ariaLive: "polite" });
  button.onclick = async () => {
    try {
      const given = inputs.map((f, k) => [f.name, { data: Float64Array.from(JSON.parse(boxes[k].value).flat(Infinity)), shape: f.shape }]);
      const y = await output(name, Object.fromEntries(given));
      text.textContent = JSON.stringify(y, (_key, v) => (ArrayBuffer.isView(v) ? Array.from(v, (n) => Number(n.toPrecision(6))) : v));
    } catch (e) {
      say(e.message, true);
    }
  };
}

addEventListener("resize", () => train && drawChart());
start().catch((e) => say(e.message, true));
