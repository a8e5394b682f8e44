"""Capture a whole training step in a CUDA graph after a warm-up on a side stream, then replay it."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2048)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 256)
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
static_input = torch.randn(args.batch_size, 1024, device="cuda")
static_target = torch.randn(args.batch_size, 256, device="cuda")

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(static_input), static_target)
        loss.backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    static_loss = F.mse_loss(model(static_input), static_target)
    static_loss.backward()
    optimizer.step()

for step in range(args.steps):
    static_input.copy_(torch.randn(args.batch_size, 1024, device="cuda"))
    static_target.copy_(torch.randn(args.batch_size, 256, device="cuda"))
    graph.replay()
    print(f"step {step} loss {static_loss.item():.4f}")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
