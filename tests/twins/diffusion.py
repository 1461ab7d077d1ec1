"""examples/diffusion.py in PyTorch."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

TIMES = 50
KEPT = torch.tensor(np.cumprod(1 - np.linspace(1e-4, 0.2, TIMES)), dtype=torch.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.point, self.time = nn.Linear(2, 128), nn.Embedding(TIMES, 128)
        self.l1, self.l2 = nn.Linear(128, 128), nn.Linear(128, 2)

    def forward(self, x, time):
        return self.l2(F.silu(self.l1(F.silu(self.point(x) + self.time(time)))))


def loss(m, x, time, noise):
    kept = KEPT[time].unsqueeze(1)
    return F.mse_loss(m(torch.sqrt(kept) * x + torch.sqrt(1 - kept) * noise, time), noise)


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=2e-3)
