"""A click model: large embedding tables with sparse gradients (SparseAdam) under a dense MLP (Adam)."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class ClickModel(nn.Module):
    def __init__(self, tables=4, rows=200_000, dim=64, dense=13):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 256), nn.ReLU(), nn.Linear(256, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(dim * (tables + 1), 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense, ids, offsets):
        features = [self.bottom(dense)] + [bag(i, o) for bag, i, o in zip(self.bags, ids, offsets)]
        return self.top(torch.cat(features, dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = ClickModel().cuda()
    sparse_optimizer = torch.optim.SparseAdam(model.bags.parameters(), lr=1e-3)
    dense_optimizer = torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=1e-3)

    for step in range(args.steps):
        dense = torch.randn(args.batch_size, 13, device="cuda")
        counts = [torch.randint(1, 20, (args.batch_size,)) for _ in model.bags]
        offsets = [(c.cumsum(0) - c).cuda() for c in counts]
        ids = [torch.randint(0, 200_000, (int(c.sum()),)).cuda() for c in counts]
        clicks = torch.randint(0, 2, (args.batch_size,), device="cuda").float()

        loss = F.binary_cross_entropy_with_logits(model(dense, ids, offsets), clicks)
        sparse_optimizer.zero_grad()
        dense_optimizer.zero_grad()
        loss.backward()
        sparse_optimizer.step()
        dense_optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
