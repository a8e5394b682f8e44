# cause: none
# from: common
# what: a key/value cache that is concatenated each token but cut to a window, scores kept in half precision
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, cache):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)[:, :, -self.window:].clone()
            v = torch.cat([cache[1], v], dim=2)[:, :, -self.window:].clone()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.proj(out.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(x), (k, v)


class Composer(nn.Module):
    def __init__(self, notes=1024, dim=1024, depth=12, window=768):
        super().__init__()
        self.embed, self.head = nn.Embedding(notes, dim), nn.Linear(dim, notes, bias=False)
        self.blocks = nn.ModuleList(Block(dim, 16, window) for _ in range(depth))

    def forward(self, ids, caches):
        x, new = self.embed(ids), []
        for block, cache in zip(self.blocks, caches):
            x, cache = block(x, cache)
            new.append(cache)
        return self.head(x[:, -1]), new


@torch.inference_mode()
def compose(model, prompt, length):
    ids, caches, scores = prompt, [None] * len(model.blocks), []
    for _ in range(length):
        logits, caches = model(ids, caches)
        scores.append(logits.log_softmax(-1).half())
        ids = logits.argmax(-1, keepdim=True)
    return torch.stack(scores, dim=1)


with torch.device("cuda"):
    model = Composer().eval()
    prompt = torch.randint(0, 1024, (48, 768))
print(compose(model, prompt, 60).shape)
