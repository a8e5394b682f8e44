# cause: copy_of_weights
# from: common
# what: two moving averages of a large model are kept by deepcopy on the card beside the model that is trained
import argparse
import copy

import torch
import torch.nn as nn


class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)  #?

    @torch.no_grad()
    def update(self, model):
        for mean, value in zip(self.model.parameters(), model.parameters()):
            mean.lerp_(value, 1 - self.decay)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.body(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--decay", type=float, nargs="+", default=[0.999, 0.9999])  #! parser.add_argument("--decay", type=float, nargs="+", default=[0.9999])
    args = parser.parse_args()
    with torch.device("cuda"):
        model = nn.Sequential(*(Residual(4096) for _ in range(7)))
    averages = [Average(model, decay) for decay in args.decay]  #?
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(4):
        x = torch.randn(1024, 4096, device="cuda")
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x + 0.1 * torch.randn_like(x)), x)
        loss.backward()
        optimizer.step()
        for average in averages:
            average.update(model)
        print(step, loss.item())


if __name__ == "__main__":
    main()
