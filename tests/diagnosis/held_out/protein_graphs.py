# cause: outlier_batch
# from: k2-fsa/icefall#521
# what: one giant structure among many small graphs
import random

import torch
from torch import nn

random.seed(3)
MAX_RESIDUES = 2_500
RESIDUES = [random.randint(150, 900) for _ in range(47)] + [34_350] + [random.randint(150, 900) for _ in range(16)]
#! RESIDUES = [n for n in RESIDUES if n <= MAX_RESIDUES]


class EdgeConv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.update = nn.GRUCell(width, width)

    def forward(self, h, edges, rbf):
        src, dst = edges
        m = self.message(torch.cat([h[src], h[dst], rbf], dim=1))  #?
        return self.update(torch.zeros_like(h).index_add(0, dst, m), h)


class Stability(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        self.embed = nn.Embedding(21, width)
        self.layers = nn.ModuleList([EdgeConv(width) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, kinds, edges, rbf, graph, graphs):
        h = self.embed(kinds)
        for layer in self.layers:
            h = layer(h, edges, rbf)  #?
        pooled = torch.zeros(graphs, h.shape[1], device=h.device).index_add(0, graph, h)
        return self.head(pooled).squeeze(1)


def collate(sizes, neighbours=48):
    n = sum(sizes)
    graph = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).cuda()
    kinds = torch.randint(0, 21, (n,), device="cuda")
    edges = torch.randint(0, n, (2, n * neighbours), device="cuda")
    return kinds, edges, torch.rand(n * neighbours, 16, device="cuda"), graph, len(sizes)


model = Stability().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for start in range(0, len(RESIDUES), 8):
    batch = collate(RESIDUES[start:start + 8])
    target = torch.rand(batch[-1], device="cuda")
    loss = nn.functional.huber_loss(model(*batch), target)  #?
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(start, loss.item())
