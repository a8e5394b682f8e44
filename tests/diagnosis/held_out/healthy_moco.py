# cause: none
# from: common
# what: momentum copy of the encoder, a fixed queue on the card, losses summed over crops with one backward
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet50


class MoCo(nn.Module):
    def __init__(self, dim=256, queue=262_144, m=0.999):
        super().__init__()
        self.m = m
        self.query = resnet50(weights=None, num_classes=dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dim, 64), dim=0).repeat(1, queue // 64))
        self.cursor = 0

    @torch.no_grad()
    def momentum_update(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.lerp_(q, 1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        self.queue[:, self.cursor:self.cursor + len(keys)] = keys.T
        self.cursor = (self.cursor + len(keys)) % self.queue.shape[1]

    def forward(self, crops, reference):
        with torch.no_grad():
            self.momentum_update()
            k = F.normalize(self.key(reference))
        total = 0
        for crop in crops:
            q = F.normalize(self.query(crop))
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], dim=1) / 0.2
            total = total + F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))
        self.enqueue(k)
        return total / len(crops)


with torch.device("cuda"):
    model = MoCo()
opt = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9)
history = []
for step in range(4):
    crops = [torch.rand(32, 3, 224, 224, device="cuda") for _ in range(2)]
    loss = model(crops, torch.rand(32, 3, 224, 224, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.detach())
print(torch.stack(history).mean().item())
