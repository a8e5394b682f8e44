"""Train the package's autoencoder: python -m package_demo."""
import argparse

import torch
import torch.nn.functional as F

from .model import Autoencoder


def main():
    parser = argparse.ArgumentParser(prog="package_demo")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Autoencoder().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        images = torch.rand(args.batch_size, 3072, device="cuda")
        loss = F.mse_loss(model(images), images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
