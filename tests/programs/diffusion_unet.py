"""Train a small diffusion U-Net (convolutions, group norm, attention at the bottom)."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Res(nn.Module):
    def __init__(self, inputs, outputs, time=256):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(32, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        return self.skip(x) + self.second(self.first(x) + self.time(t)[:, :, None, None])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.stem, self.out = nn.Embedding(1000, 256), nn.Conv2d(3, 64, 3, 1, 1), nn.Conv2d(64, 3, 3, 1, 1)
        self.down = nn.ModuleList([Res(64, 64), Res(64, 128), Res(128, 256)])
        self.mid, self.attention = Res(256, 256), nn.MultiheadAttention(256, 4, batch_first=True)
        self.up = nn.ModuleList([Res(512, 128), Res(256, 64), Res(128, 64)])

    def forward(self, x, t):
        t, x, skips = self.time(t), self.stem(x), []
        for block in self.down:
            skips.append(block(x, t))
            x = F.avg_pool2d(skips[-1], 2)
        x = self.mid(x, t)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).unflatten(2, x.shape[2:])
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], dim=1), t)
        return self.out(x)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    x = torch.randn(args.batch_size, 3, 64, 64, device="cuda")
    t = torch.randint(0, 1000, (args.batch_size,), device="cuda")
    noise, a = torch.randn_like(x), torch.cos(t / 1000 * torch.pi / 2).square().view(-1, 1, 1, 1)
    loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
