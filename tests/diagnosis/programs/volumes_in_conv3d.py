# cause: batch_too_large
# from: common
# what: scans of 128^3 voxels with a batch of sixteen through 3D convolutions
import torch
from torch import nn


class VolumeNet(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.first = self.block(1, channels)
        self.second = self.block(channels, 2 * channels)
        self.third = self.block(2 * channels, 4 * channels)
        self.pool = nn.MaxPool3d(2)
        self.head = nn.Linear(4 * channels, 2)

    @staticmethod
    def block(inputs, outputs):
        return nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU(),
            nn.Conv3d(outputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU(),
        )

    def forward(self, x):
        x = self.pool(self.first(x))  #?
        x = self.pool(self.second(x))  #?
        return self.head(self.third(x).mean((2, 3, 4)))


class Trainer:
    def __init__(self, batch):
        self.batch = batch
        self.model = VolumeNet().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def fit(self, steps):
        for step in range(steps):
            scans = torch.randn(self.batch, 1, 128, 128, 128, device="cuda")
            sick = torch.randint(0, 2, (self.batch,), device="cuda")
            loss = nn.functional.cross_entropy(self.model(scans), sick)  #?
            self.optimizer.zero_grad()
            loss.backward()  #?
            self.optimizer.step()
            print(step, loss.item())


Trainer(batch=16).fit(3)  #? #! Trainer(batch=4).fit(3)
