# cause: outlier_batch
# from: facebookresearch/ParlAI#407
# what: one document of 12000 tokens among short ones, so all of its batch is padded to that length
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence


def documents(count=96):
    chance = random.Random(1)
    lengths = [chance.randint(80, 300) for _ in range(count)]
    lengths[70] = 12_000
    return [torch.ones(length, dtype=torch.long) for length in lengths]


def collate(texts):
    return pad_sequence(texts, batch_first=True).cuda()  #? #! return pad_sequence([text[:512] for text in texts], batch_first=True).cuda()


class Encoder(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.embed = nn.Embedding(30_000, width, padding_idx=0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 6, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(6))
        self.head = nn.Linear(width, 4)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)  #?
        return self.head(x.mean(1))


texts = documents()
model = Encoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for start in range(0, len(texts), 16):
    tokens = collate(texts[start : start + 16])  #?
    labels = torch.zeros(len(tokens), dtype=torch.long, device="cuda")
    loss = F.cross_entropy(model(tokens), labels)  #?
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(start, loss.item())
