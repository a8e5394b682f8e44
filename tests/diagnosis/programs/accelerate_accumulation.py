# cause: backward_once
# from: common
# what: the losses of the micro-batches are summed and backward is called once
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Latents(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.rand(4, 64, 64)


class Denoiser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(8)
        )
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, images):
        hidden = self.first(images)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden)


def train(accelerator, model, optimizer, loader, accumulation):
    total = 0
    for step, latents in enumerate(loader, start=1):
        noise = torch.randn_like(latents)
        loss = F.mse_loss(model(latents + noise), noise) / accumulation  #?
        total = total + loss  #? #! accelerator.backward(loss)
        if step % accumulation == 0:
            accelerator.backward(total)  #!-
            optimizer.step()
            optimizer.zero_grad()
            total = 0


def main():
    accelerator = Accelerator()
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Latents(), batch_size=32, shuffle=True))
    train(accelerator, model, optimizer, loader, accumulation=16)


if __name__ == "__main__":
    main()
