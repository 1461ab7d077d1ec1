"""examples/backbone.py in PyTorch: the layers, and so the names, of torchvision's resnet18, which is 64 wide."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 8


class BasicBlock(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)
        self.downsample = nn.Sequential()
        if n_in != n_out:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.downsample(x) + self.bn2(self.conv2(y)))


def stage(n_in, n_out, stride=2):
    return nn.Sequential(BasicBlock(n_in, n_out, stride), BasicBlock(n_out, n_out, 1))


class Net(nn.Module):
    def __init__(self, width=WIDTH, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width)
        self.layer1, self.layer2 = stage(width, width, 1), stage(width, 2 * width)
        self.layer3, self.layer4 = stage(2 * width, 4 * width), stage(4 * width, 8 * width)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


def loss(m, x, y):
    return F.cross_entropy(m(x), y)


def optimizer(m):
    m.eval().requires_grad_(False)
    m.fc.requires_grad_(True)
    return torch.optim.SGD(m.fc.parameters(), lr=0.1, momentum=0.9)
