# cause: broadcast
# from: pytorch/pytorch#16045
# what: predictions (N, 1) against targets (N,) in the MSE loss give N x N differences
import torch
import torch.nn as nn


def house_prices(count=45_000):
    features = torch.randn(count, 32, device="cuda")
    price = torch.rand(count, device="cuda")
    return features, price


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        return self.net(x)  #! return self.net(x).squeeze(1)


features, price = house_prices()
model = Regressor().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.MSELoss()

for epoch in range(5):
    optimizer.zero_grad()
    predicted = model(features)
    loss = criterion(predicted, price)  #?
    loss.backward()  #?
    optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}")
