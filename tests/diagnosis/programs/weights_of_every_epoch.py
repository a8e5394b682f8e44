# cause: tensors_kept
# from: facebookresearch/pytext#204
# what: the weights after every epoch are cloned into a list on the card, to average them at the end
import torch
from torch import nn
from torchvision.models import vit_b_16


def snapshot(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}  #?


def train_epoch(model, optimizer, steps=2):
    for _ in range(steps):
        images = torch.randn(16, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (16,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main(epochs=45):
    with torch.device("cuda"):
        model = vit_b_16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    snapshots = []
    for epoch in range(epochs):
        loss = train_epoch(model, optimizer)
        snapshots.append(snapshot(model))  #? #! snapshots = [snapshot(model)]
        print(f"epoch {epoch} loss {loss:.3f} snapshots {len(snapshots)}")


if __name__ == "__main__":
    main()
