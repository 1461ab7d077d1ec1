// The page's side: a program goes to the worker; prints, losses and its end come back.

const at = (id) => document.getElementById(id);
const PATIENCE = 2000; // ms that a program has to notice Stop: one that never awaits does not
const losses = [];
let worker;
let config;
let impatient;

async function begin() {
  config ??= await (await fetch("config.json")).json();
  at("status").value = "Loading Python …";
  worker = new Worker("worker.js", { type: "module" });
  worker.onerror = (e) => say(`Python could not be started: ${e.message}`);
  worker.onmessage = ({ data }) => {
    if (data.print !== undefined) at("output").append(`${data.print}\n`);
    if (data.step !== undefined) plot(data.step, data.loss);
    if (data.ready) idle("Ready");
    if (data.ended) idle(data.ended);
    if (data.broken) say(data.broken);
  };
  const { href } = location;
  worker.postMessage({ pyodide: new URL(config.pyodide, href).href, wheel: new URL(config.wheel, href).href });
}

function say(text) {
  at("status").value = text;
}

function idle(text) {
  clearTimeout(impatient);
  [at("run").disabled, at("stop").disabled] = [false, true];
  draw();
  say(text);
}

function run() {
  if (at("run").disabled) return;
  losses.length = 0;
  at("output").textContent = "";
  [at("run").disabled, at("stop").disabled] = [true, false];
  say("Running …");
  worker.postMessage({ program: at("program").value });
}

function stop() {
  say("Stopping …");
  worker.postMessage({ stop: true });
  impatient = setTimeout(() => {
    worker.terminate();
    at("stop").disabled = true;
    begin();
  }, PATIENCE);
}

function plot(step, loss) {
  losses.push(loss);
  at("step").value = step;
  at("loss").value = loss.toPrecision(4);
  if (losses.length === 1 || losses.length % 5 === 0) requestAnimationFrame(draw);
}

/** The logarithm of the loss over the steps. */
function draw() {
  const canvas = at("chart");
  const pen = canvas.getContext("2d");
  const shown = losses.map((x) => Math.log(Math.max(x, 1e-30))).filter(Number.isFinite);
  const [low, high] = [Math.min(...shown), Math.max(...shown)];
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = "#3584e4";
  pen.lineWidth = 2;
  pen.beginPath();
  shown.forEach((y, k) => {
    pen.lineTo((k / Math.max(1, shown.length - 1)) * canvas.width, 5 + ((high - y) / (high - low || 1)) * (canvas.height - 10));
  });
  pen.stroke();
}

at("run").addEventListener("click", run);
at("stop").addEventListener("click", stop);
at("program").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) run();
});
at("program").value = await (await fetch("sine.py")).text();
await begin();
