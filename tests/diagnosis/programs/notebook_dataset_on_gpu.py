# cause: dataset_on_card
# kind: notebook
# from: pytorch/pytorch#22333
# what: the whole training set is moved to the GPU before the loop
# %%
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "spectrograms.bin")
np.memmap(path, dtype=np.float32, mode="w+", shape=(24000, 1, 256, 512)).flush()
# %%
spectrograms = torch.from_numpy(np.memmap(path, dtype=np.float32, mode="r+", shape=(24000, 1, 256, 512)))
train_x = spectrograms.cuda()  #? #! train_x = spectrograms
train_y = torch.randint(0, 30, (24000,), device="cuda")
print("training set", tuple(train_x.shape))
# %%
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 30),
).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
# %%
for start in range(0, 256, 64):
    x, y = train_x[start : start + 64], train_y[start : start + 64]
    loss = F.cross_entropy(net(x.cuda()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
