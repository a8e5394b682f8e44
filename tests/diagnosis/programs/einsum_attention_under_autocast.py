# cause: attention_scores
# from: common
# what: einsum attention in a speech encoder; softmax in float32 under autocast keeps the n x n probabilities of each layer
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def attention(q, k, v):
    scale = q.shape[-1] ** -0.5
    energy = torch.einsum("bhid,bhjd->bhij", q, k) * scale  #? #!-
    probabilities = torch.softmax(energy, dim=-1)  #? #!-
    return torch.einsum("bhij,bhjd->bhid", probabilities, v)  #? #! return F.scaled_dot_product_attention(q, k, v)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        y = self.norm(x)
        y = attention(self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y)))
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.feed(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2)
    args = parser.parse_args()
    model = nn.Sequential(nn.Linear(80, 512), *(Layer(512, 8) for _ in range(12)), nn.Linear(512, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(4):
        audio = torch.randn(args.batch, args.frames, 80, device="cuda")
        target = torch.randint(0, 64, (args.batch, args.frames), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(audio).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
