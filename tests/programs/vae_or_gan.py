"""Train a DCGAN: a generator and a discriminator with an optimizer each."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


def up(inputs, outputs, stride=2, padding=1):
    return [nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]


def down(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--latent", type=int, default=100)
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = nn.Sequential(
        *up(args.latent, 512, 1, 0), *up(512, 256), *up(256, 128), *up(128, 64),
        nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
    ).cuda()
    discriminator = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        *down(64, 128), *down(128, 256), *down(256, 512), nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    ).cuda()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    ones, zeros = torch.ones(args.batch_size, device="cuda"), torch.zeros(args.batch_size, device="cuda")

    for step in range(args.steps):
        real = torch.rand(args.batch_size, 3, 64, 64, device="cuda") * 2 - 1
        fake = generator(torch.randn(args.batch_size, args.latent, 1, 1, device="cuda"))

        discriminator_optimizer.zero_grad()
        loss_d = F.binary_cross_entropy_with_logits(discriminator(real), ones)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        loss_d.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
        loss_g.backward()
        generator_optimizer.step()
        print(f"step {step} discriminator {loss_d.item():.3f} generator {loss_g.item():.3f}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
