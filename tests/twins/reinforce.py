"""examples/reinforce.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

CARTS = 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(4, 64), nn.Linear(64, 2)

    def forward(self, state):
        return self.l2(torch.tanh(self.l1(state)))


def loss(m, state, action, advantage):
    chosen = F.log_softmax(m(state), -1).gather(-1, action.unsqueeze(-1))[..., 0]
    return -(chosen * advantage).sum() / CARTS


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=1e-2)
