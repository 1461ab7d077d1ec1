"""examples/lora.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

RANK = 4


class Adapted(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.base = nn.Linear(n_in, n_out).requires_grad_(False)
        self.A = nn.Parameter(torch.randn(n_in, RANK) * n_in**-0.5)
        self.B = nn.Parameter(torch.zeros(RANK, n_out))

    def forward(self, x):
        return self.base(x) + x @ self.A @ self.B


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = Adapted(64, 128), Adapted(128, 10)

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


def loss(m, x, y):
    return F.cross_entropy(m(x), y)


def optimizer(m):
    return torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=5e-3)
