# cause: batch_too_large
# from: common
# what: the activations of one ordinary batch do not fit
# args: --epochs 1 --resolution 456
import argparse

import torch
from torch import nn, optim
from torchvision import models


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--resolution", type=int, default=456)
    p.add_argument("--batch-size", type=int, default=64)  #? #! p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


class ChestXray(nn.Module):
    def __init__(self, findings=14):
        super().__init__()
        self.net = models.efficientnet_b5(weights=None)
        self.net.classifier = nn.Sequential(nn.Dropout(0.4), nn.Linear(2048, findings))

    def forward(self, x):
        return self.net(x)  #?


def batches(args, count):
    for _ in range(count):
        yield (torch.rand(args.batch_size, 3, args.resolution, args.resolution, device="cuda"),
               torch.rand(args.batch_size, 14, device="cuda").round())


def run_epoch(model, optimizer, criterion, loader):
    seen, running = 0, 0.0
    for images, findings in loader:
        optimizer.zero_grad()
        outputs = model(images)  #?
        loss = criterion(outputs, findings)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(images)
        seen += len(images)
    return running / seen


def main():
    args = get_args()
    model = ChestXray().cuda()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        print(epoch, run_epoch(model, optimizer, criterion, batches(args, 2)))


if __name__ == "__main__":
    main()
