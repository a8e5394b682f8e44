# cause: dataset_on_card
# from: common
# what: a whole set of images is moved to the card and converted to float there before training
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def load_images(count=24_000, size=224):
    images = np.zeros((count, 3, size, size), dtype=np.uint8)
    labels = np.zeros(count, dtype=np.int64)
    return images, labels


images, labels = load_images()
images = torch.from_numpy(images).cuda().float() / 255  #? #! images = torch.from_numpy(images)
labels = torch.from_numpy(labels).cuda()

model = nn.Sequential(
    nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

batch = 256
for step in range(6):
    chosen = slice(step * batch, (step + 1) * batch)
    x, y = images[chosen], labels[chosen]  #! x, y = images[chosen].cuda().float() / 255, labels[chosen]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
