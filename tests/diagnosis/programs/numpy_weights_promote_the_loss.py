# cause: float64
# from: common
# what: a float64 NumPy weight map multiplied into the loss promotes all later tensors of the loss to double
import numpy as np
import torch
import torch.nn as nn


def border_weights(size):
    axis = np.linspace(-1.0, 1.0, size)
    distance = np.sqrt(axis[:, None] ** 2 + axis[None, :] ** 2)
    return 1.0 + np.exp(-(distance**2))


class LogCosh(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", torch.from_numpy(weights))  #? #! self.register_buffer("weights", torch.from_numpy(weights).float())

    def forward(self, predicted, target):
        error = (predicted - target) * self.weights  #?
        return torch.log(torch.cosh(error + 1e-12)).mean()  #?


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, x):
        return self.net(x)


size, batch = 1024, 44
model = Restorer().cuda()
criterion = LogCosh(border_weights(size)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    target = torch.rand(batch, 8, size, size, device="cuda")
    loss = criterion(model(target), target)
    optimizer.zero_grad()
    loss.backward()  #?
    optimizer.step()
    print(step, loss.item())
