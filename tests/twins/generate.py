"""examples/generate.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

ALPHABET, CONTEXT, WIDTH, HEADS, LAYERS = 72, 128, 64, 4, 2


class Net(nn.Module):
    def __init__(self, alphabet=ALPHABET):
        super().__init__()
        self.tokens, self.places = nn.Embedding(alphabet, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        how = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **how) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet)

    def forward(self, tokens):
        n = tokens.shape[1]
        h, hidden = self.tokens(tokens) + self.places(torch.arange(n)), torch.ones(n, n, dtype=torch.bool).triu(1)
        for block in self.blocks:
            h = block(h, src_mask=hidden)
        return self.head(self.norm(h))


def loss(m, tokens, following):
    return F.cross_entropy(m(tokens).flatten(0, 1), following.flatten())


def optimizer(m):
    plain = [p for p in m.parameters() if p.ndim == 1]
    decayed = [p for p in m.parameters() if p.ndim > 1]
    return torch.optim.AdamW([{"params": plain, "weight_decay": 0.0}, {"params": decayed}], lr=3e-3, weight_decay=0.1)


@torch.no_grad()
def write(m, prompt, n):
    """Return the prompt and the `n` likeliest tokens after it, each found from the whole text."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(m(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens
