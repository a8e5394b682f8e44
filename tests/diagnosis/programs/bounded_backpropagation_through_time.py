# cause: none
# from: pytorch/pytorch#2198
# what: the graph grows over a window of eight chunks, then the state is detached
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, sensors=32, width=768):
        super().__init__()
        self.rnn = nn.LSTM(sensors, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, sensors)

    def forward(self, x, hidden):
        out, hidden = self.rnn(x, hidden)
        return self.head(out), hidden


def train(model, optimizer, recording, chunk=32, window=8):
    hidden, losses = None, []
    for number, x in enumerate(recording.split(chunk, dim=1)):
        predicted, hidden = model(x, hidden)
        losses.append(nn.functional.mse_loss(predicted, x))
        if (number + 1) % window == 0:
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            optimizer.step()
            losses.clear()
            hidden = tuple(h.detach() for h in hidden)


model = Forecaster().cuda()
optimizer = torch.optim.Adam(model.parameters())
train(model, optimizer, torch.randn(128, 32 * 64, 32, device="cuda"))
