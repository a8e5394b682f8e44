# cause: outlier_batch
# from: common
# what: the last batch is cut without an end, so it holds all samples that are left over
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


def make_batches(images, labels, size, count):
    batches = []
    for number in range(count):
        start = number * size
        end = start + size if number < count - 1 else None  #? #! end = start + size
        batches.append((images[start:end], labels[start:end]))  #?
    return batches


images = torch.randint(0, 256, (2400, 3, 160, 160), dtype=torch.uint8, device="cuda")
labels = torch.randint(0, 100, (2400,), device="cuda")

model = torchvision.models.resnet18(num_classes=100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = make_batches(images, labels, 64, 6)
for step, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.float() / 255), y)  #?
    loss.backward()
    optimizer.step()
    print(step, len(x), loss.item())
