# cause: none
# from: common
# what: two views pass the same network before one backward, with a queue of fixed length
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18


class Contrast(nn.Module):
    def __init__(self, width=128, queue=16384):
        super().__init__()
        self.net = resnet18(num_classes=width)
        self.register_buffer("queue", F.normalize(torch.randn(queue, width), dim=1))
        self.place = 0

    def forward(self, first, second):
        one = F.normalize(self.net(first), dim=1)
        two = F.normalize(self.net(second), dim=1)
        positive = (one * two).sum(dim=1, keepdim=True)
        negative = one @ self.queue.clone().T
        self.enqueue(two.detach())
        return torch.cat([positive, negative], dim=1) / 0.07

    def enqueue(self, keys):
        self.queue[self.place : self.place + len(keys)] = keys
        self.place = (self.place + len(keys)) % len(self.queue)


model = Contrast().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
losses = []
for step in range(30):
    images = torch.rand(128, 3, 160, 160, device="cuda")
    logits = model(images, images.flip(3))
    loss = F.cross_entropy(logits, torch.zeros(128, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
print(len(losses), losses[-1].item())
