# cause: kv_cache
# from: huggingface/transformers#30536
# what: beam search with 128 beams appends to the keys and values of every layer, which end up filling the card
import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, past):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)  #?
            v = torch.cat([past[1], v], dim=2)  #?
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return x + self.out(y.transpose(1, 2).flatten(2)), (k, v)  #?


class Decoder(nn.Module):
    def __init__(self, vocabulary=8000, width=4096, heads=32, layers=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, past):
        x, new = self.embed(tokens), []
        for number, layer in enumerate(self.layers):
            x, pair = layer(x, past[number] if past else None)
            new.append(pair)  #?
        return self.head(x[:, -1]).log_softmax(-1), new


@torch.inference_mode()
def beam_search(model, prompt, beams, steps):
    tokens = prompt.repeat(beams, 1)
    score, past = torch.zeros(beams, 1, device="cuda"), None
    for _ in range(steps):
        chances, past = model(tokens, past)  #?
        best = (score + chances).flatten().topk(beams)
        score, tokens = best.values[:, None], (best.indices % chances.shape[1])[:, None]
    return tokens


with torch.device("cuda"):
    model = Decoder().half().eval()
prompt = torch.randint(0, 8000, (1, 200), device="cuda")
answer = beam_search(model, prompt, beams=128, steps=300)  #? #! answer = beam_search(model, prompt, beams=16, steps=300)
print(answer.shape)
