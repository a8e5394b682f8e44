"""Train an LSTM language model with truncated backpropagation through time."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self, vocab=10000, dim=650, layers=2, dropout=0.5):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.embed = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, layers, dropout=dropout)
        self.decoder = nn.Linear(dim, vocab)
        self.decoder.weight = self.embed.weight

    def forward(self, tokens, state):
        x, state = self.lstm(self.drop(self.embed(tokens)), state)
        return self.decoder(self.drop(x)), state

    def initial_state(self, batch_size):
        weight = next(self.parameters())
        shape = (self.lstm.num_layers, batch_size, self.lstm.hidden_size)
        return weight.new_zeros(shape), weight.new_zeros(shape)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--bptt", type=int, default=70)
args = parser.parse_args()

torch.manual_seed(0)
corpus = torch.randint(0, 10000, (args.steps * args.bptt + 1, args.batch_size)).cuda()
model = LanguageModel().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
state = model.initial_state(args.batch_size)

model.train()
for step in range(args.steps):
    start = step * args.bptt
    inputs = corpus[start : start + args.bptt]
    targets = corpus[start + 1 : start + 1 + args.bptt].reshape(-1)

    state = tuple(s.detach() for s in state)
    optimizer.zero_grad()
    logits, state = model(inputs, state)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
