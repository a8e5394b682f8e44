# cause: graph_kept
# from: growingnet/gromo#135
# what: a trainer class keeps the outputs of every step in an attribute, with the graph
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        )
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Sigmoid(),
        )

    def forward(self, x):
        code = self.encode(x)
        return code, self.decode(code)


class Trainer:
    def __init__(self, model, lr=2e-4):
        self.model = model.cuda()
        self.encoder_optimizer = torch.optim.Adam(model.encode.parameters(), lr=lr)
        self.decoder_optimizer = torch.optim.Adam(model.decode.parameters(), lr=lr)
        self.last_outputs = []

    def step(self, x):
        code, restored = self.model(x)
        sparsity = code.abs().mean()
        error = nn.functional.mse_loss(restored, x)
        self.encoder_optimizer.zero_grad()
        self.decoder_optimizer.zero_grad()
        error.backward(retain_graph=True)
        sparsity.backward(retain_graph=True)  #? #! sparsity.backward()
        self.encoder_optimizer.step()
        self.decoder_optimizer.step()
        self.last_outputs.append((error, sparsity))  #? #! self.last_outputs.append((error.item(), sparsity.item()))

    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.rand(32, 3, 256, 256, device="cuda"))
        error, sparsity = self.last_outputs[-1]
        print(f"error {error:.4f} sparsity {sparsity:.4f}")


Trainer(Autoencoder()).fit(steps=60)
