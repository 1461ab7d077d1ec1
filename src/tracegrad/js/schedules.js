// Learning-rate schedules from their specifications: tracegrad/lr.py has the formulas and their sources.

const line = (a, b, share) => a + (b - a) * share;
const cosine = (a, b, share) => b + ((a - b) * (1 + Math.cos(Math.PI * share))) / 2;

/** The rate at the schedule's own step `s`, from 1 on. */
const VALUE = {
  constant: (c) => c.rate,
  linear: (c, s) => c.peak + ((c.final - c.peak) * Math.min(s - 1, c.steps)) / c.steps,
  cosine_annealing: (c, s) => cosine(c.peak, c.final, Math.min(s - 1, c.steps) / c.steps),
  warmup: (c, s) => (s <= c.steps ? (c.peak * s) / c.steps : rateAt(c.after, s - c.steps)),
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

/** The rate at `step`; a schedule without a start of its own begins at `start`. A number is a constant rate. */
export function rateAt(spec, step, start = 1) {
  if (typeof spec === "number") return spec;
  return VALUE[spec.kind](spec, Math.max(1, step - ((spec.start ?? start) || 1) + 1));
}
