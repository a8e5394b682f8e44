"""Train on images that two DataLoader workers prepare, through pinned memory and non-blocking copies."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SyntheticImages(Dataset):
    def __init__(self, count, size=96, classes=10):
        self.count, self.size, self.classes = count, size, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, self.size, self.size, generator=generator)
        if torch.rand((), generator=generator) < 0.5:
            image = image.flip(-1)
        return (image - 0.5) / 0.25, index % self.classes


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        widths = [3, 64, 128, 256]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 5, padding=2) for a, b in zip(widths, widths[1:]))
        self.fc1, self.fc2 = nn.Linear(256 * 12 * 12, 512), nn.Linear(512, classes)

    def forward(self, x):
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    dataset = SyntheticImages(args.batch_size * args.steps)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    for images, labels in loader:
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
