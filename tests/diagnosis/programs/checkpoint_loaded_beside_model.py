# cause: copy_of_weights
# from: pytorch/pytorch#7415
# what: the checkpoint is loaded straight to the card and kept beside the model and the optimizer that it fills
import os
import tempfile

import torch
import torch.nn as nn


def build():
    with torch.device("cuda"):
        return nn.Sequential(*(nn.Sequential(nn.Linear(4096, 16384), nn.ReLU(), nn.Linear(16384, 4096)) for _ in range(10)))


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def save(path, model):
    with torch.serialization.skip_data():
        torch.save({"model": model.state_dict(), "epoch": 3}, path)


def resume(path, model):
    checkpoint = torch.load(path, map_location="cuda", mmap=True)  #? #! checkpoint = torch.load(path, map_location="cpu", mmap=True)
    model.load_state_dict(checkpoint["model"])
    return checkpoint


path = os.path.join(tempfile.mkdtemp(), "last.pt")
model = build()
save(path, model)
checkpoint = resume(path, model)
print("resumed at epoch", checkpoint["epoch"])
optimizer = make_optimizer(model)
for step in range(4):
    x = torch.randn(2048, 4096, device="cuda")
    optimizer.zero_grad()
    loss = (model(x) - x).pow(2).mean()
    loss.backward()  #?
    optimizer.step()
    print(step, loss.item())
os.remove(path)
