# cause: dataset_on_card
# from: common
# what: the TensorDataset holds all recordings on the card, so an ordinary training step finds no room beside it
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Recordings(nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        layers = [nn.Conv1d(12, channels, 15, padding=7), nn.ReLU()]
        for _ in range(6):
            layers += [nn.Conv1d(channels, channels, 15, padding=7), nn.BatchNorm1d(channels), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(channels, 5)

    def forward(self, x):
        return self.head(self.body(x))


def dataset(count, device):
    signals = np.zeros((count, 12, 5000), dtype=np.float32)
    labels = np.zeros(count, dtype=np.int64)
    return TensorDataset(torch.from_numpy(signals).to(device), torch.from_numpy(labels).to(device))  #?


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recordings", type=int, default=52_000)
    parser.add_argument("--batch", type=int, default=192)
    args = parser.parse_args()
    device = torch.device("cuda")
    data = dataset(args.recordings, device)  #? #! data = dataset(args.recordings, "cpu")
    loader = DataLoader(data, batch_size=args.batch)
    model = Recordings().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step == 4:
            break


if __name__ == "__main__":
    main()
