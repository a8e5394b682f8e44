# cause: graph_kept
# from: akanimax/pro_gan_pytorch#12
# what: a penalty made with create_graph=True is added every 8th step only, but kept at every step
import torch
from torch import nn


def critic(width=64):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 1),
    )


def r1_penalty(scores, real):
    (gradient,) = torch.autograd.grad(scores.sum(), real, create_graph=True)  #?
    return gradient.square().sum(dim=(1, 2, 3)).mean()


class CriticTrainer:
    def __init__(self, every=8):
        self.net = critic().cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-4, betas=(0.0, 0.99))
        self.every = every
        self.history = []

    def step(self, number, real, fake):
        real.requires_grad_()
        loss = nn.functional.softplus(self.net(fake)).mean() + nn.functional.softplus(-self.net(real)).mean()
        penalty = r1_penalty(self.net(real), real)
        self.history.append(penalty)  #? #! self.history.append(penalty.item())
        if number % self.every == 0:
            loss = loss + 5.0 * self.every * penalty
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


trainer = CriticTrainer()
for number in range(40):
    real = torch.rand(32, 3, 256, 256, device="cuda")
    fake = torch.rand(32, 3, 256, 256, device="cuda")
    trainer.step(number, real, fake)
print("penalties", len(trainer.history))
