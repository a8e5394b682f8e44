# cause: backward_once
# from: filipradenovic/cnnimageretrieval-pytorch#20
# what: the losses of 64 micro-batches are summed before one backward
import torch
from torch import nn
from torchvision.models import resnet50

MICRO_BATCHES = 64
model = resnet50(num_classes=1000).cuda().train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()


def next_micro_batch(size=4):
    images = torch.randn(size, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (size,), device="cuda")
    return images, labels


def optimizer_step():
    optimizer.zero_grad()
    loss = 0
    for _ in range(MICRO_BATCHES):
        images, labels = next_micro_batch()
        outputs = model(images)  #?
        loss = loss + criterion(outputs, labels) / MICRO_BATCHES  #? #! loss = criterion(outputs, labels) / MICRO_BATCHES
        #! loss.backward()
    loss.backward()  #? #!-
    optimizer.step()
    return loss.item()


for step in range(2):
    print(step, optimizer_step())
