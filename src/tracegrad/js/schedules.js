// Learning-rate schedules from their specifications: tracegrad/lr.py has the formulas and their sources.

const line = (a, b, share) => a + (b - a) * share;
const cosine = (a, b, share) => b + ((a - b) * (1 + Math.cos(Math.PI * share))) / 2;

/** Return the rate at the schedule's own step `s`, from 1 on. */
const VALUE = {
  constant: (c) => c.rate,
  linear: (c, s) => c.peak + ((c.final - c.peak) * Math.min(s - 1, c.steps)) / c.steps,
  cosine_annealing: (c, s) => cosine(c.peak, c.final, Math.min(s - 1, c.steps) / c.steps),
  cosine_restarts(c, s) {
    let n = c.steps;
    for (; c.growth > 1 && s > n; n *= c.growth) s -= n;
    return cosine(c.peak, c.final, ((s - 1) % n) / n);
  },
  warmup: (c, s) => (s <= c.steps ? (c.peak * s) / c.steps : rateAt(c.after, s - c.steps)),
  staircase: (c, s) => c.peak * c.gamma ** Math.floor((s - 1) / c.every),
  multi_step: (c, s) => c.peak * c.gamma ** c.milestones.filter((m) => m < s).length,
  exponential: (c, s) => c.peak * c.gamma ** (s - 1),
  plateau: (c) => c.now ?? c.peak,
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

/** Return the schedule, a plateau or a warmup before one, after one more metric. */
export function afterMetric(c, metric) {
  if (c.after) return { ...c, after: afterMetric(c.after, metric) };
  const sign = c.mode === "max" ? 1 : -1;
  const margin = c.threshold * (c.threshold_mode === "rel" ? c.best : 1);
  const better = !Number.isNaN(metric) && (c.best === null || sign * metric > sign * (c.best + sign * margin));
  const bad = better || c.cooling ? 0 : c.bad + 1;
  const next = { ...c, now: c.now ?? c.peak, best: better ? metric : c.best, bad, cooling: Math.max(0, c.cooling - 1) };
  if (bad > c.patience) {
    const lower = Math.max(next.now * c.factor, c.min_lr);
    if (next.now - lower > c.eps) next.now = lower;
    Object.assign(next, { bad: 0, cooling: c.cooldown });
  }
  return next;
}

/** Return the schedule that begins last. */
export const lastOf = (c) => (c.after ? lastOf(c.after) : c);

/** Return the schedule without its metrics. */
export const restarted = (c) => (c.after ? { ...c, after: restarted(c.after) } : c.kind === "plateau" ? { ...c, now: null, best: null, bad: 0, cooling: 0 } : c);

/** Return the rate at `step`; a schedule without its own start begins at `start`. A number is a constant rate. */
export function rateAt(spec, step, start = 1) {
  if (typeof spec === "number") return spec;
  return VALUE[spec.kind](spec, Math.max(1, step - ((spec.start ?? start) || 1) + 1));
}
