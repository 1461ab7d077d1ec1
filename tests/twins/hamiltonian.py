"""examples/hamiltonian.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 1, bias=False)

    def forward(self, state):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(state)))))


def loss(m, state, seen):
    state = state.requires_grad_()
    (slope,) = torch.autograd.grad(m(state).sum(), state, create_graph=True)
    return F.mse_loss(torch.stack([slope[:, 1], -slope[:, 0]], 1), seen)


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=4e-3)


def schedule(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3000, 1e-5)
