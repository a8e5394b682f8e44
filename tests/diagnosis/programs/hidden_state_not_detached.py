# cause: graph_kept
# from: pytorch/pytorch#2198
# what: the hidden state of an LSTM is carried from chunk to chunk without detach
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, sensors=64, width=1024):
        super().__init__()
        self.rnn = nn.LSTM(sensors, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, sensors)

    def forward(self, x, hidden=None):
        out, hidden = self.rnn(x, hidden)
        return self.head(out), hidden


def train_on_recording(model, optimizer, recording, chunk=64):
    hidden = None
    total = 0.0
    optimizer.zero_grad()
    for start in range(0, recording.shape[1] - chunk, chunk):
        x = recording[:, start : start + chunk]
        y = recording[:, start + 1 : start + chunk + 1]
        predicted, hidden = model(x, hidden)  #?
        loss = nn.functional.mse_loss(predicted, y)
        loss.backward(retain_graph=True)  #? #! loss.backward()
        #! hidden = tuple(h.detach() for h in hidden)
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


if __name__ == "__main__":
    model = Forecaster().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for recording_number in range(2):
        recording = torch.randn(128, 64 * 48 + 1, 64, device="cuda")
        print(recording_number, train_on_recording(model, optimizer, recording))
