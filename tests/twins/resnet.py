"""examples/resnet.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)
        self.short = nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.short(x) + self.norm2(self.conv2(y)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.ModuleList([Block(16, 16, 1), Block(16, 32, 2)])
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean((2, 3)))


def loss(m, x, y):
    return F.cross_entropy(m(x), y)


def optimizer(m):
    return torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
