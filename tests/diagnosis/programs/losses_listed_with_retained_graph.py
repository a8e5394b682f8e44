# cause: graph_kept
# from: GBLin5566/toward-controlled-generation-of-text-pytorch#9
# what: two losses share a trunk, both backward calls keep the graph and a list keeps the losses
import torch
import torch.nn.functional as F
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.trunk = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(width, width), nn.GELU())])
        self.price = nn.Linear(width, 1)
        self.category = nn.Linear(width, 50)

    def forward(self, x):
        hidden = self.trunk(x)
        return self.price(hidden), self.category(hidden)


def train(model, steps=40, rows=8192):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    price_losses, category_losses = [], []
    for step in range(steps):
        x = torch.randn(rows, 2048, device="cuda")
        price = torch.randn(rows, 1, device="cuda")
        category = torch.randint(0, 50, (rows,), device="cuda")
        optimizer.zero_grad()
        predicted_price, predicted_category = model(x)
        price_loss = F.mse_loss(predicted_price, price)
        category_loss = F.cross_entropy(predicted_category, category)
        price_loss.backward(retain_graph=True)
        category_loss.backward(retain_graph=True)  #? #! category_loss.backward()
        optimizer.step()
        price_losses.append(price_loss)  #? #! price_losses.append(price_loss.item())
        category_losses.append(category_loss)  #? #! category_losses.append(category_loss.item())
    return price_losses, category_losses


with torch.device("cuda"):
    model = TwoHeads()
price_losses, category_losses = train(model)
print("last", float(price_losses[-1]), float(category_losses[-1]))
