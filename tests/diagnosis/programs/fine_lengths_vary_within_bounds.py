# cause: none
# from: common
# what: batches of different lengths whose longest still fits easily
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tagger(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embed = nn.Embedding(20_000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(width, 9)

    def forward(self, tokens, mask):
        return self.head(self.encoder(self.embed(tokens), src_key_padding_mask=mask))


def batches(count, size=32):
    chance = random.Random(3)
    for _ in range(count):
        length = chance.choice([64, 128, 300, 512, 900])
        tokens = torch.randint(1, 20_000, (size, length), device="cuda")
        mask = torch.zeros(size, length, dtype=torch.bool, device="cuda")
        mask[: size // 2, length // 2 :] = True
        yield tokens, mask


model = Tagger().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
total = 0.0
for step, (tokens, mask) in enumerate(batches(14)):
    tags = torch.randint(0, 9, tokens.shape, device="cuda")
    loss = F.cross_entropy(model(tokens, mask).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    total += loss.item()
print("mean loss", total / 14)
