// What every library of the bench trains: the models' sizes, their first parameters' shapes, and batches from the host.

/** Sizes by model, `share` of the batch: software adapters are slow. */
export function sizes(name, share = 1) {
  const all = {
    sine: { batch: 256, width: 64 },
    mlp: { batch: 128, width: 512 },
    cnn: { batch: 64, a: 16, b: 32 },
    gpt: { batch: 32, vocabulary: 65, context: 64, width: 128, layers: 4, heads: 4 },
  };
  return { ...all[name], batch: Math.max(1, Math.round(all[name].batch * share)) };
}

const linear = (n, m) => ({ w: [n, m], b: [m] });

/** Shapes of the parameters, as a tree. */
export function shapes(name, s) {
  if (name === "sine") return { l1: linear(1, s.width), l2: linear(s.width, s.width), l3: linear(s.width, 1) };
  if (name === "mlp") return { l1: linear(784, s.width), l2: linear(s.width, s.width), l3: linear(s.width, 10) };
  if (name === "cnn") return { c1: { w: [s.a, 1, 3, 3], b: [s.a] }, c2: { w: [s.b, s.a, 3, 3], b: [s.b] }, dense: linear(s.b * 49, 10) };
  const norm = { w: [s.width], b: [s.width] }, square = linear(s.width, s.width);
  const block = { n1: norm, q: square, k: square, v: square, out: square, n2: norm, up: linear(s.width, 4 * s.width), down: linear(4 * s.width, s.width) };
  const blocks = Object.fromEntries(Array.from({ length: s.layers }, (_, k) => [`b${k}`, block]));
  return { token: [s.vocabulary, s.width], position: [s.context, s.width], ...blocks, norm, head: linear(s.width, s.vocabulary) };
}

/** `f(shape, path)` for every array of the tree of shapes. */
export function mapShapes(tree, f, path = []) {
  if (Array.isArray(tree)) return f(tree, path);
  return Object.fromEntries(Object.entries(tree).map(([key, value]) => [key, mapShapes(value, f, [...path, key])]));
}

const random = (() => {
  let state = 1;
  return () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
})();

/** Values for one parameter: uniform of the width that keeps variances; norms are ones, biases zeros. */
export function start(shape, path) {
  const values = new Float32Array(shape.reduce((a, b) => a * b, 1));
  if (shape.length === 1) return values.fill(path.at(-1) === "w" ? 1 : 0);
  const fan = shape.length === 4 ? 9 * shape[1] : path.length === 1 ? 1e4 : shape[0];
  return values.map(() => (2 * random() - 1) * Math.sqrt(3 / fan));
}

/** Four batches, taken in turn: {name: {data, shape}}. */
export function batches(name, s) {
  const floats = (...shape) => ({ shape, data: Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => 2 * random() - 1) });
  const ints = (below, ...shape) => ({ shape, data: Int32Array.from({ length: shape.reduce((a, b) => a * b) }, () => Math.floor(below * random())) });
  return Array.from({ length: 4 }, () => {
    if (name === "sine") {
      const x = floats(s.batch, 1);
      return { x, y: { ...x, data: x.data.map((v) => Math.sin(3 * v)) } };
    }
    if (name === "mlp") return { x: floats(s.batch, 784), y: ints(10, s.batch) };
    if (name === "cnn") return { x: floats(s.batch, 1, 28, 28), y: ints(10, s.batch) };
    return { tokens: ints(s.vocabulary, s.batch, s.context), following: ints(s.vocabulary, s.batch, s.context) };
  });
}
