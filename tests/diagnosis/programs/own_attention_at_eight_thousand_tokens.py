# cause: attention_scores
# from: common
# what: hand-written attention at 8192 tokens keeps scores and probabilities for the backward
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)  #? #!-
        weights = scores.softmax(dim=-1)  #? #!-
        y = weights @ v  #? #! y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Encoder(nn.Module):
    def __init__(self, width=512, heads=8, layers=8):
        super().__init__()
        self.embed = nn.Embedding(4096, width)
        self.layers = nn.ModuleList(SelfAttention(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean(1))


model = Encoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    tokens = torch.randint(0, 4096, (1, 8192), device="cuda")
    label = torch.randint(0, 2, (1,), device="cuda")
    loss = F.cross_entropy(model(tokens), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
