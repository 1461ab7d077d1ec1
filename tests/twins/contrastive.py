"""examples/contrastive.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

HEAT = 0.2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.dense, self.out = nn.Linear(32 * 4 * 4, 64), nn.Linear(64, 32)


def features(m, x):
    x = F.max_pool2d(F.relu(m.conv2(F.relu(m.conv1(x)))), 2)
    return F.relu(m.dense(x.flatten(1)))


def loss(m, one, two):
    a, b = (F.normalize(m.out(features(m, x)), dim=-1) for x in (one, two))
    alike = a @ b.T / HEAT
    same = torch.arange(len(one))
    return (F.cross_entropy(alike, same) + F.cross_entropy(alike.T, same)) / 2


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=2e-3)
