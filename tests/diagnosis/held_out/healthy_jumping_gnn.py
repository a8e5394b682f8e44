# cause: none
# from: common
# what: the whole graph is on the card, every layer's output is listed and concatenated
import torch
import torch.nn.functional as F
from torch import nn

NODES, EDGES, FEATURES, CLASSES = 169_343, 1_166_243, 128, 40


class SAGE(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.other = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, x, src, dst, degree):
        around = torch.zeros_like(x).index_add_(0, dst, x[src]) / degree
        return self.own(x) + self.other(around)


class JumpingNet(nn.Module):
    def __init__(self, width=256, depth=4):
        super().__init__()
        dims = [FEATURES] + [width] * depth
        self.convs = nn.ModuleList(SAGE(a, b) for a, b in zip(dims, dims[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.head = nn.Linear(width * depth, CLASSES)

    def forward(self, x, *graph):
        xs = []
        for conv, norm in zip(self.convs, self.norms):
            x = F.dropout(F.relu(norm(conv(x, *graph))), 0.5, self.training)
            xs.append(x)
        return self.head(torch.cat(xs, dim=1))


x = torch.rand(NODES, FEATURES, device="cuda")
y = torch.randint(0, CLASSES, (NODES,), device="cuda")
src, dst = torch.randint(0, NODES, (2, EDGES), device="cuda")
degree = torch.zeros(NODES, 1, device="cuda").index_add_(0, dst, torch.ones(EDGES, 1, device="cuda")).clamp(min=1)
train_idx = torch.randperm(NODES, device="cuda")[:90_000]

model = JumpingNet().cuda()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
results = []
for epoch in range(6):
    model.train()
    loss = F.cross_entropy(model(x, src, dst, degree)[train_idx], y[train_idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.eval()
    with torch.no_grad():
        predictions = model(x, src, dst, degree).argmax(1)
    results.append((epoch, loss.item(), predictions.to(torch.uint8)))
print(results[-1][:2])
