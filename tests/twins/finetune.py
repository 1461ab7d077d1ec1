"""examples/finetune.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def loss(m, x, y):
    return F.cross_entropy(m(x), y)


def optimizer(m):
    return torch.optim.Adam(
        [{"params": m.body.parameters(), "lr": 1e-4}, {"params": m.head.parameters(), "lr": 1e-3}]
    )  # fmt: skip
