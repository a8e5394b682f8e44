"""The autoencoder that package_demo trains."""
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, inputs=3072, hidden=2048, code=128):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, inputs), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))
