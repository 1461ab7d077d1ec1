// The bench's models in jax-js: the whole step, Adam included, is one jitted function.

import { init, jit, lax, nn, numpy as np, tree, valueAndGrad, defaultDevice } from "@jax-js/jax";
import { mapShapes, shapes, start } from "./models.mjs";

const dense = (p, x) => np.matmul(x, p.w).add(p.b);
const crossEntropy = (logits, y, classes) => np.mean(np.sum(nn.logSoftmax(logits).mul(nn.oneHot(y, classes)), -1)).neg();

function layerNorm(p, x) {
  const centred = x.ref.sub(np.mean(x, -1, { keepdims: true }));
  const variance = np.mean(np.square(centred.ref), -1, { keepdims: true });
  return centred.mul(np.reciprocal(np.sqrt(variance.add(1e-5)))).mul(p.w).add(p.b);
}

/** Relu of a convolution and the largest of 2x2, which jax-js differentiates as a reduction of the reshaped array. */
function convolution(p, x) {
  const y = nn.relu(lax.conv(x, p.w, [1, 1], "SAME").add(np.reshape(p.b, [1, -1, 1, 1])));
  const [n, c, h, w] = y.shape;
  return np.max(np.reshape(y, [n, c, h / 2, 2, w / 2, 2]), [3, 5]);
}

function block(p, x, { heads }) {
  const [n, t, d] = x.shape;
  const h = layerNorm(p.n1, x.ref);
  const split = (layer, v) => np.reshape(dense(layer, v), [n, t, heads, d / heads]);
  const mixed = nn.dotProductAttention(split(p.q, h.ref), split(p.k, h.ref), split(p.v, h), { isCausal: true });
  x = x.add(dense(p.out, np.reshape(mixed, [n, t, d])));
  return x.ref.add(dense(p.down, nn.gelu(dense(p.up, layerNorm(p.n2, x)))));
}

const LOSSES = {
  sine: () => (p, { x, y }) => np.mean(np.square(dense(p.l3, nn.relu(dense(p.l2, nn.relu(dense(p.l1, x))))).sub(y))),
  mlp: () => (p, { x, y }) => crossEntropy(dense(p.l3, nn.relu(dense(p.l2, nn.relu(dense(p.l1, x))))), y, 10),
  cnn: () => (p, { x, y }) => {
    const z = convolution(p.c2, convolution(p.c1, x));
    return crossEntropy(dense(p.dense, np.reshape(z, [z.shape[0], -1])), y, 10);
  },
  gpt: (s) => (p, { tokens, following }) => {
    let x = np.matmul(nn.oneHot(tokens, s.vocabulary), p.token).add(p.position);
    for (let k = 0; k < s.layers; k++) x = block(p[`b${k}`], x, s);
    return crossEntropy(dense(p.head, layerNorm(p.norm, x)), following, s.vocabulary);
  },
};

export async function open(name, s) {
  if (!(await init("webgpu")).includes("webgpu")) throw new Error("jax-js finds no WebGPU");
  defaultDevice("webgpu");
  const loss = LOSSES[name](s);
  const update = jit((params, m, v, powers, batch) => {
    const [value, grads] = valueAndGrad((p) => loss(p, batch))(tree.ref(params));
    const [p1, p2] = [powers.ref.slice(0), powers.slice(1)];
    m = tree.map((a, g) => a.mul(0.9).add(g.ref.mul(0.1)), m, tree.ref(grads));
    v = tree.map((a, g) => a.mul(0.999).add(np.square(g).mul(0.001)), v, grads);
    const scale1 = np.reciprocal(np.array(1).sub(p1)), scale2 = np.reciprocal(np.array(1).sub(p2));
    params = tree.map((p, a, b) => p.sub(a.mul(scale1.ref).mul(1e-3).div(np.sqrt(b.mul(scale2.ref)).add(1e-8))), params, tree.ref(m), tree.ref(v));
    return [value, params, m, v];
  });
  let params = mapShapes(shapes(name, s), (shape, path) => np.array(start(shape, path)).reshape(shape));
  let m = mapShapes(shapes(name, s), (shape) => np.zeros(shape)), v = mapShapes(shapes(name, s), (shape) => np.zeros(shape));
  let value, count = 0;
  return {
    step(batch) {
      count++;
      const inputs = Object.fromEntries(Object.entries(batch).map(([key, { data, shape }]) => [key, np.array(data).reshape(shape)]));
      const powers = np.array(new Float32Array([0.9 ** count, 0.999 ** count]));
      value?.dispose();
      [value, params, m, v] = update(params, m, v, powers, inputs);
    },
    async loss() {
      return (await value.ref.data())[0];
    },
  };
}
