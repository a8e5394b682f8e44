# cause: none
# from: common
# what: gradient accumulation as it should be, with a list of float losses
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Plan:
    micro_batches: int = 16
    micro_size: int = 8
    length: int = 512
    updates: int = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10000, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(512, 10000)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


def update(model, optimizer, plan):
    history, total = [], 0.0
    optimizer.zero_grad()
    for _ in range(plan.micro_batches):
        ids = torch.randint(0, 10000, (plan.micro_size, plan.length), device="cuda")
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) / plan.micro_batches
        loss.backward()
        total += loss.item()
        history.append(loss.item())
    optimizer.step()
    return total, history


plan = Plan()
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(plan.updates):
    print(update(model, optimizer, plan)[0])
