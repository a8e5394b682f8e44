# cause: copy_of_weights
# from: common
# what: the best model so far is kept as a second copy of weights and optimizer on the card
import copy
import torch
from torch import nn
from torchvision.models import vit_h_14


def build():
    with torch.device("cuda"):
        model = vit_h_14(weights=None)
        model.heads = nn.Linear(model.hidden_dim, 37)
    return model


def train_one_epoch(model, optimizer, steps):
    model.train()
    for _ in range(steps):
        images = torch.rand(2, 3, 224, 224, device="cuda")
        breeds = torch.randint(0, 37, (2,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), breeds, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model, steps):
    model.eval()
    correct = 0
    for _ in range(steps):
        images = torch.rand(4, 3, 224, 224, device="cuda")
        breeds = torch.randint(0, 37, (4,), device="cuda")
        correct += (model(images).argmax(1) == breeds).sum().item()
    return correct / (4 * steps)


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.best, self.bad_epochs, self.state = patience, -1.0, 0, None

    def update(self, score, model, optimizer):
        if score > self.best:
            self.best, self.bad_epochs = score, 0
            self.state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))  #? #! self.state = {name: value.cpu() for name, value in model.state_dict().items()}
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience


model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
stopper = EarlyStopping()
for epoch in range(2):
    train_one_epoch(model, optimizer, 2)
    if stopper.update(accuracy(model, 1), model, optimizer):  #?
        break
