"""examples/sweep.py in PyTorch: one net and optimizer for each member."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


def loss(m, x, y):
    return F.cross_entropy(m(x), y)


def optimizer(m, lr, weight_decay):
    biases, weights = [p for p in m.parameters() if p.ndim == 1], [p for p in m.parameters() if p.ndim > 1]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights}]
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)
