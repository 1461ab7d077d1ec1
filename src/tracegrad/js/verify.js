// Check kernels before their results are used, to find a driver or browser that computes wrongly. The runs and their
// expected results were recorded with the program (tracegrad/runtime/recorded.py). This file makes only the patterns, the
// bits of tracegrad/runtime/repeated.py. It knows no op.

import { checkType, fault, need, parsed, prod, within } from "./checks.js";
import { checkProgram } from "./manifest.js";
import { uniform } from "./random.js";

const CHECK = 3; // version of what is checked, and how
const ANY = 0x7fc00000; // bits of elements that are not compared
const PERIOD = 4093, LOW = 0.05, HIGH = 2, NEGATIVE = 0.3, BEYOND = 3; // of patterns
const FACTS = {
  program: { kernels: "list" }, table: [["text", "whole"]], seeds: ["count"], checks: [["size", "text", "size", "size"]],
  allowed: [[["number", "number"]]], groups: [["size", "size", "size"]], lines: "record",
};

/**
 * Load a program by `load()`, and prepare its check meanwhile, so that both are ready together.
 * `file()` returns the checks of all programs, like readSafetensors; `name` selects this program's.
 */
export async function loadVerified(session, program, name, file, load) {
  const loading = load(); // first, so that the program gets memory before the check
  const checking = verify(session, program, name, file);
  checking.catch(() => {}); // if neither can compile a kernel, the program's own error is reported
  const loaded = await loading;
  try {
    await checking;
    return loaded;
  } catch (e) {
    session.unload(loaded);
    throw e;
  }
}

/** Check kernels, unless this device has verdicts on them. Throw CompileError naming a wrong one. */
async function verify(session, program, name, file) {
  const state = [CHECK, session.identity, globalThis.navigator?.userAgent, JSON.stringify(program.kernels)];
  const key = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(state.join("\0")));
  if (await verdicts("readonly", (store) => store.get(key))) return;
  const { tensors, metadata } = await file();
  if (!Object.hasOwn(metadata, name)) return; // nothing in it could be checked
  const check = within(`checks.safetensors is damaged: ${name}`, () => readCheck(program, parsed("the check", metadata[name]), (part) => tensors.get(`${name}/${part}`)?.data));
  if (await refuseWrong(session, program, check)) await verdicts("readwrite", (store) => store.put(true, key));
}

function readCheck(program, facts, part) {
  checkType("", facts, FACTS);
  const check = { ...facts, program: { ...facts.program, kernels: facts.program.kernels.map((k) => program.kernels[k] ?? k) } };
  checkProgram("program", check.program, new Map(), {});
  check.picks = part("picks");
  check.expected = facts.seeds.map((_, k) => part(`found.${k}`));
  const [table, picks] = check.program.inputs.map((f) => prod(f.shape)), found = prod(check.program.outputs[0].shape);
  const whole = check.picks?.length === picks && lengthOf(check) === table && check.expected.every((x) => found > x?.length);
  need(whole && check.checks.every(([n]) => program.kernels[n]), "its arrays", "do not fit");
  return check;
}

/** Run all kernels, and wrong ones again with other numbers, because a tie that rounding decides is not a defect. */
async function refuseWrong(session, program, check) {
  let wrong, loaded;
  try {
    loaded = await session.load(session.software ? withSomeGroups(check) : check.program);
    const [table, picks] = check.program.inputs;
    for (const k of check.seeds.keys()) {
      const [outputs] = await session.run(loaded, [(set) => (set(table, tableOf(check, check.seeds[k])), set(picks, check.picks))]);
      const found = differences(check, k, outputs.get("found").data);
      wrong = new Map([...found].filter(([n]) => wrong?.has(n) ?? true));
      if (!wrong.size) return true;
    }
  } catch (e) {
    if (session.lost || e.name !== "DeviceError") throw e;
    console.warn(`kernels could not be checked: ${e.message}`); // too little memory beside the program's own
    return false;
  } finally {
    if (loaded) session.unload(loaded);
  }
  const [[n, how]] = wrong;
  const lines = (check.lines[n] ?? []).map((line) => `\n  at ${line}`).join("");
  throw Object.assign(fault("CompileError", `kernel ${program.kernels[n].label} computes wrongly on this device: ${how}. Try another browser, driver or device${lines}`), { kernel: n });
}

/**
 * The check's program for a software adapter, where a whole kernel takes as long as in a step. So only those workgroups
 * of a kernel run whose results are compared. The text reads the number of the first workgroup behind its offsets.
 */
function withSomeGroups({ program, groups }) {
  const kernels = program.kernels.map((k) => (k.serial_wgsl ? { ...k, wgsl: k.serial_wgsl, serial_wgsl: "" } : k));
  const dispatches = program.dispatches.flatMap((d, n) => {
    const { serial_wgsl: serial, serial_grid: grid } = program.kernels[d.kernel];
    const some = groups.filter(([of]) => of === n).map(([, first, size]) => ({ ...d, offsets: [...d.offsets, first], grid: [size, 1] }));
    return some.length ? some : [serial ? { ...d, grid } : d];
  });
  return { ...program, kernels, dispatches };
}

/** Return, by number, a description of what each wrong kernel computes. */
function differences({ checks, allowed, expected }, k, got) {
  const want = expected[k], floats = [got, want].map((x) => new Float32Array(x.buffer, x.byteOffset, x.length));
  const out = new Map();
  checks.forEach(([n, kind, begin, size], c) => {
    const [of, from] = kind[0] === "f" ? floats : kind === "bool" ? [got, want].map((x) => ({ at: (e) => +!!x[e] })) : [got, want];
    const [all, each] = kind[0] === "f" ? allowed[k][c] : [0, 0];
    const bad = [];
    for (let e = begin; e < begin + size; e++) {
      const y = from.at(e);
      if (want[e] !== ANY && !(Math.abs(of.at(e) - y) <= all + each * Math.abs(y))) bad.push(e);
    }
    if (bad.length && !out.has(n)) out.set(n, `a value is ${of.at(bad[0])}, not ${from.at(bad[0])}; ${bad.length} of ${size} are wrong`);
  });
  return out;
}

const lengthOf = ({ table }) => table.reduce((sum, [kind]) => sum + (kind === "one" ? 1 : PERIOD), 0);

/** Return the bits of all patterns and single numbers that arrays are filled with. */
function tableOf(check, seed) {
  const out = new Int32Array(lengthOf(check));
  let at = 0;
  for (const [kind, x] of check.table) {
    const part = kind === "one" ? [x] : pattern(kind, x, seed);
    out.set(part, (at += part.length) - part.length);
  }
  return out;
}

/** Return one period of floats or, below a limit, integers, as bits. Some signed integers are past either end. */
export function pattern(dtype, below, seed) {
  const first = (e) => uniform(seed, 2 * e), second = (e) => uniform(seed, 2 * Math.min(e, PERIOD - 1) + 1);
  if (!below) {
    const half = (x, unit) => Math.round(x / unit) * unit;
    const values = new Float32Array(PERIOD).map((_, e) => {
      const x = LOW + (HIGH - LOW) * first(e);
      return (second(e) < NEGATIVE ? -1 : 1) * (dtype === "f16" ? half(x, 2 ** (Math.floor(Math.log2(x)) - 10)) : x);
    });
    return new Int32Array(values.buffer);
  }
  const out = new Int32Array(PERIOD).map((_, e) => Math.floor(below * first(e)));
  for (const [past, step, place] of dtype === "i32" ? [[below - 1, BEYOND, 0], [-1, 2 * BEYOND, 1]] : []) {
    for (let e = 0; e < PERIOD; e += step) out[Math.min(e + Math.floor(BEYOND * second(e + place)), PERIOD - 1)] = past;
  }
  return out;
}

/** Return what `use` requests of this browser's verdicts; nothing if a page cannot store any. */
function verdicts(mode, use) {
  return new Promise((resolve) => {
    const attempt = (work) => {
      try {
        work();
      } catch {
        resolve(); // a page without an origin, or Node
      }
    };
    attempt(() => {
      const opening = indexedDB.open("tracegrad", 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("verdicts");
      opening.onerror = () => resolve();
      opening.onsuccess = () => attempt(() => {
        const asked = use(opening.result.transaction("verdicts", mode).objectStore("verdicts"));
        asked.onsuccess = () => resolve(asked.result);
        asked.onerror = () => resolve();
        opening.result.close(); // after the request was answered
      });
    });
  });
}
