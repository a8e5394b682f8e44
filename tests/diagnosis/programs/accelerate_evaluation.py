# cause: no_grad_missing
# from: facebookresearch/pytext#204
# what: the evaluation gathers losses that still have their graphs
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TextClassifier(nn.Module):
    def __init__(self, words=20000, width=512, classes=20):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, dim_feedforward=2048, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classes = nn.Linear(width, classes)

    def forward(self, ids):
        return self.classes(self.encoder(self.words(ids)).mean(dim=1))


def train(accelerator, model, optimizer, loader):
    model.train()
    for ids, labels in loader:
        loss = F.cross_entropy(model(ids), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


#! @torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    losses = []
    for ids, labels in loader:
        loss = F.cross_entropy(model(ids), labels)  #?
        losses.append(accelerator.gather_for_metrics(loss.repeat(len(labels))))  #?
    return torch.cat(losses).mean().item()


def main():
    accelerator = Accelerator()
    data = TensorDataset(torch.randint(0, 20000, (1024, 192)), torch.randint(0, 20, (1024,)))
    training = DataLoader(torch.utils.data.Subset(data, range(128)), batch_size=32, shuffle=True)
    model = TextClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, training, test = accelerator.prepare(model, optimizer, training, DataLoader(data, batch_size=64))
    train(accelerator, model, optimizer, training)
    accelerator.print("loss", evaluate(accelerator, model, test))


if __name__ == "__main__":
    main()
