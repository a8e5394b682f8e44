# cause: backward_once
# from: lhoyer/DAFormer#48
# what: three task losses over all chunks of a long document are added up before one backward
import torch
import torch.nn.functional as F
from torch import nn


class DocumentModel(nn.Module):
    def __init__(self, vocabulary=16000, width=768, layers=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 12, 3072, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.entities = nn.Linear(width, 9)
        self.topic = nn.Linear(width, 30)
        self.importance = nn.Linear(width, 1)

    def forward(self, chunk):
        hidden = self.encoder(self.embed(chunk))
        pooled = hidden.mean(dim=1)
        return self.entities(hidden), self.topic(pooled), self.importance(pooled).squeeze(1)


def document_loss(model, document, chunk_length=512):
    total = torch.zeros((), device="cuda")
    chunks = document.split(chunk_length, dim=1)
    for chunk in chunks:
        entities, topic, importance = model(chunk)  #?
        tags = torch.zeros_like(chunk)
        part = F.cross_entropy(entities.flatten(0, 1), tags.flatten())
        part = part + 0.5 * F.cross_entropy(topic, tags[:, 0])
        part = part + 0.1 * F.mse_loss(importance, torch.zeros_like(importance))
        total = total + part / len(chunks)  #? #! total = total + part.detach() / len(chunks)
        #! (part / len(chunks)).backward()
    return total


with torch.device("cuda"):
    model = DocumentModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for step in range(3):
    document = torch.randint(0, 16000, (4, 32 * 512), device="cuda")
    optimizer.zero_grad()
    loss = document_loss(model, document)
    loss.backward()  #? #!-
    optimizer.step()
    print(step, loss.item())
