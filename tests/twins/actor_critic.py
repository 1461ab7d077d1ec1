"""examples/actor_critic.py in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))


def actor_loss(m, state, action, goal):
    logs = F.log_softmax(m.actor(state), -1)
    chosen = logs.gather(1, action.unsqueeze(1))[:, 0]
    advantage = (goal - m.critic(state)[:, 0]).detach()
    return -(chosen * advantage).mean() + 0.01 * (logs.exp() * logs).sum(-1).mean()


def critic_loss(m, state, goal):
    return F.huber_loss(m.critic(state)[:, 0], goal)


def optimizers(m):
    return {
        "actor": torch.optim.Adam(m.actor.parameters(), 3e-3),
        "critic": torch.optim.Adam(m.critic.parameters(), 1e-2),
    }
