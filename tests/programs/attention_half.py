"""Self- and cross-attention in bfloat16 without dropout, through nn.MultiheadAttention and SDPA."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, context):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(context).chunk(2, dim=-1)
        k = k.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = v.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.cross_attention = CrossAttention(dim, heads)

    def forward(self, x, context):
        y = self.norm1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.cross_attention(self.norm2(x), context)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
blocks = nn.ModuleList(Block(1024, 16) for _ in range(4)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)

for step in range(args.steps):
    x = torch.randn(args.batch_size, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    context = torch.randn(args.batch_size, 256, 1024, device="cuda", dtype=torch.bfloat16)
    for block in blocks:
        x = block(x, context)
    loss = x.float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
