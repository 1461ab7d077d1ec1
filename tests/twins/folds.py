"""examples/folds.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


def loss(m, x, y):
    return F.cross_entropy(m(x), y)


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=1e-3)
