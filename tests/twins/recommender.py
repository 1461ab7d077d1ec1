"""examples/recommender.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

PEOPLE, FILMS, FACTORS = 500, 300, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.person, self.film = nn.Embedding(PEOPLE, FACTORS), nn.Embedding(FILMS, FACTORS)
        self.of_person, self.of_film = nn.Embedding(PEOPLE, 1), nn.Embedding(FILMS, 1)
        self.mean = nn.Parameter(torch.zeros(()))

    def forward(self, person, film):
        fit = (self.person(person) * self.film(film)).sum(-1)
        return self.mean + self.of_person(person)[:, 0] + self.of_film(film)[:, 0] + fit


def loss(m, person, film, rating):
    return F.mse_loss(m(person, film), rating)


def optimizer(m):
    groups = [{"params": [p for p in m.parameters() if p.ndim]}, {"params": [m.mean], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
