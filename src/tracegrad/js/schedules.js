// Learning-rate schedules from their specifications: tracegrad/lr.py has the formulas and their sources.

import { inputError } from "./arrays.js";

const line = (a, b, share) => a + (b - a) * share;
const cosine = (a, b, share) => b + ((a - b) * (1 + Math.cos(Math.PI * share))) / 2;

/** The rate at the schedule's own step `s`, from 1 on. */
const VALUE = {
  constant: (c) => c.rate,
  linear: (c, s) => c.peak + ((c.final - c.peak) * Math.min(s - 1, c.steps)) / c.steps,
  cosine_annealing: (c, s) => cosine(c.peak, c.final, Math.min(s - 1, c.steps) / c.steps),
  warmup: (c, s) => (s <= c.steps ? (c.peak * s) / c.steps : rateAt(asSchedule(c.after), s - c.steps)),
  staircase: (c, s) => c.peak * c.gamma ** Math.floor((s - 1) / c.every),
  multi_step: (c, s) => c.peak * c.gamma ** c.milestones.filter((m) => m < s).length,
  exponential: (c, s) => c.peak * c.gamma ** (s - 1),
  one_cycle(c, s) {
    const between = c.anneal === "cos" ? cosine : line;
    const first = c.peak / c.div_factor;
    const top = c.pct_start * c.steps - 1;
    const last = c.steps - 1;
    const e = Math.min(s - 1, last);
    if (e <= top) return between(first, c.peak, top > 0 ? e / top : 1);
    return between(c.peak, first / c.final_div_factor, (e - top) / (last - top));
  },
};

/** A specification, or the constant of a number. InputError for anything else. */
export function asSchedule(lr) {
  if (typeof lr === "number") {
    if (!(lr >= 0 && lr < Infinity)) throw inputError(`lr must be a finite number of at least 0, got ${lr}`);
    return { kind: "constant", rate: lr };
  }
  if (!lr || !Object.hasOwn(VALUE, lr.kind)) {
    throw inputError(`schedule of unknown kind ${lr?.kind}; known are ${Object.keys(VALUE).join(", ")}`);
  }
  return lr;
}

/** The rate at `step`; a schedule without a start of its own begins at `start`. */
export function rateAt(spec, step, start = 1) {
  return VALUE[spec.kind](spec, Math.max(1, step - (spec.start ?? start) + 1));
}
