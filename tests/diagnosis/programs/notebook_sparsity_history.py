# cause: graph_kept
# kind: notebook
# from: TRI-ML/packnet-sfm#47
# what: a measure with its graph goes into the history of all cells
# %%
import torch
import torch.nn.functional as F
from torch import nn

history = []
# %%
class SparseAutoencoder(nn.Module):
    def __init__(self, width=1024, features=16384):
        super().__init__()
        self.encode = nn.Linear(width, features)
        self.decode = nn.Linear(features, width)

    def forward(self, x):
        hidden = torch.relu(self.encode(x))
        return self.decode(hidden), hidden


net = SparseAutoencoder().cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
# %%
def train_epoch(steps):
    for _ in range(steps):
        x = torch.randn(6000, 1024, device="cuda")
        reconstruction, hidden = net(x)
        loss = F.mse_loss(reconstruction, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sparsity = (hidden.abs() / (1 + hidden.abs())).mean()  #?
        history.append((loss.item(), sparsity))  #? #! history.append((loss.item(), sparsity.item()))
# %%
train_epoch(6)
print(len(history), "steps so far")
# %%
train_epoch(20)
print(len(history), "steps in all")
