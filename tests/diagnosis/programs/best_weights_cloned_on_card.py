# cause: copy_of_weights
# from: common
# what: the best state is cloned on the card with all of the frozen backbone, which needs several GiB once more
import torch
import torch.nn as nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, width=5120, layers=6):
        super().__init__()
        layer = nn.TransformerEncoderLayer
        self.backbone = nn.ModuleList(layer(width, 40, 4 * width, batch_first=True) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 20))

    def forward(self, x):
        with torch.no_grad():
            for layer in self.backbone:
                x = layer(x)
        return self.head(x.mean(1))


def train_epoch(model, optimizer):
    model.train()
    for _ in range(3):
        x = torch.randn(8, 128, 5120, device="cuda")
        y = torch.randint(0, 20, (8,), device="cuda")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def validate(model):
    model.eval()
    x = torch.randn(8, 128, 5120, device="cuda")
    y = torch.randint(0, 20, (8,), device="cuda")
    return F.cross_entropy(model(x), y).item()


with torch.device("cuda"):
    model = Classifier()
model.backbone.requires_grad_(False)
optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-4)
best, best_state = float("inf"), None
for epoch in range(2):
    train_epoch(model, optimizer)
    score = validate(model)
    if score < best:
        best = score
        best_state = {name: value.clone() for name, value in model.state_dict().items()}  #? #! best_state = {name: value.clone() for name, value in model.head.state_dict().items()}
model.load_state_dict(best_state)  #! model.head.load_state_dict(best_state)
