# cause: kv_cache
# from: huggingface/transformers#40328
# what: the key/value cache is allocated for the whole context of 16384 tokens for all sequences
import torch
import torch.nn as nn
import torch.nn.functional as F


class Cache:
    def __init__(self, layers, batch, heads, length, size):
        shape = (batch, heads, length, size)
        self.keys = [torch.zeros(shape, dtype=torch.half, device="cuda") for _ in range(layers)]  #?
        self.values = [torch.zeros(shape, dtype=torch.half, device="cuda") for _ in range(layers)]  #?

    def update(self, layer, start, k, v):
        end = start + k.shape[2]
        self.keys[layer][:, :, start:end] = k
        self.values[layer][:, :, start:end] = v
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, cache, number, start):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = cache.update(number, start, k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


@torch.inference_mode()
def generate(layers, prompt, count, context):
    cache = Cache(len(layers), prompt.shape[0], 16, context, 128)  #?
    x, start = prompt, 0
    for _ in range(count):
        for number, layer in enumerate(layers):
            y = layer(x if number == 0 else y, cache, number, start)
        start, x = start + x.shape[1], y[:, -1:]
    return x


with torch.device("cuda"):
    layers = nn.ModuleList(Layer(2048, 16) for _ in range(16)).half().eval()
prompt = torch.randn(8, 512, 2048, device="cuda", dtype=torch.half)
result = generate(layers, prompt, 16, context=16_384)  #? #! result = generate(layers, prompt, 16, context=1024)
print(result.shape)
