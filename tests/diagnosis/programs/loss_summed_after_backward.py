# cause: none
# from: pytorch/pytorch#17568
# what: total_loss += loss after a plain backward keeps only scalars
import torch
from torch import nn
from torchvision.models import resnet34

model = resnet34(num_classes=10).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
criterion = nn.CrossEntropyLoss()


def train(steps):
    total_loss = 0
    losses = []
    for _ in range(steps):
        images = torch.randn(64, 3, 192, 192, device="cuda")
        labels = torch.randint(0, 10, (64,), device="cuda")
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total_loss += loss
        losses.append(loss)
    return total_loss / steps, losses


mean, losses = train(40)
print(mean.item(), len(losses))
