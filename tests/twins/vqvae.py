"""examples/vqvae.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH = 64, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.mix = nn.Conv2d(1, 32, 4, stride=2, padding=1), nn.Conv2d(32, WIDTH, 1)
        self.wide, self.up = nn.Conv2d(WIDTH, 32, 3, padding=1), nn.Conv2d(32, 4, 1)
        self.register_buffer("words", torch.randn(WORDS, WIDTH))
        self.register_buffer("sums", torch.zeros(WORDS, WIDTH))
        self.register_buffer("counts", torch.zeros(WORDS))


def decode(m, z):
    return F.pixel_shuffle(m.up(F.relu(m.wide(z.permute(0, 3, 1, 2)))), 2)


@torch.no_grad()
def follow(m, z, word):
    chosen = F.one_hot(word.flatten(), WORDS).to(z.dtype)
    m.counts.mul_(0.95).add_(0.05 * chosen.sum(0))
    m.sums.mul_(0.95).add_(0.05 * chosen.T @ z.reshape(-1, WIDTH))
    used = m.counts > 1e-3
    m.words[used] = m.sums[used] / m.counts[used].unsqueeze(1)


def loss(m, x):
    z = m.mix(F.relu(m.down(x))).permute(0, 2, 3, 1)
    word = (m.words.square().sum(1) - 2 * z @ m.words.T).argmin(-1)
    chosen = m.words[word]
    wrong = F.mse_loss(decode(m, z + (chosen - z).detach()), x)
    follow(m, z.detach(), word)
    return wrong + 0.25 * F.mse_loss(z, chosen.detach())


def optimizer(m):
    return torch.optim.Adam(m.parameters(), lr=3e-3)
