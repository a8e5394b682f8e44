# cause: none
# from: common
# what: a small data set lives on the card on purpose and predictions of one epoch are kept without a graph
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

images = torch.rand(60_000, 1, 28, 28, device="cuda")
labels = torch.randint(0, 10, (60_000,), device="cuda")
loader = DataLoader(TensorDataset(images[:2000], labels[:2000]), batch_size=500)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    guesses = []
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        guesses.append(out.detach().argmax(1))
    print(epoch, (torch.cat(guesses) == labels[:2000]).float().mean().item())
