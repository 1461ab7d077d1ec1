"""examples/words.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

WORDS = 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.out = nn.Embedding(WORDS, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.gru(packed)[1][0])


def loss(m, words, lengths, way):
    return F.cross_entropy(m(words, lengths), way)


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=5e-3)
