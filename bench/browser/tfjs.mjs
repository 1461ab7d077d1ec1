// The bench's models in TensorFlow.js, with its own Adam, on its WebGPU backend.

import * as tf from "@tensorflow/tfjs";
import "@tensorflow/tfjs-backend-webgpu";
import { mapShapes, shapes, start } from "./models.mjs";

const dense = (p, x) => (x.rank === 2 ? tf.matMul(x, p.w) : tf.reshape(tf.matMul(tf.reshape(x, [-1, p.w.shape[0]]), p.w), [...x.shape.slice(0, -1), p.w.shape[1]])).add(p.b);
const crossEntropy = (logits, y, classes) => tf.losses.softmaxCrossEntropy(tf.oneHot(tf.reshape(y, [-1]), classes), tf.reshape(logits, [-1, classes]));

function layerNorm(p, x) {
  const { mean, variance } = tf.moments(x, -1, true);
  return x.sub(mean).mul(tf.rsqrt(variance.add(1e-5))).mul(p.w).add(p.b);
}

/** NHWC, the layout that TensorFlow.js computes in. */
const convolution = (p, x) => tf.maxPool(tf.relu(tf.conv2d(x, tf.transpose(p.w, [2, 3, 1, 0]), 1, "same").add(p.b)), 2, 2, "valid");
const gelu = (x) => x.mul(0.5).mul(tf.tanh(x.add(tf.pow(x, 3).mul(0.044715)).mul(Math.sqrt(2 / Math.PI))).add(1));

function block(p, x, { heads }, mask) {
  const [n, t, d] = x.shape;
  const h = layerNorm(p.n1, x);
  const split = (layer) => tf.transpose(tf.reshape(dense(layer, h), [n, t, heads, d / heads]), [0, 2, 1, 3]);
  const scores = tf.softmax(tf.matMul(split(p.q), split(p.k), false, true).mul(1 / Math.sqrt(d / heads)).add(mask));
  const mixed = tf.reshape(tf.transpose(tf.matMul(scores, split(p.v)), [0, 2, 1, 3]), [n, t, d]);
  x = x.add(dense(p.out, mixed));
  return x.add(dense(p.down, gelu(dense(p.up, layerNorm(p.n2, x)))));
}

const LOSSES = {
  sine: () => (p, { x, y }) => tf.losses.meanSquaredError(y, dense(p.l3, tf.relu(dense(p.l2, tf.relu(dense(p.l1, x)))))),
  mlp: () => (p, { x, y }) => crossEntropy(dense(p.l3, tf.relu(dense(p.l2, tf.relu(dense(p.l1, x))))), y, 10),
  cnn: () => (p, { x, y }) => {
    const z = convolution(p.c2, convolution(p.c1, tf.reshape(x, [-1, 28, 28, 1])));
    return crossEntropy(dense(p.dense, tf.reshape(z, [z.shape[0], -1])), y, 10);
  },
  gpt: (s) => {
    const mask = tf.keep(tf.tidy(() => tf.linalg.bandPart(tf.ones([s.context, s.context]), -1, 0).sub(1).mul(1e9)));
    return (p, { tokens, following }) => {
      let x = tf.reshape(tf.matMul(tf.cast(tf.oneHot(tf.reshape(tokens, [-1]), s.vocabulary), "float32"), p.token), [-1, s.context, s.width]).add(p.position);
      for (let k = 0; k < s.layers; k++) x = block(p[`b${k}`], x, s, mask);
      return crossEntropy(dense(p.head, layerNorm(p.norm, x)), following, s.vocabulary);
    };
  },
};

/** `backend`: "webgpu", or another one, which the table then names. */
export async function open(name, s, { backend = "webgpu" } = {}) {
  if (!(await tf.setBackend(backend))) throw new Error(`TensorFlow.js cannot use ${backend}`);
  await tf.ready();
  const loss = LOSSES[name](s);
  const params = mapShapes(shapes(name, s), (shape, path) => tf.variable(tf.tensor(start(shape, path), shape)));
  const optimizer = tf.train.adam(1e-3);
  let value;
  return {
    step(batch) {
      value?.dispose();
      value = tf.tidy(() => {
        const inputs = Object.fromEntries(Object.entries(batch).map(([key, { data, shape }]) => [key, tf.tensor(data, shape)]));
        return optimizer.minimize(() => loss(params, inputs), true);
      });
    },
    async loss() {
      return (await value.data())[0];
    },
  };
}
