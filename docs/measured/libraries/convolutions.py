"""A few steps of a network of convolutions, for PyTorch's counters: `convolutions.py NET MODE [--benchmark]`.

`card.py` runs it on a GPU, `oomph predict` on the virtual one. Modes: fp32, amp (float16 by autocast), last (amp, and channels last).
"""

import argparse
import os
import time

import torch
import torchvision
from torch import nn


class UNet(nn.Module):
    """Down twice, up twice, with what was kept beside it."""

    def __init__(self):
        super().__init__()

        def block(inside, outside):
            layers = []
            for channels in (inside, outside):
                layers += [nn.Conv2d(channels, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList([block(3, 32), block(32, 64), block(64, 128)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(128, 64, 2, stride=2), nn.ConvTranspose2d(64, 32, 2, stride=2)])
        self.join = nn.ModuleList([block(128, 64), block(64, 32)])
        self.last = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        kept = []
        for index, down in enumerate(self.down):
            x = down(x if index == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for index, (up, join) in enumerate(zip(self.up, self.join)):
            x = join(torch.cat([up(x), kept[1 - index]], 1))
        return self.last(x)


def sound():
    layers = []
    for inside, outside, width, stride in ((1, 64, 80, 4), (64, 128, 9, 4), (128, 256, 9, 4), (256, 256, 9, 2)):
        layers += [nn.Conv1d(inside, outside, width, stride, width // 2), nn.BatchNorm1d(outside), nn.GELU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, 10))


def generator():
    layers, inside = [], 100
    for outside, stride, padding in ((512, 1, 0), (256, 2, 1), (128, 2, 1), (64, 2, 1)):
        layers += [nn.ConvTranspose2d(inside, outside, 4, stride, padding, bias=False), nn.BatchNorm2d(outside), nn.ReLU(True)]
        inside = outside
    return nn.Sequential(*layers, nn.ConvTranspose2d(inside, 3, 4, 2, 1, bias=False), nn.Tanh())


NETS = {
    "resnet18": (torchvision.models.resnet18, (32, 3, 224, 224)),
    "resnet50": (torchvision.models.resnet50, (16, 3, 224, 224)),
    "mobilenet": (torchvision.models.mobilenet_v3_large, (32, 3, 224, 224)),
    "unet": (UNet, (8, 3, 256, 256)),
    "sound": (sound, (32, 1, 16000)),
    "transpose": (generator, (128, 100, 1, 1)),
}


def main(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=NETS)
    parser.add_argument("mode", choices=("fp32", "amp", "last"))
    parser.add_argument("--benchmark", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args(words)
    while os.environ.get("WAIT_FOR") and not os.path.exists(os.environ["WAIT_FOR"]):
        time.sleep(0.05)
    torch.backends.cudnn.benchmark = args.benchmark
    torch.manual_seed(0)
    make, shape = NETS[args.net]
    model = make().cuda().train()
    if args.mode == "last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(args.steps):
        data = torch.randn(shape, device="cuda")
        if args.mode == "last":
            data = data.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.float16, enabled=args.mode != "fp32"):
            loss = model(data).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"PEAK allocated={allocated} reserved={reserved}", flush=True)
    return allocated, reserved


if __name__ == "__main__":
    main()
