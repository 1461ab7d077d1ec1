// The device's bounds of parameters and optimizer states, and the steps that it did not apply because of them.
// The Python versions are tracegrad/engine/bounds.py and steps.py; optim/guard.py explains bounds.

import { fault } from "./checks.js";

export const UNIT = "norm-unit"; // the hot value that multiplies gradients before they are squared
// The fill of the arrays of the model's states: initialisers draw them, and the device looks at new values itself
export const DRAWN = "init";
const LARGE = 2 ** -80; // the unit in which no square of a finite gradient overflows
const MOST_NAMED = 4; // most names in an error
const TRIAL = -1; // as the first bound: apply the step whatever the bounds are

/** Return the name of the device's array of bounds. */
const boundsOf = ({ meta: { bounds = [], part } }) => `${part ? `${part.name}/` : ""}bounds.${bounds.length}`;

/** Write all bounds: by default unknown, so that the next step is a trial, which measures them. */
export function bound(session, program, values = (program.meta.bounds ?? []).map(() => Infinity)) {
  session.write(boundsOf(program), Float32Array.from(values));
}

/**
 * Try a step whatever the bounds are, then in the unit in which no square of a finite gradient overflows; return its
 * outputs. If not applied, nothing was changed, and `found` names new arrays that are not finite; none if a gradient is
 * not. `run(unit)` is a run with these further hot values.
 */
export async function tried(session, program, found, run) {
  const { meta: { bounds = [] }, buffers } = program;
  const kept = buffers.filter((b) => b.role === "state" || b.name === "params");
  const all = async () => new Map(await Promise.all(kept.map(async ({ name }) => [name, new Float32Array(await session.read(name))])));
  const measure = (arrays) => bound(session, program, bounds.map((name) => arrays.get(name).reduce((most, x) => Math.max(most, Math.abs(x)), 0)));
  const before = await all();
  for (const unit of [[], [[UNIT, LARGE]]]) {
    session.write("halted", new Int32Array(1));
    bound(session, program, bounds.map(() => TRIAL));
    const outputs = await run(unit);
    if (outputs.get("halted").data[0]) continue;
    const after = await all();
    const looked = kept.filter(({ name, fill }) => fill !== DRAWN && name !== boundsOf(program));
    const bad = looked.filter(({ name }) => !after.get(name).every(isFinite));
    if (!bad.length) {
      measure(after);
      return outputs;
    }
    found.push(...bad.map(({ name }) => `new ${name}`));
    break;
  }
  for (const [name, values] of before) session.write(name, values);
  measure(before);
}

/** Return the error of a step with this loss that was not applied; `found` names what is not finite. */
export function notFinite(what, loss, found) {
  const named = (what) => found.some((x) => x.startsWith(what));
  const odd = named("new") ? "the update" : named("gradient of") ? "a gradient" : "a value that the update computes";
  const but = isFinite(loss) ? `, but ${odd} is not finite` : "";
  const shown = found.slice(0, MOST_NAMED).join(", ") || odd;
  const more = found.length > MOST_NAMED ? ` and ${found.length - MOST_NAMED} more` : "";
  return fault("NonFiniteError", `${what}: the loss is ${loss}${but}; nothing was changed\nnot finite: ${shown}${more}`);
}
