"""examples/gan.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

NOISE = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.G = nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.D = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def d_loss(m, x, z):
    return F.softplus(-m.D(x)).mean() + F.softplus(m.D(m.G(z).detach())).mean()


def g_loss(m, z):
    return F.softplus(-m.D(m.G(z))).mean()


def optimizers(m):
    return {name: torch.optim.Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.999))
            for name, part in (("d", m.D), ("g", m.G))}  # fmt: skip
