"""examples/dqn.py in PyTorch."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.target = copy.deepcopy(self.q).requires_grad_(False)


def loss(m, state, action, reward, then, goes_on):
    goal = reward + 0.98 * goes_on * m.target(then).max(-1).values
    value = m.q(state).gather(1, action.unsqueeze(1))[:, 0]
    wrong = F.huber_loss(value, goal)
    with torch.no_grad():
        for old, new in zip(m.target.parameters(), m.q.parameters(), strict=True):
            old.mul_(0.995).add_(0.005 * new)
    return wrong


def optimizer(m):
    return torch.optim.Adam(m.q.parameters(), lr=5e-4)
