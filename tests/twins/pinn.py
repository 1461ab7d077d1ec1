"""examples/pinn.py in PyTorch."""

import math

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(x)))))


def loss(m, x, ends):
    curvature = torch.vmap(torch.func.grad(torch.func.grad(lambda point: m(point.reshape(1, 1))[0, 0])))
    residual = curvature(x) + math.pi**2 * torch.sin(math.pi * x)
    return torch.mean(torch.square(residual)) + 100 * torch.mean(torch.square(m(ends)))


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=3e-3)
