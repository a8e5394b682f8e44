# cause: attention_scores
# from: heykeetae/Self-Attention-GAN#29
# what: self-attention over all pixels of a feature map writes its scores out
import math

import torch
import torch.nn.functional as F
from torch import nn, einsum


class Residual(nn.Module):
    def __init__(self, dim, time_dim):
        super().__init__()
        self.time = nn.Linear(time_dim, dim)
        self.net = nn.Sequential(nn.GroupNorm(8, dim), nn.SiLU(), nn.Conv2d(dim, dim, 3, padding=1))

    def forward(self, x, t):
        return x + self.net(x + self.time(t)[:, :, None, None])


class PixelAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (part.reshape(b, self.heads, c // self.heads, h * w).transpose(2, 3).contiguous()
                   for part in self.to_qkv(self.norm(x)).chunk(3, dim=1))
        sim = einsum("bhid,bhjd->bhij", q * self.scale, k)  #? #!-
        attn = sim.softmax(dim=-1)  #? #!-
        out = einsum("bhij,bhjd->bhid", attn, v)  #? #! out = F.scaled_dot_product_attention(q, k, v)
        return x + self.to_out(out.transpose(2, 3).reshape(b, c, h, w))


class Denoiser(nn.Module):
    def __init__(self, dim=64, time_dim=128):
        super().__init__()
        self.time_dim = time_dim
        self.into = nn.Conv2d(3, dim, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(Residual(dim, time_dim) for _ in range(4))
        self.attention = nn.ModuleList(PixelAttention(dim) for _ in range(4))
        self.out = nn.ConvTranspose2d(dim, 3, 4, stride=2, padding=1)

    def forward(self, x, t):
        freqs = torch.exp(torch.arange(self.time_dim // 2, device=x.device) * (-math.log(1e4) / (self.time_dim // 2)))
        t = torch.cat([(t[:, None] * freqs).sin(), (t[:, None] * freqs).cos()], dim=1)
        x = self.into(x)
        for block, attention in zip(self.blocks, self.attention):
            x = attention(block(x, t))
        return self.out(x)


net = Denoiser().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-4)
alpha_bar = torch.linspace(0.9999, 0.98, 1000, device="cuda").cumprod(0)
for _ in range(3):
    images = torch.rand(4, 3, 192, 192, device="cuda")
    t = torch.randint(0, 1000, (4,), device="cuda")
    noise = torch.randn_like(images)
    a = alpha_bar[t][:, None, None, None]
    loss = F.mse_loss(net(a.sqrt() * images + (1 - a).sqrt() * noise, t), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
