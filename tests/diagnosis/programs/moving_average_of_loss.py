# cause: graph_kept
# from: horovod/horovod#641
# what: an exponential moving average of the loss keeps every graph, backward retains them
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    vocabulary: int = 8000
    width: int = 384
    layers: int = 6
    length: int = 256
    batch: int = 16
    steps: int = 40
    smoothing: float = 0.9


class LanguageModel(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.tokens = nn.Embedding(s.vocabulary, s.width)
        self.places = nn.Parameter(torch.zeros(s.length, s.width))
        layer = nn.TransformerEncoderLayer(s.width, 6, 4 * s.width, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, s.layers, enable_nested_tensor=False)
        self.head = nn.Linear(s.width, s.vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(s.length))

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.places, mask=self.mask, is_causal=True))


def run(s):
    model = LanguageModel(s).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ema = 0.0
    for step in range(s.steps):
        ids = torch.randint(0, s.vocabulary, (s.batch, s.length + 1), device="cuda")
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  #? #! loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema = s.smoothing * ema + (1 - s.smoothing) * loss  #? #! ema = s.smoothing * ema + (1 - s.smoothing) * loss.item()
        if step % 10 == 0:
            print(f"step {step}: smoothed loss {float(ema):.3f}")


run(Settings())
