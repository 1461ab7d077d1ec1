// Sizes that calls choose. A program computes in larger shapes, its room: inputs are put into it, and results are cut
// out of it. What follows from sizes is the work of tracegrad/compiler/portable.py, the choice of programs that of
// files/exported_sizes.py.

import { checkInputs, flat, refuse, typed } from "./arrays.js";
import { checkType, inputError, isGiven, isRecord, mapped, need, prod, shown, within } from "./checks.js";

const OPS = {
  add: (a, b) => a + b, sub: (a, b) => a - b, mul: (a, b) => a * b, truediv: (a, b) => a / b, pow: (a, b) => a ** b,
  floordiv: (a, b) => Math.floor(a / b), mod: (a, b) => a - b * Math.floor(a / b), neg: (a) => -a, pos: (a) => a,
  abs: Math.abs, float: (a) => a,
};

/** Return the programs of a forward, and the names of their checks. */
export function roomsOf({ program: first, rooms = [] }, name) {
  return [first, ...rooms].map((program, k) => ({ program, name: `${k || ""}${name}` }));
}

/** Return the largest sizes by name that one of some programs, {program}, serves. */
export function mostOf(programs) {
  const found = {};
  for (const { program: { meta: { room } } } of programs) {
    for (const [name, [, high]] of Object.entries(room?.sizes ?? {})) found[name] = Math.max(high, found[name] ?? 0);
  }
  return found;
}

/**
 * Return the one of some programs, {program}, that serves a call: `on`. Its inputs in its shapes are `arrays`. The hot
 * values that follow from the sizes are `numbers`. The function `cut` takes results. Inputs can have one more axis of
 * length `n` in front, unless `n` is 0. Without `given`, the run has the largest sizes of the first program. Throw
 * InputError with all problems.
 */
export function inRoom(programs, given, what, n = 0) {
  const [{ program: first }] = programs, fieldsOf = (p) => p.inputs.filter(isGiven);
  const { room } = first.meta;
  if (!room) return { on: programs[0], arrays: given !== undefined ? checkInputs(fieldsOf(first), given, what, n) : new Map(), numbers: {}, cut: (outputs) => outputs };
  const most = mostOf(programs);
  const sizes = given !== undefined ? sizesIn(fieldsOf(first), most, given, what, n) : mapped(room.sizes, ([, high]) => high);
  const on = programs.find(({ program: { meta } }) => Object.entries(meta.room.sizes).every(([name, [low, high]]) => low <= sizes[name] && sizes[name] <= high));
  if (!on) throw inputError(`${what}: the model does not take sizes of ${asGiven(sizes)}`);
  const { program } = on, { numbers = {}, specs = {}, results = {} } = program.meta.room;
  const then = following(program.meta.room, sizes);
  const own = fieldsOf(program);
  const arrays = new Map();
  if (given !== undefined) {
    const there = own.map((f) => ({ ...f, shape: shapeAt(f, sizes), spec: { ...f.spec, ...then(specs[f.name]) } }));
    const values = checkInputs(there, given, what, n);
    own.forEach((f, k) => arrays.set(f.name, padded(values.get(f.name), there[k].shape, f.shape)));
  }
  const cut = (outputs) => new Map([...outputs].map(([name, x]) => [name, Object.hasOwn(results, name) ? counting(x, then(results[name])) : x]));
  return { on, arrays, numbers: then(numbers), cut };
}

/** Return sizes as `train.export` takes them: one number if calls choose one size. */
const asGiven = (sizes) => JSON.stringify(Object.keys(sizes).length === 1 ? Object.values(sizes)[0] : sizes);
const shapeAt = (f, sizes) => f.shape.map((m, d) => (f.spec.sizes[d] === null ? m : sizes[f.spec.sizes[d]]));

/** Return the sizes of a call by name. */
function sizesIn(fields, most, given, what, n) {
  if (!isRecord(given)) return checkInputs(fields, given, what); // says so
  const found = { __proto__: null }, problems = [];
  const text = (f) => typed({ ...f, shape: f.shape.map((m, d) => f.spec.sizes[d]?.split(" ")[0] ?? m) });
  for (const f of fields) {
    const names = f.spec.sizes, open = names.flatMap((name, d) => (name === null ? [] : [d]));
    if (!open.length || !Object.hasOwn(given, f.name)) continue;
    const { data, shape: own } = within(f.name, () => flat(given[f.name]));
    let shape = own ?? [];
    if (!own && open.length === 1 && !n) { // of a flat array, one size follows
      const row = prod(f.shape.filter((_, d) => d !== open[0]));
      shape = f.shape.map((m, d) => (d === open[0] ? data.length / row : m));
    }
    const more = n && shape.length === names.length + 1 ? 1 : 0;
    const fits = shape.length === names.length + more && (!more || shape[0] === n);
    if (!fits || f.shape.some((m, d) => (names[d] === null ? shape[d + more] !== m : !Number.isInteger(shape[d + more])))) {
      const got = !own ? `${data.length} values; pass {data, shape}` : `shape [${shape}]`;
      problems.push(`${f.name}: expected ${text(f)}${n ? ` or ${n} of them` : ""}, got ${got}`);
      continue;
    }
    for (const d of open) {
      const name = names[d], size = shape[d + more], before = found[name] ??= { size, where: `${f.name} axis ${d}` };
      const label = name.replace("None at ", ""); // of a size that has no name in Python
      if (before.size !== size) problems.push(`${label} must be one size in a call: ${before.where} is ${before.size}, ${f.name} axis ${d} is ${size}`);
      else if (size < 1) problems.push(`${f.name}: it is empty; ${label} must be at least 1`);
      else if (size > most[name]) problems.push(`${f.name}: its shape is [${shape.slice(more)}], but the largest here is ${typed({ ...f, shape: shapeAt(f, most) })}. ${label} is at most ${most[name]}: pass less, or export again in Python with a larger one in sizes=${asGiven(most)}`);
    }
  }
  refuse(what, problems);
  return mapped(most, (m, name) => found[name]?.size ?? m); // an input that is missing is told later
}

/** Return a function that puts numbers in place of each {at: k} in plain data. */
function following({ names = [], instructions = [] }, sizes) {
  const values = names.map((name) => sizes[name]);
  const then = (x) => {
    if (Array.isArray(x)) return x.map(then);
    return isRecord(x) ? (Object.hasOwn(x, "at") ? values[x.at] : mapped(x, then)) : x;
  };
  for (const [op, ...args] of instructions) values.push(OPS[op](...then(args)));
  return then;
}

/** Return the values of one or several runs with zeros in place of what the room has more. */
function padded(values, shape, room) {
  const size = prod(shape), runs = values.length / size;
  if (size === prod(room)) return values;
  const out = new values.constructor(runs * prod(room));
  for (let k = 0; k < runs; k++) corner(shape, values.subarray(k * size), shape, out.subarray(k * prod(room)), room);
  return out;
}

/** Return the part of a result that counts. */
function counting({ dtype, data }, { room, counts, shape }) {
  const out = new data.constructor(prod(counts));
  corner(counts, data, room, out, counts);
  return { dtype, shape, data: out };
}

/** Copy the elements whose coordinates are below those of `box`, from an array of one shape to one of another. */
function corner(box, from, shape, to, other) {
  const outer = box.slice(0, -1), run = box.at(-1) ?? 1;
  for (let r = prod(outer) - 1; r >= 0; r--) {
    let a = 0, b = 0;
    for (let d = outer.length - 1, rest = r, by = 1, into = 1; d >= 0; rest = Math.floor(rest / outer[d--])) {
      by *= shape[d + 1];
      into *= other[d + 1];
      a += (rest % outer[d]) * by;
      b += (rest % outer[d]) * into;
    }
    to.set(from.subarray(a, a + run), b);
  }
}

/** Return an array, or a list or record of arrays, in a forward's form. */
export function assembled(outputs, structure) {
  if (!structure) return outputs.get("output");
  if (Array.isArray(structure)) return structure.map((name) => outputs.get(name));
  return mapped(structure, (name) => outputs.get(name));
}

/** Check the programs of one step or forward, of which there are several for many sizes. `check`: the rest of each. */
export function checkRooms(where, programs, check) {
  programs.forEach((program, k) => {
    const each = k ? `${where}.rooms[${k - 1}]` : where, at = `${each}.meta.room`;
    check(each, program);
    const { meta: { room }, inputs } = program;
    if (room === undefined) return need(programs.length === 1, at, "is missing");
    const { sizes, names = [], instructions = [], numbers = {}, results = {} } = room;
    checkType(`${at}.sizes`, sizes, mapped(isRecord(sizes) ? sizes : {}, () => ["size", "size"]));
    checkType(`${at}.names`, names, ["text"]);
    need(names.every((name) => Object.hasOwn(sizes, name)), `${at}.names`, "are not those of its sizes");
    const isKnown = (x, last) => Number.isFinite(x) || (isRecord(x) && Object.hasOwn(x, "at") && Number.isInteger(x.at) && x.at >= 0 && x.at < last);
    need(Array.isArray(instructions), `${at}.instructions`, "are no list");
    instructions.forEach((x, i) => need(Array.isArray(x) && Object.hasOwn(OPS, x[0]) && x.slice(1).every((y) => isKnown(y, names.length + i)), `${at}.instructions[${i}]`, `is ${shown(x)}`));
    const last = names.length + instructions.length, all = (x) => Array.isArray(x) && x.every((y) => isKnown(y, last));
    need(isRecord(numbers) && Object.values(numbers).every((x) => isKnown(x, last)), `${at}.numbers`, "are none");
    need(isRecord(results) && Object.values(results).every((x) => isRecord(x) && all(x.room) && all(x.counts) && all(x.shape) && x.room.length === x.counts.length), `${at}.results`, "are no shapes");
    for (const f of inputs.filter(isGiven)) {
      const fits = Array.isArray(f.spec.sizes) && f.spec.sizes.length === f.shape.length && f.spec.sizes.every((name, d) => name === null || (Object.hasOwn(sizes, name) && sizes[name][1] === f.shape[d]));
      need(fits, `${at}.sizes`, `are not those of the input ${shown(f.name)}`);
    }
  });
}
