# cause: one_hot
# from: pytorch/pytorch#53785
# what: words are fed as int64 one-hot vectors over a vocabulary of 50257
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 50257


class Sentiment(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.project = nn.Linear(VOCABULARY, width, bias=False)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        words = F.one_hot(tokens, VOCABULARY).float()  #? #! words = F.embedding(tokens, self.project.weight.t())
        _, state = self.rnn(self.project(words))  #! _, state = self.rnn(words)
        return self.head(state[-1])


def reviews(count, batch=64, length=512):
    for _ in range(count):
        tokens = torch.randint(0, VOCABULARY, (batch, length), device="cuda")
        labels = torch.randint(0, 2, (batch,), device="cuda")
        yield tokens, labels


def train():
    model = Sentiment().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (tokens, labels) in enumerate(reviews(5)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        print(step, loss.item())


train()
