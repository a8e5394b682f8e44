# cause: dataset_on_card
# from: common
# what: all batches are moved to the card in a list before the first step
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def read_shards(count=48, clips=40):
    """Stands for reading one file of decoded video clips after the other."""
    for _ in range(count):
        clip = np.zeros((clips, 3, 16, 224, 224), dtype=np.float32)
        label = np.zeros(clips, dtype=np.int64)
        yield torch.from_numpy(clip), torch.from_numpy(label)


class ClipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(3, 32, (3, 7, 7), (2, 4, 4), (1, 3, 3))
        self.body = nn.Conv3d(32, 64, 3, 2, 1)
        self.head = nn.Linear(64, 20)

    def forward(self, x):
        return self.head(F.relu(self.body(F.relu(self.stem(x)))).mean((2, 3, 4)))


device = "cuda"
batches = [(x.to(device), y.to(device)) for x, y in read_shards()]  #? #! batches = ((x.to(device), y.to(device)) for x, y in read_shards())
model = ClipNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
