# cause: copy_of_weights
# kind: notebook
# from: microsoft/computervision-recipes#444
# what: the model and its optimizer are built a second time under other names while the first ones are still alive
# %%
import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda")
# %%
def build_model(width=4096, depth=36):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, device=device), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10, device=device))  #?


def fit(model, optimizer, steps=3):
    for step in range(steps):
        x = torch.randn(64, 4096, device=device)
        y = torch.randint(0, 10, (64,), device=device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
# %%
model = build_model()  #?
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
print("first try", fit(model, optimizer))
# %%
#! del model, optimizer
model2 = build_model()  #?
optimizer2 = torch.optim.AdamW(model2.parameters(), lr=1e-4, foreach=False)  #?
print("smaller learning rate", fit(model2, optimizer2))
