# cause: batch_too_large
# from: keras-team/keras#141
# what: a stacked LSTM over 2000 time steps with a batch of 32; its activations do not fit beside the weights and Adam
import torch
import torch.nn as nn

LENGTH, SENSORS, HIDDEN = 2000, 32, 2048


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(SENSORS, HIDDEN, num_layers=4, batch_first=True)
        self.head = nn.Linear(HIDDEN, SENSORS)

    def forward(self, x):
        states, _ = self.rnn(x)  #?
        return self.head(states)


def windows(count, batch):
    for _ in range(count):
        series = torch.randn(batch, LENGTH + 1, SENSORS, device="cuda")
        yield series[:, :-1], series[:, 1:]


with torch.device("cuda"):
    model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.MSELoss()
for step, (past, future) in enumerate(windows(4, batch=32)):  #? #! for step, (past, future) in enumerate(windows(4, batch=8)):
    loss = criterion(model(past), future)  #?
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
