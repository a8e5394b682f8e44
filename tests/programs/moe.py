"""Train a small mixture of experts: each token goes to its two best experts, chosen on the device."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class MoE(nn.Module):
    def __init__(self, dim, experts=8, top_k=2):
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim)) for _ in range(experts)
        )

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, -2)
        probabilities = self.router(x).softmax(dim=-1)
        weights, chosen = probabilities.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)

        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == index)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, weights[token, slot, None] * expert(x[token]))

        load = F.one_hot(chosen, len(self.experts)).float().mean(dim=(0, 1))
        balance = len(self.experts) * (load * probabilities.mean(dim=0)).sum()
        return out.view(shape), balance


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
layers = nn.ModuleList(MoE(512) for _ in range(4)).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), lr=3e-4)

for step in range(args.steps):
    x = target = torch.randn(args.batch_size, 512, 512, device="cuda")
    penalty = 0.0
    for layer in layers:
        y, balance = layer(F.layer_norm(x, x.shape[-1:]))
        x, penalty = x + y, penalty + balance
    loss = F.mse_loss(x, target.roll(1, 0)) + 0.01 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
