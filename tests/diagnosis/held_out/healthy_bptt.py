# cause: none
# from: common
# what: hidden state carried from part to part, detached; losses summed on the card without graph
import torch
from torch import nn


class CharModel(nn.Module):
    def __init__(self, vocab=512, width=1536, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, ids, state):
        h, state = self.rnn(self.embed(ids), state)
        return self.out(h), state


def repackage(state):
    return tuple(s.detach() for s in state)


def train(model, text, window=256):
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    state, total, kept = None, torch.zeros((), device="cuda"), []
    for start in range(0, text.shape[1] - window, window):
        x, y = text[:, start:start + window], text[:, start + 1:start + window + 1]
        if state is not None:
            state = repackage(state)
        logits, state = model(x, state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        opt.step()
        total += loss.detach()
        kept.append(repackage(state))
    return total / len(kept), kept


text = torch.randint(0, 512, (96, 256 * 10 + 1), device="cuda")
loss, states = train(CharModel().cuda(), text)
print(loss.item(), len(states))
