# cause: none
# from: common
# what: a preallocated key/value cache of 4 GiB that is filled during generation and fits
import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width, heads, batch, context):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(batch, heads, context, width // heads))
        self.register_buffer("values", torch.zeros(batch, heads, context, width // heads))

    def forward(self, x, start):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        end = start + x.shape[1]
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v
        y = F.scaled_dot_product_attention(q, self.keys[:, :, :end], self.values[:, :, :end], is_causal=x.shape[1] > 1)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Generator(nn.Module):
    def __init__(self, batch, context, width=2048, layers=16):
        super().__init__()
        self.embed = nn.Embedding(32_000, width)
        self.layers = nn.ModuleList(Layer(width, 16, batch, context) for _ in range(layers))
        self.head = nn.Linear(width, 32_000, bias=False)

    @torch.inference_mode()
    def generate(self, tokens, count):
        written, start = [], 0
        for _ in range(count):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x, start)
            start += tokens.shape[1]
            tokens = self.head(x[:, -1:]).argmax(-1)
            written.append(tokens)
        return torch.cat(written, 1)


with torch.device("cuda"):
    model = Generator(batch=8, context=4096).half().eval()
for request in range(2):
    prompt = torch.randint(0, 32_000, (8, 1000), device="cuda")
    print(request, model.generate(prompt, 24).shape)
