// How each library is timed: the same calls for all.

import { batches, sizes } from "./models.mjs";

const BLOCKS = 5;
const AHEAD = 16; // steps queued before the loss is read once, in the rows without reading

/** Times of one library on one model. `open` is the library's own; `seconds` for each of the two rates. */
export async function measure(open, name, { share = 1, seconds = 2, ...more } = {}) {
  const s = sizes(name, share);
  const rows = batches(name, s);
  const began = performance.now();
  const model = await open(name, s, more);
  model.step(rows[0]);
  const losses = [await model.loss()];
  const first = performance.now() - began;
  for (let k = 1; k < 4; k++) {
    model.step(rows[k]);
    losses.push(await model.loss());
  }
  const times = { read: [], queued: [] };
  let at = 0;
  for (const [kind, ahead] of [["read", 1], ["queued", AHEAD]]) {
    const whole = performance.now();
    for (let block = 0; block < BLOCKS && (!block || performance.now() - whole < 2000 * seconds); block++) {
      const start = performance.now();
      let steps = 0;
      do {
        const next = Array.from({ length: ahead }, () => rows[at++ % rows.length]);
        for (const batch of next) model.step(batch);
        losses.push(await model.loss());
        steps += ahead;
      } while (performance.now() - start < (1000 * seconds) / BLOCKS);
      times[kind].push((performance.now() - start) / steps);
    }
  }
  model.destroy?.();
  const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
  return { name, batch: s.batch, first, read: median(times.read), queued: median(times.queued), steps: at + 4, losses: [losses[0], losses.at(-1)] };
}
