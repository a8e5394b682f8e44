# cause: attention_scores
# from: lucidrains/imagen-pytorch#300
# what: the self-attention block of a small diffusion U-Net attends between all pixels of a 96 x 96 map
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionBlock(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        weight = torch.matmul(q, k.transpose(-1, -2)) * (c // self.heads) ** -0.5  #? #!-
        weight = F.softmax(weight, dim=-1)  #? #!-
        y = torch.matmul(weight, v)  #? #! y = F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x):
        return self.body(x) + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.down = nn.Sequential(nn.Conv2d(64, 128, 4, 2, 1), ResBlock(128, 128), AttentionBlock(128))
        self.middle = nn.Sequential(nn.Conv2d(128, 256, 4, 2, 1), ResBlock(256, 256), nn.ConvTranspose2d(256, 128, 4, 2, 1))
        self.up = nn.Sequential(ResBlock(256, 128), AttentionBlock(128), nn.ConvTranspose2d(128, 64, 4, 2, 1))
        self.last = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x):
        x = self.first(x)
        y = self.down(x)
        return self.last(x + self.up(torch.cat([y, self.middle(y)], 1)))


model = UNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
for step in range(4):
    images = torch.rand(4, 3, 192, 192, device="cuda")
    noise = torch.randn_like(images)
    loss = F.mse_loss(model(images + noise), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
