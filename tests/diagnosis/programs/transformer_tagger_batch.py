# cause: batch_too_large
# from: common
# what: the activations of one batch of a transformer that tags every token do not fit
import torch
import torch.nn as nn
import torch.nn.functional as F


class Config:
    width, heads, layers, length, classes = 768, 12, 12, 512, 16
    batch = 42  #? #! batch = 16


class Classifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(30_522, config.width)
        layer = nn.TransformerEncoderLayer(config.width, config.heads, 4 * config.width, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.layers)
        self.head = nn.Sequential(nn.Linear(config.width, 8 * config.width), nn.GELU(), nn.Linear(8 * config.width, config.classes))

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))  #?


def training_step(model, optimizer, tokens, tags):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())  #?
    loss.backward()  #?
    optimizer.step()
    return loss.detach()


config = Config()
model = Classifier(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for step in range(3):
    tokens = torch.randint(0, 30_522, (config.batch, config.length), device="cuda")
    tags = torch.randint(0, config.classes, (config.batch, config.length), device="cuda")
    print(step, training_step(model, optimizer, tokens, tags).item())
