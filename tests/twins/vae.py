"""examples/vae.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, CODE = 128, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.mean, self.spread = nn.Linear(64, WIDTH), nn.Linear(WIDTH, CODE), nn.Linear(WIDTH, CODE)
        self.write, self.pixels = nn.Linear(CODE, WIDTH), nn.Linear(WIDTH, 64)


def loss(m, x, noise):
    h = F.relu(m.read(x))
    mean, spread = m.mean(h), m.spread(h)
    pixels = m.pixels(F.relu(m.write(mean + torch.exp(0.5 * spread) * noise)))
    wrong = F.binary_cross_entropy_with_logits(pixels, x, reduction="sum") / len(x)
    return wrong - 0.5 * torch.sum(1 + spread - mean.square() - spread.exp()) / len(x)


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=3e-3)
