# cause: logits
# from: EvolvingLMMs-Lab/LongVA#19
# what: the logits of 12288 tokens over 128256 words are copied to float32 for the loss
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, LAYERS = 128_256, 1024, 6


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def token_loss(model, hidden, labels):
    logits = model.lm_head(hidden).float()  #?
    return F.cross_entropy(logits, labels)  #?


def loss_of(model, tokens):
    hidden = model(tokens[:, :-1]).flatten(0, 1)
    labels = tokens[:, 1:].flatten()
    return token_loss(model, hidden, labels)  #? #! return sum(checkpoint(token_loss, model, h, l, use_reentrant=False) for h, l in zip(hidden.chunk(16), labels.chunk(16))) / 16


with torch.device("cuda"):
    model = LanguageModel().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    tokens = torch.randint(0, VOCABULARY, (6, 2049), device="cuda")
    loss = loss_of(model, tokens)
    optimizer.zero_grad()
    loss.backward()  #?
    optimizer.step()
    print(step, loss.item())
