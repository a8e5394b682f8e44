# cause: none
# from: common
# what: a GAN step runs the critic several times before each backward, and keeps a small averaged generator
import copy

import torch
from torch import nn
from torch.nn.functional import softplus


def generator(width=64):
    return nn.Sequential(
        nn.ConvTranspose2d(128, 4 * width, 8), nn.BatchNorm2d(4 * width), nn.ReLU(True),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(True),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(True),
        nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
    )


def critic(width=64):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * width, 1),
    )


@torch.no_grad()
def follow(average, net, decay=0.999):
    for kept, new in zip(average.parameters(), net.parameters()):
        kept.lerp_(new, 1 - decay)


make, judge = generator().cuda(), critic().cuda()
averaged = copy.deepcopy(make).requires_grad_(False)
make_optimizer = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.99))
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.99))
judge_losses, make_losses = [], []
for step in range(30):
    real = torch.rand(128, 3, 128, 128, device="cuda")
    fake = make(torch.randn(128, 128, 1, 1, device="cuda"))
    judge_loss = softplus(judge(fake.detach())).mean() + softplus(-judge(real)).mean()
    judge_optimizer.zero_grad()
    judge_loss.backward()
    judge_optimizer.step()
    make_loss = softplus(-judge(fake)).mean()
    make_optimizer.zero_grad()
    make_loss.backward()
    make_optimizer.step()
    follow(averaged, make)
    judge_losses.append(judge_loss.detach())
    make_losses.append(make_loss.detach())
print(torch.stack(judge_losses).mean().item(), torch.stack(make_losses).mean().item())
