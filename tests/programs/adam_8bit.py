"""Train a wide MLP with bitsandbytes' 8-bit Adam, whose moments take a quarter of the memory."""
import argparse

import bitsandbytes as bnb
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1024)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--lr", type=float, default=1e-4)
args = parser.parse_args()

torch.manual_seed(0)
width = 4096

model = nn.Sequential(
    nn.Linear(1024, width), nn.GELU(), nn.LayerNorm(width),
    nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width),
    nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width),
    nn.Linear(width, 1024),
).cuda()
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)

parameters = sum(p.numel() for p in model.parameters())
print(f"{parameters / 1e6:.1f}M parameters")

for step in range(args.steps):
    x = torch.randn(args.batch_size, 1024, device="cuda")
    target = torch.randn(args.batch_size, 1024, device="cuda")

    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
