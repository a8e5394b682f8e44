"""A transformer that trains on batches of ever other sizes: a recording in which no step repeats another.

    oomph run --gpu a100-80gb -o lengths.oomph bench/train_lengths.py STEPS

A step is about 3,900 events.
"""

import random
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (part.view(batch, length, 8, width // 8).transpose(1, 2) for part in self.project(self.norms[0](x)).chunk(3, -1))
        attention = self.dropout((query @ key.transpose(-1, -2) / 8).softmax(-1))
        x = x + self.out((attention @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.dropout(self.down(F.gelu(self.up(self.norms[1](x)))))


def main():
    random.seed(3)
    model = nn.Sequential(nn.Embedding(8000, 512), *(Block(512) for _ in range(12)), nn.Linear(512, 8000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(int(sys.argv[1])):
        ids = torch.randint(8000, (random.randint(4, 16), random.randint(32, 512)), device="cuda")
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
