# cause: broadcast
# from: pytorch/pytorch#2225
# what: predictions of shape (N, 1) compared with labels (N,) for the accuracy
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def predict(model, features):
    with torch.no_grad():
        return model(features).argmax(dim=1, keepdim=True)  #! return model(features).argmax(dim=1)


def accuracy(predicted, labels):
    return (predicted == labels).float().mean().item()  #?


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    features = torch.rand(args.samples, 784, device="cuda")
    labels = torch.randint(0, 10, (args.samples,), device="cuda")
    for epoch in range(args.epochs):
        for x, y in zip(features.split(10_000), labels.split(10_000)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, accuracy(predict(model, features), labels))


if __name__ == "__main__":
    main()
