# Python traces and compiles in this tab, and WebGPU trains. Edit the program, then press Run.
import math
import random

from page import plot  # plot(step, loss) draws below

import tracegrad as tg
from tracegrad import lr, nn, optim

STEPS, BATCH = 300, 32


class MLP(tg.Module):
    def __init__(self, width=16):
        self.l1, self.l2 = nn.Linear(1, width), nn.Linear(width, width)
        self.l3 = nn.Linear(width, 1)


def predict(m, x):
    return m.l3(tg.relu(m.l2(tg.relu(m.l1(x)))))


def loss(m, x, y):
    return tg.mean(tg.square(predict(m, x) - y))


with tg.compile(
    model=MLP(),
    loss=loss,
    inputs={"x": (BATCH, 1), "y": (BATCH, 1)},
    optimizer=optim.adam(lr=lr.cosine_annealing(peak=2e-2, final=1e-3, steps=STEPS)),
    seed=0,
) as train:
    print(train)
    for _ in range(STEPS):
        xs = [[random.uniform(-3, 3)] for _ in range(BATCH)]
        r = await train.step(x=xs, y=[[math.sin(x)] for (x,) in xs])
        plot(r.step, r.loss)

    infer = train.attach(forward=predict, inputs={"x": (None, 1)})
    for x, (y,) in zip((-2, -1, 0, 1, 2), (await infer.run(x=[[-2], [-1], [0], [1], [2]])).output.tolist()):
        print(f"sin({x:2}) = {math.sin(x):6.3f}   model: {y:6.3f}")
