# cause: float64
# from: common
# what: torch.set_default_dtype(float64), left in from a gradient check, makes weights and activations twice as large
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)  #? #! torch.set_default_dtype(torch.float32)
torch.manual_seed(0)


class Field(nn.Module):
    """A coordinate network: position to colour."""

    def __init__(self, width=512, depth=8):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        x = torch.sin(30 * self.first(x))  #?
        for layer in self.hidden:
            x = torch.sin(layer(x))  #?
        return self.last(x)


def sample(count):
    points = torch.rand(count, 3, device="cuda")
    colours = torch.rand(count, 3, device="cuda")
    return points, colours


def fit(steps=4, count=220_000):
    with torch.device("cuda"):
        field = Field()
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-4)
    for step in range(steps):
        points, colours = sample(count)
        loss = F.mse_loss(field(points), colours)  #?
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
    return field


fit()
