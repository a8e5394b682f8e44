# cause: batch_too_large
# from: common
# what: a ResNet-50 at 512 pixels with a batch of 96 in float32; the first forward does not fit
import argparse

import torch
import torch.nn as nn
import torchvision


def train(model, optimizer, args):
    criterion = nn.CrossEntropyLoss()
    model.train()
    for step in range(args.steps):
        images = torch.rand(args.batch, 3, args.size, args.size, device="cuda")
        labels = torch.randint(0, 1000, (args.batch,), device="cuda")
        output = model(images)  #?
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=96)  #? #! parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    train(model, optimizer, args)
