# cause: one_hot
# from: microsoft/InnerEye-DeepLearning#338
# what: a vector quantiser looks its codes up through an int64 one-hot matrix
import torch
import torch.nn.functional as F
from torch import nn


class VectorQuantizer(nn.Module):
    def __init__(self, codes=8192, dim=128, beta=0.25):
        super().__init__()
        self.codes, self.beta = codes, beta
        self.codebook = nn.Embedding(codes, dim)

    def forward(self, z):
        flat = z.transpose(1, 2).reshape(-1, z.shape[1])
        index = self.nearest(flat)
        encodings = F.one_hot(index, self.codes).float()  #? #!-
        quantized = encodings @ self.codebook.weight  #? #! quantized = self.codebook(index)
        quantized = quantized.view(z.shape[0], -1, z.shape[1]).transpose(1, 2)
        loss = F.mse_loss(quantized, z.detach()) + self.beta * F.mse_loss(z, quantized.detach())
        return z + (quantized - z).detach(), loss

    @torch.no_grad()
    def nearest(self, flat):
        return torch.cat([torch.cdist(part, self.codebook.weight).argmin(1) for part in flat.split(16384)])


class Codec(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 32, 7, 4, 3), nn.ELU(), nn.Conv1d(32, 64, 7, 4, 3), nn.ELU(), nn.Conv1d(64, dim, 5, 5))
        self.quantizer = VectorQuantizer(dim=dim)
        self.decoder = nn.Sequential(nn.ConvTranspose1d(dim, 64, 5, 5), nn.ELU(), nn.ConvTranspose1d(64, 32, 4, 4), nn.ELU(),
                                     nn.ConvTranspose1d(32, 1, 4, 4))

    def forward(self, wave):
        code, commitment = self.quantizer(self.encoder(wave))
        return self.decoder(code), commitment


codec = Codec().cuda()
optimizer = torch.optim.Adam(codec.parameters(), lr=3e-4)
for step in range(3):
    wave = torch.randn(96, 1, 16000 * 8, device="cuda")
    rebuilt, commitment = codec(wave)
    loss = F.l1_loss(rebuilt, wave) + commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, float(loss))
