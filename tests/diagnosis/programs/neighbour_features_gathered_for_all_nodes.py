# cause: one_temporary
# from: common
# what: the features of 32 neighbours are gathered for every node of the graph at once
import argparse

import torch
import torch.nn as nn


class NeighbourMean(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.own = nn.Linear(width, outputs)
        self.near = nn.Linear(width, outputs)

    def aggregate(self, features, neighbours):
        return features[neighbours].mean(1)  #? #! return torch.cat([features[part].mean(1) for part in neighbours.split(20_000)])

    def forward(self, features, neighbours):
        return torch.relu(self.own(features) + self.near(self.aggregate(features, neighbours)))  #?


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=600_000)
    parser.add_argument("--degree", type=int, default=32)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    features = torch.randn(args.nodes, args.width, device="cuda")
    neighbours = torch.randint(0, args.nodes, (args.nodes, args.degree), device="cuda")
    layers = [NeighbourMean(args.width, args.width).cuda() for _ in range(2)]
    with torch.no_grad():
        for layer in layers:
            features = layer(features, neighbours)  #?
    print(features.mean().item())


if __name__ == "__main__":
    main()
