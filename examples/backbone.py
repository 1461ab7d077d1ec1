"""A ResNet with frozen weights and torchvision's names, under a new head. Run: python examples/backbone.py

The attributes have the names of torchvision's `resnet18`, so `tg.from_torch` reads a file of its weights directly:
`python examples/backbone.py resnet18.pth`. Without a file, the program first trains a narrow backbone on even digits.
The new head learns odd digits. The backbone runs in inference mode: its gradient is not computed, and its running
statistics do not change. Needs PyTorch.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH, WIDTH = 32, 8


class BasicBlock(tg.Module):
    """relu(x + f(x)), where f is two convolutions, each followed by a norm."""

    def __init__(self, n_in: int, n_out: int, stride: int):
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm(n_out), nn.BatchNorm(n_out)
        self.downsample = nn.Sequential()
        if n_in != n_out:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False), nn.BatchNorm(n_out))

    def __call__(self, x: tg.Tensor, training: bool) -> tg.Tensor:
        y = tg.relu(self.bn1(self.conv1(x), training))
        return tg.relu(self.downsample(x, training) + self.bn2(self.conv2(y), training))


def stage(n_in: int, n_out: int, stride: int = 2) -> nn.Sequential:
    return nn.Sequential(BasicBlock(n_in, n_out, stride), BasicBlock(n_out, n_out, 1))


class ResNet(tg.Module):
    """The layers of torchvision's resnet18, whose `width` is 64."""

    def __init__(self, width: int = WIDTH, classes: int = 10):
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm(width)
        self.layer1, self.layer2 = stage(width, width, 1), stage(width, 2 * width)
        self.layer3, self.layer4 = stage(2 * width, 4 * width), stage(4 * width, 8 * width)
        self.fc = nn.Linear(8 * width, classes)

    def __call__(self, x: tg.Tensor, training: bool = False) -> tg.Tensor:
        x = tg.max_pool2d(tg.relu(self.bn1(self.conv1(x), training)), 3, stride=2, padding=1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x, training)
        return self.fc(tg.mean(x, axis=(2, 3)))


def loss(m: ResNet, x: tg.Tensor, y: tg.Tensor, training: bool = False) -> tg.Tensor:
    return tg.cross_entropy(m(x, training), y)


INPUTS = {"x": (BATCH, 3, 32, 32), "y": tg.i32[BATCH]}


def training(device: str = "auto", width: int = WIDTH, keep_grads: bool = False) -> tg.CompiledTraining:
    """Compile a training of the head only."""
    return tg.compile(
        model=ResNet(width), loss=loss, inputs=INPUTS, optimizer=optim.sgd(lr=0.1, momentum=0.9),
        frozen=lambda name: not name.startswith("fc."), seed=0, device=device, keep_grads=keep_grads,
    )  # fmt: skip


def enlarged(images: np.ndarray) -> np.ndarray:
    """Enlarge images [n, 1, 8, 8] to [n, 3, 32, 32], with three equal colours."""
    return images.repeat(4, axis=2).repeat(4, axis=3).repeat(3, axis=1)


def batches(steps: int, odd: int = 1) -> Iterator[dict[str, np.ndarray]]:
    data, rng = load_digits(), np.random.default_rng(0)
    own = np.flatnonzero(data.train_y % 2 == odd)
    for _ in range(steps):
        picked = rng.choice(own, BATCH)
        yield {"x": enlarged(data.train_x[picked]), "y": data.train_y[picked]}


def pretrained(steps: int, device: str) -> dict[str, Any]:
    """Train a network on even digits, and return its state_dict. The norms use the statistics of each batch."""
    with tg.compile(
        model=ResNet(), loss=partial(loss, training=True), inputs=INPUTS, optimizer=optim.adam(lr=3e-3), seed=0,
        device=device,
    ) as train:  # fmt: skip
        train.fit(batches(steps, odd=0), progress=False)
        return tg.to_torch(train)


def without_head(name: str) -> str | None:
    return None if name.startswith("fc.") else name


def fine_tuned(weights: Mapping[str, Any], steps: int, device: str = "auto") -> tuple[float, dict[str, Any]]:
    """Train a new head, and return its accuracy on unseen odd digits and the state_dict of all layers."""
    data = load_digits()
    odd = data.test_y % 2 == 1
    with training(device, width=len(weights["bn1.weight"])) as train:
        print(str(tg.from_torch(weights, train, rename=without_head)).splitlines()[0])
        train.fit(batches(steps), progress=False)
        infer = train.attach(forward=ResNet.__call__, inputs={"x": (None, 3, 32, 32)})
        right = infer.run(x=enlarged(data.test_x[odd])).output.argmax(1) == data.test_y[odd]
        return float(right.mean()), tg.to_torch(train)


def main(steps: int = 200, device: str = "auto", path: str | None = None) -> float:
    weights = torch.load(path, weights_only=True) if path else pretrained(steps, device)
    right, tuned = fine_tuned(weights, steps, device)
    print(f"odd digits, by a new head: {right:.1%}; {len(tuned)} arrays for load_state_dict")
    return right


if __name__ == "__main__":
    main(path=sys.argv[1] if sys.argv[1:] else None)
